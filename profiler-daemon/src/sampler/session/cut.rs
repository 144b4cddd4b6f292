//! What was sampled is handed over, now and then or at the end, to be named elsewhere.

use std::ops::Range;

use profiler_core::aggregate::Aggregator;
use profiler_core::profile::ProcessInfo;
use profiler_core::stats;

use super::Session;
use crate::jit::Generated;
use crate::objects::Objects;
use crate::roots::View;
use crate::sys::clock;

/// Of what objects weighed before the last cut, so much still counts when it is decided whose unwind tables stay.
const REMEMBERED: f64 = 0.5;

/// What was counted between two cuts, and all that it takes to name it: on any thread, while the session goes on or
/// after it, whether the processes live or not.
pub(crate) struct Collected {
    /// Its windows count from the beginning of `span`.
    pub(crate) counted: Aggregator,
    /// What was taken out of the samples' time in it for what they cost (ns).
    pub(crate) charged_ns: f64,
    /// By the index that stacks have.
    pub(crate) processes: Vec<ProcessInfo>,
    pub(crate) objects: Objects,
    /// Names of the code that lies in no file.
    pub(crate) generated: Generated,
    /// From when until when (ns of the monotonic clock).
    pub(crate) span: Range<u64>,
    /// Whether the session has ended: there is nothing to keep names for.
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
        if time_ns < self.window_end_ns {
            return;
        }
        self.judge_lost(self.window_end_ns);
        self.end_window(self.window_end_ns);
        let length_ns = stats::window_ns(self.window_end_ns.saturating_sub(self.start_ns));
        let missed = (time_ns - self.window_end_ns) / length_ns;
        self.window_end_ns += (missed + 1) * length_ns;
    }

    /// Ends a window of the profile. Samples that were lost in it are made up for by those that were not.
    fn end_window(&mut self, now_ns: u64) {
        let factor = self.losses.end_window();
        self.charged.end_window(factor);
        self.aggregator.close_window(now_ns.saturating_sub(self.stretch_start_ns), factor);
    }

    /// Hands over what was counted since the last cut, or since sampling began. Reads nothing and looks nothing up: what
    /// takes time is left to whoever names it.
    pub(crate) fn cut(&mut self) -> Collected {
        self.objects.share_with_names();
        self.hand_over(false)
    }

    /// Ends the session with a last cut.
    pub(crate) fn finish(mut self) -> Collected {
        self.jit.end(&self.objects.roots);
        let mut collected = self.hand_over(true);
        drop((self.processes, self.unwinder)); // they use the tables that make room for names
        self.objects.release_tables();
        collected.objects = self.objects.snapshot();
        collected
    }

    fn hand_over(&mut self, is_last: bool) -> Collected {
        let now_ns = clock::monotonic_ns();
        self.judge_lost(now_ns);
        self.end_window(now_ns);
        let start_ns = std::mem::replace(&mut self.stretch_start_ns, now_ns);
        if self.objects.is_short_of_room() {
            self.past_weights.retain(|_, weight| {
                *weight *= REMEMBERED;
                *weight >= 1.0
            });
            for (id, weight) in self.aggregator.object_weights() {
                *self.past_weights.entry(id).or_default() += weight;
            }
        }
        let processes = self.processes.infos().to_vec();
        let moved = self.processes.cut();
        let live = self.processes.live().map(|(_, process)| process.index).collect();
        let generated = self.jit.cut(&live);
        // Their generated code was nobody's while they shared an entry.
        moved.into_iter().for_each(|pid| self.rereads.owe(pid));
        let collected = Collected {
            counted: self.aggregator.cut(),
            charged_ns: self.charged.take_ns(),
            processes,
            objects: self.objects.snapshot(),
            generated,
            span: start_ns.min(now_ns)..now_ns,
            is_last,
        };
        if !is_last {
            self.let_go_of_roots(); // at the end they are handed over
        }
        collected
    }

    /// Containers that have ended are held by what is yet to be named alone.
    fn let_go_of_roots(&mut self) {
        if self.objects.roots.foreign_views().is_empty() {
            return;
        }
        let seen = self.processes.live().filter_map(|(pid, _)| View::foreign_of(pid)).collect();
        let used = self.processes.mapped_objects().collect();
        self.objects.let_go_of_roots(&seen, &used);
    }
}

#[cfg(test)]
mod tests;
