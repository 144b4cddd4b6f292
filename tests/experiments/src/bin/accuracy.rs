//! Checks whether profiles are correct: twenty runs of each of five programs whose CPU times are known. Is each of the
//! top four functions' CPU time inside its interval, in 99% of the runs all of them, are the stacks whole, do the weights add up?
//!
//! Options: `--runs 20`, `--cpu 5` (seconds of work a run), `--options "…"` (for sweetspot).

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use tests::checks::{C, CXX, Names, RUST_THREAD};
use tests::experiment::{option, percent, print, progress, row};
use tests::programs::program;
use tests::run::{Recorded, Sweetspot, run};

const TOP: usize = 4;
/// Standard errors by which the misses may be above what is expected.
const CHANCE: f64 = 3.0;
const DEPTH: usize = 20;

struct Variant {
    name: &'static str,
    program: &'static str,
    names: Names,
    arguments: &'static [&'static str],
}

const VARIANTS: &[Variant] = &[
    Variant { name: "C", program: "mix_nofp", names: C, arguments: &[] },
    Variant { name: "C, frame pointers", program: "mix_fp", names: C, arguments: &[] },
    Variant { name: "C++, inlined", program: "inlined", names: CXX, arguments: &[] },
    Variant { name: "Rust, 4 threads", program: "threads", names: RUST_THREAD, arguments: &[] },
    Variant { name: "C, children", program: "mix_nofp", names: C, arguments: &["--children", "60"] },
];

#[derive(Default, Serialize)]
struct Found {
    variant: &'static str,
    runs: usize,
    intervals: usize,
    misses: usize,
    runs_with_a_miss: usize,
    worst_error_ratio: f64,
    mean_half_width_ratio: f64,
    samples: u64,
    rate_hz: f64,
    overhead_worst_ratio: f64,
    complete_worst_ratio: f64,
    weight_off_worst_ratio: f64,
    cpu_off_worst_ratio: f64,
    foreign_samples: u64,
    stolen_worst_ratio: f64,
    cost_spread_ratio: Option<f64>,
}

fn main() -> Result<()> {
    let runs = option("--runs", 20)?;
    let found = VARIANTS.iter().map(|variant| measure(variant, runs)).collect::<Result<Vec<_>>>()?;
    let heads = [
        "program",
        "misses",
        "worst error",
        "half width",
        "samples",
        "complete ≥",
        "weights off",
        "foreign",
        "stolen",
        "rusage off",
        "equal within",
    ];
    let mut rows = vec![heads.map(str::to_string).to_vec()];
    rows.extend(found.iter().map(to_row));
    let missed: usize = found.iter().map(|found| found.runs_with_a_miss).sum();
    let all: usize = found.iter().map(|found| found.runs).sum();
    let expected = all as f64 * 0.01;
    let remark = format!("{missed} of {all} tables of 99% have a miss; at most {expected:.1} are expected");
    print(&rows, &[remark], &found)?;
    let most = expected + CHANCE * expected.sqrt();
    ensure!(
        missed as f64 <= most,
        "{missed} of {all} tables of 99% have a miss: more than chance brings ({most:.1})"
    );
    Ok(())
}

fn to_row(found: &Found) -> Vec<String> {
    row([
        &found.variant,
        &format!("{}/{}", found.misses, found.intervals),
        &percent(found.worst_error_ratio),
        &percent(found.mean_half_width_ratio),
        &found.samples,
        &percent(found.complete_worst_ratio),
        &percent(found.weight_off_worst_ratio),
        &found.foreign_samples,
        &percent(found.stolen_worst_ratio),
        &percent(found.cpu_off_worst_ratio),
        &found.cost_spread_ratio.map_or("-".to_string(), percent),
    ])
}

fn measure(variant: &Variant, runs: usize) -> Result<Found> {
    let mut found = Found { variant: variant.name, runs, complete_worst_ratio: 1.0, ..Found::default() };
    found.cost_spread_ratio = Some(cost_spread(variant)?);
    for seed in 1..=runs {
        let recorded = record(variant, seed)?;
        found.add(variant, &recorded)?;
        progress(&format!("{}: run {seed}, {} misses so far", variant.name, found.misses));
    }
    found.mean_half_width_ratio /= found.intervals as f64;
    found.samples /= runs as u64;
    found.foreign_samples /= runs as u64;
    found.rate_hz /= runs as f64;
    Ok(found)
}

fn record(variant: &Variant, seed: usize) -> Result<Recorded> {
    let options: String = option("--options", String::new())?;
    let cpu: f64 = option("--cpu", 5.0)?;
    let mut sweetspot = Sweetspot::new().options(&["--confidence", "99%"]);
    sweetspot = sweetspot.options(&options.split_whitespace().collect::<Vec<_>>());
    let (cpu, seed, depth) = (cpu.to_string(), seed.to_string(), DEPTH.to_string());
    let mut arguments = vec!["--cpu", &cpu, "--seed", &seed, "--depth", &depth];
    arguments.extend(variant.arguments);
    sweetspot.record(variant.program, &arguments)
}

impl Found {
    fn add(&mut self, variant: &Variant, recorded: &Recorded) -> Result<()> {
        let (summary, truth) = (&recorded.stats.summary, recorded.truth()?);
        let misses_before = self.misses;
        for compared in truth.compare(summary, TOP)? {
            self.intervals += 1;
            self.misses += usize::from(!compared.inside());
            let error = (compared.cpu_s - compared.true_cpu_s).abs() / compared.true_cpu_s;
            self.worst_error_ratio = self.worst_error_ratio.max(error);
            self.mean_half_width_ratio += (compared.high_s - compared.low_s) / 2.0 / compared.true_cpu_s;
        }
        self.runs_with_a_miss += usize::from(self.misses > misses_before);
        self.samples += summary.samples;
        self.foreign_samples += summary.foreign_samples;
        self.stolen_worst_ratio = self.stolen_worst_ratio.max(recorded.stolen_ratio);
        self.rate_hz += summary.rate_hz;
        self.overhead_worst_ratio = self.overhead_worst_ratio.max(summary.overhead_ratio);
        let complete = variant.names.complete_ratio(&recorded.folded, DEPTH);
        self.complete_worst_ratio = self.complete_worst_ratio.min(complete);
        let off = |found: f64, expected: f64| (found / expected - 1.0).abs();
        self.weight_off_worst_ratio =
            self.weight_off_worst_ratio.max(off(summary.weight_s, summary.target_cpu_s));
        self.cpu_off_worst_ratio = self.cpu_off_worst_ratio.max(off(summary.target_cpu_s, truth.cpu_s));
        Ok(())
    }
}

#[derive(Deserialize)]
struct Costs {
    median_ns_per_call: Vec<f64>,
}

/// How equal the functions' costs are: (largest − smallest) / smallest of their medians. The truth is only
/// as good as this.
fn cost_spread(variant: &Variant) -> Result<f64> {
    let ended = run(std::process::Command::new(program(variant.program)?).args(["--time-each", "500"]))?;
    let costs: Costs = serde_json::from_str(&ended.expect_status(0)?.stdout)?;
    let largest = costs.median_ns_per_call.iter().copied().fold(0.0, f64::max);
    let smallest = costs.median_ns_per_call.iter().copied().fold(f64::MAX, f64::min);
    Ok(largest / smallest - 1.0)
}
