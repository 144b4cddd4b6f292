//! CPU time of targets that the rules for labels drop: it does not belong to `everything`.

use super::Daemon;
use super::watched::Watched;

/// CPU time that is not `everything`'s (ns).
#[derive(Debug, Default)]
pub(super) struct DroppedTime {
    total_ns: u64,
    /// Their CPU time at the last reading; none if `everything` was not sampled then.
    last_ns: Option<u64>,
}

impl DroppedTime {
    /// Takes in the CPU time that they have used so far.
    fn observe(&mut self, used_ns: Option<u64>) {
        let before_ns = std::mem::replace(&mut self.last_ns, used_ns);
        if let (Some(before_ns), Some(used_ns)) = (before_ns, used_ns) {
            self.total_ns += used_ns.saturating_sub(before_ns);
        }
    }

    pub(super) fn total_ns(&self) -> u64 {
        self.total_ns
    }
}

impl Daemon {
    /// Whether `everything` is sampled.
    pub(super) fn samples_rest(&self) -> bool {
        let is_rest = |watched: &Watched| watched.identity.is_everything && watched.is_sampled();
        self.targets.values().any(is_rest)
    }

    /// Reads what dropped targets have used, if `everything` is sampled.
    pub(super) fn note_dropped(&mut self) {
        let used_ns = self.samples_rest().then(|| self.discovery.dropped_cpu_ns());
        self.accounts.dropped.observe(used_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_counts_while_there_is_a_target_of_the_rest() {
        let mut time = DroppedTime::default();
        for (used_ns, total_ns) in
            [(Some(900), 0), (Some(950), 50), (None, 50), (Some(2_000), 50), (Some(2_001), 51)]
        {
            time.observe(used_ns);
            assert_eq!(time.total_ns(), total_ns, "{used_ns:?}");
        }
    }
}
