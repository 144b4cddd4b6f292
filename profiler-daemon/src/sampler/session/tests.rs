//! What records and readings make of a session.

use agent_memory::REGISTERS;
use profiler_core::machine::Machine;
use profiler_core::profile::Outcome;
use profiler_core::record::{RawData, StackCopy};
use profiler_core::unwind::method::Method;

use super::stacks::is_all_kernel;
use super::*;

/// No process has such numbers.
const FOUND: u32 = 5_000_011;
const STRANGER: u32 = 5_000_012;
const OURS: u32 = 5_000_013;

fn session() -> Session {
    Session::new(MethodChoice::fixed(Method::Fp), &Symbols::new(1 << 20))
}

fn fork(session: &mut Session, pid: u32, parent_pid: u32, time_ns: u64) {
    session.handle(Drained::Record(Record::Fork(Task { pid, parent_pid, tid: pid, time_ns }), 0));
}

/// Where whole CPUs are sampled, non-target children are told of too.
#[test]
fn a_process_that_was_found_before_its_birth_was_read_stays_and_is_charged_to_who_created_it() {
    let mut session = session();
    session.processes.adopt_at(FOUND, "found", 1_000);
    fork(&mut session, FOUND, STRANGER, 900);
    assert!(session.processes.contains(FOUND));
    assert_eq!((session.counts.side_records.forks, session.counts.side_records.foreign), (0, 1));
    session.processes.adopt(OURS, "ours");
    fork(&mut session, FOUND, OURS, 950);
    assert_eq!(
        (session.counts.side_records.forks, session.processes.get(FOUND).unwrap().parent),
        (1, Some(OURS))
    );
    fork(&mut session, FOUND, STRANGER, 1_100);
    assert!(!session.processes.contains(FOUND), "a stranger has its number");
}

#[test]
fn of_one_target_among_many_the_beginning_is_overhead_too_and_is_spent_once() {
    const BEFORE_NS: u64 = 5_000_000_000;
    let mut one_of_many = session();
    one_of_many.own_time = OwnTime::of_turns(BEFORE_NS);
    one_of_many.begin();
    let first = one_of_many.reading(0);
    assert!(first.self_cpu_ns >= BEFORE_NS && first.self_once_ns >= BEFORE_NS, "{first:?}");
    assert!(one_of_many.self_cpu_ns() >= BEFORE_NS && one_of_many.setup_cpu_ns() == 0);
    let second = one_of_many.reading(0);
    assert!(second.self_cpu_ns < BEFORE_NS && second.self_once_ns < BEFORE_NS, "{second:?}");
    // What adoptions took of it counts like the rest.
    let mut adopting = session();
    adopting.own_time = OwnTime::of_turns(BEFORE_NS);
    adopting.readings.once_ns = BEFORE_NS / 2;
    adopting.begin();
    assert!(adopting.reading(0).self_once_ns >= BEFORE_NS);
    let mut alone = session();
    alone.begin();
    assert!(alone.setup_cpu_ns() > 0 && alone.reading(0).self_once_ns == 0);
}

/// A look may find a child, and that it is a target itself, before the record of its birth is read.
#[test]
fn a_child_that_is_another_target_is_not_followed_whenever_that_is_known() {
    let mut session = session();
    session.processes.adopt(OURS, "ours");
    session.exclude_one(FOUND);
    fork(&mut session, FOUND, OURS, 900);
    assert!(!session.processes.contains(FOUND));
    assert_eq!((session.counts.side_records.forks, session.counts.side_records.foreign), (0, 1));
    session.include(FOUND); // which has ended; the next of its number may be ours
    fork(&mut session, FOUND, OURS, 950);
    assert!(session.processes.contains(FOUND));
    session.exclude_one(FOUND);
    assert!(!session.processes.contains(FOUND));
}

/// A sample in user code.
fn sample(session: &mut Session, pid: u32) {
    sample_with(session, pid, &[]);
}

fn sample_with(session: &mut Session, pid: u32, stack: &[u8]) {
    let stack = StackCopy::new(RawData::Single(stack), stack.len());
    let regs = Machine::HOST.noted_regs(&[0; REGISTERS]);
    let sample = RawSample::of_thread(session.start_ns() + 1, (pid, pid), regs, stack);
    session.handle(Drained::Record(Record::Sample(sample), 1_000));
}

/// Between `fork` and `execve` a child runs the profiler's own code.
#[test]
fn a_child_that_has_yet_to_execute_its_program_is_not_sampled_in_our_code() {
    let mut session = session();
    session.await_exec(OURS, "ours");
    session.begin();
    sample(&mut session, OURS);
    assert_eq!((session.counts.samples, session.counts.foreign), (0, 1));
    let executed = Record::Comm { pid: OURS, tid: OURS, name: "ours".to_owned(), exec: true };
    session.handle(Drained::Record(executed, 0));
    sample(&mut session, OURS);
    assert_eq!((session.counts.samples, session.counts.foreign), (1, 1));
}

/// Events of whole CPUs copy the stacks of others, too: what those cost is told by the number of their samples.
#[test]
fn copies_of_others_stacks_are_not_the_targets() {
    let mut session = session();
    session.processes.adopt(OURS, "ours");
    session.begin();
    sample_with(&mut session, OURS, &[0; 16]);
    (0..10).for_each(|_| sample_with(&mut session, STRANGER, &[0; 4096]));
    let reading = session.reading(0);
    assert_eq!((reading.samples, reading.foreign_samples, reading.stack_bytes), (1, 10, 16));
}

#[test]
fn what_has_no_user_stack_lacks_none_where_the_kernels_frames_are_seen() {
    let gone = Outcome::NoUserStack;
    assert!(is_all_kernel(gone, &[1], &[]));
    assert!(!is_all_kernel(gone, &[], &[]), "the kernel's may not be seen");
    assert!(!is_all_kernel(gone, &[1], &[2]), "a frame of the program is known, its callers are not");
    assert!(!is_all_kernel(Outcome::StackAbsent, &[1], &[]));
}

#[test]
fn counts_that_a_program_made_up_add_up_all_the_same() {
    let mut session = session();
    for _ in 0..3 {
        session.handle(Drained::LostReports(u64::MAX));
        session.handle(Drained::Owed(u64::MAX));
        session.handle(Drained::Record(Record::Lost { count: u64::MAX }, 0));
    }
    let (counts, lost) = (session.counts, session.losses.unjudged);
    assert_eq!([lost, counts.lost_others, counts.side_records.foreign], [3 * MOST_AT_ONCE; 3]);
}
