//! Programs that differ in everything the best rate depends on, and ways to choose a rate for them.

use std::iter;

use profiler_core::rate::anytime::first_steps_ns;
use profiler_core::rate::evaluation::{TOP, Workload};
use profiler_core::rate::model::{Criterion, Law, spread};
use profiler_core::rate::{
    Cost, CostModel, RateController, RateSettings, Reading, ThreadVisits, TopShares, variance_ratio,
};

/// Share shapes: one function above all, halves, ten equal ones, many small ones.
pub const SHAPES: [&str; 4] = ["one large", "halves", "even", "many small"];
/// CPU time of a program (s).
const CPU_S: [f64; 3] = [10.0, 60.0, 300.0];
/// Cost of a sample (s).
const OVERHEAD_S: [f64; 4] = [1.5e-6, 5e-6, 12.6e-6, 40e-6];
/// How long a program stays in a function on average, before the next is drawn (s of CPU time); 0 for no time at all.
const VISIT_S: [f64; 3] = [0.0, 3e-3, 50e-3];
/// A tick of the controller (ns).
const TICK_NS: u64 = 100_000_000;

/// A program and what a sample of it costs.
#[derive(Clone, Debug)]
pub struct Program {
    /// One of [`SHAPES`].
    pub shape: &'static str,
    /// Shares of its functions; they sum up to 1.
    pub shares: Vec<f64>,
    /// Its CPU time without sampling (s).
    pub cpu_s: f64,
    /// True cost of a sample (s).
    pub overhead_s: f64,
    /// Mean length of a visit to a function (s of CPU time); 0 for none.
    pub visit_s: f64,
    workload: Workload,
    least: f64,
}

/// How a program was sampled: what [`Workload::error`] needs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sampled {
    /// CPU time spent on sampling over the program's.
    pub overhead_ratio: f64,
    /// Mean over the program's CPU time of the period (s), times the variance of its samples over that of independent ones.
    pub mean_period_s: f64,
}

/// The portfolio of 4 shapes × 3 lengths × 4 costs × 3 lengths of a visit.
pub fn programs() -> Vec<Program> {
    programs_of(&CPU_S, &VISIT_S)
}

/// Every shape and every cost, for runs of these lengths and visits of these (s of CPU time).
pub fn programs_of(lengths_s: &[f64], visits_s: &[f64]) -> Vec<Program> {
    let mut programs = Vec::new();
    for shape in SHAPES {
        for (cpu_s, overhead_s) in lengths_s.iter().flat_map(|w| OVERHEAD_S.iter().map(|o| (*w, *o))) {
            let shares = shares(shape);
            let workload = Workload::new(&shares, cpu_s).expect("shares of a program");
            for &visit_s in visits_s {
                let (shares, workload) = (shares.clone(), workload.clone());
                let mut program = Program { shape, shares, cpu_s, overhead_s, visit_s, workload, least: 1.0 };
                program.least = program.least();
                programs.push(program);
            }
        }
    }
    programs
}

fn shares(shape: &str) -> Vec<f64> {
    let sizes: Vec<f64> = match shape {
        "one large" => iter::once(8.0).chain([3.0, 2.0, 1.5, 1.0]).chain([0.5; 9]).collect(),
        "halves" => (0..12).map(|i| 0.5f64.powi(i)).collect(),
        "even" => vec![1.0; 10],
        _ => (1..=50).map(|i| 1.0 / f64::from(i + 5)).collect(),
    };
    let all: f64 = sizes.iter().sum();
    sizes.into_iter().map(|size| size / all).collect()
}

impl Program {
    /// The least possible error, at whatever rate has it.
    fn least(&self) -> f64 {
        let error = |rate_hz: f64| self.loss(self.at_rate(rate_hz)); // over 1
        let steps = (0..400).map(|step| 0.2 * 1.04f64.powi(step));
        steps.map(error).fold(f64::INFINITY, f64::min)
    }

    /// Expected time-cMAPE over the least possible one, of seconds that hold all that sampling cost.
    pub fn loss(&self, sampled: Sampled) -> f64 {
        self.workload.error(sampled.overhead_ratio, sampled.mean_period_s) / self.least
    }

    /// The same of seconds from which the cost was taken out, when it was believed to be `1 + off` times the true one.
    pub fn compensated_loss(&self, sampled: Sampled, off: f64) -> f64 {
        self.workload.error(sampled.overhead_ratio * off, sampled.mean_period_s) / self.least
    }

    /// Sampled at one rate from start to end (samples per CPU-second).
    pub fn at_rate(&self, rate_hz: f64) -> Sampled {
        let mean_period_s = variance_ratio(1.0 / rate_hz, self.visit_s) / rate_hz;
        Sampled { overhead_ratio: rate_hz * self.overhead_s, mean_period_s }
    }

    /// The law of this program, knowing all.
    pub fn law(&self) -> Law {
        let s = spread(self.shares.iter().copied(), TOP).expect("a program has functions");
        Law::new(Criterion::MeanAbsolute, s, self.overhead_s, self.cpu_s)
    }

    /// Sampled by the real controller from its first guess on, with samples that fall into functions at random and a
    /// cost believed to be `1 + off` times the true one.
    pub fn adaptive(&self, horizon: Known, off: f64, budget_ratio: f64, seed: u64) -> Sampled {
        let mut rng = fastrand::Rng::with_seed(seed);
        let ends: Vec<f64> = self
            .shares
            .iter()
            .scan(0.0, |sum, p| {
                *sum += p;
                Some(*sum)
            })
            .collect();
        let mut controller = self.controller(horizon, off, budget_ratio);
        let draw = |rng: &mut fastrand::Rng| {
            let pick = rng.f64();
            ends.partition_point(|end| *end <= pick).min(ends.len() - 1)
        };
        let (mut function, mut visits) = (draw(&mut rng), ThreadVisits::default());
        let mut decision = controller.start(0);
        let (mut sampled, mut due, mut now_ns) = (Sampled::default(), rng.f64(), 0);
        let end_ns = (self.cpu_s * 1e9) as u64;
        while now_ns < end_ns {
            let step_ns = first_steps_ns(now_ns).min(TICK_NS).min(end_ns - now_ns);
            now_ns += step_ns;
            due += decision.rate_hz * step_ns as f64 * 1e-9;
            let samples = due as u64;
            due -= samples as f64;
            let mut counts = vec![0; self.shares.len()];
            let stays = (-1.0 / (decision.rate_hz * self.visit_s)).exp();
            for _ in 0..samples {
                if rng.f64() >= stays {
                    function = draw(&mut rng);
                }
                counts[function] += 1;
                visits.sampled(1, function as u64, (1e9 / decision.rate_hz) as u64);
            }
            sampled.overhead_ratio += samples as f64 * self.overhead_s / self.cpu_s;
            let period_s = 1.0 / decision.rate_hz;
            sampled.mean_period_s +=
                step_ns as f64 / end_ns as f64 * period_s * variance_ratio(period_s, self.visit_s);
            let reading = Reading { at_ns: now_ns, target_cpu_ns: step_ns, samples, ..Reading::default() };
            let counts = (0..).zip(counts).collect();
            decision = controller.tick(&reading, &TopShares { counts, neighbours: visits.take() });
        }
        sampled
    }

    fn controller(&self, horizon: Known, off: f64, budget_ratio: f64) -> RateController {
        let believed_ns = self.overhead_s * 1e9 * (1.0 + off);
        let costs = CostModel {
            per_sample_ns: Cost::new(believed_ns, 0.05 * believed_ns),
            per_frame_ns: Cost::default(),
            ..CostModel::default()
        };
        let settings = RateSettings {
            horizon_s: (horizon == Known::Horizon).then_some(self.cpu_s),
            budget_ratio,
            expected_frames: 0.0,
            ..RateSettings::default()
        };
        RateController::new(settings, costs)
    }
}

/// Whether the controller knows how long the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// It knows.
    Horizon,
    /// It does not, and follows the anytime law.
    Nothing,
}

/// Mean and worst of a way to choose the rate, over all programs.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Score {
    /// Mean of the losses.
    pub mean: f64,
    /// The largest.
    pub worst: f64,
    /// Mean share of the program's CPU time spent on sampling.
    pub overhead_ratio: f64,
}

/// The score of losses and overheads.
pub fn score(results: impl IntoIterator<Item = (f64, f64)>) -> Score {
    let (mut score, mut count) = (Score::default(), 0.0);
    for (loss, overhead_ratio) in results {
        score.mean += loss;
        score.worst = score.worst.max(loss);
        score.overhead_ratio += overhead_ratio;
        count += 1.0;
    }
    Score { mean: score.mean / count, overhead_ratio: score.overhead_ratio / count, ..score }
}

/// The controller over all programs, believing a cost that is off by up to 15% either way, without a budget that binds.
pub fn adaptive(programs: &[Program], horizon: Known, seeds: u64) -> Score {
    let runs = programs.iter().enumerate().flat_map(|(i, program)| {
        (0..seeds).map(move |seed| {
            let seed = seed * 1_000 + i as u64;
            let off = 0.15 * (2.0 * fastrand::Rng::with_seed(seed ^ 0xb1a5).f64() - 1.0);
            let sampled = program.adaptive(horizon, off, 0.5, seed);
            (program.loss(sampled), sampled.overhead_ratio)
        })
    });
    score(runs)
}

/// One way to choose a rate, knowing the program, over all programs.
pub fn chosen(programs: &[Program], rate_hz: impl Fn(&Program) -> f64) -> Score {
    score(programs.iter().map(|program| {
        let sampled = program.at_rate(rate_hz(program));
        (program.loss(sampled), sampled.overhead_ratio)
    }))
}

/// How seconds with the sampling's cost taken out come out at the law's own rate or at that of [`Law::compensated`], where
/// costs are believed to be off by 15% at most, and are by `off` at most; within a budget (ratio of CPU time).
pub fn compensated(programs: &[Program], off: f64, at_its_own_rate: bool, budget_ratio: f64) -> Score {
    const BELIEVED: f64 = 0.15;
    let steps = 30;
    let runs = programs.iter().flat_map(|program| {
        (0..=steps).map(move |i| {
            let off = off * (2.0 * f64::from(i) / f64::from(steps) - 1.0);
            let believed_s = program.overhead_s * (1.0 + off);
            let s = spread(program.shares.iter().copied(), TOP).expect("a program has functions");
            let law = Law::new(Criterion::MeanAbsolute, s, believed_s, program.cpu_s);
            let uniform_sd = BELIEVED / 3f64.sqrt();
            let law = if at_its_own_rate { law.compensated(uniform_sd * believed_s) } else { law };
            let rate_hz = law.rate_hz().expect("a cost above zero").min(0.9 * budget_ratio / believed_s);
            let sampled = program.at_rate(rate_hz);
            (program.compensated_loss(sampled, -off), sampled.overhead_ratio)
        })
    });
    score(runs)
}
