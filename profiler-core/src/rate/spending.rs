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

/// What is left of a window's grant; negative if it owes (ns).
fn left_ns(begun: &SpendingSpan) -> f64 {
    begun.granted_ns - begun.spent_ns
}

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
        self.affordable(|begun, to_come_ns| granted_cpus + left_ns(begun) / to_come_ns)
    }

    /// The same for a base that may rest before the window is over, as after a burst. What a window owes is then paid back out of
    /// what is still granted: no more than it was granted on average so far.
    pub(super) fn affordable_cpus_of_bursts(&self, granted_cpus: f64) -> f64 {
        self.affordable(|begun, to_come_ns| {
            let (left_ns, usual_cpus) = (left_ns(begun), begun.granted_ns / begun.wall_ns.max(1.0));
            let to_grant_ns = granted_cpus.min(usual_cpus) * to_come_ns;
            if left_ns >= 0.0 || to_grant_ns <= 0.0 {
                return granted_cpus + left_ns / to_come_ns;
            }
            granted_cpus * (1.0 + left_ns / to_grant_ns)
        })
    }

    /// The least that a window which has begun can afford, by what it has spent and its time to come (ns).
    fn affordable(&self, of: impl Fn(&SpendingSpan, f64) -> f64) -> f64 {
        self.windows()
            .map(|begun| (begun, TEN_SECONDS_NS - begun.wall_ns))
            .take_while(|(_, to_come_ns)| *to_come_ns >= MERGE_NS)
            .map(|(begun, to_come_ns)| of(&begun, to_come_ns))
            .fold(f64::INFINITY, f64::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_that_owes_pays_back_out_of_what_bursts_are_granted() {
        let second = |spent_ns: f64, granted_ns: f64| SpendingSpan { wall_ns: 1e9, spent_ns, granted_ns };
        let mut spending = Spending::default();
        spending.book(second(15e6, 10e6)); // a burst of a second at 1%
        (0..4).for_each(|_| spending.book(second(0.0, 0.0)));
        // To come are five seconds. If the base worked through them, 45 ms could be spent; of the ten that it is granted as so far, five.
        assert!((spending.affordable_cpus(0.01) - 0.009).abs() < 1e-9);
        assert!((spending.affordable_cpus_of_bursts(0.01) - 0.005).abs() < 1e-9);
        assert!(spending.affordable_cpus_of_bursts(0.0).is_finite());
    }
}
