//! Hands over what was sampled, now and then or at the end, to be named elsewhere.
//!
//! A cut reads nothing: the aggregator is moved out whole, with the objects and lists of generated code of that
//! moment, and is named on another thread. Windows count from the cut before. Entries of processes that have
//! ended are reused; a process that shared one in a crowd gets its own.

use std::ops::Range;
use std::sync::Arc;

use profiler_core::aggregate::Aggregator;
use profiler_core::process::Process;
use profiler_core::profile::{ProcessIndex, ProcessInfo};
use profiler_core::stats;
use rustc_hash::FxHashSet;

use super::{Owner, Owners, Session};
use crate::jit::Generated;
use crate::objects::Objects;
use crate::roots::RootView;
use crate::sys::clock;

/// What was counted between two cuts, with everything needed to name it: on any thread, during the session or after it,
/// whether or not the processes still live.
pub(crate) struct Collected {
    /// Its windows count from the beginning of `span`.
    pub(crate) counted: Aggregator,
    /// Sampling cost that was subtracted from the samples' time (ns).
    pub(crate) charged_ns: f64,
    /// The processes, by the index that stacks use.
    pub(crate) processes: Arc<[ProcessInfo]>,
    pub(crate) objects: Objects,
    /// Names of the code that lies in no file.
    pub(crate) generated: Generated,
    /// The time range (ns of the monotonic clock).
    pub(crate) span: Range<u64>,
    /// Whether the session has ended, so that no names have to be kept for it.
    pub(crate) is_last: bool,
}

impl Collected {
    /// CPU time that the samples stand for, what they cost included (ns).
    pub(crate) fn weight_ns(&self) -> f64 {
        self.counted.weight_ns() + self.charged_ns
    }
}

impl Session {
    /// Ends the windows that are over at the time of a sample, however late it is read. Where nothing was sampled, the next one
    /// begins late.
    pub(super) fn end_windows_until(&mut self, time_ns: u64) {
        if time_ns < self.times.window_end_ns {
            return;
        }
        self.split_lost(self.times.window_end_ns);
        self.end_window(self.times.window_end_ns);
        let length_ns = stats::window_ns(self.times.window_end_ns.saturating_sub(self.times.start_ns));
        let missed = (time_ns - self.times.window_end_ns) / length_ns;
        self.times.window_end_ns += (missed + 1) * length_ns;
    }

    /// Ends a window of the profile. Samples that were lost in it are made up for by those that were not.
    fn end_window(&mut self, now_ns: u64) {
        let factor = self.losses.end_window();
        self.charged.end_window(factor);
        match &mut self.counted.owners {
            Some(owners) => owners.all_mut().for_each(|share| share.end_window(now_ns, factor)),
            None => {
                self.counted.aggregator.close_window(now_ns.saturating_sub(self.times.range_start_ns), factor)
            }
        }
    }

    /// Hands over what was counted since the last cut, or since sampling began, until `now_ns`. Reads nothing and looks
    /// nothing up: slow work is left to the naming.
    pub(crate) fn cut(&mut self, now_ns: u64) -> Collected {
        self.code.objects.share_with_names();
        self.hand_over(now_ns, false)
    }

    /// Ends the session with a last cut.
    pub(crate) fn finish(mut self) -> Collected {
        self.code.jit.end(&self.code.objects.roots);
        let mut collected = self.hand_over(clock::monotonic_ns(), true);
        drop((self.processes, self.stacks.unwinder)); // frees the memory of unwind tables for names
        self.code.objects.release_tables();
        collected.objects = self.code.objects.snapshot();
        collected
    }

    fn hand_over(&mut self, now_ns: u64, is_last: bool) -> Collected {
        self.end_last_window(now_ns);
        let start_ns = std::mem::replace(&mut self.times.range_start_ns, now_ns);
        self.code.fade_weights();
        self.code.remember_weights(self.counted.aggregator.object_weights());
        let processes = self.processes.infos().into();
        let generated = self.code.jit.cut(&self.live_indices(), |_| true);
        let collected = Collected {
            counted: self.counted.aggregator.cut(),
            charged_ns: self.charged.take_ns(),
            processes,
            objects: self.code.objects.snapshot(),
            generated,
            span: start_ns.min(now_ns)..now_ns,
            is_last,
        };
        self.processes.cut().into_iter().for_each(|pid| self.rereads.owe(pid));
        if !is_last {
            self.release_roots(); // at the end they are handed over
        }
        collected
    }

    /// Hands over what was counted for one of many targets since its last cut; other targets continue.
    pub(crate) fn cut_share(&mut self, owner: Owner) -> Option<Collected> {
        self.code.objects.share_with_names();
        let now_ns = self.end_last_windows();
        let processes = self.processes.infos().into();
        let handed_over = self.hand_over_share(owner, now_ns, &processes);
        self.end_round_if_over(now_ns);
        handed_over
    }

    /// [`Self::cut_share`] for several targets.
    pub(crate) fn cut_shares(&mut self, of: &[Owner]) -> Vec<(Owner, Collected)> {
        self.code.objects.share_with_names();
        let now_ns = self.end_last_windows();
        let processes = self.processes.infos().into();
        let handed_over = |&owner: &Owner| Some((owner, self.hand_over_share(owner, now_ns, &processes)?));
        let each = of.iter().filter_map(handed_over).collect();
        self.end_round_if_over(now_ns);
        each
    }

    /// [`Self::cut_share`] for all targets.
    pub(crate) fn cut_all_shares(&mut self) -> Vec<(Owner, Collected)> {
        let all: Vec<Owner> =
            self.counted.owners.iter().flat_map(Owners::shares).map(|(owner, _)| owner).collect();
        self.cut_shares(&all)
    }

    /// [`Self::cut_share`] for all targets, at the end of the session.
    pub(crate) fn finish_shares(&mut self) -> Vec<(Owner, Collected)> {
        self.code.jit.end(&self.code.objects.roots);
        self.counted.owners.iter_mut().for_each(Owners::settle_waiting);
        self.cut_all_shares()
    }

    /// A round has ended when the window of every target has ended since it began.
    fn end_round_if_over(&mut self, now_ns: u64) {
        let oldest_ns = self.counted.owners.as_ref().and_then(Owners::oldest_start_ns).unwrap_or(now_ns);
        if oldest_ns < self.times.range_start_ns {
            return;
        }
        self.times.range_start_ns = now_ns;
        self.code.fade_weights();
        let has_waiting = self.counted.owners.as_ref().is_some_and(Owners::has_waiting);
        let moved = match oldest_ns < now_ns || has_waiting {
            true => self.processes.end_round(),
            false => self.processes.cut(), // all samples are handed over
        };
        // Their generated code could not be attributed while they shared an entry.
        moved.into_iter().for_each(|pid| self.rereads.owe(pid));
        let waiting = self.counted.owners.iter().flat_map(Owners::waiting);
        let waiting = waiting.filter_map(|pid| self.processes.get(pid));
        waiting.for_each(Process::note_sample); // a window that is open may get its samples
        self.release_roots();
    }

    fn hand_over_share(
        &mut self,
        owner: Owner,
        now_ns: u64,
        processes: &Arc<[ProcessInfo]>,
    ) -> Option<Collected> {
        let share = self.counted.owners.as_mut()?.share_mut(owner)?;
        let start_ns = share.start_ns;
        let (counted, charged_ns) = share.cut(now_ns);
        self.code.remember_weights(counted.object_weights());
        let sampled = counted.processes();
        let generated = self.code.jit.cut(&self.live_indices(), |process| sampled.contains(&process));
        Some(Collected {
            counted,
            charged_ns,
            processes: Arc::clone(processes),
            objects: self.code.objects.snapshot(),
            generated,
            span: start_ns.min(now_ns)..now_ns,
            is_last: false, // the other targets can use its names
        })
    }

    fn end_last_window(&mut self, now_ns: u64) {
        self.split_lost(now_ns);
        self.end_window(now_ns);
    }

    /// Ends the last windows of targets and reads how much CPU time they have used by then (returned, ns).
    fn end_last_windows(&mut self) -> u64 {
        let now_ns = clock::monotonic_ns();
        self.counted.owners.iter_mut().for_each(|owners| owners.read_clocks(true));
        self.end_last_window(now_ns);
        now_ns
    }

    fn live_indices(&self) -> FxHashSet<ProcessIndex> {
        self.processes.live().map(|(_, process)| process.index).collect()
    }

    /// Releases the roots of ended containers: only windows that wait for names still hold them.
    fn release_roots(&mut self) {
        if self.code.objects.roots.foreign_views().is_empty() {
            return;
        }
        let seen = self.processes.live().filter_map(|(pid, _)| RootView::foreign_of(pid)).collect();
        let open = self
            .counted
            .owners
            .iter()
            .flat_map(Owners::all)
            .flat_map(|share| share.counted.frames().frames());
        let used = self.processes.mapped_objects().chain(open.map(|frame| frame.object)).collect();
        self.code.objects.release_roots(&seen, &used);
    }
}

#[cfg(test)]
mod tests;
