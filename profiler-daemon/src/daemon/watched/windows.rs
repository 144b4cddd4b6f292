//! The open window of a target, and how it ends.

use profile_files::store::TargetWindow;

use super::Watched;
use crate::daemon::flush_limiter::FlushLimiter;
use crate::daemon::window_writer::PendingWindow;
use crate::run::{RunFigures, Setup, summary};
use crate::sampler::session::Collected;

/// How long windows are (ns).
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowLengths {
    /// The first of a target.
    pub(crate) first_ns: u64,
    /// All others.
    pub(crate) usual_ns: u64,
}

impl Watched {
    /// Whether it is time to end the open window.
    pub(crate) fn window_is_over(&self, now_ns: u64, lengths: WindowLengths) -> bool {
        let length_ns = self.window_ns(lengths);
        self.sampled.as_ref().is_some_and(|sampled| now_ns.saturating_sub(sampled.from_ns) >= length_ns)
    }

    /// The length of the open window (ns).
    pub(crate) fn window_ns(&self, lengths: WindowLengths) -> u64 {
        if self.windows == 0 { lengths.first_ns } else { lengths.usual_ns }
    }

    /// Whether the open window began before this (ns).
    pub(crate) fn is_open_since(&self, at_ns: u64) -> bool {
        self.open_window().is_some_and(|(from_ns, _)| from_ns < at_ns)
    }

    /// Start of the open window (ns), and the limit on ending it early.
    fn open_window(&self) -> Option<(u64, &FlushLimiter)> {
        let shared = self.part.as_ref().map(|part| (part.from_ns, &part.flush_limiter));
        shared.or_else(|| self.sampled.as_ref().map(|sampled| (sampled.from_ns, &sampled.flush_limiter)))
    }

    /// When the open window may be ended for a request (ns); `is_end` says that the requested time range ends.
    pub(crate) fn early_end_ns(&self, is_end: bool) -> Option<u64> {
        self.open_window().map(|(from_ns, flush_limiter)| flush_limiter.when(from_ns, is_end))
    }

    /// Notes that the window was ended early for a request.
    pub(crate) fn note_early_end(&mut self, now_ns: u64) {
        let shared = self.part.as_mut().map(|part| &mut part.flush_limiter);
        if let Some(flush_limiter) =
            shared.or_else(|| self.sampled.as_mut().map(|sampled| &mut sampled.flush_limiter))
        {
            flush_limiter.take(now_ns);
        }
    }

    /// Ends the open window and begins the next; sampling goes on.
    pub(crate) fn cut(&mut self, setup: &Setup) -> Option<PendingWindow> {
        let sampled = self.sampled.as_mut()?;
        sampled.engine.session.own_time.enter();
        let (collected, figures) = sampled.engine.cut();
        sampled.engine.session.own_time.leave();
        Some(self.pending_window(setup, collected, &figures))
    }

    /// What was collected in the open window, as it is to be kept; the next one begins.
    pub(crate) fn pending_window(
        &mut self,
        setup: &Setup,
        collected: Collected,
        figures: &RunFigures,
    ) -> PendingWindow {
        let span = collected.span.clone();
        let from_ns = match (&mut self.part, &mut self.sampled) {
            // A window in which it used no CPU time is not kept.
            (Some(part), _) => std::mem::replace(&mut part.from_ns, span.end).min(span.start),
            (None, Some(own)) => std::mem::replace(&mut own.from_ns, span.end).max(span.start),
            (None, None) => span.start,
        };
        let mut run = summary::run(figures, &collected, setup, &self.sampling, self.identity.name.clone());
        run.0.how.stopped = "window".to_owned();
        self.windows += 1;
        let window = TargetWindow {
            target: self.identity.name.clone(),
            labels: self.identity.labels.clone(),
            boot: String::new(), // the window writer knows it
            from_ns,
            to_ns: span.end,
            begin_unix_ns: unix_ns_at(from_ns, span.start, run.0.start_unix_ns),
        };
        let bytes = collected.counted.memory_bytes();
        PendingWindow { window, collected, scale: run.1, run: run.0, bytes }
    }
}

/// The wall clock at `at_ns`, as long as it has not jumped since or before: it was `start_unix_ns` at `start_ns`.
fn unix_ns_at(at_ns: u64, start_ns: u64, start_unix_ns: u64) -> u64 {
    start_unix_ns.saturating_add(at_ns).saturating_sub(start_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_that_begins_with_idle_time_begins_before_its_run() {
        let (start_ns, start_unix_ns) = (50, 1_000);
        let all = [20, 50, 60].map(|at_ns| unix_ns_at(at_ns, start_ns, start_unix_ns));
        assert_eq!(all, [970, 1_000, 1_010]);
    }
}
