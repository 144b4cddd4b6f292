//! What was spent and what was granted over the last ten seconds, and what may still be spent of it.

use std::collections::VecDeque;

/// The longest window over which a budget is judged (ns).
pub(super) const TEN_SECONDS_NS: f64 = 10e9;
/// Bookings within this time are merged, which bounds the history (ns).
pub(super) const MERGE_NS: f64 = 50e6;

/// A piece of time, what was spent in it and what its budget granted (ns of CPU time).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct SpendingSpan {
    pub(super) wall_ns: f64,
    pub(super) spent_ns: f64,
    pub(super) granted_ns: f64,
}

impl SpendingSpan {
    pub(super) fn add(&mut self, other: SpendingSpan) {
        self.wall_ns += other.wall_ns;
        self.spent_ns += other.spent_ns;
        self.granted_ns += other.granted_ns;
    }
}

/// The last ten seconds of spending.
#[derive(Clone, Debug, Default)]
pub(super) struct Spending {
    /// Oldest first.
    history: VecDeque<SpendingSpan>,
}

impl Spending {
    /// Takes in the time since the last call.
    pub(super) fn book(&mut self, span: SpendingSpan) {
        match self.history.back_mut().filter(|last| last.wall_ns < MERGE_NS) {
            Some(last) => last.add(span),
            None => self.history.push_back(span),
        }
        let mut held_ns: f64 = self.history.iter().map(|span| span.wall_ns).sum();
        while let Some(first) = self.history.front().filter(|first| held_ns - first.wall_ns >= TEN_SECONDS_NS)
        {
            held_ns -= first.wall_ns;
            self.history.pop_front();
        }
    }

    /// Everything that is remembered: ten seconds, or the run while it is shorter.
    pub(super) fn held(&self) -> SpendingSpan {
        self.begun().last().unwrap_or_default()
    }

    /// All windows that end now, the shortest first.
    pub(super) fn begun(&self) -> impl Iterator<Item = SpendingSpan> {
        self.history.iter().rev().scan(SpendingSpan::default(), |begun, span| {
            begun.add(*span);
            Some(*begun)
        })
    }

    /// What may be spent at once, so that each window of ten seconds that has begun ends within what it is granted, if
    /// `net_cpus` of the budget are left in the time to come (ns).
    pub(super) fn room_ns(&self, net_cpus: f64) -> f64 {
        self.begun()
            .map(|begun| (begun, TEN_SECONDS_NS - begun.wall_ns))
            .take_while(|(_, to_come_ns)| *to_come_ns >= 0.0)
            .map(|(begun, to_come_ns)| begun.granted_ns - begun.spent_ns + net_cpus * to_come_ns)
            .fold(net_cpus * TEN_SECONDS_NS, f64::min)
    }

    /// What may be spent from now on (CPU time per wall time), so that each window of ten seconds that has begun ends
    /// within its grant, if the budget continues to grant `granted_cpus`. Negative if that is no longer possible;
    /// infinite if no window has begun.
    pub(super) fn affordable_cpus(&self, granted_cpus: f64) -> f64 {
        self.begun()
            .map(|begun| (begun, TEN_SECONDS_NS - begun.wall_ns))
            .take_while(|(_, to_come_ns)| *to_come_ns >= MERGE_NS)
            .map(|(begun, to_come_ns)| {
                (begun.granted_ns + granted_cpus * to_come_ns - begun.spent_ns) / to_come_ns
            })
            .fold(f64::INFINITY, f64::min)
    }
}
