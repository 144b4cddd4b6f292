//! Ends windows early for requests, of the requested targets only.

use std::collections::VecDeque;

use super::window_writer::LostWindow;
use super::{Daemon, Watched};
use crate::service::command::{CommandRefused, Flush, ReplySender};

/// A request that waits for windows to be kept.
#[derive(Debug)]
pub(crate) struct FlushWaiter {
    /// Which windows it wants.
    flush: Flush,
    /// When (ns): windows that began before that, and before the end of the range, are to be ended.
    asked_ns: u64,
    reply: ReplySender<Result<(), CommandRefused>>,
}

impl Daemon {
    /// Adds a request for windows. Several requests for the same window are served by ending it once.
    pub(super) fn wait_for_windows(
        &mut self,
        flush: Flush,
        reply: ReplySender<Result<(), CommandRefused>>,
        asked_ns: u64,
    ) {
        if let Some(name) = flush.targets.iter().find(|name| flush.is_begin && !self.may_be_called(name)) {
            drop(reply.send(Err(CommandRefused::Unknown(name.clone()))));
            return;
        }
        self.profiles.waiting.push(FlushWaiter::new(flush, asked_ns, reply));
    }

    /// Whether a target has this name, or a section's `each` may give it to one.
    fn may_be_called(&self, name: &str) -> bool {
        let mut sections = name.match_indices(':').map(|(at, _)| &name[..at]);
        self.named(name).is_some() || sections.any(|section| self.discovery.has_section(section))
    }

    /// When the next requested window may be ended; `None` if no request waits.
    pub(super) fn next_flush_ns(&self) -> Option<u64> {
        let ends = self.targets.values().filter_map(|watched| watched.early_end_ns(self.claim(watched)?));
        let soonest = ends.min();
        soonest.or_else(|| self.profiles.waiting.iter().map(|waiting| waiting.asked_ns).min())
    }

    /// Ends the requested windows that may be ended. Requests that wait for nothing else are answered once they are
    /// kept.
    pub(super) fn flush(&mut self, now_ns: u64) {
        self.profiles.waiting.retain(|waiting| !waiting.reply.is_closed()); // disconnected clients need nothing
        let (mut due, mut ends_range) = (Vec::new(), false);
        for (id, watched) in &self.targets {
            let Some(is_end) = self.claim(watched) else { continue };
            if watched.early_end_ns(is_end).is_some_and(|end_ns| end_ns <= now_ns) {
                due.push(*id);
                ends_range |= is_end;
            }
        }
        // What has begun since the last scan is in no target's window yet.
        if ends_range && self.has_waiting() && self.due.scan_schedule.may_be_early() {
            self.look_for_targets(now_ns);
        }
        for id in &due {
            self.targets.entry(*id).and_modify(|watched| watched.note_early_end(now_ns));
        }
        let (sharing, alone): (Vec<_>, Vec<_>) =
            due.into_iter().partition(|id| self.targets.get(id).is_some_and(Watched::shares));
        let windows = alone.into_iter().filter_map(|id| self.cut(id)).collect::<Vec<_>>();
        let windows = windows.into_iter().chain(self.cut_sharing(&sharing));
        windows.for_each(|pending| self.profiles.writer.keep(pending));
        let waiting = std::mem::take(&mut self.profiles.waiting);
        let (open, done): (Vec<_>, Vec<_>) = waiting
            .into_iter()
            .partition(|waiting| self.targets.values().any(|watched| waiting.claims(watched)));
        self.profiles.waiting = open;
        let done = answer_begins(done);
        if !done.is_empty() {
            self.profiles.writer.flush(done);
        }
    }

    /// `None` if no request waits for the target's open window; otherwise, whether one of them is at the end of its
    /// time range.
    fn claim(&self, watched: &super::Watched) -> Option<bool> {
        let claims = self.profiles.waiting.iter().filter(|waiting| waiting.claims(watched));
        claims.map(|waiting| waiting.flush.is_end).reduce(|one, other| one || other)
    }
}

/// Answers requests for a time range that begins now: they read no window that ended before. Returns the others, which wait until
/// their windows are stored.
fn answer_begins(waiting: Vec<FlushWaiter>) -> Vec<FlushWaiter> {
    let (begins, others): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|waiting| waiting.flush.is_begin);
    begins.into_iter().for_each(|waiting| drop(waiting.reply.send(Ok(()))));
    others
}

impl FlushWaiter {
    pub(super) fn new(flush: Flush, asked_ns: u64, reply: ReplySender<Result<(), CommandRefused>>) -> Self {
        Self { flush, asked_ns, reply }
    }

    /// Answers that the requested windows are stored; an error if one of them is among `lost`.
    pub(super) fn answer(self, lost: &VecDeque<LostWindow>) {
        let is_his = |lost: &&LostWindow| {
            lost.handed_ns >= self.asked_ns && self.flush.wants(&lost.target, &lost.labels)
        };
        let kept = lost.iter().rev().find(is_his).map_or(Ok(()), |lost| {
            let LostWindow { target, why, .. } = lost;
            Err(CommandRefused::Busy(format!(
                "of {target}, {why}; `sweetspot ctl status` says how the store is"
            )))
        });
        drop(self.reply.send(kept));
    }

    /// Answers that the request cannot be served.
    pub(super) fn refuse(self, why: CommandRefused) {
        drop(self.reply.send(Err(why)));
    }

    fn claims(&self, watched: &super::Watched) -> bool {
        let identity = &watched.identity;
        watched.is_open_since(self.asked_ns.saturating_sub(self.flush.ended_ago_ns))
            && self.flush.wants(&identity.name, &identity.labels)
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[test]
    fn a_time_range_that_begins_waits_for_no_earlier_window() {
        let waiter = |is_begin| {
            let (reply, answer) = oneshot::channel();
            (FlushWaiter::new(Flush { is_begin, ..Flush::default() }, 0, reply), answer)
        };
        let ((begins, mut begun), (ends, mut ended)) = (waiter(true), waiter(false));
        let others = answer_begins(vec![begins, ends]);
        assert!(matches!(begun.try_recv(), Ok(Ok(()))));
        assert_eq!(others.len(), 1);
        assert!(ended.try_recv().is_err(), "it waits until they are kept");
    }
}
