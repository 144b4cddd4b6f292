//! The scenarios: what the targets do, and their budgets.

use crate::twins::Knobs;

/// Length of the time without sampling before and after (s), which shows how much the twins differ anyway.
pub const QUIET_S: f64 = 5.0;

/// A target and what may be spent on it.
#[derive(Clone, Copy, Debug)]
pub struct Cast {
    /// Share of its CPU time.
    pub budget_ratio: f64,
    /// Whether its CPU is the daemon's, too.
    pub beside_daemon: bool,
}

/// What all targets do for a while.
#[derive(Clone, Debug)]
pub struct Phase {
    /// For the reader.
    pub what: &'static str,
    /// How long, beside other phases.
    pub length: f64,
    /// The host's budget: share of the CPU time of all CPUs.
    pub host_ratio: f64,
    /// What each target does; `None` where it is none.
    pub knobs: Vec<Option<Knobs>>,
}

/// Targets and what becomes of them.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// One word.
    pub name: &'static str,
    /// Length of a turn of a twin, as a part of the usual.
    pub turn: f64,
    /// The targets.
    pub cast: Vec<Cast>,
    /// In order.
    pub phases: Vec<Phase>,
}

/// A host budget so large that only a target's own budget limits it.
const AMPLE: f64 = 0.05;
const PERCENT: f64 = 0.01;
/// Length of a phase, relative to others, that shows the usual load of a target: this takes twenty seconds, and until then the host's
/// budget is divided as if its peaks lasted.
const LONG: f64 = 2.5;
/// Full load of a CPU (%), which the twins of a pair share.
const ALL: u32 = 95;

fn knobs(duty: u32, depth: u32, threads: u32) -> Option<Knobs> {
    Some(Knobs { duty, depth, threads })
}

fn cast(budget_ratio: f64) -> Cast {
    Cast { budget_ratio, beside_daemon: false }
}

fn alone(what: &'static str, host_ratio: f64, knobs: Option<Knobs>) -> Phase {
    Phase { what, length: 1.0, host_ratio, knobs: vec![knobs] }
}

/// All of them.
pub fn all() -> Vec<Scenario> {
    vec![load(), depth(), threads(), targets(), budgets()]
}

/// A target's load: 5% of a CPU, nine times as much, and back.
fn load() -> Scenario {
    let phases = vec![
        alone("5% of a CPU", PERCENT, knobs(10, 20, 1)),
        alone("45% of a CPU", PERCENT, knobs(90, 20, 1)),
        alone("5% again", PERCENT, knobs(10, 20, 1)),
    ];
    Scenario { name: "load", turn: 1.0 / 3.0, cast: vec![cast(PERCENT)], phases }
}

fn depth() -> Scenario {
    let phases =
        vec![alone("5 frames", PERCENT, knobs(ALL, 5, 1)), alone("300 frames", PERCENT, knobs(ALL, 300, 1))];
    Scenario { name: "depth", turn: 1.0, cast: vec![cast(PERCENT)], phases }
}

fn threads() -> Scenario {
    let phases = vec![
        alone("1 thread", PERCENT, knobs(ALL, 20, 1)),
        alone("100 threads", PERCENT, knobs(ALL, 20, 100)),
    ];
    Scenario { name: "threads", turn: 1.0, cast: vec![cast(PERCENT)], phases }
}

/// More targets than the host's budget has room for, each with a generous one of its own.
fn targets() -> Scenario {
    const MANY: usize = 8;
    const HOST: f64 = 0.008;
    let cast = (0..MANY).map(|number| Cast { budget_ratio: 0.04, beside_daemon: number % 2 == 1 }).collect();
    let busy = knobs(ALL, 20, 1);
    let one = || (0..MANY).map(|number| busy.filter(|_| number == 0)).collect();
    let phase = |what, length, knobs| Phase { what, length, host_ratio: HOST, knobs };
    let phases = vec![
        phase("1 target", 1.5, one()),
        phase("8 targets", LONG, vec![busy; MANY]),
        phase("1 target again", LONG, one()),
    ];
    Scenario { name: "targets", turn: 0.3, cast, phases }
}

/// Two targets of one load, of which one may cost twice as much; then with less for both than they may cost.
fn budgets() -> Scenario {
    let busy = knobs(ALL, 20, 1);
    let phase = |what, host_ratio| Phase { what, length: 1.5, host_ratio, knobs: vec![busy; 2] };
    let phases = vec![phase("2% and 1%", AMPLE), phase("the same, host .6%", 0.006)];
    let second = Cast { budget_ratio: PERCENT, beside_daemon: true };
    Scenario { name: "budgets", turn: 0.5, cast: vec![cast(2.0 * PERCENT), second], phases }
}
