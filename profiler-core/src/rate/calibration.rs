//! What sampling costs a machine, from pairs of runs of the same work, sampled and unsampled
//! (Saavedra-Barrera's characteriser: T = Σ C·P, solved for the C).

use super::cost::Cost;

/// Residuals beyond this many standard deviations get less weight (Huber): a disturbance by another process is not our
/// cost.
const HUBER: f64 = 1.345;
/// The median of absolute deviations of a normal distribution, inverted.
const MAD_TO_SD: f64 = 1.4826;
/// Largest figure that a measurement can have: nanoseconds of thirty years.
const LARGEST: f64 = 1e18;
/// Steps of the reweighting; it settles within ten.
const STEPS: usize = 20;
/// A pivot below this share of its column counts as zero: the counts cannot separate two costs.
const SINGULAR: f64 = 1e-9;

/// One comparison: the extra CPU time of the same work when it was sampled, and the counts of what happened to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trial<const K: usize> {
    /// CPU time sampled less CPU time unsampled (ns).
    pub extra_ns: f64,
    /// How often each of the K things happened that cost something.
    pub counts: [f64; K],
}

/// Why the costs could not be determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FitError {
    /// Fewer trials than the costs and their errors need.
    #[error("too few measurements")]
    TooFew,
    /// Two things happened always in the same proportion, or one never.
    #[error("the measurements do not tell the costs apart")]
    NotToldApart,
}

/// What each of the K things costs, with standard errors: least squares through the origin, robust against single
/// disturbed trials.
///
/// The trials must be of equal length, so that their noise is. A cost below zero is noise and becomes zero; its error
/// stays.
///
/// # Errors
///
/// If there are fewer than K + 2 trials with plausible figures, or the counts cannot separate the costs.
pub fn fit<const K: usize>(trials: &[Trial<K>]) -> Result<[Cost; K], FitError> {
    let plausible = |x: f64| x.abs() <= LARGEST; // false for NaN
    let valid = |t: &&Trial<K>| plausible(t.extra_ns) && t.counts.iter().all(|n| plausible(*n) && *n >= 0.0);
    let trials: Vec<Trial<K>> = trials.iter().filter(valid).copied().collect();
    if trials.len() < K + 2 {
        return Err(FitError::TooFew);
    }
    let mut weights = vec![1.0; trials.len()];
    let mut costs = solve(&trials, &weights)?.0;
    let mut spread = 0.0;
    for _ in 0..STEPS {
        let residuals: Vec<f64> = trials.iter().map(|trial| residual(trial, &costs)).collect();
        spread = spread_of(&residuals, K);
        weights = residuals.iter().map(|r| huber_weight(*r, spread)).collect();
        costs = solve(&trials, &weights)?.0;
    }
    let inverse = solve(&trials, &vec![1.0; trials.len()])?.1;
    let variance = variance(&trials, &costs, &weights, spread);
    let fitted = std::array::from_fn(|k| Cost::new(costs[k].max(0.0), (variance * inverse[k]).sqrt()));
    let known = |cost: &Cost| cost.mean_ns.is_finite() && cost.se_ns.is_finite();
    if fitted.iter().all(known) { Ok(fitted) } else { Err(FitError::NotToldApart) }
}

fn residual<const K: usize>(trial: &Trial<K>, costs: &[f64; K]) -> f64 {
    trial.extra_ns - trial.counts.iter().zip(costs).map(|(count, cost)| count * cost).sum::<f64>()
}

/// Standard deviation of the residuals, from their median size; the fit has used up `fitted` of them.
fn spread_of(residuals: &[f64], fitted: usize) -> f64 {
    let mut sizes: Vec<f64> = residuals.iter().map(|r| r.abs()).collect();
    sizes.sort_by(f64::total_cmp);
    MAD_TO_SD * sizes[(sizes.len() + fitted) / 2]
}

fn huber_weight(residual: f64, spread: f64) -> f64 {
    if residual.abs() <= HUBER * spread { 1.0 } else { HUBER * spread / residual.abs() }
}

/// Variance of an estimate with unit information, as Huber gives it: what the cut residuals amount to, over how many
/// were left uncut.
fn variance<const K: usize>(trials: &[Trial<K>], costs: &[f64; K], weights: &[f64], spread: f64) -> f64 {
    let n = trials.len() as f64;
    let cut = trials.iter().zip(weights).map(|(trial, w)| (w * residual(trial, costs)).powi(2)).sum::<f64>();
    let uncut = weights.iter().filter(|w| **w == 1.0).count() as f64 / n;
    let correction = 1.0 + K as f64 / n * (1.0 - uncut) / uncut.max(0.1);
    if spread > 0.0 { correction.powi(2) * cut / (n - K as f64) / uncut.max(0.1).powi(2) } else { 0.0 }
}

/// The weighted least-squares solution, and the diagonal of the inverse of the normal matrix.
fn solve<const K: usize>(trials: &[Trial<K>], weights: &[f64]) -> Result<([f64; K], [f64; K]), FitError> {
    let scale: [f64; K] =
        std::array::from_fn(|k| trials.iter().map(|trial| trial.counts[k].powi(2)).sum::<f64>().sqrt());
    if scale.iter().any(|s| !(s.is_finite() && *s > 0.0)) {
        return Err(FitError::NotToldApart);
    }
    let mut normal = [[0.0; K]; K];
    let mut moment = [0.0; K];
    for (trial, w) in trials.iter().zip(weights) {
        let x: [f64; K] = std::array::from_fn(|k| trial.counts[k] / scale[k]);
        for i in 0..K {
            moment[i] += w * x[i] * trial.extra_ns;
            (0..K).for_each(|j| normal[i][j] += w * x[i] * x[j]);
        }
    }
    let inverse = inverse(normal).ok_or(FitError::NotToldApart)?;
    let costs = std::array::from_fn(|i| (0..K).map(|j| inverse[i][j] * moment[j]).sum::<f64>() / scale[i]);
    Ok((costs, std::array::from_fn(|i| inverse[i][i] / scale[i].powi(2))))
}

/// The inverse of a symmetric positive matrix with a diagonal of about one, by elimination.
fn inverse<const K: usize>(mut a: [[f64; K]; K]) -> Option<[[f64; K]; K]> {
    let mut b = [[0.0; K]; K];
    (0..K).for_each(|i| b[i][i] = 1.0);
    for i in 0..K {
        let pivot = a[i][i];
        if pivot.is_nan() || pivot < SINGULAR {
            return None;
        }
        (a[i], b[i]) = (a[i].map(|x| x / pivot), b[i].map(|x| x / pivot));
        for row in (0..K).filter(|row| *row != i) {
            let factor = a[row][i];
            let minus = |x: [f64; K], y: [f64; K]| std::array::from_fn(|k| x[k] - factor * y[k]);
            (a[row], b[row]) = (minus(a[row], a[i]), minus(b[row], b[i]));
        }
    }
    Some(b)
}

#[cfg(test)]
mod tests;
