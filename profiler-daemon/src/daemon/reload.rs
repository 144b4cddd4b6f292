//! The settings file: read at start, and again on request. An invalid file leaves the settings in force
//! unchanged.
//!
//! New settings are prepared on a thread of their own: the file may be on a disk that hangs, users and groups may be
//! looked up over a network, and a new store is scanned as it is opened. Sampling does not wait for any of it.
//! Everything that can fail comes first and listeners come last; a listener of ours that occupies the new
//! address is closed before it, and reopened if that fails.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use anyhow::{Error, Result, anyhow};
use config::DaemonSettings;
use profile_files::store::StoreError;
use tokio::sync::mpsc;

use super::window_writer::WindowWriter;
use super::{Daemon, debuginfod_settings, exports, start_writer, store_settings};
use crate::api;
use crate::discovery::LookedUp;
use crate::failure::{Failure, lines, usage};
use crate::fleet;
use crate::objects::Symbols;
use crate::service::command::{CommandRefused, ReplySender};
use crate::service::state::SettingsStatus;
use crate::sys::clock;

/// Settings, with everything prepared that can fail.
pub(super) struct PreparedSettings {
    settings: DaemonSettings,
    /// What its targets refer to.
    looked_up: Vec<LookedUp>,
    interface: api::PreparedInterface,
    exports: exports::PreparedExports,
    fleet: Option<fleet::PrometheusClient>,
    /// The writer of their store's folder, if it is another one.
    writer: Option<WindowWriter>,
}

/// Where the settings come from, and how reading them again went.
pub(super) struct Reloads {
    /// `None`: the defaults are in force.
    file: Option<PathBuf>,
    read_unix_s: f64,
    /// Why the present file is not in force.
    problem: Option<String>,
    begun: u64,
    failed: u64,
    /// The settings that are being read, and the channel that they arrive on.
    reading: Option<Reloading>,
    prepared: mpsc::Sender<Result<PreparedSettings>>,
}

impl Reloads {
    /// The settings of `file` are in force; new ones will arrive through `prepared`.
    pub(super) fn new(file: Option<PathBuf>, prepared: mpsc::Sender<Result<PreparedSettings>>) -> Self {
        let read_unix_s = unix_s();
        Self { file, read_unix_s, problem: None, begun: 0, failed: 0, reading: None, prepared }
    }

    pub(super) fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    pub(super) fn problem(&self) -> Option<&String> {
        self.problem.as_ref()
    }

    pub(super) fn status(&self) -> SettingsStatus {
        SettingsStatus {
            file: self.file.as_ref().map(|file| file.display().to_string()),
            read_unix_s: self.read_unix_s,
            problem: self.problem.clone(),
            reloads: self.begun,
            reloads_failed: self.failed,
        }
    }
}

fn unix_s() -> f64 {
    clock::unix_ns() as f64 * 1e-9
}

/// Settings that are being read.
#[derive(Default)]
struct Reloading {
    replies: Vec<ReplySender<Result<String, CommandRefused>>>,
    /// Reload requests that came meanwhile: the settings being read may be older than what they want.
    again: Option<Vec<ReplySender<Result<String, CommandRefused>>>>,
}

/// Prepares the settings of `file`, where `folder` is the store's and the windows of `leaving` are still being stored.
fn prepare(
    file: Option<&Path>,
    folder: &Path,
    leaving: &[PathBuf],
    symbols: &Symbols,
) -> Result<PreparedSettings> {
    let settings = read(file)?;
    let interface = api::prepare(&settings)?;
    let exports = exports::prepare(&settings)?;
    let fleet = fleet::PrometheusClient::new(&settings.fleet)?;
    let writer = match settings.store.folder == *folder {
        true => None,
        false => Some(start_writer(&settings, symbols).map_err(|error| unless_left(error, leaving))?),
    };
    let looked_up = LookedUp::of_all(&settings.targets);
    Ok(PreparedSettings { settings, looked_up, interface, exports, fleet, writer })
}

/// The error of a store's folder, which may still be ours.
fn unless_left(error: StoreError, leaving: &[PathBuf]) -> Error {
    match error {
        StoreError::Busy(folder) if leaving.contains(&folder) => anyhow!(
            "{}: its last windows are still being stored there; reload again in a moment",
            folder.display()
        ),
        error => error.into(),
    }
}

/// Reads the settings, all problems in one error.
///
/// # Errors
///
/// What is wrong with them, line by line.
pub(super) fn read(file: Option<&Path>) -> Result<DaemonSettings> {
    let Some(file) = file else { return Ok(DaemonSettings::default()) };
    let path = file.display();
    let bytes = std::fs::read(file).map_err(|error| {
        usage(format!("{path} cannot be read ({error}); name a settings file with --config"))
    })?;
    DaemonSettings::parse(&bytes).map_err(|problems| {
        Failure::Settings(problems.iter().map(|problem| format!("{path}:{problem}")).collect()).into()
    })
}

impl Daemon {
    /// Reads the settings again, and answers when they are in force. Targets that are as they were go on being sampled without
    /// a gap.
    pub(super) fn reload(&mut self, reply: Option<ReplySender<Result<String, CommandRefused>>>) {
        if let Some(reading) = &mut self.reloads.reading {
            reading.again.get_or_insert_default().extend(reply);
            return;
        }
        self.reporting.notifier.reloading();
        self.reloads.begun += 1;
        self.reloads.reading = Some(Reloading { replies: reply.into_iter().collect(), again: None });
        let (file, prepared) = (self.reloads.file.clone(), self.reloads.prepared.clone());
        let folder = self.settings.store.folder.clone();
        let leaving = self.profiles.leaving.iter().map(|left| left.writer.folder().to_owned());
        let leaving: Vec<PathBuf> = leaving.collect();
        let symbols = self.setup.symbols.clone();
        let begun = std::thread::Builder::new().name("settings".to_owned()).spawn(move || {
            let prepare = || prepare(file.as_deref(), &folder, &leaving, &symbols);
            let settings = catch_unwind(AssertUnwindSafe(prepare));
            let settings = settings
                .unwrap_or_else(|_| Err(anyhow!("internal error while the settings were read; see the log")));
            let _ = prepared.blocking_send(settings); // the receiver is gone at shutdown
        });
        if let Err(error) = begun {
            self.finish_reload(Err(anyhow!(
                "the settings cannot be read ({error}); raise the limit of threads"
            )));
        }
    }

    /// Puts the prepared settings in force, or reports why not; then the old ones stay.
    pub(super) fn finish_reload(&mut self, prepared: Result<PreparedSettings>) {
        let said = match prepared.and_then(|prepared| self.adopt(prepared)) {
            Ok(()) => {
                self.reloads.problem = None;
                Ok(self.settings.in_words())
            }
            Err(error) => {
                self.reloads.failed += 1;
                lines(&error).iter().for_each(|line| tracing::error!("{line}"));
                tracing::error!("the previous settings stay in force");
                self.reloads.problem = Some(format!("{error:#}"));
                Err(CommandRefused::Invalid(format!("{error:#}")))
            }
        };
        self.publish(); // the requester then sees what was done
        let Reloading { replies, again } = self.reloads.reading.take().unwrap_or_default();
        replies.into_iter().for_each(|reply| drop(reply.send(said.clone())));
        self.reporting.notifier.ready(&self.in_words());
        if let Some(mut replies) = again {
            self.reload(replies.pop());
            self.reloads.reading.iter_mut().for_each(|reading| reading.replies.append(&mut replies));
        }
    }

    fn adopt(&mut self, prepared: PreparedSettings) -> Result<()> {
        let PreparedSettings { settings, looked_up, interface, exports, fleet, writer } = prepared;
        if let Some(conflict) = self.discovery.name_conflict(&settings.targets) {
            return Err(usage(conflict));
        }
        let setup = self.setup.under(&settings.sampling_of(&config::TargetSettings::default()))?;
        self.reporting.server.adopt(interface)?; // the last that can fail
        self.publish(); // the last that was counted of targets that go
        self.settings = settings;
        self.move_store(writer);
        self.export(exports);
        self.fleet.adopt(fleet, &self.settings, self.due.began_ns);
        self.setup = setup;
        self.reloads.read_unix_s = unix_s();
        self.setup.symbols.set_cap(self.settings.symbols.memory.get());
        self.discovery.replace(&self.settings.targets, looked_up);
        self.discovery.relabel(&self.settings.relabel);
        self.ask_runtimes();
        let now_ns = clock::monotonic_ns();
        self.look_for_targets(now_ns);
        for (id, watched) in &mut self.targets {
            let Some(found) = self.discovery.target(*id) else { continue };
            let sampling = self.settings.sampling_of(&found.settings);
            watched.identity.labels.clone_from(&found.labels);
            // The memory for symbols is shared by all targets.
            watched.sampling.symbol_memory = sampling.symbol_memory;
            watched
                .ask_for(sampling, &self.setup)
                .into_iter()
                .for_each(|pending| self.profiles.writer.keep(pending));
        }
        self.adopt_shared();
        self.due.next_ranking_ns = now_ns; // the limit on targets may have changed
        self.attach_targets(now_ns);
        self.subtract_others_time();
        tracing::info!("settings in force: {}", self.settings.in_words());
        Ok(())
    }

    /// Moves to the store of the new settings.
    fn move_store(&mut self, writer: Option<WindowWriter>) {
        match writer {
            Some(writer) => {
                writer.pace_reading(&self.setup.symbols);
                let mut old = std::mem::replace(&mut self.profiles.writer, writer);
                old.end();
                self.profiles.leaving.push(self.reporting.journal.leave_store(old));
            }
            None => {
                let (bounds, queue) = store_settings(&self.settings);
                self.profiles.writer.rebound(bounds, queue, debuginfod_settings(&self.settings));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_being_left_can_be_named_again_in_a_moment() {
        let folder = tempfile::tempdir().unwrap();
        let (file, present) = (folder.path().join("sweetspot.toml"), folder.path().join("present"));
        let left = folder.path().join("left");
        std::fs::write(&file, format!("[store]\nfolder = {left:?}\n")).unwrap();
        let symbols = Symbols::new(1 << 20);
        let _leaving = start_writer(&read(Some(&file)).unwrap(), &symbols).unwrap();
        let text = format!("{:#}", prepare(Some(&file), &present, &[left], &symbols).err().unwrap());
        assert!(text.contains("its last windows are still being stored there"), "{text}");
        assert!(text.contains("reload again in a moment") && !text.contains("another sweetspot"), "{text}");
    }
}
