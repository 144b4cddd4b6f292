//! Which targets exist, which processes belong to them, and which targets are left out.
//!
//! A turn attaches to new targets for 50 ms and the next turn continues: at load 30, attaching to twenty
//! targets took 25 s, without a single step in between.

use config::{SamplingSettings, TargetSettings};

use rustc_hash::{FxHashMap, FxHashSet};

use super::ranking::Standing;
use super::watched::{TargetIdentity, Totals, Watched};
use super::{Daemon, engines, host_cpus};
use crate::discovery::{Changes, FoundTarget, TargetId};
use crate::service::state::Origin;
use crate::sys::{clock, memory, procfs};

/// How often the choice of left-out targets is reviewed, if there are too many (ns).
const RANK_EVERY_NS: u64 = 10_000_000_000;
const TOO_MANY: &str =
    "there are more targets than limits.targets, and others are more active; raise it, or name fewer";
/// Pause after a target was dropped for lack of memory, before another one is dropped (ns).
const RELIEF_NS: u64 = 5_000_000_000;
/// Pause after a target was dropped for lack of memory, before a left-out one returns (ns).
const LET_IN_AFTER_NS: u64 = 600_000_000_000;
/// Time in a turn after which no other target is attached to (ns).
const ATTACH_NS: u64 = 50_000_000;
/// Share of the limit from which memory is short.
const MEMORY_IS_SHORT: f64 = 0.9;

/// Targets that were dropped because memory was short.
#[derive(Default)]
pub(super) struct MemoryPressure {
    times: u64,
    last_ns: u64,
}

impl MemoryPressure {
    pub(super) fn times(&self) -> u64 {
        self.times
    }

    fn note(&mut self, now_ns: u64) {
        (self.times, self.last_ns) = (self.times + 1, now_ns);
    }

    /// Whether the last was at least `pause_ns` ago.
    fn is_past(&self, now_ns: u64, pause_ns: u64) -> bool {
        now_ns >= self.last_ns + pause_ns
    }

    /// How many targets may return at once: afterwards one at a time, for memory may become short again.
    fn lets_in(&self, now_ns: u64) -> usize {
        match self.times {
            0 => usize::MAX,
            _ if self.is_past(now_ns, LET_IN_AFTER_NS) => 1,
            _ => 0,
        }
    }
}

/// What samplers and targets that have ended have used.
#[derive(Default)]
pub(super) struct EndedTotals {
    /// Of samplers.
    pub(super) own: Totals,
    /// CPU time of targets without `everything`, and what their own samplers have counted of it (ns).
    others_ns: u64,
    others_own_ns: u64,
    /// CPU time of all targets (ns).
    pub(super) targets_ns: u64,
}

impl EndedTotals {
    fn add(&mut self, watched: &Watched) {
        let own = watched.own_totals();
        self.own = self.own.plus(own);
        let all_ns = watched.totals().cpu_ns;
        if !watched.identity.is_everything {
            self.others_ns += all_ns;
            self.others_own_ns += own.cpu_ns;
        }
        self.targets_ns += all_ns;
    }
}

impl Daemon {
    /// Scans for processes; starts to sample targets that have processes, and ends those that no longer have any.
    pub(super) fn look_for_targets(&mut self, now_ns: u64) {
        self.pass_on_news();
        self.scan_begins();
        let before_ns = clock::thread_cpu_ns();
        if let Some(names) = self.runtimes.take() {
            self.discovery.name_containers(names);
        }
        let changes = self.discovery.look(now_ns);
        engines(&mut self.targets, &self.apart, &mut self.sharing)
            .for_each(|engine| engine.session.births_are_known());
        self.note_dropped();
        if self.runtimes.are_needed() && self.discovery.wants_names() {
            self.runtimes.query_soon();
        }
        let cost_ns = clock::thread_cpu_ns().saturating_sub(before_ns);
        self.due.scan_schedule.note_scan(now_ns, cost_ns, host_cpus(&self.settings));
        for &id in &changes.appeared {
            let watched = self.discovery.target(id).map(|found| self.watched(found));
            self.targets.extend(watched.map(|watched| (id, watched)));
        }
        for &id in &changes.changed {
            if let (Some(found), Some(watched)) = (self.discovery.target(id), self.targets.get_mut(&id)) {
                watched.identity.labels.clone_from(&found.labels);
                watched.identity.group.clone_from(&found.group);
            }
            self.renew_share(id);
        }
        for &(id, pid) in &changes.left {
            if let Some(watched) = self.targets.get_mut(&id) {
                watched.leave(pid);
            }
        }
        for &(id, pid) in &changes.joined {
            if let Some(watched) = self.targets.get_mut(&id) {
                watched.join(pid);
            }
        }
        self.note_taken(&changes);
        self.leave_children_to_others(&changes);
        self.targets.values_mut().for_each(Watched::settle_members);
        self.targets.values_mut().for_each(|watched| watched.check_group(now_ns));
        changes.gone.iter().for_each(|id| self.drop_target(*id));
        self.weigh_sharing(now_ns);
        self.go_on_with_targets(now_ns);
        self.scan_ended(&changes);
    }

    /// Ends and starts samplers of known targets.
    pub(super) fn go_on_with_targets(&mut self, now_ns: u64) {
        self.end_targets(now_ns);
        self.attach_targets(now_ns);
        self.subtract_others_time();
    }

    /// Notes which targets lost processes to requested targets.
    fn note_taken(&mut self, changes: &Changes) {
        let left: FxHashMap<u32, TargetId> = changes.left.iter().map(|&(id, pid)| (pid, id)).collect();
        for (id, pid) in &changes.joined {
            let Some(by) = self.discovery.asked_by(*id) else { continue };
            let from = left.get(pid).filter(|from| self.discovery.asked_by(**from) != Some(by));
            self.taken.extend(from.map(|from| (*from, by)));
        }
    }

    /// A sampler follows the children of its processes; this removes children that belong to another target.
    fn leave_children_to_others(&mut self, changes: &Changes) {
        let others = self.targets.iter_mut().filter(|(_, watched)| !watched.identity.is_everything);
        for (id, engine) in others.filter_map(|(id, watched)| Some((id, watched.engine()?))) {
            let of_others = |all: &[(TargetId, u32)], dropped: &[(TargetId, u32)]| -> Vec<u32> {
                let others = all.iter().filter(|(whose, _)| whose != id).chain(dropped);
                others.map(|(_, pid)| *pid).collect()
            };
            engine.leave_to_others(
                &of_others(&changes.joined, &changes.joined_dropped),
                &of_others(&changes.left, &changes.left_dropped),
            );
        }
    }

    /// Passes on births and execs from records: a creator may have ended by the next scan.
    fn pass_on_news(&mut self) {
        for engine in engines(&mut self.targets, &self.apart, &mut self.sharing) {
            let Some(events) = &mut engine.session.process_events else { continue };
            events.births.drain(..).for_each(|(child, creator)| self.discovery.born(child, creator));
            events.execs.drain(..).for_each(|pid| self.discovery.suspect(pid));
        }
    }

    fn watched(&self, found: &FoundTarget) -> Watched {
        let identity = TargetIdentity {
            name: found.name.clone(),
            labels: found.labels.clone(),
            origin: Origin::Settings,
            group: found.group.clone(),
            is_everything: found.is_everything,
            is_program: found.is_program(),
        };
        let mut watched = Watched::new(identity, self.sampling_of(&found.settings));
        if let Some(own) = self.targets.get(&found.own) {
            (watched.identity.origin, watched.ends_ns) = (own.identity.origin, own.ends_ns);
        }
        watched
    }

    /// A section's own target, and those that its `each` made.
    pub(super) fn of_section(&self, own: TargetId) -> Vec<TargetId> {
        let of_it = |id: &TargetId| self.discovery.target(*id).is_some_and(|found| found.own == own);
        self.targets.keys().copied().filter(of_it).collect()
    }

    pub(super) fn sampling_of(&self, target: &TargetSettings) -> SamplingSettings {
        self.settings.sampling_of(target)
    }

    /// Subtracts the CPU time counted for other targets from that of an `everything` with its own sampler, and what their own samplers
    /// have counted from that of the shared sampler.
    pub(super) fn subtract_others_time(&mut self) {
        if self.targets.values().any(Watched::is_everything_alone) {
            self.note_shares(); // the machine's time is read at once, too
        }
        let others = || self.targets.values().filter(|watched| !watched.identity.is_everything);
        let (ended, dropped_ns) = (&self.accounts.ended, self.accounts.dropped.total_ns());
        let all_ns =
            others().map(|watched| watched.totals().cpu_ns).sum::<u64>() + ended.others_ns + dropped_ns;
        let own_ns = others().map(|watched| watched.own_totals().cpu_ns).sum::<u64>()
            + ended.others_own_ns
            + dropped_ns;
        let everything = self.targets.values_mut().filter(|watched| watched.identity.is_everything);
        for engine in everything.filter_map(Watched::engine) {
            engine.session.cpu.scheduled.others_used(all_ns);
        }
        if let Some(shared) = self.sharing.shared.as_deref_mut() {
            shared.engine.session.cpu.scheduled.others_used(own_ns);
        }
    }

    /// Starts to sample targets that are due, and switches others to their new settings. If that takes long, the next
    /// turn continues, so that rings are read and requests answered in between.
    pub(super) fn attach_targets(&mut self, now_ns: u64) {
        let most = self.settings.limits.targets as usize;
        self.setup.expect_targets(self.targets.len().min(most));
        let until_ns = clock::monotonic_ns().saturating_add(ATTACH_NS);
        self.due.is_attaching = false;
        self.make_room(most);
        let mut sampled = self.targets.values().filter(|watched| watched.is_sampled()).count();
        let ids: Vec<TargetId> = self.targets.keys().copied().collect();
        for id in ids {
            let Some(watched) = self.targets.get(&id) else { continue };
            let shares = self.is_to_share(watched);
            let is_elsewhere = watched.is_sampled() && watched.shares() != shares && watched.has_processes();
            if !watched.is_coming() && !watched.is_to_be_resampled() && !is_elsewhere {
                continue;
            }
            if clock::monotonic_ns() >= until_ns {
                self.due.is_attaching = true;
                break;
            }
            let was_sampled = watched.is_sampled();
            if !was_sampled && sampled >= most {
                self.targets.entry(id).and_modify(|watched| watched.leave_out(TOO_MANY));
                continue;
            }
            if was_sampled && self.change_way(id, shares, now_ns) {
                continue;
            }
            if !shares || !self.share(id, now_ns) {
                let Some(watched) = self.targets.get_mut(&id) else { continue };
                watched
                    .resample(&self.setup, now_ns)
                    .into_iter()
                    .for_each(|pending| self.profiles.writer.keep(pending));
                watched.attach(&self.setup, now_ns);
            }
            let is_sampled = self.targets.get(&id).is_some_and(Watched::is_sampled);
            sampled = sampled + usize::from(is_sampled) - usize::from(was_sampled);
        }
        self.note_apart();
        self.exclude_known();
    }

    /// Stops sampling targets that have no process at present, if others would be left out for them.
    fn make_room(&mut self, most: usize) {
        let takes_room =
            |watched: &&Watched| watched.is_sampled() || watched.is_coming() && !watched.has_failed();
        let too_many = self.targets.values().filter(takes_room).count().saturating_sub(most);
        self.stop_idle(too_many);
    }

    /// Detaches up to `most` of these targets.
    fn stop_idle(&mut self, most: usize) {
        let is_idle = |watched: &Watched| watched.is_sampled() && !watched.has_processes();
        let idle: Vec<TargetId> = self
            .targets
            .iter()
            .filter(|(_, watched)| is_idle(watched))
            .map(|(id, _)| *id)
            .take(most)
            .collect();
        idle.into_iter().for_each(|id| self.stop_target(id));
    }

    /// No process is sampled twice. The shared sampler leaves out those of targets with samplers of their own; an `everything` with its
    /// own sampler leaves out those of all targets. Both leave out those of targets that rules for labels drop.
    pub(super) fn exclude_known(&mut self) {
        let processes_of = |is_one: fn(&Watched) -> bool| {
            let others = self.targets.values().filter(|watched| !watched.identity.is_everything);
            let mut pids: FxHashSet<u32> = others
                .filter(|watched| is_one(watched))
                .flat_map(|watched| watched.processes.iter())
                .collect();
            if self.samples_rest() {
                pids.extend(self.discovery.dropped_processes());
            }
            pids
        };
        let of_all = self
            .targets
            .values()
            .any(Watched::is_everything_alone)
            .then(|| processes_of(Watched::is_sampled));
        let of_own = self.sharing.shared.is_some().then(|| processes_of(Watched::has_own_sampler));
        if let Some(of_all) = of_all {
            let everything = self.targets.values_mut().filter(|watched| watched.identity.is_everything);
            everything.filter_map(Watched::engine).for_each(|engine| engine.session.exclude(&of_all));
        }
        if let Some((of_own, shared)) = of_own.zip(self.sharing.shared.as_deref_mut()) {
            shared.engine.session.exclude(&of_own);
        }
    }

    /// Ends sampling of targets without processes, and targets whose requested time is over.
    fn end_targets(&mut self, now_ns: u64) {
        let over = self.targets.iter_mut().filter_map(|(id, watched)| watched.is_over(now_ns).then_some(*id));
        let over: Vec<TargetId> = over.collect();
        over.into_iter().for_each(|id| self.stop_target(id));
        let over = |watched: &Watched| watched.ends_ns.is_some_and(|ends_ns| now_ns >= ends_ns);
        let over: Vec<TargetId> =
            self.targets.iter().filter(|(_, watched)| over(watched)).map(|(id, _)| *id).collect();
        for id in over {
            self.discovery.remove(id);
            self.drop_target(id);
        }
    }

    /// A target was removed; what was sampled is kept.
    pub(super) fn drop_target(&mut self, id: TargetId) {
        self.stop_target(id);
        let Some(watched) = self.targets.remove(&id) else { return };
        self.taken.retain(|(from, by)| *from != id && *by != id);
        self.accounts.ended.add(&watched);
        self.profiles.writer.forget(&watched.identity.name);
    }

    /// Leaves targets out where there are too many, or too little memory, the least active first.
    pub(super) fn keep_within_bounds(&mut self, now_ns: u64) {
        if self.pressure.is_past(now_ns, RELIEF_NS) && self.memory_is_short() {
            self.setup.symbols.give_up_loaded();
            self.stop_idle(usize::MAX);
            memory::give_back();
            if self.memory_is_short() {
                self.pressure.note(now_ns);
                self.give_up_least_active(
                    "memory is short; raise limits.memory, or name fewer targets",
                    now_ns,
                );
            }
        }
        if now_ns >= self.due.next_ranking_ns {
            self.due.next_ranking_ns = now_ns + RANK_EVERY_NS;
            self.rank(now_ns);
        }
    }

    fn memory_is_short(&self) -> bool {
        let taken_bytes = procfs::resident_bytes() + self.ring_bytes();
        taken_bytes as f64 > MEMORY_IS_SHORT * self.settings.limits.memory.get() as f64
    }

    /// Memory of all rings (bytes).
    pub(super) fn ring_bytes(&self) -> u64 {
        let shared = self.sharing.shared.as_ref().map_or(0, |shared| shared.engine.sampler.ring_bytes());
        self.setup.shared_ring_bytes()
            + shared
            + self.targets.values().filter_map(Watched::ring_bytes).sum::<u64>()
    }

    /// Leaves out the sampled target that used the least CPU time since the last call.
    fn give_up_least_active(&mut self, why: &str, now_ns: u64) {
        self.note_activity(now_ns);
        let sampled = self.targets.iter().filter(|(_, watched)| watched.is_sampled());
        if let Some(least) = sampled.min_by_key(|(_, watched)| watched.activity_ns()).map(|(id, _)| *id) {
            self.give_up(least, why);
        }
    }

    fn give_up(&mut self, id: TargetId, why: &str) {
        self.stop_target(id);
        self.targets.entry(id).and_modify(|watched| watched.leave_out(why));
    }

    /// Leaves out excess targets, and lets in left-out targets if there is room, or if they are clearly more active
    /// than a sampled one.
    fn rank(&mut self, now_ns: u64) {
        let most = self.settings.limits.targets as usize;
        let sampled = self.targets.values().filter(|watched| watched.is_sampled()).count();
        if sampled <= most && !self.targets.values().any(Watched::is_left_out) {
            return;
        }
        self.note_activity(now_ns);
        let standing_of = |is_one: fn(&Watched) -> bool| {
            let of_them = self.targets.iter().filter(|(_, watched)| is_one(watched));
            of_them.map(|(id, watched)| (*id, watched.activity_ns())).collect::<Vec<_>>()
        };
        let standing = Standing {
            sampled: standing_of(Watched::is_sampled),
            left_out: standing_of(|watched| watched.is_left_out() && watched.has_processes()),
            coming: standing_of(|watched| watched.is_coming() && !watched.has_failed()).len(),
        };
        let ranking = standing.rank(most, self.pressure.lets_in(now_ns));
        ranking.leave_out.into_iter().for_each(|id| self.give_up(id, TOO_MANY));
        for id in ranking.let_in {
            self.targets.entry(id).and_modify(Watched::let_in);
        }
    }

    fn note_activity(&mut self, now_ns: u64) {
        if std::mem::replace(&mut self.due.noted_ns, now_ns) == now_ns {
            return; // no target had time to use CPU since then
        }
        for (id, watched) in &mut self.targets {
            watched.note_cpu_ns(self.discovery.cpu_ns(*id));
        }
    }
}
