use super::*;
use crate::rate::model::{Horizon, Threads};

const CRITERIA: [Criterion; 4] =
    [Criterion::UpperCurve { z: 1.96 }, Criterion::MeanSquared, Criterion::MeanAbsolute, Criterion::P95];
const TICK: Tick = Tick { hz: 250.0, overhead_s: 2.3e-6, overhead_se_s: 0.3e-6, audit_hz: 0.0 };
const CLOCK_S: f64 = 16.3e-6;
const OPEN: MixCaps = MixCaps {
    budget_ratio: 1e3,
    tick_s: 1e-6,
    clock_s: 1e-6,
    kernel_hz: f64::INFINITY,
    bytes_hz: f64::INFINITY,
};

fn law(criterion: Criterion, horizon_s: f64) -> Law {
    Law::new(criterion, 2.0, CLOCK_S, horizon_s)
}

fn close(a: f64, b: f64, within: f64) -> bool {
    (a - b).abs() <= within * b.abs()
}

#[test]
fn the_upper_curve_has_the_closed_form() {
    let upper = Criterion::UpperCurve { z: 1.96 };
    for horizon_s in [1.0, 60.0, 3_600.0, 1e5, 1e6] {
        let tick_only = Law::new(upper, 2.0, TICK.overhead_s, horizon_s).rate_hz().unwrap();
        let clock_only = law(upper, horizon_s).rate_hz().unwrap();
        let mix = law(upper, horizon_s).mix(&TICK, &OPEN).unwrap();
        assert!(close(mix.tick_hz, tick_only.min(250.0), 1e-6), "{horizon_s}: {mix:?}");
        assert!((mix.clock_hz - (clock_only - 250.0).max(0.0)).abs() < 1e-3, "{horizon_s}: {mix:?}");
    }
}

#[test]
fn without_a_tick_every_criterion_has_the_law_of_one_source() {
    for criterion in CRITERIA {
        let one = law(criterion, 60.0);
        for tick in [Tick { hz: 0.0, ..TICK }, Tick { overhead_s: CLOCK_S, ..TICK }] {
            let mix = one.mix(&tick, &OPEN).unwrap();
            assert_eq!(mix.tick_hz, 0.0);
            assert!(close(mix.clock_hz, one.rate_hz().unwrap(), 1e-6), "{criterion}: {mix:?}");
        }
        let mix = one.clone().compensated(1e-6).mix(&Tick { hz: 0.0, ..TICK }, &OPEN).unwrap();
        assert!(close(mix.clock_hz, one.clone().compensated(1e-6).rate_hz().unwrap(), 1e-6));
    }
}

#[test]
fn a_tick_without_bound_is_the_law_at_its_own_cost() {
    for criterion in CRITERIA {
        let mix = law(criterion, 60.0).mix(&Tick { hz: 1e8, ..TICK }, &OPEN).unwrap();
        let alone = Law::new(criterion, 2.0, TICK.overhead_s, 60.0).rate_hz().unwrap();
        assert!(close(mix.tick_hz, alone, 1e-6) && mix.clock_hz < 1e-6, "{criterion}: {mix:?}");
    }
}

/// The mean square has its optimum at a root of λ²(o_c·λ − HZ(o_c − o_t)) = S²/(2·o_c·W).
#[test]
fn the_mean_square_has_the_root_of_its_cubic() {
    let mix = law(Criterion::MeanSquared, 60.0).mix(&TICK, &OPEN).unwrap();
    let rate = mix.tick_hz + mix.clock_hz;
    let left = rate * rate * (CLOCK_S * rate - 250.0 * (CLOCK_S - TICK.overhead_s));
    assert!(close(left, 4.0 / (2.0 * CLOCK_S * 60.0), 1e-6), "{left}");
    let simple = law(Criterion::MeanSquared, 60.0).rate_hz().unwrap() - 250.0;
    assert!(mix.clock_hz > 1.05 * simple, "{} above {simple}", mix.clock_hz);
}

/// No rates on a fine grid do better, at any horizon, for any criterion, with an audit and without.
#[test]
fn nothing_on_a_grid_is_better() {
    for criterion in CRITERIA {
        for horizon_s in [1.0, 60.0, 600.0, 3_600.0, 1e6] {
            for audit_hz in [0.0, 20.0] {
                let (law, tick) = (law(criterion, horizon_s), Tick { audit_hz, ..TICK });
                let mix = law.mix(&tick, &OPEN).unwrap();
                let best = law.error_at(&tick, mix.tick_hz, mix.clock_hz).unwrap();
                for step in 0..=20 {
                    let ticks = 12.5 * f64::from(step);
                    for power in 0..30 {
                        let clock = audit_hz + 10f64.powf(-2.0 + 0.2 * f64::from(power));
                        let error = law.error_at(&tick, ticks, clock).unwrap();
                        assert!(
                            error >= best * (1.0 - 1e-9),
                            "{criterion} {horizon_s}: {ticks}+{clock}, {mix:?}"
                        );
                    }
                }
            }
        }
    }
}

/// Two sources are never worse than one, and better wherever the tick is taken.
#[test]
fn a_tick_gains_at_every_horizon_that_is_not_huge() {
    for criterion in CRITERIA {
        for horizon_s in [1.0, 10.0, 60.0, 300.0, 3_600.0, 86_400.0] {
            let law = law(criterion, horizon_s);
            let tick = Tick { audit_hz: 20.0, ..TICK };
            let mix = law.mix(&tick, &OPEN).unwrap();
            let one = law.error_at(&tick, 0.0, law.rate_hz().unwrap()).unwrap();
            let two = law.error_at(&tick, mix.tick_hz, mix.clock_hz).unwrap();
            assert!(two <= one * (1.0 + 1e-9), "{criterion} {horizon_s}: {two} {one}");
        }
    }
}

#[test]
fn an_audit_that_is_dearer_than_the_ticks_are_worth_is_not_paid() {
    let huge = law(Criterion::MeanAbsolute, 1e8);
    let mix = huge.mix(&Tick { audit_hz: 20.0, ..TICK }, &OPEN).unwrap();
    assert_eq!(mix.tick_hz, 0.0);
    assert!(close(mix.clock_hz, huge.rate_hz().unwrap(), 1e-6), "{mix:?}");
}

#[test]
fn the_caps_cut_the_path_in_its_order() {
    let tick = Tick { audit_hz: 20.0, ..TICK };
    let law = law(Criterion::MeanAbsolute, 1.0);
    let mix = |budget_ratio| {
        let caps = MixCaps { budget_ratio, tick_s: 10e-6, clock_s: 30e-6, ..OPEN };
        law.mix(&tick, &caps).unwrap()
    };
    let spent = |mix: &Mix| mix.tick_hz * 10e-6 + mix.clock_hz * 30e-6;
    for budget_ratio in [0.0001, 0.001, 0.005, 0.01] {
        let mix = mix(budget_ratio);
        assert_eq!(mix.bound_by, BoundBy::Budget);
        assert!(close(spent(&mix), budget_ratio, 1e-9), "{mix:?}");
    }
    assert!(close(mix(0.001).tick_hz, 40.0, 1e-9) && close(mix(0.001).clock_hz, 20.0, 1e-9));
    assert_eq!(mix(0.0001).tick_hz, 0.0, "what is left does not even pay the audit");
    assert!(close(mix(0.01).tick_hz, 250.0, 1e-9) && close(mix(0.01).clock_hz, 250.0, 1e-9));
    let bytes = law.mix(&tick, &MixCaps { bytes_hz: 100.0, ..OPEN }).unwrap();
    assert!((bytes.bound_by, bytes.tick_hz + bytes.clock_hz) == (BoundBy::Bytes, 100.0), "{bytes:?}");
    let kernel = law.mix(&tick, &MixCaps { kernel_hz: 50.0, ..OPEN }).unwrap();
    assert!((kernel.bound_by, kernel.clock_hz.round()) == (BoundBy::Kernel, 50.0), "{kernel:?}");
}

#[test]
fn horizons_threads_and_compensation_enter_as_they_do_with_one_source() {
    let upper = Criterion::UpperCurve { z: 1.96 };
    let several = law(upper, 60.0).over(vec![Horizon::new(1.0), Horizon::new(60.0)]);
    let mix = several.mix(&TICK, &OPEN).unwrap();
    assert!(close(mix.clock_hz, several.rate_hz().unwrap() - 250.0, 1e-6));
    let lockstep = law(upper, 1.0).threads(Threads::in_lockstep(2.0)).replicas(2.0);
    let mix = lockstep.mix(&TICK, &OPEN).unwrap();
    assert!(close(mix.clock_hz, lockstep.rate_hz().unwrap() - 250.0, 1e-6));
    let compensated = law(upper, 60.0).compensated(2e-6);
    let (mix, one) = (compensated.mix(&TICK, &OPEN).unwrap(), compensated.rate_hz().unwrap());
    assert!(mix.tick_hz == 250.0 && mix.clock_hz > one - 250.0, "{mix:?} {one}");
}

#[test]
fn what_is_no_tick_is_none() {
    for tick in [
        Tick { hz: f64::NAN, ..TICK },
        Tick { hz: -1.0, ..TICK },
        Tick { overhead_s: f64::NAN, ..TICK },
        Tick { overhead_s: 0.0, ..TICK },
    ] {
        assert_eq!(law(Criterion::MeanAbsolute, 60.0).mix(&tick, &OPEN).unwrap().tick_hz, 0.0);
    }
    assert!(Law::new(Criterion::MeanAbsolute, 2.0, 0.0, 60.0).mix(&TICK, &OPEN).is_err());
    let known = Law::new(Criterion::MeanAbsolute, 0.0, CLOCK_S, 60.0).mix(&TICK, &OPEN).unwrap();
    assert!(known.tick_hz + known.clock_hz < 1e-6, "all time in one function: {known:?}");
}
