//! `check-config FILE`: what the daemon would say of a settings file when it starts.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use config::DaemonSettings;

use crate::failure::usage;
use crate::terminal::Terminal;

/// Prints all problems of `file`, each on a line as `FILE:LINE:COLUMN: what is wrong; what to do`, or what it would
/// watch and cost. Without a file, prints the commented one with every setting.
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
            terminal.print(&format!("{path} is sound: {}\n", settings.in_words()))?;
            Ok(ExitCode::SUCCESS)
        }
        Err(problems) => {
            let lines: String = problems.iter().map(|problem| format!("{path}:{problem}\n")).collect();
            terminal.print(&lines)?;
            Ok(ExitCode::FAILURE)
        }
    }
}
