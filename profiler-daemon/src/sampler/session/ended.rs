//! Names of processes that ended before they were examined: for most that start and end within a step, there
//! is nothing else.

use rustc_hash::FxHashMap;

/// Names that are kept at a time; more processes than that do not begin between two drains.
const MOST: usize = 4096;
/// The name of a process that never reported one.
const ENDED: &str = "[ended]";

/// The names of processes that no sample has hit.
#[derive(Debug, Default)]
pub(super) struct ProcessNames(FxHashMap<u32, String>);

impl ProcessNames {
    /// Notes a process' name from a record.
    pub(super) fn note(&mut self, pid: u32, name: &str) {
        if self.0.len() >= MOST {
            self.0.clear(); // the ends of most of them were lost
        }
        self.0.insert(pid, name.to_owned());
    }

    /// It has ended, and its samples have been read.
    pub(super) fn forget(&mut self, pid: u32) {
        self.0.remove(&pid);
    }

    /// The name of a process that no longer exists.
    pub(super) fn of(&self, pid: u32) -> String {
        self.0.get(&pid).map_or(ENDED, String::as_str).to_owned()
    }
}

#[cfg(test)]
mod tests {
    use agent_memory::REGISTERS;
    use profiler_core::machine::Machine;
    use profiler_core::record::{RawData, RawSample, Record, StackCopy, Task};
    use profiler_core::unwind::method::{Method, MethodChoice};
    use rustc_hash::FxHashSet;

    use super::super::{Owner, Session};
    use super::*;
    use crate::objects::Symbols;
    use crate::sampler::source::Drained;
    use crate::sys::clock;

    /// No process has such numbers.
    const GONE: u32 = 5_000_001;
    const NAMELESS: u32 = 5_000_002;
    const OTHERS: u32 = 5_000_003;
    const CHILD: u32 = 5_000_004;

    fn everything() -> Session {
        let mut session = Session::new(MethodChoice::fixed(Method::Fp), &Symbols::new(1 << 20));
        session.follow_everything();
        session.begin();
        session
    }

    fn sample(session: &mut Session, pid: u32) {
        let time_ns = session.start_ns() + 1;
        let stack = StackCopy::new(RawData::Single(&[]), 0);
        let sample =
            RawSample::of_thread(time_ns, (pid, pid), Machine::HOST.noted_regs(&[0; REGISTERS]), stack);
        session.handle(Drained::Record(Record::Sample(sample), 1_000));
    }

    fn task(pid: u32, parent_pid: u32) -> Task {
        Task { pid, parent_pid, tid: pid, time_ns: 0 }
    }

    #[test]
    fn samples_of_processes_that_ended_before_anybody_looked_count_under_their_names() {
        let mut session = everything();
        let named = Record::Comm { pid: GONE, tid: GONE, name: "cc1".to_owned(), exec: true };
        session.handle(Drained::Record(named, 0));
        [GONE, GONE, NAMELESS].into_iter().for_each(|pid| sample(&mut session, pid));
        assert_eq!((session.counts.samples, session.counts.foreign), (3, 0));
        let name = |pid| {
            session.processes.infos()[session.processes.get(pid).unwrap().index.0 as usize].comm.clone()
        };
        assert_eq!([name(GONE), name(NAMELESS)], ["cc1", ENDED]);
        // They are known until their last samples have come.
        session.reading(0);
        session.reading(0);
        assert!(session.processes.live().next().is_none());
        sample(&mut session, std::process::id());
        assert_eq!((session.counts.samples, session.counts.foreign), (3, 1), "we are nobody's target");
    }

    #[test]
    fn what_others_create_is_theirs_before_anybody_finds_it() {
        let mut session = everything();
        session.exclude(&FxHashSet::from_iter([OTHERS]));
        session.handle(Drained::Record(Record::Fork(task(CHILD, OTHERS)), 0));
        [OTHERS, CHILD].into_iter().for_each(|pid| sample(&mut session, pid));
        assert_eq!((session.counts.samples, session.counts.foreign), (0, 2));
        // The service finds the child only in its next scan.
        session.exclude(&FxHashSet::from_iter([OTHERS]));
        sample(&mut session, CHILD);
        assert_eq!((session.counts.samples, session.counts.foreign), (0, 3));
        // Their target is sampled no more.
        session.births_are_known();
        session.exclude(&FxHashSet::default());
        [OTHERS, CHILD].into_iter().for_each(|pid| sample(&mut session, pid));
        assert_eq!((session.counts.samples, session.counts.foreign), (2, 3));
        session.exclude(&FxHashSet::from_iter([OTHERS]));
        assert!(!session.processes.contains(OTHERS) && session.processes.contains(CHILD));
    }

    /// A scan that finds it in no target of the shared sampler is not a reason to count it for the rest.
    #[test]
    fn what_is_sampled_elsewhere_is_not_of_the_rest() {
        const REST: Owner = Owner(1);
        let mut session = Session::new(MethodChoice::fixed(Method::Fp), &Symbols::new(1 << 20));
        session.follow_owners();
        session.begin();
        session.counted.owners.as_mut().unwrap().enter(REST, None, true, 0);
        let rest_is = |session: &Session, pid| session.counted.owners.as_ref().unwrap().is_known(pid);
        sample(&mut session, CHILD);
        session.exclude(&FxHashSet::from_iter([CHILD]));
        session.assign(CHILD, None, false);
        assert!(!rest_is(&session, CHILD) && !session.processes.contains(CHILD));
        // It waited for the scan that says so.
        session.exclude(&FxHashSet::default());
        session.assign(CHILD, None, false);
        assert!(rest_is(&session, CHILD));
        session.exclude(&FxHashSet::from_iter([CHILD]));
        assert!(!rest_is(&session, CHILD), "it was known by its clock alone");
    }

    const SHELLS: Owner = Owner(1);
    const PYTHONS: Owner = Owner(2);
    const REST: Owner = Owner(3);

    /// A session of many targets, where [`OTHERS`] is a shell that no sample has hit.
    fn shells_pythons_and_rest() -> Session {
        let mut session = Session::new(MethodChoice::fixed(Method::Fp), &Symbols::new(1 << 20));
        session.follow_owners();
        session.begin();
        let owners = session.counted.owners.as_mut().unwrap();
        [SHELLS, PYTHONS].into_iter().for_each(|owner| owners.enter(owner, None, false, 0));
        owners.enter(REST, None, true, 0);
        session.assign(OTHERS, Some(SHELLS), true);
        session
    }

    fn executes(session: &mut Session, pid: u32, program: &str) {
        let record = Record::Comm { pid, tid: pid, name: program.to_owned(), exec: true };
        session.handle(Drained::Record(record, 0));
    }

    fn born_now(pid: u32, parent_pid: u32) -> Drained<'static> {
        Drained::Record(Record::Fork(Task { time_ns: clock::monotonic_ns(), ..task(pid, parent_pid) }), 0)
    }

    fn samples(session: &Session) -> [u64; 3] {
        let owners = session.counted.owners.as_ref().unwrap();
        [SHELLS, PYTHONS, REST].map(|owner| owners.share(owner).unwrap().counts.samples)
    }

    /// Since Linux 6.16 it is sampled after its end was reported.
    #[test]
    fn a_process_sampled_while_it_ends_is_its_parents_under_its_name() {
        let mut session = shells_pythons_and_rest();
        session.handle(born_now(CHILD, OTHERS));
        executes(&mut session, CHILD, "cc1");
        session.handle(Drained::Record(Record::Exit(task(CHILD, OTHERS)), 0));
        sample(&mut session, CHILD);
        let index = session.processes.get(CHILD).unwrap().index;
        assert_eq!(session.processes.infos()[index.0 as usize].comm, "cc1");
        [0, 0].into_iter().for_each(|switches| {
            session.reading(switches);
        });
        assert_eq!(samples(&session), [1, 0, 0]);
        // One that no sample hits is forgotten.
        session.handle(born_now(CHILD, OTHERS));
        executes(&mut session, CHILD, "cc1");
        session.handle(Drained::Record(Record::Exit(task(CHILD, OTHERS)), 0));
        session.reading(0);
        assert!(!session.counted.owners.as_ref().unwrap().is_known(CHILD));
        assert_eq!(session.members.names.of(CHILD), ENDED);
    }

    /// `executable=/opt/web/python3` says nothing of other programs named python3.
    #[test]
    fn a_name_that_the_rest_has_too_says_nothing_of_a_process_that_ended() {
        for (also_of_the_rest, expected) in [(false, [0, 2, 0]), (true, [1, 1, 1])] {
            let mut session = shells_pythons_and_rest();
            for (pid, owner) in [(GONE, Some(PYTHONS)), (NAMELESS, None)] {
                if owner.is_some() || also_of_the_rest {
                    executes(&mut session, pid, "python3");
                    sample(&mut session, pid);
                    session.assign(pid, owner, owner.is_some());
                }
            }
            session.handle(born_now(CHILD, OTHERS));
            executes(&mut session, CHILD, "python3");
            sample(&mut session, CHILD);
            [0, 0].into_iter().for_each(|switches| {
                session.reading(switches);
            });
            assert_eq!(samples(&session), expected);
        }
    }

    /// The same where a scan finds that a process of that name belongs to no target.
    #[test]
    fn a_name_that_a_process_of_no_target_has_too_says_nothing() {
        let mut session = shells_pythons_and_rest();
        session.counted.owners.as_mut().unwrap().end(REST);
        session.assign(OTHERS, Some(SHELLS), true);
        let of_none = std::os::unix::process::parent_id();
        sample(&mut session, of_none);
        let index = session.processes.get(of_none).unwrap().index;
        let name = session.processes.infos()[index.0 as usize].comm.clone();
        executes(&mut session, GONE, &name);
        sample(&mut session, GONE);
        session.assign(GONE, Some(PYTHONS), true);
        session.counted.owners.as_mut().unwrap().scan_begins(clock::monotonic_ns());
        session.scan_ended();
        session.handle(born_now(CHILD, OTHERS));
        executes(&mut session, CHILD, &name);
        sample(&mut session, CHILD);
        (0..2).for_each(|_| {
            session.reading(0);
        });
        let owners = session.counted.owners.as_ref().unwrap();
        assert_eq!([SHELLS, PYTHONS].map(|owner| owners.share(owner).unwrap().counts.samples), [1, 1]);
    }

    /// No scan will say which target it belongs to.
    #[test]
    fn what_waits_for_a_scan_is_handed_over_when_the_session_ends() {
        let mut session = shells_pythons_and_rest();
        session.handle(born_now(CHILD, OTHERS));
        executes(&mut session, CHILD, "cc1");
        sample(&mut session, CHILD);
        let weights = session.finish_shares().into_iter().map(|(owner, of)| (owner, of.weight_ns()));
        let weights: Vec<(Owner, f64)> = weights.filter(|(_, weight_ns)| *weight_ns > 0.0).collect();
        assert_eq!(weights, [(SHELLS, 1_000.0)]);
    }

    #[test]
    fn names_do_not_pile_up() {
        let mut names = ProcessNames::default();
        (0..100_000).for_each(|pid| names.note(pid, "sh"));
        assert!(names.0.len() <= MOST && names.of(99_999) == "sh");
        names.forget(99_999);
        assert_eq!(names.of(99_999), ENDED);
    }
}
