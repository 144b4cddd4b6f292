//! The anytime law: a rate for a run of unknown length.
//!
//! The best constant rate for a profile of W CPU-seconds is λ*(W) = c·W^(−1/3), with c = (r·S/o)^(2/3) (Stoker, eq. 4.16).
//! Without W, sample at a rate that falls with the CPU time t since the start, λ(t) = k·t^(−1/3), and let each sample stand
//! for the 1/λ(t) CPU-seconds that it was taken for. After W CPU-seconds of it
//!
//! ```text
//! n(W)      = ∫λ dt          = 3/2·k·W^(2/3)
//! bias      = o·n(W)/W       = 3/2·k·o·W^(−1/3)
//! deviation = S·√(∫dt/λ)/W   = S·√(3/(4k))·W^(−1/3)
//! ```
//!
//! Both errors fall as W^(−1/3), as those of the best constant rate do, and no other exponent does that: with t^(−a) the bias
//! falls as W^(−a) and the deviation as W^((a−1)/2), and the two agree at a = 1/3 alone. So their ratio is the same at every
//! W, and one k is the best for all of them. Every [`Criterion`](super::Criterion) wants the ratio r: 3/2·k·o = r·S·√(3/(4k))
//! gives
//!
//! ```text
//! k = 3^(−1/3)·c        λ(t) = λ*(3t)
//! ```
//!
//! which is the constant rate for a run three times as long as what has passed. Its bias is 3/2·3^(−1/3) = (9/8)^(1/3) = 1.040
//! times that of λ*(W), its deviation as well, and so is every criterion, which grows in proportion to both: at most 4% is
//! lost at every length at once.
//!
//! A change of the cost or of the shares changes k, and not t. What could not be taken while a budget or the kernel held the
//! rate down is owed, and made good within the next second: under a budget b the rate is constant then, until W is so long
//! that the law asks for less, which is again the best for every W up to there.

use std::ops::Range;

use super::dither::usual_step_ns;

/// 3^(−1/3): k over c.
const K: f64 = 0.693_361_274_350_634_6;
/// Largest factor by which missing samples raise the rate; its inverse for surplus samples.
const MOST_OWED: f64 = 2.0;

/// Mean of t^(−1/3) over a range (CPU-seconds), which starts at 0 or later and has a length.
fn mean_inverse_root(range: &Range<f64>) -> f64 {
    1.5 * (range.end.powf(2.0 / 3.0) - range.start.powf(2.0 / 3.0)) / (range.end - range.start)
}

/// The horizon W whose constant rate λ*(W) is the mean of the anytime law over a range of CPU time (s).
pub fn equivalent_horizon_s(range: &Range<f64>) -> f64 {
    3.0 * mean_inverse_root(range).powi(-3)
}

/// n(W): samples that the anytime law takes in the first `cpu_s` CPU-seconds, where the best constant rate for one
/// CPU-second is `rate_for_one_s_hz`.
pub fn samples(rate_for_one_s_hz: f64, cpu_s: f64) -> f64 {
    1.5 * K * rate_for_one_s_hz * cpu_s.powf(2.0 / 3.0)
}

/// How far a run without a known horizon has come.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AnytimeSchedule {
    /// CPU time of the target so far (s).
    cpu_s: f64,
    /// CPUs that it kept busy of late.
    busy_cpus: f64,
    /// Samples that the law has asked for, at the costs and shares of their time.
    asked: f64,
    /// Samples that hit the target.
    taken: f64,
}

impl AnytimeSchedule {
    /// Takes in a step in which the target used `cpu_s` on `busy_cpus`, and `taken` samples hit it; `rate_for_one_s_hz` is the
    /// law's for a profile of one CPU-second.
    pub(super) fn observe(&mut self, cpu_s: f64, busy_cpus: f64, taken: u64, rate_for_one_s_hz: f64) {
        let before = self.cpu_s;
        self.cpu_s += cpu_s;
        self.busy_cpus = busy_cpus;
        self.asked += samples(rate_for_one_s_hz, self.cpu_s) - samples(rate_for_one_s_hz, before);
        self.taken += taken as f64;
    }

    /// The step to come (CPU time since the start, s).
    fn step(&self) -> Range<f64> {
        let busy_cpus = self.busy_cpus.max(1.0);
        let step_ns = usual_step_ns((self.cpu_s / busy_cpus * 1e9) as u64);
        self.cpu_s..self.cpu_s + busy_cpus * step_ns as f64 * 1e-9
    }

    /// The horizon that stands for the step to come (CPU-seconds).
    pub(super) fn horizon_s(&self) -> f64 {
        equivalent_horizon_s(&self.step())
    }

    /// The law's rate with what is owed made good within a second (samples per CPU-second).
    pub(super) fn made_good_hz(&self, law_hz: f64) -> f64 {
        let owed_hz = (self.asked - self.taken) / self.busy_cpus.clamp(0.1, f64::MAX);
        (law_hz + owed_hz).clamp(law_hz / MOST_OWED, law_hz * MOST_OWED)
    }

    /// Samples that the law asks for in the next CPU-second.
    pub(super) fn next_second(&self, rate_for_one_s_hz: f64) -> f64 {
        samples(rate_for_one_s_hz, self.cpu_s + 1.0) - samples(rate_for_one_s_hz, self.cpu_s)
    }

    /// Samples that the law has asked for so far.
    pub(super) fn asked(&self) -> f64 {
        self.asked
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::{Criterion, Law};
    use super::*;

    /// The error after `cpu_s` of the anytime law with `scale` times its k, sampled at no more than `cap_hz`, over that of
    /// the best constant rate, by integration.
    fn loss(criterion: Criterion, cpu_s: f64, scale: f64, cap_hz: f64) -> f64 {
        let (o, s) = (25e-6, 2.0);
        let best = Law::new(criterion, s, o, cpu_s).rate_hz().unwrap();
        let at_best = criterion.error(best * o, s / (best * cpu_s).sqrt());
        let for_one_s = Law::new(criterion, s, o, 1.0).rate_hz().unwrap();
        let steps = 20_000;
        let (mut taken, mut periods, mut from) = (0.0, 0.0, 0.0);
        for step in 1..=steps {
            let to = cpu_s * (f64::from(step) / f64::from(steps)).powi(3);
            let range = from..to;
            let rate_hz = (scale * K * for_one_s * mean_inverse_root(&range)).min(cap_hz);
            taken += rate_hz * (to - from);
            periods += (to - from) / rate_hz;
            from = to;
        }
        criterion.error(o * taken / cpu_s, s * periods.sqrt() / cpu_s) / at_best
    }

    #[test]
    fn every_length_is_within_four_percent_of_its_best_rate_for_every_criterion() {
        let expected = (9.0f64 / 8.0).cbrt();
        for criterion in Criterion::ALL {
            for cpu_s in [0.1, 1.0, 60.0, 3_600.0] {
                let loss = loss(criterion, cpu_s, 1.0, f64::INFINITY);
                assert!((loss - expected).abs() < 1e-3, "{criterion:?}, {cpu_s} s: {loss}");
            }
        }
    }

    #[test]
    fn another_k_is_worse_and_a_highest_rate_is_not() {
        for criterion in Criterion::ALL {
            let best = loss(criterion, 10.0, 1.0, f64::INFINITY);
            assert!(loss(criterion, 10.0, 1.2, f64::INFINITY) > best);
            assert!(loss(criterion, 10.0, 0.8, f64::INFINITY) > best);
        }
        // A constant rate at the start is what a short run wants.
        for cpu_s in [0.1, 0.3, 1.0] {
            assert!(loss(Criterion::MeanSquared, cpu_s, 1.0, 4_000.0) < 1.041);
        }
    }

    #[test]
    fn it_is_the_law_for_three_times_what_has_passed() {
        assert!((K - 3f64.powf(-1.0 / 3.0)).abs() < 1e-15);
        assert!((equivalent_horizon_s(&(10.0..10.000_1)) - 30.0).abs() < 1e-3);
        // Steps add up to 3/2·k·W^(2/3), from the first on.
        let (for_one_s, mut sum, mut from) = (1_000.0, 0.0, 0.0);
        for to in [0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 7.0] {
            sum += for_one_s * equivalent_horizon_s(&(from..to)).powf(-1.0 / 3.0) * (to - from);
            from = to;
        }
        assert!((sum / samples(for_one_s, 7.0) - 1.0).abs() < 1e-9, "{sum}");
    }

    #[test]
    fn what_was_held_back_is_made_good_and_no_more() {
        let for_one_s = 1_000.0;
        let mut schedule = AnytimeSchedule::default();
        schedule.observe(1.0, 1.0, 100, for_one_s); // of 1,040
        let law_hz = for_one_s * schedule.horizon_s().powf(-1.0 / 3.0);
        assert_eq!(schedule.made_good_hz(law_hz), MOST_OWED * law_hz);
        schedule.observe(0.0, 1.0, 900, for_one_s);
        let made_good = schedule.made_good_hz(law_hz);
        assert!((made_good - law_hz - 40.0).abs() < 1.0, "{made_good}");
        schedule.observe(0.0, 1.0, 10_000, for_one_s);
        assert_eq!(schedule.made_good_hz(law_hz), law_hz / MOST_OWED);
    }

    #[test]
    fn an_idle_target_stands_still() {
        let mut schedule = AnytimeSchedule::default();
        schedule.observe(1.0, 1.0, 1_000, 1_000.0);
        let before = schedule.horizon_s();
        (0..1_000).for_each(|_| schedule.observe(0.0, 0.0, 0, 1_000.0));
        assert_eq!(schedule.horizon_s(), before);
    }
}
