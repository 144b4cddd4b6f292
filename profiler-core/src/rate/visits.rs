//! How precise samples are if functions run on for longer than a sampling period.
//!
//! Independent samples know a share p of n samples to a variance of p(1−p)/n. Samples at nearly equal distances P of CPU time
//! miss a long visit to a function by a part of P at its ends only. Let a program be in the same function a time h later with a
//! probability that exceeds chance by a part that falls as e^(−h/τ). Then, with x = P/τ, the variance of the share of this very run is
//!
//! ```text
//! v(x) = coth(x/2) − 2/x
//! ```
//!
//! times that of independent samples. coth(x/2) is the sum Σρ^|k| over all distances k between samples, with ρ = e^(−x), and 2/x the same
//! for the run itself, whose share is the truth here. The ratio is 1 for visits that are short and x/6 for long ones.
//!
//! The law balances v/λ against the cost of λ, and v depends on λ too. So v is replaced by the derivative of v(x)/λ by
//! 1/λ:
//!
//! ```text
//! v + x·v′ = coth(x/2) − (x/2)/sinh²(x/2)
//! ```
//!
//! x/3 for long visits. As λ* grows with the cube root of the variance, it is λ·(v + x·v′)^(1/3), solved for λ.
//!
//! τ is read off neighbours: of pairs of samples that followed each other on a thread at a distance h, (1 − e^(−h/τ))·(1 − Σp²) are in
//! different functions. The distances differ, since the rate does, and the mean of e^(−h/τ) is not that of the mean distance: so τ is the one
//! that makes the sum over all pairs the number of changes that were seen.

use rustc_hash::FxHashMap;

/// Classes of distances: those of class k are from 4^k to 4^(k+1) ns long, and those of the last from 1.07 s on.
const CLASSES: usize = 16;

/// Pairs of consecutive samples on a thread, by the CPU time between them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Neighbours {
    /// Number of pairs of each class, and the CPU time between them, of all together (ns).
    pairs: [u64; CLASSES],
    gaps_ns: [u64; CLASSES],
    /// Number of pairs in different functions.
    changes: u64,
}

impl Neighbours {
    /// A sample came `gap_ns` of CPU time after the one before it on its thread.
    pub fn add(&mut self, has_changed: bool, gap_ns: u64) {
        let class = class_of(gap_ns);
        self.pairs[class] += 1;
        self.gaps_ns[class] = self.gaps_ns[class].saturating_add(gap_ns);
        self.changes += u64::from(has_changed);
    }
}

fn class_of(gap_ns: u64) -> usize {
    (gap_ns.max(1).ilog2() as usize / 2).min(CLASSES - 1)
}

/// 1/τ is computed to this part of it.
const TOLERANCE: f64 = 1e-3;
/// Most steps that this takes; six are usual.
const NEWTON_STEPS: usize = 30;
/// The last sample of this many threads is remembered.
const MAX_THREADS: usize = 1 << 16;

/// Finds the neighbours among the samples of many threads.
#[derive(Clone, Debug, Default)]
pub struct ThreadVisits {
    /// The function of each thread's last sample, by a stable key.
    functions: FxHashMap<u32, u64>,
    seen: Neighbours,
}

impl ThreadVisits {
    /// Adds a sample of a thread, `gap_ns` of CPU time after the one before it there. To be called in time order.
    pub fn sampled(&mut self, tid: u32, function: u64, gap_ns: u64) {
        if self.functions.len() >= MAX_THREADS {
            self.functions.clear();
        }
        if let Some(before) = self.functions.insert(tid, function) {
            self.seen.add(before != function, gap_ns);
        }
    }

    /// A thread has ended; a later one with its id is another thread.
    pub fn ended(&mut self, tid: u32) {
        self.functions.remove(&tid);
    }

    /// The neighbours since the last call.
    pub fn take(&mut self) -> Neighbours {
        std::mem::take(&mut self.seen)
    }
}

/// Recent results from pairs of neighbours.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Visits {
    /// Of each class of distances, as in [`Neighbours`].
    pairs: [f64; CLASSES],
    gaps_s: [f64; CLASSES],
    changes: f64,
    /// Changes in earlier phases, each divided by the variety then.
    settled: f64,
}

impl Visits {
    pub(super) fn observe(&mut self, neighbours: &Neighbours) {
        for class in 0..CLASSES {
            self.pairs[class] += neighbours.pairs[class] as f64;
            self.gaps_s[class] += neighbours.gaps_ns[class] as f64 * 1e-9;
        }
        self.changes += neighbours.changes as f64;
    }

    /// Multiplies the weight of what was seen so far by `keep`.
    pub(super) fn forget(&mut self, keep: f64) {
        let sums = self.pairs.iter_mut().chain(&mut self.gaps_s);
        sums.chain([&mut self.changes, &mut self.settled]).for_each(|sum| *sum *= keep);
    }

    /// The shares are others from now on: the changes so far happened at this `variety`.
    pub(super) fn end_phase(&mut self, variety: f64) {
        if variety > 0.0 {
            self.settled += std::mem::take(&mut self.changes) / variety;
        }
    }

    /// τ (s of CPU time): rather too short than too long, and 0 until it is known to be above 0. `variety` is 1 − Σp².
    pub(super) fn memory_s(&self, variety: f64) -> f64 {
        // An upper bound for the true number of changes, by the Poisson distribution.
        let changes = self.changes + 1.0 + (self.changes + 1.0).sqrt();
        let parted = self.settled + changes / variety;
        let (pairs, gaps_s): (f64, f64) = (self.pairs.iter().sum(), self.gaps_s.iter().sum());
        if !(parted < pairs && gaps_s > 0.0) {
            return 0.0;
        }
        // If all distances were equal, 1/τ would be this. As they differ it is larger, and Newton's method approaches it from below, since the
        // function is concave.
        let mut per_s = -(-parted / pairs).ln_1p() * pairs / gaps_s;
        for _ in 0..NEWTON_STEPS {
            let (found, slope) = self.parted(per_s);
            let step = (parted - found) / slope;
            if step.is_nan() || step <= TOLERANCE * per_s {
                break;
            }
            per_s += step;
        }
        per_s.recip()
    }

    /// How many pairs a memory of `1/per_s` parts, and how many more for one `1/s` more.
    fn parted(&self, per_s: f64) -> (f64, f64) {
        let classes = self.pairs.iter().zip(&self.gaps_s).filter(|(pairs, _)| **pairs > 0.0);
        classes.fold((0.0, 0.0), |(sum, slope), (pairs, gaps_s)| {
            let exponent = per_s * gaps_s / pairs;
            (sum - pairs * (-exponent).exp_m1(), slope + gaps_s * (-exponent).exp())
        })
    }
}

/// v(x) for samples `period_s` apart of a program with a memory τ (s of CPU time).
pub fn variance_ratio(period_s: f64, memory_s: f64) -> f64 {
    let x = period_s / memory_s;
    match x {
        x if x < 0.01 => x / 6.0,
        x if x < f64::INFINITY => (x / 2.0).tanh().recip() - 2.0 / x,
        _ => 1.0,
    }
}

/// v + x·v′ at the rate that it leads to, if the law asks for `independent_hz` of independent samples (samples per
/// CPU-second): that rate is `independent_hz` times the cube root of the result. 1 if nothing is known.
pub fn ratio_at_optimum(independent_hz: f64, memory_s: f64) -> f64 {
    if memory_s <= 0.0 || independent_hz.is_nan() || independent_hz <= 0.0 {
        return 1.0;
    }
    // Finds the rate at which (rate/independent_hz)³ equals the ratio: the former grows with the rate, the latter
    // falls.
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..40 {
        let part = 0.5 * (low + high);
        let asks = marginal_ratio(1.0 / (part * independent_hz * memory_s));
        if asks > part * part * part { low = part } else { high = part }
    }
    high * high * high
}

fn marginal_ratio(x: f64) -> f64 {
    let half = 0.5 * x;
    match x {
        x if x < 0.01 => x / 3.0,
        x if x < 80.0 => half.tanh().recip() - half / half.sinh().powi(2),
        _ => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn neighbours(pairs: u64, changes: u64, gap_ns: u64) -> Neighbours {
        let mut all = Neighbours { changes, ..Neighbours::default() };
        let class = class_of(gap_ns);
        (all.pairs[class], all.gaps_ns[class]) = (pairs, pairs.saturating_mul(gap_ns));
        all
    }

    /// A program of two functions, in the first with a probability of `p` at each visit.
    struct Program {
        p: f64,
        memory_s: f64,
        rng: fastrand::Rng,
        inside: bool,
        left_s: f64,
        inside_s: f64,
    }

    impl Program {
        fn run(&mut self, mut span_s: f64) {
            while span_s > 0.0 {
                let part_s = self.left_s.min(span_s);
                self.inside_s += if self.inside { part_s } else { 0.0 };
                (span_s, self.left_s) = (span_s - part_s, self.left_s - part_s);
                if self.left_s <= 0.0 {
                    self.inside = self.rng.f64() < self.p;
                    self.left_s = -self.memory_s * (1.0 - self.rng.f64()).ln();
                }
            }
        }
    }

    /// The variance of the first function's share over that of independent samples, of many runs sampled every second, and what the
    /// neighbours show.
    fn sampled(memory_s: f64, p: f64, seed: u64) -> (f64, Visits) {
        const RUNS: u32 = 2_000;
        const SAMPLES: u32 = 400;
        let (mut squares, mut neighbours) = (0.0, Neighbours::default());
        let rng = fastrand::Rng::with_seed(seed);
        let mut program = Program { p, memory_s, rng, inside: false, left_s: 0.0, inside_s: 0.0 };
        for _ in 0..RUNS {
            program.run(20.0 * memory_s); // until nothing is left of the run before
            program.inside_s = 0.0;
            let first_s = program.rng.f64();
            program.run(first_s);
            let (mut hits, mut before) = (0.0, None);
            for sample in 1..=SAMPLES {
                hits += f64::from(u8::from(program.inside));
                if let Some(before) = before.replace(program.inside) {
                    neighbours.add(before != program.inside, 1_000_000_000);
                }
                program.run(if sample < SAMPLES { 1.0 } else { 1.0 - first_s });
            }
            squares += (hits - program.inside_s).powi(2);
        }
        let mut visits = Visits::default();
        visits.observe(&neighbours);
        (squares / f64::from(RUNS * SAMPLES) / (p * (1.0 - p)), visits)
    }

    #[test]
    fn systematic_samples_of_long_visits_are_as_good_as_said() {
        for (memory_s, p) in [(0.2, 0.3), (1.0, 0.3), (4.0, 0.5), (20.0, 0.2)] {
            let (seen, visits) = sampled(memory_s, p, 11);
            let said = variance_ratio(1.0, memory_s);
            assert!((seen / said - 1.0).abs() < 0.12, "τ {memory_s}: {seen} for {said}");
            let read_s = visits.memory_s(2.0 * p * (1.0 - p));
            let is_read = if memory_s < 0.5 { read_s < 0.3 } else { (read_s / memory_s - 1.0).abs() < 0.1 };
            assert!(is_read, "τ {memory_s}: read as {read_s}");
        }
    }

    #[test]
    fn it_is_known_of_many_neighbours_alone() {
        let variety = 0.7;
        assert_eq!(Visits::default().memory_s(variety), 0.0);
        let of = |pairs, changes| {
            let mut visits = Visits::default();
            visits.observe(&neighbours(pairs, changes, 1_000_000));
            visits.memory_s(variety)
        };
        assert_eq!((of(2, 0), of(1_000, 700), of(1_000, 690)), (0.0, 0.0, 0.0));
        assert!((0.02..0.05).contains(&of(100, 0)) && of(10_000, 0) > 3.0);
        assert_eq!(of(0, 0), 0.0);
    }

    /// A rate that a budget holds back now and then has samples at two distances.
    #[test]
    fn distances_that_differ_are_not_taken_for_their_mean() {
        let (memory_s, variety) = (0.005_f64, 0.8);
        let mut visits = Visits::default();
        for (pairs, gap_ns) in [(50_000_u64, 2_000_000_u64), (18_000, 125_000_000)] {
            let changed = variety * (1.0 - (-(gap_ns as f64) * 1e-9 / memory_s).exp());
            visits.observe(&neighbours(pairs, (pairs as f64 * changed) as u64, gap_ns));
        }
        let read_s = visits.memory_s(variety);
        assert!((0.9..1.001).contains(&(read_s / memory_s)), "{read_s}");
    }

    /// The rate that the ratio leads to is the one with the least of v/λ and the cost of λ, which grows as λ².
    #[test]
    fn the_ratio_leads_to_the_best_rate() {
        for memory_s in [1e-4, 1e-3, 1e-2, 0.1, 1.0] {
            let independent_hz: f64 = 500.0;
            let error =
                |hz: f64| variance_ratio(1.0 / hz, memory_s) / hz + 0.5 * hz * hz / independent_hz.powi(3);
            let best = (1..5_000).map(|hz| error(f64::from(hz) * 0.2)).fold(f64::INFINITY, f64::min);
            let ratio = ratio_at_optimum(independent_hz, memory_s);
            let chosen = error(independent_hz * ratio.cbrt());
            assert!(chosen < 1.001 * best, "τ {memory_s}: {chosen} for {best}");
        }
    }

    proptest! {
        #[test]
        fn hostile_figures_do_no_harm(
            hz in any::<f64>(), memory_s in any::<f64>(), period_s in any::<f64>(), pairs in any::<u64>(), changes in any::<u64>(),
            gap_ns in any::<u64>(), variety in any::<f64>(),
        ) {
            let ratio = ratio_at_optimum(hz, memory_s);
            prop_assert!((0.0..=1.0).contains(&ratio), "{ratio}");
            let _ = variance_ratio(period_s, memory_s);
            let mut visits = Visits::default();
            visits.observe(&neighbours(pairs, changes, gap_ns));
            visits.observe(&neighbours(changes, pairs, gap_ns >> 9));
            let memory_s = visits.memory_s(variety);
            let ratio = ratio_at_optimum(500.0, memory_s);
            prop_assert!((0.0..=1.0).contains(&ratio), "{ratio} of {memory_s}");
        }
    }
}
