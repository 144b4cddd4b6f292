//! The law for a whole profile.

use super::caps::{BoundBy, Caps};
use super::criterion::{COMPENSATED_R, Criterion};
use super::error::{ModelError, positive};

/// A stretch of the target's CPU time that a profile sums up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Horizon {
    /// W: the CPU time (s).
    pub cpu_s: f64,
    /// ω: how much this profile matters beside others of the same samples; only ratios count.
    pub weight: f64,
}

impl Horizon {
    /// A profile of `cpu_s` CPU-seconds.
    pub fn new(cpu_s: f64) -> Self {
        Horizon { cpu_s, weight: 1.0 }
    }

    /// A profile in which samples fade with time constant `tau_s` (CPU-seconds): it scatters like one of 2τ, since
    /// (Σw)²/Σw² = 2λτ for weights w = exp(−t/τ).
    pub fn decayed(tau_s: f64) -> Self {
        Horizon::new(2.0 * tau_s)
    }
}

/// How the delay of one thread holds up the others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Threads {
    /// c: threads that run at the same time.
    pub count: f64,
    /// κ: wall-clock delay of the program for each second that a sample takes one of its threads; 1/c where the
    /// threads are independent, 1 where barriers make all of them wait for the one that was sampled.
    pub kappa: f64,
}

impl Threads {
    /// `count` threads that go on while one is sampled: κ = 1/c, the law for CPU time.
    pub fn independent(count: f64) -> Self {
        Threads { count, kappa: 1.0 / count }
    }

    /// `count` threads that all wait for the one sampled: κ = 1, the law for wall-clock time (Stoker, eq. 4.16).
    pub fn in_lockstep(count: f64) -> Self {
        Threads { count, kappa: 1.0 }
    }

    /// κ·c, from 1 to c: CPUs held up by a sample.
    fn held_up(self) -> Result<f64, ModelError> {
        let count = positive("the number of threads", self.count)?.max(1.0);
        Ok((positive("kappa", self.kappa)? * count).clamp(1.0, count))
    }
}

impl Default for Threads {
    fn default() -> Self {
        Threads::independent(1.0)
    }
}

/// What a profile is for and what a sample costs: all that the best rate depends on.
///
/// A sample dilates every function alike, so at λ samples a CPU-second the largest functions' seconds are off by
///
/// ```text
/// bias = λ·κc·o        deviation = S / √(λ·R·W)        (relative)
/// λ*   = ( r·S / (κc·o·√(R·W)) )^(2/3)
/// ```
///
/// and a [`Criterion`] sets r. With one function, r = z/2 and κc = R = 1 this is Stoker's eq. 4.16.
///
/// **Compensation.** Where n·ô is taken out of the CPU time before it is reported, what is left of the bias is
/// λ·(o − ô), an error around zero with deviation λ·σ_o. Variances add up, every criterion grows with their sum, and the
/// optimum is that of the mean square with σ_o in the place of o: λ* grows by (σ_o/o)^(−2/3). The controller does not
/// go there, although the seconds that are reported are compensated. In `just portfolio`, with costs known to 15%, that
/// rate halves the error (0.45 of the least uncompensated one, against 0.82) for five times the overhead; within a budget of
/// 1%, which then sets the rate nearly always, it gains a tenth (0.81 against 0.92). With costs off by 45%, more than
/// believed, it loses (0.96 against 0.83, at worst 2.5 against 1.0): σ_o, unlike o, is never known well. And what a
/// sample does to caches and queues is not taken out with its time. So the default disturbs as little as it needs to,
/// and not as much as it may.
#[derive(Clone, Debug, PartialEq)]
pub struct Law {
    criterion: Criterion,
    spread: f64,
    overhead_s: f64,
    horizons: Vec<Horizon>,
    threads: Threads,
    replicas: f64,
    overhead_se_s: Option<f64>,
}

impl Law {
    /// The law for one profile of `horizon_s` CPU-seconds (W), functions of this [`spread`] (S) and samples that
    /// charge `overhead_s` each to the target (o).
    ///
    /// Values are checked when the law is asked.
    pub fn new(criterion: Criterion, spread: f64, overhead_s: f64, horizon_s: f64) -> Self {
        Law {
            criterion,
            spread,
            overhead_s,
            horizons: vec![Horizon::new(horizon_s)],
            threads: Threads::default(),
            replicas: 1.0,
            overhead_se_s: None,
        }
    }

    /// The same samples make several profiles: λ* = (Σω·r·S/√W / (o·Σω))^(2/3).
    ///
    /// Exact for the upper curve, and for the mean square and compensation, where Σω/W takes the place of its
    /// squared root's; the mean and the percentile of the absolute error lose less than 1% by it.
    pub fn over(mut self, horizons: Vec<Horizon>) -> Self {
        self.horizons = horizons;
        self
    }

    /// The target has several threads; [`Threads::independent`] changes nothing.
    pub fn threads(mut self, threads: Threads) -> Self {
        self.threads = threads;
        self
    }

    /// R replicas of one service are sampled, and their profiles summed up: W becomes R·W, each samples R^(−1/3)
    /// as often, and the error falls by as much.
    pub fn replicas(mut self, replicas: f64) -> Self {
        self.replicas = replicas;
        self
    }

    /// What samples cost is taken out of the CPU time, with a standard error of `overhead_se_s` (σ_o) of a sample's
    /// cost. See [`Law`].
    pub fn compensated(mut self, overhead_se_s: f64) -> Self {
        self.overhead_se_s = Some(overhead_se_s);
        self
    }

    /// λ*: samples per CPU-second of the target. 0 for a spread of 0 (all time in one function): no sample can
    /// teach anything.
    ///
    /// # Errors
    /// [`ModelError::NotPositive`] where o, σ_o, a horizon, r, the threads or the replicas are not above zero (samples that
    /// cost nothing have no optimum), the spread is negative or not finite, or the result would not be finite.
    pub fn rate_hz(&self) -> Result<f64, ModelError> {
        let r = if self.overhead_se_s.is_some() { COMPENSATED_R } else { self.criterion.r() };
        let r = positive("r", r)?;
        let bias = self.bias_s()?;
        let noise = self.noise()?;
        if self.spread == 0.0 {
            return Ok(0.0);
        }
        let s = positive("the spread of the shares", self.spread)?;
        positive("the optimum", (r * s * noise / bias).powf(2.0 / 3.0))
    }

    /// The optimum within the caps. Where the law has no answer, as for samples that cost nothing, the caps decide.
    pub fn optimum(&self, caps: &Caps) -> Optimum {
        let unbounded_hz = self.rate_hz().unwrap_or(f64::INFINITY);
        let (rate_hz, bound_by) = caps.bound(unbounded_hz);
        Optimum { unbounded_hz: unbounded_hz.min(f64::MAX), rate_hz: rate_hz.clamp(0.0, f64::MAX), bound_by }
    }

    /// λ*·o: share of the target's CPU time that sampling takes at the optimum.
    ///
    /// # Errors
    /// As [`Law::rate_hz`].
    pub fn overhead_ratio(&self) -> Result<f64, ModelError> {
        Ok(self.rate_hz()? * self.overhead_s)
    }

    /// The horizon below which a budget (ratio of CPU time) and not the law sets the rate: r²S²o/(R·b³) CPU-seconds,
    /// or z²(1−p)o/(4pb³) for one function and the upper curve.
    ///
    /// # Errors
    /// As [`Law::rate_hz`], or for a budget not above zero.
    pub fn budget_binds_below_s(&self, budget_ratio: f64) -> Result<f64, ModelError> {
        let alone = Law { horizons: vec![Horizon::new(1.0)], ..self.clone() };
        let ratio = alone.overhead_ratio()? / positive("the budget", budget_ratio)?;
        Ok(ratio.powi(3)) // λ*·o falls as W^(−1/3)
    }

    /// κc·o or κc·σ_o: the bias per unit of rate (s).
    fn bias_s(&self) -> Result<f64, ModelError> {
        let o = positive("the cost of a sample", self.overhead_s)?;
        let left = self.overhead_se_s.map_or(Ok(o), |se| positive("the error of a sample's cost", se))?;
        Ok(left * self.threads.held_up()?)
    }

    /// The mean of 1/√(R·W) over the horizons, in the sense in which the criterion averages.
    fn noise(&self) -> Result<f64, ModelError> {
        let replicas = positive("the number of replicas", self.replicas)?;
        let squares = self.overhead_se_s.is_some() || self.criterion.averages_squares();
        let (mut sum, mut weights) = (0.0, 0.0);
        for horizon in &self.horizons {
            let w = positive("the horizon", horizon.cpu_s)? * replicas;
            let weight = positive("the weight of a horizon", horizon.weight)?;
            sum += weight / if squares { w } else { w.sqrt() };
            weights += weight;
        }
        let mean = positive("the horizon", sum / weights)?; // none at all is no number either
        Ok(if squares { mean.sqrt() } else { mean })
    }
}

/// What [`Law::optimum`] found (samples per CPU-second of the target).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Optimum {
    /// λ*, without bounds.
    pub unbounded_hz: f64,
    /// The least of λ* and the caps.
    pub rate_hz: f64,
    /// Which of them it is.
    pub bound_by: BoundBy,
}

/// λ* of [`Law::new`]: one profile, nothing compensated.
///
/// # Errors
/// As [`Law::rate_hz`].
pub fn optimum_rate_hz(
    criterion: Criterion,
    spread: f64,
    overhead_s: f64,
    horizon_s: f64,
) -> Result<f64, ModelError> {
    Law::new(criterion, spread, overhead_s, horizon_s).rate_hz()
}

/// A function that has less than this share of the largest one's time counts for less in [`spread`].
const SMALL_RATIO: f64 = 0.02;

/// How much the relative error of a function of this share counts beside a largest one of `largest`: fully from a
/// fiftieth of it on, and below in proportion. So a small function's time has to be known relative to a fiftieth of the largest,
/// and not to itself: where two functions have nearly all of the time, a third one does not decide the rate.
pub fn function_weight(share: f64, largest: f64) -> f64 {
    (share / (SMALL_RATIO * largest)).min(1.0)
}

/// S: the mean of √((1−p)/p) over the `top` largest shares, weighted by [`function_weight`].
///
/// Values that are not above zero are no functions and are skipped; a share of 1 or more counts as 0, since
/// nothing about it is uncertain. `None` without any share. Shares need not be sorted.
pub fn spread(shares: impl IntoIterator<Item = f64>, top: usize) -> Option<f64> {
    let mut largest: Vec<f64> = shares.into_iter().filter(|p| *p > 0.0).collect();
    let top = top.max(1);
    if largest.len() > top {
        largest.select_nth_unstable_by(top - 1, |a, b| b.total_cmp(a)); // there may be thousands
        largest.truncate(top);
    }
    largest.sort_unstable_by(|a, b| b.total_cmp(a));
    let first = *largest.first()?;
    let (sum, weights) = largest.iter().fold((0.0, 0.0), |(sum, weights), p| {
        let weight = function_weight(*p, first);
        (sum + weight * ((1.0 - p.min(1.0)) / p).sqrt(), weights + weight)
    });
    Some(sum / weights)
}

/// The loss relative to the optimum when `x` times the optimal number of samples is taken: (x + 2/√x)/3.
///
/// Exact for the upper curve; the other criteria differ by some percent within a factor of 4.
pub fn relative_loss(x: f64) -> f64 {
    (x + 2.0 / x.sqrt()) / 3.0
}
