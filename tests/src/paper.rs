//! Repeats the experiments of Stoker's dissertation (2014): each line shows the printed figure beside the one computed here.

use std::ops::RangeInclusive;

use profiler_core::rate::Experiment;
use serde::Serialize;

/// Members of the array that stands for a program.
const MEMBERS: usize = 1_000_000;
/// Standard score of all its intervals.
const Z: f64 = 1.96;
/// The example of chapter 4: a run of 300 s, a function of 20%, 250 µs a sample.
const RUN_S: f64 = 300.0;
const SHARE: f64 = 0.2;
const OVERHEAD_S: f64 = 250e-6;
/// Sizes of section 4.3: 900 to 44,400 in steps of 1,500.
const SIZES: RangeInclusive<usize> = 900..=44_400;
const STEP: usize = 1_500;
/// Deviations by which a count of trials may be off.
const SCORE: f64 = 3.3;

/// A figure of the dissertation and its counterpart.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    /// Its place in the dissertation, and what it is.
    pub what: String,
    /// The printed figure; `lost` where our copy lacks the equations.
    pub paper: String,
    /// The figure computed here.
    pub here: String,
    /// What was allowed.
    pub allowed: String,
    /// Whether `here` is within it.
    pub holds: bool,
}

impl Line {
    fn new(what: impl Into<String>, paper: impl Into<String>, here: f64, low: f64, high: f64) -> Line {
        Line {
            what: what.into(),
            paper: paper.into(),
            here: figure(here),
            allowed: format!("{} to {}", figure(low), figure(high)),
            holds: low <= here && here <= high,
        }
    }
}

fn figure(value: f64) -> String {
    let digits = if value.fract() == 0.0 || value.abs() >= 1e4 { 0 } else { 3 };
    format!("{value:.digits$}")
}

/// All of them, with so many trials of each ordering (10,000 in the dissertation) and runs of each size (1,000).
pub fn lines(trials: usize, runs: usize, seed: u64) -> Vec<Line> {
    let mut lines = formulas();
    for order in &ORDERINGS {
        lines.push(order.line(40_000, order.fixed, trials, seed));
        lines.push(order.line(order.samples, order.calculated, trials, seed));
    }
    let sizes = sweep(SIZES, runs, seed);
    lines.extend(ends(&sizes, runs));
    lines.extend(curves(&sizes, runs));
    lines
}

/// Those that are quick: the equations, the smallest ordering, the smallest sizes.
pub fn quick_lines(seed: u64) -> Vec<Line> {
    let mut lines = formulas();
    lines.push(ORDERINGS[5].line(ORDERINGS[5].samples, ORDERINGS[5].calculated, 3_000, seed));
    lines.extend(ends(&sweep(*SIZES.start()..=5_400, 400, seed), 400));
    lines
}

/// What follows from its equations alone.
fn formulas() -> Vec<Line> {
    let plan = |z: f64, run_s: f64, share: f64, overhead_s: f64| {
        Experiment::new(z, run_s, share, overhead_s).expect("figures of the dissertation").plan()
    };
    let example = plan(Z, RUN_S, SHARE, OVERHEAD_S);
    let mut lines = vec![
        Line::new(
            "1.1: samples until one more costs more",
            "about 55,000",
            plan(0.98, RUN_S, 0.25, 20e-6).optimum_samples,
            54_000.0,
            56_000.0,
        ),
        Line::new(
            "4.2: lower curve passes the true time (samples)",
            "28,000",
            example.crossing_samples,
            27_500.0,
            28_500.0,
        ),
        Line::new("4.16: best number of samples", "lost", example.optimum_samples, 17_685.0, 17_687.0),
        Line::new(
            "4.14: upper end of the time there (s)",
            "lost",
            example.time_at_optimum_s.high,
            62.6525,
            62.6535,
        ),
    ];
    lines.extend(ORDERINGS.iter().map(|order| {
        let what = format!("3.2: samples to order {} over {}", order.foo, order.bar);
        let printed = order.samples as f64;
        Line::new(what, order.samples.to_string(), order.separate_samples(), printed - 3.0, printed + 3.0)
    }));
    lines.extend(SPEC.iter().map(|&(name, samples, share, overhead_s, printed)| {
        let n = plan(Z, samples / 2.0, share, overhead_s).optimum_samples; // two samples a second
        Line::new(
            format!("5.2: predicted samples, {name}"),
            printed.to_string(),
            n,
            0.995 * printed,
            1.005 * printed,
        )
    }));
    lines
}

/// Tables 5.1 and 5.2: samples of a slow run, largest share, the cost that the prediction implies (s), the prediction.
const SPEC: [(&str, f64, f64, f64, f64); 5] = [
    ("omnetpp", 687.0, 0.158, 28.0e-6, 91_830.0),
    ("bzip2", 176.0, 0.385, 34.8e-6, 21_418.0),
    ("mcf", 784.0, 0.436, 57.9e-6, 38_472.0),
    ("milc", 921.0, 0.18, 64.6e-6, 60_555.0),
    ("sjeng", 1_043.0, 0.153, 19.9e-6, 153_811.0),
];

/// A column of Tables 3.1, 3.2 and 3.4.
struct Ordering {
    foo: f64,
    bar: f64,
    /// Samples by eq. 3.2, as printed.
    samples: usize,
    /// Of 10,000 trials, those that put bar first: printed and expected, with 40,000 samples and with `samples`.
    fixed: (u32, f64),
    calculated: (u32, f64),
}

const ORDERINGS: [Ordering; 6] = [
    Ordering { foo: 0.49, bar: 0.48, samples: 38_375, fixed: (199, 192.0), calculated: (225, 212.0) },
    Ordering { foo: 0.40, bar: 0.39, samples: 36_718, fixed: (107, 110.0), calculated: (140, 138.0) },
    Ordering { foo: 0.30, bar: 0.29, samples: 31_956, fixed: (42, 39.0), calculated: (84, 87.0) },
    Ordering { foo: 0.20, bar: 0.19, samples: 24_115, fixed: (3, 6.0), calculated: (62, 60.0) },
    Ordering { foo: 0.10, bar: 0.09, samples: 13_201, fixed: (0, 0.0), calculated: (34, 39.0) },
    Ordering { foo: 0.02, bar: 0.01, samples: 2_204, fixed: (0, 0.0), calculated: (21, 23.0) },
];

impl Ordering {
    /// n = [z(√(p(1−p)) + √(q(1−q)))/(p−q)]² (eq. 3.2), as if foo and bar were seen in samples of their own.
    fn separate_samples(&self) -> f64 {
        let deviation = |p: f64| (p * (1.0 - p)).sqrt();
        (Z * (deviation(self.foo) + deviation(self.bar)) / (self.foo - self.bar)).powi(2)
    }

    /// Its cell of Table 3.4. What is expected of 10,000 trials comes from the hypergeometric distribution; a count may be
    /// off it by so many deviations, and a half for being whole.
    fn line(&self, samples: usize, (printed, expected): (u32, f64), trials: usize, seed: u64) -> Line {
        let expected = expected * trials as f64 / 1e4;
        let band = SCORE * expected.max(0.5).sqrt() + 0.5;
        let mut rng = fastrand::Rng::with_seed(seed ^ samples as u64);
        let here = f64::from(self.inversions(samples, trials, &mut rng));
        let what =
            format!("3.4: {} taken to be below {}, {samples} samples, of {trials}", self.foo, self.bar);
        let low = (expected - band).max(0.0).floor();
        Line::new(what, format!("{printed} of 10000"), here, low, (expected + band).ceil())
    }

    /// Trials in which the first `samples` members of the shuffled array hold more of bar than of foo.
    fn inversions(&self, samples: usize, trials: usize, rng: &mut fastrand::Rng) -> u32 {
        let mut array = Array::new(&[self.foo, self.bar]);
        let inverted = (0..trials).filter(|_| {
            let counts = array.sample(samples, rng);
            counts[1] < counts[2]
        });
        inverted.count() as u32
    }
}

/// Members that hold 1, 2, … in the shares given, and 0 else; sampled without putting back.
struct Array {
    members: Vec<u8>,
}

impl Array {
    fn new(shares: &[f64]) -> Array {
        let mut members = vec![0; MEMBERS];
        let mut rest = members.as_mut_slice();
        for (value, share) in (1..).zip(shares) {
            let (these, others) = rest.split_at_mut((share * MEMBERS as f64).round() as usize);
            these.fill(value);
            rest = others;
        }
        Array { members }
    }

    /// Shuffles the first `samples` members in from all (Fisher–Yates), and counts them by value.
    fn sample(&mut self, samples: usize, rng: &mut fastrand::Rng) -> [u32; 3] {
        let mut counts = [0; 3];
        for i in 0..samples {
            self.members.swap(i, rng.usize(i..MEMBERS));
            counts[usize::from(self.members[i])] += 1;
        }
        counts
    }
}

/// Middle 95% of the measured times at one size.
struct Middle {
    samples: f64,
    low: f64,
    high: f64,
    /// Measurements between the curves of the model.
    inside_ratio: f64,
}

/// Section 4.3 and Fig. 4.3: how long the function seems to take, at each size.
fn sweep(sizes: RangeInclusive<usize>, runs: usize, seed: u64) -> Vec<Middle> {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0x43);
    let mut array = Array::new(&[SHARE]);
    sizes.step_by(STEP).map(|n| middle(&mut array, n, runs, &mut rng)).collect()
}

/// The ends of the middle 95%, at each size and as the text has them.
fn ends(sizes: &[Middle], runs: usize) -> Vec<Line> {
    let at_2400 = &sizes[1];
    let mut lines = vec![
        Line::new("4.3: middle 95% at 2,400 samples, from (s)", "55", at_2400.low, 54.7, 55.9),
        Line::new("4.3: middle 95% at 2,400 samples, to (s)", "65", at_2400.high, 64.3, 65.5),
    ];
    lines.extend(sizes.iter().map(|size| distance(size, runs)));
    lines
}

/// What the sweep as a whole shows.
fn curves(sizes: &[Middle], runs: usize) -> Vec<Line> {
    let inside = sizes.iter().map(|size| size.inside_ratio).sum::<f64>() / sizes.len() as f64;
    let noise = SCORE * (0.95 * 0.05 / (sizes.len() * runs) as f64).sqrt();
    let passes =
        sizes.iter().find(|size| size.low > RUN_S * SHARE).map_or(f64::INFINITY, |size| size.samples);
    let least = sizes.iter().map(|size| size.high).fold(f64::INFINITY, f64::min);
    // The curves are those of sampling with putting back, so a little more than 95% lie between them.
    let (low, high) = (100.0 * (0.95 - noise), 100.0 * (0.955 + noise));
    vec![
        Line::new("4.3: between the curves, of all sizes (%)", "95%", 100.0 * inside, low, high),
        Line::new(
            "4.3: lower end passes the true time (samples)",
            "after 28,000",
            passes,
            25_000.0,
            31_500.0,
        ),
        Line::new("4.3: least upper end (s)", "at 4.16's size", least, 62.3, 62.75),
    ]
}

fn middle(array: &mut Array, samples: usize, runs: usize, rng: &mut fastrand::Rng) -> Middle {
    let n = samples as f64;
    let run_s = RUN_S + n * OVERHEAD_S;
    let mut times: Vec<f64> =
        (0..runs).map(|_| f64::from(array.sample(samples, rng)[1]) / n * run_s).collect();
    times.sort_unstable_by(f64::total_cmp);
    let curves = example().time_s(n);
    let inside = times.iter().filter(|time| (curves.low..=curves.high).contains(*time)).count();
    let at = |quantile: f64| times[((runs - 1) as f64 * quantile).round() as usize];
    Middle { samples: n, low: at(0.025), high: at(0.975), inside_ratio: inside as f64 / runs as f64 }
}

fn example() -> Experiment {
    Experiment::new(Z, RUN_S, SHARE, OVERHEAD_S).expect("the example of the dissertation")
}

/// How far the ends of the middle 95% are from the model's for a finite population, in standard errors of a 2.5%
/// quantile: √(q(1−q)/n)/φ(1.96) = 2.67/√n deviations of the measurements.
fn distance(size: &Middle, runs: usize) -> Line {
    let curves = example().in_population(MEMBERS as f64).expect("a population").time_s(size.samples);
    let deviation = (curves.high - curves.mean) / Z * (1.0 + size.samples * OVERHEAD_S / RUN_S);
    let error = 2.67 * deviation / (runs as f64).sqrt();
    let off = (size.low - curves.low).abs().max((size.high - curves.high).abs()) / error;
    let what = format!("4.3: ends at {} samples off the model's (standard errors)", size.samples);
    Line::new(what, format!("curves at {:.1} and {:.1} s", curves.low, curves.high), off, 0.0, 4.0)
}
