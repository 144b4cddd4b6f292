use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use profiler_core::process::ProcessTable;
use profiler_core::record::Task;

use super::*;

const SHELLS: Owner = Owner(1);
const PYTHONS: Owner = Owner(2);
const REST: Owner = Owner(3);
/// No processes have such numbers: what their clocks show is not known.
const SHELL: u32 = 5_000_021;
const PYTHON: u32 = 5_000_022;
const CHILD: u32 = 5_000_023;
const MS: u64 = 1_000_000;

/// Owners with their processes, as records and looks tell of them.
struct Host {
    owners: Owners,
    processes: ProcessTable,
}

impl Host {
    fn new(with_rest: bool) -> Self {
        let mut owners = Owners::default();
        owners.enter(SHELLS, None, false, 0);
        owners.enter(PYTHONS, None, false, 0);
        if with_rest {
            owners.enter(REST, None, true, 0);
        }
        let mut host = Self { owners, processes: ProcessTable::default() };
        host.processes.adopt(SHELL, "sh");
        host.owners.assign(SHELL, Some(SHELLS));
        host
    }

    fn fork(&mut self, pid: u32, parent_pid: u32) {
        self.processes.forked(Task { pid, parent_pid, tid: pid, time_ns: 1 });
        self.owners.forked(pid, parent_pid, clock::monotonic_ns());
    }

    fn exec(&mut self, pid: u32, program: &str) {
        self.processes.renamed(pid, pid, program, true);
        self.owners.executes(pid);
    }

    fn sample(&mut self, pid: u32) -> bool {
        if !self.processes.contains(pid) {
            self.processes.adopt(pid, "met");
        }
        self.owners.met(pid, None);
        let chain = Chain { kernel: &[], user: &[0x1000 + u64::from(pid)], outcome: Outcome::Complete };
        let sampled = Sampled {
            pid,
            weight_ns: 10 * MS,
            done_ns: 9 * MS,
            frames: 1,
            stack_bytes: 64,
            is_completed: false,
        };
        self.owners.add(self.processes.get(pid).unwrap(), chain, sampled).is_some()
    }

    fn look(&mut self, found: &[(u32, Owner)]) -> Vec<u32> {
        self.owners.scan_begins(clock::monotonic_ns());
        found.iter().for_each(|(pid, owner)| self.owners.assign(*pid, Some(*owner)));
        self.owners.scan_ended(|_| false).live
    }

    /// Samples and CPU time (ms) of each.
    fn of(&self, owner: Owner) -> (u64, f64) {
        let (_, share) = self.owners.shares().find(|(of, _)| *of == owner).unwrap();
        (share.counts.samples, share.cpu_ns / MS as f64)
    }
}

/// The group of a service is removed and made anew when the service is restarted; its account begins at zero then.
#[test]
fn the_cpu_time_of_a_group_goes_on_when_its_service_is_restarted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("web.service");
    let uses = |seconds: u64| {
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("cpu.stat"), format!("usage_usec {}\n", seconds * 1_000_000)).unwrap();
    };
    uses(36_000);
    let mut owners = Owners::default();
    owners.enter(PYTHONS, Some(Cgroup::made_up(path.clone())), false, 0);
    let read_ms = |owners: &mut Owners| {
        owners.read_clocks(true);
        (owners.share(PYTHONS).unwrap().cpu_ns * 1e-6).round() as u64
    };
    uses(36_005);
    assert_eq!(read_ms(&mut owners), 5_000);
    std::fs::remove_dir_all(&path).unwrap();
    assert_eq!(read_ms(&mut owners), 5_000, "what is gone has used no more");
    uses(1);
    assert_eq!(read_ms(&mut owners), 6_000, "no scan came between");
    uses(2);
    assert_eq!(read_ms(&mut owners), 7_000);
    // A scan that sees the target without its group, and then with it.
    owners.enter(PYTHONS, None, false, 0);
    std::fs::remove_dir_all(&path).unwrap();
    uses(1);
    owners.enter(PYTHONS, Some(Cgroup::made_up(path.clone())), false, 0);
    assert_eq!(read_ms(&mut owners), 8_000);
    // One that was empty for a scan goes on.
    owners.enter(PYTHONS, None, false, 0);
    uses(4);
    owners.enter(PYTHONS, Some(Cgroup::made_up(path.clone())), false, 0);
    assert_eq!(read_ms(&mut owners), 11_000);
    // What was counted while another target had its process does not count.
    std::fs::write(path.join("cgroup.procs"), "1\n").unwrap();
    owners.enter(PYTHONS, None, false, 0);
    uses(64);
    owners.enter(PYTHONS, Some(Cgroup::made_up(path.clone())), false, 0);
    assert_eq!(read_ms(&mut owners), 11_000);
    std::fs::write(path.join("cgroup.procs"), "").unwrap();
    // What was counted by processes meanwhile does not count again.
    owners.enter(PYTHONS, None, false, 0);
    owners.share_mut(PYTHONS).unwrap().cpu_ns += 1e9;
    uses(65);
    owners.enter(PYTHONS, Some(Cgroup::made_up(path.clone())), false, 0);
    assert_eq!(read_ms(&mut owners), 12_000);
    uses(66);
    assert_eq!(read_ms(&mut owners), 13_000);
    // Samples of the last moments before a restart stay counted.
    owners.share_mut(PYTHONS).unwrap().cpu_ns += 2e9;
    std::fs::remove_dir_all(&path).unwrap();
    uses(1);
    assert_eq!(read_ms(&mut owners), 15_000);
    uses(2);
    assert_eq!(read_ms(&mut owners), 16_000);
}

/// A shell that starts another program used none of this one's time, and no time counts twice.
#[test]
fn a_program_that_a_shell_runs_is_its_own_from_its_first_sample() {
    let mut host = Host::new(false);
    host.sample(SHELL);
    host.fork(PYTHON, SHELL);
    host.sample(PYTHON); // still the shell
    host.exec(PYTHON, "python3");
    (0..5).for_each(|_| assert!(host.sample(PYTHON)));
    assert_eq!((host.of(SHELLS), host.of(PYTHONS)), ((2, 20.0), (0, 0.0)), "nobody knows yet");
    assert!(host.look(&[(PYTHON, PYTHONS)]).is_empty());
    assert_eq!((host.of(SHELLS), host.of(PYTHONS)), ((2, 20.0), (5, 50.0)));
    host.fork(CHILD, PYTHON);
    host.sample(CHILD);
    assert_eq!((host.of(SHELLS), host.of(PYTHONS)), ((2, 20.0), (6, 60.0)));
}

#[test]
fn who_ends_before_anybody_looks_is_his_namesakes_or_his_parents() {
    let mut host = Host::new(false);
    host.fork(PYTHON, SHELL);
    host.exec(PYTHON, "python3");
    host.sample(PYTHON);
    host.owners.ended(PYTHON, Some("python3"));
    assert_eq!((host.of(SHELLS), host.of(PYTHONS)), ((1, 10.0), (0, 0.0)), "nobody has seen one");
    host.owners.note_program("python3".to_owned(), Some(PYTHONS));
    host.fork(PYTHON, SHELL);
    host.exec(PYTHON, "python3");
    host.sample(PYTHON);
    host.owners.ended(PYTHON, Some("python3"));
    assert_eq!((host.of(SHELLS), host.of(PYTHONS)), ((1, 10.0), (1, 10.0)));
    host.owners.note_program("python3".to_owned(), Some(SHELLS)); // two have such
    host.fork(PYTHON, SHELL);
    host.exec(PYTHON, "python3");
    host.sample(PYTHON);
    host.owners.ended(PYTHON, Some("python3"));
    assert_eq!((host.of(SHELLS), host.of(PYTHONS)), ((2, 20.0), (1, 10.0)));
}

#[test]
fn an_unassigned_process_belongs_to_the_rest_or_is_not_counted() {
    let mut host = Host::new(true);
    assert!(host.sample(CHILD), "it may be anybody's");
    assert!(host.look(&[]).is_empty());
    assert_eq!(host.of(REST), (1, 10.0));
    let mut host = Host::new(false);
    assert!(host.sample(CHILD));
    assert_eq!(host.look(&[]), [CHILD]);
    assert!(!host.sample(CHILD) && host.owners.is_unassigned(CHILD));
    host.fork(PYTHON, CHILD);
    assert!(host.owners.is_unassigned(PYTHON), "as its parent is");
    host.exec(PYTHON, "python3");
    assert!(host.sample(PYTHON), "and anybody's again");
    host.look(&[(PYTHON, PYTHONS)]);
    assert_eq!(host.of(PYTHONS), (1, 10.0));
}

/// Its end may be told after the look, which came too late for it.
#[test]
fn a_process_that_is_gone_when_a_look_comes_to_it_is_its_parents_and_not_the_rests() {
    let mut host = Host::new(true);
    host.fork(CHILD, SHELL);
    host.exec(CHILD, "briefly");
    host.sample(CHILD);
    host.owners.scan_begins(clock::monotonic_ns());
    let ended = host.owners.scan_ended(|pid| pid == CHILD);
    assert_eq!(ended, Unassigned { live: vec![], ended: vec![CHILD] });
    assert_eq!(host.of(REST), (0, 0.0));
    host.owners.ended(CHILD, Some("briefly"));
    assert_eq!((host.of(SHELLS), host.of(REST)), ((1, 10.0), (0, 0.0)));
}

/// A worker that changes its user and executes nothing is found by its user once.
#[test]
fn a_birth_that_is_read_after_a_scan_undoes_nothing() {
    let mut host = Host::new(false);
    let at_ns = clock::monotonic_ns();
    host.processes.adopt(CHILD, "worker");
    host.owners.assign(CHILD, Some(PYTHONS));
    host.owners.forked(CHILD, SHELL, at_ns);
    assert!(host.sample(CHILD));
    assert_eq!((host.of(SHELLS), host.of(PYTHONS)), ((0, 0.0), (1, 10.0)));
    // The next process with its number.
    host.fork(CHILD, SHELL);
    assert!(host.sample(CHILD));
    assert_eq!((host.of(SHELLS), host.of(PYTHONS)), ((1, 10.0), (1, 10.0)));
    host.owners.scan_begins(clock::monotonic_ns());
    assert!(host.owners.assigned_ns.is_empty(), "earlier births have been read");
    // What it used between its birth and the scan is counted.
    let computing = Stoppable::start();
    let pid = computing.0.id();
    let (born_ns, mut host) = (clock::monotonic_ns(), Host::new(false));
    computing.use_up(10 * MS);
    host.processes.adopt(pid, "worker");
    host.owners.assign(pid, Some(PYTHONS));
    computing.use_up(10 * MS);
    host.owners.read_clocks(true);
    host.owners.forked(pid, SHELL, born_ns);
    host.owners.read_clocks(true);
    let used_ms = computing.used_ns() as f64 / 1e6;
    assert!((host.of(PYTHONS).1 - used_ms).abs() < 1e-6, "{} of {used_ms} ms", host.of(PYTHONS).1);
}

/// Records of forks may be lost, or given up where they cost too much.
#[test]
fn a_process_of_which_no_record_told_is_its_parents_until_a_look_says_otherwise() {
    let mut host = Host::new(true);
    host.owners.met(CHILD, Some(SHELL));
    host.owners.met(PYTHON, Some(CHILD));
    host.sample(CHILD);
    host.sample(PYTHON);
    host.owners.ended(CHILD, Some("briefly"));
    host.owners.ended(PYTHON, Some("briefly"));
    assert_eq!((host.of(SHELLS), host.of(REST)), ((2, 20.0), (0, 0.0)));
    host.owners.met(CHILD, Some(SHELL));
    host.sample(CHILD);
    host.look(&[(CHILD, PYTHONS)]);
    assert_eq!((host.of(SHELLS), host.of(PYTHONS)), ((2, 20.0), (1, 10.0)));
}

/// It has a sampler of its own, which does not know what the process did before; another target would be charged with it.
#[test]
fn what_a_process_did_that_is_sampled_elsewhere_is_no_other_targets() {
    let mut host = Host::new(true);
    host.fork(PYTHON, SHELL);
    host.exec(PYTHON, "python3");
    host.sample(PYTHON);
    host.owners.leave(PYTHON);
    assert!(host.look(&[]).is_empty());
    assert_eq!((host.of(SHELLS), host.of(PYTHONS), host.of(REST)), ((0, 0.0), (0, 0.0), (0, 0.0)));
}

/// A process that begins while a look is on may have been missed by it.
#[test]
fn one_look_later_than_it_came_a_process_is_known() {
    let mut host = Host::new(false);
    host.owners.scan_begins(clock::monotonic_ns());
    host.sample(CHILD);
    assert_eq!(host.owners.scan_ended(|_| false), Unassigned::default());
    assert_eq!(host.look(&[]), [CHILD]);
}

#[test]
fn a_process_that_goes_to_another_takes_nothing_with_it() {
    let mut host = Host::new(true);
    host.sample(SHELL);
    host.look(&[(SHELL, PYTHONS)]);
    host.sample(SHELL);
    assert_eq!((host.of(SHELLS), host.of(PYTHONS)), ((1, 10.0), (1, 10.0)));
    host.owners.end(PYTHONS);
    assert!(host.sample(SHELL), "it waits for the next look");
    host.look(&[]);
    assert_eq!(host.of(REST), (1, 10.0));
    host.owners.end(SHELLS);
    host.owners.end(REST);
    assert!(host.owners.is_empty());
}

/// A process that computes while it is let go on.
struct Stoppable(std::process::Child);

impl Stoppable {
    fn start() -> Self {
        let computing = Self(Self::command().spawn().unwrap());
        computing.stop();
        computing
    }

    fn command() -> std::process::Command {
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "while :; do :; done"]);
        command
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.0.id() as i32)
    }

    fn used_ns(&self) -> u64 {
        clock::process_cpu_ns(self.0.id()).unwrap()
    }

    fn stop(&self) {
        kill(self.pid(), Signal::SIGSTOP).unwrap();
        let is_stopped =
            matches!(waitpid(self.pid(), Some(WaitPidFlag::WUNTRACED)), Ok(WaitStatus::Stopped(..)));
        assert!(is_stopped);
    }

    /// Has it use `ns` at least; returns what it used (ns).
    fn use_up(&self, ns: u64) -> u64 {
        let before_ns = self.used_ns();
        kill(self.pid(), Signal::SIGCONT).unwrap();
        while self.used_ns() < before_ns + ns {
            std::thread::yield_now();
        }
        self.stop();
        self.used_ns() - before_ns
    }
}

impl Drop for Stoppable {
    fn drop(&mut self) {
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

/// Of a process that lives the kernel knows what it used, however few samples it had.
#[test]
fn the_time_of_a_process_that_lives_is_the_kernels() {
    let computing = Stoppable::start();
    let pid = computing.0.id();
    let mut host = Host::new(false);
    host.processes.adopt(pid, "test");
    host.owners.assign(pid, Some(PYTHONS));
    let used_ns = computing.use_up(30 * MS);
    host.sample(pid);
    host.owners.read_clocks(true);
    let found_ms = host.of(PYTHONS).1;
    assert!((found_ms - used_ns as f64 / 1e6).abs() < 1e-6, "{found_ms} of {used_ns} ns");
    let more_ns = computing.use_up(30 * MS);
    host.owners.read_clocks(false); // it was not sampled since, but there are few
    let found_ms = host.of(PYTHONS).1;
    assert!(
        (found_ms - (used_ns + more_ns) as f64 / 1e6).abs() < 1e-6,
        "{found_ms} of {used_ns} + {more_ns} ns"
    );
}

/// A sample before the `execve` stands for a whole period, which may be more than the process uses in its life.
#[test]
fn what_a_process_used_before_and_after_it_executes_is_what_the_kernel_says() {
    let computing = Stoppable::start();
    let pid = computing.0.id();
    let used_ms = computing.use_up(MS) as f64 / 1e6;
    for ends_unseen in [false, true] {
        let mut host = Host::new(false);
        host.fork(pid, SHELL);
        host.sample(pid);
        host.exec(pid, "python3");
        host.sample(pid);
        match ends_unseen {
            true => host.owners.ended(pid, None),
            false => drop(host.look(&[(pid, PYTHONS)])),
        }
        host.owners.read_clocks(true);
        let sum_ms = host.of(SHELLS).1 + host.of(PYTHONS).1;
        assert!(
            (sum_ms - clock::process_cpu_ns(pid).unwrap() as f64 / 1e6).abs() < 1e-6,
            "{sum_ms} of {used_ms} ms"
        );
    }
}

/// The clock of a process tells what it used, as long as it can be read.
#[test]
fn what_only_samples_tell_of_is_known_to_be_unsure() {
    let computing = Stoppable::start();
    let pid = computing.0.id();
    let mut host = Host::new(false);
    let unsure = |host: &Host, owner| host.owners.share(owner).unwrap().unsure;
    let two_samples = WeightedSum { sum: 20e6, squares: 2e14 };
    host.owners.assign(pid, Some(PYTHONS));
    [pid, CHILD, CHILD].into_iter().for_each(|pid| {
        host.owners.met(pid, Some(SHELL));
        host.sample(pid);
    });
    host.owners.ended(pid, None);
    assert_eq!(unsure(&host, PYTHONS), WeightedSum::default(), "its clock was read at its end");
    host.owners.ended(CHILD, None);
    assert_eq!(unsure(&host, SHELLS), two_samples);
    // Whichever target had its samples before it executed another program, the clock tells of both together.
    host.fork(pid, SHELL);
    (0..2).for_each(|_| assert!(host.sample(pid)));
    host.exec(pid, "python3");
    host.look(&[(pid, PYTHONS)]);
    host.owners.read_clocks(true);
    assert_eq!((unsure(&host, SHELLS), unsure(&host, PYTHONS)), (two_samples.plus(two_samples), two_samples));
}

/// It is created by a process of no target, and executes a program: of another process, `rest` would have the time.
#[test]
fn a_process_that_reads_symbols_for_the_profiler_is_charged_to_no_target() {
    let reader = Stoppable(family::start(&mut Stoppable::command()).unwrap());
    reader.stop();
    let pid = reader.0.id();
    for found in [&[][..], &[(pid, PYTHONS)]] {
        let mut host = Host::new(true);
        host.owners.forked(pid, std::process::id(), clock::monotonic_ns());
        host.owners.executes(pid);
        host.look(found);
        reader.use_up(30 * MS);
        host.owners.read_clocks(true);
        host.owners.ended(pid, None);
        assert_eq!((host.of(SHELLS), host.of(PYTHONS), host.of(REST)), ((0, 0.0), (0, 0.0), (0, 0.0)));
    }
    family::end(pid);
}
