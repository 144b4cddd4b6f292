use super::*;
use crate::rate::Account;

fn reading(samples: u64, frames: u64, self_cpu_ns: u64) -> Reading {
    Reading {
        target_cpu_ns: 100_000_000,
        samples,
        frames: samples * frames,
        self_cpu_ns,
        ..Default::default()
    }
}

fn model() -> CostModel {
    let exact = |ns| Cost::new(ns, 0.0);
    CostModel {
        per_sample_ns: exact(10_000.0),
        per_frame_ns: exact(100.0),
        per_byte_ns: exact(1.0),
        per_switch_ns: exact(2_000.0),
        per_side_record_ns: exact(3_000.0),
        per_fork_ns: exact(30_000.0),
        per_handler_ns: Some(exact(800.0)),
        cache_sensitivity: None,
        at_tick: None,
        per_trace_record_ns: exact(400.0),
        per_interrupt_ns: Some(exact(9_000.0)),
    }
}

const TICK_NS: u64 = 100_000_000;

#[test]
fn lost_and_foreign_samples_are_charged() {
    let mut meter = OverheadMeter::new(model());
    let mut ten = reading(10, 20, 7);
    (ten.lost, ten.foreign_samples, ten.stack_bytes, ten.switches) = (10, 5, 10_000, 3);
    let spend = meter.observe(&ten, TICK_NS);
    assert_eq!(spend.target_ns(), 20.0 * 13_000.0 + 3.0 * 2_000.0);
    assert_eq!(spend.foreign_ns, 5.0 * 11_000.0);
    assert_eq!(spend.self_ns, 7.0);
    let unseen = meter.observe(&Reading { unseen: 4, ..ten }, TICK_NS);
    assert_eq!(unseen.target_ns() - spend.target_ns(), 4.0 * 10_000.0, "nothing was walked or copied");
}

#[test]
fn the_parts_are_charged_each_at_its_price() {
    let mut meter = OverheadMeter::new(model());
    let mut ten = reading(10, 20, 7);
    (ten.stack_bytes, ten.side_records, ten.foreign_side_records, ten.forks) = (5_000, 4, 2, 3);
    ten.trace_records = 5;
    let spend = meter.observe(&ten, TICK_NS);
    assert_eq!((spend.base_ns, spend.frames_ns, spend.stack_ns), (100_000.0, 20_000.0, 5_000.0));
    assert_eq!(spend.side_records_ns, 4.0 * 3_000.0 + 3.0 * 30_000.0 + 5.0 * 400.0);
    assert_eq!(spend.foreign_ns, 2.0 * 3_000.0);
    assert_eq!(spend.total_ns(), 125_000.0 + 104_000.0 + 6_000.0 + 7.0);
    let mut account = Account::default();
    account.book(1e8, 1e8, &spend);
    account.book(1e8, 1e8, &spend);
    assert_eq!(account.spent().target_ns(), 2.0 * spend.target_ns());
    assert_eq!(account.ratio(), 2.0 * spend.total_ns() / 2e8);
}

#[test]
fn what_no_sample_causes_is_fixed_and_takes_from_the_budget() {
    let mut meter = OverheadMeter::new(model());
    let standing = |meter: &mut OverheadMeter| {
        // 300 µs a second, whatever the rate, and a hundred records in each tick.
        let mut tick = reading(0, 0, 30_000);
        tick.side_records = 100;
        meter.observe(&tick, TICK_NS)
    };
    let last = (0..600).map(|_| standing(&mut meter)).last().unwrap();
    assert!(last.self_fixed_ns <= last.self_ns && last.self_fixed_ns > 0.9 * last.self_ns, "{last:?}");
    assert_eq!(last.fixed_ns(), last.self_fixed_ns + last.side_records_ns);
    let ratio = meter.cost().fixed_ratio;
    assert!((ratio / 0.0033 - 1.0).abs() < 0.02, "{ratio}");
}

#[test]
fn a_tenfold_step_is_followed_within_two_seconds() {
    let mut meter = OverheadMeter::new(model());
    (0..100).for_each(|_| {
        meter.observe(&reading(50, 20, 0), TICK_NS);
    });
    (0..20).for_each(|_| {
        meter.observe(&reading(50, 1_100, 0), TICK_NS);
    });
    let o = meter.cost().target.mean_ns;
    assert!((o / 120_000.0 - 1.0).abs() < 0.05, "{o}");
}

#[test]
fn a_low_rate_does_not_make_samples_dear() {
    let mut meter = OverheadMeter::new(model());
    // 3 ms a second whatever the rate, 4 µs a sample; the rate falls from 500 to 10 Hz.
    let own = |samples: u64| 300_000 + 4_000 * samples;
    (0..100).for_each(|i| {
        meter.observe(&reading(40 + i % 20, 20, own(40 + i % 20)), TICK_NS);
    });
    (0..100).for_each(|_| {
        meter.observe(&reading(1, 20, own(1)), TICK_NS);
    });
    let cost = meter.cost();
    assert!(cost.self_ns < 12_000.0, "{}", cost.self_ns);
    assert!((cost.fixed_ratio / 0.003 - 1.0).abs() < 0.05, "{}", cost.fixed_ratio);
}

#[test]
fn an_invalid_model_falls_back_to_the_prior() {
    let bad = CostModel { per_sample_ns: Cost::new(f64::NAN, -1.0), ..model() };
    assert_eq!(OverheadMeter::new(bad).model.per_sample_ns, CostModel::default().per_sample_ns);
}

#[test]
fn what_the_handler_takes_in_the_field_is_what_samples_are_charged_at() {
    let mut meter = OverheadMeter::new(model());
    meter.observe(&reading(50, 20, 0), TICK_NS);
    let times = [HandlerTime { time_ns: 7_000.0, frames: 20, stack_bytes: 0 }; 50];
    meter.observe_handler(&times);
    // 9.2 µs outside of the handler, 7 in it.
    let (o, handler) = (meter.cost().target, meter.handler().unwrap());
    assert!((o.mean_ns / 16_200.0 - 1.0).abs() < 0.01, "{o:?}");
    assert!((handler.time.mean_ns / 7_000.0 - 1.0).abs() < 0.02 && handler.samples == 50, "{handler:?}");
    let spend = meter.spend(&reading(10, 20, 0));
    assert!((spend.samples_ns() / 162_000.0 - 1.0).abs() < 0.01, "{spend:?}");
    let non_targets = Reading { foreign_samples: 10, ..reading(10, 20, 0) };
    assert!(meter.spend(&non_targets).foreign_ns > 100_000.0, "the handler is theirs, too");
}

/// What is spent whatever the rate: switches of a target that hardly runs are few, whatever they are of its CPU time, and records of
/// non-target processes go on as they came.
#[test]
fn what_no_sample_causes_is_foreseen_in_cpu_time() {
    let after = |reading: Reading| {
        let mut meter = OverheadMeter::new(model());
        for _ in 0..600 {
            meter.observe(&reading, TICK_NS);
        }
        meter
    };
    let quiet = after(Reading { target_cpu_ns: 100_000, ..Reading::default() });
    let switching = after(Reading { target_cpu_ns: 100_000, switches: 2, ..Reading::default() });
    let more_cpus = switching.fixed_cpus() - quiet.fixed_cpus();
    assert!((more_cpus / 40e-6 - 1.0).abs() < 0.02, "{more_cpus}");
    let forking = after(Reading { target_cpu_ns: 100_000, foreign_side_records: 100, ..Reading::default() });
    let more_cpus = forking.fixed_cpus() - quiet.fixed_cpus();
    assert!((more_cpus / 3e-3 - 1.0).abs() < 0.02, "{more_cpus}");
    let more_ratio = |busy_cpus| forking.fixed_ratio(busy_cpus) - quiet.fixed_ratio(busy_cpus);
    assert!((more_ratio(0.01) / 0.03 - 1.0).abs() < 0.02 && (more_ratio(1.0) / 0.003 - 1.0).abs() < 0.02);
    assert!((forking.cost().fixed_ratio - forking.fixed_ratio(0.001)).abs() < 1e-9);
    let mut left = forking.clone();
    left.forget_switches();
    assert!((left.fixed_cpus() - quiet.fixed_cpus()).abs() < 1e-6);
}
