//! What a target does while nothing is sampled, read from `/proc`: it is not stopped, and no event is opened.

use profiler_core::rate::{Activity, Figure};
use profiler_core::unwind::copy::MAX_COPY_BYTES;
use rustc_hash::FxHashSet;

use super::switches::Switches;
use super::target_cpu::TargetCpu;
use crate::sys::procfs::{Child, CodeMapping};
use crate::sys::{clock, procfs};

/// Processes whose mappings are read; the rest is estimated from them.
const PROCESSES_READ: usize = 16;
/// Threads of a process whose stacks are read.
const STACKS_READ: usize = 16;

/// Counts what happens between its beginning and its end. Of tasks that begin and end between two looks, only the machine's
/// number is known.
pub(crate) struct Watch {
    cpu: TargetCpu,
    switches: Switches,
    /// The target's processes, parents first.
    processes: Vec<u32>,
    threads: FxHashSet<u32>,
    code: FxHashSet<CodeMapping>,
    /// Bytes of stack in use, summed over this many stacks.
    stacks: (f64, u32),
    began: Began,
    watched: Activity,
}

/// Clocks (ns) and the count of all tasks at the beginning.
struct Began {
    at_ns: u64,
    machine_ns: u64,
    own_ns: u64,
    forks: u64,
}

impl Watch {
    /// Begins to watch these processes and all that they created.
    pub(crate) fn begin(pids: &[u32]) -> Self {
        Self::begin_with(pids, &procfs::descendants(pids))
    }

    /// [`Self::begin`] without known relatives: scans all processes of the host to find them.
    pub(crate) fn begin_alone(pids: &[u32]) -> Self {
        Self::begin_with(pids, &[])
    }

    fn begin_with(pids: &[u32], children: &[Child]) -> Self {
        let mut cpu = TargetCpu::default();
        pids.iter().for_each(|&pid| cpu.adopt(pid));
        children.iter().for_each(|child| cpu.adopt_child(child.pid, child.parent));
        let mut watch = Self {
            cpu,
            switches: Switches::default(),
            processes: pids.iter().copied().chain(children.iter().map(|child| child.pid)).collect(),
            threads: FxHashSet::default(),
            code: FxHashSet::default(),
            stacks: (0.0, 0),
            began: Began {
                at_ns: clock::monotonic_ns(),
                machine_ns: procfs::machine_busy_ns(),
                own_ns: clock::self_cpu_ns(),
                forks: procfs::machine_forks(),
            },
            watched: Activity::default(),
        };
        watch.look_at_known();
        let threads: Vec<u32> = watch.threads.iter().copied().collect();
        let past_switches_per_s = procfs::past_switches_per_s(&threads);
        // What existed before does not count as new.
        watch.watched = Activity { past_switches_per_s, ..Activity::default() };
        watch.stacks = (0.0, 0);
        watch
    }

    /// Counts what has happened since the last look.
    pub(crate) fn look(&mut self) {
        for child in procfs::descendants(&self.processes) {
            self.cpu.forked(child.pid, child.parent);
            self.processes.push(child.pid);
        }
        self.look_at_known();
    }

    fn look_at_known(&mut self) {
        let mut threads = Vec::new();
        self.processes.retain(|&pid| {
            let of_process = procfs::threads(pid);
            threads.extend_from_slice(&of_process);
            !of_process.is_empty()
        });
        self.watched.switches += self.switches.since_last_look(&threads);
        let now: FxHashSet<u32> = threads.into_iter().collect();
        self.watched.forks += now.difference(&self.threads).count() as u64;
        self.watched.ends += self.threads.difference(&now).count() as u64;
        self.threads = now;
        self.look_at_memory();
        self.watched.target_cpu_ns = self.cpu.read().0;
    }

    fn look_at_memory(&mut self) {
        let read: Vec<procfs::ProcessMemory> = self
            .processes
            .iter()
            .take(PROCESSES_READ)
            .filter_map(|&pid| procfs::memory(pid, STACKS_READ))
            .collect();
        // By place, not by process: a child without an `execve` has its parent's mappings, without records.
        let new = read.iter().flat_map(|memory| &memory.code).filter(|code| self.code.insert(**code)).count();
        self.watched.side_records += (new * self.processes.len() / read.len().max(1)) as u64;
        for bytes in read.iter().flat_map(|memory| &memory.stacks) {
            self.stacks.0 += (*bytes).min(u64::from(MAX_COPY_BYTES)) as f64;
            self.stacks.1 += 1;
        }
    }

    /// The target's processes at the last look.
    pub(crate) fn processes(&self) -> &[u32] {
        &self.processes
    }

    /// Threads at the last look.
    pub(crate) fn threads(&self) -> usize {
        self.threads.len()
    }

    /// Takes a last look; returns what was counted since the beginning.
    pub(crate) fn end(&mut self) -> Activity {
        self.look();
        let busy_ns = procfs::machine_busy_ns().saturating_sub(self.began.machine_ns);
        let own_ns = clock::self_cpu_ns().saturating_sub(self.began.own_ns);
        Activity {
            wall_ns: clock::monotonic_ns().saturating_sub(self.began.at_ns),
            foreign_cpu_ns: busy_ns.saturating_sub(own_ns).saturating_sub(self.watched.target_cpu_ns),
            stack_bytes: self.stack_bytes(),
            unseen_forks: self.unseen_forks(),
            ..self.watched
        }
    }

    /// Tasks that came and went between two looks: perhaps the target's, where it creates any.
    fn unseen_forks(&self) -> u64 {
        let seen = self.watched.forks;
        let all = procfs::machine_forks().saturating_sub(self.began.forks);
        if seen > 0 { all.saturating_sub(seen) } else { 0 }
    }

    /// Mean stack size. A stack is only visible while its thread waits, and may have another depth while it computes:
    /// hence its large error.
    fn stack_bytes(&self) -> Option<Figure> {
        let (sum, count) = self.stacks;
        let mean = sum / f64::from(count);
        (count > 0).then_some(Figure::new(mean, mean))
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    fn shell(script: &str) -> Child {
        Command::new("sh").args(["-c", script]).spawn().unwrap()
    }

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn cpu_time_counts_from_the_beginning() {
        let busy = shell("while :; do :; done");
        let used_ns = || clock::process_cpu_ns(busy.id()).unwrap_or(0);
        while used_ns() < 30_000_000 {
            std::thread::yield_now();
        }
        let before_ns = used_ns();
        let mut watch = Watch::begin(&[busy.id()]);
        while !watch.end().was_seen() {
            std::thread::yield_now();
        }
        let watched = watch.end();
        let most_ns = used_ns() - before_ns;
        end(busy);
        assert!(watched.target_cpu_ns <= most_ns, "{watched:?} of {most_ns}");
        assert_eq!((watched.forks, watched.unseen_forks), (0, 0));
    }

    #[test]
    fn switches_and_children_are_counted() {
        let forking = shell("while :; do sleep 0.02; done");
        let mut watch = Watch::begin(&[forking.id()]);
        assert_eq!((watch.watched.forks, watch.watched.ends, watch.watched.switches), (0, 0, 0));
        while watch.watched.forks < 2 || watch.watched.ends < 2 || watch.watched.switches < 2 {
            watch.look();
        }
        end(forking);
        // Those that have ended are not kept.
        assert!(watch.processes().len() < 4 && watch.threads() >= 1, "{:?}", watch.processes());
    }

    #[test]
    fn a_sleeper_shows_its_stack_and_nothing_else() {
        let mut sleeper = Command::new("sleep").arg("60").spawn().unwrap();
        let stat = format!("/proc/{}/stat", sleeper.id());
        // Not before: while it starts, it maps code, and waits for the disk.
        while !std::fs::read_to_string(&stat).unwrap().contains("(sleep) S ") {
            std::thread::yield_now();
        }
        let watched = Watch::begin(&[sleeper.id()]).end();
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        assert_eq!((watched.side_records, watched.forks, watched.ends), (0, 0, 0));
        let stack = watched.stack_bytes.unwrap();
        assert!((100.0..=f64::from(MAX_COPY_BYTES)).contains(&stack.mean), "{stack:?}");
    }

    #[test]
    fn a_process_that_is_gone_shows_nothing() {
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let mut watch = Watch::begin(&[child.id(), u32::MAX]);
        let watched = watch.end();
        assert!(!watched.was_seen() && watch.threads() == 0, "{watched:?}");
        assert_eq!((watched.switches, watched.side_records, watched.stack_bytes), (0, 0, None));
    }
}
