//! Do the daemons of a fleet sample as one? One service runs in several replicas, each watched by a daemon of its own; a real
//! Prometheus scrapes all daemons, and they ask it how much of the service runs elsewhere. By the law each of R replicas is sampled
//! R^(−1/3) times as often as one alone, and the sum of their profiles errs by as much less: rates and errors of the time in which the
//! daemons know of each other are compared with those of the time before and the time after.
//! Ends with an error where that does not hold.
//!
//! Options: `--replicas 6`, `--seconds 60` (of each of the three times). It needs `prometheus` (Debian has it).

use std::collections::BTreeMap;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use profile_files::pprof;
use profiler_core::profile::SymbolizedProfile;
use serde::{Deserialize, Serialize};
use tests::daemon::Daemon;
use tests::experiment::{option, print, progress, row};
use tests::guards::{Running, is_root};
use tests::programs::{copy_program, find_in_path, program};
use tests::run::start;
use tests::verdict::{Verdict, ensure_none_fails};

const WINDOW_S: u32 = 5;
/// Time within which a rate settles.
const SETTLED: Duration = Duration::from_secs(20);
/// Time for two scrapes and two queries, of a minute each.
const KNOWN: Duration = Duration::from_secs(180);
/// Shares of the functions of `mix`.
const SHARES: [f64; 8] = [0.40, 0.25, 0.15, 0.08, 0.05, 0.04, 0.02, 0.01];
/// A rate is the law's within this factor, and the error of the sum no larger than the law's by that.
const RATE_FACTOR: f64 = 1.15;
const ERROR_FACTOR: f64 = 1.1;
/// A number of replicas that is off by less than this share of the true one is near: the rate, which falls with its cube root, is
/// within 8%.
const NEAR: f64 = 0.2;

/// What a daemon decided on last, and why.
#[derive(Deserialize, Serialize)]
struct Decided {
    rate_hz: f64,
    bound_by: String,
    overhead_us: f64,
    spread_ratio: f64,
    variance_ratio: f64,
    replicas: f64,
}

impl Decided {
    /// By which factor the law changes the rate from that decision to this one, other than for the replicas.
    fn factor_since(&self, before: &Decided) -> f64 {
        let of =
            |decided: &Decided| decided.spread_ratio * decided.variance_ratio.sqrt() / decided.overhead_us;
        (of(self) / of(before)).powf(2.0 / 3.0)
    }
}

#[derive(Serialize)]
struct Found {
    replicas: usize,
    /// Samples per CPU-second of each replica, alone and as one of the fleet.
    alone_hz: Vec<f64>,
    together_hz: Vec<f64>,
    /// The last decisions of each: alone before, together and alone after.
    decided: [Vec<Decided>; 3],
    /// Replicas according to each daemon.
    told: Vec<f64>,
    /// Errors of the functions' shares (root mean square) in windows of one replica alone, and in those of all together.
    alone_error: f64,
    together_error: f64,
    /// Number of windows behind these errors.
    alone_windows: usize,
    together_windows: usize,
}

fn main() -> Result<()> {
    let (replicas, seconds): (usize, u64) = (option("--replicas", 6)?, option("--seconds", 60)?);
    ensure!(is_root(), "the daemon samples other users' processes: run this as root");
    ensure!(find_in_path("prometheus").is_some(), "there is no prometheus; install Debian's package");
    let folder = tempfile::tempdir()?;
    let fleet = Fleet::start(folder.path(), replicas)?;
    sleep(SETTLED);
    progress("alone");
    let alone = fleet.watch(seconds)?;
    fleet.join()?;
    progress("waiting until the daemons know of each other");
    let told = fleet.wait_until_known(replicas)?;
    sleep(SETTLED);
    progress("together");
    let together = fleet.watch(seconds)?;
    fleet.part()?;
    sleep(SETTLED);
    progress("alone again");
    let again = fleet.watch(seconds)?;
    // What a sample costs may have changed meanwhile: the rate before and the rate after are the two to compare with.
    let alone_hz = alone.rates_hz.iter().zip(&again.rates_hz).map(|(before, after)| (before * after).sqrt());
    let (alone_error, alone_windows) = fleet.error(&[&alone, &again], false)?;
    let (together_error, together_windows) = fleet.error(&[&together], true)?;
    report(&Found {
        replicas,
        alone_hz: alone_hz.collect(),
        together_hz: together.rates_hz,
        decided: [alone.decided, together.decided, again.decided],
        told,
        alone_error,
        together_error,
        alone_windows,
        together_windows,
    })
}

/// Observations over a period of time.
struct Seen {
    /// Samples per CPU-second.
    rates_hz: Vec<f64>,
    decided: Vec<Decided>,
    /// From when until when (s since the epoch).
    from_s: f64,
    to_s: f64,
}

struct Fleet {
    daemons: Vec<(Daemon, String)>,
    prometheus: SocketAddr,
    _running: Vec<Running>,
}

fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

impl Fleet {
    fn start(folder: &Path, replicas: usize) -> Result<Fleet> {
        let token = folder.join("token");
        fs::write(&token, "a-token-of-the-experiment-that-is-long-enough\n")?;
        fs::set_permissions(&token, fs::Permissions::from_mode(0o600))?;
        let (mut daemons, mut running, mut addresses) = (Vec::new(), Vec::new(), Vec::new());
        for at in 0..replicas {
            let path = folder.join(format!("shop{at}"));
            copy_program(&program("mix_nofp")?, &path)?;
            running.push(start(Command::new(&path).args(["--cpu", "3000", "--seed", &at.to_string()]))?);
            let address = free_address()?;
            // Budgets that leave the rate to the law.
            let section = format!(
                "[budget]\nhost = \"30%\"\ntarget = \"30%\"\n[sampling]\nhorizon = \"60s\"\n\
                 [[target]]\nname = \"shop\"\nexecutable = {path:?}\n"
            );
            let listen = format!("tcp = \"{address}\"\ntoken_file = {token:?}\n");
            daemons.push((Daemon::start_at(&listen, WINDOW_S, &section)?, section));
            addresses.push(address.to_string());
        }
        let prometheus = free_address()?;
        let settings = format!(
            "global:\n  scrape_interval: 5s\nscrape_configs:\n- job_name: sweetspot\n  authorization:\n    \
             credentials_file: {}\n  static_configs:\n  - targets: {}\n",
            token.display(),
            serde_json::to_string(&addresses)?
        );
        fs::write(folder.join("prometheus.yml"), settings)?;
        let mut command = Command::new("prometheus");
        command
            .arg(format!("--config.file={}", folder.join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", folder.join("series").display()))
            .arg(format!("--web.listen-address={prometheus}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        running.push(Running::start(&mut command)?);
        for (daemon, _) in &daemons {
            daemon.wait_for("shop", "sampled")?;
        }
        Ok(Fleet { daemons, prometheus, _running: running })
    }

    /// Makes all daemons query Prometheus from now on.
    fn join(&self) -> Result<()> {
        self.reload(&format!("[fleet]\nprometheus = \"http://{}\"\n", self.prometheus))
    }

    /// Makes each daemon a fleet of one again.
    fn part(&self) -> Result<()> {
        self.reload("")
    }

    fn reload(&self, fleet: &str) -> Result<()> {
        for (daemon, section) in &self.daemons {
            daemon.write_settings(WINDOW_S, &(fleet.to_owned() + section))?;
            daemon.ctl(&["reload"])?.expect_status(0)?;
        }
        Ok(())
    }

    /// The number of replicas that each daemon assumes.
    fn wait_until_known(&self, replicas: usize) -> Result<Vec<f64>> {
        let begun = Instant::now();
        loop {
            let of = |(daemon, _): &(Daemon, String)| {
                // Until it has asked, there is nothing.
                Ok(daemon.target("shop")?["fleet"]["replicas"].as_f64().unwrap_or(1.0))
            };
            let told = self.daemons.iter().map(of).collect::<Result<Vec<f64>>>()?;
            // Prometheus does not have all of the time that it is asked about at first: the number grows.
            if told.iter().all(|told| (told / replicas as f64 - 1.0).abs() < NEAR) {
                return Ok(told);
            }
            ensure!(begun.elapsed() < KNOWN, "after {KNOWN:?} the daemons reckon with {told:?} replicas");
            sleep(Duration::from_secs(2));
        }
    }

    fn watch(&self, seconds: u64) -> Result<Seen> {
        let counts = || -> Result<Vec<(f64, f64)>> {
            let of = |(daemon, _): &(Daemon, String)| {
                let target = daemon.target("shop")?;
                let number = |key: &str| target[key].as_f64().with_context(|| format!("{key} in {target}"));
                Ok((number("samples")?, number("cpu_s")?))
            };
            self.daemons.iter().map(of).collect()
        };
        let now_s = || anyhow::Ok(SystemTime::UNIX_EPOCH.elapsed()?.as_secs_f64());
        let (from_s, before) = (now_s()?, counts()?);
        sleep(Duration::from_secs(seconds));
        let (to_s, after) = (now_s()?, counts()?);
        let rate_hz =
            |(after, before): (&(f64, f64), &(f64, f64))| (after.0 - before.0) / (after.1 - before.1);
        let decided = |(daemon, _): &(Daemon, String)| -> Result<Decided> {
            let decisions = daemon.ctl_json(&["decisions", "shop"])?;
            let last = decisions["decisions"].as_array().and_then(|all| all.last()).context("no decision")?;
            Ok(Decided::deserialize(last)?)
        };
        Ok(Seen {
            rates_hz: after.iter().zip(&before).map(rate_hz).collect(),
            decided: self.daemons.iter().map(decided).collect::<Result<_>>()?,
            from_s,
            to_s,
        })
    }

    /// The error of the functions' shares in windows of that time (root mean square), of each replica or of all together; and how
    /// many windows that were.
    fn error(&self, times: &[&Seen], together: bool) -> Result<(f64, usize)> {
        let mut windows: BTreeMap<(i64, usize), [f64; 8]> = BTreeMap::new();
        for (at, (daemon, _)) in self.daemons.iter().enumerate() {
            for path in daemon.files()? {
                let profile =
                    pprof::read(fs::read(&path)?.as_slice()).with_context(|| path.display().to_string())?;
                let from_s = profile.run.start_unix_ns as f64 * 1e-9;
                let to_s = from_s + profile.run.duration_s;
                if !times.iter().any(|seen| seen.from_s <= from_s && to_s <= seen.to_s) {
                    continue;
                }
                let place = ((from_s - times[0].from_s) / f64::from(WINDOW_S)) as i64;
                let sums = windows.entry((place, if together { 0 } else { at })).or_default();
                sums.iter_mut().zip(seconds(&profile)).for_each(|(sum, of)| *sum += of);
            }
        }
        windows.retain(|_, sums| sums.iter().sum::<f64>() > 0.0);
        let errors = windows.values().flat_map(|sums| {
            let all_s: f64 = sums.iter().sum();
            sums.iter().zip(SHARES).map(move |(of_s, share)| (of_s / all_s - share).powi(2))
        });
        let errors: Vec<f64> = errors.collect();
        ensure!(!errors.is_empty(), "no window of that time is in the stores");
        Ok(((errors.iter().sum::<f64>() / errors.len() as f64).sqrt(), windows.len()))
    }
}

/// CPU time of each function of `mix` (s).
fn seconds(profile: &SymbolizedProfile) -> [f64; 8] {
    let mut sums = [0.0; 8];
    for stack in &profile.stacks {
        let innermost = stack.frames.first().map(|frame| &profile.locations[frame.0 as usize].lines[0]);
        let name = innermost.map_or("", |line| &profile.functions[line.function.0 as usize].name);
        let letter = name.strip_prefix("work_").and_then(|letter| letter.bytes().next());
        if let Some(sum) = letter.and_then(|letter| sums.get_mut(usize::from(letter.wrapping_sub(b'a')))) {
            *sum += stack.cpu_ns as f64 * 1e-9;
        }
    }
    sums
}

fn report(found: &Found) -> Result<()> {
    let factor = (found.replicas as f64).powf(-1.0 / 3.0);
    let number = |value: f64| format!("{value:.3}");
    let mut rows = vec![
        [
            "replica",
            "alone (1/s)",
            "together (1/s)",
            "ratio",
            "told",
            "decided (1/s)",
            "bound by",
            "law, replicas aside",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    let mut verdicts = Vec::new();
    for (at, (alone_hz, together_hz)) in found.alone_hz.iter().zip(&found.together_hz).enumerate() {
        let ratio = together_hz / alone_hz;
        let told = format!("{:.2}", found.told[at]);
        let [before, together, again] = [0, 1, 2].map(|time| &found.decided[time][at]);
        let decided = format!("{:.0}, {:.0}, {:.0}", before.rate_hz, together.rate_hz, again.rate_hz);
        let bound_by = format!("{}, {}, {}", before.bound_by, together.bound_by, again.bound_by);
        let beside = (together.factor_since(before) * together.factor_since(again)).sqrt();
        let rates = [alone_hz, together_hz].map(|hz| format!("{hz:.1}"));
        rows.push(row([
            &at,
            &rates[0],
            &rates[1],
            &number(ratio),
            &told,
            &decided,
            &bound_by,
            &number(beside),
        ]));
        let off = (ratio / factor).max(factor / ratio);
        verdicts.push(Verdict::exact(
            &format!("replica {at}: off {factor:.3} by a factor"),
            off,
            RATE_FACTOR,
            number,
        ));
    }
    // Seven shares of a window are free; each error is known to 1/√(2·n).
    let variance: f64 =
        [found.alone_windows, found.together_windows].iter().map(|n| 1.0 / (14.0 * *n as f64)).sum();
    let ratio = found.together_error / found.alone_error;
    let noise = 1.96 * ratio * variance.sqrt();
    verdicts.push(Verdict::new(
        "error of the sum, to that of one alone",
        ratio,
        (ratio - noise, ratio + noise),
        ERROR_FACTOR * factor,
        number,
    ));
    let remarks: Vec<String> = verdicts.iter().map(|verdict| verdict.line().to_owned()).collect();
    print(&rows, &remarks, found)?;
    ensure_none_fails(&verdicts)
}
