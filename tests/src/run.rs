//! Runs `sweetspot` from its command line, as a person would.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};
use std::{env, fs};

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use crate::folded::Folded;
use crate::guards::{Running, open_to_all};
use crate::programs::{copy_program, program, target_folder, workspace_folder};
use crate::stats::Stats;
use crate::truth::Truth;

/// Longest time of a run in these tests; a longer one hangs, and is killed.
const PATIENCE: Duration = Duration::from_secs(400);

/// The profiler under test: `$SWEETSPOT`, or this workspace's own release build, brought up to date first.
///
/// It is the release build since the profiler's own CPU time counts against the budget.
pub fn sweetspot() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| match env::var_os("SWEETSPOT") {
        Some(path) => PathBuf::from(path),
        None => build_sweetspot().expect("the profiler must build"),
    })
}

fn build_sweetspot() -> Result<PathBuf> {
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--release", "--quiet", "-p", "profiler-daemon", "-p", "sweetspot-agent"]);
    // What cargo says of this test's package: a build script that reads it would be run again, and all that depends on it.
    let of_package = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in env::vars().filter(|(name, _)| of_package(name)) {
        build.env_remove(name);
    }
    let status = build.current_dir(workspace_folder()).status()?;
    ensure!(status.success(), "cargo build failed");
    Ok(target_folder().join("release/sweetspot"))
}

/// The result of a command.
#[derive(Debug)]
pub struct Ended {
    /// Exit status; 128 + n where signal n ended it.
    pub status: i32,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Ended {
    /// An error that shows everything, unless the status is this.
    pub fn expect_status(self, status: i32) -> Result<Ended> {
        ensure!(self.status == status, "exit status {} instead of {status}: {self:#?}", self.status);
        Ok(self)
    }
}

/// The same command, ended by Ctrl-C even where that is ignored, as in what a shell starts in the background.
pub fn interruptible(command: &Command) -> Command {
    let mut through = Command::new("env");
    through.arg("--default-signal=INT").arg(command.get_program()).args(command.get_args());
    through.envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))));
    through
}

/// Starts a command with its outputs piped and no input.
pub fn start(command: &mut Command) -> Result<Running> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Running::start(command)
}

/// Waits for a started command; ends it if it does not end by itself.
pub fn finish(running: Running) -> Result<Ended> {
    finish_within(running, PATIENCE)
}

/// [`finish`] for a command that may take this long.
pub fn finish_within(running: Running, patience: Duration) -> Result<Ended> {
    Followed::new(running).finish_within(patience)
}

/// A started command whose outputs are read while it runs: it may write more than a pipe holds, and would wait for a reader.
pub struct Followed {
    /// The command.
    pub running: Running,
    stdout: thread::JoinHandle<Vec<u8>>,
    stderr: thread::JoinHandle<Vec<u8>>,
}

impl Followed {
    /// Reads what it prints from now on.
    pub fn new(mut running: Running) -> Followed {
        let (stdout, stderr) = (read_aside(running.stdout.take()), read_aside(running.stderr.take()));
        Followed { running, stdout, stderr }
    }

    /// [`finish`].
    pub fn finish(self) -> Result<Ended> {
        self.finish_within(PATIENCE)
    }

    fn finish_within(mut self, patience: Duration) -> Result<Ended> {
        let status =
            wait(&mut self.running, patience).with_context(|| format!("process {}", self.running.id()))?;
        let text = |reader: thread::JoinHandle<Vec<u8>>| {
            String::from_utf8_lossy(&reader.join().expect("a reader does not panic")).into_owned()
        };
        let status = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(-1);
        Ok(Ended { status, stdout: text(self.stdout), stderr: text(self.stderr) })
    }
}

/// Runs a command to its end.
pub fn run(command: &mut Command) -> Result<Ended> {
    finish(start(command)?)
}

fn read_aside(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // What was read before an error is still worth showing.
            let _ = pipe.read_to_end(&mut bytes);
        }
        bytes
    })
}

fn wait(child: &mut Child, patience: Duration) -> Result<ExitStatus> {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        ensure!(started.elapsed() <= patience, "did not end within {patience:?}"); // and is killed when dropped
        thread::sleep(Duration::from_millis(10));
    }
}

/// Reads the next line of what a command prints, and not a byte more.
pub fn next_line(running: &mut Running) -> Result<String> {
    let stdout = running.stdout.as_mut().context("its output is not piped")?;
    let (mut line, mut byte) = (Vec::new(), [0]);
    while stdout.read(&mut byte)? == 1 {
        match byte[0] {
            b'\n' => return Ok(String::from_utf8(line)?),
            byte => line.push(byte),
        }
    }
    bail!("it printed no line to its end: {}", line.escape_ascii());
}

/// Waits until a program says that it is past its beginning.
pub fn wait_until_ready(running: &mut Running) -> Result<()> {
    let line = next_line(running)?;
    ensure!(line == "ready", "`{line}` instead of `ready`");
    Ok(())
}

/// Waits until a condition holds.
pub fn wait_until(what: &str, holds: impl FnMut() -> bool) -> Result<()> {
    wait_by(Duration::from_millis(5), what, holds)
}

/// The same of what a command has to be started to know: asked all the time, it would take a CPU, and the profiler's own time.
pub fn wait_until_told(what: &str, holds: impl FnMut() -> bool) -> Result<()> {
    wait_by(Duration::from_millis(100), what, holds)
}

fn wait_by(pause: Duration, what: &str, mut holds: impl FnMut() -> bool) -> Result<()> {
    let started = Instant::now();
    while !holds() {
        ensure!(started.elapsed() < PATIENCE, "waited {PATIENCE:?} for {what}");
        thread::sleep(pause);
    }
    Ok(())
}

/// A command line of sweetspot in the making, with a folder for what it writes.
pub struct Sweetspot {
    folder: TempDir,
    prefix: Vec<String>,
    binary: PathBuf,
    options: Vec<String>,
}

impl Default for Sweetspot {
    fn default() -> Self {
        Sweetspot::new()
    }
}

impl Sweetspot {
    /// A command line without options.
    pub fn new() -> Sweetspot {
        let folder = tempfile::tempdir().expect("a folder for temporary files");
        Sweetspot { folder, prefix: Vec::new(), binary: sweetspot().to_path_buf(), options: Vec::new() }
    }

    /// Adds options, as words.
    pub fn options(mut self, words: &[&str]) -> Sweetspot {
        self.options.extend(words.iter().map(ToString::to_string));
        self
    }

    /// Uses another binary than the one under test.
    pub fn with_binary(self, binary: PathBuf) -> Sweetspot {
        Sweetspot { binary, ..self }
    }

    /// Runs it through another command.
    pub fn through(mut self, words: &[&str]) -> Sweetspot {
        self.prefix.extend(words.iter().map(ToString::to_string));
        self
    }

    /// Runs it as `nobody`, who can read its binary and write to its folder.
    pub fn unprivileged(mut self) -> Result<Sweetspot> {
        open_to_all(self.path())?;
        let binary = self.path().join("sweetspot");
        copy_program(&self.binary, &binary)?;
        open_to_all(&binary)?;
        let agent = self.binary.with_file_name("libsweetspot_agent.so");
        if agent.exists() {
            fs::copy(agent, self.path().join("libsweetspot_agent.so"))?;
        }
        self.binary = binary;
        Ok(self.through(NOBODY))
    }

    /// The folder for what it writes.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// A file in the folder, as an argument.
    pub fn file(&self, name: &str) -> String {
        self.path().join(name).to_string_lossy().into_owned()
    }

    /// `sweetspot VERB [OPTIONS] ARGUMENTS`.
    pub fn command<S: AsRef<OsStr>>(&self, verb: &str, arguments: &[S]) -> Command {
        let mut command = match self.prefix.split_first() {
            None => Command::new(&self.binary),
            Some((first, rest)) => {
                let mut command = Command::new(first);
                command.args(rest).arg(&self.binary);
                command
            }
        };
        command.arg(verb).args(&self.options).args(arguments);
        // One calibration serves all tests.
        command.env("XDG_CACHE_HOME", cache_folder());
        command
    }

    /// Profiles a program of known truth from its start to its end.
    pub fn record(self, name: &str, arguments: &[&str]) -> Result<Recorded> {
        let mut target = program(name)?;
        if !self.prefix.is_empty() {
            target = self.copy_for_all(&target)?;
        }
        let truth = self.file("truth.json");
        let mut words = self.outputs();
        words.extend(["--".to_string(), target.to_string_lossy().into_owned()]);
        words.extend(arguments.iter().map(ToString::to_string));
        words.extend(["--out".to_string(), truth.clone()]);
        let before = machine_time()?;
        let ended = run(&mut self.command("record", &words))?.expect_status(0)?;
        let stolen_ratio = stolen_since(before)?;
        let truth = Truth::read(Path::new(&truth))?;
        Recorded::read(self, ended, stolen_ratio, Some(truth))
    }

    /// Profiles a running process.
    pub fn attach(self, pid: u32, seconds: f64) -> Result<Recorded> {
        let mut words = self.outputs();
        words.extend(["--duration".to_string(), format!("{seconds}s"), pid.to_string()]);
        let before = machine_time()?;
        let ended = run(&mut self.command("attach", &words))?.expect_status(0)?;
        let stolen_ratio = stolen_since(before)?;
        Recorded::read(self, ended, stolen_ratio, None)
    }

    /// Starts to profile running processes, and waits until it has begun.
    pub fn start_attach(&self, words: &[&str]) -> Result<Attached> {
        let mut arguments = self.outputs();
        arguments.extend(words.iter().map(ToString::to_string));
        let before = machine_time()?;
        let running = start(&mut self.command("attach", &arguments))?;
        let (stats, process) = (self.file("stats.jsonl"), format!("/proc/{}/stat", running.id()));
        wait_until("the first decision", || {
            let ended = fs::read_to_string(&process).is_ok_and(|stat| stat.contains(") Z "));
            ended || fs::metadata(&stats).is_ok_and(|file| file.len() > 0)
        })?;
        Ok(Attached { running, before })
    }

    /// The results of a run that the caller started, once it has ended.
    pub fn finish(self, attached: Attached, truth: Option<Truth>) -> Result<Recorded> {
        let ended = finish(attached.running)?.expect_status(0)?;
        let stolen_ratio = stolen_since(attached.before)?;
        Recorded::read(self, ended, stolen_ratio, truth)
    }

    /// Options that leave a folded file and statistics in the folder.
    pub fn outputs(&self) -> Vec<String> {
        ["-o", &self.file("profile.folded"), "--stats", &self.file("stats.jsonl")]
            .map(str::to_string)
            .to_vec()
    }

    /// A copy of a program that `nobody` can run.
    pub fn copy_for_all(&self, target: &Path) -> Result<PathBuf> {
        let copy = self.path().join(target.file_name().context("a program has a name")?);
        copy_program(target, &copy)?;
        open_to_all(&copy)?;
        Ok(copy)
    }
}

/// Words that run a command as the user `nobody`.
pub const NOBODY: &[&str] = &["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];

fn cache_folder() -> PathBuf {
    let folder = target_folder().join("programs/cache");
    // A cache that cannot be written costs a calibration for each run and no more.
    let _ = fs::create_dir_all(&folder);
    folder
}

/// Busy and stolen time of all CPUs since boot, in the kernel's unit.
fn machine_time() -> Result<(f64, f64)> {
    let stat = fs::read_to_string("/proc/stat")?;
    let fields = stat.lines().next().context("/proc/stat is empty")?.split_whitespace().skip(1);
    let fields: Vec<f64> = fields.map(str::parse).collect::<Result<_, _>>()?;
    // user nice system idle iowait irq softirq steal
    ensure!(fields.len() >= 8, "/proc/stat has only {} fields", fields.len());
    Ok((fields[0] + fields[1] + fields[2] + fields[5] + fields[6] + fields[7], fields[7]))
}

fn stolen_since((busy, stolen): (f64, f64)) -> Result<f64> {
    let (busy_now, stolen_now) = machine_time()?;
    Ok((stolen_now - stolen) / (busy_now - busy).max(1.0))
}

/// A profiler that is attached.
pub struct Attached {
    /// The profiler.
    pub running: Running,
    before: (f64, f64),
}

/// A finished run and all it left.
pub struct Recorded {
    /// Status and outputs.
    pub ended: Ended,
    /// Decisions and summary.
    pub stats: Stats,
    /// The stacks.
    pub folded: Folded,
    /// Share of the machine's busy time that its hypervisor took away during the run.
    pub stolen_ratio: f64,
    truth: Option<Truth>,
    sweetspot: Sweetspot,
}

impl Recorded {
    fn read(sweetspot: Sweetspot, ended: Ended, stolen_ratio: f64, truth: Option<Truth>) -> Result<Recorded> {
        let read = |name: &str| {
            fs::read_to_string(sweetspot.file(name)).with_context(|| format!("no {name}: {}", ended.stderr))
        };
        let stats = Stats::parse(&read("stats.jsonl")?)?;
        let folded = Folded::parse(&read("profile.folded")?)?;
        Ok(Recorded { ended, stats, folded, stolen_ratio, truth, sweetspot })
    }

    /// The program's own account of its work.
    pub fn truth(&self) -> Result<&Truth> {
        self.truth.as_ref().context("an attached run has no truth of its own")
    }

    /// A file the run left.
    pub fn file(&self, name: &str) -> PathBuf {
        self.sweetspot.path().join(name)
    }
}
