//! One run after another: the program pinned to one CPU, the profiler kept on the others.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use profiler_core::stats::twins::Excess;
use serde::Deserialize;
use tempfile::TempDir;

use super::EvaluateJob;
use super::design::{Arm, CALLS_UNIT, FREE_BUDGET, Planned, SHAPES, TOP};
use super::fit::Observation;
use super::turns::{self, Role};
use super::workload::NAMES;
use crate::failure::Failure;
use crate::run::Signals;
use crate::sys::clock;

/// Calls of the run that tells how long a call takes.
const TRIAL_CALLS: u64 = 10 * CALLS_UNIT;
/// A run may take so much longer than its CPU time, and this much besides; after that it is given up.
const PATIENCE_FACTOR: f64 = 12.0;
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a child that is asked to end may take for it.
const PARTING: Duration = Duration::from_secs(5);

/// What runs need, and what was learned of them.
pub(super) struct Runner {
    program: PathBuf,
    cpu: Duration,
    folder: TempDir,
    signals: Signals,
    target_cpu: Option<usize>,
    calls: u64,
    patience: Duration,
    options: Vec<String>,
    /// Arms that stalled the program.
    given_up: Vec<(usize, Arm)>,
    /// What a person should know.
    pub(super) notes: Vec<String>,
}

/// The last line of a run's `--stats`, as far as it is needed here.
#[derive(Deserialize)]
struct Summary {
    samples: u64,
    target_cpu_s: f64,
    overhead_us: f64,
    overhead_se_us: f64,
    rate_hz: f64,
    functions: Vec<FunctionShare>,
}

#[derive(Deserialize)]
struct FunctionShare {
    name: String,
    share: f64,
}

impl Runner {
    /// Keeps this process off the program's CPU and finds out how many calls make up the CPU time wanted.
    pub(super) async fn prepare(job: &EvaluateJob) -> Result<Self> {
        let signals = Signals::listen()?; // before there is anything that a signal would leave behind
        let target_cpu = leave_one_cpu()?;
        let cpu_s = job.design.cpu_s();
        let alone = "there is only one CPU: the profiler disturbs the program it measures".to_owned();
        let mut runner = Self {
            program: std::env::current_exe().context("this program's own file is not known")?,
            cpu: job.design.cpu,
            folder: tempfile::tempdir().context("no folder for temporary files; set TMPDIR to one")?,
            signals,
            target_cpu,
            calls: TRIAL_CALLS,
            patience: PATIENCE + Duration::from_secs_f64(PATIENCE_FACTOR * cpu_s),
            options: vec![
                format!("--unwind={}", job.unwind),
                "--attach-mode=task".to_owned(), // nothing may happen to the twin
            ],
            given_up: Vec::new(),
            notes: if target_cpu.is_none() { vec![alone] } else { Vec::new() },
        };
        let trial = Planned { shape: 0, arm: Arm::Unsampled, seed: job.design.seed };
        runner.unsampled(&trial).await?; // the file is in memory from here on
        let trial_s = runner.unsampled(&trial).await?.context("the calibration program did not end")?.cpu_s;
        ensure!(trial_s > 0.0, "the calibration program took no CPU time");
        let units = cpu_s / trial_s * (TRIAL_CALLS / CALLS_UNIT) as f64;
        runner.calls = (units.round().max(1.0) as u64).saturating_mul(CALLS_UNIT);
        Ok(runner)
    }

    /// Does a run. `None` if its rate leaves the program no time to go on, in this run or an earlier one.
    ///
    /// # Errors
    ///
    /// That of a run that failed; [`Failure::Stopped`] if somebody asks to stop.
    pub(super) async fn run(&mut self, planned: &Planned) -> Result<Option<Observation>> {
        if self.given_up.contains(&(planned.shape, planned.arm)) {
            return Ok(None);
        }
        let observed = match planned.arm {
            Arm::Unsampled => self.unsampled(planned).await?,
            arm => self.sampled(planned, &arm_options(arm, self.cpu)).await?,
        };
        if observed.is_none() {
            let (program, arm) = (SHAPES[planned.shape].name, planned.arm.name());
            self.notes.push(format!("{program} did not end at {arm}, and is left out there"));
            self.given_up.push((planned.shape, planned.arm));
        }
        Ok(observed)
    }

    /// The words that make this program the calibration program or its twin.
    fn workload(&self, planned: &Planned, role: Role) -> Vec<OsString> {
        let shape = SHAPES[planned.shape].name;
        let mut words = vec!["workload".to_owned(), format!("--shape={shape}")];
        words.push(format!("--calls={}", self.calls));
        words.push(format!("--seed={}", planned.seed));
        words.push(format!("--role={}", role.name()));
        words.extend(self.target_cpu.map(|cpu| format!("--cpu={cpu}")));
        let mut words: Vec<OsString> = words.into_iter().map(OsString::from).collect();
        words.extend(["--turns".into(), self.turns().into_os_string()]);
        words
    }

    /// Where the twins of a run meet.
    fn turns(&self) -> PathBuf {
        self.folder.path().join("turns")
    }

    /// Runs a command with the program's twin beside it. Returns the CPU time that the command used itself (ns), and what
    /// the program took more than its twin; `None` if that took too long.
    async fn with_twin(
        &mut self,
        planned: &Planned,
        mut command: Command,
    ) -> Result<Option<(u64, Option<Excess>)>> {
        turns::lay_out(&self.turns())?;
        let mut twin = Command::new(&self.program);
        twin.args(self.workload(planned, Role::Twin));
        let twin = twin.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut twin = RunningChild(twin.spawn().context("this program could not be started again")?);
        let Some((status, cpu_ns)) = self.finish(&mut command).await? else { return Ok(None) };
        self.expect_success(status)?;
        let Some((status, _)) = self.wait_for(&mut twin).await? else { return Ok(None) };
        ensure!(status.success(), "the program's twin ended with {status}");
        Ok(Some((cpu_ns, turns::excess(&self.turns())?)))
    }

    async fn unsampled(&mut self, planned: &Planned) -> Result<Option<Observation>> {
        let mut command = Command::new(&self.program);
        command.args(self.workload(planned, Role::Program));
        let Some((cpu_ns, excess)) = self.with_twin(planned, command).await? else { return Ok(None) };
        let cpu_s = cpu_ns as f64 * 1e-9;
        Ok(Some(observation(planned, Summary { target_cpu_s: cpu_s, ..Summary::none() }, excess)))
    }

    async fn sampled(&mut self, planned: &Planned, options: &[String]) -> Result<Option<Observation>> {
        let stats = self.folder.path().join("stats.jsonl");
        let mut command = Command::new(&self.program);
        command.args(["record", "--quiet"]).args(&self.options).args(options);
        command.arg(format!("--seed={}", planned.seed)).arg("--stats").arg(&stats);
        command.arg("-o").arg(self.folder.path().join("profile.folded"));
        command.arg("--").arg(&self.program).args(self.workload(planned, Role::Program));
        let Some((_, excess)) = self.with_twin(planned, command).await? else { return Ok(None) };
        Ok(Some(observation(planned, Summary::read(&stats)?, excess)))
    }

    /// Runs a command to its end. Returns how it ended and the CPU time that it used itself (ns); `None` if it
    /// took too long.
    async fn finish(&mut self, command: &mut Command) -> Result<Option<(ExitStatus, u64)>> {
        let errors = File::create(self.errors()).context("the folder for temporary files cannot be used")?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors);
        let mut child = RunningChild(command.spawn().context("this program could not be started again")?);
        self.wait_for(&mut child).await
    }

    async fn wait_for(&mut self, child: &mut RunningChild) -> Result<Option<(ExitStatus, u64)>> {
        let deadline = Instant::now() + self.patience;
        loop {
            if let Some(cpu_ns) = child.ended()? {
                return Ok(Some((child.0.wait()?, cpu_ns)));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            if let Some(signal) = self.signals.wait(left).await {
                return Err(stopped(signal));
            }
        }
    }

    fn errors(&self) -> PathBuf {
        self.folder.path().join("errors.txt")
    }

    fn expect_success(&self, status: ExitStatus) -> Result<()> {
        if status.success() {
            return Ok(());
        }
        let told = fs::read_to_string(self.errors()).unwrap_or_default();
        let told = told.lines().last().unwrap_or("it did not say why").trim_start_matches("sweetspot: ");
        Err(anyhow!("a run ended with {status}: {told}"))
    }
}

impl Summary {
    /// Of a run that was not sampled.
    fn none() -> Self {
        Self {
            samples: 0,
            target_cpu_s: 0.0,
            overhead_us: 0.0,
            overhead_se_us: 0.0,
            rate_hz: 0.0,
            functions: Vec::new(),
        }
    }

    fn read(stats: &Path) -> Result<Self> {
        let text = fs::read_to_string(stats).context("a run left no figures")?;
        serde_json::from_str(text.lines().last().unwrap_or_default())
            .context("a run's figures are incomplete")
    }

    /// The share of a function of the program; 0 if no sample met it.
    fn share(&self, name: &str) -> f64 {
        let is_it = |function: &&FunctionShare| function.name.rsplit("::").next() == Some(name);
        self.functions.iter().filter(is_it).map(|function| function.share).sum()
    }
}

fn observation(planned: &Planned, summary: Summary, excess: Option<Excess>) -> Observation {
    // The truth is that of the whole process, its start included, which the functions' true shares are of together.
    let of_functions: f64 = NAMES.iter().map(|name| summary.share(name)).sum();
    let whole = if of_functions > 0.0 { of_functions } else { 1.0 };
    let shares: [f64; TOP] = std::array::from_fn(|index| summary.share(NAMES[index]) / whole);
    // A run that ends before the first decision tells no rate.
    let taken_hz =
        if summary.target_cpu_s > 0.0 { summary.samples as f64 / summary.target_cpu_s } else { 0.0 };
    Observation {
        shape: planned.shape,
        program: SHAPES[planned.shape].name,
        arm: planned.arm,
        cpu_s: summary.target_cpu_s,
        charged_cpu_s: summary.target_cpu_s,
        excess_ratio: excess.map(|excess| excess.ratio),
        samples: summary.samples,
        rate_hz: if summary.rate_hz > 0.0 { summary.rate_hz } else { taken_hz },
        overhead_us: summary.overhead_us,
        overhead_se_us: summary.overhead_se_us,
        shares,
    }
}

/// The options that make a run one of its arm; an unsampled run takes `cpu`.
fn arm_options(arm: Arm, cpu: Duration) -> Vec<String> {
    match arm {
        Arm::Fixed(hertz) => vec![format!("--rate={hertz}")],
        Arm::Adaptive => vec![
            format!("--horizon={}ns", cpu.as_nanos()),
            format!("--budget={FREE_BUDGET}"),
            "--own-cpu=100%".to_owned(),
        ],
        Arm::Unsampled | Arm::Default => Vec::new(),
    }
}

/// Keeps this process and its children off the last CPU that they may use; returns it for the program. `None`
/// where there is only one.
fn leave_one_cpu() -> Result<Option<usize>> {
    let own = Pid::from_raw(0);
    let mut allowed = sched_getaffinity(own).context("the CPUs that may be used are not known")?;
    let usable: Vec<usize> =
        (0..CpuSet::count()).filter(|&cpu| allowed.is_set(cpu).unwrap_or(false)).collect();
    let &[.., _, last] = usable.as_slice() else { return Ok(None) };
    allowed.unset(last)?;
    sched_setaffinity(own, &allowed).context("the profiler could not be kept off the program's CPU")?;
    Ok(Some(last))
}

fn stopped(signal: Signal) -> anyhow::Error {
    let status = 128 + signal as i32 as u8;
    Failure::Stopped { status, text: "stopped before all runs were done; nothing was written".to_owned() }
        .into()
}

/// A child that is asked to end, and made to, when it is dropped.
struct RunningChild(Child);

impl RunningChild {
    fn pid(&self) -> Pid {
        Pid::from_raw(self.0.id() as i32)
    }

    /// Its CPU time (ns), if it has ended; it still is to be waited for.
    fn ended(&self) -> Result<Option<u64>> {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        let status = waitid(Id::Pid(self.pid()), flags).context("a run could not be waited for")?;
        let ended = status != WaitStatus::StillAlive;
        Ok(ended.then(|| clock::process_cpu_ns(self.0.id()).unwrap_or(0)))
    }
}

impl Drop for RunningChild {
    fn drop(&mut self) {
        let asked = Instant::now();
        let mut alive = matches!(self.0.try_wait(), Ok(None));
        if alive {
            let _ = kill(self.pid(), Signal::SIGTERM);
        }
        while alive && asked.elapsed() < PARTING {
            std::thread::sleep(Duration::from_millis(10));
            alive = matches!(self.0.try_wait(), Ok(None));
        }
        if alive {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finished(words: &[&str], patience: Duration) -> Result<Option<ExitStatus>> {
        crate::run::runtime()?.block_on(async {
            let mut runner = Runner {
                program: PathBuf::from(words[0]),
                folder: tempfile::tempdir()?,
                signals: Signals::listen()?,
                target_cpu: None,
                cpu: Duration::from_secs(1),
                calls: CALLS_UNIT,
                patience,
                options: Vec::new(),
                given_up: Vec::new(),
                notes: Vec::new(),
            };
            let ended = runner.finish(Command::new(words[0]).args(&words[1..])).await?;
            if let Some((status, _)) = ended {
                runner.expect_success(status)?;
            }
            Ok(ended.map(|(status, _)| status))
        })
    }

    #[test]
    fn a_run_that_does_not_end_is_given_up() {
        assert_eq!(finished(&["sleep", "86400"], Duration::from_millis(50)).unwrap(), None);
        assert!(finished(&["true"], PATIENCE).unwrap().unwrap().success());
    }

    #[test]
    fn a_run_that_fails_says_why() {
        let error = finished(&["sh", "-c", "echo 'sweetspot: no luck; try again' >&2; exit 3"], PATIENCE);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("exit status: 3: no luck; try again"), "{error}");
    }

    #[test]
    fn shares_are_found_by_the_end_of_the_name() {
        let function = |name: &str, share| FunctionShare { name: name.to_owned(), share };
        let functions =
            vec![function("sweetspot::evaluate::workload::work_a", 0.5), function("homework_a", 0.25)];
        let summary = Summary { functions, ..Summary::none() };
        assert_eq!((summary.share("work_a"), summary.share("work_b")), (0.5, 0.0));
    }

    #[test]
    fn a_run_before_the_first_decision_has_the_rate_it_took() {
        let planned = Planned { shape: 1, arm: Arm::Adaptive, seed: 1 };
        let summary = |rate_hz| Summary { samples: 30, target_cpu_s: 0.5, rate_hz, ..Summary::none() };
        assert_eq!(observation(&planned, summary(0.0), None).rate_hz, 60.0);
        assert_eq!(observation(&planned, summary(70.0), None).rate_hz, 70.0);
        assert_eq!(observation(&planned, Summary::none(), None).rate_hz, 0.0);
    }

    #[test]
    fn figures_that_are_none_are_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stats.jsonl");
        assert!(Summary::read(&path).is_err());
        fs::write(&path, "{\"type\":\"decision\"}\n{\"type\":\"summ").unwrap();
        assert!(Summary::read(&path).is_err());
        fs::write(&path, "{\"type\":\"summary\",\"samples\":3,\"target_cpu_s\":1.5,\"overhead_us\":9.0,\"overhead_se_us\":1.0,\"rate_hz\":2.0,\"functions\":[]}\n").unwrap();
        assert_eq!(Summary::read(&path).unwrap().samples, 3);
    }
}
