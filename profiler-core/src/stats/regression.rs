//! What operations cost, followed in the field: recursive least squares on T = Σ Cᵢ·Pᵢ (Saavedra-Barrera
//! 1988, 3.5) that forgets, and that outliers cannot pull away (Huber).
//!
//! Each observation is counts Cᵢ and the time T that they took. The squares of observations long past weigh
//! less and less, so parameters that change are followed. A residual above three standard deviations of the
//! noise weighs as if it were three: an outlier moves the estimate by a bounded amount. The noise is the median
//! of the last residuals, which up to half of them cannot spoil; after a step of the parameters, all residuals
//! are large, the noise follows them, and the step is believed.
//!
//! The priors are never forgotten. They decide alone where the counts tell nothing, and no direction that went
//! unseen for long runs away.
//!
//! Limits. Outliers on one side shift the estimate by about their share times three times the noise. One
//! noise is taken for all observations: they should be of equal length, or counts and time divided alike.

use std::collections::VecDeque;

use super::characterise::Parameters;
use super::cholesky::{Cholesky, dot};

/// Residuals whose median gives the noise.
const RESIDUALS: usize = 101;
/// Residuals below which the noise is not known, and the priors say how far off an observation may be.
const FEWEST_RESIDUALS: usize = 10;
/// The median of a normal variable's absolute value is its standard deviation over this.
const DEVIATION_PER_MEDIAN: f64 = 1.482_602_218_505_602;
/// Noise below this part of the observed times is rounding.
const SMALLEST_NOISE: f64 = 1e-6;
/// Least variance of the noise that is calculated with: where nothing was observed, or every observation was zero.
const SMALLEST_VARIANCE: f64 = 1e-100;
/// A prior weighs at least this part of what was observed, so that counts that always go together can be told apart.
const SMALLEST_PRIOR: f64 = 1e-10;
/// Part of the terms of a sum below which it may be nothing but their rounding.
const ROUNDING: f64 = 1e-9;
/// Counts, times and priors above this are no measurements, and their squares would overflow.
const LARGEST_FIGURE: f64 = 1e20;
/// Estimates further than this from their priors, and noise above it, come of figures that cannot be; their squares
/// would overflow.
const LARGEST_ESTIMATE: f64 = 1e40;

/// What is known of a parameter before it was observed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prior {
    /// Mean, in the unit of the times for one operation.
    pub mean: f64,
    /// Standard deviation; the wider, the less the prior weighs.
    pub standard_deviation: f64,
}

/// How a [`RobustRegression`] learns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RegressionSettings {
    /// What remains of an observation's weight after the next one, in 0 … 1; .999 remembers a thousand.
    pub forgetting: f64,
    /// Residuals above this many standard deviations of the noise are outliers.
    pub outlier: f64,
    /// Whether a parameter below zero is impossible, as for a cost.
    pub nonnegative: bool,
}

impl Default for RegressionSettings {
    fn default() -> Self {
        RegressionSettings { forgetting: 0.999, outlier: 3.0, nonnegative: true }
    }
}

/// Follows the parameters P of T = Σ Cᵢ·Pᵢ.
///
/// Inside, a parameter is u = (P − prior mean)/prior deviation, so that all have the same prior and one
/// scale.
#[derive(Clone, Debug)]
pub struct RobustRegression {
    priors: Vec<Prior>,
    settings: RegressionSettings,
    /// Σ w·c·cᵀ and Σ w·c·y with forgetting weights; c are counts times prior deviations, y the time beyond the
    /// priors'.
    squares: Vec<Vec<f64>>,
    products: Vec<f64>,
    /// Σ w²·c·cᵀ, of which the estimate's variance is made.
    noise_squares: Vec<Vec<f64>>,
    /// The mean square of the times that were expected, which outliers do not reach.
    level: f64,
    /// The absolute residuals of the last observations.
    residuals: VecDeque<f64>,
    /// Standard deviation of an observation around the model.
    noise: f64,
}

impl RobustRegression {
    /// A regression that knows its priors alone. A prior or a setting that is none (not finite, enormous, a
    /// deviation that is not above zero) is replaced: by zero with a deviation of one, or the default.
    pub fn new(priors: &[Prior], settings: RegressionSettings) -> Self {
        let size = priors.len();
        let default = RegressionSettings::default();
        let forgetting =
            if (0.0..=1.0).contains(&settings.forgetting) { settings.forgetting } else { default.forgetting };
        let outlier = if settings.outlier > 0.0 { settings.outlier } else { default.outlier };
        RobustRegression {
            priors: priors.iter().copied().map(Prior::sane).collect(),
            settings: RegressionSettings { forgetting, outlier, ..settings },
            squares: vec![vec![0.0; size]; size],
            products: vec![0.0; size],
            noise_squares: vec![vec![0.0; size]; size],
            level: 0.0,
            residuals: VecDeque::with_capacity(RESIDUALS),
            noise: 0.0,
        }
    }

    /// Takes in that operations run `counts` times took `time`; returns by how much that is more than was
    /// expected. `None`, and nothing is learnt, when the counts are not one a parameter or a figure is not
    /// finite or above 1e20.
    pub fn observe(&mut self, counts: &[f64], time: f64) -> Option<f64> {
        let sound = |x: &f64| x.abs() <= LARGEST_FIGURE;
        if counts.len() != self.priors.len() || !counts.iter().all(sound) || !sound(&time) {
            return None;
        }
        let c: Vec<f64> =
            counts.iter().zip(&self.priors).map(|(n, prior)| n * prior.standard_deviation).collect();
        let by_priors: f64 = counts.iter().zip(&self.priors).map(|(n, prior)| n * prior.mean).sum();
        let expected = by_priors + dot(&c, &self.solution());
        let residual = time - expected;
        let bound = self.settings.outlier * self.usual_residual(&c);
        let weight = if residual.abs() > bound { bound / residual.abs() } else { 1.0 };
        self.remember(&c, time - by_priors, weight);
        self.remember_noise(residual, expected);
        Some(residual)
    }

    /// The parameters as they are known now, with the covariance of their errors.
    pub fn parameters(&self) -> Parameters {
        let values = self.solution().iter().zip(&self.priors).map(|(u, prior)| prior.of(*u)).collect();
        let mut covariance = self.covariance();
        for (row, prior) in covariance.iter_mut().zip(&self.priors) {
            for (value, other) in row.iter_mut().zip(&self.priors) {
                *value *= prior.standard_deviation * other.standard_deviation;
            }
        }
        Parameters::new(values, covariance)
    }

    /// Standard deviation of an observation around the model, in the unit of the times; 0 before there is one.
    pub fn noise(&self) -> f64 {
        self.noise
    }

    /// How far off an observation usually is: by the noise; by what the priors leave open until that is known.
    fn usual_residual(&self, c: &[f64]) -> f64 {
        if self.residuals.len() < FEWEST_RESIDUALS { self.noise.max(dot(c, c).sqrt()) } else { self.noise }
    }

    fn remember(&mut self, c: &[f64], y: f64, weight: f64) {
        let keep = self.settings.forgetting;
        for (i, &ci) in c.iter().enumerate() {
            self.products[i] = keep * self.products[i] + weight * ci * y;
            for (j, &cj) in c.iter().enumerate() {
                let square = weight * ci * cj;
                self.squares[i][j] = keep * self.squares[i][j] + square;
                self.noise_squares[i][j] = keep * keep * self.noise_squares[i][j] + weight * square;
            }
        }
    }

    fn remember_noise(&mut self, residual: f64, expected: f64) {
        self.residuals.push_back(residual.abs());
        if self.residuals.len() > RESIDUALS {
            self.residuals.pop_front();
        }
        self.level += (expected * expected - self.level) / self.residuals.len() as f64;
        let seen = DEVIATION_PER_MEDIAN * median(self.residuals.iter().copied().collect());
        self.noise = seen.max(SMALLEST_NOISE * self.level.sqrt()).min(LARGEST_ESTIMATE);
    }

    /// What each prior weighs: as many squares as the noise makes it worth.
    fn prior_squares(&self) -> Vec<f64> {
        let variance = self.variance();
        self.squares.iter().enumerate().map(|(i, row)| variance.max(SMALLEST_PRIOR * row[i])).collect()
    }

    fn variance(&self) -> f64 {
        self.noise.powi(2).max(SMALLEST_VARIANCE)
    }

    /// u of the smallest weighted squares. Where parameters may not be negative, it is the smallest under that condition: a
    /// parameter is let go from zero where the data pull it up, and the way to the solution that this makes ends where
    /// another one reaches zero (Lawson and Hanson), so that no set of them comes again.
    fn solution(&self) -> Vec<f64> {
        let priors = self.prior_squares();
        let lowest: Vec<f64> =
            self.priors.iter().map(|prior| prior.lowest(self.settings.nonnegative)).collect();
        let free = self.solve(&priors, &vec![false; lowest.len()], &lowest);
        let is_allowed = free.iter().zip(&lowest).all(|(u, lowest)| u >= lowest);
        let u = if is_allowed { free } else { self.bounded_solution(&priors, &lowest) };
        u.iter()
            .zip(&lowest)
            .map(|(u, lowest)| u.max(*lowest).clamp(-LARGEST_ESTIMATE, LARGEST_ESTIMATE))
            .collect()
    }

    fn bounded_solution(&self, priors: &[f64], lowest: &[f64]) -> Vec<f64> {
        let mut pinned: Vec<bool> = lowest.iter().map(|lowest| lowest.is_finite()).collect();
        let mut u = self.solve(priors, &pinned, lowest);
        // It ends by itself; the bound is for what rounding might send in a circle.
        for _ in 0..4 * lowest.len() {
            let Some(pulled) = self.pulled_up(priors, &pinned, &u) else { break };
            pinned[pulled] = false;
            let mut next = self.solve(priors, &pinned, lowest);
            while let Some((stopped, part)) = first_stop(&u, &next, &pinned, lowest) {
                u.iter_mut().zip(&next).for_each(|(u, next)| *u += part * (next - *u));
                (u[stopped], pinned[stopped]) = (lowest[stopped], true);
                next = self.solve(priors, &pinned, lowest);
            }
            u = next;
        }
        u
    }

    /// The pinned parameter that the data pull up most, by the scale of each, beyond rounding.
    fn pulled_up(&self, priors: &[f64], pinned: &[bool], u: &[f64]) -> Option<usize> {
        let pull = |i: usize| {
            let (squares, own) = (&self.squares[i], priors[i] * u[i]);
            let terms: f64 = squares.iter().zip(u).map(|(square, u)| (square * u).abs()).sum();
            let rounding = ROUNDING * (terms + own.abs() + self.products[i].abs());
            let pull = self.products[i] - dot(squares, u) - own;
            (pull > rounding).then(|| pull / (squares[i] + priors[i]).sqrt())
        };
        let pulls = (0..u.len()).filter(|&i| pinned[i]).filter_map(|i| Some((i, pull(i)?)));
        pulls.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(i, _)| i)
    }

    /// Solves for the parameters that are not pinned to their lowest.
    fn solve(&self, priors: &[f64], pinned: &[bool], lowest: &[f64]) -> Vec<f64> {
        let free: Vec<usize> = (0..pinned.len()).filter(|&i| !pinned[i]).collect();
        let held = |i: usize| if pinned[i] { lowest[i] } else { 0.0 };
        let mut u: Vec<f64> = (0..pinned.len()).map(held).collect();
        let right: Vec<f64> = free.iter().map(|&i| self.products[i] - dot(&self.squares[i], &u)).collect();
        if let Ok(factor) = Cholesky::new(&self.normal_matrix(priors, &free)) {
            free.iter().zip(factor.solve(&right)).for_each(|(&i, value)| u[i] = value);
        }
        u
    }

    fn normal_matrix(&self, priors: &[f64], free: &[usize]) -> Vec<Vec<f64>> {
        let entry = |i: usize, j: usize| self.squares[i][j] + if i == j { priors[i] } else { 0.0 };
        free.iter().map(|&i| free.iter().map(|&j| entry(i, j)).collect()).collect()
    }

    /// A⁻¹·(R² + σ²·Σ w²·c·cᵀ)·A⁻¹ with A = R + Σ w·c·cᵀ, R the priors' weights: what the priors' errors and the
    /// noise make of the estimate. Without an observation it is the priors' own.
    fn covariance(&self) -> Vec<Vec<f64>> {
        let all: Vec<usize> = (0..self.priors.len()).collect();
        let (priors, variance) = (self.prior_squares(), self.variance());
        let Ok(factor) = Cholesky::new(&self.normal_matrix(&priors, &all)) else {
            return all
                .iter()
                .map(|&i| all.iter().map(|&j| if i == j { 1.0 } else { 0.0 }).collect())
                .collect();
        };
        let inverse = factor.inverse();
        let middle = |i: usize, j: usize| {
            variance * self.noise_squares[i][j] + if i == j { priors[i].powi(2) } else { 0.0 }
        };
        let columns =
            |row: &Vec<f64>| all.iter().map(|&j| all.iter().map(|&k| row[k] * middle(k, j)).sum()).collect();
        let half: Vec<Vec<f64>> = inverse.iter().map(columns).collect();
        half.iter().map(|row| inverse.iter().map(|column| dot(row, column)).collect()).collect()
    }
}

/// On the way from `u` to `next`: the free parameter that reaches its lowest first, and which part of the way that is.
fn first_stop(u: &[f64], next: &[f64], pinned: &[bool], lowest: &[f64]) -> Option<(usize, f64)> {
    let part = |i: usize| ((u[i] - lowest[i]) / (u[i] - next[i])).clamp(0.0, 1.0);
    let stops = (0..u.len()).filter(|&i| !pinned[i] && next[i] < lowest[i]).map(|i| (i, part(i)));
    stops.min_by(|a, b| a.1.total_cmp(&b.1))
}

impl Prior {
    fn sane(self) -> Prior {
        let sound = |x: f64| x.abs() <= LARGEST_FIGURE;
        let deviation = self.standard_deviation;
        let valid = sound(self.mean) && sound(deviation) && deviation >= 1.0 / LARGEST_FIGURE;
        if valid { self } else { Prior { mean: 0.0, standard_deviation: 1.0 } }
    }

    fn of(self, u: f64) -> f64 {
        self.mean + self.standard_deviation * u
    }

    /// The lowest u that the parameter may have.
    fn lowest(self, nonnegative: bool) -> f64 {
        if nonnegative { -self.mean / self.standard_deviation } else { f64::NEG_INFINITY }
    }
}

/// The lower median; 0 without values.
fn median(mut values: Vec<f64>) -> f64 {
    let middle = values.len().saturating_sub(1) / 2;
    if values.is_empty() { 0.0 } else { *values.select_nth_unstable_by(middle, f64::total_cmp).1 }
}

#[cfg(test)]
mod tests;
