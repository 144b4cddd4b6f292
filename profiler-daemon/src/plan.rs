//! `plan`: the best rate for a function of known share, in words, as a curve and as JSON.

mod jobs;
mod law;
mod pace;
mod picture;
pub(crate) mod process;

use std::fmt::Write;

use anyhow::Result;
use profiler_core::rate::{BoundBy, Criterion};
use serde::Serialize;
use serde_json::json;

pub(crate) use self::jobs::{PlanJob, PlanProcessJob};
use crate::output::write_text;
use crate::plot::{self, grouped};
use crate::terminal::Terminal;

/// What the law says of a [`PlanJob`].
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    /// n*: the number of samples at which the error is smallest.
    pub(crate) best: Point,
    /// n*/T (samples per CPU-second).
    pub(crate) optimum_rate_hz: f64,
    /// n×: samples at which the lower bound of the measured time crosses the true one.
    pub(crate) crossing_samples: f64,
    /// CPU time spent on sampling at n*, as a share of the horizon.
    pub(crate) overhead_ratio: f64,
    /// Error at half the rate, as a multiple of the error at n*.
    pub(crate) loss_at_half: f64,
    /// Error at twice the rate, as a multiple of the error at n*.
    pub(crate) loss_at_double: f64,
    /// The highest rate within the budget (samples per CPU-second).
    pub(crate) budget_hz: f64,
    /// The highest rate that the kernel is asked for (samples per CPU-second).
    pub(crate) kernel_hz: f64,
    /// The rate that remains of the best one under the caps (samples per CPU-second).
    pub(crate) rate_hz: f64,
    /// Which of them sets it.
    pub(crate) bound_by: BoundBy,
    /// Error at that rate, as a multiple of the error at n*.
    pub(crate) loss_when_bound: f64,
    /// What the anytime law does over the same CPU time, not knowing it.
    pub(crate) anytime: Anytime,
    /// Both laws over the run.
    pub(crate) moments: Vec<Moment>,
    /// The same for one of the replicas; of one alone, that is this plan.
    pub(crate) fleet: FleetPlan,
    /// The error over the number of samples, around n* (Stoker, eq. 4.14).
    pub(crate) curve: Vec<Point>,
}

/// What replicas do whose profiles are read as one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct FleetPlan {
    /// The rate of each under the caps (samples per CPU-second).
    pub(crate) rate_hz: f64,
    /// What sets it.
    pub(crate) bound_by: BoundBy,
    /// Samples that each takes.
    pub(crate) samples: f64,
    /// Error of the sum of all their profiles, as a share of the function's time.
    pub(crate) error_ratio: f64,
    /// The same of the profile of one alone at its own rate.
    pub(crate) alone_error_ratio: f64,
}

/// The anytime law at the end of a run, without budget and caps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Anytime {
    /// Samples until then.
    pub(crate) samples: f64,
    /// The rate that it has fallen to (samples per CPU-second).
    pub(crate) rate_hz: f64,
    /// Its error, as a multiple of the error at n*.
    pub(crate) loss: f64,
}

/// What each law has done at a moment of the run, without budget and caps.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Moment {
    /// CPU time since the start (s).
    pub(crate) cpu_s: f64,
    /// The rate of the anytime law (samples per CPU-second), …
    pub(crate) anytime_rate_hz: f64,
    /// … its samples so far, …
    pub(crate) anytime_samples: f64,
    /// … and its error if the run ends here, as a multiple of that of the best rate for such a run.
    pub(crate) anytime_error_ratio: f64,
    /// The rate of the law for the horizon (samples per CPU-second), …
    pub(crate) horizon_rate_hz: f64,
    /// … its samples so far, …
    pub(crate) horizon_samples: f64,
    /// … and its error if the run ends here, as a multiple of that of the best rate for such a run.
    pub(crate) horizon_error_ratio: f64,
    /// The samples that the budget and the kernel allow so far.
    pub(crate) most_samples: f64,
}

/// What is to be expected of a number of samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Point {
    /// n.
    pub(crate) samples: f64,
    /// Lower end of the function's measured time (s).
    #[serde(rename = "low_cpu_s")]
    pub(crate) low_s: f64,
    /// Its expected value, with what sampling adds (s).
    #[serde(rename = "mean_cpu_s")]
    pub(crate) mean_s: f64,
    /// Its upper end (s).
    #[serde(rename = "high_cpu_s")]
    pub(crate) high_s: f64,
    /// The error that the criterion names (s).
    #[serde(rename = "error_cpu_s")]
    pub(crate) error_s: f64,
}

/// Prints the plan, and draws it where a file is asked for.
pub(crate) fn run(job: &PlanJob, terminal: Terminal) -> Result<()> {
    let plan = law::plan(job)?;
    let chart = picture::chart(job, &plan);
    let charts = [chart, pace::rates(job, &plan), pace::samples(job, &plan)];
    if let Some(file) = &job.file {
        write_text(file, &plot::svg(&charts))?;
        terminal.say(&format!("wrote {}", file.display()));
    }
    if job.json {
        return terminal.print(&json(job, &plan));
    }
    let [error, rates, _] = charts.map(|chart| chart.text(terminal.columns()));
    terminal.print(&format!("{error}\n{rates}\n{}\n{}", pace::table(job, &plan), render(job, &plan)))
}

/// The plan for a person.
fn render(job: &PlanJob, plan: &Plan) -> String {
    let mut text = vec![
        ("function", format!("{} of {}: {}", job.share, job.horizon, seconds(job.true_s()))),
        ("best rate", format!("{} samples/s of CPU time", rate(plan.optimum_rate_hz))),
        ("variance ratio", variance(job)),
        ("samples", format!("{} (n*)", grouped(plan.best.samples))),
        ("measured time", measured(job, plan)),
        ("overhead", format!("{:.3}% at {} a sample", plan.overhead_ratio * 100.0, job.overhead)),
    ];
    if job.is_upper_bound() {
        let crossing = grouped(plan.crossing_samples);
        text.push(("too many from", format!("{crossing} samples (n×): overhead hides the true time")));
    }
    text.extend([
        ("error at rate / 2", format!("{:.2} times the best", plan.loss_at_half)),
        ("error at rate × 2", format!("{:.2} times the best", plan.loss_at_double)),
        ("budget", format!("{}: at most {} samples/s of CPU time", job.budget, rate(plan.budget_hz))),
        ("bound by", bound(plan)),
        ("without --horizon", anytime(job, plan)),
    ]);
    if job.replicas > 1 {
        text.extend(fleet(job, plan));
    }
    lines(&text)
}

/// Labels and what belongs to them, a line each.
fn lines(text: &[(&str, String)]) -> String {
    text.iter().fold(String::new(), |mut out, (label, text)| {
        let _ = writeln!(out, "{label:<18}{text}");
        out
    })
}

/// How good the samples are taken to be.
fn variance(job: &PlanJob) -> String {
    match job.variance_ratio {
        1.0 => "1: samples as good as independent ones; a run whose functions run on needs fewer".to_owned(),
        ratio => format!("{ratio}: the best rate is {:.2} times that of independent samples", ratio.cbrt()),
    }
}

fn measured(job: &PlanJob, plan: &Plan) -> String {
    let (error, ratio) = (seconds(plan.best.error_s), plan.best.error_s / job.true_s() * 100.0);
    match job.criterion {
        Criterion::UpperCurve { z } => {
            format!("at most {} at z = {z} (+{ratio:.2}%)", seconds(plan.best.high_s))
        }
        Criterion::MeanAbsolute => format!("off by {error} in the mean ({ratio:.2}%)"),
        Criterion::MeanSquared => {
            format!("off by {error} in the root mean square ({ratio:.2}%)")
        }
        Criterion::P95 => {
            format!("off by at most {error} in 95 of 100 runs ({ratio:.2}%)")
        }
    }
}

/// The error that the criterion names, as the chart calls it.
fn error_name(job: &PlanJob) -> &'static str {
    match job.criterion {
        Criterion::UpperCurve { .. } => "upper end",
        Criterion::MeanAbsolute => "mean absolute error",
        Criterion::MeanSquared => "root of the mean squared error",
        Criterion::P95 => "95th percentile of the error",
    }
}

/// What a run does that does not know how long it will last.
fn anytime(job: &PlanJob, plan: &Plan) -> String {
    let Anytime { samples, rate_hz, loss } = plan.anytime;
    format!(
        "the rate falls as the run goes on: {} samples in {}, {}/s at the end, error {loss:.2} times the best",
        grouped(samples),
        job.horizon,
        rate(rate_hz),
    )
}

/// What each replica does, and what comes of all of them.
fn fleet(job: &PlanJob, plan: &Plan) -> [(&'static str, String); 2] {
    let (replicas, fleet) = (f64::from(job.replicas), &plan.fleet);
    let by = match fleet.bound_by {
        BoundBy::Law => "the law",
        other => cap(other),
    };
    let each = format!(
        "{}: each samples {:.2} times as often as one alone: {}/s of CPU time (bound by {by}), {} samples",
        grouped(replicas),
        fleet.rate_hz / plan.rate_hz,
        rate(fleet.rate_hz),
        grouped(fleet.samples),
    );
    let sum = format!(
        "{} samples, error {:.3}% of the function's time, where that of one alone is {:.3}%",
        grouped(fleet.samples * replicas),
        fleet.error_ratio * 100.0,
        fleet.alone_error_ratio * 100.0,
    );
    [("replicas", each), ("all together", sum)]
}

/// What bounds a rate, other than the law.
fn cap(bound_by: BoundBy) -> &'static str {
    match bound_by {
        BoundBy::Budget => "the budget",
        BoundBy::Tick => "the kernel's tick, at which timers on CPU time expire",
        _ => "the shortest period of the kernel",
    }
}

fn bound(plan: &Plan) -> String {
    let by = match plan.bound_by {
        BoundBy::Law => return "the law: the best rate is within the budget".to_owned(),
        other => cap(other),
    };
    let rate = rate(plan.rate_hz);
    format!("{by}: {rate} samples/s, error {:.2} times the best", plan.loss_when_bound)
}

/// The plan for a program, on one line.
fn json(job: &PlanJob, plan: &Plan) -> String {
    let object = json!({
        "horizon_cpu_s": job.horizon.seconds(),
        "share_ratio": job.share.get(),
        "variance_ratio": job.variance_ratio,
        "overhead_us": job.overhead.seconds() * 1e6,
        "criterion": job.criterion.to_string(),
        "true_cpu_s": job.true_s(),
        "optimum_samples": plan.best.samples,
        "optimum_rate_hz": plan.optimum_rate_hz,
        "optimum": plan.best,
        "crossing_samples": plan.crossing_samples,
        "overhead_ratio": plan.overhead_ratio,
        "error_at_half_ratio": plan.loss_at_half,
        "error_at_double_ratio": plan.loss_at_double,
        "budget_ratio": job.budget.get(),
        "budget_rate_hz": plan.budget_hz,
        "kernel_rate_hz": plan.kernel_hz,
        "rate_hz": plan.rate_hz,
        "bound_by": plan.bound_by.as_str(),
        "error_at_rate_ratio": plan.loss_when_bound,
        "anytime_samples": plan.anytime.samples,
        "anytime_rate_hz": plan.anytime.rate_hz,
        "anytime_error_ratio": plan.anytime.loss,
        "replicas": job.replicas,
        "replica_rate_hz": plan.fleet.rate_hz,
        "replica_bound_by": plan.fleet.bound_by.as_str(),
        "replica_samples": plan.fleet.samples,
        "fleet_error_ratio": plan.fleet.error_ratio,
        "alone_error_ratio": plan.fleet.alone_error_ratio,
        "over_time": plan.moments,
        "curve": plan.curve,
    });
    format!("{object}\n")
}

/// Whole from 10 up, three digits below.
fn rate(hertz: f64) -> String {
    if hertz >= 10.0 { grouped(hertz) } else { format!("{hertz:.3}") }
}

/// A time with three decimals, in the unit that leaves it some digits.
fn seconds(time: f64) -> String {
    match time {
        _ if time >= 0.1 => format!("{time:.3} s"),
        _ if time >= 1e-4 => format!("{:.3} ms", time * 1e3),
        _ => format!("{:.3} us", time * 1e6),
    }
}

#[cfg(test)]
mod tests;
