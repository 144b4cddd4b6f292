//! Subtracts the cost of sampling from the time that samples stand for.
//!
//! The period between two samples of a clock includes the cost of the first, in which the program did nothing; it is
//! subtracted from the second. So a function that runs for longer than a period pays for its own samples, deep stacks
//! and all, and short ones pay what samples cost on average.

use rustc_hash::FxHashMap;

/// Most clocks whose last cost is remembered.
const MOST_CLOCKS: usize = 1 << 16;
/// Share of a sample's time that always remains.
const LEAST: f64 = 0.1;

/// A clock that takes samples: an event of the kernel's, or a thread's own timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Clock {
    Event(u64),
    Thread(u32),
}

impl Clock {
    /// The clock of a sample of this event, or, without an event, of the thread.
    pub(super) fn of(stream_id: u64, tid: u32) -> Self {
        if stream_id > 0 { Self::Event(stream_id) } else { Self::Thread(tid) }
    }
}

/// The cost of the last sample of each clock, and what was taken out of the samples' time for it.
#[derive(Default)]
pub(super) struct Charged {
    /// A sample without its stack, a frame, a byte (ns).
    prices_ns: [f64; 3],
    last_ns: FxHashMap<Clock, f64>,
    /// Subtracted in the open window (ns).
    window_ns: f64,
    /// In the windows since the last cut (ns).
    windows_ns: f64,
}

impl Charged {
    /// Sets the prices of a sample without its stack, of a frame and of a byte (ns).
    pub(super) fn set_prices(&mut self, prices_ns: [f64; 3]) {
        self.prices_ns = prices_ns;
    }

    /// The part of a sample's time in which the program ran (ns). The first sample of a clock pays its own cost.
    pub(super) fn done_ns(&mut self, clock: Clock, weight_ns: u64, frames: u64, bytes: u64) -> u64 {
        let cost_ns = self.cost_ns(frames, bytes);
        let before_ns = self.remember(clock, cost_ns).unwrap_or(cost_ns);
        let weight_ns = weight_ns as f64;
        let charged_ns = before_ns.min((1.0 - LEAST) * weight_ns);
        self.window_ns += charged_ns;
        (weight_ns - charged_ns).round() as u64
    }

    /// A sample of this clock hit a process that is not the target's.
    pub(super) fn hit_non_target(&mut self, clock: Clock, bytes: u64) {
        let cost_ns = self.cost_ns(0, bytes);
        self.remember(clock, cost_ns);
    }

    fn cost_ns(&self, frames: u64, bytes: u64) -> f64 {
        let [bare_ns, frame_ns, byte_ns] = self.prices_ns;
        (bare_ns + frames as f64 * frame_ns + bytes as f64 * byte_ns).max(0.0)
    }

    fn remember(&mut self, clock: Clock, cost_ns: f64) -> Option<f64> {
        if self.last_ns.len() >= MOST_CLOCKS {
            self.last_ns.clear();
        }
        self.last_ns.insert(clock, cost_ns)
    }

    /// Ends a window. Each sample counts `factor` times, to make up for lost ones.
    pub(super) fn end_window(&mut self, factor: f64) {
        self.windows_ns += factor * std::mem::take(&mut self.window_ns);
    }

    /// What was taken out in the windows since the last call (ns).
    pub(super) fn take_ns(&mut self) -> f64 {
        std::mem::take(&mut self.windows_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD_NS: u64 = 1_000_000;

    fn charged() -> Charged {
        let mut charged = Charged::default();
        charged.set_prices([10_000.0, 1_000.0, 1.0]);
        charged
    }

    #[test]
    fn a_sample_pays_for_the_one_before_on_its_clock() {
        let mut charged = charged();
        let (one, other) = (Clock::of(7, 1), Clock::of(0, 1));
        assert_eq!(charged.done_ns(one, PERIOD_NS, 90, 0), 900_000, "the first for itself");
        assert_eq!(charged.done_ns(other, PERIOD_NS, 0, 0), 990_000);
        assert_eq!(charged.done_ns(one, PERIOD_NS, 0, 20_000), 900_000);
        assert_eq!(charged.done_ns(one, PERIOD_NS, 0, 0), 970_000);
        charged.hit_non_target(one, 40_000);
        assert_eq!(charged.done_ns(one, PERIOD_NS, 0, 0), 950_000);
        charged.end_window(2.0);
        assert_eq!((charged.take_ns(), charged.take_ns()), (580_000.0, 0.0));
        assert_eq!(charged.done_ns(one, 10_000, 0, 0), 1_000, "something is left of a short period");
    }

    /// By how much the share of a function is off whose samples cost ten times what those of the other one do. The program stays in each
    /// for about `visit_ns`; while a sample is taken, the clock goes on and the program does not.
    fn error(visit_ns: f64) -> f64 {
        let mut charged = charged();
        let mut rng = fastrand::Rng::with_seed(3);
        let (mut at, mut left_ns, mut done_ns, mut seen_ns) = (0, 0.0, [0.0; 2], [0.0; 2]);
        let mut to_sample_ns = PERIOD_NS as f64;
        for _ in 0..2_000_000 {
            if left_ns <= 0.0 {
                (at, left_ns) = (1 - at, -visit_ns * (1.0 - rng.f64()).ln());
            }
            let step_ns = to_sample_ns.min(left_ns);
            done_ns[at] += step_ns;
            (left_ns, to_sample_ns) = (left_ns - step_ns, to_sample_ns - step_ns);
            if to_sample_ns <= 0.0 {
                let frames = [0, 90][at];
                seen_ns[at] += charged.done_ns(Clock::of(1, 1), PERIOD_NS, frames, 0) as f64;
                to_sample_ns = PERIOD_NS as f64 - charged.cost_ns(frames, 0);
            }
        }
        let share = |of: [f64; 2]| of[1] / (of[0] + of[1]);
        share(seen_ns) / share(done_ns) - 1.0
    }

    #[test]
    fn functions_pay_for_their_own_samples_where_they_stay_and_for_the_usual_one_where_they_do_not() {
        // With what samples cost on average taken out of both, it is 4.5% too much where they stay for long. Where visits are about as long
        // as a period, the cost of the last sample of one is taken out of the first of the next.
        for (visit_ns, most) in
            [(50_000_000.0, 0.006), (3_000_000.0, 0.01), (1_000_000.0, 0.015), (200_000.0, 0.006)]
        {
            let error = error(visit_ns);
            assert!(error.abs() < most, "visits of {visit_ns} ns: {error}");
        }
    }
}
