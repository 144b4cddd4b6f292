//! The shares of the largest functions, and whether they have changed.

use rustc_hash::FxHashMap;

use super::model::spread;
use super::visits::{Neighbours, Visits};
use crate::stats::Cusum;

/// Share of the largest function that is assumed before anything was seen.
pub const PRIOR_SHARE: f64 = 0.15;
/// S for [`PRIOR_SHARE`].
pub(super) const PRIOR_SPREAD: f64 = 2.380_476;
/// Samples that the prior, or the spread before a change of phase, weighs.
const PRIOR_SAMPLES: f64 = 50.0;
/// A window of the change detector has this length and this many samples, at least.
const WINDOW_NS: u64 = 1_000_000_000;
const WINDOW_SAMPLES: u64 = 30;
/// Windows that the memory of shares reaches back.
const MEMORY_WINDOWS: f64 = 30.0;
/// Weight of the latest window in the variance inflation.
const INFLATION_GAIN: f64 = 0.1;
/// Inflation assumed before it is known: programs come in bouts.
const PRIOR_INFLATION: f64 = 2.0;
/// S outside of this is noise, or a program of one function.
const SPREAD_RANGE: (f64, f64) = (0.05, 100.0);
/// Most functions that are remembered.
const MAX_FUNCTIONS: usize = 4_096;

/// Samples by function since the last step. Any stable key does; samples without a function share one.
///
/// May be empty in some steps and carry more in others: only the sums count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopShares {
    /// Key of the innermost function, and samples in it.
    pub counts: Vec<(u64, u64)>,
    /// Pairs of consecutive samples on a thread, among these samples.
    pub neighbours: Neighbours,
}

/// Forgetting counts by function, with a change detector on the largest.
#[derive(Clone, Debug)]
pub(super) struct ShareMemory {
    top: usize,
    counts: FxHashMap<u64, f64>,
    total: f64,
    visits: Visits,
    prior_spread: f64,
    window: FxHashMap<u64, u64>,
    window_samples: u64,
    window_ns: u64,
    cusums: FxHashMap<u64, Cusum>,
    inflation: f64,
    windows: u32,
    /// Results for the present counts: they are read many times a step.
    figures: ShareFigures,
}

/// Results from the shares of all functions.
#[derive(Clone, Copy, Debug)]
struct ShareFigures {
    /// S, drawn towards the prior while there are few samples.
    spread: f64,
    /// Σ share².
    squares: f64,
}

impl ShareMemory {
    pub(super) fn new(top: usize) -> Self {
        ShareMemory {
            top,
            counts: FxHashMap::default(),
            total: 0.0,
            visits: Visits::default(),
            prior_spread: PRIOR_SPREAD,
            window: FxHashMap::default(),
            window_samples: 0,
            window_ns: 0,
            cusums: FxHashMap::default(),
            inflation: PRIOR_INFLATION,
            windows: 0,
            figures: ShareFigures { spread: PRIOR_SPREAD, squares: 0.0 },
        }
    }

    /// Samples that are remembered of all functions.
    fn all(&self) -> f64 {
        self.total + self.window_samples as f64
    }

    /// The share of each function.
    fn shares(&self) -> impl Iterator<Item = f64> {
        let total = self.all();
        let open = |key: &u64| self.window.get(key).copied().unwrap_or(0) as f64;
        let known = self.counts.iter().map(move |(key, count)| count + open(key));
        let new =
            self.window.iter().filter(|(key, _)| !self.counts.contains_key(key)).map(|(_, n)| *n as f64);
        known.chain(new).map(move |count| count / total)
    }

    /// How long the program stays in the same function (s of CPU time); 0 if samples are independent, as far as known.
    pub(super) fn memory_s(&self) -> f64 {
        self.visits.memory_s(1.0 - self.figures.squares)
    }

    /// S, drawn towards the prior while there are few samples.
    pub(super) fn spread(&self) -> f64 {
        self.figures.spread
    }

    /// Updates the results; to be called after every change of the counts.
    fn add_up(&mut self) {
        let total = self.all();
        let seen = spread(self.shares(), self.top).unwrap_or(self.prior_spread);
        let blended = (total * seen + PRIOR_SAMPLES * self.prior_spread) / (total + PRIOR_SAMPLES);
        self.figures = ShareFigures {
            spread: blended.clamp(SPREAD_RANGE.0, SPREAD_RANGE.1),
            squares: self.shares().map(|share| share * share).sum(),
        };
    }

    /// Takes in a step's counts; true when the shares are no longer those remembered.
    pub(super) fn observe(&mut self, shares: &TopShares, wall_ns: u64) -> bool {
        self.window_ns = self.window_ns.saturating_add(wall_ns);
        self.visits.observe(&shares.neighbours);
        self.count(&shares.counts);
        if self.window_ns < WINDOW_NS || self.window_samples < WINDOW_SAMPLES {
            return false;
        }
        let changed = self.total > 0.0 && self.window_deviates();
        if changed {
            self.visits.end_phase(1.0 - self.counts.values().map(|n| (n / self.total).powi(2)).sum::<f64>());
            self.prior_spread = self.spread();
            self.counts.clear();
            self.cusums.clear();
            self.total = 0.0;
        }
        self.close_window();
        self.add_up();
        changed
    }

    fn count(&mut self, counts: &[(u64, u64)]) {
        if counts.is_empty() {
            return;
        }
        for &(key, count) in counts {
            let count = count.min(u64::from(u32::MAX)); // more in a step is no count
            if self.window.len() < MAX_FUNCTIONS || self.window.contains_key(&key) {
                *self.window.entry(key).or_default() += count;
            }
            self.window_samples = self.window_samples.saturating_add(count);
        }
        self.add_up();
    }

    fn window_deviates(&mut self) -> bool {
        let n = self.window_samples as f64;
        let (mut deviates, mut squares, mut watched) = (false, 0.0, 0.0);
        for key in self.largest() {
            let p = (self.counts[&key] / self.total).clamp(0.5 / self.total, 1.0 - 0.5 / (self.total + 1.0));
            let x = self.window.get(&key).copied().unwrap_or(0) as f64;
            // The remembered share is an estimate too, hence the second term.
            let z = (x - n * p) / (n * p * (1.0 - p) * (1.0 + n / self.total)).sqrt().max(1e-9);
            squares += z * z;
            watched += 1.0;
            deviates |= self.cusums.entry(key).or_default().observe(z, self.inflation);
        }
        self.windows = self.windows.saturating_add(1);
        if watched > 0.0 {
            // Bounded, so that the change of phase itself does not count as usual variation.
            let seen = (squares / watched).min(9.0 * self.inflation);
            let gain = INFLATION_GAIN.max(1.0 / (f64::from(self.windows) + 2.0));
            self.inflation = (self.inflation + gain * (seen - self.inflation)).max(1.0);
        }
        deviates
    }

    fn largest(&self) -> Vec<u64> {
        let mut keys: Vec<(u64, f64)> = self.counts.iter().map(|(key, count)| (*key, *count)).collect();
        keys.sort_unstable_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        keys.truncate(self.top);
        keys.into_iter().map(|(key, _)| key).collect()
    }

    fn close_window(&mut self) {
        let keep = (-1.0 / MEMORY_WINDOWS).exp();
        self.visits.forget(keep);
        let least = if self.counts.len() < MAX_FUNCTIONS { 0.05 } else { 2.0 };
        self.counts.values_mut().for_each(|count| *count *= keep);
        self.counts.retain(|_, count| *count >= least);
        for (key, count) in self.window.drain() {
            *self.counts.entry(key).or_default() += count as f64;
        }
        self.total = self.total * keep + self.window_samples as f64;
        self.window_samples = 0;
        self.window_ns = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(memory: &mut ShareMemory, rng: &mut fastrand::Rng, p: f64, n: u64) -> bool {
        let x = (0..n).filter(|_| rng.f64() < p).count() as u64;
        memory.observe(&TopShares { counts: vec![(1, x), (2, n - x)], ..TopShares::default() }, WINDOW_NS)
    }

    #[test]
    fn a_change_of_phase_is_seen_in_a_window_or_two_and_steadiness_is_not() {
        let mut rng = fastrand::Rng::with_seed(7);
        let mut memory = ShareMemory::new(4);
        let alarms = (0..200).filter(|_| window(&mut memory, &mut rng, 0.3, 450)).count();
        assert!(alarms <= 3, "{alarms} false alarms in 200 windows");
        let seen = (0..2).any(|_| window(&mut memory, &mut rng, 0.1, 450));
        assert!(seen, "no alarm in two windows");
        assert!((0..5).filter(|_| window(&mut memory, &mut rng, 0.1, 450)).count() <= 2);
        let expected = spread([0.1, 0.9], 4).unwrap();
        assert!((memory.spread() / expected - 1.0).abs() < 0.1, "{} {expected}", memory.spread());
    }

    #[test]
    fn bouts_are_learnt_as_unrest_and_not_as_phases() {
        let mut rng = fastrand::Rng::with_seed(7);
        let mut memory = ShareMemory::new(4);
        // Ten samples at a time fall into one function: an inflation of ten.
        let alarms = (0..400)
            .filter(|_| {
                let x = 10 * (0..45).filter(|_| rng.f64() < 0.3).count() as u64;
                memory.observe(
                    &TopShares { counts: vec![(1, x), (2, 450 - x)], ..TopShares::default() },
                    WINDOW_NS,
                )
            })
            .count();
        assert!(alarms <= 12, "{alarms}");
    }
}
