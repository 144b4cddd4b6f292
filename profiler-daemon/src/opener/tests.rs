use std::sync::mpsc::{Sender, channel};

use super::*;

fn device(minor: u32) -> Mount {
    Mount::Device { major: 0, minor }
}

/// Work that does not end before the sender is dropped or sends.
fn hanging() -> (Sender<()>, impl FnOnce() -> &'static str + Send + 'static) {
    let (sender, released) = channel();
    (sender, move || {
        let _ = released.recv();
        "late"
    })
}

#[test]
fn what_answers_is_waited_for() {
    const CALLS: u64 = 200;
    let (opener, mut late) = (Opener::default(), 0);
    for number in 0..CALLS {
        let answer = opener.call(&device(1), Wait::Naming, move || number);
        // On a machine that is overloaded, a thread may not run in time.
        let answer = answer.unwrap_or_else(|later| {
            late += 1;
            later.recv().unwrap()
        });
        assert_eq!(answer, number);
    }
    assert!(late < CALLS, "no answer was waited for");
    while opener.late_answers() < late {
        thread::yield_now();
    }
    assert_eq!(opener.late_answers(), late);
    let state = opener.shared.lock();
    assert!(state.threads == 1 && state.mounts.values().all(|queue| queue.queued.is_empty()));
}

#[test]
fn a_mount_that_hangs_is_not_waited_for_again_and_others_answer() {
    let opener = Opener::default();
    let (release, work) = hanging();
    let first = opener.call(&device(1), Wait::Sampling, work).unwrap_err();
    assert!(opener.is_stalled(&device(1)) && !opener.is_stalled(&device(2)));
    let left_ns = opener.shared.lock().allowance.left_ns;
    let second = opener.call(&device(1), Wait::Sampling, || "second").unwrap_err();
    let third = opener.call(&device(1), Wait::Naming, || "third").unwrap_err();
    assert!(opener.shared.lock().allowance.left_ns >= left_ns, "neither was waited for");
    assert!(first.try_recv().is_err() && second.try_recv().is_err());
    assert_eq!(opener.call(&device(2), Wait::Naming, || "other").unwrap(), "other");
    assert_eq!(opener.shared.lock().threads, 2, "one for each mount");
    drop(release);
    assert_eq!([first, second, third].map(|answer| answer.recv().unwrap()), ["late", "second", "third"]);
    while opener.late_answers() < 3 {
        thread::yield_now();
    }
    assert_eq!(opener.call(&device(1), Wait::Naming, || "again").unwrap(), "again");
}

#[test]
fn one_target_takes_a_bounded_number_of_threads_and_leaves_others_theirs() {
    let opener = Opener::default();
    let hung: Vec<_> = (0..MOST_STALLED as u32)
        .map(|minor| {
            let (release, work) = hanging();
            (release, opener.call(&device(minor), Wait::Sampling, work).unwrap_err())
        })
        .collect();
    let more = MOST_STALLED as u32;
    let refused = opener.call(&device(more), Wait::Sampling, || "refused").unwrap_err();
    assert!(refused.recv().is_err(), "it will not be done");
    let other = opener.for_another();
    assert_eq!(other.call(&device(more), Wait::Naming, || "other target").unwrap(), "other target");
    let stalled = other.call(&device(0), Wait::Sampling, || "the mount hangs for all").unwrap_err();
    assert!(opener.shared.lock().threads <= MOST_STALLED + 1);
    for (release, answer) in hung {
        drop(release);
        answer.recv().unwrap();
    }
    assert!(stalled.recv().is_ok());
}

#[test]
fn what_is_queued_for_one_mount_is_bounded() {
    let opener = Opener::default();
    let (release, work) = hanging();
    let first = opener.call(&device(1), Wait::Sampling, work).unwrap_err();
    let queued: Vec<_> =
        (0..MOST_QUEUED + 10).map(|_| opener.call(&device(1), Wait::Sampling, || ()).unwrap_err()).collect();
    drop(release);
    first.recv().unwrap();
    assert_eq!(queued.iter().filter(|answer| answer.recv().is_ok()).count(), MOST_QUEUED);
}

#[test]
fn what_may_be_waited_is_a_part_of_the_time() {
    let mut allowance = Allowance { left_ns: BEFORE_SAMPLING_NS, at_ns: 0 };
    assert_eq!(allowance.left(0), LONGEST_WAIT_NS, "no answer is waited for longer");
    allowance.spend(BEFORE_SAMPLING_NS + USUAL_NS);
    assert_eq!(allowance.left(0), 0);
    let (mut waited_ns, second_ns) = (0, 1_000_000_000);
    for round in 1..=1_000u64 {
        let wait_ns = allowance.left(round * second_ns / 100);
        waited_ns += wait_ns;
        allowance.spend(wait_ns + USUAL_NS);
    }
    assert!(waited_ns <= LONGEST_WAIT_NS + 10 * second_ns / PARTS, "{waited_ns}");
    assert_eq!(allowance.left(u64::MAX), LONGEST_WAIT_NS);
}
