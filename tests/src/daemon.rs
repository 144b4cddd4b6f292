//! Runs `sweetspot daemon` with its own settings, store and socket, and uses it as an operator would.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use nix::sys::signal::{Signal, kill};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use crate::measured::cpu_with_children_s;
use crate::run::{Ended, Followed, Sweetspot, run, start, wait_until_told};

/// A daemon's folder, and the daemon while it runs.
pub struct Daemon {
    folder: TempDir,
    store: PathBuf,
    /// More lines of its section `[listen]`.
    listen: String,
    /// The budget of the host, where it is not the one by default.
    host: Option<&'static str>,
    sweetspot: Sweetspot,
    running: Option<Followed>,
}

/// So much of the host that names, requests and exports wait for nothing.
const AMPLE: Option<&str> = Some("50%");

impl Daemon {
    /// Starts one that watches `targets` (sections of a settings file), with windows of so many seconds.
    pub fn start(window_s: u32, targets: &str) -> Result<Daemon> {
        Daemon::start_at("", window_s, targets)
    }

    /// The same with half of the host to spend, unless the settings say how much. With the usual hundredth, names may be a minute late:
    /// for tests of something else.
    pub fn start_ample(window_s: u32, targets: &str) -> Result<Daemon> {
        let folder = tempfile::tempdir()?;
        let store = folder.path().join("store");
        Daemon::start_with(folder, store, "", AMPLE, window_s, targets)
    }

    /// The same with its profiles in another folder.
    pub fn start_ample_in(store: PathBuf, window_s: u32, targets: &str) -> Result<Daemon> {
        Daemon::start_with(tempfile::tempdir()?, store, "", AMPLE, window_s, targets)
    }

    /// [`Daemon::start`] with more lines of the section that says where it listens.
    pub fn start_at(listen: &str, window_s: u32, targets: &str) -> Result<Daemon> {
        let folder = tempfile::tempdir()?;
        let store = folder.path().join("store");
        Daemon::start_with(folder, store, listen, None, window_s, targets)
    }

    fn start_with(
        folder: TempDir,
        store: PathBuf,
        listen: &str,
        host: Option<&'static str>,
        window_s: u32,
        targets: &str,
    ) -> Result<Daemon> {
        let listen = listen.to_owned();
        let mut daemon = Daemon { folder, store, listen, host, sweetspot: Sweetspot::new(), running: None };
        daemon.write_settings(window_s, targets)?;
        daemon.start_again()?;
        Ok(daemon)
    }

    /// Writes other settings; they are in force once they are read again.
    pub fn write_settings(&self, window_s: u32, targets: &str) -> Result<()> {
        let (store, socket, listen) = (self.store(), self.socket(), &self.listen);
        // A key of no section stands before all of them.
        let (before, targets) = match targets.strip_prefix("target = []") {
            Some(others) => ("target = []\n", others),
            None => ("", targets),
        };
        let budget = match self.host {
            Some(host) if !targets.contains("[budget]") => format!("[budget]\nhost = {host:?}\n"),
            _ => String::new(),
        };
        // Windows are not merged, so that each is found.
        let text = format!(
            "{before}[store]\nfolder = {store:?}\nwindow = \"{window_s}s\"\nhourly_after = \"12h\"\n\n[listen]\nsocket = {socket:?}\ngroup = \"root\"\n{listen}\n{targets}\n{budget}"
        );
        Ok(fs::write(self.settings(), text)?)
    }

    /// Starts it again in the same folder, and waits until it answers.
    pub fn start_again(&mut self) -> Result<()> {
        let words = ["--config".to_owned(), self.settings().display().to_string()];
        let mut daemon = Followed::new(start(&mut self.sweetspot.command("daemon", &words))?);
        wait_until_told("the daemon's answer", || {
            daemon.running.try_wait().is_ok_and(|ended| ended.is_some())
                || self.ctl(&["status"]).is_ok_and(|ended| ended.status == 0)
        })?;
        if daemon.running.try_wait()?.is_some() {
            let ended = daemon.finish()?;
            anyhow::bail!("the daemon ended: {ended:?}");
        }
        self.running = Some(daemon);
        Ok(())
    }

    /// The settings file.
    pub fn settings(&self) -> PathBuf {
        self.folder.path().join("sweetspot.toml")
    }

    /// The folder of the profiles.
    pub fn store(&self) -> PathBuf {
        self.store.clone()
    }

    /// Where it answers.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// Its process.
    pub fn pid(&self) -> Result<u32> {
        Ok(self.running.as_ref().context("it does not run")?.running.id())
    }

    /// `sweetspot ctl WORDS`.
    pub fn ctl(&self, words: &[&str]) -> Result<Ended> {
        let socket = self.socket();
        let mut all = vec!["--socket".to_owned(), socket.display().to_string()];
        all.extend(words.iter().map(ToString::to_string));
        run(&mut self.sweetspot.command("ctl", &all))
    }

    /// The same, read as JSON.
    pub fn ctl_json(&self, words: &[&str]) -> Result<Value> {
        let words: Vec<&str> = words.iter().copied().chain(["--json"]).collect();
        let ended = self.ctl(&words)?.expect_status(0)?;
        serde_json::from_str(&ended.stdout).with_context(|| ended.stdout.clone())
    }

    /// All targets as `ctl targets` shows them.
    pub fn targets(&self) -> Result<Vec<Value>> {
        let answer = self.ctl_json(&["targets"])?;
        let list = answer.as_array().or_else(|| answer["targets"].as_array());
        list.cloned().with_context(|| format!("no list: {answer}"))
    }

    /// One of them.
    pub fn target(&self, name: &str) -> Result<Value> {
        let targets = self.targets()?;
        let found = targets.iter().find(|target| target["name"] == name).cloned();
        found.with_context(|| format!("no {name}: {targets:?}"))
    }

    /// CPU time of the daemon, and of the process that reads symbols for it (s).
    pub fn own_cpu_s(&self) -> Result<f64> {
        cpu_with_children_s(self.pid()?)
    }

    /// Waits until a target is in this state.
    pub fn wait_for(&self, name: &str, state: &str) -> Result<()> {
        wait_until_told(state, || self.target(name).is_ok_and(|target| target["state"] == state))
    }

    /// `sweetspot report` of what it keeps.
    pub fn report(&self, words: &[&str]) -> Result<Ended> {
        let store = self.store();
        let mut all = vec!["--store".to_owned(), store.display().to_string()];
        all.extend(words.iter().map(ToString::to_string));
        run(&mut self.sweetspot.command("report", &all))
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill(Pid::from_raw(self.pid()? as i32), signal)?)
    }

    /// Asks it to end, and returns how it did.
    pub fn stop(&mut self, signal: Signal) -> Result<Ended> {
        self.signal(signal)?;
        self.ended()
    }

    /// Waits until it has ended, and returns how.
    pub fn ended(&mut self) -> Result<Ended> {
        self.running.take().context("it does not run")?.finish()
    }

    /// Files of the store, except those that are being written or wait for names.
    pub fn files(&self) -> Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for day in fs::read_dir(self.store())?.flatten().filter(|day| day.path().is_dir()) {
            if day.file_name() == "unnamed" {
                continue;
            }
            let names = fs::read_dir(day.path())?.flatten().map(|file| file.path());
            files.extend(names.filter(|path| path.to_string_lossy().ends_with(".pb.gz")));
        }
        Ok(files)
    }

    /// Fails if any of its perf events is left.
    pub fn has_no_events(&self) -> Result<()> {
        let pid = self.pid()?;
        let events = fs::read_dir(format!("/proc/{pid}/fd"))?
            .flatten()
            .filter_map(|fd| fs::read_link(fd.path()).ok())
            .filter(|target| target.to_string_lossy().contains("perf_event"))
            .count();
        ensure!(events == 0, "{events} events are open");
        Ok(())
    }
}

/// Begin and end of what a stored file counts (ms of the monotonic clock), from its name: this says the second in which it
/// begins, how long after that it ends, and the begin by the monotonic clock.
pub fn span_ms(path: &Path) -> Result<(u64, u64)> {
    let name = path.file_name().context("a name")?.to_string_lossy().into_owned();
    let day = path.parent().and_then(Path::file_name).context("a day")?.to_string_lossy().into_owned();
    let parts: Vec<&str> = name.split('_').collect();
    let begin_ms: u64 = parts[4].rsplit('-').next().context("a begin")?.parse()?;
    let length_s: f64 = parts[2].trim_end_matches('s').parse()?;
    let second: Timestamp = format!("{day}T{}Z", parts[0].replace('-', ":")).parse()?;
    let end_unix_ms = second.as_second() as f64 * 1e3 + length_s * 1e3;
    Ok((begin_ms, (end_unix_ms - monotonic_begin_unix_ms()?).round() as u64))
}

/// The monotonic clock (ms).
pub fn monotonic_ms() -> Result<u64> {
    Ok(Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC)?).as_millis() as u64)
}

/// When the monotonic clock began (ms since the epoch), from the closest pair of readings of both clocks.
fn monotonic_begin_unix_ms() -> Result<f64> {
    let ms = |clock| anyhow::Ok(Duration::from(clock_gettime(clock)?).as_secs_f64() * 1e3);
    let mut best = (f64::INFINITY, 0.0);
    for _ in 0..20 {
        let before_ms = ms(ClockId::CLOCK_MONOTONIC)?;
        let now_ms = ms(ClockId::CLOCK_REALTIME)?;
        let took_ms = ms(ClockId::CLOCK_MONOTONIC)? - before_ms;
        if took_ms < best.0 {
            best = (took_ms, now_ms - before_ms);
        }
    }
    Ok(best.1)
}

/// What samples, context switches and mapping records took from a target so far, by its entry in the list of targets (s).
pub fn taken_s(target: &Value) -> f64 {
    let part = |key: &str| target["overhead_parts"][format!("{key}_ratio")].as_f64().unwrap_or(0.0);
    let ratio: f64 =
        ["base", "frames", "stack", "switches", "side_records"].iter().map(|key| part(key)).sum();
    ratio * target["cpu_s"].as_f64().unwrap_or(0.0)
}
