//! Writes each window to the spool without names as it is handed over, on a thread of its own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SyncSender};

use profile_files::store::Spool;

use super::{PendingWindow, QueueItem, UnnamedWindow, WriterShared};
use crate::daemon::journal::OncePerMinute;
use crate::daemon::pace::NameBudget;
use crate::run::names::Cut;
use crate::sys::clock;

pub(super) struct Spooler {
    pub(super) spool: Spool,
    pub(super) boot: String,
    pub(super) shared: WriterShared,
    pub(super) budget: NameBudget,
    pub(super) log: SpoolLog,
}

/// Which windows that could not be written to the spool are logged. On a full disk that is every window of every target: a
/// line when it begins and when it ends, and at most one a minute meanwhile.
#[derive(Default)]
pub(super) struct SpoolLog {
    lines: OncePerMinute,
    /// Whether the log says that windows wait in memory only.
    is_said: bool,
    /// Windows since the last line, and since the log says so.
    windows: u64,
    all: u64,
}

/// A line for the log.
#[derive(Debug, PartialEq, Eq)]
enum SpoolEvent {
    Begun,
    Continues { windows: u64 },
    Ended { windows: u64 },
}

impl SpoolLog {
    fn observe(&mut self, now_ns: u64, is_spooled: bool) -> Option<SpoolEvent> {
        if is_spooled {
            let windows = std::mem::take(&mut self.all);
            self.windows = 0;
            return std::mem::take(&mut self.is_said).then_some(SpoolEvent::Ended { windows });
        }
        (self.windows, self.all) = (self.windows + 1, self.all + 1);
        self.lines.allows(now_ns).then(|| {
            let windows = std::mem::take(&mut self.windows);
            match std::mem::replace(&mut self.is_said, true) {
                true => SpoolEvent::Continues { windows },
                false => SpoolEvent::Begun,
            }
        })
    }
}

fn write(event: &SpoolEvent, target: &str, cause: &str) {
    match event {
        SpoolEvent::Begun => {
            tracing::warn!(target, "windows wait in memory only, first one of {target}: {cause}");
        }
        SpoolEvent::Continues { windows } => {
            tracing::warn!(windows, "{windows} more windows wait in memory only: {cause}");
        }
        SpoolEvent::Ended { windows } => {
            tracing::info!(
                windows,
                "windows are on disk again as they wait; {windows} waited in memory only"
            );
        }
    }
}

impl Spooler {
    /// Hands everything on in the same order, until either end is closed.
    pub(super) fn run(
        &mut self,
        jobs: &Receiver<QueueItem<PendingWindow>>,
        next: &SyncSender<QueueItem<UnnamedWindow>>,
    ) {
        while let Ok(job) = jobs.recv() {
            let job = match job {
                QueueItem::Keep(pending, handed_ns) => {
                    QueueItem::Keep(Box::new(self.spool(*pending)), handed_ns)
                }
                QueueItem::Flushed(waiting) => QueueItem::Flushed(waiting),
                QueueItem::Look => QueueItem::Look,
            };
            if next.send(job).is_err() {
                return;
            }
        }
    }

    fn spool(&mut self, pending: PendingWindow) -> UnnamedWindow {
        let PendingWindow { mut window, collected, scale, run, bytes } = pending;
        window.boot.clone_from(&self.boot);
        let cut = Cut::new(collected);
        // A panic is counted when the window is named: it will happen there again.
        let written =
            catch_unwind(AssertUnwindSafe(|| self.spool.write(window.clone(), &cut.unnamed(scale, &run))));
        let written = match written {
            Ok(written) => {
                let written = written.map_err(|cause| cause.to_string());
                let cause = written.as_ref().err().map_or("", String::as_str);
                let event = self.log.observe(clock::monotonic_ns(), written.is_ok());
                event.into_iter().for_each(|event| write(&event, &window.target, cause));
                written
            }
            Err(_) => Err("internal error; see sweetspot's log".to_owned()),
        };
        let mut state = self.shared.state();
        state.note_spooled(written.as_ref().map(drop).map_err(String::clone));
        let spent_ns = clock::thread_cpu_ns().saturating_sub(state.spooling_ns);
        state.spooling_ns += spent_ns;
        drop(state);
        self.budget.spend_beside(spent_ns);
        UnnamedWindow { window, cut, scale, run, bytes, spooled: written.ok() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    #[test]
    fn a_full_disk_is_logged_once_a_minute_and_when_it_ends() {
        let mut log = SpoolLog::default();
        let mut at = |second: u64, is_spooled| log.observe(second * SECOND_NS, is_spooled);
        assert_eq!(at(0, true), None);
        assert_eq!(at(10, false), Some(SpoolEvent::Begun));
        assert!((11..70).all(|second| at(second, false).is_none()));
        assert_eq!(at(70, false), Some(SpoolEvent::Continues { windows: 60 }));
        assert_eq!(at(71, false), None);
        assert_eq!(at(72, true), Some(SpoolEvent::Ended { windows: 62 }));
        assert_eq!(at(73, true), None);
        // A disk that is full and not full by turns writes no more lines.
        assert!((80..100).all(|second| at(second, second % 2 == 0).is_none()));
        assert_eq!(at(130, false), Some(SpoolEvent::Begun));
    }
}
