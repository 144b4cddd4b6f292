//! The interval of a sum of weights of independent events: CPU time that is known from samples alone.
//!
//! Each event stands for its weight, and the number of events is a Poisson count. The interval is that of Fay and Feuer (1997,
//! "Confidence intervals for directly standardized rates: a method based on the gamma distribution"): exact for equal weights,
//! and rather too wide for others.

use statrs::distribution::Gamma;

use super::confidence::Confidence;
use super::interval::Interval;
use super::quantile::quantile;

/// Above so many events the gamma distribution is a normal one within .1% of its width.
const NORMAL: f64 = 1e5;

/// The events so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WeightedSum {
    /// Their weights (in any unit).
    pub sum: f64,
    /// The squares of their weights: the variance of the sum.
    pub squares: f64,
}

impl WeightedSum {
    /// One more event.
    pub fn add(&mut self, weight: f64) {
        self.sum += weight;
        self.squares += weight * weight;
    }

    /// The events of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { sum: self.sum + other.sum, squares: self.squares + other.squares }
    }

    /// Where the expected sum lies, in the unit of the weights. `next`: the weight that one more event would have, so
    /// that the interval has a width before the first event.
    pub fn interval(self, next: f64, confidence: Confidence) -> Interval {
        let tail = 0.5 * confidence.alpha();
        let end = |sum: f64, squares: f64, below: f64| {
            if sum > 0.0 && squares > 0.0 {
                squares / sum * gamma_quantile(sum * sum / squares, below, confidence)
            } else {
                0.0
            }
        };
        let next = next.max(0.0);
        let interval = Interval {
            low: end(self.sum, self.squares, tail),
            high: end(self.sum + next, self.squares + next * next, 1.0 - tail),
        };
        interval.including(self.sum)
    }
}

/// The value with so much of a gamma distribution of this shape (and scale 1) below it: an end of the interval at `confidence`.
fn gamma_quantile(shape: f64, below: f64, confidence: Confidence) -> f64 {
    if shape > NORMAL {
        let score = confidence.normal_score();
        return shape + shape.sqrt() * if below < 0.5 { -score } else { score };
    }
    let far = shape + 20.0 * shape.sqrt() + 50.0;
    Gamma::new(shape, 1.0).map_or(shape, |gamma| quantile(&gamma, (0.0, far), below))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Poisson's own ends (Garwood 1936): 3.69 events where none was seen, and .62 to 8.77 around three.
    #[test]
    fn equal_weights_have_the_exact_ends_of_a_count() {
        let of = |count: usize| {
            let mut events = WeightedSum::default();
            (0..count).for_each(|_| events.add(2.0));
            events.interval(2.0, Confidence::default())
        };
        let close = |a: f64, b: f64| (a - b).abs() < 2e-3 * b.max(1.0);
        for (count, low, high) in
            [(0, 0.0, 3.689), (1, 0.0253, 5.572), (3, 0.6187, 8.767), (100, 81.36, 121.63)]
        {
            let found = of(count);
            assert!(close(found.low, 2.0 * low) && close(found.high, 2.0 * high), "{count}: {found:?}");
        }
        let many = of(400_000);
        assert!(
            close(many.low, 2.0 * (4e5 - 1.96 * 632.5)) && close(many.high, 2.0 * (4e5 + 1.96 * 632.5)),
            "{many:?}"
        );
    }

    /// Weights as they are while a rate is set: within a factor of ten of each other.
    #[test]
    fn it_covers_as_often_as_it_says() {
        let mut random = fastrand::Rng::with_seed(7);
        for expected in [0.5, 2.0, 8.0, 50.0] {
            let (runs, mut covered) = (4_000, 0);
            for _ in 0..runs {
                let mut events = WeightedSum::default();
                let mut at = 0.0;
                loop {
                    at -= (1.0 - random.f64()).ln();
                    if at > expected {
                        break;
                    }
                    events.add(if random.f64() < 0.3 { 10.0 } else { 1.0 + random.f64() });
                }
                let truth = expected * (0.3 * 10.0 + 0.7 * 1.5);
                covered += usize::from(events.interval(10.0, Confidence::default()).contains(truth));
            }
            assert!(covered as f64 > 0.945 * f64::from(runs), "{expected}: {covered} of {runs}");
        }
    }
}
