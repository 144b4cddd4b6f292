use proptest::prelude::*;

use super::*;
use crate::rate::{RateController, Reading, TopShares};

/// A program of even pace: what it does in a second of wall time, and how deep its stacks are.
#[derive(Clone, Copy)]
struct Program {
    cpus: f64,
    frames: f64,
    bytes: f64,
    switches_per_s: u64,
    side_records_per_s: u64,
    forks_per_s: u64,
}

const COMPUTES: Program = Program {
    cpus: 1.0,
    frames: 20.0,
    bytes: 8_192.0,
    switches_per_s: 50,
    side_records_per_s: 10,
    forks_per_s: 10,
};

fn settings() -> RateSettings {
    RateSettings { expected_stack_bytes: 8_192.0, ..RateSettings::default() }
}

fn costs() -> CostModel {
    CostModel { per_sample_ns: Cost::new(6_000.0, 500.0), ..CostModel::default() }
}

fn by_task() -> AttachChoice {
    AttachChoice::new(Some(AttachMode::Task), true, 1, 2, 0.0)
}

impl Program {
    fn watched(&self, seconds: u64) -> Activity {
        Activity {
            wall_ns: seconds * SECOND_NS,
            target_cpu_ns: (self.cpus * 1e9) as u64 * seconds,
            switches: self.switches_per_s * seconds,
            side_records: self.side_records_per_s * seconds,
            forks: self.forks_per_s * seconds,
            frames: Some(Figure::exact(self.frames)),
            stack_bytes: Some(Figure::exact(self.bytes)),
            ..Activity::default()
        }
    }

    /// The rate that the controller comes to, and what it spends at it, where all is as the priors say.
    fn sampled(&self, settings: &RateSettings, costs: CostModel) -> (f64, f64, BoundBy) {
        let mut controller = RateController::new(settings.clone(), costs);
        let mut rate_hz = controller.start(0).rate_hz;
        let (mut owed, mut bound_by) = (0.0, BoundBy::Law);
        for tick in 0..3_000 {
            owed += rate_hz * self.cpus * 0.1;
            let samples = owed as u64;
            owed -= samples as f64;
            let own = OwnCostPrior::default();
            let reading = Reading {
                at_ns: (tick + 1) * SECOND_NS / 10,
                target_cpu_ns: (self.cpus * 1e8) as u64,
                self_cpu_ns: (own.per_sample_ns * samples as f64 + own.per_second_ns * 0.1) as u64,
                samples,
                frames: (self.frames * samples as f64) as u64,
                stack_bytes: (self.bytes * samples as f64) as u64,
                switches: self.switches_per_s / 10,
                side_records: self.side_records_per_s / 10,
                forks: self.forks_per_s / 10,
                ..Reading::default()
            };
            let decision = controller.step(&reading, &TopShares::default());
            (rate_hz, bound_by) = (decision.rate_hz, decision.bound_by);
        }
        (rate_hz, controller.account().last_1s_ratio(), bound_by)
    }
}

/// A settled rate may stay off the optimum by the dead band; from the first guess upwards it does not come to that.
#[test]
fn the_predicted_rate_is_the_one_that_the_controller_comes_to() {
    let generous = RateSettings { budget_ratio: 0.05, ..settings() };
    let narrow = RateSettings { max_bytes_per_s: 1e6, ..generous.clone() };
    let fixed = RateSettings { fixed_rate_hz: Some(999.0), ..settings() };
    let switching = Program { switches_per_s: 2_000, forks_per_s: 40, ..COMPUTES };
    let hopeless = Program { switches_per_s: 100_000, ..COMPUTES };
    let half = Program { cpus: 0.5, frames: 60.0, bytes: 30_000.0, ..COMPUTES };
    let crowd = Program { cpus: 6.0, frames: 2.0, bytes: 0.0, ..COMPUTES };
    let cases = [
        (COMPUTES, settings(), BoundBy::Host),
        (COMPUTES, generous.clone(), BoundBy::Law),
        (COMPUTES, narrow, BoundBy::Bytes),
        (COMPUTES, fixed, BoundBy::Fixed),
        (switching, settings(), BoundBy::Host),
        (hopeless, settings(), BoundBy::Floor),
        (half, settings(), BoundBy::Host),
        (half, generous.clone(), BoundBy::Law),
        (crowd, settings(), BoundBy::Host),
        (crowd, generous, BoundBy::Law),
    ];
    for (case, (program, settings, bound_by)) in cases.into_iter().enumerate() {
        let (rate_hz, overhead_ratio, bound) = program.sampled(&settings, costs());
        let prediction = predict(settings, costs(), &program.watched(2), by_task());
        assert_eq!((prediction.bound_by, bound), (bound_by, bound_by), "case {case}");
        let off = prediction.rate_hz.mean / rate_hz;
        assert!((0.93..1.07).contains(&off), "case {case}: {:?} and {rate_hz}", prediction.rate_hz);
        let off = prediction.overhead_ratio.mean / overhead_ratio;
        assert!(
            (0.93..1.07).contains(&off),
            "case {case}: {:?}, {overhead_ratio}",
            prediction.overhead_ratio
        );
    }
}

#[test]
fn errors_add_up_in_squares_times_the_counts() {
    let (count, price) = (Figure::new(10.0, 2.0), Figure::new(3.0, 0.5));
    let sum = total(&[(count, price), (Figure::exact(4.0), Figure::new(7.0, 1.0))]);
    assert_eq!(sum.mean, 10.0 * 3.0 + 4.0 * 7.0);
    let variance = (10.0f64 * 0.5).powi(2) + (2.0f64 * 3.0).powi(2) + 4.0f64.powi(2);
    assert!((sum.se - variance.sqrt()).abs() < 1e-12, "{sum:?}");
}

#[test]
fn the_parts_are_counts_times_prices() {
    let watched = Activity { frames: None, stack_bytes: None, ..COMPUTES.watched(2) };
    let prediction = predict(settings(), costs(), &watched, by_task());
    let near = |figure: Figure, mean: f64, se: f64| {
        assert!((figure.mean / mean - 1.0).abs() < 1e-9 && (figure.se / se - 1.0).abs() < 1e-9, "{figure:?}");
    };
    // 6 µs, 20 frames at 50 ns and 8 KiB at 0.2 ns; depths that nobody saw are as unsure as they are deep.
    let model_se: f64 = 500.0 + 20.0 * 25.0 + 8_192.0 * 0.1;
    near(prediction.overhead_ns, 8_638.4, model_se.hypot(1_000.0).hypot(1_638.4));
    // 50 switches, 10 records and 10 tasks a second, seen for two: their own errors and those of the prices.
    let prices = (50.0f64 * 150.0).hypot(10.0 * 500.0).hypot(10.0 * 5_000.0);
    let counts = (101f64.sqrt() * 500.0).hypot(21f64.sqrt() * 1_000.0).hypot(21f64.sqrt() * 10_000.0) / 2.0;
    near(prediction.events_ratio, 135e-6, prices.hypot(counts) * 1e-9);
    near(prediction.own_ratio, 300e-6, 1e-3);
    near(prediction.fixed_ratio, 435e-6, (prices.hypot(counts) * 1e-9).hypot(1e-3));
    let of_samples = prediction.rate_hz.mean * (8_638.4 + 5_000.0) * 1e-9;
    assert!((prediction.overhead_ratio.mean - of_samples - 435e-6).abs() < 1e-9);
}

/// Where the budget sets it, the rate is inverse to the cost; the law's rate falls with its power of two thirds.
#[test]
fn the_error_of_the_rate_follows_from_the_errors_of_the_costs() {
    let se_of = |settings: &RateSettings, se_ns: f64| {
        let costs = CostModel { per_sample_ns: Cost::new(60_000.0, se_ns), ..CostModel::default() };
        predict(settings.clone(), costs, &COMPUTES.watched(2), by_task()).rate_hz
    };
    for settings in [settings(), RateSettings { budget_ratio: 0.5, ..settings() }] {
        let (sure, unsure) = (se_of(&settings, 0.0), se_of(&settings, 12_000.0));
        assert!(sure.se > 0.0 && unsure.se > 1.05 * sure.se, "{sure:?} {unsure:?}");
    }
    let law = se_of(&RateSettings { budget_ratio: 0.5, horizon_s: Some(600.0), ..settings() }, 0.0);
    // λ* goes with S to the power of 2/3, and S is known to a half: (1.5^(2/3) − 0.5^(2/3)) / 2.
    assert!((0.33..0.37).contains(&(law.se / law.mean)), "{law:?}");
    let fixed = se_of(&RateSettings { fixed_rate_hz: Some(99.0), ..settings() }, 12_000.0);
    assert_eq!(fixed, Figure::exact(99.0));
}

#[test]
fn the_cheaper_way_to_attach_is_the_one_that_remains() {
    let either = || AttachChoice::new(None, true, 2, 2, 0.0);
    // At a rate of its own, a dear way is not made cheap by a low rate.
    let fixed = RateSettings { fixed_rate_hz: Some(500.0), ..settings() };
    let mode = |watched: &Activity| predict(fixed.clone(), costs(), watched, either()).attach_mode;
    let switching = Program { switches_per_s: 10_000, ..COMPUTES }.watched(2);
    assert_eq!(mode(&COMPUTES.watched(2)), AttachMode::Task);
    assert_eq!(mode(&switching), AttachMode::Cpu);
    // Non-target processes that take a hundred times as much are dearer still, since they are sampled too.
    assert_eq!(mode(&Activity { foreign_cpu_ns: 200 * SECOND_NS, ..switching }), AttachMode::Task);
    // Threads that live for less than a period would not be seen.
    assert_eq!(mode(&Activity { ends: 1_000, ..COMPUTES.watched(2) }), AttachMode::Cpu);
    let asked = predict(settings(), costs(), &switching, by_task());
    assert_eq!(asked.attach_mode, AttachMode::Task);
}

#[test]
fn non_targets_cost_where_whole_cpus_are_sampled() {
    let cpus = || AttachChoice::new(Some(AttachMode::Cpu), true, 1, 2, 0.0);
    let alone = COMPUTES.watched(2);
    let crowded = Activity { foreign_cpu_ns: 2 * SECOND_NS, ..alone };
    let of = |watched: &Activity| predict(settings(), costs(), watched, cpus());
    assert!(of(&crowded).rate_hz.mean < 0.6 * of(&alone).rate_hz.mean);
    assert_eq!(of(&crowded).overhead_ns, of(&alone).overhead_ns);
    // No switch costs anything, and each task that it creates is two records.
    assert!((of(&alone).events_ratio.mean - 30e-6).abs() < 1e-12);
}

/// From none to all of the unseen: half of them, give or take their number over √12.
#[test]
fn tasks_that_came_and_went_unseen_are_an_even_chance() {
    let alone = COMPUTES.watched(2);
    let of = |unseen_forks| {
        let watched = Activity { unseen_forks, ..alone };
        predict(
            settings(),
            CostModel { per_fork_ns: Cost::new(10_000.0, 0.0), ..costs() },
            &watched,
            by_task(),
        )
    };
    let (none, many) = (of(0).events_ratio, of(400).events_ratio);
    assert!((many.mean - none.mean - 100.0 * 10_000e-9).abs() < 1e-9, "{many:?}");
    let added = (many.se.powi(2) - none.se.powi(2)).sqrt();
    assert!((added - 200.0 / 12f64.sqrt() * 10_000e-9).abs() < 1e-9, "{many:?}");
    assert!(of(400).rate_hz.mean < of(0).rate_hz.mean);
}

#[test]
fn of_an_idle_target_the_costs_of_a_busy_cpu_are_predicted() {
    let idle = Activity { wall_ns: 2 * SECOND_NS, switches: 7, ends: 3, ..Activity::default() };
    assert!(!idle.was_seen());
    let prediction = predict(settings(), costs(), &idle, AttachChoice::new(None, true, 1, 2, 0.0));
    assert_eq!(prediction, predict(settings(), costs(), &Activity::default(), by_task()));
    assert_eq!(prediction.events_ratio, Figure::default());
    assert!((prediction.own_ratio.mean - 300e-6).abs() < 1e-12, "{prediction:?}");
    assert!(prediction.rate_hz.mean > 100.0);
}

fn any_figure() -> impl Strategy<Value = Option<Figure>> {
    let any = || prop_oneof![any::<f64>(), Just(f64::NAN), Just(f64::INFINITY), Just(-1.0), 0.0..1e5];
    proptest::option::of((any(), any()).prop_map(|(mean, se)| Figure::new(mean, se)))
}

proptest! {
    #[test]
    fn every_prediction_is_finite(
        counts in prop::array::uniform8(prop_oneof![any::<u64>(), 0u64..10_000_000_000]),
        frames in any_figure(), stack_bytes in any_figure(),
        figures in prop::array::uniform4(prop_oneof![any::<f64>(), Just(f64::NAN), 0.0..1e6]),
        cpu in any::<bool>(),
    ) {
        let [wall_ns, target_cpu_ns, foreign_cpu_ns, switches, side_records, forks, unseen_forks, ends] = counts;
        let watched = Activity {
            wall_ns, target_cpu_ns, foreign_cpu_ns, switches, side_records, forks, unseen_forks, ends, frames, stack_bytes,
            ..Activity::default()
        };
        let [mean, se, budget_ratio, horizon_s] = figures;
        let costs = CostModel { per_sample_ns: Cost::new(mean, se), ..CostModel::default() };
        let settings = RateSettings { budget_ratio, horizon_s: Some(horizon_s), ..settings() };
        let choice = AttachChoice::new(None, cpu, 1, 2, watched.switches_per_s());
        let p = predict(settings, costs, &watched, choice);
        let figures = [p.overhead_ns, p.fixed_ratio, p.events_ratio, p.own_ratio, p.rate_hz, p.overhead_ratio];
        for figure in figures {
            let sound = |x: f64| x.is_finite() && x >= 0.0;
            prop_assert!(sound(figure.mean) && sound(figure.se), "{p:?}");
        }
        prop_assert!((1.0..=50_000.0).contains(&p.rate_hz.mean), "{p:?}");
        prop_assert!(p.unbounded_rate_hz.is_finite() && p.caps.budget_hz.is_finite(), "{p:?}");
    }
}
