//! One function, one run: the closed form.

use serde::Serialize;

use super::error::{ModelError, positive};
use super::law::relative_loss;

/// A run to be planned: one function of interest, a known length, a known cost of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experiment {
    z: f64,
    run_s: f64,
    share: f64,
    overhead_s: f64,
    /// N: moments that could be sampled.
    population: f64,
}

impl Experiment {
    /// A run of `run_s` CPU seconds in which the function takes `share`, at `overhead_s` a sample, judged by
    /// intervals of standard score `z`.
    ///
    /// # Errors
    /// [`ModelError`] where one is not a finite number above zero, or the share is above 1.
    pub fn new(z: f64, run_s: f64, share: f64, overhead_s: f64) -> Result<Self, ModelError> {
        if !(share > 0.0 && share <= 1.0) {
            return Err(ModelError::NotAShare(share));
        }
        let z = positive("z", z)?;
        let run_s = positive("the length of the run", run_s)?;
        let overhead_s = positive("the cost of a sample", overhead_s)?;
        let experiment = Experiment { z, run_s, share, overhead_s, population: f64::INFINITY };
        // The answers must be numbers, too: 1e300 seconds at 1e-300 a sample are not a run.
        let plan = experiment.plan();
        let (n, time) = (plan.optimum_samples, plan.time_at_optimum_s);
        let figures = [n, plan.rate_hz, time.low, time.high, plan.crossing_samples, plan.overhead_ratio];
        let finite = figures.iter().all(|figure| figure.is_finite());
        if finite { Ok(experiment) } else { Err(ModelError::NotPositive { name: "the optimum", value: n }) }
    }

    /// The same run when only `moments` (N) can be told apart and none is sampled twice, as in Stoker's simulation:
    /// the deviation then shrinks by √((N−n)/(N−1)). It matters above 5% of N; a live program has no such limit.
    ///
    /// # Errors
    /// [`ModelError::NotPositive`] where N is not a finite number above 1.
    pub fn in_population(self, moments: f64) -> Result<Self, ModelError> {
        positive("the population less one", moments - 1.0)?;
        Ok(Experiment { population: moments, ..self })
    }

    /// n* = (z·T·√(p(1−p)) / (2·o·p))^(2/3) (Stoker, eq. 4.16); 0 for a share of 1.
    ///
    /// In a population of N it is the lesser root of n³(N−n) = n*³N²/(N−1), a little more; and all of N where there is
    /// no root, because the upper curve falls to the end.
    pub fn optimum_samples(&self) -> f64 {
        let (p, t, all) = (self.share, self.run_s, self.population);
        let n = (self.z * t * (p * (1.0 - p)).sqrt() / (2.0 * self.overhead_s * p)).powf(2.0 / 3.0);
        if !all.is_finite() {
            return n;
        }
        let wanted = (n / all).powi(3) * all / (all - 1.0);
        let rises = |x: f64| x.powi(3) * (1.0 - x);
        if wanted < rises(0.75) { all * bisect(0.75, |x| rises(x) < wanted) } else { all }
    }

    /// n×, where the lower curve crosses the truth: even the optimistic end of the interval overstates from
    /// there.
    pub fn crossing_samples(&self) -> f64 {
        let all = self.population;
        if !all.is_finite() {
            return 2f64.powf(2.0 / 3.0) * self.optimum_samples();
        }
        let n = Experiment { population: f64::INFINITY, ..*self }.optimum_samples();
        let wanted = 4.0 * (n / all).powi(3) * all / (all - 1.0);
        all * bisect(1.0, |x| x.powi(3) < wanted * (1.0 - x))
    }

    /// t(n) = T·p + n·o·p ± z·T·√(p(1−p)/n): where the function's measured time will lie (Stoker, eq. 4.12,
    /// 4.13); its upper end over n is the curve of eq. 4.14.
    ///
    /// Zero samples say nothing: the interval is then the whole run.
    pub fn time_s(&self, samples: f64) -> TimeInterval {
        let (p, t) = (self.share, self.run_s);
        if samples.is_nan() || samples <= 0.0 {
            return TimeInterval { low: 0.0, mean: t * p, high: t };
        }
        let mean = t * p + samples * self.overhead_s * p;
        let half = self.z * t * (p * (1.0 - p) / samples * self.unseen(samples)).sqrt();
        TimeInterval { low: mean - half, mean, high: mean + half }
    }

    /// (N−n)/(N−1): 1 in an infinite population, 0 once all was sampled.
    fn unseen(&self, samples: f64) -> f64 {
        let all = self.population;
        if all.is_finite() { (all - samples).max(0.0) / (all - 1.0) } else { 1.0 }
    }

    /// The figures a person plans with.
    pub fn plan(&self) -> ExperimentPlan {
        let n = self.optimum_samples();
        ExperimentPlan {
            optimum_samples: n,
            rate_hz: n / self.run_s,
            time_at_optimum_s: self.time_s(n),
            crossing_samples: self.crossing_samples(),
            overhead_ratio: n * self.overhead_s / self.run_s,
            loss_at_half: relative_loss(0.5),
            loss_at_double: relative_loss(2.0),
        }
    }
}

/// The end of the stretch from 0 on, up to `high`, in which `below` holds.
fn bisect(mut high: f64, below: impl Fn(f64) -> bool) -> f64 {
    let mut low = 0.0;
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if below(middle) { low = middle } else { high = middle }
    }
    low
}

/// Where a function's measured time will lie (s).
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TimeInterval {
    /// Lower end.
    #[serde(rename = "low_s")]
    pub low: f64,
    /// Expected value, the dilation by sampling included.
    #[serde(rename = "mean_s")]
    pub mean: f64,
    /// Upper end.
    #[serde(rename = "high_s")]
    pub high: f64,
}

/// What [`Experiment::plan`] found.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ExperimentPlan {
    /// Samples at the optimum, n*.
    pub optimum_samples: f64,
    /// Samples per CPU-second at the optimum.
    pub rate_hz: f64,
    /// The function's measured time at the optimum.
    pub time_at_optimum_s: TimeInterval,
    /// Samples at which the lower curve crosses the truth, n×.
    pub crossing_samples: f64,
    /// Share of the run's CPU time spent on sampling at the optimum.
    pub overhead_ratio: f64,
    /// Loss at half the optimal number of samples, relative to the optimum.
    pub loss_at_half: f64,
    /// Loss at twice the optimal number of samples, relative to the optimum.
    pub loss_at_double: f64,
}
