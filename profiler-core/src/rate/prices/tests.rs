use super::*;
use crate::rate::SampleKind;

/// A sample of 12 µs, 0.8 µs of which pass in the handler.
fn calibrated() -> CostModel {
    CostModel {
        per_sample_ns: Cost::new(12_000.0, 300.0),
        per_frame_ns: Cost::new(50.0, 5.0),
        per_byte_ns: Cost::new(0.2, 0.02),
        per_handler_ns: Some(Cost::new(800.0, 40.0)),
        ..CostModel::default()
    }
}

/// Times around `of`, each off by up to `noise_ns` either way.
fn times(count: u64, noise_ns: f64, seed: u64, of: impl Fn(u64) -> HandlerTime) -> Vec<HandlerTime> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let noisy = |time: HandlerTime| HandlerTime {
        time_ns: time.time_ns + noise_ns * (2.0 * rng.f64() - 1.0),
        ..time
    };
    (0..count).map(of).map(noisy).collect()
}

/// A handler whose bytes cost three times what was calibrated.
fn dear_copies(i: u64) -> HandlerTime {
    let (frames, stack_bytes) = (10 + i % 20, 16_384);
    HandlerTime { time_ns: 800.0 + 50.0 * frames as f64 + 0.6 * stack_bytes as f64, frames, stack_bytes }
}

#[test]
fn before_it_is_timed_the_calibration_holds() {
    let mut prices = Prices::new(calibrated());
    assert_eq!(prices.sample(30.0, 8_192.0), calibrated().sample(30.0, 8_192.0));
    assert_eq!(prices.parts_ns(30.0, 8_192.0), [12_000.0, 50.0, 0.2]);
    assert_eq!(prices.field(30.0, 8_192.0), None);
}

#[test]
fn a_burst_shows_what_copies_cost_here() {
    let mut prices = Prices::new(calibrated());
    prices.observe(&times(25, 200.0, 1, dear_copies));
    let truth_ns = 11_200.0 + 800.0 + 50.0 * 20.0 + 0.6 * 16_384.0;
    let told = prices.sample(20.0, 16_384.0);
    assert!((told.mean_ns / truth_ns - 1.0).abs() < 0.02, "{told:?} of {truth_ns}");
    // The interrupt is as unsure as the calibration left it, its handler's error included.
    assert!((300.0..400.0).contains(&told.se_ns), "{told:?}");
    let [bare_ns, frame_ns, byte_ns] = prices.parts_ns(20.0, 16_384.0);
    assert!((bare_ns + 20.0 * frame_ns + 16_384.0 * byte_ns - told.mean_ns).abs() < 1e-6);
    assert!((byte_ns / 0.6 - 1.0).abs() < 0.15, "{byte_ns}");
    let field = prices.field(20.0, 16_384.0).unwrap();
    assert!(
        (field.time.mean_ns - (told.mean_ns - 11_200.0)).abs() < 1e-6 && field.samples == 25,
        "{field:?}"
    );
}

#[test]
fn stacks_of_a_kind_that_was_not_timed_are_as_sure_as_the_calibration() {
    let mut prices = Prices::new(calibrated());
    let walked =
        |i: u64| HandlerTime { time_ns: 900.0 + 60.0 * (i % 20) as f64, frames: i % 20, stack_bytes: 0 };
    prices.observe(&times(25, 100.0, 6, walked));
    let (copied, before) = (prices.sample(5.0, 60_000.0), calibrated().sample(5.0, 60_000.0));
    assert!((copied.mean_ns / before.mean_ns - 1.0).abs() < 0.05, "{copied:?} {before:?}");
    assert!(copied.se_ns <= before.se_ns, "{copied:?} {before:?}");
    let few = &times(2, 1_000.0, 7, walked);
    let mut prices = Prices::new(calibrated());
    prices.observe(few);
    assert!(prices.field(5.0, 0.0).unwrap().time.se_ns > 100.0, "two times are not much");
}

#[test]
fn a_burst_of_another_cost_is_believed_at_once() {
    let cold = |i: u64| HandlerTime { time_ns: dear_copies(i).time_ns + 12_000.0, ..dear_copies(i) };
    let mut prices = Prices::new(calibrated());
    (0..20).for_each(|burst| prices.observe(&times(50, 500.0, burst, dear_copies)));
    let before_ns = prices.sample(20.0, 16_384.0).mean_ns;
    prices.observe(&times(50, 500.0, 99, cold));
    let after_ns = prices.sample(20.0, 16_384.0).mean_ns;
    assert!(((after_ns - before_ns) / 12_000.0 - 1.0).abs() < 0.1, "{before_ns} {after_ns}");
    // A few of them are outliers.
    prices.observe(&times(9, 500.0, 100, dear_copies));
    assert!((prices.sample(20.0, 16_384.0).mean_ns / after_ns - 1.0).abs() < 0.1);
}

#[test]
fn a_time_that_the_hypervisor_stole_hardly_counts() {
    let mut prices = Prices::new(calibrated());
    prices.observe(&times(100, 200.0, 2, dear_copies));
    let before = prices.sample(20.0, 16_384.0).mean_ns;
    let stolen = HandlerTime { time_ns: 4e6, frames: 20, stack_bytes: 16_384 };
    prices.observe(&[stolen]);
    let after = prices.sample(20.0, 16_384.0).mean_ns;
    assert!((after - before).abs() < 50.0, "{before} {after}");
}

#[test]
fn what_is_no_time_and_what_cannot_be_compared_teaches_nothing() {
    let mut prices = Prices::new(calibrated());
    for time_ns in [f64::NAN, f64::INFINITY, -1.0, 1e18] {
        prices.observe(&[HandlerTime { time_ns, frames: 1, stack_bytes: 0 }]);
    }
    assert_eq!(prices.field(1.0, 0.0), None);
    let untimed = CostModel { per_handler_ns: None, ..calibrated() };
    let mut prices = Prices::new(untimed);
    prices.observe(&times(50, 200.0, 3, dear_copies));
    assert_eq!((prices.field(20.0, 0.0), prices.sample(20.0, 0.0)), (None, untimed.sample(20.0, 0.0)));
}

#[test]
fn cold_and_warm_are_told_apart_whatever_the_stacks() {
    let mut prices = Prices::new(calibrated());
    let of = |i: u64| {
        let frames = 10 + i * 7 % 30;
        let cold_ns = if i.is_multiple_of(4) { 4_000.0 } else { 0.0 };
        HandlerTime { time_ns: 1_000.0 + cold_ns + 50.0 * frames as f64, frames, stack_bytes: 0 }
    };
    prices.observe(&times(400, 150.0, 4, of));
    let modes = prices.field(20.0, 0.0).unwrap().modes;
    let [warm, cold] = modes[..] else { panic!("{modes:?}") };
    assert!((warm.share - 0.75).abs() < 0.02 && (cold.share - 0.25).abs() < 0.02, "{modes:?}");
    assert!((cold.overhead_us - warm.overhead_us - 4.0).abs() < 0.1, "{modes:?}");
    let mut prices = Prices::new(calibrated());
    prices.observe(&times(400, 150.0, 5, |i| HandlerTime {
        time_ns: 1_500.0,
        frames: i % 40,
        stack_bytes: 0,
    }));
    assert_eq!(prices.field(20.0, 0.0).unwrap().modes, []);
}

/// Every window of every target asks for them, and to look for them takes milliseconds.
#[test]
fn modes_are_looked_for_again_when_a_quarter_of_the_times_is_new() {
    let mut prices = Prices::new(calibrated());
    let of = |i: u64| {
        let cold_ns = if i.is_multiple_of(4) { 4_000.0 } else { 0.0 };
        HandlerTime { time_ns: 2_000.0 + cold_ns, frames: 20, stack_bytes: 0 }
    };
    let shares = |prices: &mut Prices| -> Vec<f64> {
        prices.field(20.0, 0.0).unwrap().modes.iter().map(|mode| mode.share).collect()
    };
    prices.observe(&times(400, 150.0, 4, of));
    let first = shares(&mut prices);
    assert_eq!(first.len(), 2);
    prices.observe(&times(99, 150.0, 5, of));
    assert_eq!(shares(&mut prices), first, "not yet");
    prices.observe(&times(1, 150.0, 6, of));
    assert_ne!(shares(&mut prices), first);
    let dearer = prices.field(30.0, 0.0).unwrap().modes[0].overhead_us;
    assert!(dearer > prices.field(20.0, 0.0).unwrap().modes[0].overhead_us, "they follow the usual stack");
}

/// If the handler is timed in a program, the rest is what was measured beside the handler, and not what is stated for unknown
/// programs.
#[test]
fn on_a_host_that_became_busy_the_rest_grows_from_what_was_measured_beside_the_handler() {
    let outside_ns = Cost::new(8_000.0, 100.0);
    let kind = SampleKind { sample: Cost::new(8_800.0, 100.0), handler: Cost::new(800.0, 10.0), frames: 0.0 };
    let costs = [Cost::new(800.0, 10.0), Cost::new(50.0, 5.0), Cost::new(0.2, 0.02)];
    let calibrated = CostModel {
        cache_sensitivity: CacheSensitivity::fit(&[kind], costs),
        per_interrupt_ns: Some(Cost::new(9_000.0, 50.0)),
        ..calibrated()
    };
    let mut prices = Prices::new(calibrated);
    prices.observe(&times(100, 50.0, 8, |_| HandlerTime { time_ns: 800.0, frames: 0, stack_bytes: 0 }));
    (0..12).for_each(|_| prices.observe_interrupts(&[18_000.0; 10]));
    assert!((prices.interrupt_ratio() - 2.0).abs() < 0.01);
    let told_ns = prices.sample(0.0, 0.0).mean_ns;
    assert!((told_ns / (2.0 * outside_ns.mean_ns + 800.0) - 1.0).abs() < 0.05, "{told_ns}");
}
