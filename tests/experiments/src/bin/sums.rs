//! Checks that the CPU time of all targets adds up. A mix of difficult loads (builds, periodic jobs, servers that fork, shells that
//! wait, permanent services) is divided by process, by user and by control group. In each division the targets' CPU time must be what
//! the kernel charged to all programs of the machine, and that of a target what the kernel charged to it: exactly where its processes
//! are permanent, within the interval that is stated where they come and go, as some of all do. Ends with an error otherwise.
//!
//! Options: `--seconds 200` (of each division; forty more are for setting up), `--window 60` (s), `--only user`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use tests::daemon::Daemon;
use tests::experiment::{option, percent, print, progress, row};
use tests::groups::Group;
use tests::guards::{Running, is_root};
use tests::measured::{cpu_s, machine_busy_s};
use tests::programs::{copy_program, program};
use tests::run::wait_until;
use tests::verdict::{Verdict, ensure_none_fails};

/// Longer than the daemon's longest pause between two scans, so that the first look finds all targets.
const SET_UP_S: u64 = 40;
/// How long the mix stands still for a look: long enough for the daemon to read all clocks and to publish what they show.
const STILL: Duration = Duration::from_secs(4);
const BOUND: f64 = 0.01;
/// The permanent services: name, and CPU time used in each second.
const STEADY: [(&str, &str); 3] = [("steady-a", ".4"), ("steady-b", ".1"), ("steady-c", ".03")];
/// The first of the users that the parts of the mix run as.
const FIRST_USER: u32 = 44_001;
/// The rest of the mix: name, and the shell command that is repeated, with the folder of its programs as `$1`.
const PARTS: [(&str, &str); 4] = [
    ("build", "make -s -B -j2 -C $1/build"),
    ("cron", "sh -c 'seq 1 20000 | sort | md5sum' >/dev/null; sleep 1"),
    ("forks", "$1/brood 50 2 10 /dev/null $1/brief_a $1/brief_b"),
    ("shells", "sh -c 'sleep .3; (timeout 2 $1/idler 1 .2 .1 >/dev/null; true); sleep .2'"),
];

#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
enum Division {
    Process,
    User,
    Cgroup,
}

impl Division {
    fn word(self) -> &'static str {
        match self {
            Division::Process => "process",
            Division::User => "user",
            Division::Cgroup => "cgroup",
        }
    }
}

#[derive(Serialize)]
struct Found {
    division: Division,
    targets: usize,
    samples: f64,
    /// CPU time that the scheduler charged to programs that can be targets (s).
    busy_s: f64,
    /// The same by `/proc/stat`, which counts what ran at each tick of a clock, over it.
    by_ticks_ratio: f64,
    /// CPU time of all targets, over it, and how far off that may be as stated.
    sum_ratio: f64,
    sum_half_ratio: f64,
    /// Targets that the kernel accounts for: counted CPU time over what was charged, and how far off that may be as stated.
    accounts: BTreeMap<String, (f64, f64)>,
}

fn main() -> Result<()> {
    let seconds: u64 = option("--seconds", 200)?;
    ensure!(is_root(), "the daemon samples other processes: run this as root");
    let folder = tempfile::tempdir()?;
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
    prepare(folder.path())?;
    let mut found = Vec::new();
    let all = [Division::Process, Division::User, Division::Cgroup];
    let only: String = option("--only", String::new())?;
    for division in all.into_iter().filter(|division| only.is_empty() || division.word() == only) {
        let of = look(division, seconds, folder.path())?;
        progress(&serde_json::to_string(&of)?);
        found.push(of);
    }
    report(&found)
}

/// The programs of the mix, and the sources that it builds.
fn prepare(folder: &Path) -> Result<()> {
    for name in ["brood", "brief_a", "brief_b", "idler"] {
        copy_program(&program(name)?, &folder.join(name))?;
    }
    for (name, _) in STEADY {
        copy_program(&program("idler")?, &folder.join(name))?;
    }
    let build = folder.join("build");
    fs::create_dir(&build)?;
    let source: String =
        (0..200).map(|at| format!("int f{at}(int x) {{ return x * {at} + x / 7; }}\n")).collect();
    for at in 0..8 {
        fs::write(build.join(format!("part{at}.c")), &source)?;
    }
    let objects: String = (0..8).map(|at| format!(" part{at}.o")).collect();
    fs::write(build.join("Makefile"), format!("all:{objects}\n%.o: %.c\n\tcc -O2 -c -o $@ $<\n"))?;
    fs::set_permissions(&build, fs::Permissions::from_mode(0o777))?;
    Ok(())
}

/// The mix while it runs; each part has a control group and a user.
struct Mix {
    group: Group,
    steady: Vec<(&'static str, Running)>,
    _parts: Vec<Running>,
}

impl Mix {
    fn start(folder: &Path) -> Result<Mix> {
        let group = Group::new().context("this needs cgroup v2, mounted for writing")?;
        let folder = folder.to_str().context("a temporary folder with an odd name")?;
        let mut users = FIRST_USER..;
        let mut begin = |name: &str, words: &[&str]| {
            let user = users.next().unwrap_or(FIRST_USER).to_string();
            let identity = ["--reuid", &user, "--regid", &user, "--clear-groups"];
            let words: Vec<&str> = identity.iter().copied().chain(words.iter().copied()).collect();
            let mut command = group.command(name, Path::new("setpriv"), &words)?;
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            Running::start(&mut command)
        };
        let mut steady = Vec::new();
        for (name, work) in STEADY {
            let service = begin(name, &[&format!("{folder}/{name}"), "86400", "1", work])?;
            // What it used as `setpriv` is another target's.
            let comm = format!("/proc/{}/comm", service.id());
            wait_until(name, || fs::read_to_string(&comm).is_ok_and(|comm| comm.trim_end() == name))?;
            steady.push((name, service));
        }
        let loops = PARTS.iter().map(|(name, script)| {
            begin(name, &["sh", "-c", &format!("while :; do {script}; done"), "sh", folder])
        });
        let _parts = loops.collect::<Result<_>>()?;
        Ok(Mix { group, steady, _parts })
    }

    /// What the kernel has charged so far to those whose target has its own account (s).
    fn accounts(&self, division: Division) -> Result<BTreeMap<String, f64>> {
        let of_group = |name: &str| group_cpu_s(&self.group.path().join(name));
        let names = STEADY.iter().chain(&PARTS).map(|(name, _)| *name);
        match division {
            Division::User => names
                .zip(FIRST_USER..)
                .map(|(name, user)| Ok((format!("all:{user}"), of_group(name)?)))
                .collect(),
            Division::Process => self
                .steady
                .iter()
                .map(|(name, running)| Ok((format!("all:{name}"), cpu_s(running.id())?)))
                .collect(),
            Division::Cgroup => names.map(|name| Ok((self.group_target(name), of_group(name)?))).collect(),
        }
    }

    /// CPU time that the scheduler charged to the mix, and to other processes that can be targets (s).
    fn charged_s(&self, daemon: u32) -> Result<f64> {
        let parts =
            STEADY.iter().chain(&PARTS).map(|(name, _)| self.group.path().join(name).join("cgroup.procs"));
        let lists: Vec<String> = parts.map(fs::read_to_string).collect::<Result<_, _>>()?;
        let mix: BTreeSet<i32> =
            lists.iter().flat_map(|list| list.lines()).map(str::parse).collect::<Result<_, _>>()?;
        let others = procfs::process::all_processes()?.flatten().filter_map(|process| process.stat().ok());
        let is_target = |stat: &procfs::process::Stat| {
            let is_ours = [stat.pid, stat.ppid].contains(&(daemon as i32));
            let has_ended = stat.state == 'Z';
            !is_of_kernel(stat) && !is_ours && !has_ended && !mix.contains(&stat.pid)
        };
        // Of a process that has ended, its parent, or whichever waited for it, keeps the time.
        let used = |stat: procfs::process::Stat| (stat.utime + stat.stime) as i64 + stat.cutime + stat.cstime;
        let ticks: i64 = others.filter(is_target).map(used).sum();
        Ok(group_cpu_s(self.group.path())? + ticks as f64 / procfs::ticks_per_second() as f64)
    }

    /// Stops the mix, or lets it go on.
    fn stand_still(&self, still: bool) -> Result<()> {
        fs::write(self.group.path().join("cgroup.freeze"), if still { "1" } else { "0" })
            .context("the mix could not be stopped")
    }

    fn group_target(&self, name: &str) -> String {
        let top = self.group.path().file_name().unwrap_or_default().to_string_lossy();
        format!("all:{top}:{name}")
    }
}

/// Whether a target of the mix consists of permanent processes. By user it is known by its number.
fn is_steady(target: &str) -> bool {
    let users = (FIRST_USER..).take(STEADY.len()).map(|user| user.to_string());
    let names = STEADY.iter().map(|(name, _)| (*name).to_owned()).chain(users);
    target.rsplit_once(':').is_some_and(|(_, last)| names.into_iter().any(|name| name == last))
}

fn group_cpu_s(group: &Path) -> Result<f64> {
    let text = fs::read_to_string(group.join("cpu.stat"))?;
    let used = text.lines().find_map(|line| line.strip_prefix("usage_usec "));
    Ok(used.context("no usage in cpu.stat")?.parse::<f64>()? * 1e-6)
}

/// The counts so far, of the kernel and of the daemon.
struct Look {
    busy_s: f64,
    by_ticks_s: f64,
    /// CPU time of all targets, those that have ended included (s).
    sum_s: f64,
    /// CPU time of each target that is left, and half of its interval (s).
    targets: BTreeMap<String, (f64, f64)>,
    samples: f64,
    accounts: BTreeMap<String, f64>,
}

impl Look {
    /// The mix stands still meanwhile: what the daemon says is of a moment before, and would differ from the kernel's figures.
    fn of(daemon: &Daemon, mix: &Mix, division: Division) -> Result<Look> {
        mix.stand_still(true)?;
        sleep(STILL);
        let look = Self::at_rest(daemon, mix, division);
        mix.stand_still(false)?;
        look
    }

    fn at_rest(daemon: &Daemon, mix: &Mix, division: Division) -> Result<Look> {
        let (mut targets, mut samples) = (BTreeMap::new(), 0.0);
        let accounts = mix.accounts(division)?;
        let busy_s = mix.charged_s(daemon.pid()?)?;
        let by_ticks_s = machine_busy_s()? - daemon.own_cpu_s()? - kernel_threads_s()?;
        let status = daemon.ctl_json(&["status"])?;
        let sum_s = status["host"]["targets_cpu_s"].as_f64().context("targets_cpu_s")?;
        for target in daemon.targets()? {
            let name = target["name"].as_str().context("a target without a name")?;
            let [cpu_s, low, high] = ["cpu_s", "cpu_s_low", "cpu_s_high"].map(|key| target[key].as_f64());
            let half_s = 0.5 * (high.context("cpu_s_high")? - low.context("cpu_s_low")?);
            targets.insert(name.to_owned(), (cpu_s.unwrap_or(0.0), half_s));
            samples += target["samples"].as_f64().unwrap_or(0.0);
        }
        Ok(Look { busy_s, by_ticks_s, sum_s, targets, samples, accounts })
    }
}

fn is_of_kernel(stat: &procfs::process::Stat) -> bool {
    stat.ppid == 2 || stat.pid == 2
}

/// CPU time of the kernel's own threads, which belong to no target (s).
fn kernel_threads_s() -> Result<f64> {
    let processes = procfs::process::all_processes()?.flatten();
    let of_kernel = processes.filter_map(|process| process.stat().ok()).filter(is_of_kernel);
    let ticks: u64 = of_kernel.map(|stat| stat.utime + stat.stime).sum();
    Ok(ticks as f64 / procfs::ticks_per_second() as f64)
}

fn look(division: Division, seconds: u64, folder: &Path) -> Result<Found> {
    let mix = Mix::start(folder)?;
    let each = division.word();
    let section = format!("[[target]]\nname = \"all\"\neverything = true\neach = \"{each}\"\n");
    let daemon = Daemon::start(option("--window", 60)?, &section)?;
    sleep(Duration::from_secs(SET_UP_S));
    let before = Look::of(&daemon, &mix, division)?;
    sleep(Duration::from_secs(seconds));
    let after = Look::of(&daemon, &mix, division)?;
    let since = |name: &String, cpu_s: f64| cpu_s - before.targets.get(name).map_or(0.0, |(cpu_s, _)| *cpu_s);
    // Each target's samples are its own.
    let half_s = after.targets.values().map(|(_, half_s)| half_s * half_s).sum::<f64>().sqrt();
    let busy_s = after.busy_s - before.busy_s;
    let accounts = after.accounts.iter().map(|(name, charged_s)| {
        let (counted_s, half_s) =
            *after.targets.get(name).with_context(|| format!("{name} is no target: {:?}", after.targets))?;
        let charged_s = charged_s - before.accounts.get(name).copied().unwrap_or(0.0);
        Ok((name.clone(), (since(name, counted_s) / charged_s, half_s / charged_s)))
    });
    Ok(Found {
        division,
        targets: after.targets.len(),
        samples: after.samples - before.samples,
        busy_s,
        by_ticks_ratio: (after.by_ticks_s - before.by_ticks_s) / busy_s,
        sum_ratio: (after.sum_s - before.sum_s) / busy_s,
        sum_half_ratio: half_s / busy_s,
        accounts: accounts.collect::<Result<_>>()?,
    })
}

fn report(found: &[Found]) -> Result<()> {
    let heads =
        ["each", "targets", "samples", "busy (s)", "by /proc/stat", "sum of targets", "worst account"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    let mut verdicts = Vec::new();
    for of in found {
        let each = of.division.word();
        let off = |ratio: f64| (ratio - 1.0).abs();
        let worst = of.accounts.iter().max_by(|a, b| off(a.1.0).total_cmp(&off(b.1.0)));
        let shown = worst.map_or(String::new(), |(name, (ratio, half))| {
            format!("{name} {} ± {}", percent(*ratio), percent(*half))
        });
        let busy = format!("{:.1}", of.busy_s);
        let sum = format!("{} ± {}", percent(of.sum_ratio), percent(of.sum_half_ratio));
        rows.push(row([&each, &of.targets, &of.samples, &busy, &percent(of.by_ticks_ratio), &sum, &shown]));
        let mut judge = |what: &str, ratio: f64, half: f64| {
            let (what, off) = (format!("each = {each}: {what} off"), off(ratio));
            verdicts.push(Verdict::new(&what, off, ((off - half).max(0.0), off + half), BOUND, percent));
        };
        judge("CPU time of all targets", of.sum_ratio, of.sum_half_ratio);
        for (name, (ratio, half)) in &of.accounts {
            judge(name, *ratio, if is_steady(name) { 0.0 } else { *half });
        }
    }
    let remarks: Vec<String> = verdicts.iter().map(|verdict| verdict.line().to_owned()).collect();
    print(&rows, &remarks, &found)?;
    ensure_none_fails(&verdicts)
}
