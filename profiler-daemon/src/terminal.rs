//! The one place that writes to standard output and standard error.

use std::io::{self, IsTerminal, Write};

use anyhow::{Context, Result};

use crate::failure::lines;
use crate::sys::terminal::{self, ScreenSize};

/// Width of a line where the terminal does not say.
const COLUMNS: usize = 80;
/// Narrowest width that a table is fitted to.
const MIN_COLUMNS: usize = 60;

/// Standard output for results, standard error for everything about the run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Terminal {
    /// Say nothing but results and errors.
    pub(crate) quiet: bool,
}

impl Terminal {
    /// Writes a result to standard output. A reader that has gone (`| head`) is not an error.
    pub(crate) fn print(self, text: &str) -> Result<()> {
        self.print_if_read(text).map(drop)
    }

    /// [`Self::print`]; returns whether the output still has a reader.
    pub(crate) fn print_if_read(self, text: &str) -> Result<bool> {
        let mut out = io::stdout().lock();
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
            written => written
                .map(|()| true)
                .context("standard output cannot be written; redirect it to another file"),
        }
    }

    /// Tells the person something about the run, unless told to be quiet.
    pub(crate) fn say(self, line: &str) {
        if !self.quiet {
            write_error_line(line);
        }
    }

    /// Tells the person why the program failed.
    pub(crate) fn fail(self, error: &anyhow::Error) {
        lines(error).iter().for_each(|line| write_error_line(line));
    }

    /// The width to fit a table to: `$COLUMNS`, else that of the terminal, else 80.
    pub(crate) fn columns(self) -> usize {
        let told = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
        let told = told.filter(|columns| *columns > 0).or_else(|| terminal::size().map(|size| size.columns));
        told.unwrap_or(COLUMNS).max(MIN_COLUMNS)
    }

    /// The terminal that standard output is; none where it is a file or a pipe.
    pub(crate) fn screen(self) -> Option<ScreenSize> {
        terminal::size()
    }
}

/// Asks the person, if there is one at the terminal; anything but a yes is a no.
pub(crate) fn agrees(question: &str) -> bool {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return false;
    }
    let asked = write!(io::stderr().lock(), "sweetspot: {question}");
    let mut answer = String::new();
    asked.is_ok() && io::stdin().read_line(&mut answer).is_ok() && is_yes(&answer)
}

fn is_yes(answer: &str) -> bool {
    matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

/// Standard error may be closed or full, and there is nobody left to tell.
fn write_error_line(line: &str) {
    let line = line.replace(['\n', '\r'], " ");
    let _ = writeln!(io::stderr().lock(), "sweetspot: {line}");
}
