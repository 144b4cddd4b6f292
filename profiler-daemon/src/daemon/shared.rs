//! The sampler that targets share: one clock on each CPU, one set of rings and unwind tables, and one rate for
//! all targets with the same settings. Each target keeps its own counts (`sampler/session/owners.rs`), so its
//! windows, names and intervals are those of a target sampled alone.
//!
//! A target has events of its own if its settings, budgets aside, differ from the default (its horizon). All of them do
//! where other processes keep many CPUs busy and the targets are few (`rate/sampler_choice.rs`).

use std::collections::BTreeMap;
use std::path::Path;

use config::SamplingSettings;
use profiler_core::rate::{Sharing, window_batch_pause_ns, windows_at_once};

use super::Daemon;
use super::watched::{Retry, Totals, Watched, WindowLengths, differ_in_control_alone};
use super::window_writer::PendingWindow;
use crate::cgroup::Cgroup;
use crate::discovery::{Changes, TargetId};
use crate::run::join::{self, TargetSelector};
use crate::run::{Engine, RunFigures, ShareStatus};
use crate::sampler::session::{Collected, Owner, Owners, Session};
use crate::service::recent::RecentDecisions;
use crate::sys::{clock, procfs};

/// The sampler of many targets.
pub(super) struct SharedSampler {
    pub(super) engine: Engine<RecentDecisions>,
    sampling: SamplingSettings,
    /// No window is ended for its length before this time (ns).
    next_batch_ns: u64,
}

/// The state of the shared sampler, whether it exists or not.
#[derive(Default)]
pub(super) struct SharedState {
    pub(super) shared: Option<Box<SharedSampler>>,
    /// When it is tried again after it could not begin.
    retry: Retry,
    choice: Sharing,
}

impl SharedSampler {
    /// Totals of all shared targets together.
    pub(super) fn totals(&self) -> Totals {
        Totals::of(&self.engine)
    }

    /// How each of the targets is that share it.
    pub(super) fn statuses(&self) -> BTreeMap<TargetId, ShareStatus<'_>> {
        let of_targets = self.engine.share_statuses().into_iter();
        of_targets.map(|(owner, status)| (TargetId::of_number(owner.0), status)).collect()
    }

    /// Adds a target to the shared sampler, or updates its control group.
    fn enter(&mut self, id: TargetId, watched: &Watched) {
        let (budget_ratio, is_rest) = (watched.sampling.budget.get(), watched.identity.is_everything);
        let path = watched.identity.group.as_deref();
        let group = path.and_then(|path| Cgroup::find(Path::new(path)).ok()); // if gone, its processes may remain
        self.session_turn(|engine| engine.enter_share(owner(id), group, budget_ratio, is_rest));
    }

    fn session_turn<T>(&mut self, turn: impl FnOnce(&mut Engine<RecentDecisions>) -> T) -> T {
        self.engine.session.own_time.enter();
        let done = turn(&mut self.engine);
        self.engine.session.own_time.leave();
        done
    }
}

pub(super) fn owner(id: TargetId) -> Owner {
    Owner(id.number())
}

impl Daemon {
    pub(super) fn shared(&mut self) -> Option<&mut SharedSampler> {
        self.sharing.shared.as_deref_mut()
    }

    /// Whether a target is sampled as most are, and those share.
    pub(super) fn is_to_share(&self, watched: &Watched) -> bool {
        self.sharing.choice.is_on()
            && self.setup.may_sample_cpus()
            && (self.sharing.shared.is_some() || clock::monotonic_ns() >= self.sharing.retry.at_ns())
            && watched.is_sampled_like(&self.sampling_of(&config::TargetSettings::default()))
    }

    /// Decides whether targets share, by comparing the cost of sampling other processes with the cost of separate
    /// events.
    pub(super) fn weigh_sharing(&mut self, now_ns: u64) {
        let most = self.settings.limits.targets as usize;
        let alike = self.sampling_of(&config::TargetSettings::default());
        let all = self
            .targets
            .values()
            .filter(|watched| watched.has_processes() && watched.is_sampled_like(&alike));
        let (mut targets, mut has_rest) = (0, false);
        for watched in all {
            targets += 1;
            has_rest |= watched.identity.is_everything;
        }
        let targets_ns: u64 = self.targets.values().map(|watched| watched.totals().cpu_ns).sum();
        let busy_ns = procfs::machine_charged_ns();
        let non_target_sample_ns = self.setup.non_target_sample_ns();
        let choice = &mut self.sharing.choice;
        choice.observe(now_ns, busy_ns, targets_ns);
        choice.weigh(now_ns, targets.min(most), has_rest, non_target_sample_ns);
    }

    /// Adds a target to the shared sampler; returns whether that worked.
    pub(super) fn share(&mut self, id: TargetId, now_ns: u64) -> bool {
        if self.sharing.shared.is_none() && !self.begin_shared(now_ns) {
            return false;
        }
        let Some(watched) = self.targets.get_mut(&id) else { return false };
        let Some(shared) = self.sharing.shared.as_deref_mut() else { return false };
        shared.enter(id, watched);
        let is_program = watched.identity.is_program;
        shared.session_turn(|engine| {
            for pid in watched.processes.iter() {
                engine.session.assign(pid, Some(owner(id)), is_program);
            }
        });
        watched.begin_share(clock::monotonic_ns());
        true
    }

    /// Changes a sampled target to another sampler or budget without a gap; returns whether that is done.
    pub(super) fn change_way(&mut self, id: TargetId, is_to_share: bool, now_ns: u64) -> bool {
        let Some(watched) = self.targets.get_mut(&id) else { return true };
        match (watched.shares(), is_to_share) {
            (true, true) => {
                self.cut(id).into_iter().for_each(|pending| self.profiles.writer.keep(pending)); // a window is of one budget
                self.targets.entry(id).and_modify(Watched::take_wanted);
                self.renew_share(id);
                true
            }
            (true, false) => {
                if watched.attach_beside(&self.setup, now_ns) {
                    self.note_shares();
                    self.cut(id).into_iter().for_each(|pending| self.profiles.writer.keep(pending));
                    self.targets.entry(id).and_modify(Watched::go_on_alone);
                    self.leave_shared(id);
                }
                true
            }
            (false, true) => {
                if self.sharing.shared.is_some() || self.begin_shared(now_ns) {
                    self.stop_target(id);
                }
                false
            }
            (false, false) => false,
        }
    }

    fn leave_shared(&mut self, id: TargetId) {
        if let Some(shared) = self.sharing.shared.as_deref_mut() {
            shared.session_turn(|engine| engine.leave_share(owner(id)));
        }
        self.end_shared_if_idle();
    }

    /// Passes on changed properties of a shared target.
    pub(super) fn renew_share(&mut self, id: TargetId) {
        let watched = self.targets.get(&id).filter(|watched| watched.shares());
        if let (Some(watched), Some(shared)) = (watched, self.sharing.shared.as_deref_mut()) {
            shared.enter(id, watched);
        }
    }

    fn begin_shared(&mut self, now_ns: u64) -> bool {
        let sampling = self.sampling_of(&config::TargetSettings::default());
        match join::begin(&self.setup, &sampling, TargetSelector::Many, None, 0, RecentDecisions::default()) {
            Ok(Some(engine)) => {
                self.sharing.shared = Some(Box::new(SharedSampler { engine, sampling, next_batch_ns: 0 }));
                self.sharing.retry = Retry::default();
                self.exclude_known();
                true
            }
            Ok(None) => false,
            Err(error) => {
                self.sharing.retry = self.sharing.retry.after(now_ns);
                tracing::warn!("targets cannot share a sampler, and are sampled one by one: {error:#}");
                false
            }
        }
    }

    /// Ends a target's open window, whichever sampler it has; sampling goes on.
    pub(super) fn cut(&mut self, id: TargetId) -> Option<PendingWindow> {
        let watched = self.targets.get_mut(&id)?;
        if !watched.shares() {
            return watched.cut(&self.setup);
        }
        let shared = self.sharing.shared.as_deref_mut()?;
        let (collected, figures) = shared.session_turn(|engine| engine.cut_share(owner(id)))?;
        Some(watched.pending_window(&self.setup, collected, &figures))
    }

    /// [`Self::cut`] for several targets that share the sampler, together.
    pub(super) fn cut_sharing(&mut self, of: &[TargetId]) -> Vec<PendingWindow> {
        let Some(shared) = self.sharing.shared.as_deref_mut().filter(|_| !of.is_empty()) else {
            return Vec::new();
        };
        let owners: Vec<Owner> = of.iter().map(|id| owner(*id)).collect();
        let cut = shared.session_turn(|engine| engine.cut_shares(&owners));
        let window = |(owner, collected, figures): (Owner, Collected, RunFigures)| {
            let watched = self.targets.get_mut(&TargetId::of_number(owner.0))?;
            Some(watched.pending_window(&self.setup, collected, &figures))
        };
        cut.into_iter().filter_map(window).collect()
    }

    /// Cuts several shared targets with `cut`, and keeps their windows.
    fn cut_shared(
        &mut self,
        cut: impl FnOnce(&mut Engine<RecentDecisions>) -> Vec<(Owner, Collected, RunFigures)>,
    ) {
        let Some(shared) = self.sharing.shared.as_deref_mut() else { return };
        let cut = shared.session_turn(cut);
        let began_ns = clock::thread_cpu_ns();
        for (owner, collected, figures) in cut {
            let watched = self.targets.get_mut(&TargetId::of_number(owner.0));
            if let Some(watched) =
                watched.filter(|_| collected.counted.weight_ns() > 0.0 || figures.part.target_cpu_ns > 0)
            {
                self.profiles.writer.keep(watched.pending_window(&self.setup, collected, &figures));
            }
        }
        self.profiles.writer.handing_took(clock::thread_cpu_ns().saturating_sub(began_ns));
        self.note_shares();
    }

    /// Ends shared windows that have reached their length: a limited number at once, so that sampling is not held up.
    pub(super) fn end_shared_windows(&mut self, now_ns: u64, lengths: WindowLengths) {
        let Some(shared) = self.sharing.shared.as_deref_mut().filter(|shared| shared.next_batch_ns <= now_ns)
        else {
            return;
        };
        let Some(owners) = &shared.engine.session.counted.owners else { return };
        let mut over = owners.begun_by(now_ns.saturating_sub(lengths.first_ns));
        over.retain(|&(begun_ns, owner)| {
            let watched = self.targets.get(&TargetId::of_number(owner.0));
            let length_ns = watched.map_or(lengths.usual_ns, |watched| watched.window_ns(lengths));
            now_ns.saturating_sub(begun_ns) >= length_ns
        });
        over.truncate(windows_at_once(owners.shares().count(), lengths.usual_ns));
        if !over.is_empty() {
            let over: Vec<Owner> = over.into_iter().map(|(_, owner)| owner).collect();
            shared.next_batch_ns = now_ns + window_batch_pause_ns(lengths.usual_ns);
            self.cut_shared(|engine| engine.cut_shares(&over));
        }
    }

    /// Stops sampling a target, whichever sampler it has; what was sampled is kept.
    pub(super) fn stop_target(&mut self, id: TargetId) {
        let Some(watched) = self.targets.get(&id) else { return };
        let pending = match watched.shares() {
            true => {
                self.note_shares();
                self.cut(id)
            }
            false => self.targets.get_mut(&id).and_then(|watched| watched.stop(&self.setup)),
        };
        pending.into_iter().for_each(|pending| self.profiles.writer.keep(pending));
        let Some(watched) = self.targets.get_mut(&id).filter(|watched| watched.shares()) else { return };
        watched.end_share();
        self.leave_shared(id);
    }

    fn end_shared_if_idle(&mut self) {
        let is_idle = |shared: &SharedSampler| {
            shared.engine.session.counted.owners.as_ref().is_some_and(|owners| owners.is_empty())
        };
        if self.sharing.shared.as_deref().is_some_and(is_idle) {
            self.end_shared();
        }
    }

    /// Ends the shared sampler.
    pub(super) fn end_shared(&mut self) {
        self.silence_shared();
        self.cut_shared(Engine::finish_shares);
        for watched in self.targets.values_mut().filter(|watched| watched.shares()) {
            watched.end_share();
        }
        if let Some(shared) = self.sharing.shared.take() {
            self.accounts.ended.own = self.accounts.ended.own.plus(shared.totals());
        }
    }

    /// Removes its events; what they have reported is taken in.
    pub(super) fn silence_shared(&mut self) {
        if let Some(shared) = self.shared() {
            shared.session_turn(Engine::stop);
        }
    }

    /// Adopts new settings. A change that only concerns the controller takes effect under the existing events.
    pub(super) fn adopt_shared(&mut self) {
        let sampling = self.sampling_of(&config::TargetSettings::default());
        let Some(shared) = self.shared().filter(|shared| shared.sampling != sampling) else { return };
        if !differ_in_control_alone(&shared.sampling, &sampling) {
            return self.end_shared();
        }
        self.cut_shared(Engine::cut_all_shares); // the figures of a window are those of one budget
        if let Some(shared) = self.shared() {
            shared.engine.adopt(&sampling);
            shared.sampling = sampling;
        }
    }

    /// Notes the figures of each shared target.
    pub(super) fn note_shares(&mut self) {
        let Some(shared) = self.sharing.shared.as_deref_mut() else { return };
        shared.session_turn(Engine::book_shares);
        for (id, status) in shared.statuses() {
            if let Some(watched) = self.targets.get_mut(&id) {
                watched.note_share(&status);
            }
        }
    }

    /// A scan of all processes begins. Earlier births and ends are taken in first: read later, they would undo what it finds.
    pub(super) fn scan_begins(&mut self) {
        let Some(shared) = self.shared() else { return };
        shared.session_turn(|engine| {
            let read_ns = engine.catch_up();
            engine.session.counted.owners.iter_mut().for_each(|owners| owners.scan_begins(read_ns));
        });
    }

    /// Whether processes wait for a scan to say which target they belong to.
    pub(super) fn has_waiting(&self) -> bool {
        let shared = self.sharing.shared.as_deref();
        shared
            .and_then(|shared| shared.engine.session.counted.owners.as_ref())
            .is_some_and(Owners::has_waiting)
    }

    /// A scan has ended: assigns each process to its target, or to none.
    pub(super) fn scan_ended(&mut self, changes: &Changes) {
        let has_rest = self.samples_rest();
        let Some(shared) = self.sharing.shared.as_deref_mut() else { return };
        let (targets, discovery) = (&self.targets, &self.discovery);
        shared.session_turn(|engine| {
            let session = &mut engine.session;
            let assign = |session: &mut Session, (id, pid): (TargetId, u32)| {
                if discovery.target(id).is_none() && has_rest {
                    return session.leave(pid); // dropped by rules, it is not of the rest either
                }
                let watched = targets.get(&id).filter(|watched| watched.shares());
                let is_program = watched.is_some_and(|watched| watched.identity.is_program);
                session.assign(pid, watched.map(|_| owner(id)), is_program);
            };
            let joined = || changes.joined.iter().chain(&changes.joined_dropped);
            joined().for_each(|joined| assign(session, *joined));
            // Processes that run another program and stay in their target are not in `changes`.
            for pid in session.seen_waiting() {
                discovery.target_of(pid).into_iter().for_each(|id| assign(session, (id, pid)));
            }
            let stays = |pid: u32| joined().any(|(_, joined)| *joined == pid);
            let left = changes.left.iter().chain(&changes.left_dropped);
            for &(_, pid) in left.filter(|(_, pid)| !stays(*pid)) {
                match procfs::has_ended(pid) {
                    true => session.may_have_ended(pid),
                    false => session.assign(pid, None, false),
                }
            }
            session.scan_ended();
        });
    }
}
