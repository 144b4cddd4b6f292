//! The audit of samples at the kernel's tick, on simulated programs.

use profiler_core::audit::Disagreement;
use profiler_core::rate::AUDIT_HZ;
use profiler_core::stats::Confidence;
use tests::locked::{Rates, hardly_locked, locked, run, run_whole, unlocked};

#[test]
fn a_locked_program_is_found_within_five_seconds_of_its_cpu_time() {
    for program in locked() {
        for seed in 0..20 {
            // Fewer ticks are taken where hours of CPU time are to be sampled.
            let (every, within_s) = [(1.0, 5.0), (3.0, 10.0)][seed as usize % 2];
            let outcome = run(&program, Rates { clock_hz: AUDIT_HZ, every }, 400.0, seed);
            let Some(finding) = outcome.finding else { panic!("{}, seed {seed}: not found", program.name) };
            let late_s = outcome.late_s();
            assert!(late_s <= within_s, "{}, seed {seed}: after {late_s:.1} s, {finding:?}", program.name);
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

/// Whatever the audit lets pass, the intervals are the clock's: of a hundred runs, ninety-five are to hold on average.
#[test]
fn intervals_hold_the_truth_whether_ticks_are_believed_or_not() {
    let (mut believed, mut all, mut hold) = (0, 0, 0);
    for program in locked().into_iter().chain(hardly_locked()).chain(unlocked()) {
        let outcomes: Vec<(bool, bool)> = (0..100)
            .map(|seed| run_whole(&program, AUDIT_HZ, 30.0, seed).covers(Confidence::default()))
            .collect();
        let holds = outcomes.iter().filter(|(holds, _)| *holds).count();
        // By chance, fewer than 91 of a hundred hold once in a hundred programs; more programs than that are not meant to be.
        assert!(holds >= 91, "{}: {holds}", program.name);
        (all, hold) = (all + outcomes.len(), hold + holds);
        believed += outcomes.iter().filter(|(_, has_ticks)| *has_ticks).count();
    }
    // Of all together no fewer than 95%, but for two deviations.
    let least = 0.95 * all as f64 - 2.0 * (0.95 * 0.05 * all as f64).sqrt();
    assert!(hold as f64 >= least, "{hold} of {all}");
    assert!(believed > 500, "{believed}: else nothing of this was put to the test");
}
