//! Writes each window to the spool without names as it is handed over, on a thread of its own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SyncSender};

use profile_files::store::Spool;

use super::{Job, PendingWindow, UnnamedWindow, WriterShared};
use crate::daemon::pace::NameBudget;
use crate::run::names::Cut;
use crate::sys::clock;

pub(super) struct Spooler {
    pub(super) spool: Spool,
    pub(super) boot: String,
    pub(super) shared: WriterShared,
    pub(super) budget: NameBudget,
}

impl Spooler {
    /// Hands everything on in the same order, until either end is closed.
    pub(super) fn run(&self, jobs: &Receiver<Job<PendingWindow>>, next: &SyncSender<Job<UnnamedWindow>>) {
        while let Ok(job) = jobs.recv() {
            let job = match job {
                Job::Keep(pending, handed_ns) => Job::Keep(Box::new(self.spool(*pending)), handed_ns),
                Job::Flushed(waiting) => Job::Flushed(waiting),
                Job::Look => Job::Look,
            };
            if next.send(job).is_err() {
                return;
            }
        }
    }

    fn spool(&self, pending: PendingWindow) -> UnnamedWindow {
        let PendingWindow { mut window, collected, scale, run, bytes } = pending;
        window.boot.clone_from(&self.boot);
        let cut = Cut::new(collected);
        // A panic is counted when the window is named: it will happen there again.
        let written =
            catch_unwind(AssertUnwindSafe(|| self.spool.write(window.clone(), &cut.unnamed(scale, &run))));
        let spooled = match written {
            Ok(Ok(file)) => Some(file),
            Ok(Err(cause)) => {
                tracing::warn!("a window of {} waits in memory only: {cause}", window.target);
                None
            }
            Err(_) => None,
        };
        let mut state = self.shared.state();
        state.note_spooled(spooled.is_some());
        let spent_ns = clock::thread_cpu_ns().saturating_sub(state.spooling_ns);
        state.spooling_ns += spent_ns;
        drop(state);
        self.budget.spend_beside(spent_ns);
        UnnamedWindow { window, cut, scale, run, bytes, spooled }
    }
}
