//! The daemon under test: its settings, its process, and how it ends.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::client::get_json;
use super::record::Record;
use crate::run::{Ended, Sweetspot, run};

/// A start that takes longer is a failure.
const START: Duration = Duration::from_secs(60);
/// A daemon that takes longer to end is killed.
const END: Duration = Duration::from_secs(30);

/// What the settings file says, beside the targets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    /// Length of a window (s).
    pub(super) window_s: u32,
    /// Budget of a target (%).
    pub(super) budget_percent: f64,
    /// Room for profiles (KiB).
    pub(super) store_kib: u32,
    /// When windows are merged (s after they ended).
    pub(super) hourly_after_s: u32,
}

/// A daemon and its folder.
pub(super) struct Service {
    folder: PathBuf,
    store: PathBuf,
    targets: String,
    /// What is in force.
    pub(super) terms: Terms,
    sweetspot: Sweetspot,
    record: Record,
    child: Option<Child>,
}

impl Service {
    /// Starts it in a folder, with its profiles in another.
    pub(super) fn start(
        folder: &Path,
        store: PathBuf,
        targets: String,
        terms: Terms,
        record: Record,
    ) -> Result<Service> {
        let sweetspot = Sweetspot::new();
        let mut service =
            Service { folder: folder.to_owned(), store, targets, terms, sweetspot, record, child: None };
        service.write_settings(terms)?;
        service.start_again()?;
        Ok(service)
    }

    /// Writes other settings; they are in force once they are read.
    pub(super) fn write_settings(&mut self, terms: Terms) -> Result<()> {
        let Terms { window_s, budget_percent, store_kib, hourly_after_s } = terms;
        let (store, socket, targets) = (&self.store, self.socket(), &self.targets);
        let text = format!(
            "[budget]\ntarget = \"{budget_percent}%\"\n\n[store]\nfolder = {store:?}\nwindow = \"{window_s}s\"\n\
             bytes = \"{store_kib}KiB\"\nhourly_after = \"{hourly_after_s}s\"\n\n[listen]\nsocket = {socket:?}\ngroup = \"root\"\n\n{targets}"
        );
        self.terms = terms;
        Ok(fs::write(self.settings(), text)?)
    }

    /// Starts it, and waits until it answers.
    pub(super) fn start_again(&mut self) -> Result<()> {
        let words = ["--config".to_owned(), self.settings().display().to_string()];
        let mut command = self.sweetspot.command("daemon", &words);
        // Not a pipe: one that nobody reads would stop it.
        let log = File::options().append(true).create(true).open(self.log())?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let mut child = command.spawn().context("the daemon cannot be started")?;
        let begun = Instant::now();
        while get_json(&self.socket(), "/v1/status", START).is_err() {
            if let Some(status) = child.try_wait()? {
                bail!("the daemon ended at once: {status}; see {}", self.log().display());
            }
            if begun.elapsed() > START {
                let _ = child.kill();
                bail!("the daemon did not answer within {START:?}");
            }
            sleep(Duration::from_millis(20));
        }
        let took_ms = begun.elapsed().as_millis() as u64;
        self.record.tell("started", json!({ "pid": child.id(), "took_ms": took_ms }));
        self.child = Some(child);
        Ok(())
    }

    /// Its settings file.
    pub(super) fn settings(&self) -> PathBuf {
        self.folder.join("sweetspot.toml")
    }

    /// Where it answers.
    pub(super) fn socket(&self) -> PathBuf {
        self.folder.join("socket")
    }

    /// What it writes to standard error.
    pub(super) fn log(&self) -> PathBuf {
        self.folder.join("daemon.log")
    }

    /// The folder of its profiles.
    pub(super) fn store(&self) -> &Path {
        &self.store
    }

    /// Its process; none while it does not run.
    pub(super) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// How it ended, if it has ended without being asked to.
    pub(super) fn has_ended(&mut self) -> Option<String> {
        let status = self.child.as_mut()?.try_wait().ok()??;
        self.child = None;
        Some(status.to_string())
    }

    /// Sends it a signal.
    pub(super) fn signal(&self, signal: Signal) -> Result<()> {
        let pid = self.pid().context("it does not run")?;
        Ok(kill(Pid::from_raw(pid as i32), signal)?)
    }

    /// Waits until it has ended after it was asked to, and returns how.
    pub(super) fn ended(&mut self, why: &str) -> Result<()> {
        let mut child = self.child.take().context("it does not run")?;
        let told = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status.to_string();
            }
            if told.elapsed() > END {
                child.kill()?;
                child.wait()?;
                break format!("killed after {END:?}");
            }
            sleep(Duration::from_millis(2));
        };
        let took_ms = told.elapsed().as_millis() as u64;
        self.record.tell("ended", json!({ "why": why, "status": status, "took_ms": took_ms }));
        Ok(())
    }

    /// `sweetspot ctl WORDS`.
    pub(super) fn ctl(&self, words: &[&str]) -> Result<Ended> {
        let mut all = vec!["--socket".to_owned(), self.socket().display().to_string()];
        all.extend(words.iter().map(ToString::to_string));
        run(&mut self.sweetspot.command("ctl", &all))
    }

    /// `sweetspot report` of all its stored profiles, or of a target's.
    pub(super) fn report(&self, words: &[&str]) -> Result<Ended> {
        let mut all = vec!["--store".to_owned(), self.store.display().to_string()];
        all.extend(["--from", "-30d", "--format", "json"].iter().chain(words).map(ToString::to_string));
        run(&mut self.sweetspot.command("report", &all))
    }

    /// `sweetspot report FILE`.
    pub(super) fn report_file(&self, file: &Path) -> Result<Ended> {
        let words = [file.display().to_string(), "--format".to_owned(), "json".to_owned()];
        run(&mut self.sweetspot.command("report", &words))
    }

    /// Its status, if it answers in time.
    pub(super) fn status(&self, patience: Duration) -> Option<Value> {
        get_json(&self.socket(), "/v1/status", patience).ok()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
