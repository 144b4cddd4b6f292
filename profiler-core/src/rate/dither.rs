//! Random periods: a fixed one locks onto programs that are periodic themselves.

/// Half the width of the draw, relative to the period. At 0.25 the error under a periodic program reaches 1.5 binomial
/// standard deviations, at 0.4 it stays near 1.3 (`just aliasing`); unequal weights cost 2.5% of the precision.
const WIDTH: f64 = 0.4;
/// Mean of the rate of uniform draws over the rate of their mean: ln((1 + w)/(1 − w))/2w.
const HARMONIC: f64 = 1.059_122_325_484_004_5;
/// Half the width of a step, relative to its length.
const STEP_WIDTH: f64 = 0.1;
/// How often an event is redrawn (ns), on average, from .8 s on.
const REDRAW_NS: u64 = 100_000_000;
/// How often it is redrawn at first (ns). Of a run of half a second, a tenth of a second with a period in step with the
/// program's own would be a fifth: more than its intervals allow for.
const FIRST_REDRAW_NS: u64 = 25_000_000;
/// A step lasts for at most this part of the time so far.
const SHARE_OF_RUN: u64 = 8;
/// Samples that an event takes between two redraws, at least.
pub(super) const REDRAW_SAMPLES: u32 = 10;

/// How long the steps of a run last, at whose end events are redrawn, `elapsed_ns` after it began (ns, on average).
pub fn usual_step_ns(elapsed_ns: u64) -> u64 {
    (elapsed_ns / SHARE_OF_RUN).clamp(FIRST_REDRAW_NS, REDRAW_NS)
}

/// Draws periods; the same seed gives the same periods.
#[derive(Clone, Debug)]
pub struct Dither {
    rng: fastrand::Rng,
    /// How often events are redrawn at present (ns), on average; what the loss at a restart is reckoned with.
    usual_step_ns: u64,
}

impl Dither {
    /// A sequence that `seed` determines, for steps of full length.
    pub fn new(seed: u64) -> Self {
        Dither { rng: fastrand::Rng::with_seed(seed), usual_step_ns: REDRAW_NS }
    }

    /// A period for the next stretch, uniform within ±40% around one that makes the mean *rate*
    /// `1/mean_period_ns`.
    ///
    /// Two things are corrected for. Over stretches of equal time the rate is the mean of 1/P, which is above
    /// 1/(mean of P) by 5.9%; over stretches of equal counts it is the latter. And each redraw restarts the
    /// countdown, which loses half a period. Both are exact for an event whose task is busy; one that is busy
    /// now and then is sampled up to 9% more seldom (its weights are right all the same).
    pub fn draw(&mut self, mean_period_ns: u64) -> u64 {
        let mean = mean_period_ns.max(1) as f64;
        let of_a_step = self.usual_step_ns as f64 / mean;
        let by_time = of_a_step >= f64::from(REDRAW_SAMPLES);
        let span = of_a_step.max(f64::from(REDRAW_SAMPLES));
        let restart = 1.0 / (1.0 + 0.5 / span);
        let harmonic = if by_time { HARMONIC } else { 1.0 };
        let factor = 1.0 + WIDTH * (2.0 * self.rng.f64() - 1.0);
        (mean * restart * harmonic * factor).round().max(1.0) as u64
    }

    /// Steps until an event with this period is redrawn, once they have their full length.
    pub fn steps_to_redraw(mean_period_ns: u64) -> u64 {
        (mean_period_ns.saturating_mul(u64::from(REDRAW_SAMPLES)) / REDRAW_NS).max(1)
    }

    /// Length of the next step, at whose end events are redrawn, `elapsed_ns` after the run began: within 10% of
    /// [`usual_step_ns`] (ns).
    ///
    /// A redraw restarts the countdown. If it fell on exact multiples of 100 ms, the first sample after each would meet
    /// a program whose period divides them always in the same place, however wide the draw: the error would be
    /// 2.8 binomial standard deviations.
    pub fn step_ns(&mut self, elapsed_ns: u64) -> u64 {
        self.usual_step_ns = usual_step_ns(elapsed_ns);
        (self.usual_step_ns as f64 * (1.0 + STEP_WIDTH * (2.0 * self.rng.f64() - 1.0))) as u64
    }

    /// How often events are redrawn at present (ns), on average.
    pub(super) fn usual_step_ns(&self) -> u64 {
        self.usual_step_ns
    }

    /// Uniform below `bound_ns`.
    pub(super) fn delay(&mut self, bound_ns: u64) -> u64 {
        self.rng.u64(0..bound_ns.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When steps have their full length (ns).
    const LATER: u64 = 1_000_000_000;

    #[test]
    fn the_same_seed_draws_the_same_periods() {
        let draw = |seed| {
            let mut dither = Dither::new(seed);
            [dither.draw(1_000_000), dither.draw(1_000_000)]
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn the_mean_rate_over_stretches_of_equal_time_is_the_one_asked_for() {
        for (period, elapsed_ns) in
            [(200_000u64, LATER), (1_000_000, LATER), (2_200_000, LATER), (9_000_000, LATER), (2_200_000, 0)]
        {
            let mut dither = Dither::new(3);
            let rounds = 400_000;
            let (mut samples, mut length) = (0.0, 0.0);
            for _ in 0..rounds {
                // A stretch with its restart yields its length / P samples less a half on average.
                let step = dither.step_ns(elapsed_ns) as f64;
                samples += step / dither.draw(period) as f64 - 0.5;
                length += step;
            }
            let rate = samples / length * period as f64;
            assert!((rate - 1.0).abs() < 0.002, "{period}, {elapsed_ns}: {rate}");
        }
    }

    #[test]
    fn an_event_is_left_alone_for_a_step_and_ten_samples() {
        let periods_ns = [0, 1_000_000, 20_000_000, u64::MAX];
        assert_eq!(periods_ns.map(Dither::steps_to_redraw), [1, 1, 2, u64::MAX / REDRAW_NS]);
    }

    #[test]
    fn the_first_second_is_redrawn_often() {
        let (mut elapsed_ns, mut steps) = (0, 0);
        while elapsed_ns < 500_000_000 {
            elapsed_ns += usual_step_ns(elapsed_ns);
            steps += 1;
        }
        assert_eq!(steps, 16);
        assert_eq!([800_000_000, u64::MAX].map(usual_step_ns), [REDRAW_NS; 2]);
    }

    #[test]
    fn draws_stay_within_the_width() {
        let mut dither = Dither::new(9);
        for _ in 0..10_000 {
            let drawn = dither.draw(1_000_000) as f64 / 1e6;
            assert!((0.62..=1.49).contains(&drawn), "{drawn}");
            assert!((90_000_000..=110_000_000).contains(&dither.step_ns(LATER)));
            assert!((22_500_000..=27_500_000).contains(&dither.step_ns(0)));
        }
        assert_eq!(dither.draw(0), 1);
    }
}
