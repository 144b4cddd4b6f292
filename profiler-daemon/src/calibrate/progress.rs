//! A bar on the terminal while the thorough calibration lasts.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};

use crate::terminal::Terminal;

/// The bar, where a person sees it.
pub(super) struct CalibrationProgress(Option<ProgressBar>);

impl CalibrationProgress {
    /// A bar for so many steps.
    pub(super) fn new(terminal: Terminal, steps: u64) -> Self {
        let wanted = !terminal.quiet && std::io::stderr().is_terminal();
        let style = ProgressStyle::with_template("measuring {wide_bar} {percent}%, {eta} left")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        Self(wanted.then(|| ProgressBar::new(steps).with_style(style)))
    }

    /// One more.
    pub(super) fn step(&self) {
        if let Some(bar) = &self.0 {
            bar.inc(1);
        }
    }
}

impl Drop for CalibrationProgress {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
