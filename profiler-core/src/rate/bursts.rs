//! When the kernel's handler is timed: in short bursts, close together at first, seldom later.

/// Time of the first burst after the start (ns): before, rate and copies are still settling. Each wait for the next
/// burst is twice the last one, so that the handler is known within some seconds.
const FIRST_NS: u64 = 1_000_000_000;
/// The longest wait from a burst to the next (ns).
const EVERY_NS: u64 = 10_000_000_000;

/// The schedule of the bursts of a run. A burst is never due before the run has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BurstSchedule {
    due_ns: u64,
    wait_ns: u64,
}

impl Default for BurstSchedule {
    fn default() -> Self {
        BurstSchedule { due_ns: u64::MAX, wait_ns: FIRST_NS }
    }
}

impl BurstSchedule {
    /// Length of a burst (ns): about a step.
    pub const LENGTH_NS: u64 = 100_000_000;
    /// Samples that end a burst earlier.
    pub const SAMPLES: usize = 50;

    /// The run begins.
    pub fn begin(&mut self, now_ns: u64) {
        self.due_ns = now_ns.saturating_add(self.wait_ns);
    }

    /// Whether a burst is due. It stays due while the budget has no room for it.
    pub fn is_due(&self, now_ns: u64) -> bool {
        self.due_ns != u64::MAX && now_ns >= self.due_ns
    }

    /// A burst has ended.
    pub fn ended(&mut self, now_ns: u64) {
        self.due_ns = now_ns.saturating_add(self.wait_ns);
        self.wait_ns = self.wait_ns.saturating_mul(2).min(EVERY_NS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_come_close_together_at_first_and_every_ten_seconds_later() {
        let mut schedule = BurstSchedule::default();
        assert!(!schedule.is_due(u64::MAX));
        schedule.begin(0);
        let mut at_s = Vec::new();
        for tenth in 0..500 {
            let now_ns = tenth * 100_000_000;
            if schedule.is_due(now_ns) {
                schedule.ended(now_ns);
                at_s.push(tenth / 10);
            }
        }
        assert_eq!(at_s, [1, 2, 4, 8, 16, 26, 36, 46]);
    }
}
