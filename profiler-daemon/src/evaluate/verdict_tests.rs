use std::time::Duration;

use super::super::design::Design;
use super::super::simulated::Machine;
use super::*;

const MACHINE: Machine = Machine {
    overhead_us: 13.0,
    exponent: 0.0,
    told_us: 13.0,
    variance: 1.0,
    noise_ratio: 0.002,
    adaptive_hz: 1_100.0,
};

fn design(rounds: u32) -> Design {
    Design { rounds, cpu: Duration::from_secs(4), seed: 5 }
}

fn judged(machine: &Machine, rounds: u32) -> (Figures, Vec<Claim>) {
    let runs = machine.run(&design(rounds));
    let figures = figures(&runs.iter().collect::<Vec<_>>()).unwrap();
    let claims = claims(&runs, &figures, 1);
    (figures, claims)
}

fn outcome(claims: &[Claim], start: &str) -> ClaimOutcome {
    claims.iter().find(|claim| claim.claim.starts_with(start)).unwrap().outcome
}

#[test]
fn a_good_rate_passes_and_a_bad_one_fails() {
    let (figures, claims) = judged(&MACHINE, 10);
    assert_eq!(
        outcome(&claims, "error of the adaptive runs, over that of the best rate"),
        ClaimOutcome::Holds
    );
    assert_eq!(outcome(&claims, "error of the adaptive runs, over that of 99/s"), ClaimOutcome::Holds);
    assert_eq!(outcome(&claims, "error expected at their rates"), ClaimOutcome::Holds);
    assert_eq!(outcome(&claims, "cost of a sample"), ClaimOutcome::Holds);
    let loss = figures.mean_ratio(|shape| shape.adaptive_cmape_ratio / shape.best_cmape_ratio);
    assert!((0.9..1.1).contains(&loss), "{loss}");

    let (_, claims) = judged(&Machine { adaptive_hz: 9_000.0, ..MACHINE }, 3);
    assert_eq!(
        outcome(&claims, "error of the adaptive runs, over that of the best rate"),
        ClaimOutcome::Fails
    );
    assert_eq!(outcome(&claims, "error of the adaptive runs, over that of 999/s"), ClaimOutcome::Fails);
    assert_eq!(outcome(&claims, "chosen rate over λ*, big"), ClaimOutcome::Fails);
}

#[test]
fn a_cost_told_wrongly_fails() {
    for (told_us, expected) in
        [(13.5, ClaimOutcome::Holds), (16.5, ClaimOutcome::Fails), (10.5, ClaimOutcome::Fails)]
    {
        let (_, claims) = judged(&Machine { told_us, noise_ratio: 0.001, ..MACHINE }, 10);
        assert_eq!(outcome(&claims, "cost of a sample"), expected, "{told_us}");
    }
}

#[test]
fn few_runs_say_less() {
    let width = |rounds| {
        let (_, claims) = judged(&MACHINE, rounds);
        claims[0].high_ratio - claims[0].low_ratio
    };
    assert!(width(1) > 1.5 * width(10));
}

#[test]
fn the_law_s_rate_is_that_of_the_cost() {
    let (figures, _) = judged(&MACHINE, 4);
    let even = &figures.shapes[2];
    // (.6573·√7 / (13 µs · √4 s))^(2/3)
    assert!((even.law_rate_hz / 1_647.0 - 1.0).abs() < 0.03, "{}", even.law_rate_hz);
    assert!((even.best_rate_hz / even.law_rate_hz - 1.0).abs() < 0.15, "{}", even.best_rate_hz);
}

#[test]
fn a_rate_is_judged_at_the_cost_that_a_sample_has_there() {
    // (.6573·√7 / (o·√4 s))^(2/3) at o = 13 µs·(1,714/1,000)^−.12: 1,714/s; at the cost of 20,000/s it would be 2,090.
    let machine = Machine { exponent: 0.12, adaptive_hz: 1_714.0, ..MACHINE };
    let (figures, claims) = judged(&machine, 10);
    let law_hz = figures.shapes[2].law_rate_hz;
    assert!((law_hz / 1_714.0 - 1.0).abs() < 0.02, "{law_hz}");
    assert_eq!(outcome(&claims, "chosen rate over λ*, even"), ClaimOutcome::Holds);
}

#[test]
fn missing_runs_are_an_error() {
    assert_eq!(figures(&[]), Err(NoFigures::TooFew));
    let runs = MACHINE.run(&design(1));
    for missing in [Arm::Unsampled, Arm::Adaptive, Arm::Default] {
        let others: Vec<_> = runs.iter().filter(|run| run.arm != missing).collect();
        assert_eq!(figures(&others), Err(NoFigures::TooFew), "{missing:?}");
    }
}

#[test]
fn a_cost_that_cannot_be_seen_is_an_error() {
    let mut runs = MACHINE.run(&design(1));
    for run in &mut runs {
        (run.cpu_s, run.excess_ratio) = (4.0 - run.samples as f64 * 1e-7, None);
    }
    assert_eq!(figures(&runs.iter().collect::<Vec<_>>()), Err(NoFigures::NoCost));
}

#[test]
fn an_interval_holds_its_figure() {
    assert_eq!(interval(std::iter::empty(), 2.0), (2.0, 2.0));
    let (low, high) = interval((0..1000).map(f64::from), 5_000.0);
    assert!(low < 30.0 && high == 5_000.0);
}
