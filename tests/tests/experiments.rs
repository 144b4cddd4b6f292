//! The long experiments of `experiments/`, cut short: the same code, fewer runs, the same seeds each time.

use tests::aliasing::{Clock, error_sd};
use tests::paper::quick_lines;
use tests::portfolio::{Known, adaptive, chosen, programs};

#[test]
fn periodic_programs_are_sampled_as_at_random_times() {
    // The worst of `just aliasing`, an exact resonance, and one of the program with a tick.
    for (rate_hz, program_ns) in [(100.0, 11_975_133.0), (100.0, 50e6), (450.0, 1e9 / 150.0), (1_000.0, 1e6)]
    {
        let error = error_sd(Clock::Dithered, rate_hz, program_ns, 150);
        // 1.5 are allowed; the seeds are fixed, so less may be asked for.
        assert!(error <= 1.4, "{error} sd at {rate_hz}/s and {program_ns} ns");
    }
    assert!(error_sd(Clock::Fixed, 100.0, 10e6, 10) > 20.0);
}

#[test]
fn the_controller_is_right_for_any_program() {
    let mut programs = programs();
    assert_eq!(programs.len(), 320);
    programs.retain(|program| program.cpu_s < 100.0); // the long ones take as long to simulate
    let controller = adaptive(&programs, Known::Horizon, 1);
    assert!(controller.mean <= 1.04 && controller.worst <= 1.40, "{controller:?}");
    let independent: Vec<_> = programs.iter().filter(|program| program.is_independent()).cloned().collect();
    let of_independent = adaptive(&independent, Known::Horizon, 1);
    assert!(of_independent.mean <= 1.03 && of_independent.worst <= 1.10, "{of_independent:?}");
    for rate_hz in [99.0, 499.0, 999.0, 4_999.0] {
        assert!(chosen(&programs, |_| rate_hz).mean > 1.2 * controller.mean, "{rate_hz}/s");
    }
    assert!(chosen(&programs, |program| 0.01 / program.overhead_s).mean > 1.05 * controller.mean);
}

#[test]
fn the_experiments_of_the_dissertation_come_out_again() {
    let off: Vec<_> = quick_lines(1).into_iter().filter(|line| !line.holds).collect();
    assert!(off.is_empty(), "{off:#?}");
}
