//! What measured errors say about the cost of a sample and the scatter of shares.

/// The error of one function in one run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Observation {
    /// Samples taken over the CPU time that the program takes without sampling (1/s).
    pub rate_hz: f64,
    /// CPU time that the program takes without sampling (s).
    pub cpu_s: f64,
    /// The function's true share.
    pub share: f64,
    /// The profile's CPU seconds for it over the true ones, less one; with its sign.
    pub error_ratio: f64,
}

/// What [`fit`] found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fit {
    /// o: what a sample leaves in the reported CPU time, over all rates (s).
    pub overhead_s: f64,
    /// Its standard error (s).
    pub overhead_se_s: f64,
    /// v: variance of the shares over the binomial one.
    pub variance_factor: f64,
    /// Observations that could be used.
    pub observations: usize,
}

/// One o and one v for observations at all rates, with most likelihood where errors are normal with mean λ·o and variance
/// v(1−p)/(pλW): weighted least squares through the origin, in closed form.
///
/// Observations of functions that take all the time, or hold no number, are left out; the functions of a run count as
/// independent. `None` with fewer than two, or where all agree to the last digit.
pub fn fit(observations: &[Observation]) -> Option<Fit> {
    let usable: Vec<(f64, f64, f64)> = observations.iter().filter_map(weighted).collect();
    let sum = |term: fn(&(f64, f64, f64)) -> f64| usable.iter().map(term).sum::<f64>();
    let squares = sum(|(rate, _, weight)| rate * rate * weight);
    let overhead_s = sum(|(rate, error, weight)| rate * error * weight) / squares;
    let residual: f64 = usable.iter().map(|(rate, e, weight)| weight * (e - rate * overhead_s).powi(2)).sum();
    let variance_factor = residual / (usable.len().checked_sub(1)? as f64);
    let found = Fit {
        overhead_s,
        overhead_se_s: (variance_factor / squares).sqrt(),
        variance_factor,
        observations: usable.len(),
    };
    let valid = overhead_s.is_finite() && found.overhead_se_s.is_finite() && variance_factor > 0.0;
    (valid && variance_factor.is_finite()).then_some(found)
}

/// Rate, error and the reciprocal of the binomial variance.
fn weighted(seen: &Observation) -> Option<(f64, f64, f64)> {
    let above_zero = |x: f64| x.is_finite() && x > 0.0;
    let weight = seen.share * seen.rate_hz * seen.cpu_s / (1.0 - seen.share);
    let usable = above_zero(seen.rate_hz) && above_zero(seen.share) && above_zero(weight);
    (usable && seen.error_ratio.is_finite()).then_some((seen.rate_hz, seen.error_ratio, weight))
}
