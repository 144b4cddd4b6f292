//! The windows of many targets, which end one after the other.

use super::*;
use crate::sampler::session::owners::Sampled;

/// Targets whose processes are made up.
fn targets(count: u32) -> Session {
    let mut session = Session::new(MethodChoice::fixed(Method::Fp), &Symbols::new(MEMORY));
    session.follow_owners();
    session.times.range_start_ns = clock::monotonic_ns();
    let owners = session.counted.owners.as_mut().unwrap();
    (0..count).for_each(|target| owners.enter(Owner(target), None, false, clock::monotonic_ns()));
    session
}

fn begin(session: &mut Session, pid: u32, target: u32) {
    session.processes.adopt(pid, "made up");
    session.counted.owners.as_mut().unwrap().assign(pid, Some(Owner(target)));
}

fn sample(session: &mut Session, pid: u32) {
    let chain = Chain { kernel: &[], user: &[GENERATED], outcome: Outcome::Complete };
    let sampled = Sampled { pid, weight_ns: 7, done_ns: 7, frames: 1, stack_bytes: 0, is_completed: false };
    let process = session.processes.get(pid).unwrap();
    assert!(session.counted.owners.as_mut().unwrap().add(process, chain, sampled).is_some());
}

/// The processes that were sampled in a window.
fn sampled_in(collected: &Collected) -> Vec<u32> {
    collected.counted.processes().iter().map(|index| collected.processes[index.0 as usize].pid).collect()
}

#[test]
fn samples_of_an_open_window_stay_those_of_their_process() {
    let mut session = targets(2);
    begin(&mut session, 1, 0);
    sample(&mut session, 1);
    session.processes.forget(1);
    for pid in 2..10 {
        begin(&mut session, pid, 1);
        sample(&mut session, pid);
        session.processes.forget(pid);
        let cut = session.cut_shares(&[Owner(1)]);
        assert_eq!(sampled_in(&cut[0].1), [pid]);
    }
    assert_eq!(sampled_in(&session.cut_share(Owner(0)).unwrap()), [1]);
}

#[test]
fn rounds_end_too_where_every_window_is_asked_for() {
    let mut session = targets(2);
    for pid in 1..100 {
        begin(&mut session, pid, pid % 2);
        sample(&mut session, pid);
        session.processes.forget(pid);
        session.cut_share(Owner(0));
        session.cut_share(Owner(1));
    }
    let entries = session.processes.infos().len();
    assert!(entries <= 4, "{entries}");
}

/// A look may find out late which target a process belonged to.
#[test]
fn samples_of_a_process_that_waits_for_a_look_stay_its_own() {
    let mut session = targets(2);
    session.processes.adopt(1, "waits");
    session.counted.owners.as_mut().unwrap().met(1, None);
    sample(&mut session, 1);
    (0..3).for_each(|_| drop(session.cut_all_shares()));
    session.processes.forget(1);
    begin(&mut session, 2, 1);
    session.counted.owners.as_mut().unwrap().assign(1, Some(Owner(0)));
    session.cut_share(Owner(1));
    begin(&mut session, 3, 1);
    assert_eq!(sampled_in(&session.cut_share(Owner(0)).unwrap()), [1]);
}

/// The functions of a target's window.
fn functions(session: &mut Session, target: u32) -> Vec<String> {
    let profile = name(session.cut_share(Owner(target)).unwrap());
    profile.functions.iter().map(|function| function.name.clone()).collect()
}

#[test]
fn generated_code_keeps_its_names_when_many_programs_of_another_target_end() {
    let target = Target::idle();
    write_perf_map(&target, "made");
    let mut session = targets(2);
    for (pid, owner) in [(target.pid(), 0), (NOBODY, 1)] {
        begin(&mut session, pid, owner);
        map_generated(&mut session, pid);
    }
    sample(&mut session, target.pid());
    session.stop_counting(target.pid());
    let children = NOBODY + 1..NOBODY + 101;
    let born = |pid| Drained::Record(Record::Fork(Task { pid, parent_pid: NOBODY, tid: pid, time_ns: 1 }), 0);
    children.clone().for_each(|pid| session.handle(born(pid)));
    children.for_each(|pid| session.stop_counting(pid));
    assert!(session.code.jit.programs() < 100, "there were too many");
    assert_eq!(functions(&mut session, 0), ["made"]);
}

/// The entry of a process that left is given to the next one.
#[test]
fn generated_code_is_not_named_by_the_program_of_a_process_that_left() {
    let (left, next) = (Target::idle(), Target::idle());
    write_perf_map(&left, "old");
    write_perf_map(&next, "new");
    let mut session = targets(1);
    let mut enter = |target: &Target, owner| {
        session.adopt(target.pid()).unwrap();
        map_generated(&mut session, target.pid());
        let index = session.processes.get(target.pid()).unwrap().index;
        session.assign(target.pid(), owner, false);
        index
    };
    assert_eq!(enter(&left, None), enter(&next, Some(Owner(0))));
    sample(&mut session, next.pid());
    assert_eq!(functions(&mut session, 0), ["new"]);
}

#[test]
fn a_child_whose_parent_generates_no_code_has_no_program_of_another_process() {
    let left = Target::idle();
    write_perf_map(&left, "old");
    let mut session = targets(1);
    session.adopt(left.pid()).unwrap();
    map_generated(&mut session, left.pid());
    begin(&mut session, NOBODY, 0);
    session.assign(left.pid(), None, false);
    let child = NOBODY + 1;
    let born = Task { pid: child, parent_pid: NOBODY, tid: child, time_ns: 1 };
    session.handle(Drained::Record(Record::Fork(born), 0));
    assert_eq!((session.processes.contains(child), session.code.jit.programs()), (true, 0));
}
