//! The settings file: read at the start, and again when somebody asks for it. A bad one leaves the old one in force.

use std::path::Path;

use anyhow::Result;
use config::DaemonSettings;

use super::ask::Refused;
use super::{Daemon, PATIENCE, debuginfod_settings, start_keeper, store_settings};
use crate::failure::usage;
use crate::store::StoreError;
use crate::sys::clock;

/// Reads the settings, all problems in one message.
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
        let lines: Vec<String> = problems.iter().map(|problem| format!("{path}:{problem}")).collect();
        usage(lines.join("\n"))
    })
}

impl Daemon {
    /// Reads the settings again. Targets that are as they were go on being sampled without a gap.
    ///
    /// # Errors
    ///
    /// What is wrong with them; the old ones are still in force.
    pub(super) fn reload(&mut self) -> Result<String, Refused> {
        self.notifier.reloading();
        self.reloads.0 += 1;
        let reloaded = read(self.file.as_deref()).and_then(|settings| self.adopt(settings));
        let said = match reloaded {
            Ok(()) => {
                self.problem = None;
                Ok(self.settings.in_words())
            }
            Err(error) => {
                self.reloads.1 += 1;
                tracing::error!("{error:#}; the settings before are still in force");
                self.problem = Some(format!("{error:#}"));
                Err(Refused::Invalid(format!("{error:#}")))
            }
        };
        self.notifier.ready(&self.in_words());
        said
    }

    fn adopt(&mut self, settings: DaemonSettings) -> Result<()> {
        let setup = self.setup.under(&settings.sampling_of(&config::TargetSettings::default()))?;
        self.server.reload(&settings)?;
        let old = std::mem::replace(&mut self.settings, settings);
        if let Err(error) = self.move_store(&old) {
            self.settings = old;
            self.server.reload(&self.settings)?;
            return Err(error.into());
        }
        self.setup = setup;
        self.read_unix_s = clock::unix_ns() as f64 * 1e-9;
        self.setup.symbols.set_cap(self.settings.symbols.memory.get());
        self.discovery.replace(&self.settings.targets);
        let now_ns = clock::monotonic_ns();
        self.look_for_targets(now_ns);
        for (id, watched) in &mut self.targets {
            let Some(found) = self.discovery.target(*id) else { continue };
            let sampling = self.settings.sampling_of(&found.settings);
            watched.identity.labels.clone_from(&found.labels);
            // All share the memory for symbols, whatever there is of it.
            watched.sampling.symbol_memory = sampling.symbol_memory;
            watched.ask_for(sampling, &self.setup).into_iter().for_each(|parcel| self.keeper.keep(parcel));
        }
        self.next_ranking_ns = now_ns; // there may be room for more targets, or for fewer
        self.attach_targets(now_ns);
        self.tell_others_time();
        tracing::info!("settings in force: {}", self.settings.in_words());
        Ok(())
    }

    /// Keeps profiles where and as the settings want it from now on.
    fn move_store(&mut self, old: &DaemonSettings) -> Result<(), StoreError> {
        let new = &self.settings;
        if new.store.folder != old.store.folder {
            // The other folder is another store: the old one is still there if this one cannot be had.
            let keeper = std::mem::replace(&mut self.keeper, start_keeper(new)?);
            if !keeper.finish(PATIENCE) {
                tracing::error!(
                    "windows were not written to {}: the disk is too slow",
                    old.store.folder.display()
                );
            }
            return Ok(());
        }
        let (bounds, queue) = store_settings(new);
        self.keeper.rebound(bounds, queue, debuginfod_settings(new));
        Ok(())
    }
}
