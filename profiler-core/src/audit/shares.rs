//! The functions that ticks hit against those that the clock hits.

use rustc_hash::FxHashMap;

use super::detector::Detector;

/// Odds that a hit of a function was the rarer source's, over those of a hit of any other function.
const ALTERNATIVES: [f64; 8] = [0.02, 0.125, 0.3, 0.6, 1.6, 3.0, 8.0, 50.0];
/// Functions that are followed; the evidence of those that are not hit in a block is dropped where there are more.
const MOST_FUNCTIONS: usize = 8_192;

/// Hits of a block.
#[derive(Clone, Copy, Debug, Default)]
struct Hits {
    ticks: u64,
    clock: u64,
}

/// The test, for all functions together.
#[derive(Clone, Debug, Default)]
pub(super) struct ShareTest {
    block: FxHashMap<u64, Hits>,
    all: Hits,
    detectors: FxHashMap<u64, Detector<{ ALTERNATIVES.len() }>>,
}

impl ShareTest {
    pub(super) fn tick(&mut self, function: u64) {
        self.block.entry(function).or_default().ticks += 1;
        self.all.ticks += 1;
    }

    pub(super) fn clock(&mut self, function: u64) {
        self.block.entry(function).or_default().clock += 1;
        self.all.clock += 1;
    }

    /// Ends a block of `days`. Returns the logarithm of the most evidence that any function has (days), and the function.
    ///
    /// A function has a part of the time as large as its share of the hits, whoever's they are. With k of the n hits of
    /// the rarer source, and a share of p in both together, L = θᵏ/(1 − p + p·θ)ⁿ. A tolerance moves p outwards, towards
    /// what would bring more hits for θ > 1.
    pub(super) fn close(&mut self, days: f64, tolerance: f64) -> (f64, u64) {
        let Hits { ticks, clock } = std::mem::take(&mut self.all);
        let mut most = (f64::NEG_INFINITY, 0);
        if ticks == 0 || clock == 0 {
            self.block.clear(); // counts tell of that
            return most;
        }
        if self.detectors.len() > MOST_FUNCTIONS {
            let block = &self.block;
            self.detectors.retain(|function, _| block.contains_key(function));
        }
        for (function, hits) in self.block.drain() {
            let (k, n) = if clock <= ticks { (hits.clock, clock) } else { (hits.ticks, ticks) };
            let share = (hits.ticks + hits.clock) as f64 / (ticks + clock) as f64;
            let log_l = ALTERNATIVES.map(|theta| {
                let share = (share + tolerance.copysign(theta - 1.0)).clamp(0.0, 1.0);
                k as f64 * theta.ln() - n as f64 * (share * (theta - 1.0)).ln_1p()
            });
            let log_e = self.detectors.entry(function).or_default().observe(days * share, log_l);
            if log_e > most.0 {
                most = (log_e, function);
            }
        }
        most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The evidence of a function is 1 on average over all ways to deal out the hits, for every alternative: no more than that is
    /// what the false alarms rest on.
    #[test]
    fn the_evidence_is_fair_over_all_draws() {
        // A block of 12 ticks and 4 clock samples; 6 of all 16 hit the function. X ~ Hypergeometric(16, 6, 4).
        let choose = |n: u64, k: u64| (0..k).map(|i| (n - i) as f64 / (i + 1) as f64).product::<f64>();
        let mut mean = 0.0;
        for k in 0..=4 {
            let probability = choose(6, k) * choose(10, 4 - k) / choose(16, 4);
            let mut test = ShareTest::default();
            (0..k).for_each(|_| test.clock(1));
            (0..4 - k).for_each(|_| test.clock(2));
            (0..6 - k).for_each(|_| test.tick(1));
            (0..6 + k).for_each(|_| test.tick(2));
            test.close(1.0, 0.0);
            let mut detector = test.detectors[&1];
            mean += probability * detector.observe(0.0, [0.0; 8]).exp();
        }
        let time = 6.0 / 16.0;
        assert!(mean <= time && mean > 0.5 * time, "{mean} of {time}");
    }
}
