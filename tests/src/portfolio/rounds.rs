//! How well samples know a program that runs its functions in turn, in rounds of one length.

use std::f64::consts::PI;

use super::TOP;

/// Rates of the table (samples per CPU-second): the first, and the ratio of neighbours.
const FIRST_HZ: f64 = 10.0;
const RATIO: f64 = 1.1;
const RATES: usize = 100;
/// Half the width of the draw of a period, relative to it, and how many are tried.
const WIDTH: f64 = 0.4;
const DRAWS: usize = 1_000;
/// Time between two draws (s), and the least number of samples.
const REDRAW_S: f64 = 0.1;
const REDRAW_SAMPLES: f64 = 10.0;
/// Terms of the Fourier series of a function's place in the round.
const TERMS: usize = 60;

/// The variance of samples at periods that are drawn anew every tick, over that of independent ones, by rate and function.
///
/// Where the round begins is left to chance at every draw. A function of share p that runs once in a round R is there at phase φ + jP/R
/// for sample j, and its n samples of period P scatter by Σ 2·(sin(πkp)/πk)²·(sin(πknP/R)/sin(πkP/R))² over k = 1, 2, …, those of
/// independent ones by n·p(1−p).
#[derive(Clone, Debug)]
pub(super) struct Rounds {
    ratios: Vec<[f64; TOP]>,
}

impl Rounds {
    /// Of functions of these shares, in rounds of `round_s`, or by a factor of up to `spread` more or less, whichever.
    pub(super) fn new(shares: &[f64], round_s: f64, spread: f64) -> Self {
        let series: Vec<[f64; TERMS]> =
            shares.iter().map(|p| std::array::from_fn(|k| term(*p, k + 1))).collect();
        let at = |rate: usize| {
            let mean_s = 1.0 / (FIRST_HZ * RATIO.powi(rate as i32));
            let mut sums = [(0.0, 0.0); TOP];
            for draw in 0..DRAWS {
                // A sequence that fills the square of both evenly.
                let [part, round] = [0.754_877_666_246_692_8, 0.569_840_290_998_053_3]
                    .map(|step: f64| (draw as f64 * step).fract());
                let period_s = mean_s * (1.0 + WIDTH * (2.0 * part - 1.0));
                let round_s = round_s * spread.powf(2.0 * round - 1.0);
                let samples = (REDRAW_S / period_s).max(REDRAW_SAMPLES).round();
                let kernels: [f64; TERMS] =
                    std::array::from_fn(|k| dirichlet((k + 1) as f64 * period_s / round_s, samples));
                for ((sum, p), terms) in sums.iter_mut().zip(shares).zip(&series) {
                    let variance: f64 = terms.iter().zip(&kernels).map(|(term, kernel)| term * kernel).sum();
                    // What the series lacks scatters as independent samples do.
                    let rest = (p * (1.0 - p) - terms.iter().sum::<f64>()).max(0.0);
                    sum.0 += period_s * period_s * (variance + rest * samples);
                    sum.1 += period_s * period_s * samples * p * (1.0 - p);
                }
            }
            sums.map(|(variance, independent)| if independent > 0.0 { variance / independent } else { 1.0 })
        };
        Rounds { ratios: (0..RATES).map(at).collect() }
    }

    /// At a rate (samples per CPU-second), of each function.
    pub(super) fn variance_ratios(&self, rate_hz: f64) -> [f64; TOP] {
        let place = ((rate_hz / FIRST_HZ).ln() / RATIO.ln()).clamp(0.0, (RATES - 1) as f64);
        let (below, part) = (place as usize, place.fract());
        let above = (below + 1).min(RATES - 1);
        std::array::from_fn(|at| self.ratios[below][at] * (1.0 - part) + self.ratios[above][at] * part)
    }
}

/// The square of the k-th coefficient of a function of share `p`, both signs of k together.
fn term(p: f64, k: usize) -> f64 {
    let turn = PI * k as f64;
    2.0 * ((turn * p).sin() / turn).powi(2)
}

/// |Σ e^(2πijα)|² over j = 0 … n−1.
fn dirichlet(alpha: f64, n: f64) -> f64 {
    let below = (PI * alpha).sin();
    if below.abs() < 1e-9 { n * n } else { ((PI * n * alpha).sin() / below).powi(2) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aliasing::{Clock, error_sd};

    /// The clock of the profiler, simulated, scatters as the series says: in step with the round, near it and far from it.
    #[test]
    fn the_series_is_what_the_clock_does() {
        for (rate_hz, round_s) in [(100.0, 3e-3), (450.0, 3e-3), (2_000.0, 3e-3), (5_000.0, 3e-3)] {
            let expected = Rounds::new(&[0.2], round_s, 1.0).variance_ratios(rate_hz)[0].sqrt();
            let seen = error_sd(Clock::Dithered, rate_hz, round_s * 1e9, 300);
            assert!((seen / expected - 1.0).abs() < 0.2, "{seen} and {expected} at {rate_hz}/s");
        }
    }
}
