//! `push`: profiles to a backend, as Pyroscope or OpenTelemetry takes them.
//!
//! [`PushClient::send`] is what one profile takes; all else here is the command.

mod answer;
mod client;
mod naming;
mod otlp;
mod pyroscope;
mod receiver;
mod source;
#[cfg(test)]
mod tests;
mod trouble;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Error, Result};
use profile_files::names::visible;
use profiler_core::profile::{SymbolizedProfile, WeightedStack};

use self::answer::size;
pub(crate) use self::client::{PushAccess, PushClient, agent};
pub(crate) use self::naming::{PushIdentity, PushNaming};
pub(crate) use self::receiver::{Receiver, is_this_machine};
pub(crate) use self::source::PushSource;
pub(crate) use self::trouble::PushError;
use crate::cli::PushFormat;
use crate::failure::{Failure, exit_code};
use crate::plot::grouped;
use crate::settings::PushJob;
use crate::terminal::Terminal;

impl PushClient {
    /// Sends a profile; how many bytes it took.
    ///
    /// # Errors
    ///
    /// If it was not acknowledged.
    pub(crate) fn send(&self, source: &PushSource, identity: &PushIdentity) -> Result<usize, PushError> {
        let post = match self.receiver().format {
            PushFormat::Pyroscope => pyroscope::post(source, identity),
            PushFormat::Otlp => otlp::post(&source.profile, identity)
                .map_err(|error| PushError::Profile(format!("it cannot be compressed ({error})")))?,
        };
        self.post(&post)?.check(self.receiver(), post.body.len())?;
        Ok(post.body.len())
    }
}

/// Sends the files in their order, with a line for each. Ends early where no other file would be taken.
///
/// # Errors
///
/// If a line cannot be written.
pub(crate) fn run(job: &PushJob, terminal: Terminal) -> Result<ExitCode> {
    let client = PushClient::new(&job.receiver, &job.access);
    if job.receiver.is_exposed && !job.access.headers.is_empty() {
        terminal
            .say(&format!("headers go to {} without encryption; give an https address", job.receiver.host));
    }
    let mut status = ExitCode::SUCCESS;
    for (at, path) in job.files.iter().enumerate() {
        match push(&client, path, &job.naming) {
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
fn push(client: &PushClient, path: &Path, naming: &PushNaming) -> Result<String> {
    let source = PushSource::read(path)?;
    let identity = naming.identity(&source.profile, source.stamp.as_ref());
    let shown = visible(&path.to_string_lossy());
    let bytes = client.send(&source, &identity).map_err(|error| match error {
        PushError::NotPermitted(text) => Failure::NotPermitted(format!("{shown} is not sent: {text}")).into(),
        error => Error::from(error).context(format!("{shown} is not sent")),
    })?;
    Ok(format!(
        "sent {shown} to {}: {}, {}\n",
        client.receiver().host,
        contents(&source.profile),
        size(bytes)
    ))
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
