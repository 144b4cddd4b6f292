//! `push`: profiles to a backend, as Pyroscope or OpenTelemetry takes them.
//!
//! [`PushClient::send`] is what one profile takes; all else here is the command. A profile that is longer than the backend
//! takes is sent in parts, which the backend adds up.

mod answer;
mod client;
mod credentials;
mod early_answer;
mod grpc;
mod naming;
mod otlp;
mod pyroscope;
mod pyroscope_push;
mod receiver;
mod source;
#[cfg(test)]
mod tests;
mod trouble;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Error, Result};
use profile_files::names::visible;
use profile_files::store::PartsLeft;
use profiler_core::profile::{SymbolizedProfile, WeightedStack};

use self::answer::size;
use self::client::HttpClient;
pub(crate) use self::client::{PushAccess, agent};
pub(crate) use self::credentials::{certificates, header, header_of, token};
use self::grpc::GrpcClient;
pub(crate) use self::naming::{PushIdentity, PushNaming};
pub(crate) use self::receiver::{Receiver, is_this_machine};
pub(crate) use self::source::PushSource;
pub(crate) use self::trouble::PushError;
use crate::failure::{Failure, exit_code};
use crate::plot::grouped;
use crate::terminal::Terminal;
use config::ExportFormat;

/// Send profiles to a backend.
#[derive(Debug)]
pub(crate) struct PushJob {
    /// The profiles; never empty.
    pub(crate) files: Vec<PathBuf>,
    /// Where they go.
    pub(crate) receiver: Receiver,
    /// How it is reached.
    pub(crate) access: PushAccess,
    /// What they are called there.
    pub(crate) naming: PushNaming,
}

/// A backend that takes profiles, and how it is reached.
pub(crate) struct PushClient {
    receiver: Receiver,
    transport: Transport,
}

enum Transport {
    Http(HttpClient),
    Grpc(Box<GrpcClient>),
}

impl PushClient {
    /// Knows the backend; nothing is sent yet.
    ///
    /// # Errors
    ///
    /// If the system or the certificates do not permit it.
    pub(crate) fn new(receiver: &Receiver, access: &PushAccess) -> Result<Self> {
        let transport = match receiver.format {
            ExportFormat::Pyroscope | ExportFormat::PyroscopePush | ExportFormat::Otlp => {
                Transport::Http(HttpClient::new(receiver, access))
            }
            ExportFormat::OtlpGrpc => Transport::Grpc(Box::new(GrpcClient::new(receiver, access)?)),
        };
        Ok(Self { receiver: receiver.clone(), transport })
    }

    /// Sends what is left of a profile, in as many parts as it takes; how many bytes were acknowledged of all of it. `keep` gets
    /// what is left after each part but the last.
    ///
    /// # Errors
    ///
    /// If a part was not acknowledged: it and those after it are left.
    pub(crate) fn send(
        &mut self,
        source: &PushSource,
        identity: &PushIdentity,
        left: &mut PartsLeft,
        mut keep: impl FnMut(&PartsLeft),
    ) -> Result<usize, PushError> {
        let is_named = otlp::names_samples(&source.profile);
        while let Some(stacks) = left.next() {
            let sent = if left.is_whole(&stacks) {
                self.request(source, identity, is_named)
            } else {
                let with_file =
                    matches!(self.receiver.format, ExportFormat::Pyroscope | ExportFormat::PyroscopePush);
                let part = source.part(stacks, with_file).map_err(not_compressed)?;
                self.request(&part, identity, is_named)
            };
            match sent {
                Ok(bytes) => {
                    left.acknowledge(bytes);
                    if !left.is_empty() {
                        keep(left);
                    }
                }
                Err(PushError::TooLong(_)) if left.halve() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(left.bytes())
    }

    /// One request; how many bytes it has.
    fn request(
        &mut self,
        source: &PushSource,
        identity: &PushIdentity,
        is_named: bool,
    ) -> Result<usize, PushError> {
        let client = match &mut self.transport {
            Transport::Grpc(client) => {
                return client.send(otlp::message(&source.profile, identity, is_named));
            }
            Transport::Http(client) => client,
        };
        let post = match self.receiver.format {
            ExportFormat::Pyroscope => pyroscope::post(source, identity),
            ExportFormat::PyroscopePush => pyroscope_push::post(source, identity),
            ExportFormat::Otlp | ExportFormat::OtlpGrpc => {
                otlp::post(&source.profile, identity, is_named).map_err(not_compressed)?
            }
        };
        client.post(&post)?.check(&self.receiver, post.body.len())?;
        Ok(post.body.len())
    }
}

fn not_compressed(error: std::io::Error) -> PushError {
    PushError::Profile(format!("it cannot be compressed ({error})"))
}

/// Sends the files in their order, with a line for each. Ends early where no other file would be taken.
///
/// # Errors
///
/// If a line cannot be written.
pub(crate) fn run(job: &PushJob, terminal: Terminal) -> Result<ExitCode> {
    let mut client = PushClient::new(&job.receiver, &job.access)?;
    if job.receiver.is_exposed && !job.access.headers.is_empty() {
        terminal
            .say(&format!("headers go to {} without encryption; give an https address", job.receiver.host));
    }
    let mut status = ExitCode::SUCCESS;
    for (at, path) in job.files.iter().enumerate() {
        match push(&mut client, path, &job.naming) {
            Ok(line) => terminal.print(&line)?,
            Err(error) => {
                terminal.fail(&error);
                status = exit_code(&error);
                let left = job.files.len() - at - 1;
                if left > 0 && concerns_all(&error) {
                    terminal.say(&format!(
                        "{left} more {} not sent",
                        if left == 1 { "file is" } else { "files are" }
                    ));
                    break;
                }
            }
        }
    }
    Ok(status)
}

/// Sends a file; the line that says so.
fn push(client: &mut PushClient, path: &Path, naming: &PushNaming) -> Result<String> {
    let source = PushSource::read(path)?;
    let identity = naming.identity(&source.profile, source.stamp.as_ref());
    let shown = visible(&path.to_string_lossy());
    let mut left = PartsLeft::all_of(source.profile.stacks.len());
    let sent = client.send(&source, &identity, &mut left, |_| {});
    let bytes = sent.map_err(|error| {
        let what = match left.acknowledged() {
            0 => format!("{shown} is not sent"),
            parts => format!(
                "{shown} is not sent in full, and {parts} parts of it would count twice if you push it again"
            ),
        };
        match error {
            PushError::NotPermitted(text) => Failure::NotPermitted(format!("{what}: {text}")).into(),
            error => Error::from(error).context(what),
        }
    })?;
    let parts = match left.acknowledged() {
        ..=1 => String::new(),
        parts => format!(" in {parts} parts, since it does not accept one as long as all of it"),
    };
    let (host, contents) = (&client.receiver.host, contents(&source.profile));
    Ok(format!("sent {shown} to {host}: {contents}, {}{parts}\n", size(bytes)))
}

/// Whether every other file would meet the same.
fn concerns_all(error: &Error) -> bool {
    match error.downcast_ref::<PushError>() {
        Some(PushError::Receiver(_) | PushError::Failed { .. } | PushError::Later { .. }) => true,
        _ => matches!(error.downcast_ref(), Some(Failure::NotPermitted(_))),
    }
}

/// What is in a profile: `7,656 samples, 120.1 CPU s`.
fn contents(profile: &SymbolizedProfile) -> String {
    let sum =
        |value: fn(&WeightedStack) -> u64| profile.stacks.iter().map(value).fold(0, u64::saturating_add);
    let measure = &profile.run.measure;
    let samples = format!("{} {}", grouped(sum(|stack| stack.samples) as f64), visible(measure.counted()));
    let seconds = sum(|stack| stack.cpu_ns) as f64 * 1e-9;
    match measure.is_cpu() {
        true => format!("{samples}, {seconds:.1} CPU s"),
        false => format!("{samples}, {seconds:.1} s of {}", visible(&measure.in_words())),
    }
}
