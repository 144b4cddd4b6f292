//! The CPU time that the scheduler charged to the target: all its processes, including those that have ended.
//!
//! It is read process by process; ended children are found in their parents' account. The weights are scaled to
//! it and the difference is shown.
//!
//! Stolen time is in the weights but not in the scheduler's account: `cpu-clock` measures time while the task
//! is on a CPU, and the scheduler subtracts what the host of a virtual machine stole. The two then differ by
//! that share, and the table shows it.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::cgroup::Cgroup;
use crate::sys::{clock, procfs};

/// The kernel reports the time of waited-for children in ticks.
const TICK_NS: u64 = 10_000_000;
/// If the kernel keeps the sum, processes that ended without a record are looked for this often (ns): it takes a system
/// call for each process.
const ENDS_EVERY_NS: u64 = 2_000_000_000;
/// Accounts of waited-for children are read this often (ns), and when a child has ended.
const WAITED_EVERY_NS: u64 = 1_000_000_000;

/// Adds up the CPU time of processes as they come and go.
///
/// A running process is read from its CPU clock. The time of one that ended is in its parent's account of waited-for children; if
/// the parent has ended too, in the account of the nearest ancestor that runs. Where no such ancestor is followed or keeps an
/// account, the last reading counts.
///
/// The kernel itself keeps the sum for a control group and for the machine. Processes are then only watched for their
/// ends.
#[derive(Default)]
pub(crate) struct TargetCpu {
    whole: Option<WholeAccount>,
    processes: FxHashMap<u32, ProcessAccount>,
    /// Time of ended processes that no live process accounts for (ns).
    ended_ns: u64,
    /// Time of ended processes that a living heir's account (in ticks) does not show yet (ns). Counted for now;
    /// `waited_for` drops it when the exact figure comes.
    doubtful_ns: u64,
    /// The largest total so far; a total never shrinks.
    total_ns: u64,
    /// When the next check is due that isn't made at each reading (ns): for exits where the kernel keeps the sum,
    /// otherwise of the accounts of waited-for children.
    next_look_ns: u64,
}

/// The kernel's account of a group or of all processes, as far as it is the target's.
struct WholeAccount {
    of: Whole,
    /// Whether this process is in it; what it uses is not the target's.
    is_ours: bool,
    /// What other targets' processes in it have used since it was followed (ns).
    others_ns: u64,
    /// What the first call of `others_used` said: the zero point (ns).
    others_before_ns: Option<u64>,
    /// Used before it was followed (ns).
    base_ns: u64,
}

/// What the kernel keeps the sum for.
enum Whole {
    Group(Arc<Cgroup>),
    Machine,
}

impl WholeAccount {
    fn new(of: Whole, is_ours: bool) -> Self {
        let mut account = Self { of, is_ours, others_ns: 0, others_before_ns: None, base_ns: 0 };
        account.base_ns = account.life_ns().unwrap_or(0);
        account
    }

    fn life_ns(&self) -> Option<u64> {
        let own_ns = if self.is_ours { clock::self_cpu_ns() } else { 0 };
        let all_ns = match &self.of {
            Whole::Group(group) => group.cpu_ns()?,
            Whole::Machine => procfs::machine_charged_ns(),
        };
        Some(all_ns.saturating_sub(own_ns + self.others_ns))
    }
}

#[derive(Clone, Copy, Default)]
struct ProcessAccount {
    parent: Option<u32>,
    /// CPU time that it had used when it was adopted (ns).
    base_ns: u64,
    own_ns: u64,
    children_ns: u64,
    has_children: bool,
    /// What it used until it left the target (ns): later time is not the target's, although it shows in the parent's
    /// account.
    until_left_ns: Option<u64>,
}

impl ProcessAccount {
    /// CPU time since it was followed (ns).
    fn used_ns(&self) -> u64 {
        self.until_left_ns.unwrap_or_else(|| self.life_ns().saturating_sub(self.base_ns))
    }

    /// CPU time since it began, with the children that it waited for (ns).
    fn life_ns(&self) -> u64 {
        self.own_ns + self.children_ns
    }
}

impl TargetCpu {
    /// From now on the target is everything in this group.
    pub(crate) fn follow_group(&mut self, group: Arc<Cgroup>) {
        let is_ours = group.processes().is_ok_and(|pids| pids.contains(&std::process::id()));
        self.whole = Some(WholeAccount::new(Whole::Group(group), is_ours));
    }

    /// From now on the target is every process of the machine, except this one and those of other targets.
    pub(crate) fn follow_machine(&mut self) {
        self.whole = Some(WholeAccount::new(Whole::Machine, true));
    }

    /// Sets the CPU time of other targets' processes so far (ns). The first call is the zero point, so make it as soon
    /// as this target is followed.
    pub(crate) fn others_used(&mut self, others_ns: u64) {
        if let Some(account) = &mut self.whole {
            let before_ns = *account.others_before_ns.get_or_insert(others_ns);
            account.others_ns = others_ns.saturating_sub(before_ns);
        }
    }

    /// Follows a process that may have run before; only what it uses from now on counts.
    pub(crate) fn adopt(&mut self, pid: u32) {
        let own_ns = clock::process_cpu_ns(pid).unwrap_or(0);
        let children_ns = procfs::waited_children_cpu_ns(pid);
        let account = ProcessAccount {
            base_ns: own_ns + children_ns,
            own_ns,
            children_ns,
            ..ProcessAccount::default()
        };
        if let Some(before) = self.processes.insert(pid, account) {
            self.ended_ns += before.used_ns(); // the process is back, or its id was reused
        }
    }

    /// [`Self::adopt`] for a child of a followed process: its earlier CPU time will show in its parent's account.
    pub(crate) fn adopt_child(&mut self, pid: u32, parent: u32) {
        self.adopt(pid);
        if let Some(account) = self.processes.get_mut(&parent) {
            account.has_children = true;
        }
        if let Some(account) = self.processes.get_mut(&pid) {
            account.parent = Some(parent);
        }
    }

    /// Follows a process that a followed one has just created.
    pub(crate) fn forked(&mut self, pid: u32, parent: u32) {
        if let Some(account) = self.processes.get_mut(&parent) {
            account.has_children = true;
        }
        // A process that a scan has found before this record was read is known, but its parent may not be.
        let account = self.processes.entry(pid).or_default();
        account.parent = account.parent.or(Some(parent));
    }

    /// A process leaves the target and continues. What it used so far still counts: in the group's account, if there is
    /// one.
    pub(crate) fn leave(&mut self, pid: u32) {
        if self.whole.is_some() {
            self.processes.remove(&pid);
        } else if let Some(account) = self.processes.get_mut(&pid) {
            account.until_left_ns = Some(account.used_ns());
        }
    }

    /// The final account of a process that we waited for, its waited-for children included.
    pub(crate) fn waited_for(&mut self, pid: u32, cpu_ns: u64) {
        let below = |&child: &u32| self.ancestors(child).any(|ancestor| ancestor == pid);
        let ended = |child: &u32| clock::process_cpu_ns(*child).is_none();
        let ended_below: FxHashSet<u32> =
            self.processes.keys().copied().filter(below).filter(ended).collect();
        let followed = self.processes.remove(&pid);
        if self.whole.is_some() {
            return; // its time is in the group's account
        }
        if let Some(account) = followed {
            self.ended_ns += cpu_ns.saturating_sub(account.base_ns);
            (self.doubtful_ns, self.total_ns) = (0, 0);
            // What its descendants used is part of the figure.
            self.processes.retain(|child, _| !ended_below.contains(child));
        }
    }

    /// From now on the parent's account includes what a child used while it was not followed: subtracts that.
    fn take_off(&mut self, parent: Option<u32>, unfollowed_ns: u64) {
        if let Some(account) = parent.and_then(|parent| self.processes.get_mut(&parent)) {
            account.base_ns += unfollowed_ns;
        }
    }

    /// CPU time that all processes have used since they were adopted (ns), and the processes that have ended.
    pub(crate) fn read(&mut self) -> (u64, Vec<u32>) {
        if let Some(account) = &self.whole {
            // The last reading of a group that is gone stays its final one.
            let used_ns = account.life_ns().map_or(0, |life_ns| life_ns.saturating_sub(account.base_ns));
            self.total_ns = self.total_ns.max(used_ns);
            if !self.is_time(ENDS_EVERY_NS) {
                return (self.total_ns, Vec::new());
            }
            let gone = self.read_clocks();
            for pid in &gone {
                self.processes.remove(pid);
            }
            return (self.total_ns, gone);
        }
        // Clocks are read before accounts: a process that has ended by then shows in the account of its heir, …
        let mut gone: FxHashSet<u32> = self.read_clocks().into_iter().collect();
        let heirs: FxHashSet<u32> = gone.iter().filter_map(|&pid| self.heir(pid, &gone)).collect();
        for heir in &heirs {
            if let Some(account) = self.processes.get_mut(heir) {
                account.has_children = true; // it may have been followed later than its child
            }
        }
        let mut newly_waited = match self.is_time(WAITED_EVERY_NS) {
            true => self.read_waited(|_| true),
            false => self.read_waited(|pid| heirs.contains(&pid)),
        };
        // … and one that ended in between shows there too: it would count twice.
        gone.extend(self.gone_since(&newly_waited, &gone));
        let ended: Vec<_> = gone.iter().map(|&pid| (pid, self.heir(pid, &gone))).collect();
        for (pid, heir) in ended {
            let Some(account) = self.processes.remove(&pid) else { continue };
            match heir.and_then(|heir| newly_waited.get_mut(&heir)) {
                // User and system time are each rounded down to ticks, in both readings.
                Some(waited) if *waited + 2 * TICK_NS >= account.life_ns() => {
                    *waited = waited.saturating_sub(account.life_ns());
                    self.take_off(heir, account.life_ns().saturating_sub(account.used_ns()));
                }
                Some(_) => self.doubtful_ns += account.used_ns(),
                None => self.ended_ns += account.used_ns(),
            }
        }
        let gone = gone.into_iter().collect();
        let running: u64 = self.processes.values().map(ProcessAccount::used_ns).sum();
        self.total_ns = self.total_ns.max(running + self.ended_ns + self.doubtful_ns);
        (self.total_ns, gone)
    }

    /// The ancestors of a process, its parent first, up to the first that is not followed.
    fn ancestors(&self, pid: u32) -> impl Iterator<Item = u32> {
        let parent = |pid: &u32| {
            let parent = self.processes.get(pid)?.parent?;
            self.processes.contains_key(&parent).then_some(parent)
        };
        // Process ids are used again, so a circle is possible.
        std::iter::successors(parent(&pid), parent).take(self.processes.len())
    }

    /// The heir of an ended process, whose account of waited-for children has its time: the nearest ancestor that still
    /// runs.
    fn heir(&self, pid: u32, gone: &FxHashSet<u32>) -> Option<u32> {
        let heir = self.ancestors(pid).find(|ancestor| !gone.contains(ancestor))?;
        self.processes.get(&heir)?.until_left_ns.is_none().then_some(heir)
    }

    /// Whether it is time for something that is done every `interval_ns`.
    fn is_time(&mut self, interval_ns: u64) -> bool {
        let now_ns = clock::monotonic_ns();
        let is_time = now_ns >= self.next_look_ns;
        if is_time {
            self.next_look_ns = now_ns + interval_ns;
        }
        is_time
    }

    /// Reads the clock of each process; returns those that are gone.
    fn read_clocks(&mut self) -> Vec<u32> {
        let mut gone = Vec::new();
        for (&pid, account) in &mut self.processes {
            match clock::process_cpu_ns(pid) {
                Some(own_ns) => account.own_ns = own_ns,
                None => gone.push(pid),
            }
        }
        gone
    }

    /// Reads the account of waited-for children of the chosen processes that have any; returns its growth (ns).
    fn read_waited(&mut self, is_asked: impl Fn(u32) -> bool) -> FxHashMap<u32, u64> {
        let mut newly_waited = FxHashMap::default();
        let asked =
            self.processes.iter_mut().filter(|(pid, account)| account.has_children && is_asked(**pid));
        for (&pid, account) in asked {
            let children_ns = procfs::waited_children_cpu_ns(pid).max(account.children_ns);
            newly_waited.insert(pid, children_ns - account.children_ns);
            account.children_ns = children_ns;
        }
        newly_waited
    }

    /// Processes that ended after the clocks were read, and whose time shows in an account that was read later.
    fn gone_since(&self, newly_waited: &FxHashMap<u32, u64>, gone: &FxHashSet<u32>) -> Vec<u32> {
        let waited = |pid: u32| newly_waited.get(&pid).is_some_and(|&ns| ns > 0);
        if !newly_waited.keys().any(|&pid| waited(pid)) {
            return Vec::new();
        }
        let below = |pid: &u32| !gone.contains(pid) && self.ancestors(*pid).any(waited);
        let ended = |pid: &u32| clock::process_cpu_ns(*pid).is_none();
        let found: Vec<u32> = self.processes.keys().copied().filter(below).filter(ended).collect();
        let all: FxHashSet<u32> = gone.iter().chain(&found).copied().collect();
        // The rest is found at the next reading, together with the account that has their time.
        found.into_iter().filter(|&pid| self.heir(pid, &all).is_some_and(waited)).collect()
    }
}

#[cfg(test)]
mod tests;
