//! The audit of samples at the kernel's tick, on simulated programs.

use profiler_core::audit::Disagreement;
use profiler_core::rate::AUDIT_HZ;
use tests::locked::{locked, run, unlocked};

#[test]
fn a_locked_program_is_found_within_five_seconds_of_its_cpu_time() {
    for program in locked() {
        for seed in 0..20 {
            let outcome = run(&program, AUDIT_HZ, 400.0, seed);
            let Some(finding) = outcome.finding else { panic!("{}, seed {seed}: not found", program.name) };
            let late_s = outcome.since_change_cpu_s;
            assert!(late_s <= 5.0, "{}, seed {seed}: after {late_s:.1} s, {finding:?}", program.name);
        }
    }
}

#[test]
fn of_eight_threads_the_one_at_fault_is_named() {
    let program = locked().into_iter().find(|program| program.threads.len() == 8).unwrap();
    let finding = run(&program, AUDIT_HZ, 400.0, 1).finding.unwrap();
    assert_eq!(finding.what, Disagreement::Thread(7));
}

#[test]
fn an_unlocked_program_is_left_alone_for_an_hour() {
    for program in unlocked() {
        for (seed, clock_hz) in [(1, AUDIT_HZ), (2, 200.0), (3, 1_000.0)] {
            let outcome = run(&program, clock_hz, 1_200.0, seed);
            assert_eq!(outcome.finding, None, "{}, {clock_hz}/s", program.name);
        }
    }
}
