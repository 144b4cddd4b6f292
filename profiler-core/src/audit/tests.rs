use super::*;

const TICK_NS: u64 = 4_000_000;

/// A second of CPU time of one busy thread: as many ticks and clock samples of each function.
fn second(audit: &mut Audit, ticks: &[(u64, u64)], clock: &[(u64, u64)]) -> Option<Finding> {
    let mut at_ns = 10 * audit.cpu_ns;
    for &(function, count) in ticks {
        for _ in 0..count {
            at_ns += TICK_NS;
            audit.tick(1, Some(function), (0, at_ns));
        }
    }
    for &(function, count) in clock {
        (0..count).for_each(|_| audit.clock(function));
    }
    audit.charge_thread(1, BLOCK_NS);
    audit.charge(BLOCK_NS)
}

fn audit() -> Audit {
    let mut audit = Audit::new(AuditSettings::default());
    audit.charge_thread(1, 0);
    audit
}

/// Seconds until something is found, within a hundred.
fn found(ticks: &[(u64, u64)], clock: &[(u64, u64)]) -> Option<Finding> {
    let mut audit = audit();
    (0..100).find_map(|_| second(&mut audit, ticks, clock))
}

#[test]
fn what_agrees_is_never_found() {
    assert_eq!(found(&[(1, 150), (2, 100)], &[(1, 12), (2, 8)]), None);
    assert_eq!(found(&[(1, 150), (2, 100)], &[(1, 600), (2, 400)]), None, "the clock may be the faster one");
    assert_eq!(found(&[(1, 240)], &[(1, 20)]), None, "a host that steals some percent");
    assert_eq!(found(&[(1, 249), (2, 1)], &[(1, 20)]), None);
}

#[test]
fn ticks_that_do_not_fit_the_time_are_found_at_once() {
    for ticks in [0, 50, 500, 1_000] {
        let finding = found(&[(1, ticks)], &[(1, 20)]).unwrap();
        assert_eq!(finding, Finding { what: Disagreement::Total, at_cpu_s: 1.0 }, "{ticks}");
    }
}

#[test]
fn functions_that_only_one_of_them_hits_are_found_within_seconds() {
    let never = found(&[(1, 250)], &[(1, 8), (2, 12)]).unwrap();
    assert!(matches!(never.what, Disagreement::Function(_)) && never.at_cpu_s <= 2.0, "{never:?}");
    let half = found(&[(1, 125), (2, 125)], &[(1, 5), (2, 5), (3, 10)]).unwrap();
    assert!(half.what == Disagreement::Function(3) && half.at_cpu_s <= 3.0, "{half:?}");
    let dense = found(&[(1, 250)], &[(1, 600), (2, 400)]).unwrap();
    assert!(matches!(dense.what, Disagreement::Function(_)) && dense.at_cpu_s <= 1.0, "{dense:?}");
}

#[test]
fn what_begins_late_is_found_as_soon() {
    let mut audit = audit();
    for _ in 0..3_600 {
        assert_eq!(second(&mut audit, &[(1, 150), (2, 100)], &[(1, 12), (2, 8)]), None);
    }
    let late = (0..5).find_map(|_| second(&mut audit, &[(1, 250)], &[(1, 12), (2, 8)])).unwrap();
    assert!(matches!(late.what, Disagreement::Function(_)), "{late:?}");
    assert!(late.at_cpu_s <= 3_605.0);
    assert_eq!(second(&mut audit, &[(1, 150)], &[(1, 12)]), Some(late), "what was found stays found");
}

#[test]
fn one_thread_of_many_is_found_by_its_own_account() {
    let mut audit = Audit::new(AuditSettings::default());
    (1..=8).for_each(|thread| audit.charge_thread(thread, 0));
    let mut found = None;
    for second in 0..100 {
        // Seven that are busy, and one that uses a fifth of a CPU and is never hit.
        for thread in 1..=7 {
            (0..250).for_each(|i| audit.tick(thread, Some(i % 3), (thread, TICK_NS * (1_000 * second + i))));
            audit.charge_thread(thread, 1_000_000_000);
        }
        audit.charge_thread(8, 200_000_000);
        (0..60).for_each(|i| audit.clock(i % 3));
        found = audit.charge(7_200_000_000).map(|finding| (second, finding.what));
        if found.is_some() {
            break;
        }
    }
    assert_eq!(found, Some((4, Disagreement::Thread(8))), "after one second of its own");
}

/// Beside a thread that is hit as it should be, one that never is.
#[test]
fn a_thread_without_a_share_that_matters_ends_nothing() {
    let found = |permille: u64, seconds: u64| {
        let mut audit = Audit::new(AuditSettings::default());
        (1..=2).for_each(|thread| audit.charge_thread(thread, 0));
        (0..seconds).find_map(|second| {
            (0..250 - permille / 4).for_each(|i| {
                audit.tick(1, Some(1), (0, TICK_NS * (250 * second + i)));
            });
            (0..20).for_each(|_| audit.clock(1));
            audit.charge_thread(1, BLOCK_NS / 1_000 * (1_000 - permille));
            audit.charge_thread(2, BLOCK_NS / 1_000 * permille);
            audit.charge(BLOCK_NS).map(|finding| finding.what)
        })
    };
    assert_eq!(found(1, 20_000), None);
    assert_eq!(found(10, 1_000), None);
    assert_eq!(found(50, 1_000), Some(Disagreement::Thread(2)));
}

/// Everything's CPU time is counted at ticks, by some kernels: too few or too many of them would fit it all the same.
#[test]
fn a_total_that_is_none_is_compared_with_nothing() {
    let mut audit = Audit::new(AuditSettings { has_total: false, ..AuditSettings::default() });
    for _ in 0..100 {
        (0..20).for_each(|_| audit.clock(1));
        assert_eq!(audit.charge(BLOCK_NS), None, "never hit");
    }
    audit.charge_thread(1, 0);
    let found = (0..100).find_map(|_| second(&mut audit, &[(1, 50)], &[(1, 20)])).unwrap();
    assert_eq!(found.what, Disagreement::Thread(1), "threads have accounts of their own");
}

#[test]
fn counts_that_are_known_to_be_short_say_nothing() {
    let mut audit = audit();
    for seconds in 0..100 {
        assert_eq!(second(&mut audit, &[(1, 250)], &[(1, 20)]), None, "{seconds}");
        (0..10).for_each(|i| audit.tick(1, Some(1), (0, 20 * BLOCK_NS * (seconds + 1) + TICK_NS * i)));
        audit.charge_thread(1, BLOCK_NS);
        audit.restart_counts(BLOCK_NS);
    }
    assert!(second(&mut audit, &[(1, 10)], &[(1, 20)]).is_some());
    audit.restart_counts(0); // they are told of a moment later
    assert_eq!(second(&mut audit, &[(1, 250)], &[(1, 20)]), None);
}

#[test]
fn a_thread_that_was_not_announced_or_has_ended_is_compared_with_nothing() {
    let mut audit = Audit::new(AuditSettings { count_tolerance_ratio: 10.0, ..AuditSettings::default() });
    for _ in 0..10 {
        (0..1_000).for_each(|i| audit.tick(7, Some(1), (0, TICK_NS * i)));
        (0..20).for_each(|_| audit.clock(1));
        assert_eq!(audit.charge(BLOCK_NS), None);
    }
    audit.charge_thread(9, 0);
    audit.ended(9);
    assert!(audit.threads.is_empty());
}

#[test]
fn nothing_is_found_without_time_or_samples_and_nothing_overflows() {
    let mut audit = audit();
    assert_eq!(audit.charge(0), None);
    for cpu_ns in [u64::MAX, u64::MAX, 0, 1] {
        audit.tick(1, Some(u64::MAX), (0, cpu_ns));
        audit.clock(0);
        audit.charge_thread(1, cpu_ns);
        audit.charge(cpu_ns);
    }
    let mut idle = Audit::new(AuditSettings { hz: f64::NAN, ..AuditSettings::default() });
    assert_eq!(second(&mut idle, &[(1, 250)], &[]), None);
}

/// Two phases of a program, of half a second each, and a clock that is throttled in the second.
#[test]
fn a_clock_that_changes_its_rate_is_no_lock() {
    let phases = |audit: &mut Audit, second: u64, says: bool| {
        for half in 0..2 {
            (0..125).for_each(|i| audit.tick(1, Some(half), (0, TICK_NS * (250 * second + 125 * half + i))));
            (0..[150, 15][half as usize]).for_each(|_| audit.clock(half));
            audit.charge_thread(1, BLOCK_NS / 2);
            audit.charge(BLOCK_NS / 2);
            if says {
                audit.rate_changed();
            }
        }
        audit.finding().is_some()
    };
    let found = |says| {
        let mut audit = audit();
        (0..100).any(|second| phases(&mut audit, second, says))
    };
    assert!(found(false), "nobody knows why");
    assert!(!found(true));
}

/// Eight threads in step: each tick hits all of them in one function, or none.
#[test]
fn threads_in_step_are_no_lock() {
    let mut rng = fastrand::Rng::with_seed(3);
    let mut audit = Audit::new(AuditSettings::default());
    (0..8).for_each(|thread| audit.charge_thread(thread, 0));
    for second in 0..2_000 {
        for tick in 0..250 {
            let (runs, function) = (rng.f64() < 0.3, rng.u64(0..3));
            if runs {
                (0..8).for_each(|thread| {
                    let at_ns = TICK_NS * (250 * second + tick) + u64::from(thread);
                    audit.tick(thread, Some(function), (thread, at_ns));
                });
            }
        }
        (0..8).for_each(|thread| audit.charge_thread(thread, BLOCK_NS * 3 / 10));
        (0..120).for_each(|_| audit.clock(rng.u64(0..3)));
        assert_eq!(audit.charge(8 * BLOCK_NS * 3 / 10), None, "after {second} s");
    }
}
