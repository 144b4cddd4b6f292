//! What the runs say: how long each took, and one model of the errors for all rates and shapes.

use profiler_core::rate::Criterion;
use serde::Serialize;

use super::cost::{Curve, FittedCost, falling};
use super::design::{Arm, SHAPES, Shape, TOP};

/// Variance factors that are looked for.
const FACTORS: (f64, f64) = (0.05, 50.0);
/// Steps of a golden-section search, after which the interval is a ten-thousandth of the first.
const SEARCH_STEPS: usize = 24;
/// Rates that are looked at for the best one (samples per CPU-second).
const RATES: (f64, f64) = (5.0, 50_000.0);
const RATE_STEPS: usize = 240;

/// What a run was found to be.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Observation {
    /// Index into [`SHAPES`].
    #[serde(skip)]
    pub(super) shape: usize,
    /// Name of the shape.
    pub(super) program: &'static str,
    /// How it was sampled.
    pub(super) arm: Arm,
    /// C: CPU time, samples included (s): that of its shape's unsampled runs and what this one took beyond its twin.
    pub(super) cpu_s: f64,
    /// CPU time that the scheduler charged to it (s).
    pub(super) charged_cpu_s: f64,
    /// What it took more than its twin, relative to that; `None` of a run too short to tell.
    pub(super) excess_ratio: Option<f64>,
    /// n.
    pub(super) samples: u64,
    /// The last rate (samples per CPU-second).
    pub(super) rate_hz: f64,
    /// The cost of a sample that the profiler measured (µs).
    pub(super) overhead_us: f64,
    /// Its standard error, as the profiler states it (µs).
    pub(super) overhead_se_us: f64,
    /// Shares that the profile gives the functions that are judged.
    #[serde(rename = "shares_ratio")]
    pub(super) shares: [f64; TOP],
}

impl Observation {
    pub(super) fn n(&self) -> f64 {
        self.samples as f64
    }

    /// The shape it has.
    pub(super) fn shape(&self) -> &'static Shape {
        &SHAPES[self.shape]
    }

    /// Errors of the functions' CPU times relative to the truth, `true_s` being that of the whole program: as
    /// profiled, which is what the law makes small, or with the cost of the samples taken off.
    pub(super) fn errors(&self, true_s: f64, compensated: bool) -> [f64; TOP] {
        let cost_s = if compensated { self.n() * self.overhead_us * 1e-6 } else { 0.0 };
        let top = self.shape().top();
        std::array::from_fn(|index| self.shares[index] * (self.cpu_s - cost_s) / (top[index] * true_s) - 1.0)
    }
}

/// One model of all errors: E = o(ν)·n/T, variance = v·(C/T)²·(1−p)/(p·n) + τ²·(C/T)², relative to the truth.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Model {
    /// o(ν): o₁ by the errors, and how it falls by the CPU times.
    #[serde(flatten)]
    pub(super) curve: Curve,
    /// v: the variance of a share as a multiple of the binomial one.
    #[serde(rename = "variance_ratio")]
    pub(super) variance: f64,
    /// τ: deviation of a run's CPU time, the truth's own included, relative.
    pub(super) noise_ratio: f64,
}

/// Sets each run's CPU time against its twin's: the machine's whims met both. No two twins are quite alike: what the
/// unsampled runs took beyond theirs, all together, is taken off. A run too short for that keeps what it was charged.
pub(super) fn settle(runs: &mut [Observation]) {
    let is_unsampled = |run: &&Observation| run.arm == Arm::Unsampled;
    let usual = median(runs.iter().filter(is_unsampled).filter_map(|run| run.excess_ratio)).unwrap_or(0.0);
    for shape in 0..SHAPES.len() {
        let unsampled = runs.iter().filter(is_unsampled).filter(|run| run.shape == shape);
        let Some(true_s) = median(unsampled.map(|run| run.charged_cpu_s)) else { continue };
        for run in runs.iter_mut().filter(|run| run.shape == shape) {
            run.cpu_s = run.excess_ratio.map_or(run.charged_cpu_s, |excess| true_s * (1.0 + excess - usual));
        }
    }
}

/// The true CPU time of each shape's program (s): the median of the unsampled runs. `None` without any.
pub(super) fn truth(runs: &[&Observation]) -> Option<[f64; SHAPES.len()]> {
    let mut times = [0.0; SHAPES.len()];
    for (shape, time) in times.iter_mut().enumerate() {
        let unsampled = runs.iter().filter(|run| run.shape == shape && run.arm == Arm::Unsampled);
        *time = median(unsampled.map(|run| run.cpu_s)).filter(|time| *time > 0.0)?;
    }
    Some(times)
}

/// The median, if there are numbers.
pub(super) fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    Some(0.5 * (sorted[(sorted.len() - 1) / 2] + upper))
}

/// A function's error in a run at a fixed rate, with what explains it.
struct Term {
    error: f64,
    /// n/T·(ν/1,000)^−β: what a second of o₁ adds.
    per_overhead: f64,
    /// (C/T)²·(1−p)/(p·n).
    binomial: f64,
    /// τ²·(C/T)².
    noise: f64,
}

/// The most likely o₁ and v of the model, given how the cost falls and the noise; by weighted least squares for o₁ at each v.
/// `None` without a run that was sampled.
pub(super) fn model(runs: &[&Observation], truth: &[f64; SHAPES.len()], cost: &FittedCost) -> Option<Model> {
    let unsampled = runs.iter().filter(|run| run.arm == Arm::Unsampled).count() / SHAPES.len();
    let noise_ratio = cost.noise_ratio * (1.0 + 1.0 / unsampled.max(1) as f64).sqrt();
    let sampled = runs.iter().filter(|run| matches!(run.arm, Arm::Fixed(_)) && run.samples > 0);
    let exponent = cost.curve.exponent;
    let terms: Vec<Term> =
        sampled.flat_map(|run| terms(run, truth[run.shape], exponent, noise_ratio)).collect();
    if terms.is_empty() {
        return None;
    }
    let log_v = golden_section(FACTORS.0.ln(), FACTORS.1.ln(), |log_v| {
        let v = log_v.exp();
        unlikelihood(&terms, overhead(&terms, v), v)
    });
    let variance = log_v.exp();
    Some(Model { curve: cost.curve.with_cost(overhead(&terms, variance)), variance, noise_ratio })
}

fn terms(run: &Observation, true_s: f64, exponent: f64, noise_ratio: f64) -> impl Iterator<Item = Term> {
    let (n, dilation) = (run.n(), (run.cpu_s / true_s).powi(2));
    let per_overhead = n / true_s * falling(n / true_s, exponent);
    run.errors(true_s, false).into_iter().zip(run.shape().top()).map(move |(error, p)| Term {
        error,
        per_overhead,
        binomial: dilation * (1.0 - p) / (p * n),
        noise: dilation * noise_ratio * noise_ratio,
    })
}

impl Term {
    fn variance(&self, v: f64) -> f64 {
        v * self.binomial + self.noise
    }
}

fn overhead(terms: &[Term], v: f64) -> f64 {
    let sums = terms.iter().fold((0.0, 0.0), |(products, squares), term| {
        let weighted = term.per_overhead / term.variance(v);
        (products + weighted * term.error, squares + weighted * term.per_overhead)
    });
    sums.0 / sums.1
}

/// The negative logarithm of the likelihood, but for a constant.
fn unlikelihood(terms: &[Term], overhead_s: f64, v: f64) -> f64 {
    let of = |term: &Term| {
        let variance = term.variance(v);
        0.5 * (variance.ln() + (term.error - overhead_s * term.per_overhead).powi(2) / variance)
    };
    terms.iter().map(of).sum()
}

/// Where a function with one minimum between the ends has it.
pub(super) fn golden_section(mut low: f64, mut high: f64, f: impl Fn(f64) -> f64) -> f64 {
    const RATIO: f64 = 0.618_033_988_749_894_9;
    let (mut a, mut b) = (high - RATIO * (high - low), low + RATIO * (high - low));
    let (mut f_a, mut f_b) = (f(a), f(b));
    for _ in 0..SEARCH_STEPS {
        if f_a < f_b {
            (high, b, f_b) = (b, a, f_a);
            a = high - RATIO * (high - low);
            f_a = f(a);
        } else {
            (low, a, f_a) = (a, b, f_b);
            b = low + RATIO * (high - low);
            f_b = f(b);
        }
    }
    0.5 * (low + high)
}

impl Model {
    /// Expected cMAPE at λ samples per CPU-second: the sum over the judged functions of the mean absolute error
    /// relative to the truth (Stoker, eq. 5.1), that of a folded normal distribution. `None` where samples leave
    /// the program no time.
    pub(super) fn cmape(&self, shape: &Shape, true_s: f64, rate_hz: f64) -> Option<f64> {
        if rate_hz <= 0.0 {
            return None;
        }
        let dilated = self.curve.dilated(rate_hz)?;
        let (n, bias, dilation) = (dilated.rate_hz * true_s, dilated.added, 1.0 + dilated.added);
        let deviation =
            |p: f64| dilation * (self.variance * (1.0 - p) / (p * n) + self.noise_ratio.powi(2)).sqrt();
        Some(shape.top().into_iter().map(|p| Criterion::MeanAbsolute.error(bias, deviation(p))).sum())
    }

    /// The rate with the least expected cMAPE, and that cMAPE.
    pub(super) fn best(&self, shape: &Shape, true_s: f64) -> Option<(f64, f64)> {
        let at = |rate| Some((rate, self.cmape(shape, true_s, rate)?));
        rates().filter_map(at).min_by(|a, b| a.1.total_cmp(&b.1))
    }
}

/// Rates at equal ratios.
pub(super) fn rates() -> impl Iterator<Item = f64> {
    let (low, high) = RATES;
    (0..=RATE_STEPS).map(move |step| low * (high / low).powf(step as f64 / RATE_STEPS as f64))
}

#[cfg(test)]
#[path = "fit_tests.rs"]
mod tests;
