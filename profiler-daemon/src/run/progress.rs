//! The line that shows how a run goes, on a terminal only.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::engine::Engine;
use super::follow::RunDisplay;
use crate::output::Outputs;
use crate::terminal::Terminal;

/// Often enough for a person, seldom enough to cost nothing.
const EVERY: Duration = Duration::from_millis(500);

/// A spinner with the figures of the moment.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    duration: Option<Duration>,
    began: Instant,
    shown: Instant,
}

impl Progress {
    pub(crate) fn new(terminal: Terminal, duration: Option<Duration>) -> Self {
        let wanted = !terminal.quiet && std::io::stderr().is_terminal();
        let style = ProgressStyle::with_template("{spinner} {msg}")
            .unwrap_or_else(|_| ProgressStyle::default_spinner());
        let bar = wanted.then(|| ProgressBar::new_spinner().with_style(style));
        let now = Instant::now();
        Self { bar, duration, began: now, shown: now }
    }
}

impl RunDisplay for Progress {
    /// Shows the figures, if the last ones are old enough.
    fn show(&mut self, engine: &mut Engine<Outputs>) -> bool {
        let Some(bar) = &self.bar else { return false };
        if self.shown.elapsed() < EVERY {
            return false;
        }
        self.shown = Instant::now();
        let elapsed = self.began.elapsed().as_secs();
        let time = match self.duration {
            Some(duration) => format!("{elapsed} of {} s", duration.as_secs()),
            None => format!("{elapsed} s"),
        };
        bar.set_message(format!(
            "{time} · {} samples · {:.0} Hz · slowdown {:.2}%",
            engine.session.counts.samples,
            engine.controller.rate_hz(),
            engine.controller.account().slowdown_ratio() * 100.0
        ));
        bar.tick();
        false
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
