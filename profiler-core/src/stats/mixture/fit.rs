//! The mixture of a sample: expectation–maximisation for each number of components, and the number by the Bayesian
//! information criterion (Worms and Touati 2016, section II.B).
//!
//! The criterion is −2L + (3K − 1)·ln n: a mixture of K components has 3K − 1 free parameters. The paper prints
//! K·ln n, which takes the accidents of a sample for components.
//!
//! A component that closes in on a few values makes the likelihood as large as one likes. So each has three values
//! or more, and no deviation is
//! less than twice the distance of neighbours, the sample's deviation over its size.

use super::{Component, LARGEST, Mixture, SMALLEST, SMALLEST_RELATIVE};

/// The paper's bound on K.
const MOST_COMPONENTS: usize = 10;
/// Distances between neighbours that a component is wide at least.
const FLOOR: f64 = 2.0;
/// Larger samples are thinned to as many of their quantiles, so that a fit takes a second at most.
const MOST_VALUES: usize = 4_000;
/// Numbers of components that may be worse than the best one in a row before no more are tried.
const PATIENCE: usize = 2;
/// A round that adds less to the log-likelihood is the last.
const LEAST_GAIN: f64 = 1e-4;
const MOST_ROUNDS: usize = 500;
/// Values, parts of which may be shared, that each component needs: as many as it has parameters.
const LEAST_VALUES: f64 = 3.0;

/// A fitted mixture, and how well it fits.
#[derive(Clone, Debug, PartialEq)]
pub struct Fit {
    /// The mixture.
    pub mixture: Mixture,
    /// Values that it was fitted to.
    pub values: usize,
    /// L, the logarithm of the likelihood.
    pub log_likelihood: f64,
    /// −2L + (3K − 1)·ln n: the smaller, the better.
    pub bic: f64,
}

/// The mixture of up to `most` components (10 at most) that fits `values` best; `None` without a value.
///
/// Values that are not finite, or above 1e100, are left out. Of more than 4000 values as many quantiles are
/// taken. The number of components grows as long as one of the next two improves the criterion.
pub fn fit(values: &[f64], most: usize) -> Option<Fit> {
    let mut best: Option<Fit> = None;
    let mut worse = 0;
    for candidate in candidates(&ScaledSample::of(values)?, most) {
        if best.as_ref().is_none_or(|best| candidate.bic < best.bic) {
            (best, worse) = (Some(candidate), 0);
        } else {
            worse += 1;
        }
        if worse == PATIENCE {
            break;
        }
    }
    best
}

/// The best fits of 1, 2 … components.
fn candidates(sample: &ScaledSample, most: usize) -> impl Iterator<Item = Fit> {
    let enough = (sample.scores.len() + 1) / 3; // as many values as parameters
    let most = most.min(MOST_COMPONENTS).min(enough).max(1);
    let mut before: Option<Vec<Component>> = None;
    (1..=most).map_while(move |count| {
        let starts = sample.starts(count, before.as_deref());
        let fitted = starts.into_iter().filter_map(|start| sample.maximise(start));
        let (components, log_likelihood) = fitted.max_by(|a, b| a.1.total_cmp(&b.1))?;
        before = Some(components.clone());
        sample.fit(components, log_likelihood)
    })
}

/// A sample in order, shifted and scaled to mean 0 and deviation 1, so that no figure is too large or too
/// small to be squared.
pub(super) struct ScaledSample {
    scores: Vec<f64>,
    mean: f64,
    deviation: f64,
    /// The least deviation of a component, scaled.
    floor: f64,
    /// The fewest values that a component may be left with.
    least_values: f64,
}

impl ScaledSample {
    /// `None` without a finite value.
    pub(super) fn of(values: &[f64]) -> Option<ScaledSample> {
        let mut sorted: Vec<f64> = values.iter().copied().filter(|value| value.abs() <= LARGEST).collect();
        sorted.sort_by(f64::total_cmp);
        let sorted = thinned(sorted);
        let largest = sorted.first()?.abs().max(sorted.last()?.abs()).max(SMALLEST);
        let scaled: Vec<f64> = sorted.iter().map(|value| value / largest).collect();
        let (mean, deviation) = moments(&scaled);
        let deviation = deviation.max(SMALLEST_RELATIVE); // equal values have none
        let scores: Vec<f64> = scaled.iter().map(|value| (value - mean) / deviation).collect();
        let n = scores.len() as f64;
        let floor = FLOOR * spread(&scores) / n;
        let (mean, deviation) = (mean * largest, deviation * largest);
        Some(ScaledSample { scores, mean, deviation, floor, least_values: LEAST_VALUES.min(0.999 * n) })
    }

    pub(super) fn len(&self) -> usize {
        self.scores.len()
    }

    /// Values in order.
    pub(super) fn sorted(&self) -> impl Iterator<Item = f64> {
        self.scores.iter().map(|score| self.mean + self.deviation * score)
    }

    /// The mixture that maximises the likelihood from `start`; `None` where a component dwindles.
    pub(super) fn refit(&self, start: &Mixture) -> Option<Mixture> {
        let scaled = |component: &Component| Component {
            mean: (component.mean - self.mean) / self.deviation,
            deviation: (component.deviation / self.deviation).max(self.floor),
            ..*component
        };
        let (components, _) = self.maximise(start.components.iter().map(scaled).collect())?;
        self.unscaled(components)
    }

    fn fit(&self, components: Vec<Component>, log_likelihood: f64) -> Option<Fit> {
        let (count, n) = (components.len() as f64, self.scores.len() as f64);
        let log_likelihood = log_likelihood - n * self.deviation.ln();
        let bic = -2.0 * log_likelihood + (3.0 * count - 1.0) * n.ln();
        Some(Fit { mixture: self.unscaled(components)?, values: self.scores.len(), log_likelihood, bic })
    }

    fn unscaled(&self, components: Vec<Component>) -> Option<Mixture> {
        let unscaled = |component: Component| Component {
            mean: self.mean + self.deviation * component.mean,
            deviation: self.deviation * component.deviation,
            ..component
        };
        Mixture::new(components.into_iter().map(unscaled).collect())
    }

    /// Where to start from: equal parts of the sample, parts between its widest gaps, and the fit of one
    /// component less with each of its components split.
    fn starts(&self, count: usize, before: Option<&[Component]>) -> Vec<Vec<Component>> {
        let n = self.scores.len();
        let equal: Vec<usize> = (1..count).map(|part| part * n / count).collect();
        let mut gaps: Vec<usize> = (1..n).collect();
        gaps.sort_by(|&a, &b| {
            (self.scores[b] - self.scores[b - 1]).total_cmp(&(self.scores[a] - self.scores[a - 1]))
        });
        gaps.truncate(count - 1);
        gaps.sort_unstable();
        let mut starts = vec![self.parts(&equal), self.parts(&gaps)];
        let before = before.unwrap_or_default();
        starts.extend((0..before.len()).map(|index| split(before, index)));
        starts
    }

    /// A component for each part of the sample, which is cut before the values at `cuts`.
    fn parts(&self, cuts: &[usize]) -> Vec<Component> {
        let n = self.scores.len();
        let starts = std::iter::once(0).chain(cuts.iter().copied());
        let ends = cuts.iter().copied().chain(std::iter::once(n));
        let part = |(start, end): (usize, usize)| {
            let (mean, deviation) = moments(&self.scores[start..end]);
            let weight = (end - start) as f64 / n as f64;
            Component { weight, mean, deviation: deviation.max(self.floor) }
        };
        starts.zip(ends).map(part).collect()
    }

    /// Expectation–maximisation from `start`: the components and their log-likelihood, both scaled. `None` where a
    /// component is left without values.
    fn maximise(&self, start: Vec<Component>) -> Option<(Vec<Component>, f64)> {
        let mut components = start;
        let mut belonging = vec![0.0; components.len() * self.scores.len()];
        let mut log_likelihood = self.expect(&components, &mut belonging);
        for _ in 0..MOST_ROUNDS {
            self.update(&mut components, &belonging)?;
            let before = std::mem::replace(&mut log_likelihood, self.expect(&components, &mut belonging));
            if log_likelihood - before < LEAST_GAIN {
                break;
            }
        }
        log_likelihood.is_finite().then_some((components, log_likelihood))
    }

    /// The E-step: the share of each value that belongs to each component, component after component; returns the
    /// log-likelihood.
    fn expect(&self, components: &[Component], belonging: &mut [f64]) -> f64 {
        let n = self.scores.len();
        let half_log_two_pi = 0.5 * (2.0 * std::f64::consts::PI).ln();
        let log_heights: Vec<f64> =
            components.iter().map(|it| it.weight.ln() - it.deviation.ln() - half_log_two_pi).collect();
        let mut log_likelihood = 0.0;
        for (index, &score) in self.scores.iter().enumerate() {
            let log_density = |k: usize| log_heights[k] - 0.5 * components[k].score(score).powi(2);
            let largest = (0..components.len()).map(log_density).fold(f64::NEG_INFINITY, f64::max);
            let mut sum = 0.0;
            for k in 0..components.len() {
                let relative = (log_density(k) - largest).exp();
                belonging[k * n + index] = relative;
                sum += relative;
            }
            (0..components.len()).for_each(|k| belonging[k * n + index] /= sum);
            log_likelihood += largest + sum.ln();
        }
        log_likelihood
    }

    /// The M-step: weights, means and deviations of what belongs to each component.
    fn update(&self, components: &mut [Component], belonging: &[f64]) -> Option<()> {
        let n = self.scores.len();
        for (component, shares) in components.iter_mut().zip(belonging.chunks_exact(n)) {
            let total: f64 = shares.iter().sum();
            if total.is_nan() || total < self.least_values {
                return None;
            }
            let mean =
                shares.iter().zip(&self.scores).map(|(share, score)| share * score).sum::<f64>() / total;
            let squares: f64 =
                shares.iter().zip(&self.scores).map(|(share, x)| share * (x - mean).powi(2)).sum();
            let deviation = (squares / total).sqrt().max(self.floor);
            *component = Component { weight: total / n as f64, mean, deviation };
        }
        Some(())
    }
}

/// `components` with the one at `index` made two.
fn split(components: &[Component], index: usize) -> Vec<Component> {
    let whole = components[index];
    let half = |side: f64| Component {
        weight: 0.5 * whole.weight,
        mean: whole.mean + side * 0.7 * whole.deviation,
        deviation: 0.7 * whole.deviation,
    };
    let mut split = components.to_vec();
    split[index] = half(-1.0);
    split.insert(index + 1, half(1.0));
    split
}

/// Of too many values the middles of as many equal parts.
fn thinned(sorted: Vec<f64>) -> Vec<f64> {
    let n = sorted.len();
    if n <= MOST_VALUES {
        return sorted;
    }
    (0..MOST_VALUES).map(|part| sorted[(2 * part + 1) * n / (2 * MOST_VALUES)]).collect()
}

fn moments(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / n;
    (mean, variance.sqrt())
}

/// The deviation of scaled values in order, or the one that their quartiles show if it is smaller: a single value far
/// out widens the first alone.
fn spread(scores: &[f64]) -> f64 {
    let n = scores.len();
    let quartiles = (scores[(3 * n / 4).min(n - 1)] - scores[n / 4]) / 1.35;
    if quartiles > 0.0 { quartiles.min(1.0) } else { 1.0 }
}

/// The number of components that −2L + K·ln n chooses, as the paper prints it, where a component may close in
/// on a pair of values.
#[cfg(test)]
pub(super) fn number_as_printed(values: &[f64]) -> usize {
    let guarded = ScaledSample::of(values).unwrap();
    let sample = ScaledSample { floor: 1.5 / FLOOR * guarded.floor, least_values: 1e-3, ..guarded };
    let count = |fit: &Fit| fit.mixture.components().len();
    let criterion = |fit: &Fit| count(fit) as f64 * (fit.values as f64).ln() - 2.0 * fit.log_likelihood;
    let best = candidates(&sample, MOST_COMPONENTS).min_by(|a, b| criterion(a).total_cmp(&criterion(b)));
    best.map_or(0, |fit| count(&fit))
}
