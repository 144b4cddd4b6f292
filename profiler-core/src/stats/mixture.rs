//! Mixtures of normal distributions, for figures that gather around several values (Worms and Touati 2016).
//!
//! Run times, and what a sample costs, depend on states that last: cold and warm caches, steps of the clock's
//! frequency. Their mean may be a value that never occurs. A mixture says which values do, how often, and how
//! widely they vary; from two of them follows how versions of a program compare beyond their means.
//!
//! - [`fit`](fit()): the mixture of a sample, its number of components chosen by the data;
//! - [`goodness_of_fit`]: whether the sample could have come from it;
//! - [`Mixture::mean_difference`], [`Mixture::probability_below`], [`probability_smallest`],
//!   [`Mixture::modes`]: the paper's measures I₁ to I₄.

mod compare;
mod fit;
mod goodness;
mod modes;

pub use compare::probability_smallest;
pub use fit::{Fit, fit};
pub use goodness::{GoodnessOfFit, goodness_of_fit};

use statrs::distribution::{ContinuousCDF, Normal};

/// Means and deviations above this are no measurements, and what is made of them would overflow.
const LARGEST: f64 = 1e100;
/// The least deviation: relative to the mean (below it a normal distribution has too few floating-point numbers to
/// integrate over), and at all.
const SMALLEST_RELATIVE: f64 = 1e-12;
const SMALLEST: f64 = 1e-100;

/// One of the normal distributions of a mixture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Component {
    /// π: share of the values that come from it.
    pub weight: f64,
    /// μ: their mean.
    pub mean: f64,
    /// σ: their standard deviation.
    pub deviation: f64,
}

/// A mixture of normal distributions (Worms and Touati 2016, (1)): one component or more in the order of
/// their means, their weights summing to 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Mixture {
    components: Vec<Component>,
}

impl Mixture {
    /// A mixture of `components`, their weights brought to a sum of 1. A deviation that is less than 1e−12 of
    /// the mean, down to none, is raised to that.
    ///
    /// `None` without a component, or where one is none: a weight that is not above zero, a figure that is not finite
    /// or above 1e100, a negative deviation.
    pub fn new(mut components: Vec<Component>) -> Option<Mixture> {
        let total: f64 = components.iter().map(|component| component.weight).sum();
        if components.is_empty() || !components.iter().all(Component::is_valid) {
            return None;
        }
        for component in &mut components {
            component.weight /= total;
            component.deviation =
                component.deviation.max(SMALLEST_RELATIVE * component.mean.abs()).max(SMALLEST);
        }
        components.sort_by(|a, b| a.mean.total_cmp(&b.mean));
        Some(Mixture { components })
    }

    /// The components, in the order of their means.
    pub fn components(&self) -> &[Component] {
        &self.components
    }

    /// The mean.
    pub fn mean(&self) -> f64 {
        self.components.iter().map(|component| component.weight * component.mean).sum()
    }

    /// The density at `x` (1).
    pub fn density(&self, x: f64) -> f64 {
        self.components.iter().map(|component| component.density(x)).sum()
    }

    /// The share of values up to `x` (2).
    pub fn cdf(&self, x: f64) -> f64 {
        self.components.iter().map(|component| component.weight * phi(component.score(x))).sum()
    }

    /// A value from the mixture.
    pub fn draw(&self, rng: &mut fastrand::Rng) -> f64 {
        let mut left = rng.f64();
        let chosen = self.components.iter().find(|component| {
            left -= component.weight;
            left < 0.0
        });
        // Weights that sum to a hair less than 1 leave a draw without a component: it is the last one's.
        let component = chosen.or(self.components.last());
        component.map_or(f64::NAN, |component| component.mean + component.deviation * standard_normal(rng))
    }

    /// The share of values above `x`, precise where it is small.
    fn survival(&self, x: f64) -> f64 {
        self.components.iter().map(|component| component.weight * phi(-component.score(x))).sum()
    }
}

impl Component {
    fn is_valid(&self) -> bool {
        let weight = self.weight > 1.0 / LARGEST && self.weight <= LARGEST;
        weight && self.mean.abs() <= LARGEST && (0.0..=LARGEST).contains(&self.deviation)
    }

    fn score(&self, x: f64) -> f64 {
        (x - self.mean) / self.deviation
    }

    /// π·φ(x; μ, σ).
    fn density(&self, x: f64) -> f64 {
        let root = (2.0 * std::f64::consts::PI).sqrt();
        self.weight / (self.deviation * root) * (-0.5 * self.score(x).powi(2)).exp()
    }
}

/// Φ, the standard normal distribution's cdf; beyond 40 deviations it is 0 or 1.
fn phi(z: f64) -> f64 {
    Normal::standard().cdf(z.clamp(-40.0, 40.0))
}

/// By Box and Muller.
fn standard_normal(rng: &mut fastrand::Rng) -> f64 {
    let radius = (-2.0 * (1.0 - rng.f64()).ln()).sqrt();
    radius * (2.0 * std::f64::consts::PI * rng.f64()).cos()
}

#[cfg(test)]
mod tests;
