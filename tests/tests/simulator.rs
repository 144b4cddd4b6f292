//! The simulated host is what the other tests lean on, so it is held to what must be true of it.

use tests::sim::{Phase, Profile, Scenario, profile};

fn play(phase: Phase, duration_s: f64, seed: u64) -> Profile {
    let scenario = Scenario { fixed_rate_hz: Some(1_000.0), ..Scenario::of(vec![phase], duration_s) };
    profile(&scenario, seed, 1.0)
}

/// Means over seeds of a function's share as sampled and as it was, and the root mean square of the difference.
fn shares(phase: &Phase, function: usize, seeds: u64) -> (f64, f64, f64) {
    let totals = (0..seeds).map(|seed| play(phase.clone(), 10.0, seed).total());
    let (mut seen, mut truth, mut squares) = (0.0, 0.0, 0.0);
    for total in totals {
        seen += total.share(function);
        truth += total.true_share(function);
        squares += (total.share(function) - total.true_share(function)).powi(2);
    }
    let n = seeds as f64;
    (seen / n, truth / n, (squares / n).sqrt())
}

#[test]
fn weights_and_truth_add_up_to_the_cpu_time() {
    let phase = Phase { threads: 3, sample_us: 99.0, ..Phase::default() };
    let profile = play(phase, 20.0, 3);
    let total = profile.total();
    let (weight_s, true_s) =
        (total.weight_ns.iter().sum::<f64>() * 1e-9, total.true_ns.iter().sum::<f64>() * 1e-9);
    assert!((19..=21).contains(&profile.windows.len()), "{}", profile.windows.len());
    assert!((profile.cpu_s - 60.0).abs() < 0.5, "{}", profile.cpu_s);
    assert!((weight_s / profile.cpu_s - 1.0).abs() < 0.002, "{weight_s}");
    // What samples took is the rest: 100 µs at 1,000/s are a tenth.
    assert!((true_s + profile.charged_s - profile.cpu_s).abs() < 0.001, "{true_s} {}", profile.charged_s);
    assert!((profile.charged_s / profile.cpu_s - 0.1).abs() < 0.005, "{}", profile.charged_s);
    assert_eq!(profile.samples, total.samples.iter().sum::<u64>());
}

#[test]
fn the_same_seed_plays_the_same_run() {
    let run = |seed| play(Phase::default(), 3.0, seed).total();
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn long_bouts_scatter_more_than_short_ones_and_neither_is_biased() {
    let mut scatter = Vec::new();
    let true_share = |phase: &Phase, seed| play(phase.clone(), 5.0, seed).total().true_share(0);
    for bout_ms in [0.2, 100.0] {
        let phase = Phase { bout_ms, ..Phase::default() };
        let (seen, truth, off) = shares(&phase, 0, 40);
        assert!((seen - truth).abs() < 0.004, "{seen} {truth}");
        let squares: f64 = (0..20).map(|seed| (true_share(&phase, seed) - 0.3).powi(2)).sum();
        scatter.push((squares / 20.0).sqrt());
        // The realised share is met better than by 10,000 independent samples, most of all in long bouts.
        assert!(off < 1.2 * (0.3 * 0.7 / 10_000f64).sqrt(), "{bout_ms} ms: {off}");
    }
    assert!(5.0 * scatter[0] < scatter[1], "{scatter:?}");
}

#[test]
fn a_program_in_rounds_is_periodic() {
    let phase = Phase { round_ms: 10.0, shares: vec![1.0, 3.0], ..Phase::default() };
    let (seen, truth, _) = shares(&phase, 0, 10);
    assert!((truth - 0.25).abs() < 0.001, "{truth}");
    assert!((seen - truth).abs() < 0.005, "{seen}");
}

#[test]
fn a_function_whose_samples_are_dear_is_overstated_by_its_excess() {
    // 100 µs in the first function, 10 µs in the others: at 1,000/s, bias of a share = λ·(o_i − ō). It takes bouts longer
    // than a period: no sample falls into the cost of the one before, only into what that one delayed.
    let phase = Phase {
        bout_ms: 50.0,
        shares: vec![1.0, 1.0, 1.0, 1.0],
        sample_us: 10.0,
        cost_factors: vec![10.0],
        frames: 0.0,
        ..Phase::default()
    };
    let (seen, truth, _) = shares(&phase, 0, 20);
    let mean_us: f64 = (100.0 + 3.0 * 10.0) / 4.0;
    let expected = 1_000.0 * (100.0 - mean_us) * 1e-6;
    let bias = seen / truth - 1.0;
    assert!((bias / expected - 1.0).abs() < 0.2, "{bias}, first order {expected}");
}

#[test]
fn phases_bursts_and_threads_show_in_the_windows() {
    let first = Phase { shares: vec![1.0, 0.0], ..Phase::default() };
    let second =
        Phase { from_s: 5.0, shares: vec![0.0, 1.0], threads: 2, utilisation: 0.5, ..Phase::default() };
    let scenario = Scenario::of(vec![first, second], 10.0);
    let profile = profile(&scenario, 1, 1.0);
    let last = &profile.windows[profile.windows.len() - 2];
    assert!(profile.windows[0].true_share(0) > 0.99, "{:?}", profile.windows[0]);
    assert!(last.true_share(1) > 0.99 && last.share(1) > 0.99, "{last:?}");
    assert!((profile.cpu_s - 10.0).abs() < 0.2, "{}", profile.cpu_s);
}
