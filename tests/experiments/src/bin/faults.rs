//! Checks that every window arrives once. A service with three busy targets sends its windows to a backend that shows all kinds of
//! [`Fault`] at random, is killed, and restarts; the service is killed with `kill -9` as well. In the end the backend must hold every
//! window of the store. A window may arrive twice only if the answer to the first attempt was lost.
//! Ends with an error otherwise.
//!
//! Options: `--minutes 60`, `--seed 1`, `--folder F` (keeps what arrived).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use profile_files::pprof;
use profile_files::store::Stamp;
use serde::Serialize;
use tests::backend::{Backend, Fault, Kept, receive};
use tests::daemon::Daemon;
use tests::experiment::{option, print, progress, row};
use tests::guards::{Running, is_root};
use tests::programs::{copy_program, program};
use tests::run::start;
use tests::verdict::{Verdict, ensure_none_fails};

const TARGETS: [&str; 3] = ["web", "db", "cache"];
/// Timeout for the answer to a window (s).
const TIMEOUT_S: u64 = 3;
/// Time until all pending windows have arrived: more than the longest pause between two attempts.
const PATIENCE: Duration = Duration::from_secs(600);

#[derive(Serialize)]
struct Found {
    minutes: u64,
    /// How often each fault was active, and how often each side was ended.
    faults: BTreeMap<Fault, u64>,
    backend_killed: u64,
    service_killed: u64,
    /// Windows in the store, and requests that the backend accepted.
    windows: usize,
    arrived: usize,
    /// Windows with fewer samples at the backend than in the store.
    missing: usize,
    /// Windows with more samples at the backend: where an answer was lost, and where none was.
    twice_unanswered: usize,
    twice: usize,
    /// Windows that the service reports as refused or dropped.
    refused: u64,
    dropped: u64,
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().collect();
    if let [_, word, folder, address] = words.as_slice()
        && word == "--receive"
    {
        return receive(Path::new(folder), address);
    }
    let (minutes, seed): (u64, u64) = (option("--minutes", 60)?, option("--seed", 1)?);
    let keep: String = option("--folder", String::new())?;
    ensure!(is_root(), "the daemon samples other users' processes: run this as root");
    let folder = tempfile::tempdir()?;
    let profiles = if keep.is_empty() { folder.path().join("arrived") } else { PathBuf::from(keep) };
    fs::create_dir_all(&profiles)?;
    ensure!(
        fs::read_dir(&profiles)?.next().is_none(),
        "{} is not empty; name another folder",
        profiles.display()
    );
    let mut backend = Backend::new(&profiles)?;
    backend.come_up()?;
    let (mut sections, mut busy) = (String::new(), Vec::new());
    for target in TARGETS {
        let path = folder.path().join(target);
        copy_program(&program("mix_nofp")?, &path)?;
        busy.push(start(Command::new(&path).args(["--cpu", "36000", "--bout-us", "5000"]))?);
        sections += &format!("[[target]]\nname = {target:?}\nexecutable = {path:?}\n");
    }
    // Windows are short, so that there are many: names and exports of so many take more than the usual budget leaves them.
    let export = format!(
        "[budget]\nhost = \"20%\"\n[[export]]\nname = \"lab\"\nto = {:?}\ntimeout = \"{TIMEOUT_S}s\"\n",
        backend.url()
    );
    let mut daemon = Daemon::start(2, &(sections + &export))?;
    let mut day = Day { faults: BTreeMap::new(), backend_killed: 0, killed_s: Vec::new() };
    day.pass(Duration::from_secs(60 * minutes), seed, &mut backend, &mut daemon)?;
    end(&export, busy, &mut backend, &mut daemon)?;
    let found = compare(minutes, &day, &backend, &daemon)?;
    daemon.stop(Signal::SIGTERM)?.expect_status(0)?;
    report(&found)
}

/// The faults so far.
struct Day {
    faults: BTreeMap<Fault, u64>,
    backend_killed: u64,
    /// When the service was killed (s since the epoch).
    killed_s: Vec<f64>,
}

impl Day {
    fn pass(&mut self, lasts: Duration, seed: u64, backend: &mut Backend, daemon: &mut Daemon) -> Result<()> {
        let (mut random, begun) = (fastrand::Rng::with_seed(seed), Instant::now());
        let mut told = Instant::now();
        while begun.elapsed() < lasts {
            // Half of the time all is well: what waits has to get through.
            let fault =
                if random.bool() { Fault::None } else { Fault::ALL[random.usize(..Fault::ALL.len())] };
            *self.faults.entry(fault).or_default() += 1;
            backend.play(fault)?;
            match random.u8(..10) {
                0 => {
                    self.backend_killed += 1;
                    backend.go_down();
                }
                1 => {
                    self.killed_s.push(now_s()?);
                    daemon.stop(Signal::SIGKILL)?;
                    daemon.start_again()?;
                }
                _ => {}
            }
            sleep(Duration::from_millis(random.u64(500..6_000)));
            backend.come_up()?;
            if told.elapsed() > Duration::from_secs(60) {
                told = Instant::now();
                progress(&format!("{:.0} min: {}", begun.elapsed().as_secs_f64() / 60.0, shown(daemon)?));
            }
        }
        Ok(())
    }
}

fn now_s() -> Result<f64> {
    Ok(SystemTime::UNIX_EPOCH.elapsed()?.as_secs_f64())
}

/// The export's entry in the status.
fn shown(daemon: &Daemon) -> Result<serde_json::Value> {
    let status = daemon.ctl_json(&["status"])?;
    Ok(status["exports"][0].clone())
}

/// Requests that the last windows are named, and waits until all have arrived.
fn end(export: &str, busy: Vec<Running>, backend: &mut Backend, daemon: &mut Daemon) -> Result<()> {
    backend.come_up()?;
    backend.play(Fault::None)?;
    drop(busy);
    daemon.stop(Signal::SIGTERM)?.expect_status(0)?;
    daemon.write_settings(2, &format!("target = []\n{export}"))?;
    daemon.start_again()?;
    // The status of a start may be from before the windows that wait were found: nothing waits if that stays so.
    let (begun, mut settled) = (Instant::now(), 0);
    while begun.elapsed() < PATIENCE && settled < 10 {
        sleep(Duration::from_secs(1));
        let unnamed = fs::read_dir(daemon.store().join("unnamed")).map_or(0, Iterator::count);
        settled = if unnamed == 0 && shown(daemon)?["pending"] == 0 { settled + 1 } else { 0 };
    }
    Ok(()) // what has not arrived by now is missing
}

/// Samples of each window: its target, and when it begins (ns since the epoch).
type Samples = BTreeMap<(String, u64), u64>;

fn stored(daemon: &Daemon) -> Result<Samples> {
    let mut samples = Samples::new();
    for path in daemon.files()? {
        let bytes = fs::read(&path)?;
        let stamp = Stamp::read(bytes.as_slice()).with_context(|| path.display().to_string())?;
        let profile = pprof::read(bytes.as_slice()).with_context(|| path.display().to_string())?;
        let count: u64 = profile.stacks.iter().map(|stack| stack.samples).sum();
        *samples.entry((stamp.target, profile.run.start_unix_ns)).or_default() += count;
    }
    Ok(samples)
}

fn compare(minutes: u64, day: &Day, backend: &Backend, daemon: &Daemon) -> Result<Found> {
    let (stored, kept) = (stored(daemon)?, backend.kept()?);
    let (mut arrived, mut unanswered) = (Samples::new(), BTreeMap::new());
    // An answer that was on its way when the service was killed is lost, too.
    let is_lost = |kept: &Kept| {
        let killed = |killed_s: &f64| (kept.came_s..kept.came_s + TIMEOUT_S as f64).contains(killed_s);
        !kept.is_answered || day.killed_s.iter().any(killed)
    };
    for kept in &kept {
        let window = (kept.target.clone(), kept.start_unix_ns);
        *arrived.entry(window.clone()).or_default() += kept.samples;
        *unanswered.entry(window).or_insert(false) |= is_lost(kept);
    }
    let count = |window: &(String, u64)| arrived.get(window).copied().unwrap_or(0);
    let more: Vec<_> = stored.iter().filter(|(window, samples)| count(window) > **samples).collect();
    let (twice_unanswered, twice) = more
        .iter()
        .map(|(window, _)| unanswered[*window])
        .fold((0, 0), |(lost, not), is| if is { (lost + 1, not) } else { (lost, not + 1) });
    for (window, samples) in stored.iter().filter(|(window, samples)| count(window) != **samples) {
        let mut came: Vec<(f64, bool)> = kept
            .iter()
            .filter(|kept| (&kept.target, kept.start_unix_ns) == (&window.0, window.1))
            .map(|kept| (kept.came_s, is_lost(kept)))
            .collect();
        came.sort_by(|a, b| a.0.total_cmp(&b.0));
        let since_kill_s =
            |came_s: f64| day.killed_s.iter().map(|at| at - came_s).find(|since| *since >= 0.0);
        let next_kill = came.first().and_then(|first| since_kill_s(first.0));
        progress(&format!(
            "{window:?}: {samples} samples in the store, {} arrived, when (s) and whether the answer was lost: {came:?}; the \
             service was killed next {next_kill:?} s after the first",
            count(window)
        ));
    }
    progress(&format!("the service was killed at {:?} s", day.killed_s));
    let status = shown(daemon)?;
    let number = |key: &str| status[key].as_u64().with_context(|| format!("{key} in {status}"));
    Ok(Found {
        minutes,
        faults: day.faults.clone(),
        backend_killed: day.backend_killed,
        service_killed: day.killed_s.len() as u64,
        windows: stored.len(),
        arrived: kept.len(),
        missing: stored.iter().filter(|(window, samples)| count(window) < **samples).count(),
        twice_unanswered,
        twice,
        refused: number("refused")?,
        dropped: number("dropped")?,
    })
}

fn report(found: &Found) -> Result<()> {
    let heads = ["windows", "requests taken", "missing", "twice, answer lost", "twice", "refused", "dropped"];
    let rows = vec![
        heads.map(str::to_owned).to_vec(),
        row([
            &found.windows,
            &found.arrived,
            &found.missing,
            &found.twice_unanswered,
            &found.twice,
            &found.refused,
            &found.dropped,
        ]),
    ];
    let number = |value: f64| format!("{value:.0}");
    let verdicts = [
        Verdict::exact("windows missing", found.missing as f64, 0.0, number),
        Verdict::exact("windows that came twice though answered", found.twice as f64, 0.0, number),
        Verdict::exact("windows refused or dropped", (found.refused + found.dropped) as f64, 0.0, number),
    ];
    let mut remarks = vec![format!(
        "killed: the backend {} times, the service {}",
        found.backend_killed, found.service_killed
    )];
    remarks.extend(verdicts.iter().map(|verdict| verdict.line().to_owned()));
    print(&rows, &remarks, found)?;
    ensure!(found.windows as u64 >= 10 * found.minutes, "so few windows show nothing");
    ensure_none_fails(&verdicts)
}
