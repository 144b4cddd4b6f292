//! Checks that the budget was kept, in time ranges of ten seconds and of a minute.

use std::collections::BTreeMap;

use serde_json::Value;

use super::judge::{Line, Run, at_ms, line};
use crate::daemon::taken_s;
use crate::experiment::percent;

const SHORT_MS: u64 = 10_000;
const MINUTE_MS: u64 = 60_000;
/// Share of the machine's CPU time that targets are charged with in a minute: some come and go between two readings.
const LEAST_ACCOUNTED: f64 = 0.85;
const MOST_ACCOUNTED: f64 = 1.05;
/// A target that uses less CPU time in a time range is idle (s).
const IDLE_S: f64 = 0.5;
/// CPUs that a target counts as using at least, by the definition of its slowdown.
const FLOOR_CPUS: f64 = 0.01;
/// A cost up to this part of the budget passes: costs are known only this precisely.
const WITHIN: f64 = 1.02;
/// Share of the time ranges that must be within budget, and by how much the others may exceed it: for ten seconds, in which a
/// target may have been attached to or restarted, and for a minute.
const LEAST_WITHIN: f64 = 0.95;
const MOST_OVER: f64 = 2.0;
const MOST_OVER_IN_A_MINUTE: f64 = 1.2;

/// Overhead over budget in time ranges of one length.
#[derive(Default)]
struct BudgetTally {
    count: usize,
    within: usize,
    worst: f64,
}

impl BudgetTally {
    fn add(&mut self, ratio: f64) {
        self.count += 1;
        self.within += usize::from(ratio <= WITHIN);
        self.worst = self.worst.max(ratio);
    }

    fn share(&self) -> f64 {
        self.within as f64 / self.count.max(1) as f64
    }

    fn hold(&self, most_over: f64) -> bool {
        self.share() >= LEAST_WITHIN && self.worst <= most_over
    }
}

/// The same of both lengths, and of all the time.
#[derive(Default)]
struct Held {
    short: BudgetTally,
    long: BudgetTally,
    spent: f64,
    used: f64,
}

impl Held {
    fn of(&mut self, length_ms: u64) -> &mut BudgetTally {
        if length_ms == SHORT_MS { &mut self.short } else { &mut self.long }
    }

    /// Notes the cost in a time range and the CPU time used in it, beside the budget.
    fn add(&mut self, length_ms: u64, spent: f64, used: f64, ratio: f64) {
        self.of(length_ms).add(ratio);
        if length_ms == SHORT_MS {
            (self.spent, self.used) = (self.spent + spent, self.used + used);
        }
    }

    fn mean(&self) -> f64 {
        self.spent / self.used.max(f64::MIN_POSITIVE)
    }

    fn line(&self, what: String) -> Line {
        let (short, long) = (&self.short, &self.long);
        line(
            what,
            format!(
                "{} of {} stretches of 10 s, worst {:.2} of the budget; {} of {} minutes, worst {:.2}; mean {}",
                percent(short.share()),
                short.count,
                short.worst,
                percent(long.share()),
                long.count,
                long.worst,
                percent(self.mean()),
            ),
            short.count > 0 && short.hold(MOST_OVER) && long.hold(MOST_OVER_IN_A_MINUTE),
        )
    }
}

/// Of the host and of each target.
pub(super) fn lines(run: &Run<'_>) -> Vec<Line> {
    let mut lines = vec![host(run)];
    let mut targets: BTreeMap<String, Held> = BTreeMap::new();
    let mut idle: BTreeMap<String, f64> = BTreeMap::new();
    for (life, length_ms) in lives_twice(run) {
        each_range(&life, length_ms, |before, after| {
            let wall_s = (at_ms(after) - at_ms(before)) as f64 * 1e-3;
            for (name, then, now) in both(before, after) {
                let since = |key: &str| now[key].as_f64().unwrap_or(0.0) - then[key].as_f64().unwrap_or(0.0);
                let (cpu_s, spent_s) = (since("cpu_s"), since("overhead_s"));
                if cpu_s < IDLE_S * wall_s / 10.0 {
                    let most = idle.entry(name).or_default();
                    *most = most.max(spent_s / wall_s);
                    continue;
                }
                // What else it costs is judged with the host's.
                let taken_s = taken_s(now) - taken_s(then);
                let budget = |of: &Value| of["own_budget_ratio"].as_f64().unwrap_or(0.0);
                let ratio = taken_s / cpu_s.max(FLOOR_CPUS * wall_s) / budget(then).max(budget(now));
                targets.entry(name).or_default().add(length_ms, taken_s, cpu_s, ratio);
            }
        });
    }
    lines.extend(targets.iter().map(|(name, held)| held.line(format!("slowdown of {name}"))));
    let worst = idle.iter().max_by(|a, b| a.1.total_cmp(b.1));
    lines.extend(worst.map(|(name, cpus)| {
        line(
            "idle targets cost next to nothing",
            format!("most {} of a CPU ({name})", percent(*cpus)),
            *cpus < 0.005,
        )
    }));
    lines.extend(accounted(run));
    lines
}

/// Compares the targets' CPU time with the machine's: `everything` is one of them, so each process belongs to a target.
fn accounted(run: &Run<'_>) -> Option<Line> {
    let mut shares: Vec<f64> = Vec::new();
    for life in run.lives() {
        each_range(&life, MINUTE_MS, |before, after| {
            let since = |key: &str| Some(after[key].as_f64()? - before[key].as_f64()?);
            let Some((machine_s, own_s)) = since("machine_s").zip(since("cpu_s")) else { return };
            shares.push(used_s(before, after) / (machine_s - own_s));
        });
    }
    let least = shares.iter().copied().reduce(f64::min)?;
    let most = shares.iter().copied().fold(0.0, f64::max);
    Some(line(
        "all CPU time of the machine is some target's",
        format!("{} to {} of it in {} minutes", percent(least), percent(most), shares.len()),
        least >= LEAST_ACCOUNTED && most <= MOST_ACCOUNTED,
    ))
}

/// CPU time of targets between two polls. Targets that are gone are left out; new ones started from zero.
fn used_s(before: &Value, after: &Value) -> f64 {
    let cpu_s = |target: &Value| target["cpu_s"].as_f64().unwrap_or(0.0);
    let then: BTreeMap<&str, f64> = targets(before).map(|(name, target)| (name, cpu_s(target))).collect();
    let since = |(name, target): (&str, &Value)| {
        let (then_s, now_s) = (then.get(name).copied().unwrap_or(0.0), cpu_s(target));
        if now_s < then_s { now_s } else { now_s - then_s } // another of the same name
    };
    targets(after).map(since).sum()
}

fn host(run: &Run<'_>) -> Line {
    let (mut held, mut of_no_target) = (Held::default(), Held::default());
    for (life, length_ms) in lives_twice(run) {
        each_range(&life, length_ms, |before, after| {
            let figure = |of: &Value, key: &str| of["status"]["host"][key].as_f64().unwrap_or(0.0);
            let since = |key: &str| figure(after, key) - figure(before, key);
            let wall_s = (at_ms(after) - at_ms(before)) as f64 * 1e-3 * figure(after, "cpus");
            // By its own account and, of its CPU time, by the kernel's.
            let spent_s = since("self_cpu_s") + since("charged_s");
            held.add(length_ms, spent_s, wall_s, spent_s / wall_s / figure(after, "budget_ratio"));
            of_no_target.add(length_ms, since("housekeeping_cpu_s"), wall_s, 0.0);
        });
    }
    let line = held.line("budget of the host".to_owned());
    Line { found: format!("{} ({} of no target)", line.found, percent(of_no_target.mean())), ..line }
}

/// The polls of each process of the daemon, judged in time ranges of both lengths.
fn lives_twice<'v>(run: &Run<'v>) -> impl Iterator<Item = (Vec<&'v Value>, u64)> {
    let lives = run.lives();
    [SHORT_MS, MINUTE_MS]
        .into_iter()
        .flat_map(move |length_ms| lives.clone().into_iter().map(move |life| (life, length_ms)))
}

/// Pairs of polls that are as far apart, side by side.
fn each_range(life: &[&Value], length_ms: u64, mut each: impl FnMut(&Value, &Value)) {
    let mut before: Option<&Value> = None;
    for poll in life {
        match before {
            Some(first) if at_ms(poll) - at_ms(first) < length_ms => {}
            Some(first) => {
                each(first, poll);
                before = Some(poll);
            }
            None => before = Some(poll),
        }
    }
}

/// Targets that are in both polls, and were sampled all the time as far as is seen.
fn both<'v>(before: &'v Value, after: &'v Value) -> impl Iterator<Item = (String, &'v Value, &'v Value)> {
    let then: BTreeMap<&str, &Value> = targets(before).collect();
    targets(after).filter_map(move |(name, now)| Some((name.to_owned(), *then.get(name)?, now)))
}

/// The targets of a poll.
pub(super) fn targets(poll: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let list = poll["targets"]["targets"].as_array().or_else(|| poll["targets"].as_array());
    list.into_iter().flatten().filter_map(|target| Some((target["name"].as_str()?, target)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_target_that_is_gone_takes_nothing_off_what_others_used() {
        let poll = |targets: &[(&str, f64)]| {
            let of = |&(name, cpu_s): &(&str, f64)| json!({ "name": name, "cpu_s": cpu_s });
            json!({ "targets": { "targets": targets.iter().map(of).collect::<Vec<_>>() } })
        };
        let before = poll(&[("rest", 100.0), ("steady", 5.0), ("asked for", 50.0), ("again", 9.0)]);
        let after = poll(&[("rest", 130.0), ("steady", 5.5), ("new", 2.0), ("again", 1.0)]);
        assert_eq!(used_s(&before, &after), 33.5);
    }
}
