//! `check-config FILE`: checks a settings file as the daemon does when it starts.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use config::DaemonSettings;

use crate::api;
use crate::containers;
use crate::daemon::exports;
use crate::discovery::Discovery;
use crate::failure::{Failure, usage};
use crate::fleet;
use crate::terminal::Terminal;

/// Prints all problems of `file`, each on a line as `FILE:LINE:COLUMN: what is wrong; what to do`; or what of it the daemon would
/// refuse on this host, or what it would watch and cost, with a warning for what is not there at present or not safe. Without a file, prints the commented one with every setting.
///
/// # Errors
///
/// A usage error if the file cannot be read.
pub(crate) fn run(file: Option<&Path>, terminal: Terminal) -> Result<ExitCode> {
    let Some(file) = file else {
        terminal.print(&DaemonSettings::default_file())?;
        return Ok(ExitCode::SUCCESS);
    };
    let path = file.display();
    let bytes = fs::read(file).map_err(|error| {
        usage(format!("{path} cannot be read ({error}); give a settings file, or --default to see one"))
    })?;
    match DaemonSettings::parse(&bytes) {
        Ok(settings) => {
            let (wrong, remarks) = judge(&settings);
            if wrong.is_empty() {
                terminal.print(&format!("{path} is valid: {}\n", settings.in_words()))?;
            }
            let wrong_lines: String = wrong.iter().map(|text| format!("{path}: {text}\n")).collect();
            let remarks: String = remarks.iter().map(|text| format!("{path}: warning: {text}\n")).collect();
            terminal.print(&(wrong_lines + &remarks))?;
            Ok(if wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Err(problems) => {
            let lines: String = problems.iter().map(|problem| format!("{path}:{problem}\n")).collect();
            terminal.print(&lines)?;
            Ok(ExitCode::FAILURE)
        }
    }
}

/// What of sound settings the daemon would refuse when it starts on this host, and what it would only remark upon.
fn judge(settings: &DaemonSettings) -> (Vec<String>, Vec<String>) {
    let (refused, mut remarks) = api::problems(settings);
    let of_exports = exports::problems(settings);
    remarks.extend(of_exports.1);
    let of_fleet = fleet::PrometheusClient::new(&settings.fleet);
    remarks.extend(of_fleet.iter().flatten().filter_map(fleet::PrometheusClient::remark));
    let mut wrong = Vec::new();
    for error in refused.into_iter().chain(of_exports.0).chain(of_fleet.err()) {
        let text = format!("{error:#}");
        match error.downcast_ref() {
            // The daemon may run as another user.
            Some(Failure::NotPermitted(_)) => remarks.push(text),
            _ => wrong.push(text),
        }
    }
    let folder = &settings.store.folder;
    if fs::metadata(folder).is_ok_and(|found| !found.is_dir()) {
        wrong
            .push(format!("store.folder: {} is not a folder; write another, or remove it", folder.display()));
    }
    remarks.extend(Discovery::missing(&settings.targets));
    remarks.extend(containers::missing(settings));
    remarks.extend(settings.missing_pod_labels());
    (wrong, remarks)
}
