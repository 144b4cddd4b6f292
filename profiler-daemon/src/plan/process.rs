//! `plan --pid`: what sampling a process will cost, from watching it without sampling it.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use config::{Ratio, Span};
use profile_files::names::visible;
use profiler_core::attach::AttachMode;
use profiler_core::rate::{Activity, BoundBy, Figure, PRIOR_SHARE, Prediction};
use serde_json::json;

use super::{Plan, grouped, law, lines, pace, picture, rate};
use super::{PlanJob, PlanProcessJob};
use crate::explain;
use crate::output::{check_writable, write_text};
use crate::plot::{self, Chart};
use crate::run::Setup;
use crate::sampler::watch::Watch;
use crate::sys::procfs;
use crate::targets::Target;
use crate::terminal::Terminal;

/// Time between two looks: often enough for a thread that is not there for long, seldom enough to take no part.
const LOOK: Duration = Duration::from_millis(100);
/// For the person, of a process that sleeps.
const WHAT_IS_MISSING: &str = "it used no CPU time while it was watched; the figures assume a busy CPU and \
                               a stack of the usual depth";

/// Nothing was sampled, so nobody knows how long functions run on.
const VARIANCE: &str = "assumed to be 1; sampling shows how long functions run on, which lowers the rate";

/// What is known of the process, and what follows.
struct Forecast {
    name: String,
    threads: usize,
    watched: Activity,
    prediction: Prediction,
    notes: Vec<String>,
}

/// Watches, predicts and prints; draws the curve where a file is asked for.
pub(crate) fn run(job: &PlanProcessJob, terminal: Terminal) -> Result<()> {
    if let Some(file) = &job.file {
        check_writable(file)?;
    }
    let forecast = forecast(job)?;
    let function = largest_function(job, &forecast.prediction)?;
    let plan = law::plan_under(&function, forecast.prediction.caps)?;
    let mut charts = vec![chart(&forecast, &function, &plan)];
    let (mut drawn, mut table) = (charts[0].text(terminal.columns()), String::new());
    // At a fixed rate neither law is followed.
    if job.sampling.rate.is_none() {
        let rates = pace::rates(&function, &plan);
        drawn = format!("{drawn}\n{}", rates.text(terminal.columns()));
        table = pace::table(&function, &plan) + "\n";
        charts.extend([rates, pace::samples(&function, &plan)]);
    }
    if let Some(file) = &job.file {
        write_text(file, &plot::svg(&charts))?;
        terminal.say(&format!("wrote {}", file.display()));
    }
    if job.json {
        return terminal.print(&json(job, &forecast, &plan));
    }
    terminal.print(&format!("{drawn}\n{table}{}", render(job, &forecast)))
}

fn forecast(job: &PlanProcessJob) -> Result<Forecast> {
    let pid = job.pid;
    Target::Pids(vec![pid]).resolve()?;
    explain::kernel_thread(pid)?;
    let mut notes = Vec::new();
    explain::maps(pid, procfs::executable_maps(pid).map(drop), &mut notes)?;
    let setup = Setup::begin(&job.sampling)?;
    notes.extend(setup.calibration.note.clone());
    let name = visible(&procfs::comm(pid).unwrap_or_default());
    let (threads, processes, watched) = watch(pid, job.duration)?;
    if !watched.was_seen() {
        notes.push(WHAT_IS_MISSING.to_owned());
    }
    if watched.unseen_forks > watched.forks {
        notes.push(unseen(&watched));
    }
    let prediction = setup.predict(&job.sampling, threads, &processes, &watched)?;
    Ok(Forecast { name, threads, watched, prediction, notes })
}

/// Looks at the process until the time is up.
fn watch(pid: u32, duration: Duration) -> Result<(usize, Vec<u32>, Activity)> {
    let began = Instant::now();
    let mut watch = Watch::begin(&[pid]);
    loop {
        let left = duration.saturating_sub(began.elapsed());
        std::thread::sleep(left.min(LOOK));
        if procfs::has_ended(pid) {
            return Err(anyhow!(
                "process {pid} ended while it was watched; start it again, or watch it for less (--duration)"
            ));
        }
        if left <= LOOK {
            let watched = watch.end();
            return Ok((watch.threads(), watch.processes().to_vec(), watched));
        }
        watch.look();
    }
}

/// CPU time of the run that is drawn where no horizon is given.
const NOMINAL_RUN: Span = Span::MINUTE;

/// The function that the curve is drawn for: nobody knows the functions yet, and the controller begins with this one.
fn largest_function(job: &PlanProcessJob, prediction: &Prediction) -> Result<PlanJob> {
    let sampling = &job.sampling;
    Ok(PlanJob {
        clock_tick_ns: None,
        horizon: sampling.horizon.unwrap_or(NOMINAL_RUN),
        share: Ratio::new(PRIOR_SHARE)?,
        variance_ratio: 1.0,
        replicas: 1,
        overhead: Span::try_from(Duration::from_secs_f64(prediction.overhead_ns.mean * 1e-9))?,
        criterion: sampling.criterion,
        budget: sampling.budget,
        file: None,
        json: false,
    })
}

fn chart(forecast: &Forecast, function: &PlanJob, plan: &Plan) -> Chart {
    let chart = picture::chart(function, plan);
    let cost_us = forecast.prediction.overhead_ns.mean * 1e-3;
    let title = format!(
        "{}: a function that takes {} of {}, at {cost_us:.2} µs a sample",
        forecast.name, function.share, function.horizon
    );
    Chart { title, ..chart }
}

/// The prediction for a person.
fn render(job: &PlanProcessJob, forecast: &Forecast) -> String {
    let (watched, prediction) = (&forecast.watched, &forecast.prediction);
    let plural = if forecast.threads == 1 { "" } else { "s" };
    let process = format!("{} ({}), {} thread{plural}", forecast.name, job.pid, forecast.threads);
    let mut text = vec![
        ("process", process),
        ("watched", seen(watched)),
        ("a sample", format!("{} µs (o)", plus_minus(prediction.overhead_ns, 1e-3, 2))),
        ("attach", attach(prediction.attach_mode).to_owned()),
        ("at any rate", fixed(prediction)),
        ("rate", predicted_rate(job, prediction)),
        ("variance ratio", VARIANCE.to_owned()),
        ("bound by", bound(prediction)),
        ("overhead", overhead(job, forecast)),
    ];
    text.extend(forecast.notes.iter().map(|note| ("note", note.clone())));
    lines(&text)
}

fn predicted_rate(job: &PlanProcessJob, prediction: &Prediction) -> String {
    let rate = plus_minus(prediction.rate_hz, 1.0, 0);
    match (job.sampling.rate, job.sampling.horizon) {
        (None, None) => {
            format!("{rate} samples/s of CPU time in a run of {NOMINAL_RUN}; more in a shorter one")
        }
        _ => format!("{rate} samples/s of CPU time"),
    }
}

/// What the target and the profiler pay, each beside its budget.
fn overhead(job: &PlanProcessJob, forecast: &Forecast) -> String {
    let prediction = &forecast.prediction;
    let of_samples = prediction.rate_hz.mean * prediction.overhead_ns.mean * 1e-9;
    let slowdown = of_samples + prediction.events_ratio.mean;
    let own = (prediction.overhead_ratio.mean - slowdown).max(0.0) * forecast.watched.utilisation_cpus();
    // A fixed rate is kept whatever it takes.
    let at_most = |budget: Option<Ratio>| {
        let budget = budget.filter(|_| job.sampling.rate.is_none());
        budget.map_or_else(String::new, |budget| format!(" of at most {budget}"))
    };
    format!(
        "slowdown {:.2}%{}, own CPU time {:.2}% of a CPU{}",
        slowdown * 100.0,
        at_most(Some(job.sampling.budget)),
        own * 100.0,
        at_most(job.sampling.own_cpu),
    )
}

fn seen(watched: &Activity) -> String {
    format!(
        "{:.1} s: {:.2} CPUs, {} switches/s, {} new threads, {} new mappings",
        watched.wall_ns as f64 * 1e-9,
        watched.target_cpu_ns as f64 / watched.wall_ns.max(1) as f64,
        grouped(watched.switches_per_s()),
        watched.forks,
        watched.side_records,
    )
}

fn unseen(watched: &Activity) -> String {
    format!(
        "{} more tasks started and ended on this machine between two readings; half of them are attributed to \
         it, and their mappings are not counted",
        watched.unseen_forks
    )
}

fn attach(mode: AttachMode) -> &'static str {
    match mode {
        AttachMode::Task => "task: events for each thread",
        AttachMode::Cpu => "cpu: events for whole CPUs",
        AttachMode::Cgroup => "cgroup: events for its control group",
    }
}

fn fixed(prediction: &Prediction) -> String {
    format!(
        "{}: switches, mappings and threads {}, profiler {}",
        percent(prediction.fixed_ratio),
        percent(prediction.events_ratio),
        percent(prediction.own_ratio),
    )
}

fn bound(prediction: &Prediction) -> String {
    let by = match prediction.bound_by {
        BoundBy::Law => "the law: the best rate is within the budget",
        BoundBy::Budget => "the budget",
        BoundBy::OwnCpu => "the profiler's own CPU time",
        BoundBy::Host => "the host's budget",
        BoundBy::Kernel => "the shortest period of the kernel",
        BoundBy::Tick => "the kernel's tick",
        BoundBy::Bytes => "the bytes that samples bring",
        BoundBy::Floor => "the lowest rate: the budget leaves no room for samples",
        BoundBy::Fixed => "--rate",
        BoundBy::Bucket => "what was overspent",
    };
    let caps = prediction.caps;
    format!("{by} (law {}/s, budget {}/s)", rate(prediction.unbounded_rate_hz), rate(caps.budget_hz))
}

fn plus_minus(figure: Figure, unit: f64, decimals: usize) -> String {
    format!("{:.decimals$} ± {:.decimals$}", figure.mean * unit, figure.se * unit)
}

fn percent(ratio: Figure) -> String {
    format!("{:.3}% ± {:.3}%", ratio.mean * 100.0, ratio.se * 100.0)
}

/// The prediction for a program, on one line.
fn json(job: &PlanProcessJob, forecast: &Forecast, plan: &Plan) -> String {
    let (watched, prediction) = (&forecast.watched, &forecast.prediction);
    let object = json!({
        "process": forecast.name,
        "pid": job.pid,
        "threads": forecast.threads,
        "watched_s": watched.wall_ns as f64 * 1e-9,
        "target_cpu_s": watched.target_cpu_ns as f64 * 1e-9,
        "foreign_cpu_s": watched.foreign_cpu_ns as f64 * 1e-9,
        "seen": watched.was_seen(),
        "switches": watched.switches,
        "new_threads": watched.forks,
        "unseen_threads": watched.unseen_forks,
        "ended_threads": watched.ends,
        "new_mappings": watched.side_records,
        "stack_bytes": watched.stack_bytes.map(|figure| figure.mean),
        "predicted_overhead_us": prediction.overhead_ns.mean * 1e-3,
        "predicted_overhead_se_us": prediction.overhead_ns.se * 1e-3,
        "predicted_fixed_ratio": prediction.fixed_ratio.mean,
        "predicted_fixed_se_ratio": prediction.fixed_ratio.se,
        "predicted_events_ratio": prediction.events_ratio.mean,
        "predicted_events_se_ratio": prediction.events_ratio.se,
        "predicted_own_ratio": prediction.own_ratio.mean,
        "predicted_own_se_ratio": prediction.own_ratio.se,
        "predicted_rate_hz": prediction.rate_hz.mean,
        "predicted_rate_se_hz": prediction.rate_hz.se,
        "predicted_overhead_ratio": prediction.overhead_ratio.mean,
        "predicted_overhead_se_ratio": prediction.overhead_ratio.se,
        "attach_mode": prediction.attach_mode.as_str(),
        "bound_by": prediction.bound_by.as_str(),
        "unbounded_rate_hz": prediction.unbounded_rate_hz,
        "budget_ratio": job.sampling.budget.get(),
        "budget_rate_hz": prediction.caps.budget_hz,
        "kernel_rate_hz": prediction.caps.kernel_hz,
        "bytes_rate_hz": prediction.caps.bytes_hz,
        "horizon_cpu_s": job.sampling.horizon.unwrap_or(NOMINAL_RUN).seconds(),
        "criterion": job.sampling.criterion.to_string(),
        "share_ratio": PRIOR_SHARE,
        "variance_ratio": 1.0,
        "over_time": plan.moments,
        "curve": plan.curve,
        "notes": forecast.notes,
    });
    format!("{object}\n")
}

#[cfg(test)]
#[path = "process_tests.rs"]
mod tests;
