//! The loop's responses to requests.

use std::time::Duration;

use config::TargetSettings;
use profile_files::store::UnmergedFiles;

use super::journal::Dropped;
use super::shared::SharedSampler;
use super::watched::{LONG_ENOUGH_NS, Watched};
use super::{Daemon, PUBLISH_EVERY_NS, exports};
use crate::containers::Need;
use crate::discovery::TargetId;
use crate::explain;
use crate::fleet;
use crate::service::command::{AttachRequest, Attached, CommandRefused, DaemonCommand};
use crate::service::state::{
    HostStatus, MemoryStatus, Origin, Status, StoreStatus, SymbolizerStatus, TargetCounts, TargetState,
};
use crate::service::status_snapshot::{StatusSnapshot, TargetDecisions};
use crate::sys::{clock, procfs};

/// Targets that are said to have used more than this share of what all programs did have been counted wrongly: the kernel's two accounts
/// differ a little, and are read at two moments.
const MORE_THAN_ALL: f64 = 1.01;
const CLOCKS_APART_S: f64 = 2.0;

impl Daemon {
    /// Executes a command, and answers it now or later.
    pub(super) fn execute(&mut self, command: DaemonCommand) {
        match command {
            DaemonCommand::Show => self.publish(),
            DaemonCommand::Attach(wanted, reply) => {
                let attached = self.attach_wanted(*wanted);
                self.publish(); // the requester then sees what was done
                drop(reply.send(attached));
            }
            DaemonCommand::Detach(name, reply) => {
                self.publish(); // the final counts of the target
                let detached = self.detach(name);
                self.publish();
                drop(reply.send(detached));
            }
            DaemonCommand::Flush(flush, reply) => self.wait_for_windows(flush, reply, clock::monotonic_ns()),
            DaemonCommand::Reload(reply) => self.reload(Some(reply)),
            DaemonCommand::Suspect(paths) => self.profiles.writer.suspect(paths),
            DaemonCommand::Stop(reply) => drop(reply.send(())), // the loop's own business
        }
    }

    pub(super) fn named(&self, name: &str) -> Option<TargetId> {
        self.targets.iter().find(|(_, watched)| watched.identity.name == name).map(|(id, _)| *id)
    }

    fn names_of(&self, ids: impl Iterator<Item = TargetId>) -> Vec<String> {
        ids.filter_map(|id| Some(self.targets.get(&id)?.identity.name.clone())).collect()
    }

    fn attach_wanted(&mut self, mut wanted: AttachRequest) -> Result<Attached, CommandRefused> {
        let now_ns = clock::monotonic_ns();
        if wanted.target.name.is_empty() {
            wanted.target.name = self.name_for(&wanted.target);
        }
        if self.named(&wanted.target.name).is_some() {
            let name = wanted.target.name;
            return Err(CommandRefused::Conflict(format!(
                "a target named {name} already exists; choose another name"
            )));
        }
        if let Some(Err(refused)) = wanted.target.pid.map(explain::thread) {
            return Err(CommandRefused::Invalid(refused.to_string()));
        }
        let everything = self.targets.values().find(|watched| watched.identity.is_everything);
        if let Some(watched) = everything.filter(|_| wanted.target.everything) {
            return Err(CommandRefused::Conflict(format!(
                "everything is profiled already, as {}; request its profiles, or attach to cgroup / with \
                 each to divide it",
                watched.identity.name
            )));
        }
        if wanted.target.needs_runtimes() {
            self.runtimes.adopt(&self.settings, Need::Targets);
            if !self.runtimes.have_answered() {
                return Err(CommandRefused::Invalid(
                    "container runtimes are queried for names from now on; try again in a few seconds"
                        .to_owned(),
                ));
            }
        }
        let own = self.discovery.add(wanted.target, wanted.looked_up);
        self.look_for_targets(now_ns);
        let Some(name) = self.targets.get(&own).map(|watched| watched.identity.name.clone()) else {
            return Err(CommandRefused::Invalid(
                "this names no target; give a pid, name, unit or cgroup".to_owned(),
            ));
        };
        let all = self.of_section(own);
        for (_, watched) in self.targets.iter_mut().filter(|(id, _)| all.contains(id)) {
            watched.identity.origin = Origin::Request;
            watched.ends_ns = Some(now_ns.saturating_add(wanted.time.as_nanos() as u64));
        }
        if !all.iter().any(|id| self.targets[id].has_processes()) {
            self.drop_section(own);
            let is_asked = |watched: &Watched| watched.identity.origin == Origin::Request;
            // Targets that were requested earlier come first.
            let text = match self.targets.values().any(is_asked) {
                true => {
                    "the only processes that match belong to other targets that were attached; `sweetspot \
                     ctl targets` lists them"
                }
                false => "no process matches; `ps -eo pid,comm` lists processes",
            };
            return Err(CommandRefused::Invalid(text.to_owned()));
        }
        self.due.next_second_ns = clock::monotonic_ns() + LONG_ENOUGH_NS;
        let takes_from = self.names_of(self.taken.iter().filter(|(_, by)| *by == own).map(|(from, _)| *from));
        Ok(Attached { name, takes_from })
    }

    /// A name for a target that was requested without one, made from its selection.
    fn name_for(&self, target: &TargetSettings) -> String {
        let name = name_of(target);
        let numbered = (2..).map(|number| format!("{name}-{number}"));
        std::iter::once(name.clone()).chain(numbered).find(|name| self.named(name).is_none()).unwrap_or(name)
    }

    fn detach(&mut self, name: String) -> Result<(), CommandRefused> {
        let Some(id) = self.named(&name) else { return Err(CommandRefused::Unknown(name)) };
        if self.targets[&id].identity.origin == Origin::Settings {
            return Err(CommandRefused::Conflict(format!(
                "{name} comes from the settings; remove it there, and reload"
            )));
        }
        match self.discovery.target(id).map(|found| found.own) {
            Some(own) if own != id => {
                let family = self.targets.get(&own).map_or("", |watched| &watched.identity.name);
                Err(CommandRefused::Conflict(format!(
                    "{name} is one of the targets of {family}; detach that"
                )))
            }
            _ => {
                self.drop_section(id);
                Ok(())
            }
        }
    }

    /// Removes the targets of a requested section.
    fn drop_section(&mut self, own: TargetId) {
        let all = self.of_section(own);
        self.discovery.remove(own);
        all.into_iter().for_each(|id| self.drop_target(id));
    }

    /// Publishes the status for all later requests.
    pub(super) fn publish(&mut self) {
        let at_ns = clock::monotonic_ns();
        self.due.next_publishing_ns = at_ns + PUBLISH_EVERY_NS;
        let not_others_ns = clock::self_cpu_ns() + self.accounts.busy_before_ns;
        let busy_ns = procfs::machine_charged_ns().saturating_sub(not_others_ns);
        self.accounts.busy_ns = self.accounts.busy_ns.max(busy_ns);
        self.note_shares();
        let shared = self.sharing.shared.as_deref();
        let shares = shared.map(SharedSampler::statuses).unwrap_or_default();
        let of_one = |(id, watched): (&TargetId, &Watched)| {
            let kept = self.profiles.writer.kept(&watched.identity.name);
            let share = shared.and_then(|shared| Some((&shared.engine, *shares.get(id)?)));
            let own = watched.decisions().map(|log| TargetDecisions { log, shared_by: 1 });
            let decisions = own.or_else(|| {
                share.map(|(engine, _)| TargetDecisions { log: engine.log.clone(), shared_by: shares.len() })
            });
            let taken_by = self.taken.iter().filter(|(from, _)| from == id).map(|(_, by)| *by);
            let mut status = watched.status(kept, at_ns, share);
            status.taken_by = self.names_of(taken_by);
            status.fleet = self.fleet.membership(&watched.identity.name).cloned();
            (status, decisions.unwrap_or_default())
        };
        let mut targets: Vec<_> = self.targets.iter().map(of_one).collect();
        self.accounts.ledger.settle(targets.iter_mut().map(|(target, _)| target));
        let status = self.status(at_ns, targets.iter().map(|(target, _)| target.state));
        self.reporting.publisher.publish(StatusSnapshot { at_ns, status, targets });
    }

    /// The status of the store. Dropped windows are those of all folders since the start.
    fn store_status(&self) -> StoreStatus {
        let mut status = self.profiles.writer.status();
        let leaving = self.profiles.leaving.iter().map(|left| Dropped::of(&left.writer.status()));
        leaving.fold(self.reporting.journal.dropped_elsewhere(), Dropped::plus).add_to(&mut status);
        status
    }

    fn host_status(&self) -> HostStatus {
        let targets_ns: u64 = self.targets.values().map(|watched| watched.totals().cpu_ns).sum();
        HostStatus {
            busy_cpu_s: self.accounts.busy_ns as f64 * 1e-9,
            targets_cpu_s: (targets_ns + self.accounts.ended.targets_ns) as f64 * 1e-9,
            ..self.accounts.host.status(self.settings.budget.host.get())
        }
    }

    fn status(&self, now_ns: u64, states: impl Iterator<Item = TargetState>) -> Status {
        let window = Duration::from_nanos(self.window_ns());
        let store = StoreStatus { window_s: window.as_secs_f64(), ..self.store_status() };
        let mut targets = TargetCounts { dropped: self.discovery.dropped(), ..TargetCounts::default() };
        for state in states {
            *match state {
                TargetState::Sampled => &mut targets.sampled,
                TargetState::Waiting => &mut targets.waiting,
                TargetState::LeftOut => &mut targets.left_out,
                TargetState::Failed => &mut targets.failed,
            } += 1;
        }
        let exports = self.profiles.exports.status();
        let fleet = self.fleet.status();
        let host = self.host_status();
        let mut degraded: Vec<String> = store.problem.iter().chain(self.reloads.problem()).cloned().collect();
        degraded.extend(self.degraded(now_ns));
        degraded.extend(store.notes.iter().cloned());
        degraded.extend(unmerged(&store.waiting));
        degraded.extend(exports::degraded(&exports));
        degraded.extend(fleet::degraded(fleet.as_ref()));
        degraded.extend(targets.degraded());
        degraded.extend(host.degraded());
        let process = self.setup.symbols.process_status();
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            age_s: 0.0,
            uptime_s: now_ns.saturating_sub(self.due.began_ns) as f64 * 1e-9,
            ready: store.problem.is_none() && targets.is_any_sampled_or_none_failed(),
            degraded,
            settings: self.reloads.status(),
            targets,
            host,
            memory: MemoryStatus {
                ring_bytes: self.ring_bytes(),
                limit_bytes: self.settings.limits.memory.get(),
                symbol_bytes: self.setup.symbols.held_bytes(),
                pressed: self.pressure.times(),
                ..MemoryStatus::default() // read when a request needs it
            },
            symbolizer: SymbolizerStatus {
                apart: process.obstacle.is_none(),
                started: process.started,
                broken: process.broken,
            },
            store,
            exports,
            runtimes: self.runtimes.status(),
            fleet,
        }
    }

    /// Problems of the sampling itself, in lines for the user.
    fn degraded(&self, now_ns: u64) -> Vec<String> {
        let mut degraded = self.discovery.remarks();
        degraded.extend(self.reporting.server.notes());
        degraded.extend(self.setup.symbols.process_status().problems());
        degraded.extend(self.runtimes.degraded());
        degraded.extend(self.sharing.shared.iter().flat_map(|shared| shared.engine.notes.iter().cloned()));
        let (window, asked) = (Duration::from_nanos(self.window_ns()), self.settings.store.window.duration());
        if window > asked {
            let (window_s, asked_s) = (window.as_secs_f64(), asked.as_secs_f64());
            degraded.push(format!(
                "windows are {window_s:.1} s long instead of {asked_s:.1} s: shorter ones would take too \
                 much of the host's budget"
            ));
        }
        if self.accounts.budget.is_short(now_ns) {
            degraded.push(
                "the host's budget is less than sampling takes at the lowest rates; raise `budget.host`, or profile fewer targets"
                    .to_owned(),
            );
        }
        degraded
    }
}

/// A name from a target's selection, with room for a number: of a control group, the last part of its path.
fn name_of(target: &TargetSettings) -> String {
    const ENDING: usize = 4; // room for a number
    let alone = TargetSettings { each: None, ..target.clone() };
    let group = target.cgroup.as_ref().and_then(|path| path.file_name());
    let words = group.map_or_else(|| alone.in_words(), |group| group.to_string_lossy().into_owned());
    let words = words.replace([' ', '/'], "-");
    let words: String = words.chars().filter(|c| TargetSettings::is_name_character(*c)).collect();
    let name = words.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    let most = target.each.map_or(TargetSettings::MAX_NAME, |_| TargetSettings::MAX_FAMILY_NAME);
    let name: String = name.chars().take(most - ENDING).collect();
    if name.is_empty() { "asked".to_owned() } else { name }
}

impl TargetCounts {
    /// Whether sampling works, as far as is known: targets that wait for a process say nothing about it.
    fn is_any_sampled_or_none_failed(&self) -> bool {
        self.sampled > 0 || self.failed == 0
    }

    /// How many targets are not sampled, in lines for the user.
    fn degraded(&self) -> Vec<String> {
        let line = |count: usize, one: &str, many: &str| {
            let what = if count == 1 { format!("1 target {one}") } else { format!("{count} targets {many}") };
            (count > 0).then(|| format!("{what}; `sweetspot ctl targets` says why"))
        };
        let left_out = line(self.left_out, "is left out", "are left out");
        let failed = line(self.failed, "cannot be sampled", "cannot be sampled");
        left_out.into_iter().chain(failed).collect()
    }
}

impl HostStatus {
    /// More CPU time was counted than there was: a line for the user.
    fn degraded(&self) -> Option<String> {
        let is_more = self.targets_cpu_s > MORE_THAN_ALL * self.busy_cpu_s + CLOCKS_APART_S;
        is_more.then(|| {
            format!(
                "targets are charged {:.1} s of CPU time, but all programs used {:.1} s; this is a bug in \
                 sweetspot, please report it",
                self.targets_cpu_s, self.busy_cpu_s
            )
        })
    }
}

/// What waits in the store to be merged, for a person.
fn unmerged(waiting: &UnmergedFiles) -> Option<String> {
    let UnmergedFiles { files, needed_bytes, retry_s, why } = waiting;
    let why = match (needed_bytes, why) {
        (0, Some(why)) => why.clone(),
        (0, None) => "look at the disk".to_owned(),
        (needed, _) => {
            format!("there is no room for {needed} bytes: make some on the disk, or raise store.bytes")
        }
    };
    (*files > 0)
        .then(|| format!("{files} files cannot be merged, which is tried again in {retry_s:.0} s; {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_whose_targets_have_all_failed_is_not_ready() {
        let counts = |sampled, waiting, left_out, failed| {
            let counts = TargetCounts { sampled, waiting, left_out, failed, ..TargetCounts::default() };
            counts.is_any_sampled_or_none_failed()
        };
        assert!(!counts(0, 0, 0, 1) && !counts(0, 3, 1, 2));
        assert!(counts(0, 0, 0, 0) && counts(0, 3, 0, 0) && counts(1, 0, 0, 5));
    }

    #[test]
    fn a_target_is_named_after_the_last_part_of_its_group() {
        let name = |cgroup: &str, each| {
            name_of(&TargetSettings { cgroup: Some(cgroup.into()), each, ..TargetSettings::default() })
        };
        assert_eq!(name("/system.slice/web.service", Some(config::Each::User)), "web.service");
        assert_eq!(name("/system.slice/web.service", None), "web.service");
        assert_eq!(name("/", Some(config::Each::Unit)), "cgroup");
        let pid = TargetSettings { pid: Some(7), ..TargetSettings::default() };
        assert_eq!(name_of(&pid), "pid-7");
    }

    #[test]
    fn one_target_is_not_many() {
        let degraded = |left_out, failed| {
            TargetCounts { left_out, failed, ..TargetCounts::default() }.degraded().join("; ")
        };
        let why = "`sweetspot ctl targets` says why";
        assert_eq!(degraded(0, 0), "");
        assert_eq!(degraded(1, 1), format!("1 target is left out; {why}; 1 target cannot be sampled; {why}"));
        assert_eq!(
            degraded(2, 3),
            format!("2 targets are left out; {why}; 3 targets cannot be sampled; {why}")
        );
    }
}
