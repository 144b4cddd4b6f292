//! What is typed after `push`.

use std::path::PathBuf;

use clap::Args;
use config::{ExportFormat, Span};

use super::report::label;

/// Arguments of `push`.
#[derive(Debug, Args)]
pub(crate) struct PushArgs {
    /// Profiles in pprof format (.pb.gz), from a run or from the daemon's store.
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Address of the backend, such as http://pyroscope:4040 or https://collector:4318. The format's path is
    /// added if it is missing.
    #[arg(long, value_name = "URL")]
    pub(crate) to: String,
    /// Format of the requests: pyroscope, pyroscope-push (Pyroscope's newer interface, by Connect), otlp
    /// (OpenTelemetry's profiles over HTTP, protocol 1.10 or later) or otlp-grpc (most collectors take it at port
    /// 4317). Default: according to the path of --to, or pyroscope if there is none.
    #[arg(long, value_name = "FORMAT")]
    pub(crate) format: Option<ExportFormat>,
    /// Service name of the profiles. Default: each profile's target.
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// An additional label; may be repeated.
    #[arg(long, value_name = "KEY=TEXT", value_parser = label)]
    pub(crate) label: Vec<(String, String)>,
    /// A header for every request, such as 'X-Scope-OrgID: team'; may be repeated.
    // As it is typed: an error of the command line would show it, and it may be a secret.
    #[arg(long, value_name = "NAME: TEXT")]
    pub(crate) header: Vec<String>,
    /// A file with a token, sent as `Authorization: Bearer TOKEN`.
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// A file with the certificates (PEM) to trust instead of the public authorities.
    #[arg(long, value_name = "FILE")]
    pub(crate) ca_file: Option<PathBuf>,
    /// Time limit for each file, from connecting to the end of the response.
    #[arg(long, value_name = "TIME", default_value = "30s")]
    pub(crate) timeout: Span,
}
