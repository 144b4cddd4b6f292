use proptest::prelude::*;

use super::super::cost::Cost;
use super::super::{BoundBy, Criterion};
use super::*;
use crate::rate::{CacheSensitivity, HandlerTime};

mod whole_runs;

fn reading(tick: u64, samples: u64) -> Reading {
    Reading {
        at_ns: (tick + 1) * 100_000_000,
        target_cpu_ns: 100_000_000,
        samples,
        frames: 20 * samples,
        ..Default::default()
    }
}

#[test]
fn the_first_guess_takes_half_the_budget_at_most() {
    let mut controller = RateController::new(RateSettings::default(), CostModel::default());
    let first = controller.start(5);
    assert_eq!((first.reason, first.at_ns, first.bound_by), (RateReason::Start, 5, BoundBy::Host));
    assert!(first.rate_hz * first.cost.total_hi_us * 1e-6 <= 0.5 * first.caps.budget_ratio * 1.0001);
}

#[test]
fn a_fixed_rate_is_metered_and_kept() {
    let settings = RateSettings { fixed_rate_hz: Some(10_000.0), ..RateSettings::default() };
    let mut controller = RateController::new(settings, CostModel::default());
    for tick in 0..50 {
        let decision = controller.step(&reading(tick, 1_000), &TopShares::default());
        assert_eq!(
            (decision.reason, decision.rate_hz, decision.period_ns),
            (RateReason::Fixed, 10_000.0, 100_000)
        );
    }
    assert!(controller.account().worst_1s_ratio() > 0.15);
}

#[test]
fn an_idle_target_keeps_its_rate() {
    let mut controller = RateController::new(RateSettings::default(), CostModel::default());
    let before = controller.start(0).rate_hz;
    for tick in 0..600 {
        let idle = Reading { at_ns: (tick + 1) * 100_000_000, self_cpu_ns: 40_000, ..Default::default() };
        assert_eq!(controller.step(&idle, &TopShares::default()).rate_hz, before);
    }
}

/// A step in which the target and non-target processes kept so many CPUs busy, at the rate in force.
fn sampled(tick: u64, rate_hz: f64, target_cpus: f64, non_target_cpus: f64) -> Reading {
    let samples = (rate_hz * target_cpus * 0.1).round() as u64;
    Reading {
        target_cpu_ns: (target_cpus * 1e8) as u64,
        foreign_samples: (rate_hz * non_target_cpus * 0.1).round() as u64,
        self_cpu_ns: 30_000 + 2_000 * samples,
        ..reading(tick, samples)
    }
}

/// The rates during two seconds, with events of whole CPUs whose cost is not known well. The target uses a quarter of a CPU, and
/// other processes use `non_target_cpus`.
fn rates_beside(non_target_cpus: f64) -> Vec<f64> {
    let mut model = CostModel::default();
    model.per_sample_ns.se_ns = 0.6 * model.per_sample_ns.mean_ns;
    let settings = RateSettings {
        budget_ratio: 0.05,
        own_cpu_ratio: Some(1.0),
        horizon_s: None,
        ..RateSettings::default()
    };
    let mut controller = RateController::new(settings, model);
    let mut rate_hz = controller.start(0).rate_hz;
    let step = |tick| {
        rate_hz =
            controller.step(&sampled(tick, rate_hz, 0.25, non_target_cpus), &TopShares::default()).rate_hz;
        rate_hz
    };
    (0..20).map(step).collect()
}

#[test]
fn doubts_about_what_others_pay_do_not_hold_the_rate_back() {
    for (alone_hz, beside_hz) in rates_beside(0.0).into_iter().zip(rates_beside(1.75)) {
        assert!(beside_hz > 0.9 * alone_hz, "{beside_hz} beside others, {alone_hz} alone");
    }
}

/// The rate after a minute in which the target is one of so many replicas from the twentieth second on, and the last decision.
fn as_one_of(replicas: f64, settings: RateSettings) -> Decision {
    let mut controller = RateController::new(settings, CostModel::default());
    controller.grant(1.0);
    let mut decision = controller.start(0);
    for tick in 0..600 {
        if tick == 200 {
            controller.join_fleet(Replicas::new(replicas));
        }
        let half = (decision.rate_hz * 0.05).round() as u64;
        let shares = TopShares { counts: vec![(1, half), (2, half)], ..TopShares::default() };
        decision = controller.step(&sampled(tick, decision.rate_hz, 1.0, 0.0), &shares);
    }
    decision
}

#[test]
fn one_of_many_replicas_samples_by_the_cube_root_of_their_number() {
    let settings = || RateSettings { budget_ratio: 0.2, horizon_s: Some(600.0), ..RateSettings::default() };
    let alone = as_one_of(1.0, settings());
    assert_eq!((alone.terms.replicas, alone.bound_by), (1.0, BoundBy::Law));
    for replicas in [2.0, 6.0, 1_000.0] {
        let one = as_one_of(replicas, settings());
        let asked = one.terms.unbounded_rate_hz / alone.terms.unbounded_rate_hz * f64::cbrt(replicas);
        assert!((0.97..1.03).contains(&asked), "{replicas}: {asked}");
        let ratio = one.rate_hz / one.terms.unbounded_rate_hz;
        assert!((0.93..1.07).contains(&ratio), "{replicas}: {ratio}");
        assert_eq!((one.terms.replicas, one.terms.horizon_cpu_s), (replicas, 600.0));
    }
    // A run of unknown length is nobody's replica, and a fixed rate stays.
    let anytime = || RateSettings { horizon_s: None, ..settings() };
    assert_eq!(as_one_of(1_000.0, anytime()), as_one_of(1.0, anytime()));
    let fixed = || RateSettings { fixed_rate_hz: Some(500.0), ..settings() };
    assert_eq!(as_one_of(1_000.0, fixed()).rate_hz, 500.0);
}

#[test]
fn a_fleet_s_figures_that_waver_move_no_rate() {
    let settings = RateSettings { budget_ratio: 0.2, horizon_s: Some(600.0), ..RateSettings::default() };
    let mut controller = RateController::new(settings, CostModel::default());
    controller.grant(1.0);
    controller.join_fleet(Replicas::new(10.0));
    let mut decision = controller.start(0);
    let mut settled = 0;
    for tick in 0..3_000 {
        if tick % 60 == 0 {
            controller.join_fleet(Replicas::new(if tick % 120 == 0 { 9.0 } else { 11.0 }));
        }
        let half = (decision.rate_hz * 0.05).round() as u64;
        let shares = TopShares { counts: vec![(1, half), (2, half)], ..TopShares::default() };
        decision = controller.step(&sampled(tick, decision.rate_hz, 1.0, 0.0), &shares);
        settled = if tick == 600 { decision.so_far.retunes } else { settled };
    }
    assert!(decision.so_far.retunes <= settled + 1, "{} of {settled}", decision.so_far.retunes);
}

#[test]
fn non_targets_are_hardly_sampled_once_the_target_is_idle() {
    let mut controller = RateController::new(RateSettings::default(), CostModel::default());
    let mut rate_hz = controller.start(0).rate_hz;
    assert!(!controller.non_targets_may_overspend());
    let mut play = |ticks: std::ops::Range<u64>, cpus: f64, non_targets: f64| {
        for tick in ticks {
            let reading = sampled(tick, rate_hz, cpus, non_targets);
            rate_hz = controller.step(&reading, &TopShares::default()).rate_hz;
        }
        (rate_hz, controller.non_targets_may_overspend())
    };
    let (busy_hz, looks) = play(0..200, 16.0, 2.0);
    assert!(busy_hz > 100.0 && looks, "{busy_hz}");
    let (at_once_hz, _) = play(200..201, 0.0, 2.0);
    let (idle_hz, looks) = play(201..400, 0.0, 2.0);
    assert!(at_once_hz < 0.1 * busy_hz && idle_hz < 0.1 * busy_hz && !looks, "{at_once_hz} {idle_hz}");
    let (burst_hz, _) = play(400..410, 16.0, 2.0);
    assert!(burst_hz > 0.3 * busy_hz, "{burst_hz} of {busy_hz}");
    assert!(controller.account().worst_10s_ratio() <= 0.0102, "{:?}", controller.account().worst_10s_ratio());
}

#[test]
fn ten_seconds_with_the_last_busy_moment_stay_within_the_budget() {
    let costs = CostModel { per_sample_ns: Cost::new(12_000.0, 0.0), ..CostModel::default() };
    let mut controller = RateController::new(RateSettings::default(), costs);
    let mut rate_hz = controller.start(0).rate_hz;
    for tick in 0..400 {
        let cpus = if tick < 200 { 1.0 } else { 0.0 };
        let reading = Reading { self_cpu_ns: 5_000, ..sampled(tick, rate_hz, cpus, 0.5) };
        rate_hz = controller.step(&reading, &TopShares::default()).rate_hz;
    }
    let worst = controller.account().worst_10s_ratio();
    assert!((0.007..0.0102).contains(&worst), "{worst}");
}

/// The rates of a run on a busy target. In the second tick `lost` samples are lost, and set-up takes `once_ns`.
fn rates_after(lost: u64, once_ns: u64, ticks: u64) -> (f64, Vec<f64>, RateController) {
    let mut controller = RateController::new(RateSettings::default(), CostModel::default());
    let first_hz = controller.start(0).rate_hz;
    let mut rates = vec![first_hz];
    for tick in 0..ticks {
        let mut reading = sampled(tick, rates[rates.len() - 1], 1.0, 0.0);
        if tick == 1 {
            reading.lost = lost;
            reading.self_cpu_ns += once_ns;
            reading.self_once_ns = once_ns;
        }
        rates.push(controller.step(&reading, &TopShares::default()).rate_hz);
    }
    (first_hz, rates, controller)
}

#[test]
fn a_busy_target_is_still_seen_while_a_debt_is_paid_back() {
    // A lost sample costs as much as one that arrives, and makes that no dearer.
    for lost in [50, 400, 700] {
        let (first_hz, rates, controller) = rates_after(lost, 0, 200);
        let least_hz = rates.iter().copied().fold(f64::INFINITY, f64::min);
        assert!((0.05 * first_hz..0.9 * first_hz).contains(&least_hz), "{lost}: {least_hz} of {first_hz}");
        let worst = controller.account().worst_10s_ratio();
        assert!(worst <= 0.0102, "{lost}: {worst}");
    }
}

#[test]
fn set_up_is_overhead_but_no_cost_of_the_next_sample_and_paid_for_over_minutes() {
    let (_, _, without) = rates_after(0, 0, 40);
    let (_, rates, with) = rates_after(0, 25_000_000, 40);
    let cost_ns = |controller: &RateController| controller.cost().self_ns;
    assert!(cost_ns(&with) < 1.05 * cost_ns(&without), "{} {}", cost_ns(&with), cost_ns(&without));
    let spent_ns = |controller: &RateController| controller.account().spent().self_ns;
    assert!(spent_ns(&with) > 25e6 && spent_ns(&without) < 25e6);
    assert!(rates[3..].iter().all(|rate_hz| *rate_hz > 0.9 * rates[0]), "{rates:?}");
}

#[test]
fn a_step_ends_where_non_targets_alone_are_sampled() {
    let mut controller = RateController::new(RateSettings::default(), CostModel::default());
    let mut rate_hz = controller.start(0).rate_hz;
    for tick in 0..200 {
        rate_hz = controller.step(&sampled(tick, rate_hz, 16.0, 2.0), &TopShares::default()).rate_hz;
    }
    let so_far = |cpus| Reading {
        at_ns: 200 * 100_000_000 + 50_000_000,
        target_cpu_ns: 0,
        ..sampled(200, 0.5 * rate_hz, cpus, 2.0)
    };
    assert!(controller.overdrawn(&so_far(0.0)) && !controller.overdrawn(&so_far(16.0)));
}

#[test]
fn every_key_of_a_decision_has_its_unit() {
    let mut controller = RateController::new(RateSettings::default(), CostModel::default());
    let decision = serde_json::to_value(controller.start(0)).unwrap();
    for name in decision.as_object().unwrap().keys().map(String::as_str) {
        let unit = ["_ns", "_us", "_s", "_hz", "_ratio", "_cpus"].iter().any(|unit| name.ends_with(unit));
        assert!(
            unit || ["reason", "bound_by", "law", "law_samples", "replicas", "samples", "retunes"]
                .contains(&name),
            "{name}"
        );
    }
}

/// One step where o grows with the rate as λ^η, so that λ* falls as λ^(−2η/3); both rates relative to the fixed point.
fn stepped(ratio: f64, eta: f64) -> f64 {
    let mut controller = RateController::new(RateSettings::default(), CostModel::default());
    let fixed_hz = 500.0;
    controller.retuning.rate_hz = fixed_hz * ratio;
    let target_hz = fixed_hz * ratio.powf(-2.0 * eta / 3.0);
    controller.move_to(target_hz, (target_hz / controller.retuning.rate_hz).ln(), false);
    controller.retuning.rate_hz / fixed_hz
}

#[test]
fn a_step_has_the_slope_that_stability_is_reckoned_with() {
    for eta in [0.0, 0.5, 1.0, 2.0] {
        let slope = stepped(1.1, eta).ln() / 1.1f64.ln();
        assert!((slope - (1.0 - 0.8 * (1.0 + 2.0 * eta / 3.0))).abs() < 1e-9, "{slope} at {eta}");
    }
    let after_60_steps = |eta| (0..60).fold(1.1, |ratio, _| stepped(ratio, eta));
    // 0 < g(1 + 2η/3) < 2, that is η < 2.25.
    assert!(f64::ln(after_60_steps(2.2)).abs() < 0.02, "{}", after_60_steps(2.2));
    assert!(f64::ln(after_60_steps(2.3)).abs() > 0.3, "{}", after_60_steps(2.3));
}

#[test]
fn a_step_is_bounded_either_way() {
    assert_eq!(stepped(0.01, 0.0), 0.02);
    assert_eq!(stepped(100.0, 0.0), 25.0);
}

#[test]
fn there_is_room_for_a_burst_unless_it_would_slow_sampling_down() {
    let mut controller = RateController::new(RateSettings::default(), CostModel::default());
    let quiet = TopShares::default();
    (0..20).for_each(|tick| {
        controller.step(&reading(tick, 0), &quiet);
    });
    let half_ns = 0.5 * controller.budgets.bucket.depth_ns();
    assert!(controller.has_room_for(0.9 * half_ns) && !controller.has_room_for(1.1 * half_ns));
    assert!(!controller.has_room_for(f64::NAN));
    let fixed = RateSettings { fixed_rate_hz: Some(100.0), ..RateSettings::default() };
    assert!(RateController::new(fixed, CostModel::default()).has_room_for(1e9));
}

/// Where clocks expire at the kernel's ticks, no rate above them is of use, and the decision says what bounds it.
#[test]
fn the_kernels_tick_is_a_cap_with_a_name() {
    let cheap = CostModel { per_sample_ns: Cost::new(1_000.0, 100.0), ..CostModel::default() };
    let settings =
        RateSettings { clock_tick_ns: Some(4_000_000), budget_ratio: 0.05, ..RateSettings::default() };
    let first = RateController::new(settings.clone(), cheap).start(0);
    assert_eq!((first.rate_hz, first.period_ns, first.bound_by), (250.0, 4_000_000, BoundBy::Tick));
    let fixed = RateSettings { fixed_rate_hz: Some(999.0), ..settings };
    assert_eq!(RateController::new(fixed, cheap).rate_hz(), 250.0);
}

fn hostile_f64() -> impl Strategy<Value = f64> {
    prop_oneof![any::<f64>(), Just(0.0), Just(f64::NAN), Just(f64::INFINITY), Just(f64::MAX), 0.0..1e6]
}

fn hostile_u64() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), Just(0), Just(1), Just(u64::MAX), 0..1_000_000_000u64]
}

prop_compose! {
    fn hostile_settings()(
        b in hostile_f64(), own in prop::option::of(hostile_f64()), w in prop::option::of(hostile_f64()), z in hostile_f64(), fixed in prop::option::of(hostile_f64()),
        top in 0usize..100, floor in hostile_f64(), period in hostile_u64(), bytes in hostile_f64(),
        frames in hostile_f64(), copy in hostile_f64(), tick in prop::option::of(hostile_u64()),
        are_threads_coupled in any::<bool>(),
    ) -> RateSettings {
        RateSettings {
            budget_ratio: b, own_cpu_ratio: own, horizon_s: w, criterion: Criterion::UpperCurve { z }, fixed_rate_hz: fixed, top,
            floor_hz: floor, min_period_ns: period, max_bytes_per_s: bytes, expected_frames: frames,
            expected_stack_bytes: copy, clock_tick_ns: tick, are_threads_coupled,
        }
    }
}

prop_compose! {
    fn hostile_costs()(
        x in prop::array::uniform12(hostile_f64()), traced in prop::array::uniform4(hostile_f64()),
    ) -> CostModel {
        CostModel {
            per_sample_ns: Cost::new(x[0], x[1]), per_frame_ns: Cost::new(x[2], x[3]),
            per_byte_ns: Cost::new(x[4], x[5]), per_switch_ns: Cost::new(x[6], x[7]),
            per_side_record_ns: Cost::new(x[8], x[9]), per_fork_ns: Cost::new(x[10], x[11]),
            per_handler_ns: Some(Cost::new(traced[0], traced[1])),
            cache_sensitivity: Some(CacheSensitivity {
                handler_ns: Cost::new(x[11], x[0]), frame_ns: Cost::new(x[10], x[1]),
                byte_ns: Cost::new(x[9], x[2]), outside_ns: Cost::new(traced[1], traced[0]),
                growth: x[8], growth_se: x[3],
            }),
            at_tick: None, // a share of times that others tell
            per_trace_record_ns: Cost::new(traced[2], traced[3]),
            per_interrupt_ns: Some(Cost::new(traced[3], traced[0])),
        }
    }
}

prop_compose! {
    fn hostile_reading()(
        x in prop::array::uniform12(hostile_u64()), trace_records in hostile_u64(), self_once_ns in hostile_u64(),
        unseen in hostile_u64(),
    ) -> Reading {
        Reading {
            at_ns: x[0], target_cpu_ns: x[1], self_cpu_ns: x[2], samples: x[3], foreign_samples: x[4], frames: x[5],
            stack_bytes: x[6], lost: x[7], switches: x[8], side_records: x[9], foreign_side_records: x[10], forks: x[11],
            trace_records, self_once_ns, unseen,
        }
    }
}

#[test]
fn other_settings_are_adopted_with_all_that_was_learned() {
    let mut controller = RateController::new(RateSettings::default(), CostModel::default());
    let tick = |controller: &mut RateController, number: u64| {
        let (rate_hz, at_ns) = (controller.rate_hz(), number * 100_000_000);
        let samples = (rate_hz * 0.1).round() as u64;
        let reading = Reading {
            at_ns,
            target_cpu_ns: 100_000_000,
            samples,
            frames: 20 * samples,
            ..Reading::default()
        };
        let counts = (0..8).map(|function| (function, samples / 8)).collect();
        controller.step(&reading, &TopShares { counts, ..TopShares::default() })
    };
    controller.start(0);
    let before = (1..=100).map(|number| tick(&mut controller, number)).last().unwrap();
    controller.adopt(RateSettings { budget_ratio: 0.002, ..RateSettings::default() });
    let after = (101..=200).map(|number| tick(&mut controller, number)).last().unwrap();
    assert!(after.caps.budget_ratio == 0.002 && after.rate_hz < 0.3 * before.rate_hz, "{before:?} {after:?}");
    assert!(
        after.so_far.samples > before.so_far.samples
            && after.so_far.target_cpu_s > before.so_far.target_cpu_s,
        "it goes on"
    );
    // What the host leaves stays in force, as far as it is less.
    controller.grant(0.001);
    controller.adopt(RateSettings { budget_ratio: 0.05, ..RateSettings::default() });
    assert_eq!((controller.granted_ratio(), controller.budget_ratio()), (0.001, 0.05));
    controller.adopt(RateSettings { budget_ratio: 0.0005, ..RateSettings::default() });
    assert_eq!((controller.granted_ratio(), controller.budget_ratio()), (0.001, 0.0005));
    controller.grant(f64::NAN);
    assert_eq!(controller.granted_ratio(), 0.0005, "as before anything was granted");
}

proptest! {
    #[test]
    fn nothing_leads_out_of_the_limits(
        settings in hostile_settings(), costs in hostile_costs(),
        readings in prop::collection::vec(hostile_reading(), 1..30),
        counts in prop::collection::vec((hostile_u64(), hostile_u64()), 0..5),
        times in prop::collection::vec((hostile_f64(), hostile_u64(), hostile_u64()), 0..20),
    ) {
        let times: Vec<HandlerTime> = times
            .into_iter()
            .map(|(time_ns, frames, stack_bytes)| HandlerTime { time_ns, frames, stack_bytes })
            .collect();
        let limits = settings.clone().sane();
        let mut controller = RateController::new(settings, costs);
        let shares = TopShares { counts, ..TopShares::default() };
        for reading in &readings {
            controller.observe_handler(&times);
            let decision = controller.step(reading, &shares);
            let rate = decision.rate_hz;
            prop_assert!(rate >= limits.floor_hz && rate <= limits.ceiling_hz(), "{decision:?}");
            prop_assert!(decision.period_ns >= 20_000);
            for x in [decision.cost.overhead_us, decision.cost.overhead_se_us, decision.cost.self_us, decision.cost.fixed_ratio, decision.terms.spread_ratio,
                      decision.terms.unbounded_rate_hz, decision.caps.budget_cap_hz, decision.caps.bucket_level_us,
                      decision.so_far.overhead_1s_ratio, decision.so_far.utilisation_cpus] {
                prop_assert!(x.is_finite(), "{decision:?}");
            }
        }
        prop_assert!(controller.account().worst_10s_ratio().is_finite());
    }
}

#[test]
fn samples_of_a_target_that_is_seldom_busy_are_far_apart() {
    let settings = RateSettings { fixed_rate_hz: Some(10.0), ..RateSettings::default() };
    let mut controller = RateController::new(settings, CostModel::default());
    let shares = TopShares::default();
    assert_eq!(controller.sample_gap_ns(), f64::INFINITY, "nothing is known of it");
    for tick in 1..=300_u64 {
        let reading =
            Reading { at_ns: tick * 100_000_000, target_cpu_ns: tick % 2 * 10_000_000, ..Reading::default() };
        controller.step(&reading, &shares);
    }
    // A tenth of a CPU at the busiest, a twentieth in the mean.
    let gap_s = controller.sample_gap_ns() * 1e-9;
    assert!((0.9..=2.1).contains(&gap_s), "{gap_s}");
}
