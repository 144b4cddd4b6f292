//! The expected error of a profile.

use crate::rate::model::{Criterion, ModelError, function_weight, positive};

/// Functions whose errors are summed up: the largest.
pub const TOP: usize = 4;
/// Rates between which the best one is looked for (samples per CPU-second).
const RATES_HZ: (f64, f64) = (1e-3, 1e9);

/// A program to be profiled.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    shares: Vec<f64>,
    cpu_s: f64,
    variance_factor: f64,
}

/// What [`Workload::best`] found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Best {
    /// Samples per CPU-second.
    pub rate_hz: f64,
    /// The least expected error.
    pub time_cmape: f64,
}

impl Workload {
    /// A program that takes `cpu_s` seconds of CPU time without sampling, in functions of these shares; of them, the
    /// [`TOP`] largest are judged. Shares of zero are skipped.
    ///
    /// # Errors
    /// [`ModelError`] where a share is not in 0 to 1, all of them are 0, or the CPU time is not a finite number above zero.
    pub fn new(shares: &[f64], cpu_s: f64) -> Result<Self, ModelError> {
        if let Some(wrong) = shares.iter().find(|p| !(0.0..=1.0).contains(*p)) {
            return Err(ModelError::NotAShare(*wrong));
        }
        let mut largest: Vec<f64> = shares.iter().copied().filter(|p| *p > 0.0).collect();
        largest.sort_unstable_by(|a, b| b.total_cmp(a));
        largest.truncate(TOP);
        if largest.is_empty() {
            return Err(ModelError::NotAShare(0.0));
        }
        Ok(Workload { shares: largest, cpu_s: positive("the CPU time", cpu_s)?, variance_factor: 1.0 })
    }

    /// This workload, if its shares scatter by `factor` times the binomial variance: more for bouts longer than a
    /// period, less for a program that visits its functions regularly.
    ///
    /// # Errors
    /// [`ModelError::NotPositive`] where the factor is not a finite number above zero.
    pub fn scattering(self, factor: f64) -> Result<Self, ModelError> {
        Ok(Workload { variance_factor: positive("the variance factor", factor)?, ..self })
    }

    /// Expected time-cMAPE (a ratio, summed over up to [`TOP`] functions, small ones by their weight) at `rate_hz` samples per
    /// CPU-second. Each sample leaves `overhead_s` in the reported CPU time: its full cost, or the part that a compensation missed,
    /// which may be negative.
    ///
    /// Function i's error is normal with bias λ·o and variance v(1−p)/(pλW), its mean absolute value that of a folded
    /// normal distribution. Infinite where there are no samples, or their cost is no number.
    pub fn time_cmape(&self, rate_hz: f64, overhead_s: f64) -> f64 {
        self.error(rate_hz * overhead_s, 1.0 / rate_hz)
    }

    /// [`Self::time_cmape`] for a rate that changed during the run. `charged_ratio` is the CPU time that sampling left
    /// in the figures over that of the program, `mean_period_s` the mean of the period over its CPU time (s).
    ///
    /// Samples weigh their periods, so a stretch dt at rate λ adds p(1−p)·dt/λ to a function's variance.
    pub fn error(&self, charged_ratio: f64, mean_period_s: f64) -> f64 {
        if !(charged_ratio.is_finite() && mean_period_s.is_finite() && mean_period_s > 0.0) {
            return f64::INFINITY;
        }
        let per_function = self.shares.iter().map(|p| {
            let variance = self.variance_factor * (1.0 - p) / p * mean_period_s / self.cpu_s;
            function_weight(*p, self.shares[0])
                * Criterion::MeanAbsolute.error(charged_ratio, variance.sqrt())
        });
        per_function.sum()
    }

    /// The rate with the least expected error, by golden sections: the error is convex in the rate.
    ///
    /// # Errors
    /// [`ModelError::NotPositive`] if the cost of a sample is not a finite number above zero.
    pub fn best(&self, overhead_s: f64) -> Result<Best, ModelError> {
        let o = positive("the cost of a sample", overhead_s)?;
        let at = |log_hz: f64| self.time_cmape(log_hz.exp(), o);
        let ratio = 0.5 * (5f64.sqrt() - 1.0);
        let (mut low, mut high) = (RATES_HZ.0.ln(), RATES_HZ.1.ln());
        for _ in 0..80 {
            let cut = ratio * (high - low);
            if at(high - cut) < at(low + cut) { high = low + cut } else { low = high - cut }
        }
        let log_hz = 0.5 * (low + high);
        Ok(Best { rate_hz: log_hz.exp(), time_cmape: at(log_hz) })
    }
}
