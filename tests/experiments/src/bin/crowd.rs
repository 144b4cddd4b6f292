//! Checks that the number of targets does not matter. The same 199 small services run as one target, as 19 and as 199. Each division
//! must get as many samples as the others, or as its law asks for where that is less (one large target needs fewer than its parts
//! together), and the daemon must stay within its budget in every fifteen seconds. Ends with an error otherwise.
//!
//! Options: `--rounds 2` (there and back again), `--seconds 90` (of each; the first ten are for setting up), `--window 60` (s).

use std::fs::OpenOptions;
use std::io::Write;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde_json::Value;
use tests::daemon::Daemon;
use tests::experiment::{option, percent, print, progress, row};
use tests::guards::{Running, is_root};
use tests::measured::cpu_s;
use tests::programs::{copy_program, program};
use tests::run::start;
use tests::verdict::{Verdict, ensure_none_fails};

const SERVICES: usize = 199;
const GROUPS: usize = 19;
/// Left out at the start: set-up is spent once, and the budgets later make up for the samples it delays.
const SET_UP_S: usize = 10;
const RANGE_S: usize = 15;
/// How often the law is asked for.
const LAW_EVERY_S: usize = 10;
/// The default budget, as a share of the host's CPU time.
const BUDGET: f64 = 0.01;
const FEWEST: f64 = 0.9;

/// How the load is divided.
#[derive(Clone, Copy, Serialize)]
enum Division {
    Whole,
    Groups,
    Processes,
}

#[derive(Serialize)]
struct Found {
    division: Division,
    targets: usize,
    samples_per_cpu_s: f64,
    /// What the law asked for in the mean, without budgets.
    law_hz: f64,
    /// CPU time that the daemon counts for the targets, over that of the services.
    counted_ratio: f64,
    own_ratio: f64,
    /// In the worst fifteen seconds.
    worst_own_ratio: f64,
}

fn main() -> Result<()> {
    let (rounds, seconds): (usize, usize) = (option("--rounds", 2)?, option("--seconds", 90)?);
    ensure!(seconds >= SET_UP_S + RANGE_S, "--seconds needs {} at least", SET_UP_S + RANGE_S);
    ensure!(is_root(), "the daemon samples other processes: run this as root");
    let folder = tempfile::tempdir()?;
    let mut services: Vec<Running> = Vec::new();
    for at in 0..SERVICES {
        let path = folder.path().join(format!("svc{}-{at}", at % GROUPS));
        copy_program(&program("idler")?, &path)?;
        // Each is a program of its own, as services are.
        OpenOptions::new().append(true).open(&path)?.write_all(&vec![0; at + 1])?;
        services.push(start(Command::new(&path).args(["86400", ".235", ".005"]))?);
    }
    let mut order = vec![Division::Whole, Division::Groups, Division::Processes];
    let mut found = Vec::new();
    for round in 0..rounds {
        for division in &order {
            let of = look(*division, seconds, &services)?;
            progress(&format!("round {} of {rounds}: {}", round + 1, serde_json::to_string(&of)?));
            found.push(of);
        }
        order.reverse();
    }
    report(&found)
}

impl Division {
    fn sections(self) -> String {
        match self {
            Division::Whole => "[[target]]\nname = \"all\"\nprocess = \"^svc\"\n".into(),
            Division::Groups => (0..GROUPS)
                .map(|group| format!("[[target]]\nname = \"g{group}\"\nprocess = \"^svc{group}-\"\n"))
                .collect(),
            Division::Processes => {
                "[[target]]\nname = \"all\"\nprocess = \"^svc\"\neach = \"process\"\n".into()
            }
        }
    }
}

/// The daemon's counts so far.
struct Look {
    targets: usize,
    samples: f64,
    cpu_s: f64,
    services_s: f64,
    own_s: f64,
    at: Instant,
}

fn look(division: Division, seconds: usize, services: &[Running]) -> Result<Found> {
    let daemon = Daemon::start(option("--window", 60)?, &division.sections())?;
    let (mut own_s, mut first) = (vec![daemon.own_cpu_s()?], None);
    let (mut last, mut law_hz) = (None, Vec::new());
    for second in 1..=seconds {
        sleep(Duration::from_secs(1));
        own_s.push(daemon.own_cpu_s()?);
        if second >= SET_UP_S && second.is_multiple_of(LAW_EVERY_S) {
            law_hz.push(law(&daemon)?);
        }
        if second == SET_UP_S {
            first = Some(Look::of(&daemon, services)?);
        } else if second == seconds {
            last = Some(Look::of(&daemon, services)?);
        }
    }
    let (first, last) = (first.context("too short")?, last.context("too short")?);
    let cpus = std::thread::available_parallelism()?.get() as f64;
    let wall_s = last.at.duration_since(first.at).as_secs_f64();
    let ranges = own_s[SET_UP_S..].windows(RANGE_S + 1);
    let worst_s = ranges.map(|range| range[RANGE_S] - range[0]).fold(0.0, f64::max);
    Ok(Found {
        division,
        targets: last.targets,
        samples_per_cpu_s: (last.samples - first.samples) / (last.services_s - first.services_s),
        law_hz: law_hz.iter().sum::<f64>() / law_hz.len() as f64,
        counted_ratio: (last.cpu_s - first.cpu_s) / (last.services_s - first.services_s),
        own_ratio: (last.own_s - first.own_s) / (cpus * wall_s),
        worst_own_ratio: worst_s / (cpus * RANGE_S as f64),
    })
}

/// What the law asks for at this moment (samples per CPU-second): of one of those that share clocks, it is that of all.
fn law(daemon: &Daemon) -> Result<f64> {
    let targets = daemon.targets()?;
    let sampled = targets.iter().find(|target| target["samples"].as_u64() > Some(0)).context("no samples")?;
    let decisions = daemon.ctl_json(&["decisions", sampled["name"].as_str().context("no name")?])?;
    let last = decisions["decisions"].as_array().and_then(|all| all.last()).context("no decision")?;
    last["unbounded_rate_hz"].as_f64().context("no rate")
}

impl Look {
    fn of(daemon: &Daemon, services: &[Running]) -> Result<Look> {
        let list = daemon.targets()?;
        let sum = |key: &str| list.iter().filter_map(|target: &Value| target[key].as_f64()).sum();
        let used: Result<Vec<f64>> = services.iter().map(|service| cpu_s(service.id())).collect();
        Ok(Look {
            targets: list.len(),
            samples: sum("samples"),
            cpu_s: sum("cpu_s"),
            services_s: used?.iter().sum(),
            own_s: daemon.own_cpu_s()?,
            at: Instant::now(),
        })
    }
}

fn report(found: &[Found]) -> Result<()> {
    let heads = [
        "targets",
        "samples per CPU s",
        "the law asks for",
        "CPU time counted",
        "own CPU time",
        "in the worst 15 s",
    ];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    rows.extend(found.iter().map(|of| {
        let samples = format!("{:.1}", of.samples_per_cpu_s);
        let own = [of.counted_ratio, of.own_ratio, of.worst_own_ratio].map(percent);
        let law = format!("{:.1}", of.law_hz);
        row([&of.targets, &samples, &law, &own[0], &own[1], &own[2]])
    }));
    let mut verdicts = Vec::new();
    let most = found.iter().map(|of| of.samples_per_cpu_s).fold(0.0, f64::max);
    for of in found {
        let missing = 1.0 - of.samples_per_cpu_s / most.min(of.law_hz);
        let name = |what: &str| format!("{} targets: {what}", of.targets);
        verdicts.push(Verdict::exact(
            &name("samples short of the most, or of the law"),
            missing,
            1.0 - FEWEST,
            percent,
        ));
        verdicts.push(Verdict::exact(
            &name("own CPU time in the worst 15 s"),
            of.worst_own_ratio,
            BUDGET,
            percent,
        ));
    }
    let remarks: Vec<String> = verdicts.iter().map(|verdict| verdict.line().to_owned()).collect();
    print(&rows, &remarks, &found)?;
    ensure_none_fails(&verdicts)
}
