//! Plays a scenario: runs a daemon with its own settings file and twins, and observes both.

use std::collections::BTreeMap;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use serde_json::Value;

use super::scenarios::{Phase, QUIET_S, Scenario};
use crate::daemon::{Daemon, taken_s};
use crate::experiment::progress;
use crate::soak::client::get_json;
use crate::twins::{Knobs, Turn, Twins, now_s};

/// Time between two readings of the daemon's CPU time, and after how many of them its status is read.
const LOOK: Duration = Duration::from_millis(50);
const LOOKS_PER_POLL: u32 = 20;
const PATIENCE: Duration = Duration::from_secs(10);
/// CPU time that one profile sums up: so little that the budgets limit the rate, not the law.
const HORIZON: &str = "1s";

/// What the daemon says of a target.
#[derive(Clone, Copy, Debug, Default)]
pub struct Said {
    /// CPU time of the target (s).
    pub cpu_s: f64,
    /// Charged to it (s).
    pub charged_s: f64,
    /// The part of it for switches and for records that are no samples (s).
    pub events_s: f64,
    /// Own CPU time in its turns (s).
    pub own_s: f64,
    /// Charged to non-target processes (s).
    pub foreign_s: f64,
    /// Samples.
    pub samples: f64,
    /// The budget in force (ratio).
    pub granted_ratio: f64,
}

/// The daemon's report at a moment.
#[derive(Clone, Debug)]
pub struct Poll {
    /// On the clock of the turns (s).
    pub at_s: f64,
    /// Own CPU time that no target causes (s).
    pub housekeeping_s: f64,
    /// All of it (s), and the kernel's figure.
    pub own_s: f64,
    /// The part of it that was set-up (s).
    pub set_up_s: f64,
    /// By the kernel (s).
    pub kernel_own_s: f64,
    /// Charged to targets and non-target processes (s).
    pub charged_s: f64,
    /// The most of any ten seconds (ratio to all CPUs).
    pub worst_10s_ratio: f64,
    /// The targets that are sampled.
    pub targets: BTreeMap<usize, Said>,
}

/// A phase as it was played.
#[derive(Clone, Debug)]
pub struct Played {
    /// From when until when (s).
    pub span_s: (f64, f64),
    /// The last decisions for each target, oldest first.
    pub decisions: BTreeMap<usize, Vec<Value>>,
    /// What the daemon says of its targets in the end.
    pub statuses: Value,
}

/// All observations.
pub struct Show {
    /// Every pair's turns.
    pub turns: Vec<Vec<Turn>>,
    /// The time ranges without sampling.
    pub quiet_s: [(f64, f64); 2],
    /// The phases.
    pub phases: Vec<Played>,
    /// What the daemon said, about once a second.
    pub polls: Vec<Poll>,
    /// The daemon's CPU time: moments and what it had used (s).
    pub own: Vec<(f64, f64)>,
    /// CPUs that are online.
    pub cpus: f64,
}

struct Stage<'s> {
    scenario: &'s Scenario,
    attach_mode: &'s str,
    daemon: Daemon,
    twins: Vec<Twins>,
    polls: Vec<Poll>,
    own: Vec<(f64, f64)>,
}

/// Plays it with phases of so many seconds; the targets' CPU and the daemon's.
///
/// Events are attached to threads: events for whole CPUs interrupt both twins, so their cost cannot be measured.
pub fn play(scenario: &Scenario, phase_s: f64, attach_mode: &str, cpus: (usize, usize)) -> Result<Show> {
    let mut twins: Vec<Twins> = Vec::new();
    for (number, cast) in scenario.cast.iter().enumerate() {
        let cpu = if cast.beside_daemon { cpus.1 } else { cpus.0 };
        let knobs = scenario.phases.iter().find_map(|phase| phase.knobs[number]).context("a part")?;
        twins.push(Twins::turning(cpu, knobs, scenario.turn, twins.first())?);
    }
    let daemon = Daemon::start(60, "target = []")?;
    let mut stage = Stage { scenario, attach_mode, daemon, twins, polls: Vec::new(), own: Vec::new() };
    let before = stage.quiet(|number| scenario.phases.iter().find_map(|phase| phase.knobs[number]))?;
    let mut phases = Vec::new();
    for phase in &scenario.phases {
        progress(&format!("{}: {}", scenario.name, phase.what));
        phases.push(stage.phase(phase, phase.length * phase_s)?);
    }
    stage.daemon.write_settings(60, "target = []")?;
    stage.daemon.ctl(&["reload"])?.expect_status(0)?;
    let after = stage.quiet(|number| scenario.phases.iter().rev().find_map(|phase| phase.knobs[number]))?;
    let online = stage.status()?["host"]["cpus"].as_f64().context("a number of CPUs")?;
    let turns = stage.twins.into_iter().map(Twins::end).collect::<Result<Vec<_>>>()?;
    Ok(Show { turns, quiet_s: [before, after], phases, polls: stage.polls, own: stage.own, cpus: online })
}

impl Stage<'_> {
    /// Runs all twins without sampling and without pauses.
    fn quiet(&self, knobs: impl Fn(usize) -> Option<Knobs>) -> Result<(f64, f64)> {
        self.turn_all(|number| Some(Knobs { duty: 100, ..knobs(number)? }))?;
        let from_s = now_s()?;
        // Many on a CPU take few turns each.
        sleep(Duration::from_secs_f64(QUIET_S * (1.0 + self.twins.len() as f64 / 4.0)));
        Ok((from_s, now_s()?))
    }

    fn turn_all(&self, knobs: impl Fn(usize) -> Option<Knobs>) -> Result<()> {
        let pause = Knobs { duty: 0, depth: 0, threads: 1 };
        let mut twins = self.twins.iter().enumerate();
        twins.try_for_each(|(number, twins)| twins.turn(knobs(number).unwrap_or(pause)))
    }

    fn phase(&mut self, phase: &Phase, seconds: f64) -> Result<Played> {
        self.daemon.write_settings(60, &self.settings(phase))?;
        let from_s = now_s()?;
        self.daemon.ctl(&["reload"])?.expect_status(0)?;
        self.turn_all(|number| phase.knobs[number])?;
        for number in taking_part(phase) {
            self.daemon.wait_for(&name(number), "sampled")?;
        }
        let mut looks = 0;
        while now_s()? < from_s + seconds {
            if looks % LOOKS_PER_POLL == 0 {
                self.poll(phase)?;
            }
            self.own.push((now_s()?, self.daemon.own_cpu_s()?));
            looks += 1;
            sleep(LOOK);
        }
        self.poll(phase)?;
        let decisions =
            taking_part(phase).map(|number| Ok((number, self.decisions(number)?))).collect::<Result<_>>()?;
        let statuses = ask(&self.daemon.socket(), "/v1/targets")?["targets"].clone();
        Ok(Played { span_s: (from_s, now_s()?), decisions, statuses })
    }

    fn settings(&self, phase: &Phase) -> String {
        let percent = |ratio: f64| format!("\"{:.4}%\"", 100.0 * ratio);
        let mut text = format!(
            "[budget]\nhost = {}\n\n[sampling]\nhorizon = \"{HORIZON}\"\nattach_mode = \"{}\"\n\n",
            percent(phase.host_ratio),
            self.attach_mode
        );
        for number in taking_part(phase) {
            let budget = percent(self.scenario.cast[number].budget_ratio);
            let (name, pid) = (name(number), self.twins[number].pid);
            text += &format!("[[target]]\nname = \"{name}\"\npid = {pid}\nbudget = {budget}\n\n");
        }
        text
    }

    fn status(&self) -> Result<Value> {
        ask(&self.daemon.socket(), "/v1/status")
    }

    fn poll(&mut self, phase: &Phase) -> Result<()> {
        let (status, targets) = (self.status()?, ask(&self.daemon.socket(), "/v1/targets")?);
        let (at_s, kernel_own_s) = (now_s()?, self.daemon.own_cpu_s()?);
        let host = |key: &str| status["host"][key].as_f64().with_context(|| format!("no {key}"));
        let list = targets["targets"].as_array().context("a list of targets")?;
        let said = taking_part(phase)
            .filter_map(|number| {
                let target = list.iter().find(|target| target["name"] == name(number))?;
                Some((number, said(target)?))
            })
            .collect();
        self.polls.push(Poll {
            at_s,
            housekeeping_s: host("housekeeping_cpu_s")?,
            own_s: host("self_cpu_s")?,
            set_up_s: host("setup_cpu_s")?,
            kernel_own_s,
            charged_s: host("charged_s")?,
            worst_10s_ratio: host("overhead_worst_10s_ratio")?,
            targets: said,
        });
        Ok(())
    }

    fn decisions(&self, number: usize) -> Result<Vec<Value>> {
        let path = format!("/v1/targets/{}/decisions", name(number));
        let all = ask(&self.daemon.socket(), &path)?;
        let list = all["decisions"].as_array().filter(|list| !list.is_empty());
        list.cloned().with_context(|| format!("no decision for {}", name(number)))
    }
}

fn said(target: &Value) -> Option<Said> {
    let figure = |key: &str| target[key].as_f64();
    let part = |key: &str| target["overhead_parts"][key].as_f64();
    let cpu_s = figure("cpu_s")?;
    Some(Said {
        cpu_s,
        charged_s: taken_s(target),
        events_s: (part("switches_ratio")? + part("side_records_ratio")?) * cpu_s,
        own_s: part("self_ratio")? * cpu_s,
        foreign_s: part("foreign_ratio")? * cpu_s,
        samples: figure("samples")?,
        granted_ratio: figure("budget_ratio")?,
    })
}

fn ask(socket: &Path, path: &str) -> Result<Value> {
    get_json(socket, path, PATIENCE).map_err(|why| anyhow!("no answer to {path}: {why:?}"))
}

/// The targets of a phase.
pub fn taking_part(phase: &Phase) -> impl Iterator<Item = usize> {
    phase.knobs.iter().enumerate().filter_map(|(number, knobs)| knobs.map(|_| number))
}

/// What the daemon calls a target.
pub fn name(number: usize) -> String {
    format!("t{number}")
}
