//! Runs from their first guess on, beside a host that changes.

use super::*;
use crate::rate::{LawInForce, usual_step_ns};

/// What a program costs while it is sampled, at some moment.
#[derive(Clone, Copy)]
struct Host {
    /// CPUs that the target keeps busy.
    busy_cpus: f64,
    frames: f64,
    /// Own CPU time for a sample (ns).
    own_ns: f64,
    /// Context switches of the target per second.
    switches: f64,
}

/// A run of a person: steps of 100 ms under the default budgets, shorter ones at first. Says, for each step, its length, the
/// CPU time of the target, what sampling took from it, and what the profiler used (s), and how the run ended.
fn personal_run(seconds: f64, host: impl Fn(f64) -> Host) -> (Vec<[f64; 4]>, Decision) {
    run_of(false, seconds, host)
}

/// The same of threads that may wait for each other.
fn run_of(are_threads_coupled: bool, seconds: f64, host: impl Fn(f64) -> Host) -> (Vec<[f64; 4]>, Decision) {
    let costs = CostModel {
        per_sample_ns: Cost::new(10_000.0, 500.0),
        per_frame_ns: Cost::new(500.0, 25.0),
        per_byte_ns: Cost::default(),
        per_switch_ns: Cost::new(1_000.0, 50.0),
        ..CostModel::default()
    };
    let settings = RateSettings {
        budget_ratio: 0.05,
        own_cpu_ratio: Some(0.05),
        horizon_s: None,
        are_threads_coupled,
        expected_frames: 10.0,
        ..RateSettings::default()
    };
    let mut controller = RateController::new(settings, costs);
    let (mut decision, mut steps, mut now_ns, mut due) = (controller.start(0), Vec::new(), 0, 0.0);
    while (now_ns as f64) < seconds * 1e9 {
        let step_ns = usual_step_ns(now_ns);
        now_ns += step_ns;
        let (step_s, host) = (step_ns as f64 * 1e-9, host(now_ns as f64 * 1e-9));
        due += decision.rate_hz * host.busy_cpus * step_s;
        let samples = due as u64;
        due -= samples as f64;
        let reading = Reading {
            at_ns: now_ns,
            target_cpu_ns: (host.busy_cpus * step_ns as f64) as u64,
            self_cpu_ns: (30_000.0 * step_s * 10.0 + host.own_ns * samples as f64) as u64,
            samples,
            frames: (host.frames * samples as f64) as u64,
            switches: (host.switches * step_s) as u64,
            ..Reading::default()
        };
        let taken_ns = samples as f64 * (10_000.0 + 500.0 * host.frames) + reading.switches as f64 * 1_000.0;
        steps.push([step_s, host.busy_cpus * step_s, taken_ns * 1e-9, reading.self_cpu_ns as f64 * 1e-9]);
        decision = controller.step(
            &reading,
            &TopShares { counts: vec![(1, samples / 2), (2, samples / 2)], ..TopShares::default() },
        );
    }
    (steps, decision)
}

/// The most of a quantity over any ten seconds or so, over that of another.
fn worst_ten_seconds(steps: &[[f64; 4]], of: usize, over: usize) -> f64 {
    let mut worst = 0.0f64;
    for first in 0..steps.len() {
        let (mut wall, mut sum, mut base) = (0.0, 0.0, 0.0);
        for step in &steps[first..] {
            (wall, sum, base) = (wall + step[0], sum + step[of], base + step[over]);
            if wall >= 9.99 {
                worst = worst.max(sum / base);
                break;
            }
        }
    }
    worst
}

#[test]
fn both_budgets_of_a_person_s_run_hold_whatever_changes() {
    const USUAL: Host = Host { busy_cpus: 1.0, frames: 10.0, own_ns: 6_000.0, switches: 100.0 };
    let after = |from_s: f64, then: Host| move |now_s: f64| if now_s < from_s { USUAL } else { then };
    type Case = (&'static str, Box<dyn Fn(f64) -> Host>);
    let cases: [Case; 6] = [
        ("steady", Box::new(|_| USUAL)),
        ("stacks twenty times as deep", Box::new(after(15.0, Host { frames: 200.0, ..USUAL }))),
        ("own cost times ten", Box::new(after(15.0, Host { own_ns: 60_000.0, ..USUAL }))),
        ("dear from the start", Box::new(|_| Host { own_ns: 60_000.0, frames: 200.0, ..USUAL })),
        ("a storm of switches", Box::new(after(15.0, Host { switches: 30_000.0, ..USUAL }))),
        ("many CPUs", Box::new(|_| Host { busy_cpus: 64.0, ..USUAL })),
    ];
    for (name, host) in cases {
        let (steps, decision) = personal_run(60.0, host);
        let (slowdown, own) = (worst_ten_seconds(&steps, 2, 1), worst_ten_seconds(&steps, 3, 0));
        assert!(slowdown <= 1.05 * 0.05, "{name}: slowdown {slowdown}");
        assert!(own <= 1.05 * 0.05, "{name}: own CPU time {own}");
        assert!(decision.so_far.samples > 500, "{name}: {decision:?}");
        if name == "steady" {
            assert!(slowdown < 0.03, "the law asks for less than the budget: {slowdown}");
            let taken = decision.so_far.samples as f64 / decision.terms.law_samples;
            assert!((0.95..1.05).contains(&taken), "{taken} of what the law asks for");
        }
    }
}

/// A sample delays four threads where they wait for each other: a bias four times as large, for which the law takes 4^(-2/3) of the samples.
#[test]
fn threads_that_wait_for_each_other_are_held_up_together() {
    let host = |_| Host { busy_cpus: 4.0, frames: 10.0, own_ns: 2_000.0, switches: 0.0 };
    let (_, alone) = run_of(false, 60.0, host);
    let (steps, coupled) = run_of(true, 60.0, host);
    let asked = coupled.terms.law_samples / alone.terms.law_samples;
    // The controller takes some seconds to see that four of them run.
    assert!((1.0..1.12).contains(&(asked * 4.0_f64.powf(2.0 / 3.0))), "{asked}");
    let taken = coupled.so_far.samples as f64 / coupled.terms.law_samples;
    assert!((0.9..1.05).contains(&taken), "{taken}");
    let worst = 4.0 * worst_ten_seconds(&steps, 2, 1);
    assert!(worst < 1.05 * 0.05, "{worst}");
    let sum = |of: usize| steps.iter().map(|step| step[of]).sum::<f64>();
    let delay = 4.0 * sum(2) / sum(1);
    assert!(
        (0.85..1.05).contains(&(coupled.so_far.slowdown_ratio / delay)),
        "{} of {delay}",
        coupled.so_far.slowdown_ratio
    );
}

#[test]
fn a_short_run_gets_what_the_law_asks_for() {
    // Code that is met for the first time takes many times the usual.
    for (cold_ns, own_ns) in [(6_000.0, 6_000.0), (100_000.0, 30_000.0)] {
        let usual = |now_s| Host {
            busy_cpus: 1.0,
            frames: 10.0,
            own_ns: if now_s < 0.05 { cold_ns } else { own_ns },
            switches: 100.0,
        };
        for seconds in [0.1, 0.3, 1.0, 3.0] {
            let (_, decision) = personal_run(seconds, usual);
            let taken = decision.so_far.samples as f64 / decision.terms.law_samples;
            assert!(taken > 0.7, "{own_ns} ns, {seconds} s: {taken} of {}", decision.terms.law_samples);
        }
    }
}

#[test]
fn an_idle_target_meets_its_bursts_at_the_law_s_rate() {
    let bursts = |now_s: f64| Host {
        busy_cpus: if now_s % 8.0 < 2.0 { 1.0 } else { 0.0 },
        frames: 10.0,
        own_ns: 6_000.0,
        switches: 0.0,
    };
    let (_, decision) = personal_run(40.0, bursts);
    let taken = decision.so_far.samples as f64 / decision.terms.law_samples;
    assert!(taken > 0.9, "{} of {}", decision.so_far.samples, decision.terms.law_samples);
}

#[test]
fn another_law_and_another_budget_of_own_time_are_adopted_in_full() {
    let personal = RateSettings { own_cpu_ratio: Some(0.05), horizon_s: None, ..RateSettings::default() };
    let mut controller = RateController::new(personal.clone(), CostModel::default());
    controller.start(0);
    controller.adopt(RateSettings { own_cpu_ratio: None, horizon_s: Some(60.0), ..personal.clone() });
    assert!(controller.budgets.own.is_none());
    assert_eq!(
        (controller.age_for_steps_ns(0), controller.step(&reading(1, 10), &TopShares::default()).terms.law),
        (u64::MAX, LawInForce::Horizon)
    );
    controller.adopt(personal);
    assert!(controller.budgets.own.is_some());
    assert_eq!(controller.step(&reading(2, 10), &TopShares::default()).terms.law, LawInForce::Anytime);
    assert_eq!(controller.age_for_steps_ns(7), 7);
}
