//! Which targets there are, who belongs to them, and which of them are left out.

use config::{SamplingSettings, TargetSettings};

use super::watched::{Identity, Watched};
use super::state::Origin;
use super::Daemon;
use crate::discovery::{Found, TargetId};
use crate::sys::procfs;

/// How often it is decided anew who is left out, if somebody has to be (ns).
const RANK_EVERY_NS: u64 = 10_000_000_000;
/// Who is left out has to be so much more active than the least active that is sampled.
const CLEARLY_MORE: u64 = 2;
/// Share of the limit from which memory is short.
const MEMORY_IS_SHORT: f64 = 0.9;

impl Daemon {
    /// Who came and who left; starts to sample what has somebody to sample, and ends what has nobody any more.
    pub(super) fn look_for_targets(&mut self, now_ns: u64) {
        let changes = self.discovery.look(now_ns);
        for id in changes.appeared {
            let watched = self.discovery.target(id).map(|found| self.watched(found));
            self.targets.extend(watched.map(|watched| (id, watched)));
        }
        for (id, pid) in changes.left {
            if let Some(watched) = self.targets.get_mut(&id) {
                watched.leave(pid);
            }
            self.others_process(id, |session| session.include(pid));
        }
        for (id, pid) in changes.joined {
            if let Some(watched) = self.targets.get_mut(&id) {
                watched.join(pid);
            }
            self.others_process(id, |session| session.exclude(pid));
        }
        self.targets.values_mut().for_each(Watched::settle_members);
        changes.gone.into_iter().for_each(|id| self.drop_target(id));
        self.end_targets(now_ns);
        self.attach_targets(now_ns);
        self.tell_others_time();
    }

    fn watched(&self, found: &Found) -> Watched {
        let identity = Identity {
            name: found.name.clone(),
            labels: found.labels.clone(),
            origin: Origin::Settings,
            group: found.group.clone(),
            is_everything: found.is_everything,
        };
        Watched::new(identity, self.sampling_of(&found.settings))
    }

    pub(super) fn sampling_of(&self, target: &TargetSettings) -> SamplingSettings {
        self.settings.sampling_of(target)
    }

    /// What a process of one target means to those that are everything else.
    fn others_process(&mut self, id: TargetId, act: impl Fn(&mut crate::sampler::session::Session)) {
        let everything = self.targets.iter_mut().filter(|(other, watched)| **other != id && watched.identity.is_everything);
        everything.filter_map(|(_, watched)| watched.engine()).for_each(|engine| act(&mut engine.session));
    }

    /// What other targets used is none of everything's.
    fn tell_others_time(&mut self) {
        let others_ns: u64 = self.targets.values().filter(|watched| !watched.identity.is_everything).map(|watched| watched.totals().cpu_ns).sum();
        let others_ns = others_ns + self.gone.cpu_ns;
        let everything = self.targets.values_mut().filter(|watched| watched.identity.is_everything);
        for engine in everything.filter_map(Watched::engine) {
            engine.session.cpu.others_used(others_ns);
        }
    }

    fn attach_targets(&mut self, now_ns: u64) {
        let most = self.settings.limits.targets as usize;
        let mut sampled = self.targets.values().filter(|watched| watched.is_sampled()).count();
        for watched in self.targets.values_mut().filter(|watched| !watched.is_sampled() && !watched.is_left_out()) {
            if !watched.has_processes() {
                continue;
            }
            if sampled >= most {
                watched.leave_out("there are more targets than limits.targets, and this one is less active; raise the limit, or name fewer");
                continue;
            }
            watched.attach(&self.setup, now_ns);
            if watched.is_sampled() {
                sampled += 1;
            }
        }
        self.exclude_known();
    }

    /// Everything is none of what belongs to others; asked where it was just attached to.
    fn exclude_known(&mut self) {
        let mut fresh = false;
        for watched in self.targets.values_mut() {
            fresh |= watched.take_fresh() && watched.identity.is_everything;
        }
        if !fresh {
            return;
        }
        let others: Vec<u32> = self.targets.values().filter(|watched| !watched.identity.is_everything).flat_map(|watched| watched.processes.iter().copied()).collect();
        let everything = self.targets.values_mut().filter(|watched| watched.identity.is_everything);
        for engine in everything.filter_map(Watched::engine) {
            others.iter().for_each(|&pid| engine.session.exclude(pid));
        }
    }

    /// Ends what has nobody any more, and what was asked for until now.
    fn end_targets(&mut self, now_ns: u64) {
        for watched in self.targets.values_mut().filter(|watched| watched.has_ended()) {
            watched.stop(&self.setup).into_iter().for_each(|parcel| self.keeper.keep(parcel));
        }
        let over = |watched: &Watched| watched.ends_ns.is_some_and(|ends_ns| now_ns >= ends_ns);
        let over: Vec<TargetId> = self.targets.iter().filter(|(_, watched)| over(watched)).map(|(id, _)| *id).collect();
        for id in over {
            self.discovery.remove(id);
            self.drop_target(id);
        }
    }

    /// A target is not there any more; what was sampled is kept.
    pub(super) fn drop_target(&mut self, id: TargetId) {
        let Some(mut watched) = self.targets.remove(&id) else { return };
        watched.stop(&self.setup).into_iter().for_each(|parcel| self.keeper.keep(parcel));
        self.gone = self.gone.plus(watched.totals());
        self.keeper.forget(&watched.identity.name);
    }

    /// Leaves targets out where there are too many, or too little memory, the least active first.
    pub(super) fn keep_within_bounds(&mut self, now_ns: u64) {
        let limit = self.settings.limits.memory.get();
        if procfs::resident_bytes() as f64 > MEMORY_IS_SHORT * limit as f64 {
            self.pressed += 1;
            self.give_up_least_active("memory is short; raise limits.memory, or name fewer targets");
        }
        if now_ns >= self.next_ranking_ns {
            self.next_ranking_ns = now_ns + RANK_EVERY_NS;
            self.rank();
        }
    }

    fn give_up_least_active(&mut self, why: &str) {
        let activity = self.activity();
        let least = activity.iter().filter(|(id, _)| self.targets[*id].is_sampled()).min_by_key(|(_, cpu_ns)| *cpu_ns);
        if let Some(&(id, _)) = least
            && let Some(watched) = self.targets.get_mut(&id)
        {
            watched.stop(&self.setup).into_iter().for_each(|parcel| self.keeper.keep(parcel));
            watched.leave_out(why);
        }
    }

    /// Lets in whoever is clearly more active than one that is sampled.
    fn rank(&mut self) {
        if !self.targets.values().any(Watched::is_left_out) {
            return;
        }
        let activity = self.activity();
        let of = |out: bool| activity.iter().filter(move |(id, _)| self.targets[id].is_left_out() == out && self.targets[id].has_processes());
        let most = of(true).max_by_key(|(_, cpu_ns)| *cpu_ns).copied();
        let least = of(false).min_by_key(|(_, cpu_ns)| *cpu_ns).copied();
        let sampled = self.targets.values().filter(|watched| watched.is_sampled()).count();
        let Some((out, out_ns)) = most else { return };
        if sampled < self.settings.limits.targets as usize && self.pressed == 0 {
            self.targets.get_mut(&out).into_iter().for_each(Watched::let_in);
        } else if least.is_some_and(|(_, in_ns)| out_ns > CLEARLY_MORE * in_ns) {
            self.give_up_least_active("others are more active, and there are more targets than limits.targets");
            self.targets.get_mut(&out).into_iter().for_each(Watched::let_in);
        }
    }

    /// CPU time of each target since the last call.
    fn activity(&mut self) -> Vec<(TargetId, u64)> {
        let ids: Vec<TargetId> = self.targets.keys().copied().collect();
        ids.into_iter().map(|id| (id, self.discovery.cpu_ns(id))).collect()
    }
}
