use std::time::Duration;

use super::super::design::Design;
use super::super::fit::truth;
use super::super::simulated::Machine;
use super::*;

const MACHINE: Machine = Machine {
    overhead_us: 13.0,
    exponent: 0.12,
    told_us: 13.0,
    variance: 1.0,
    noise_ratio: 0.003,
    adaptive_hz: 1_000.0,
};

fn runs(machine: &Machine, seed: u64) -> Vec<Observation> {
    machine.run(&Design { rounds: 3, cpu: Duration::from_secs(2), seed })
}

fn fitted(runs: &[&Observation]) -> FittedCost {
    cost(runs, &truth(runs).unwrap_or([2.0; SHAPES.len()])).unwrap()
}

#[test]
fn the_stated_error_covers() {
    let covered = (0..200).filter(|seed| {
        let runs = runs(&MACHINE, *seed);
        let cost = fitted(&runs.iter().collect::<Vec<_>>());
        (cost.curve.overhead_us - MACHINE.overhead_us).abs() < 1.96 * cost.overhead_se_us
    });
    let covered = covered.count();
    assert!((180..=198).contains(&covered), "{covered} of 200");
}

#[test]
fn one_program_without_runs_leaves_the_others_their_cost() {
    let runs = runs(&MACHINE, 11);
    let two: Vec<&Observation> = runs.iter().filter(|run| run.shape != 1).collect();
    let cost = fitted(&two);
    assert!((cost.curve.overhead_us / 13.0 - 1.0).abs() < 0.03, "{}", cost.curve.overhead_us);
}

#[test]
fn samples_own_time_is_sampled_too() {
    let curve = Curve { overhead_us: 10.0, exponent: 0.0 };
    let dilated = curve.dilated(50_000.0).unwrap(); // 500 ms of samples in each second
    assert!((dilated.added - 1.0).abs() < 1e-4 && (dilated.rate_hz / 100_000.0 - 1.0).abs() < 1e-4);
    assert_eq!(curve.dilated(96_000.0), None);
    assert_eq!(curve.dilated(1e6), None);
    let cheaper = Curve { exponent: 0.2, ..curve }.dilated(50_000.0).unwrap();
    assert!(cheaper.added < 0.3, "{}", cheaper.added);
}

#[test]
fn a_doubling_tells_the_fall() {
    let at = |exponent| Curve { overhead_us: 10.0, exponent };
    assert!(at(0.0).less_at_double().abs() < 1e-12);
    let curve = at(0.12);
    assert!((curve.at(2_000.0) / curve.at(1_000.0) - (1.0 - curve.less_at_double())).abs() < 1e-12);
}
