//! The cost of a day: 24 hours on a machine of 64 CPUs and a target of 1,000 threads, under the real controller
//! in simulated time. Nights are idle, days are busy, bursts come at any hour. Prints for each way to attach what it costs the
//! machine, what the profiler uses, and whether the budget is kept in every second.
//!
//! Options: `--hours 24`, `--cpus 64`, `--threads 1000`, `--budget-ratio .01`, `--switches 2000` (per
//! CPU-second), `--strangers .5` (CPUs kept busy by others), `--own-per-second 500`, `--own-per-sample 2.5`,
//! `--own-per-thread 10` (µs), `--sample 11.6` (µs), `--seed 1`.

use anyhow::Result;
use profiler_core::attach::AttachMode;
use profiler_core::rate::{Cost, CostModel};
use serde::Serialize;
use tests::experiment::{option, print, progress, row};
use tests::sim::{Day, DayOutcome, OwnCosts, run_day};
use tests::verdict::{Verdict, ensure_none_fails};

const WORST_1S: f64 = 1.2;
const WORST_10S: f64 = 1.02;
const DAY: f64 = 1.0;

#[derive(Serialize)]
struct Found {
    asked: &'static str,
    outcome: DayOutcome,
    verdicts: Vec<Verdict>,
}

fn main() -> Result<()> {
    let day = day()?;
    let ways = [("auto", None), ("cpu", Some(AttachMode::Cpu)), ("task", Some(AttachMode::Task))];
    let play = |(asked, mode)| {
        progress(&format!("{} hours, attached by {asked}", day.hours));
        let outcome = run_day(&Day { mode, ..day.clone() });
        Found { asked, verdicts: judge(asked, &outcome), outcome }
    };
    let found = ways.map(play);
    report(&day, &found)?;
    // Events of threads are there to compare with: nobody has to take them.
    ensure_none_fails(found.iter().filter(|found| found.asked != "task").flat_map(|found| &found.verdicts))
}

fn day() -> Result<Day> {
    let default = Day::default();
    let own = OwnCosts {
        per_second_us: option("--own-per-second", default.own.per_second_us)?,
        per_sample_us: option("--own-per-sample", default.own.per_sample_us)?,
        per_thread_us: option("--own-per-thread", default.own.per_thread_us)?,
        ..default.own
    };
    let costs = CostModel { per_sample_ns: cost(option("--sample", 11.6)?), ..default.costs };
    Ok(Day {
        cpus: option("--cpus", default.cpus)?.clamp(1, 1 << 14),
        threads: option("--threads", default.threads)?.clamp(1, 1 << 22),
        hours: option("--hours", default.hours)?,
        budget_ratio: option("--budget-ratio", default.budget_ratio)?,
        switches_per_cpu_s: option("--switches", default.switches_per_cpu_s)?,
        non_target_cpus: option("--strangers", default.non_target_cpus)?,
        seed: option("--seed", default.seed)?,
        costs,
        own,
        ..default
    })
}

fn cost(us: f64) -> Cost {
    Cost::new(us * 1e3, us * 50.0)
}

fn times_budget(ratio: f64) -> String {
    format!("{ratio:.3} × budget")
}

fn judge(asked: &str, outcome: &DayOutcome) -> Vec<Verdict> {
    let spans = [
        ("any 1 s", outcome.worst_1s_of_budget, WORST_1S),
        ("any 10 s", outcome.worst_10s_of_budget, WORST_10S),
        ("the whole", outcome.day_of_budget, DAY),
    ];
    let verdict =
        |(span, ratio, bound)| Verdict::exact(&format!("{asked}: {span}"), ratio, bound, times_budget);
    spans.map(verdict).to_vec()
}

/// A readable line with one figure for each way to attach.
type Line = (&'static str, fn(&DayOutcome) -> String);

const LINES: &[Line] = &[
    ("in force at the end", |day| format!("{}, {} changes", day.mode.as_str(), day.mode_changes)),
    ("clocks", |day| day.resources.clocks.to_string()),
    ("files, while renewing", |day| format!("{}, {}", day.resources.files, day.resources.files_renewing)),
    ("rings", |day| format!("{:.2} MiB", day.resources.rings_bytes as f64 / f64::from(1 << 20))),
    ("rings read at least every", |day| format!("{:.1} ms", day.least_time_to_fill_ns as f64 * 1e-6)),
    ("CPU time of the target", |day| format!("{:.0} s", day.target_cpu_s)),
    ("CPU time of the profiler", |day| {
        format!("{:.1} s, {:.3}% of the target's", day.own_cpu_s, 100.0 * day.own_cpu_s / day.target_cpu_s)
    }),
    ("samples", |day| day.samples.to_string()),
    ("retunes", |day| day.retunes.to_string()),
    ("worst second", |day| {
        let (at_h, busy) = day.worst_1s_at;
        let minute = at_h % 1.0 * 60.0;
        format!(
            "{:02.0}:{:02.0}:{:02.0}, {busy:.2} CPUs busy",
            at_h.floor(),
            minute.floor(),
            minute % 1.0 * 60.0
        )
    }),
    ("seconds above 1.2 × budget", |day| format!("{:.3}%", 100.0 * day.over_in_1s_ratio)),
];

fn report(day: &Day, found: &[Found]) -> Result<()> {
    let mut rows = vec![row([&format!("{} h, {} CPUs, {} threads", day.hours, day.cpus, day.threads)])];
    rows[0].extend(found.iter().map(|found| found.asked.to_string()));
    for (name, show) in LINES {
        let mut line = row([name]);
        line.extend(found.iter().map(|found| show(&found.outcome)));
        rows.push(line);
    }
    let verdicts = found.iter().flat_map(|found| &found.verdicts);
    print(&rows, &verdicts.map(|verdict| verdict.line().to_string()).collect::<Vec<_>>(), &found)
}
