//! Which target a sample counts for, where one session samples many targets. Each target has its own counts and
//! its own CPU time.
//!
//! No CPU time counts twice. A child counts for its parent's target. After an `execve` a process is counted
//! separately until discovery has assigned it to a target; everything counted so far then goes to that target.
//! With events of its own, a target keeps what its child does until the next scan. A process that ended before
//! a scan counts for the target that has all other processes of its name, if there is one, or else for its
//! parent's target.
//!
//! The profiler and the processes that read symbols for it belong to no target, not even to that of all other processes.
//!
//! The CPU time of a live process is read from its clock. For a process that has ended since, the samples are
//! the only source: the kernel's account of waited-for children holds the same time again and is not used.

use std::collections::BTreeMap;
use std::sync::Arc;

use profiler_core::aggregate::{Aggregator, Chain};
use profiler_core::process::Process;
use profiler_core::profile::Outcome;
use profiler_core::stack::Frame;
use profiler_core::stats::WeightedSum;
use rustc_hash::{FxHashMap, FxHashSet};

use super::Counts;
use super::clocks::{Correction, ProcessClocks};
use crate::cgroup::Cgroup;
use crate::sys::{clock, family};

/// Most processes that may wait for a scan; any further one is counted at once for its heir.
const MOST_WAITING: usize = 4_096;

/// Most names of programs that are remembered.
const MOST_PROGRAMS: usize = 4_096;

/// A target, by the number that the service knows it by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Owner(pub(crate) u32);

/// What was counted for one target since its last cut.
#[derive(Default)]
pub(crate) struct OwnerShare {
    pub(super) counted: Aggregator,
    /// Start of the time range that the next cut hands over (ns).
    pub(super) start_ns: u64,
    /// Sampling cost that was subtracted from the samples' time, in the open window and in the closed ones (ns).
    pub(super) charged_ns: (f64, f64),
    /// Counts since the target entered; a cut does not reset them.
    pub(crate) counts: Counts,
    /// CPU time since then (ns).
    pub(crate) cpu_ns: f64,
    /// The part of it that is known by samples alone (ns).
    pub(crate) unsure: WeightedSum,
    /// The control group that the target is, if it is one: the kernel keeps its account.
    group: Option<GroupAccount>,
    /// The one that it was before, and its CPU time at that moment (ns).
    left_group: Option<(GroupAccount, f64)>,
}

/// What a control group used since its target entered.
struct GroupAccount {
    group: Arc<Cgroup>,
    /// Whether this process is in the group; its time counts for no target.
    is_ours: bool,
    /// What the group had used at a moment, and what the target had used by then (ns).
    base_ns: u64,
    before_ns: f64,
    /// The part of that which is known by samples alone (ns).
    before_unsure: WeightedSum,
    /// What the target had used at the last reading (ns).
    last_ns: f64,
}

impl GroupAccount {
    /// For a target that has used `before_ns` so far. What the group has used so far does not count.
    fn begin(group: Arc<Cgroup>, before_ns: f64, before_unsure: WeightedSum) -> Self {
        let mut account = Self { before_unsure, ..Self::whole(group, before_ns) };
        account.base_ns = account.life_ns().unwrap_or(0);
        account
    }

    /// For a target that has used `before_ns` so far, in other groups. All that this group has used counts as well.
    fn whole(group: Arc<Cgroup>, before_ns: f64) -> Self {
        let is_ours = group.processes().is_ok_and(|pids| pids.contains(&std::process::id()));
        Self {
            group,
            is_ours,
            base_ns: 0,
            before_ns,
            before_unsure: WeightedSum::default(),
            last_ns: before_ns,
        }
    }

    /// Whether no process is in it, so that whatever it uses later is of processes that come later.
    fn is_empty(&self) -> bool {
        self.group.processes().map_or(true, |pids| pids.is_empty())
    }

    /// What the target has used since it entered (ns); `None` once the group is gone.
    fn read_ns(&mut self) -> Option<f64> {
        self.last_ns = self.before_ns + self.life_ns()?.saturating_sub(self.base_ns) as f64;
        Some(self.last_ns)
    }

    fn life_ns(&self) -> Option<u64> {
        let own_ns = if self.is_ours { clock::self_cpu_ns() } else { 0 };
        Some(self.group.cpu_ns()?.saturating_sub(own_ns))
    }
}

/// A process that no scan has assigned since it began its program.
struct WaitingProcess {
    share: OwnerShare,
    /// The target that it counts for if no scan says otherwise.
    heir: Option<Owner>,
    /// Scans that had begun when it began to wait.
    since_scan: u64,
}

/// Processes that a scan has assigned to no target.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Unassigned {
    /// Processes that belong to no target, not even to `rest`.
    pub(super) live: Vec<u32>,
    /// Processes that have ended.
    pub(super) ended: Vec<u32>,
}

/// What a sample adds, beside its stack.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sampled {
    pub(super) pid: u32,
    /// CPU time that the sample stands for, and the part of it that the program ran (without the sampling cost; ns).
    pub(super) weight_ns: u64,
    pub(super) done_ns: u64,
    pub(super) frames: u64,
    pub(super) stack_bytes: u64,
    /// Whether its outer frames were taken from an earlier sample.
    pub(super) is_completed: bool,
}

/// The targets of a session, and which process belongs to which.
#[derive(Default)]
pub(crate) struct Owners {
    shares: BTreeMap<Owner, OwnerShare>,
    of: FxHashMap<u32, Owner>,
    /// Processes that belong to no target.
    unassigned: FxHashSet<u32>,
    /// When a scan assigned a process whose birth may not have been read yet (ns).
    assigned_ns: FxHashMap<u32, u64>,
    /// The target that has the processes of no other target.
    rest: Option<Owner>,
    waiting: FxHashMap<u32, WaitingProcess>,
    /// Names of programs whose processes all belong to one target; `None` if several targets have some.
    programs: FxHashMap<String, Option<Owner>>,
    /// Scans that have begun.
    scans: u64,
    pub(super) clocks: ProcessClocks,
}

impl OwnerShare {
    fn begun_at(start_ns: u64) -> Self {
        Self { start_ns, ..Self::default() }
    }

    fn add(&mut self, process: &Process, chain: Chain<'_>, sampled: Sampled) -> (Outcome, Frame) {
        let (outcome, function) = self.counted.add(process, chain, sampled.done_ns);
        self.charged_ns.0 += sampled.weight_ns as f64 - sampled.done_ns as f64;
        self.counts.samples += 1;
        self.counts.frames += sampled.frames;
        self.counts.stack_bytes += sampled.stack_bytes;
        self.counts.completed += u64::from(sampled.is_completed);
        self.counts.truncated.add(outcome, 1);
        self.cpu_ns += sampled.weight_ns as f64;
        (outcome, function)
    }

    /// Ends a window. Each sample counts `factor` times, to make up for lost ones.
    pub(super) fn end_window(&mut self, now_ns: u64, factor: f64) {
        if !self.counted.is_quiet() {
            self.counted.close_window(now_ns.saturating_sub(self.start_ns), factor);
        }
        self.charged_ns.1 += factor * std::mem::take(&mut self.charged_ns.0);
    }

    /// Takes the CPU time from the account of the control group, if the target is one. The group of a service that is restarted is
    /// removed and made anew: its target goes on with the new one.
    fn read_group(&mut self) {
        let Some(account) = &mut self.group else { return };
        if let Some(used_ns) = account.read_ns() {
            (self.cpu_ns, self.unsure) = (used_ns, account.before_unsure);
        } else if let Some(next) = account.group.successor() {
            *account =
                GroupAccount { before_unsure: self.unsure, ..GroupAccount::whole(next, account.last_ns) };
            let used_ns = account.read_ns().unwrap_or(self.cpu_ns);
            // Samples since the last reading stand for what the group used before it was removed.
            account.before_ns += (self.cpu_ns - used_ns).max(0.0);
            self.cpu_ns = self.cpu_ns.max(used_ns);
        }
    }

    /// The target is this control group from now on, or none.
    fn set_group(&mut self, group: Option<Arc<Cgroup>>) {
        self.read_group();
        let cpu_ns = self.cpu_ns;
        let left = self.group.take().filter(|account| group.is_some() || account.is_empty());
        self.left_group = left.map(|account| (account, cpu_ns)).or(self.left_group.take());
        let Some(group) = group else { return };
        // The same one that was left empty, as between two runs of a service, and nothing was counted by its processes meanwhile.
        let left = self
            .left_group
            .take()
            .filter(|(left, then_ns)| left.group.name() == group.name() && *then_ns == cpu_ns);
        self.group = Some(match left {
            Some((left, _)) if left.group.is_gone() => {
                GroupAccount { before_unsure: self.unsure, ..GroupAccount::whole(group, cpu_ns) }
            }
            Some((left, _)) => left,
            None => GroupAccount::begin(group, cpu_ns, self.unsure),
        });
    }

    fn absorb(&mut self, other: Self) {
        self.counted.absorb(other.counted);
        self.charged_ns.0 += other.charged_ns.0 + other.charged_ns.1;
        self.counts.add_samples(&other.counts);
        self.cpu_ns += other.cpu_ns;
        self.unsure = self.unsure.plus(other.unsure);
    }

    /// Hands over what was counted, and the subtracted cost (ns). The next cut begins at `now_ns`.
    pub(super) fn cut(&mut self, now_ns: u64) -> (Aggregator, f64) {
        self.start_ns = now_ns;
        (self.counted.cut(), std::mem::take(&mut self.charged_ns.1))
    }
}

impl Owners {
    /// Adds a target, which may be the control group `group`. `is_rest`: it also gets the processes of no other target.
    pub(crate) fn enter(&mut self, owner: Owner, group: Option<Arc<Cgroup>>, is_rest: bool, now_ns: u64) {
        let share = self.shares.entry(owner).or_insert_with(|| OwnerShare::begun_at(now_ns));
        share.set_group(group);
        if is_rest {
            self.rest = Some(owner);
        }
    }

    /// Removes a target. What was counted for it since its last cut is dropped.
    pub(crate) fn end(&mut self, owner: Owner) {
        self.shares.remove(&owner);
        self.of.retain(|_, of| *of != owner);
        self.waiting
            .values_mut()
            .for_each(|waiting| waiting.heir = waiting.heir.filter(|heir| *heir != owner));
        self.rest = self.rest.filter(|rest| *rest != owner);
        self.programs.clear();
    }

    /// Whether no target is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.shares.is_empty()
    }

    /// The targets, with their counts.
    pub(crate) fn shares(&self) -> impl Iterator<Item = (Owner, &OwnerShare)> {
        self.shares.iter().map(|(owner, share)| (*owner, share))
    }

    /// The start of the oldest open window (ns).
    pub(crate) fn oldest_start_ns(&self) -> Option<u64> {
        self.shares.values().map(|share| share.start_ns).min()
    }

    /// Whether a process waits for a scan.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The processes that wait for a scan.
    pub(super) fn waiting(&self) -> impl Iterator<Item = u32> {
        self.waiting.keys().copied()
    }

    /// The targets with windows that began by `at_ns`, and when (ns), the oldest first.
    pub(crate) fn begun_by(&self, at_ns: u64) -> Vec<(u64, Owner)> {
        let begun = self.shares.iter().filter(|(_, share)| share.start_ns <= at_ns);
        let mut begun: Vec<(u64, Owner)> = begun.map(|(owner, share)| (share.start_ns, *owner)).collect();
        begun.sort_unstable_by_key(|(start_ns, owner)| (*start_ns, owner.0));
        begun
    }

    pub(crate) fn share(&self, owner: Owner) -> Option<&OwnerShare> {
        self.shares.get(&owner)
    }

    pub(super) fn share_mut(&mut self, owner: Owner) -> Option<&mut OwnerShare> {
        self.shares.get_mut(&owner)
    }

    /// All counts: of targets, and of processes that wait.
    pub(super) fn all(&self) -> impl Iterator<Item = &OwnerShare> {
        self.shares.values().chain(self.waiting.values().map(|waiting| &waiting.share))
    }

    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut OwnerShare> {
        self.shares.values_mut().chain(self.waiting.values_mut().map(|waiting| &mut waiting.share))
    }

    /// Whether a process is known to belong to no target.
    pub(super) fn is_unassigned(&self, pid: u32) -> bool {
        self.unassigned.contains(&pid)
    }

    /// Whether a process belongs to a target, or waits for a scan to say to which.
    pub(super) fn is_known(&self, pid: u32) -> bool {
        self.of.contains_key(&pid) || self.waiting.contains_key(&pid)
    }

    /// Whether a process belongs to a target.
    pub(super) fn is_assigned(&self, pid: u32) -> bool {
        self.of.contains_key(&pid)
    }

    fn of(&self, pid: u32) -> Option<Owner> {
        self.of.get(&pid).copied()
    }

    /// A scan has assigned a process: to `owner`, otherwise to `rest`, otherwise to no target. The profiler's own
    /// processes belong to no target.
    pub(super) fn assign(&mut self, pid: u32, owner: Option<Owner>) {
        let owner = owner.filter(|owner| self.shares.contains_key(owner)).or(self.rest);
        let owner = owner.filter(|_| !family::is_ours(pid));
        if let Some(waiting) = self.waiting.remove(&pid) {
            self.settle(pid, waiting, owner);
        } else if self.of(pid) != owner {
            self.read_clock(pid);
        }
        self.clocks.met(pid);
        self.assigned_ns.insert(pid, clock::monotonic_ns());
        match owner {
            Some(owner) => {
                self.of.insert(pid, owner);
                self.unassigned.remove(&pid);
            }
            None => {
                self.of.remove(&pid);
                self.unassigned.insert(pid);
            }
        }
    }

    /// A process now belongs to a target with a sampler of its own. What it did while it waited counts for no target
    /// here.
    pub(super) fn leave(&mut self, pid: u32) {
        match self.waiting.remove(&pid) {
            Some(waiting) => self.settle(pid, waiting, None),
            None => self.read_clock(pid),
        }
        self.of.remove(&pid);
        self.assigned_ns.remove(&pid);
        self.unassigned.remove(&pid);
        self.clocks.ended(pid);
    }

    /// Adds what a process did while it waited to the counts of `owner`, or drops it without one.
    fn settle(&mut self, pid: u32, waiting: WaitingProcess, owner: Option<Owner>) {
        self.clocks.is_known(pid);
        if let Some(share) = owner.and_then(|owner| self.shares.get_mut(&owner)) {
            share.absorb(waiting.share);
        }
    }

    /// A process was created at `at_ns`: it counts for its parent's target, unless a scan has found another since.
    pub(super) fn forked(&mut self, pid: u32, parent: u32, at_ns: u64) {
        if self.assigned_ns.get(&pid).is_some_and(|assigned_ns| at_ns < *assigned_ns) {
            return self.clocks.began(pid);
        }
        self.clocks.born(pid);
        self.of.remove(&pid); // left from an earlier process with this id, whose end was not reported
        self.unassigned.remove(&pid);
        match self.waiting.get(&parent).map(|waiting| waiting.heir) {
            Some(heir) => self.wait(pid, heir),
            None => {
                if let Some(owner) = self.of(parent) {
                    self.of.insert(pid, owner);
                } else if self.is_unassigned(parent) {
                    self.unassigned.insert(pid);
                }
            }
        }
    }

    /// A process called `execve`. What it did so far stays with its target (or its heir, if it was waiting); from now
    /// on it is counted separately until a scan assigns it.
    pub(super) fn executes(&mut self, pid: u32) {
        let heir = match self.waiting.remove(&pid) {
            Some(waiting) => {
                let heir = waiting.heir;
                self.settle(pid, waiting, heir);
                heir
            }
            None => self.of.remove(&pid),
        };
        self.unassigned.remove(&pid);
        let settled = self.clocks.settle_by_samples(pid);
        if let Some(share) = heir.and_then(|heir| self.shares.get_mut(&heir)) {
            share.unsure = share.unsure.plus(settled);
        }
        self.wait(pid, heir);
    }

    /// A process was sampled that may be unknown here. `parent` is given if known.
    pub(super) fn met(&mut self, pid: u32, parent: Option<u32>) {
        if !self.is_known(pid) && !self.is_unassigned(pid) {
            let of_waiting = parent.and_then(|parent| self.waiting.get(&parent)).map(|waiting| waiting.heir);
            let heir = of_waiting.unwrap_or_else(|| parent.and_then(|parent| self.of(parent)));
            self.clocks.met(pid);
            self.wait(pid, heir);
        }
    }

    fn wait(&mut self, pid: u32, heir: Option<Owner>) {
        if family::is_ours(pid) {
            self.unassigned.insert(pid);
            return;
        }
        let heir = heir.or(self.rest);
        if self.waiting.len() >= MOST_WAITING {
            self.of.extend(heir.map(|heir| (pid, heir)));
            return;
        }
        let waiting = WaitingProcess { share: OwnerShare::default(), heir, since_scan: self.scans };
        self.waiting.insert(pid, waiting);
        self.clocks.is_waiting(pid);
    }

    /// Counts a sample; `None` if the process belongs to no target.
    pub(super) fn add(
        &mut self,
        process: &Process,
        chain: Chain<'_>,
        sampled: Sampled,
    ) -> Option<(Outcome, Frame)> {
        let pid = sampled.pid;
        let share = match self.waiting.get_mut(&pid) {
            Some(waiting) => &mut waiting.share,
            None => self.shares.get_mut(self.of.get(&pid)?)?,
        };
        if !self.clocks.sampled(pid, sampled.weight_ns) {
            share.unsure.add(sampled.weight_ns as f64);
        }
        Some(share.add(process, chain, sampled))
    }

    /// Notes that `owner` has a process of this name because of that name. `None`: a target has it for another reason, or no target has it.
    pub(super) fn note_program(&mut self, program: String, owner: Option<Owner>) {
        if self.programs.len() < MOST_PROGRAMS || self.programs.contains_key(&program) {
            let of = self.programs.entry(program).or_insert(owner);
            *of = of.filter(|_| *of == owner);
        }
    }

    /// A process named `program` has ended. If no scan has assigned it, it counts for the target that has all other
    /// processes of its name, or else for its heir.
    pub(super) fn ended(&mut self, pid: u32, program: Option<&str>) {
        self.read_clock(pid); // readable until its parent has waited for it
        let unsure = self.clocks.ended(pid);
        self.correct(pid, Correction { off_ns: 0.0, unsure });
        self.assigned_ns.remove(&pid);
        self.of.remove(&pid);
        self.unassigned.remove(&pid);
        if let Some(waiting) = self.waiting.remove(&pid) {
            let namesake = program.and_then(|program| *self.programs.get(program)?);
            let owner = namesake.filter(|owner| self.shares.contains_key(owner)).or(waiting.heir);
            self.settle(pid, waiting, owner);
        }
    }

    /// A scan of all processes begins. Those that wait now and are not assigned by its end belong to `rest`. Births until `read_ns` have
    /// been read.
    pub(crate) fn scan_begins(&mut self, read_ns: u64) {
        self.scans += 1;
        self.assigned_ns.retain(|_, assigned_ns| *assigned_ns > read_ns);
    }

    /// The scans so far say nothing of the processes that wait and there will be no other: they count for their heirs.
    pub(super) fn settle_waiting(&mut self) {
        for (pid, waiting) in std::mem::take(&mut self.waiting) {
            let heir = waiting.heir;
            self.of.extend(heir.map(|heir| (pid, heir)));
            self.settle(pid, waiting, heir);
        }
    }

    /// The processes that already waited when the current or last scan began: that scan covers them.
    pub(super) fn seen_waiting(&self) -> impl Iterator<Item = u32> {
        let is_seen =
            |(pid, waiting): (&u32, &WaitingProcess)| (waiting.since_scan < self.scans).then_some(*pid);
        self.waiting.iter().filter_map(is_seen)
    }

    /// The scan has ended. Of the covered processes that it did not assign, the live ones belong to `rest`, or to no
    /// target. The others ended before the scan read them, so it says nothing about their target: they wait until their
    /// end is reported.
    pub(super) fn scan_ended(&mut self, has_ended: impl Fn(u32) -> bool) -> Unassigned {
        let (ended, live): (Vec<u32>, Vec<u32>) = self.seen_waiting().partition(|pid| has_ended(*pid));
        live.iter().for_each(|pid| self.assign(*pid, None));
        Unassigned { live: live.into_iter().filter(|pid| self.is_unassigned(*pid)).collect(), ended }
    }

    /// Corrects the CPU time of targets by the clocks of their processes, if it is time to read them (`is_each`: in any case).
    pub(super) fn read_clocks(&mut self, is_each: bool) {
        for (pid, correction) in self.clocks.read(is_each, clock::monotonic_ns()).corrections {
            self.correct(pid, correction);
        }
        self.shares.values_mut().for_each(OwnerShare::read_group);
    }

    fn read_clock(&mut self, pid: u32) {
        if let Some(correction) = self.clocks.read_one(pid) {
            self.correct(pid, correction);
        }
    }

    /// Corrects the CPU time of a process' target.
    fn correct(&mut self, pid: u32, correction: Correction) {
        let share = match self.waiting.get_mut(&pid) {
            Some(waiting) => Some(&mut waiting.share),
            None => self.of(pid).and_then(|owner| self.shares.get_mut(&owner)),
        };
        if let Some(share) = share {
            share.cpu_ns += correction.off_ns;
            share.unsure = share.unsure.plus(correction.unsure);
        }
    }

    /// Samples by innermost function since the last call, for each target.
    pub(super) fn take_function_counts(&mut self) -> Vec<((Owner, Frame), u64)> {
        let mut counts = Vec::new();
        for (owner, share) in &mut self.shares {
            counts.extend(share.counted.take_function_counts().into_iter().map(|(f, n)| ((*owner, f), n)));
        }
        counts
    }
}

#[cfg(test)]
mod tests;
