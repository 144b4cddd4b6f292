//! What is typed after `push`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use config::Span;

use super::report::label;

/// Arguments of `push`.
#[derive(Debug, Args)]
pub(crate) struct PushArgs {
    /// Profiles in pprof's format (.pb.gz), of one run or of the daemon's store.
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// The backend, such as http://pyroscope:4040 or https://collector:4318. The path of the format is added where it is
    /// missing.
    #[arg(long, value_name = "URL")]
    pub(crate) to: String,
    /// What the backend takes. Without it, the path of --to decides, and where it has none it is pyroscope.
    #[arg(long, value_enum)]
    pub(crate) format: Option<PushFormat>,
    /// The service that the profiles belong to. Without it, the target of each profile.
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// A label, beside those that the profile has; may be repeated.
    #[arg(long, value_name = "KEY=TEXT", value_parser = label)]
    pub(crate) label: Vec<(String, String)>,
    /// A header of every request, such as 'X-Scope-OrgID: team'; may be repeated.
    // As it is typed: an error of the command line would show it, and it may be a secret.
    #[arg(long, value_name = "NAME: TEXT")]
    pub(crate) header: Vec<String>,
    /// A file with a token, sent as `Authorization: Bearer TOKEN`.
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// A file with the certificates (PEM) to trust instead of the public authorities.
    #[arg(long, value_name = "FILE")]
    pub(crate) ca_file: Option<PathBuf>,
    /// Longest time for a file, from the connection to the end of the answer.
    #[arg(long, value_name = "TIME", default_value = "30s")]
    pub(crate) timeout: Span,
}

/// What a backend takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PushFormat {
    /// pprof, by Pyroscope's `/ingest`.
    Pyroscope,
    /// OpenTelemetry's profiles over HTTP, protocol 1.10 or later: `/v1development/profiles`.
    Otlp,
}
