//! `ctl profile`: the daemon adds up what it keeps, and everything else is done here, as `report` does it.

use std::time::Duration;

use anyhow::{Error, Result, anyhow};
use profile_files::pprof::{self, ReadError};
use profile_files::{JSON, PPROF};

use super::client::{Client, RequestMethod, quoted};
use super::{CtlProfile, CtlTime};
use crate::output::OutputJob;
use crate::output::Outputs;
use crate::report;
use crate::terminal::Terminal;

/// For a profile to be added up: a month of a big host takes a minute.
const PATIENCE: Duration = Duration::from_secs(300);

/// Prints the profile, or writes it to files.
///
/// # Errors
///
/// If nothing was sampled in that time, or a file cannot be written.
pub(super) fn run(client: &Client<'_>, asked: &CtlProfile, json: bool, terminal: Terminal) -> Result<()> {
    let format = if json { &JSON } else { asked.format };
    // Files that cannot be written are better known before an hour of waiting.
    let files = OutputJob { files: asked.files.clone(), ..OutputJob::default() };
    let outputs = if asked.files.is_empty() { None } else { Some(Outputs::prepare(&files)?) };
    let waiting = match asked.time {
        CtlTime::Next(time) => time,
        CtlTime::Range(..) => Duration::ZERO,
    };
    let bytes = client.ask(RequestMethod::Get, &path(asked), None, PATIENCE + waiting)?;
    let profile = pprof::read_cpu_time(bytes.as_slice()).map_err(unreadable)?;
    match outputs {
        Some(outputs) => {
            report::say_missing(&profile, terminal);
            outputs.deliver(&profile)
        }
        None => {
            if !format.lists_functions {
                report::say_missing(&profile, terminal);
            }
            report::print_as(format, &profile, terminal, asked.top)
        }
    }
}

fn unreadable(error: ReadError) -> Error {
    let what_to_do = match error.is_limit() {
        true => "request a shorter range or fewer targets",
        false => "does it have another version?",
    };
    anyhow!("the daemon's profile cannot be read ({:#}); {what_to_do}", Error::from(error))
}

fn path(asked: &CtlProfile) -> String {
    let mut path = format!("/v1/profile?format={PPROF}");
    let seconds = |ns: u64| format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
    match asked.time {
        CtlTime::Next(time) => path += &format!("&seconds={}", time.as_secs()),
        CtlTime::Range(from_ns, to_ns) => {
            path += &format!("&from={}", seconds(from_ns));
            if let Some(to_ns) = to_ns {
                path += &format!("&to={}", seconds(to_ns));
            }
        }
    }
    for target in &asked.targets {
        path += &format!("&target={}", quoted(target));
    }
    for (key, text) in &asked.labels {
        path += &format!("&label={}", quoted(&format!("{key}={text}")));
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_that_is_too_large_is_no_other_version() {
        let said = unreadable(ReadError::TooLarge).to_string();
        assert!(said.contains("MiB") && said.ends_with("request a shorter range or fewer targets"), "{said}");
        let said = unreadable(ReadError::Malformed("it is empty")).to_string();
        assert!(said.contains("it is empty") && said.contains("another version"), "{said}");
    }
}
