//! What was spent and what was granted over the last ten seconds, and what may still be spent of it.

use super::last_ten_seconds::{LastTenSeconds, MERGE_NS, SpanFigures, TEN_SECONDS_NS};

/// A piece of time, what was spent in it and what its budget granted (ns of CPU time).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct SpendingSpan {
    pub(super) wall_ns: f64,
    pub(super) spent_ns: f64,
    pub(super) granted_ns: f64,
}

impl SpanFigures for SpendingSpan {
    fn wall_ns(&self) -> f64 {
        self.wall_ns
    }

    fn add(&mut self, other: Self) {
        self.wall_ns += other.wall_ns;
        self.spent_ns += other.spent_ns;
        self.granted_ns += other.granted_ns;
    }
}

/// The last ten seconds of spending.
pub(super) type Spending = LastTenSeconds<SpendingSpan>;

impl LastTenSeconds<SpendingSpan> {
    /// What may be spent at once, so that each window of ten seconds that has begun ends within what it is granted, if
    /// `net_cpus` of the budget are left in the time to come (ns).
    pub(super) fn room_ns(&self, net_cpus: f64) -> f64 {
        self.windows()
            .map(|begun| (begun, TEN_SECONDS_NS - begun.wall_ns))
            .take_while(|(_, to_come_ns)| *to_come_ns >= 0.0)
            .map(|(begun, to_come_ns)| begun.granted_ns - begun.spent_ns + net_cpus * to_come_ns)
            .fold(net_cpus * TEN_SECONDS_NS, f64::min)
    }

    /// What may be spent from now on (CPU time per wall time), so that each window of ten seconds that has begun ends
    /// within its grant, if the budget continues to grant `granted_cpus`. Negative if that is no longer possible;
    /// infinite if no window has begun.
    pub(super) fn affordable_cpus(&self, granted_cpus: f64) -> f64 {
        self.windows()
            .map(|begun| (begun, TEN_SECONDS_NS - begun.wall_ns))
            .take_while(|(_, to_come_ns)| *to_come_ns >= MERGE_NS)
            .map(|(begun, to_come_ns)| {
                (begun.granted_ns + granted_cpus * to_come_ns - begun.spent_ns) / to_come_ns
            })
            .fold(f64::INFINITY, f64::min)
    }
}
