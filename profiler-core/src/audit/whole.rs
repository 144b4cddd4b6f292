//! A whole profile's ticks against its clock samples, before they are added up.
//!
//! The audit as it goes hardly ever alarms falsely, so it leaves what shows over a whole profile alone. Here a false alarm costs
//! some precision and nothing else, so more is asked.
//!
//! Both sources change their rates within a profile, so their samples are compared within strata: of all the time in which one rate was
//! the same multiple of the other.

use std::hash::Hash;

use rustc_hash::FxHashMap;

use super::detector::log_sum;

/// False alarms per profile, at most.
const ALPHA: f64 = 0.01;
/// Shares may differ by so much, as they may in the audit: the tick does not see the work that it causes itself, and the clock, held up
/// by it, sees the more.
const TOLERANCE: f64 = 0.02;
/// Odds that a hit of a function was the rarer source's, over those of a hit of any other function: close together where a whole
/// profile tells them apart.
const ALTERNATIVES: [f64; 12] = [0.02, 0.1, 0.25, 0.5, 0.7, 0.85, 1.18, 1.4, 2.0, 4.0, 10.0, 50.0];

/// What a function has of the samples of both.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Both {
    /// Ticks that hit it.
    pub ticks: u64,
    /// Samples of the clock that did.
    pub clock: u64,
}

impl Both {
    /// Adds what another has.
    pub fn add(&mut self, other: Both) {
        self.ticks += other.ticks;
        self.clock += other.clock;
    }
}

/// Whether both hit the same functions as often, by all that can be said at the end. Each stratum has its functions, each of them once;
/// while it lasted the rates of both sources kept their ratio.
///
/// Given whom n samples of the rarer source and all the others of a stratum hit, it is chance which of the k hits of a function with a
/// share of p are the rarer source's: θᵏ/(1 − p + p·θ)ⁿ is 1 on average at most (Hoeffding, for draws without replacement), so the
/// product over the strata is, and the mean over some θ, which exceeds F/α for one of F functions with probability α at most. The
/// tolerance moves p outwards. Samples that are spread more evenly than at random exceed it more rarely.
pub fn agree<K: Copy + Eq + Hash>(strata: &[Vec<(K, Both)>]) -> bool {
    let sums: Vec<Both> = strata.iter().map(|stratum| sum(stratum.iter().map(|(_, both)| *both))).collect();
    let all = sum(sums.iter().copied());
    if all.ticks == 0 || all.clock == 0 {
        return all.ticks == 0;
    }
    let of_rarer = |both: &Both| if all.clock <= all.ticks { both.clock } else { both.ticks };
    let mut evidence: FxHashMap<K, [f64; ALTERNATIVES.len()]> = FxHashMap::default();
    for (stratum, sum) in strata.iter().zip(&sums) {
        let (n, hits) = (of_rarer(sum) as f64, (sum.ticks + sum.clock).max(1) as f64);
        for (function, both) in stratum {
            let (k, share) = (of_rarer(both) as f64, (both.ticks + both.clock) as f64 / hits);
            let log_l = evidence.entry(*function).or_default();
            for (log_l, theta) in log_l.iter_mut().zip(ALTERNATIVES) {
                let share = (share + TOLERANCE.copysign(theta - 1.0)).clamp(0.0, 1.0);
                *log_l += k * theta.ln() - n * (share * (theta - 1.0)).ln_1p();
            }
        }
    }
    let limit = (evidence.len() as f64 * ALTERNATIVES.len() as f64 / ALPHA).ln();
    evidence.values().all(|log_l| log_l.iter().copied().fold(f64::NEG_INFINITY, log_sum) <= limit)
}

fn sum(all: impl Iterator<Item = Both>) -> Both {
    let mut sum = Both::default();
    all.for_each(|both| sum.add(both));
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both(ticks: u64, clock: u64) -> Both {
        Both { ticks, clock }
    }

    /// One stratum.
    fn agree(functions: &[Both]) -> bool {
        super::agree(&[(0..).zip(functions.iter().copied()).collect::<Vec<(u32, Both)>>()])
    }

    #[test]
    fn equal_shares_agree_and_others_do_not() {
        assert!(agree(&[both(1_500, 180), both(1_000, 120)]));
        assert!(agree(&[both(1_500, 165), both(1_000, 135)]), "one and a half deviations");
        assert!(!agree(&[both(1_500, 120), both(1_000, 180)]));
        assert!(!agree(&[both(1_000, 1_200), both(0, 300)]), "the clock may be the faster one");
        assert!(agree(&[both(250_000, 30_000), both(0, 40)]), "what the tick causes itself");
    }

    #[test]
    fn without_the_clock_no_tick_is_believed() {
        assert!(!agree(&[both(100, 0)]));
        assert!(agree(&[both(0, 10)]) && agree(&[both(0, 0)]) && agree(&[]));
    }

    /// The clock was throttled while one function ran, and not while the other did.
    #[test]
    fn a_rate_that_changes_with_the_phase_is_no_lock_and_a_lock_shows_across_rates() {
        let strata = |first: [Both; 2], second: [Both; 2]| {
            super::agree(&[first, second].map(|both| vec![(1, both[0]), (2, both[1])]))
        };
        assert!(strata([both(27, 3), both(3, 0)], [both(3, 3), both(27, 27)]));
        assert!(strata([both(500, 20), both(0, 0)], [both(0, 0), both(5_000, 2_720)]));
        assert!(!agree(&[both(500, 20), both(5_000, 2_720)]), "pooled, they look as if");
        // Twice as often in the first function, whatever the rates.
        assert!(!strata([both(1_000, 40), both(1_000, 20)], [both(1_000, 400), both(1_000, 200)]));
        assert!(strata([both(1_000, 30), both(1_000, 30)], [both(1_000, 300), both(1_000, 300)]));
    }

    /// What is told apart by the time of its own is compared with nothing.
    #[test]
    fn strata_without_one_of_the_sources_say_nothing() {
        let strata =
            [vec![(1, both(900, 0))], vec![(2, both(0, 90))], vec![(1, both(50, 5)), (2, both(50, 5))]];
        assert!(super::agree(&strata));
    }

    /// Fair draws, a thousand profiles: one in a hundred may be refused, and by Chernoff's bound fewer are.
    #[test]
    fn fair_profiles_are_refused_once_in_a_hundred_times_at_most() {
        let mut rng = fastrand::Rng::with_seed(8);
        let shares = [0.4, 0.25, 0.2, 0.1, 0.04, 0.01];
        let mut draw = |functions: &mut [Both], of: fn(&mut Both) -> &mut u64| {
            let mut left = rng.f64();
            let at = shares.iter().position(|share| {
                left -= share;
                left < 0.0
            });
            *of(&mut functions[at.unwrap_or(0)]) += 1;
        };
        let refused = (0..1_000)
            .filter(|_| {
                let mut functions = [Both::default(); 6];
                (0..1_250).for_each(|_| draw(&mut functions, |both| &mut both.ticks));
                (0..150).for_each(|_| draw(&mut functions, |both| &mut both.clock));
                !agree(&functions)
            })
            .count();
        assert!(refused <= 10, "{refused}");
    }
}
