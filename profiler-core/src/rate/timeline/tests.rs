use super::*;

const TICK_NS: u64 = 100_000_000;
const SLICE_NS: u64 = 1_000_000;

/// A task that runs `utilisation` of the time: steadily, or in bursts of 50 ms.
struct Task {
    utilisation: f64,
    bursts: bool,
}

impl Task {
    /// CPU time in the slice that starts at `at_ns`.
    fn runs(&self, at_ns: u64) -> f64 {
        if !self.bursts {
            return self.utilisation * SLICE_NS as f64;
        }
        let cycle = 50.37e6 / self.utilisation; // no multiple of a tick
        if (at_ns as f64) % cycle < 50e6 { SLICE_NS as f64 } else { 0.0 }
    }
}

/// Samples the task for `cpu_s` and returns (sum of weights, CPU time, samples): a countdown in CPU time that
/// each setting restarts, read a tick late.
fn sample(task: &Task, cpu_s: f64, seed: u64, mean_at: impl Fn(u64) -> u64) -> (f64, f64, u64) {
    let mut dither = Dither::new(seed);
    let mut period = dither.draw(mean_at(0));
    let mut timeline = PeriodTimeline::new(0, period);
    let (mut now, mut cpu, mut left, mut weight, mut samples) = (0, 0.0, period as f64, 0.0, 0);
    let (mut unread, mut tick) = (VecDeque::new(), TICK_NS);
    while cpu < cpu_s * 1e9 {
        let ran = task.runs(now);
        cpu += ran;
        left -= ran;
        now += SLICE_NS;
        while left <= 0.0 {
            unread.push_back(now);
            left += period as f64;
        }
        if now >= tick {
            tick += dither.step_ns(now);
            while unread.front().is_some_and(|at| *at + TICK_NS <= now) {
                weight += timeline.weight(unread.pop_front().unwrap()) as f64;
                samples += 1;
            }
            let mean = mean_at(now);
            if timeline.due(now, mean, &mut dither) {
                period = dither.draw(mean);
                timeline.set(now + 1, period, mean);
                left = period as f64;
            }
        }
    }
    for at in unread {
        weight += timeline.weight(at) as f64;
        samples += 1;
    }
    (weight, cpu, samples)
}

/// Long enough for 60,000 samples, or an hour of wall time, whichever is less.
fn long_enough(task: &Task, rate_hz: f64) -> f64 {
    (30_000.0 / rate_hz).min(2_400.0 * task.utilisation)
}

fn tasks() -> impl Iterator<Item = Task> {
    [0.01, 0.03, 0.1, 0.35, 0.7, 1.0]
        .into_iter()
        .flat_map(|utilisation| [false, true].map(|bursts| Task { utilisation, bursts }))
}

fn check(rates: &[f64], what: &str, mean_at: impl Fn(f64, u64) -> u64) {
    for (task, &rate) in tasks().flat_map(|task| rates.iter().map(move |rate| (Task { ..task }, rate))) {
        let cpu_s = long_enough(&task, rate);
        let (mut weight, mut cpu, mut samples) = (0.0, 0.0, 0);
        for seed in 0..4 {
            let run = sample(&task, cpu_s, seed, |at| mean_at(rate, at));
            (weight, cpu, samples) = (weight + run.0, cpu + run.1, samples + run.2);
        }
        // Four runs end with a period each that no sample stands for yet, hence the second term.
        let allowed = 0.0125 * cpu + 4.0 * 1.5e9 / rate;
        let label = format!(
            "{what}: {} {} at {rate} Hz",
            task.utilisation,
            if task.bursts { "in bursts" } else { "steady" }
        );
        assert!((weight - cpu).abs() <= allowed, "{label}: {:+.4} of {samples} samples", weight / cpu - 1.0);
    }
}

#[test]
fn weights_add_up_to_the_cpu_time_at_a_constant_rate() {
    check(&[10.0, 45.0, 450.0, 5_000.0], "constant", |rate, _| (1e9 / rate) as u64);
}

#[test]
fn weights_add_up_through_retunes() {
    // The rate doubles and halves every other second.
    let retuned = |rate: f64, at: u64| {
        (1e9 / (rate * if (at / 2_000_000_000).is_multiple_of(2) { 1.0 } else { 2.0 })) as u64
    };
    check(&[10.0, 450.0, 2_500.0], "retunes", retuned);
}

#[test]
fn weights_add_up_through_throttling() {
    // Half a second in ten at a tenth of the rate, with a cap that moves each tick.
    let throttled = |rate: f64, at: u64| {
        let tick = at / TICK_NS % 97;
        let factor = if tick < 5 { 0.1 + 0.05 * tick as f64 } else { 1.0 };
        (1e9 / (rate * factor)) as u64
    };
    check(&[45.0, 450.0, 5_000.0], "throttling", throttled);
}

#[test]
fn a_task_that_hardly_runs_is_sampled() {
    let task = Task { utilisation: 0.01, bursts: false };
    let (_, cpu, samples) = sample(&task, 30.0, 1, |_| 22_000_000);
    let expected = cpu / 22e6;
    assert!(samples as f64 > 0.93 * expected, "{samples} of {expected}");
}

#[test]
fn the_first_sample_of_a_span_stands_for_its_end_too() {
    let mut timeline = PeriodTimeline::new(0, 1_000);
    assert_eq!(timeline.weight(1_000), 1_500);
    timeline.set(5_500, 3_000, 3_000);
    assert_eq!(timeline.weight(2_000), 1_000); // taken before, read later
    assert_eq!(timeline.weight(8_500), 4_500);
    assert_eq!(timeline.weight(11_500), 3_000);
}

/// A task of which each event is opened anew every second, sampled or not. It runs once in that time.
fn reopened_every_second(mean_ns: f64, seconds: u64) -> (f64, f64) {
    const PERIOD_NS: u64 = 2_000_000;
    let mut rng = fastrand::Rng::with_seed(5);
    let mut timeline = PeriodTimeline::new(0, PERIOD_NS);
    let (mut weight, mut cpu) = (0.0, 0.0);
    for second in 0..seconds {
        let ran_ns = -mean_ns * (1.0 - rng.f64()).ln();
        cpu += ran_ns;
        for _ in 0..(ran_ns / PERIOD_NS as f64) as u64 {
            weight += timeline.weight(second * 1_000_000_000 + 500_000_000) as f64;
        }
        timeline.set((second + 1) * 1_000_000_000, PERIOD_NS, PERIOD_NS);
    }
    (weight, cpu)
}

#[test]
fn a_task_that_runs_for_less_than_a_period_between_restarts_is_weighed_all_the_same() {
    for (mean_ns, allowed) in [(1e6, 0.2), (2e6, 0.15), (6e6, 0.06), (20e6, 0.01)] {
        let (weight, cpu) = reopened_every_second(mean_ns, 50_000);
        assert!((weight / cpu - 1.0).abs() < allowed, "{mean_ns}: {:+.4}", weight / cpu - 1.0);
    }
}

#[test]
fn a_task_that_sleeps_for_an_hour_does_not_wake_up_with_its_weight() {
    let mut timeline = PeriodTimeline::new(0, 1_000_000);
    (1..=3_600).for_each(|second| timeline.set(second * 1_000_000_000, 1_000_000, 1_000_000));
    let first = timeline.weight(3_601_000_000_000);
    assert!(first < 10_000_000, "{first}");
}

#[test]
fn hostile_times_and_periods_do_no_harm() {
    let mut timeline = PeriodTimeline::new(u64::MAX, 0);
    let mut dither = Dither::new(0);
    for x in [0, u64::MAX, 1, u64::MAX] {
        timeline.due(x, u64::MAX, &mut dither);
        timeline.set(x, x, x);
        timeline.weight(x);
    }
}

/// A whole CPU's clock and a program that is busy for a part of each millisecond: periods near a multiple of it would find it asleep
/// all the time, and no sample would ever have them drawn anew.
#[test]
fn a_clock_that_runs_on_is_redrawn_without_samples() {
    const MEAN_NS: u64 = 2_000_000;
    for (busy_ns, seed) in [(300_000, 1), (300_000, 2), (100_000, 3), (900_000, 4)] {
        let mut dither = Dither::new(seed);
        let mut timeline = PeriodTimeline::new(0, MEAN_NS);
        timeline.run_on(true);
        let (mut expiry_ns, mut period_ns, mut weight_ns, mut look_ns) = (MEAN_NS, MEAN_NS, 0, 0);
        const END_NS: u64 = 200_000_000_000;
        while expiry_ns < END_NS {
            if look_ns < expiry_ns {
                if timeline.due(look_ns, MEAN_NS, &mut dither) {
                    period_ns = dither.draw(MEAN_NS);
                    timeline.set(look_ns, period_ns, MEAN_NS);
                    expiry_ns = look_ns + period_ns;
                }
                look_ns += dither.step_ns(look_ns);
                continue;
            }
            if expiry_ns % 1_000_000 < busy_ns {
                weight_ns += timeline.weight(expiry_ns);
            }
            expiry_ns += period_ns;
        }
        let ratio = weight_ns as f64 / (END_NS as f64 * busy_ns as f64 * 1e-6);
        assert!((ratio - 1.0).abs() < 0.015, "{busy_ns}: {ratio}");
    }
}

/// Programs in step with the kernel's tick, and a whole CPU's clock that is as fast on average. It sees each function for as long as that
/// runs, since its period is drawn anew; with the same period all the time it sees a function always or never.
#[test]
fn programs_in_step_with_the_tick_are_sampled_as_any_other() {
    const GRID_NS: u64 = 4_000_000;
    const END_NS: u64 = 2_000_000_000_000;
    // When after a tick each of two functions begins, and for how long it runs.
    let programs: [[(u64, u64); 2]; 3] = [
        [(0, 300_000), (300_000, 550_000)], // ticks find the first at work, and then it idles
        [(1_500_000, 300_000), (1_800_000, 550_000)], // ticks find it asleep
        [(0, 1_000_000), (1_000_000, 3_000_000)], // always busy, in the first at each tick
    ];
    for (program, seed) in programs.into_iter().zip(1..) {
        let seen = |is_redrawn: bool| {
            let mut dither = Dither::new(seed);
            let mut timeline = PeriodTimeline::new(0, GRID_NS);
            timeline.run_on(true);
            let (mut expiry_ns, mut period_ns, mut look_ns) = (GRID_NS, GRID_NS, 0);
            let mut weights_ns = [0; 2];
            while expiry_ns < END_NS {
                if look_ns < expiry_ns {
                    if is_redrawn && timeline.due(look_ns, GRID_NS, &mut dither) {
                        period_ns = dither.draw(GRID_NS);
                        timeline.set(look_ns, period_ns, GRID_NS);
                        expiry_ns = look_ns + period_ns;
                    }
                    look_ns += dither.step_ns(look_ns);
                    continue;
                }
                let place_ns = expiry_ns % GRID_NS;
                let is_hit =
                    |(from_ns, long_ns): &(u64, u64)| (*from_ns..from_ns + long_ns).contains(&place_ns);
                if let Some(function) = program.iter().position(is_hit) {
                    weights_ns[function] += timeline.weight(expiry_ns);
                }
                expiry_ns += period_ns;
            }
            let ran_ns = program.map(|(_, long_ns)| (END_NS / GRID_NS * long_ns) as f64);
            [0, 1].map(|function| weights_ns[function] as f64 / ran_ns[function])
        };
        let (redrawn, fixed) = (seen(true), seen(false));
        assert!(redrawn.iter().all(|ratio| (ratio - 1.0).abs() < 0.03), "{program:?}: {redrawn:?}");
        assert!(fixed.iter().all(|ratio| *ratio == 0.0 || *ratio > 3.9), "{program:?}: {fixed:?}");
    }
}

/// As on an isolated CPU, where only the idle task runs.
#[test]
fn a_clock_without_samples_keeps_few_spans() {
    let mut timeline = PeriodTimeline::new(0, 1_000_000);
    timeline.run_on(true);
    for at in 1..100_000 {
        timeline.set(at * 100_000_000, 1_000_000, 1_000_000);
    }
    assert_eq!(timeline.spans.len(), MOST_SPANS);
    assert_eq!(timeline.weight(99_999 * 100_000_000), 1_000_000);
}
