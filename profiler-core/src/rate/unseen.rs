//! Interrupts in code that may not be sampled.
//!
//! Without the right to the kernel's code, clocks expire in it all the same: such an interrupt slows the target and
//! brings no sample. The target's CPU time over the period says how many interrupts there were.

/// Counts interrupts that brought nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnseenInterrupts {
    /// Interrupts that there were, by the CPU time and the period.
    expected: f64,
    /// Those that brought a sample, or the news of one that was lost.
    came: f64,
    counted: f64,
}

impl UnseenInterrupts {
    /// Takes in a step in which the target used `cpu_ns`, its clocks had the mean period `period_ns`, and `came` interrupts
    /// brought something. Returns how many more brought nothing.
    pub fn observe(&mut self, cpu_ns: u64, period_ns: u64, came: u64) -> u64 {
        self.expected += cpu_ns as f64 / period_ns.max(1) as f64;
        self.came += came as f64;
        let unseen = (self.expected - self.came - self.counted).max(0.0).floor();
        self.counted += unseen;
        unseen as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_brought_nothing_is_counted_once() {
        let mut unseen = UnseenInterrupts::default();
        // Of 1,000 interrupts in a step, 400 are in the kernel; then none.
        let half: u64 = (0..10).map(|_| unseen.observe(100_000_000, 100_000, 600)).sum();
        let none: u64 = (0..10).map(|_| unseen.observe(100_000_000, 100_000, 1_000)).sum();
        assert_eq!((half, none), (4_000, 0));
    }

    #[test]
    fn chance_adds_up_to_little() {
        let (mut unseen, mut random) = (UnseenInterrupts::default(), fastrand::Rng::with_seed(1));
        let noisy = (0..10_000).map(|_| unseen.observe(1_000_000_000, 10_000_000, 90 + random.u64(0..=20)));
        let counted: u64 = noisy.sum();
        assert!(counted < 3_000, "{counted} of 1,000,000"); // the highest of a random walk of 6 a step
    }

    #[test]
    fn no_period_is_taken_for_the_shortest() {
        assert_eq!(UnseenInterrupts::default().observe(5, 0, 9), 0);
    }
}
