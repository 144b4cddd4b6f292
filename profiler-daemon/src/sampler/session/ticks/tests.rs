//! What becomes of samples at the tick, and when.

use profiler_core::record::{RawData, RawSample, Record, StackCopy, UserRegs};
use profiler_core::unwind::method::{Method, MethodChoice};

use super::*;
use crate::objects::Symbols;
use crate::sampler::perf::Drained;

const TICK_NS: u64 = 4_000_000;
const SECOND_NS: u64 = 1_000_000_000;
/// No thread has such a number.
const THREAD: u32 = 5_000_021;

/// A target of one thread, sampled at ticks and 20 times a second by the clock.
fn session() -> Session {
    let mut session = Session::new(MethodChoice::fixed(Method::Fp), &Symbols::new(1 << 20));
    session.processes.adopt(THREAD, "busy");
    (session.start_ns, session.stretch_start_ns) = (0, 0);
    session.begin_ticks(TickSource::example(), SECOND_NS / 20);
    session
}

fn sample(at_ns: u64, ip: u64) -> RawSample<'static> {
    let stack = StackCopy::new(RawData::Single(&[]), 0);
    RawSample::of_thread(at_ns, (THREAD, THREAD), UserRegs::x86_64(ip, 0x1000, 0), stack)
}

/// A second of CPU time with so many ticks, and the clock's samples.
fn second(session: &mut Session, from_s: u64, ticks: u64) {
    for at in 0..ticks {
        session.handle(Drained::Tick(sample(from_s * SECOND_NS + at * TICK_NS, 0x4000), TICK_NS));
    }
    for at in 0..20 {
        let clock = sample(from_s * SECOND_NS + at * SECOND_NS / 20, 0x4000);
        session.handle(Drained::Record(Record::Sample(clock), SECOND_NS / 20));
    }
}

#[test]
fn ticks_that_are_not_worth_it_stay_as_far_as_they_came_and_others_do_not() {
    let mut given_up = session();
    second(&mut given_up, 0, 250);
    assert_eq!(given_up.audit_ticks(SECOND_NS), None);
    given_up.end_ticks();
    second(&mut given_up, 1, 0);
    given_up.handle(Drained::Tick(sample(SECOND_NS, 0x4000), TICK_NS));
    let cut = given_up.cut();
    assert_eq!((cut.ticks, cut.weight_ns().round()), (250, 2e9), "the second one is the clock's alone");

    let mut found = session();
    second(&mut found, 0, 10);
    assert_eq!(found.audit_ticks(SECOND_NS), None, "losses may be told of yet");
    second(&mut found, 1, 250);
    assert_eq!(found.audit_ticks(SECOND_NS).unwrap().what, Disagreement::Total);
    let cut = found.cut();
    assert_eq!((cut.ticks, cut.weight_ns()), (0, 2e9));
}

#[test]
fn at_the_end_a_finding_needs_no_second_look() {
    let mut session = session();
    second(&mut session, 0, 10);
    assert_eq!(session.audit_ticks(SECOND_NS), None);
    assert!(session.take_finding().is_some() && session.ticks.is_none());
    assert_eq!(session.cut().ticks, 0);
}

/// A profiler that was stopped for a while: its rings are full, and the CPU time goes on.
#[test]
fn ticks_that_were_lost_are_no_lock() {
    let lost = |session: &mut Session| session.handle(Drained::Record(Record::Lost { count: 240 }, 0));
    let mut session = session();
    for from_s in 0..10 {
        second(&mut session, 4 * from_s, 250);
        assert_eq!(session.audit_ticks(SECOND_NS), None);
        // Told of with what is left, or a moment later.
        second(&mut session, 4 * from_s + 1, 10);
        lost(&mut session);
        assert_eq!(session.audit_ticks(SECOND_NS), None);
        second(&mut session, 4 * from_s + 2, 10);
        assert_eq!(session.audit_ticks(SECOND_NS), None);
        lost(&mut session);
        assert_eq!(session.audit_ticks(SECOND_NS / 10), None);
        session.judge_lost(0);
    }
    assert!(session.cut().ticks > 0);
}

#[test]
fn of_many_threads_those_that_are_followed_stay() {
    let samples: FxHashMap<u32, f64> = (0..100).map(|thread| (thread, 5.0)).collect();
    let first = most_sampled(&samples, &FxHashMap::default());
    assert_eq!(first.len(), MOST_THREADS);
    let followed: FxHashMap<u32, u64> = first.iter().map(|thread| (*thread, 0)).collect();
    // Those that are not have a little more now.
    let samples = samples
        .into_iter()
        .map(|(thread, of)| (thread, if followed.contains_key(&thread) { of } else { of + 1.0 }));
    let mut samples: FxHashMap<u32, f64> = samples.collect();
    let again: FxHashMap<u32, u64> =
        most_sampled(&samples, &followed).into_iter().map(|thread| (thread, 0)).collect();
    assert_eq!(again, followed);
    (1_000..1_128).for_each(|thread| _ = samples.insert(thread, 50.0));
    assert!(most_sampled(&samples, &followed).iter().all(|thread| *thread >= 1_000), "others are busy now");
}

/// A twentieth of a CPU is a sample of the clock in a second; it is there all the time.
#[test]
fn threads_that_are_seldom_sampled_are_not_forgotten_in_between() {
    let mut ticks = Ticks::new(TickSource::example(), SECOND_NS / 20, true);
    let own = nix::unistd::gettid().as_raw() as u32;
    ticks.sampled(own, None, None);
    for _ in 0..50 {
        ticks.charge_threads();
        assert!(ticks.threads.contains_key(&own) && !ticks.threads_unread);
    }
    (0..100).for_each(|_| ticks.charge_threads());
    assert!(ticks.threads.is_empty() && ticks.samples.is_empty());
}

/// `/proc/stat` is counted at ticks itself.
#[test]
fn the_machine_s_time_is_no_witness_against_ticks() {
    let mut session = Session::new(MethodChoice::fixed(Method::Fp), &Symbols::new(1 << 20));
    session.follow_everything();
    session.begin_ticks(TickSource::example(), SECOND_NS / 20);
    assert!((0..10).all(|_| session.audit_ticks(SECOND_NS).is_none()));
}
