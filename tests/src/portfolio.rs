//! Programs that differ in everything the best rate depends on, and ways to choose a rate for them.

use std::{iter, thread};

use profiler_core::rate::model::{Criterion, Law, function_weight, spread};
use profiler_core::rate::{
    Cost, CostModel, Dither, RateController, RateSettings, Reading, ThreadVisits, TopShares, usual_step_ns,
    variance_ratio,
};

mod rounds;

use rounds::Rounds;

/// Functions whose errors are summed up: the largest.
const TOP: usize = 4;
/// Share shapes: one function above all, halves, ten equal ones, many small ones.
pub const SHAPES: [&str; 4] = ["one large", "halves", "even", "many small"];
/// Shapes that leave next to nothing to choose from, or far too much.
const EXTREME_SHAPES: [&str; 2] = ["500 equal", "one of 95%"];
/// One function, and five of 0.02% each, which the law counts only once samples have hit them.
const LONE_SHAPE: &str = "one of 99.9%";
/// CPU time of a program (s).
const CPU_S: [f64; 3] = [10.0, 60.0, 300.0];
/// Cost of a sample (s).
const OVERHEAD_S: [f64; 4] = [1.5e-6, 5e-6, 12.6e-6, 40e-6];
/// How long a program stays in a function on average, before the next is drawn (s of CPU time); 0 for no time at all.
const VISIT_S: [f64; 3] = [0.0, 3e-3, 50e-3];
/// The length of rounds varies at random by up to this factor: for a fixed length, some rate happens to avoid all resonances, but
/// it can be chosen only by knowing the length.
const ROUND_SPREAD: f64 = 1.5;

/// In which order a program runs its functions.
#[derive(Clone, Debug)]
pub enum Course {
    /// The next function is drawn after a visit of this mean length (s of CPU time); 0 for no time at all.
    Visits(f64),
    /// All functions in turn, in rounds of this length (s of CPU time).
    Rounds(f64),
    /// Every other function runs in one phase, the others in the next; both together last twice this long (s of CPU time).
    Phases(f64),
    /// Busy for the first so long of so long (s), functions drawn at random.
    Bursts(f64, f64),
}

/// A program and what a sample of it costs.
#[derive(Clone, Debug)]
pub struct Program {
    /// Name of its shares' shape.
    pub shape: &'static str,
    /// Shares of its functions; they sum up to 1.
    pub shares: Vec<f64>,
    /// Its CPU time without sampling (s).
    pub cpu_s: f64,
    /// True cost of a sample (s).
    pub overhead_s: f64,
    /// In which order its functions run.
    pub course: Course,
    /// The functions that are judged: the largest.
    largest: Vec<usize>,
    rounds: Option<Rounds>,
    least: f64,
}

/// How a program was sampled: what `expected_error` needs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sampled {
    /// CPU time spent on sampling over the program's.
    pub overhead_ratio: f64,
    /// Of each of the largest functions: the mean over the program's CPU time of the period (s), times the variance of its
    /// samples over that of independent ones.
    pub mean_period_s: [f64; TOP],
}

/// The portfolio: 4 shapes × 3 lengths × 4 costs × 3 lengths of a visit, and programs that are odd in one way.
pub fn programs() -> Vec<Program> {
    let mut programs = programs_of(&CPU_S, &VISIT_S);
    let (short, both) = (&[10.0][..], &[10.0, 60.0][..]);
    let courses = [
        (Course::Rounds(1e-3), both),
        (Course::Rounds(3e-3), both),
        (Course::Phases(1.0), both),
        (Course::Phases(10.0), &[60.0]),
        (Course::Bursts(0.5, 2.0), both),
        (Course::Bursts(0.1, 1.0), short),
    ];
    for (course, lengths_s) in courses {
        programs.extend(all(&SHAPES, lengths_s, &[course]));
    }
    programs.extend(all(&EXTREME_SHAPES, both, &[Course::Visits(0.0)]));
    programs
}

/// Programs of nearly one function alone. They are judged by the three next largest as well, of 0.02% each. No controller can
/// choose a rate for functions that no sample has hit yet: for a program of only one function it would be wasted.
pub fn lone_programs() -> Vec<Program> {
    all(&[LONE_SHAPE], &[10.0, 60.0], &[Course::Visits(0.0)])
}

/// Every shape and every cost, for runs of these lengths and visits of these (s of CPU time).
pub fn programs_of(lengths_s: &[f64], visits_s: &[f64]) -> Vec<Program> {
    let courses: Vec<Course> = visits_s.iter().map(|visit_s| Course::Visits(*visit_s)).collect();
    all(&SHAPES, lengths_s, &courses)
}

fn all(shapes: &[&'static str], lengths_s: &[f64], courses: &[Course]) -> Vec<Program> {
    let mut programs = Vec::new();
    for (&shape, course) in shapes.iter().flat_map(|shape| courses.iter().map(move |course| (shape, course)))
    {
        // All that takes long to work out is the same for all of them.
        let model = Program::new(shape, course);
        for (&cpu_s, &overhead_s) in lengths_s.iter().flat_map(|w| OVERHEAD_S.iter().map(move |o| (w, o))) {
            programs.push(model.clone().lasting(cpu_s, overhead_s));
        }
    }
    programs
}

fn shares(shape: &str) -> Vec<f64> {
    let sizes: Vec<f64> = match shape {
        "one large" => iter::once(8.0).chain([3.0, 2.0, 1.5, 1.0]).chain([0.5; 9]).collect(),
        "halves" => (0..12).map(|i| 0.5f64.powi(i)).collect(),
        "even" => vec![1.0; 10],
        "500 equal" => vec![1.0; 500],
        "one of 95%" => iter::once(95.0).chain([1.0; 5]).collect(),
        LONE_SHAPE => iter::once(99.9).chain([0.02; 5]).collect(),
        _ => (1..=50).map(|i| 1.0 / f64::from(i + 5)).collect(),
    };
    let all: f64 = sizes.iter().sum();
    sizes.into_iter().map(|size| size / all).collect()
}

/// The expected error of the CPU seconds of a function of share `p` of `cpu_s`, relative to the true ones (Stoker, eq. 5.1).
///
/// It is normal. `charged_ratio`, the CPU time that sampling left in the figures over that of the program, is its bias. Samples weigh
/// their periods, so a stretch dt at rate λ adds p(1−p)·dt/λ to the variance; `mean_period_s` is the mean of 1/λ over the CPU time (s).
/// Infinite where there are no samples.
fn expected_error(p: f64, cpu_s: f64, charged_ratio: f64, mean_period_s: f64) -> f64 {
    if !(charged_ratio.is_finite() && mean_period_s.is_finite() && mean_period_s > 0.0) {
        return f64::INFINITY;
    }
    Criterion::MeanAbsolute.error(charged_ratio, ((1.0 - p) / p * mean_period_s / cpu_s).sqrt())
}

impl Program {
    /// One CPU-second, at no cost.
    fn new(shape: &'static str, course: &Course) -> Self {
        let shares = shares(shape);
        let mut largest: Vec<usize> = (0..shares.len()).collect();
        largest.sort_by(|a, b| shares[*b].total_cmp(&shares[*a]));
        largest.truncate(TOP);
        let rounds = match course {
            Course::Rounds(round_s) => Some(Rounds::new(
                &largest.iter().map(|at| shares[*at]).collect::<Vec<_>>(),
                *round_s,
                ROUND_SPREAD,
            )),
            _ => None,
        };
        let course = course.clone();
        Program { shape, shares, cpu_s: 1.0, overhead_s: 0.0, course, largest, rounds, least: 1.0 }
    }

    /// The same program for a run of this length (s of CPU time) at this cost of a sample (s).
    fn lasting(mut self, cpu_s: f64, overhead_s: f64) -> Self {
        (self.cpu_s, self.overhead_s) = (cpu_s, overhead_s);
        self.least = self.least();
        self
    }

    /// The least possible error, at whatever rate has it.
    fn least(&self) -> f64 {
        let error = |rate_hz: f64| self.loss(self.at_rate(rate_hz)); // over 1
        let steps = (0..400).map(|step| 0.2 * 1.04f64.powi(step));
        steps.map(error).fold(f64::INFINITY, f64::min)
    }

    /// Whether its samples are independent of each other and of the clock.
    pub fn is_independent(&self) -> bool {
        matches!(self.course, Course::Visits(0.0)) && SHAPES.contains(&self.shape)
    }

    /// In which way it is unusual.
    pub fn kind(&self) -> String {
        match self.course {
            Course::Visits(_) if !SHAPES.contains(&self.shape) => self.shape.to_owned(),
            Course::Visits(visit_s) => format!("visits of {} ms", visit_s * 1e3),
            Course::Rounds(round_s) => format!("rounds of {} ms", round_s * 1e3),
            Course::Phases(phase_s) => format!("phases of {phase_s} s"),
            Course::Bursts(busy_s, of_s) => format!("bursts of {busy_s} s in {of_s} s"),
        }
    }

    /// Expected time-cMAPE over the least possible one, of seconds that hold all that sampling cost.
    pub fn loss(&self, sampled: Sampled) -> f64 {
        self.compensated_loss(sampled, 1.0)
    }

    /// The same of seconds from which the cost was taken out, when it was believed to be `1 + off` times the true one.
    pub fn compensated_loss(&self, sampled: Sampled, off: f64) -> f64 {
        let share = |at: usize| self.shares[self.largest[at]];
        let error = |(at, period_s): (usize, f64)| {
            let one = expected_error(share(at), self.cpu_s, sampled.overhead_ratio * off, period_s);
            function_weight(share(at), share(0)) * one
        };
        sampled.mean_period_s.into_iter().take(self.largest.len()).enumerate().map(error).sum::<f64>()
            / self.least
    }

    /// Sampled at one rate from start to end (samples per CPU-second).
    pub fn at_rate(&self, rate_hz: f64) -> Sampled {
        let mean_period_s = self.variance_ratios(rate_hz).map(|ratio| ratio / rate_hz);
        Sampled { overhead_ratio: rate_hz * self.overhead_s, mean_period_s }
    }

    /// The variance of the samples over that of independent ones, of each of the largest functions.
    fn variance_ratios(&self, rate_hz: f64) -> [f64; TOP] {
        match (&self.course, &self.rounds) {
            (Course::Visits(visit_s), _) => [variance_ratio(1.0 / rate_hz, *visit_s); TOP],
            (Course::Phases(_), _) => {
                // Each phase gets its samples for certain; which function of it they hit is chance.
                std::array::from_fn(|at| {
                    let Some(&function) = self.largest.get(at) else { return 1.0 };
                    let p = self.shares[function];
                    (1.0 - p / self.phase_share(function % 2)) / (1.0 - p)
                })
            }
            (_, Some(rounds)) => rounds.variance_ratios(rate_hz),
            _ => [1.0; TOP],
        }
    }

    /// The part of the CPU time in which the even functions run (0), or the odd ones (1).
    fn phase_share(&self, phase: usize) -> f64 {
        self.shares.iter().skip(phase).step_by(2).sum()
    }

    /// The law for this program, with all its parameters known.
    pub fn law(&self) -> Law {
        let s = spread(self.shares.iter().copied(), TOP).expect("a program has functions");
        Law::new(Criterion::MeanAbsolute, s, self.overhead_s, self.cpu_s)
    }

    /// CPU time that it has used after `wall_ns` (ns).
    fn cpu_ns(&self, wall_ns: u64) -> u64 {
        let Course::Bursts(busy_s, of_s) = self.course else { return wall_ns };
        let (busy_ns, of_ns) = ((busy_s * 1e9) as u64, (of_s * 1e9) as u64);
        wall_ns / of_ns * busy_ns + (wall_ns % of_ns).min(busy_ns)
    }

    /// Sampled by the real controller from its first guess on, with a cost believed to be `1 + off` times the true one.
    pub fn adaptive(&self, horizon: Known, off: f64, budget_ratio: f64, seed: u64) -> Sampled {
        let mut controller = self.controller(horizon, off, budget_ratio);
        let (mut walk, mut visits) = (Walk::new(self, seed), ThreadVisits::default());
        let mut decision = controller.start(0);
        let (mut sampled, mut now_ns, mut cpu_ns) = (Sampled::default(), 0, 0);
        let end_ns = (self.cpu_s * 1e9) as u64;
        while cpu_ns < end_ns {
            now_ns += usual_step_ns(now_ns);
            let step_ns = self.cpu_ns(now_ns).min(end_ns) - cpu_ns;
            let counts = walk.step(cpu_ns, step_ns, decision.rate_hz, &mut visits);
            cpu_ns += step_ns;
            let samples = counts.iter().sum();
            sampled.overhead_ratio += samples as f64 * self.overhead_s / self.cpu_s;
            let weight = step_ns as f64 / end_ns as f64 / decision.rate_hz;
            for (sum, ratio) in sampled.mean_period_s.iter_mut().zip(self.variance_ratios(decision.rate_hz)) {
                *sum += weight * ratio;
            }
            let reading = Reading { at_ns: now_ns, target_cpu_ns: step_ns, samples, ..Reading::default() };
            let counts = (0..).zip(counts).filter(|(_, count)| *count > 0).collect();
            decision = controller.step(&reading, &TopShares { counts, neighbours: visits.take() });
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

/// A running program, and the clock that samples it.
struct Walk<'p> {
    program: &'p Program,
    rng: fastrand::Rng,
    dither: Dither,
    /// Where the shares of the functions end, one after the other, …
    ends: Vec<f64>,
    /// … and the same of the even ones and of the odd ones alone.
    phases: [Vec<f64>; 2],
    function: usize,
    /// The length of its rounds over the usual one.
    round: f64,
    /// Part of a sample that is due.
    due: f64,
}

impl<'p> Walk<'p> {
    fn new(program: &'p Program, seed: u64) -> Self {
        let ends = |of: &dyn Fn(usize) -> f64| -> Vec<f64> {
            let parts = program.shares.iter().enumerate().map(|(at, share)| share * of(at));
            parts
                .scan(0.0, |sum, part| {
                    *sum += part;
                    Some(*sum)
                })
                .collect()
        };
        let phase = |phase: usize| ends(&move |at| f64::from(u8::from(at % 2 == phase)));
        let mut rng = fastrand::Rng::with_seed(seed);
        let due = rng.f64();
        let round = ROUND_SPREAD.powf(2.0 * rng.f64() - 1.0);
        let mut walk = Walk {
            round,
            program,
            dither: Dither::new(seed),
            ends: ends(&|_| 1.0),
            phases: [phase(0), phase(1)],
            function: 0,
            due,
            rng,
        };
        walk.function = pick(&walk.ends, walk.rng.f64());
        walk
    }

    /// Lets `step_ns` of CPU time pass from `from_ns` on; returns the samples of each function.
    fn step(&mut self, from_ns: u64, step_ns: u64, rate_hz: f64, visits: &mut ThreadVisits) -> Vec<u64> {
        let mut counts = vec![0; self.program.shares.len()];
        // Only a program in rounds can be in step with the clock.
        let drawn = matches!(self.program.course, Course::Rounds(_));
        let mean_ns = 1e9 / rate_hz;
        let period_ns = if drawn { self.dither.draw(mean_ns as u64) as f64 } else { mean_ns };
        let begun = self.due;
        self.due += step_ns as f64 / period_ns;
        let samples = self.due as u64;
        self.due -= samples as f64;
        for sample in 1..=samples {
            let at_ns = from_ns as f64 + (sample as f64 - begun) * period_ns;
            self.function = self.next(at_ns * 1e-9, rate_hz);
            counts[self.function] += 1;
            visits.sampled(1, self.function as u64, period_ns as u64);
        }
        counts
    }

    /// The function of a sample after `at_s` of CPU time.
    fn next(&mut self, at_s: f64, rate_hz: f64) -> usize {
        match self.program.course {
            Course::Visits(visit_s) => {
                let stays = (-1.0 / (rate_hz * visit_s)).exp();
                if self.rng.f64() < stays { self.function } else { pick(&self.ends, self.rng.f64()) }
            }
            Course::Bursts(..) => pick(&self.ends, self.rng.f64()),
            Course::Rounds(round_s) => pick(&self.ends, (at_s / (self.round * round_s)).fract()),
            Course::Phases(phase_s) => {
                let is_odd = (0.5 * at_s / phase_s).fract() >= self.program.phase_share(0);
                let ends = &self.phases[usize::from(is_odd)];
                pick(ends, self.rng.f64() * ends[ends.len() - 1])
            }
        }
    }
}

fn pick(ends: &[f64], at: f64) -> usize {
    ends.partition_point(|end| *end <= at).min(ends.len() - 1)
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
    together(&adaptive_each(programs, horizon, seeds))
}

/// The same for each program alone.
pub fn adaptive_each(programs: &[Program], horizon: Known, seeds: u64) -> Vec<Score> {
    let one = |index: usize| {
        let program = &programs[index];
        score((0..seeds).map(|seed| {
            let seed = seed * 1_000 + index as u64;
            let off = 0.15 * (2.0 * fastrand::Rng::with_seed(seed ^ 0xb1a5).f64() - 1.0);
            let sampled = program.adaptive(horizon, off, 0.5, seed);
            (program.loss(sampled), sampled.overhead_ratio)
        }))
    };
    // Long programs lie side by side, so workers take every so many.
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let mut scores = vec![Score::default(); programs.len()];
    let mut parts: Vec<Vec<(usize, &mut Score)>> = iter::repeat_with(Vec::new).take(workers).collect();
    scores.iter_mut().enumerate().for_each(|(index, score)| parts[index % workers].push((index, score)));
    thread::scope(|scope| {
        for part in parts {
            scope.spawn(|| part.into_iter().for_each(|(index, score)| *score = one(index)));
        }
    });
    scores
}

/// The score of all programs from those of each.
pub fn together(scores: &[Score]) -> Score {
    let worst = scores.iter().map(|score| score.worst).fold(0.0, f64::max);
    Score { worst, ..score(scores.iter().map(|score| (score.mean, score.overhead_ratio))) }
}

/// One way to choose a rate, knowing the program, over all programs.
pub fn chosen(programs: &[Program], rate_hz: impl Fn(&Program) -> f64) -> Score {
    score(programs.iter().map(|program| {
        let sampled = program.at_rate(rate_hz(program));
        (program.loss(sampled), sampled.overhead_ratio)
    }))
}

/// The score of CPU seconds after the sampling cost was subtracted, at the law's own rate or at that of [`Law::compensated`]. Costs
/// are assumed to be off by 15% at most, and are off by `off` at most; within a budget (ratio of CPU time).
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

#[cfg(test)]
mod tests {
    use super::*;

    const SHARES: [f64; 6] = [0.35, 0.25, 0.15, 0.1, 0.1, 0.05];

    #[test]
    fn the_expected_error_is_that_of_simulated_profiles() {
        let (rate_hz, cpu_s, overhead_s) = (400.0, 20.0, 30e-6);
        let mut rng = fastrand::Rng::with_seed(11);
        let (n, runs, mut sum) = (8_000u32, 400, 0.0);
        for _ in 0..runs {
            let mut counts = [0u32; SHARES.len()];
            for _ in 0..n {
                let mut pick = rng.f64();
                let hit = SHARES.iter().position(|p| {
                    pick -= p;
                    pick < 0.0
                });
                counts[hit.unwrap_or(0)] += 1;
            }
            let run_s = cpu_s + f64::from(n) * overhead_s;
            let error =
                |i: usize| (f64::from(counts[i]) / f64::from(n) * run_s / (SHARES[i] * cpu_s) - 1.0).abs();
            sum += (0..TOP).map(error).sum::<f64>();
        }
        let one = |p: &f64| expected_error(*p, cpu_s, rate_hz * overhead_s, 1.0 / rate_hz);
        let expected: f64 = SHARES[..TOP].iter().map(one).sum();
        let simulated = sum / f64::from(runs);
        assert!((simulated / expected - 1.0).abs() < 0.05, "{simulated} {expected}");
    }
}
