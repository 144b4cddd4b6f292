//! Random periods: a fixed one locks onto programs that are periodic themselves.

/// Half the width of the draw, relative to the period. At 0.25 the error under a periodic program reaches 1.5 binomial
/// standard deviations, at 0.4 it stays near 1.3 (`just aliasing`); unequal weights cost 2.5% of the precision.
const WIDTH: f64 = 0.4;
/// Mean of the rate of uniform draws over the rate of their mean: ln((1 + w)/(1 − w))/2w.
const HARMONIC: f64 = 1.059_122_325_484_004_5;
/// Half the width of a tick, relative to its length.
const TICK_WIDTH: f64 = 0.1;
/// How often an event is redrawn (ns), on average; what the loss at a restart is reckoned with.
pub(super) const REDRAW_NS: f64 = 100e6;
/// Samples that an event takes between two redraws, at least.
pub(super) const REDRAW_SAMPLES: u32 = 10;

/// Draws periods, the same ones for the same seed.
#[derive(Clone, Debug)]
pub struct Dither {
    rng: fastrand::Rng,
}

impl Dither {
    /// A sequence that `seed` determines.
    pub fn new(seed: u64) -> Self {
        Dither { rng: fastrand::Rng::with_seed(seed) }
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
        let by_time = REDRAW_NS / mean >= f64::from(REDRAW_SAMPLES);
        let stretch = (REDRAW_NS / mean).max(f64::from(REDRAW_SAMPLES));
        let restart = 1.0 / (1.0 + 0.5 / stretch);
        let harmonic = if by_time { HARMONIC } else { 1.0 };
        let factor = 1.0 + WIDTH * (2.0 * self.rng.f64() - 1.0);
        (mean * restart * harmonic * factor).round().max(1.0) as u64
    }

    /// Of how many events the next stretch takes one, where one of `mean` is wanted and they come each `event_ns`: uniform within
    /// ±40% like a period, rounded up or down at random. At each redraw half of them are cut off, and the next is taken at once.
    pub fn draw_count(&mut self, mean: f64, event_ns: u64) -> u64 {
        if mean <= 1.0 {
            return 1;
        }
        let stretch = REDRAW_NS / (mean * event_ns.max(1) as f64);
        let (by_time, samples) =
            (stretch >= f64::from(REDRAW_SAMPLES), stretch.max(f64::from(REDRAW_SAMPLES)));
        let restart = (samples * mean - 0.5) / (samples - 0.5);
        let harmonic = if by_time { HARMONIC } else { 1.0 };
        let factor = 1.0 + WIDTH * (2.0 * self.rng.f64() - 1.0);
        ((restart * harmonic * factor + self.rng.f64()) as u64).max(1)
    }

    /// Length of the next tick, at whose end events are redrawn: uniform from 90 to 110 ms (ns).
    ///
    /// A redraw restarts the countdown. If it fell on exact multiples of 100 ms, the first sample after each would meet
    /// a program whose period divides them always in the same place, however wide the draw: the error would be
    /// 2.8 binomial standard deviations.
    pub fn tick_ns(&mut self) -> u64 {
        (REDRAW_NS * (1.0 + TICK_WIDTH * (2.0 * self.rng.f64() - 1.0))) as u64
    }

    /// Uniform below `bound_ns`.
    pub(super) fn delay(&mut self, bound_ns: u64) -> u64 {
        self.rng.u64(0..bound_ns.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rate::timeline::PeriodTimeline;

    #[test]
    fn counts_are_whole_and_right_on_average() {
        let mut dither = Dither::new(5);
        assert!(
            (0..100)
                .all(|_| dither.draw_count(1.0, 4_000_000) == 1 && dither.draw_count(0.1, 4_000_000) == 1)
        );
        for mean in [1.5, 2.0, 7.3] {
            let sum: u64 = (0..20_000).map(|_| dither.draw_count(mean, 4_000_000)).sum();
            let ratio = sum as f64 / 20_000.0 / mean;
            assert!((0.9..1.1).contains(&ratio), "{mean}: {ratio}");
        }
    }

    /// What the audit of ticks reckons with, for a thread that is always busy: the event that follows a redraw is taken, then one of so
    /// many, and redraws come when a book of events says.
    #[test]
    fn events_are_taken_as_often_as_asked() {
        const EVENT_NS: u64 = 4_000_000;
        for mean in [1.5, 2.0, 2.4, 2.6, 7.3, 40.0] {
            let mut dither = Dither::new(6);
            let mean_ns = (mean * EVENT_NS as f64) as u64;
            let mut every = dither.draw_count(mean, EVENT_NS);
            let mut timeline = PeriodTimeline::new(0, every * EVENT_NS).of_events(EVENT_NS);
            let (mut left, mut samples, mut look_ns) = (1, 0_u64, dither.tick_ns());
            let events = 400_000;
            for event in 1..=events {
                let now_ns = event * EVENT_NS;
                if now_ns > look_ns {
                    if timeline.due(look_ns, mean_ns, &mut dither) {
                        every = dither.draw_count(mean, EVENT_NS);
                        timeline.set(look_ns, every * EVENT_NS, mean_ns);
                        left = 1;
                    }
                    look_ns += dither.tick_ns();
                }
                left -= 1;
                if left == 0 {
                    (left, samples) = (every, samples + 1);
                    timeline.weight(now_ns);
                }
            }
            let ratio = samples as f64 * mean / events as f64;
            // Whole counts of few events, and stretches that are neither of equal time nor of equal counts, cost up to five percent:
            // half of what the audit tolerates.
            assert!((0.94..1.06).contains(&ratio), "{mean}: {ratio}");
        }
    }

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
        for period in [200_000u64, 1_000_000, 2_200_000, 9_000_000] {
            let mut dither = Dither::new(3);
            let rounds = 400_000;
            let (mut samples, mut length) = (0.0, 0.0);
            for _ in 0..rounds {
                // A stretch with its restart yields its length / P samples less a half on average.
                let tick = dither.tick_ns() as f64;
                samples += tick / dither.draw(period) as f64 - 0.5;
                length += tick;
            }
            let rate = samples / length * period as f64;
            assert!((rate - 1.0).abs() < 0.002, "{period}: {rate}");
        }
    }

    #[test]
    fn draws_stay_within_the_width() {
        let mut dither = Dither::new(9);
        for _ in 0..10_000 {
            let drawn = dither.draw(1_000_000) as f64 / 1e6;
            assert!((0.63..=1.49).contains(&drawn), "{drawn}");
            assert!((90_000_000..=110_000_000).contains(&dither.tick_ns()));
        }
        assert_eq!(dither.draw(0), 1);
    }
}
