//! Answers to what the interface asks.

use config::TargetSettings;

use super::ask::{Ask, Refused, Wanted};
use super::state::{MemoryStatus, Origin, SettingsStatus, Status, TargetCounts, TargetState, TargetStatus};
use super::{Daemon, SECOND_NS};
use crate::discovery::TargetId;
use crate::sys::{clock, procfs};

impl Daemon {
    /// Answers, or has the answer come later.
    pub(super) fn answer(&mut self, ask: Ask) {
        match ask {
            Ask::Status(reply) => drop(reply.send(self.status())),
            Ask::Targets(reply) => drop(reply.send(self.target_statuses())),
            Ask::Decisions(name, reply) => {
                let found = self.named(&name).map(|id| self.targets[&id].decisions());
                drop(reply.send(found.ok_or(Refused::Unknown(name))));
            }
            Ask::Attach(wanted, reply) => drop(reply.send(self.attach_wanted(*wanted))),
            Ask::Detach(name, reply) => drop(reply.send(self.detach(name))),
            Ask::Flush(reply) => self.flushes.push(reply),
            Ask::Reload(reply) => drop(reply.send(self.reload())),
            Ask::Stop(reply) => drop(reply.send(())), // the loop's own business
        }
    }

    fn named(&self, name: &str) -> Option<TargetId> {
        self.targets.iter().find(|(_, watched)| watched.identity.name == name).map(|(id, _)| *id)
    }

    fn attach_wanted(&mut self, mut wanted: Wanted) -> Result<String, Refused> {
        let now_ns = clock::monotonic_ns();
        if wanted.target.name.is_empty() {
            wanted.target.name = self.name_for(&wanted.target);
        }
        if self.named(&wanted.target.name).is_some() {
            let name = wanted.target.name;
            return Err(Refused::Conflict(format!("a target is called {name} already; choose another name")));
        }
        let id = self.discovery.add(wanted.target);
        self.look_for_targets(now_ns);
        let Some(watched) = self.targets.get_mut(&id) else {
            return Err(Refused::Invalid(
                "this names no target; give a pid, name, unit or cgroup".to_owned(),
            ));
        };
        watched.identity.origin = Origin::Request;
        watched.ends_ns = Some(now_ns.saturating_add(wanted.time.as_nanos() as u64));
        let name = watched.identity.name.clone();
        if !watched.has_processes() {
            self.discovery.remove(id);
            self.drop_target(id);
            return Err(Refused::Invalid("no process matches; `ps -eo pid,comm` lists processes".to_owned()));
        }
        self.next_second_ns = now_ns + SECOND_NS / 20; // it was watched for long enough by then
        Ok(name)
    }

    /// What a target without a name is called: what it is, as far as names can hold it.
    fn name_for(&self, target: &TargetSettings) -> String {
        const ENDING: usize = 4; // room for a number
        let is_kept = |c: &char| TargetSettings::is_name_character(*c);
        let words: String = target
            .in_words()
            .chars()
            .map(|c| if c == ' ' || c == '/' { '-' } else { c })
            .filter(is_kept)
            .collect();
        let name = words.trim_matches(|c: char| !c.is_ascii_alphanumeric());
        let name: String = name.chars().take(TargetSettings::MAX_NAME - ENDING).collect();
        let name = if name.is_empty() { "asked".to_owned() } else { name };
        let numbered = (2..).map(|number| format!("{name}-{number}"));
        std::iter::once(name.clone()).chain(numbered).find(|name| self.named(name).is_none()).unwrap_or(name)
    }

    fn detach(&mut self, name: String) -> Result<(), Refused> {
        let Some(id) = self.named(&name) else { return Err(Refused::Unknown(name)) };
        if self.targets[&id].identity.origin == Origin::Settings {
            return Err(Refused::Conflict(format!(
                "{name} stands in the settings; take it out there, and reload"
            )));
        }
        self.discovery.remove(id);
        self.drop_target(id);
        Ok(())
    }

    fn target_statuses(&self) -> Vec<TargetStatus> {
        let now_ns = clock::monotonic_ns();
        let targets = self.targets.values();
        targets.map(|watched| watched.status(self.keeper.kept(&watched.identity.name), now_ns)).collect()
    }

    fn status(&mut self) -> Status {
        let now_ns = clock::monotonic_ns();
        let store = self.keeper.status();
        let mut targets = TargetCounts::default();
        for status in self.target_statuses() {
            *match status.state {
                TargetState::Sampled => &mut targets.sampled,
                TargetState::Waiting => &mut targets.waiting,
                TargetState::LeftOut => &mut targets.left_out,
                TargetState::Failed => &mut targets.failed,
            } += 1;
        }
        let mut degraded: Vec<String> = store.problem.iter().chain(&self.problem).cloned().collect();
        degraded.extend(self.discovery.remarks());
        degraded.extend(self.server.notes());
        if targets.left_out > 0 {
            degraded
                .push(format!("{} targets are left out; `sweetspot ctl targets` says why", targets.left_out));
        }
        if targets.failed > 0 {
            degraded.push(format!(
                "{} targets cannot be sampled; `sweetspot ctl targets` says why",
                targets.failed
            ));
        }
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_s: now_ns.saturating_sub(self.began_ns) as f64 * 1e-9,
            ready: store.problem.is_none(),
            degraded,
            settings: SettingsStatus {
                file: self.file.as_ref().map(|file| file.display().to_string()),
                read_unix_s: self.read_unix_s,
                problem: self.problem.clone(),
                reloads: self.reloads.0,
                reloads_failed: self.reloads.1,
            },
            targets,
            host: self.host.status(self.settings.budget.host.get()),
            memory: MemoryStatus {
                resident_bytes: procfs::resident_bytes(),
                limit_bytes: self.settings.limits.memory.get(),
                symbol_bytes: self.setup.symbols.held_bytes(),
                pressed: self.pressed,
                open_files: procfs::own_open_files(),
            },
            store,
        }
    }
}
