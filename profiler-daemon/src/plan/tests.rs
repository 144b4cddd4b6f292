use profiler_core::rate::Criterion;
use proptest::prelude::*;

use super::*;

fn job(horizon: &str, share: &str, overhead: &str, criterion: impl ToString) -> PlanJob {
    PlanJob {
        clock_tick_ns: None,
        horizon: horizon.parse().unwrap(),
        share: share.parse().unwrap(),
        overhead: overhead.parse().unwrap(),
        variance_ratio: 1.0,
        replicas: 1,
        criterion: criterion.to_string().parse().unwrap(),
        budget: "1%".parse().unwrap(),
        file: None,
        json: false,
    }
}

fn published() -> PlanJob {
    job("300s", "0.2", "250us", "z=1.96")
}

fn near(value: f64, expected: f64, tolerance: f64) {
    assert!((value - expected).abs() <= tolerance, "{value} is not {expected} ± {tolerance}");
}

#[test]
fn the_plan_of_the_published_example() {
    let plan = law::plan(&published()).unwrap();
    near(plan.best.samples, 17_685.8, 0.05);
    near(plan.best.high_s, 62.653, 0.0005);
    near(plan.crossing_samples, 28_074.0, 0.5);
    insta::assert_snapshot!(render(&published(), &plan));
}

#[test]
fn the_chart_of_the_published_example() {
    let plan = law::plan(&published()).unwrap();
    insta::assert_snapshot!(picture::chart(&published(), &plan).text(80));
}

#[test]
fn the_curve_is_lowest_at_the_best_number_of_samples() {
    for criterion in Criterion::ALL.into_iter().chain([Criterion::UpperCurve { z: 0.1 }]) {
        let plan = law::plan(&job("60s", "0.15", "12.6us", criterion)).unwrap();
        let lowest = plan.curve.iter().min_by(|a, b| a.error_s.total_cmp(&b.error_s)).unwrap();
        near(lowest.samples / plan.best.samples, 1.0, 0.03);
        assert!(plan.best.error_s <= lowest.error_s, "{criterion}");
    }
}

#[test]
fn the_budget_binds_where_it_is_the_least() {
    let mut job = published();
    let plan = law::plan(&job).unwrap();
    assert_eq!(plan.bound_by, BoundBy::Budget);
    near(plan.budget_hz, 40.0, 1e-9);
    near(plan.loss_when_bound, 1.035, 0.001); // x = .6785: (x + 2/√x)/3
    job.budget = "2%".parse().unwrap();
    let plan = law::plan(&job).unwrap();
    assert_eq!((plan.bound_by, plan.rate_hz), (BoundBy::Law, plan.optimum_rate_hz));
}

#[test]
fn json_has_the_figures_with_their_units() {
    let text = json(&published(), &law::plan(&published()).unwrap());
    let object: serde_json::Value = serde_json::from_str(&text).unwrap();
    near(object["optimum_rate_hz"].as_f64().unwrap(), 58.953, 0.001);
    near(object["optimum"]["high_cpu_s"].as_f64().unwrap(), 62.653, 0.0005);
    assert_eq!(object["bound_by"], "budget");
    assert_eq!(object["curve"].as_array().unwrap().len(), 241);
}

proptest! {
    /// From a millisecond to a month, and any cost.
    #[test]
    fn every_plan_is_finite(
        horizon_ns in 1e6..2.6e15f64, share in 1e-9..0.999_999_999f64, part in 1e-12..0.999f64,
        budget in 1e-9..0.5f64, index in 0..Criterion::ALL.len(), variance in prop_oneof![Just(1.0), 1e-6..1e3f64],
    ) {
        let criterion = Criterion::ALL[index];
        let overhead_ns = (horizon_ns * part).ceil();
        let mut job = job(&format!("{horizon_ns:.0}ns"), "0.5", &format!("{overhead_ns:.0}ns"), criterion);
        job.variance_ratio = variance;
        (job.share, job.budget) = (config::Ratio::new(share).unwrap(), config::Ratio::new(budget).unwrap());
        let plan = law::plan(&job).unwrap();
        let losses = [plan.loss_at_half, plan.loss_at_double, plan.loss_when_bound];
        prop_assert!(losses.iter().all(|loss| loss.is_finite() && *loss > 0.999), "{losses:?}");
        let mut points = plan.curve.iter().chain([&plan.best]);
        prop_assert!(points.all(|point| point.error_s.is_finite() && point.samples > 0.0));
        for drawn in [picture::chart(&job, &plan), pace::rates(&job, &plan), pace::samples(&job, &plan)] {
            prop_assert!(!drawn.svg().contains("NaN") && !drawn.text(80).contains("NaN"));
        }
        prop_assert!(!pace::table(&job, &plan).contains("NaN") && !pace::table(&job, &plan).contains("inf"));
        serde_json::from_str::<serde_json::Value>(&json(&job, &plan)).unwrap();
    }
}

#[test]
fn timers_are_bound_by_the_kernels_tick() {
    let published = PlanJob { budget: "10%".parse().unwrap(), ..published() };
    let slow = PlanJob { clock_tick_ns: Some(20_000_000), ..published.clone() };
    let plan = law::plan(&slow).unwrap();
    assert_eq!((plan.bound_by, plan.rate_hz, plan.kernel_hz), (BoundBy::Tick, 50.0, 50.0));
    assert!(render(&slow, &plan).contains("the kernel's tick"));
    let fast = PlanJob { clock_tick_ns: Some(1_000_000), ..published };
    assert_eq!(law::plan(&fast).unwrap().bound_by, BoundBy::Law);
}

/// The anytime law keeps its distance to the best at every end, the law for a horizon only near the horizon.
#[test]
fn both_laws_over_the_run() {
    for criterion in Criterion::ALL {
        let job = job("300s", "0.2", "250us", criterion);
        let plan = law::plan(&job).unwrap();
        let (first, last) = (plan.moments[0], plan.moments[plan.moments.len() - 1]);
        near(first.cpu_s, 0.3, 1e-9);
        near(last.cpu_s, 300.0, 1e-9);
        near(last.anytime_rate_hz, plan.anytime.rate_hz, 1e-9);
        near(last.anytime_samples, plan.anytime.samples, 1e-6);
        near(first.anytime_rate_hz / last.anytime_rate_hz, 10.0, 1e-9);
        near(first.anytime_error_ratio, last.anytime_error_ratio, 1e-9);
        near(last.horizon_error_ratio, 1.0, 1e-9);
        // The same two by the errors of runs that end there.
        let short = law::plan(&PlanJob { horizon: "300ms".parse().unwrap(), ..job.clone() }).unwrap();
        near(short.anytime.samples, first.anytime_samples, 1e-6);
        let fall = plan.moments.windows(2).all(|pair| {
            pair[0].horizon_error_ratio > pair[1].horizon_error_ratio
                && pair[0].anytime_rate_hz > pair[1].anytime_rate_hz
        });
        assert!(fall && first.horizon_error_ratio > 1.5, "{criterion}: {first:?}");
    }
}

#[test]
fn both_laws_of_the_published_example() {
    let (job, plan) = (published(), law::plan(&published()).unwrap());
    insta::assert_snapshot!(format!("{}\n{}", pace::rates(&job, &plan).text(80), pace::table(&job, &plan)));
    let drawn =
        plot::svg(&[picture::chart(&job, &plan), pace::rates(&job, &plan), pace::samples(&job, &plan)]);
    for text in ["measured CPU time (s)", "samples/s of CPU time", "samples since the start"] {
        assert!(drawn.contains(text), "{text}");
    }
    assert_eq!((drawn.matches("<svg").count(), drawn.matches("<style").count()), (1, 1));
}

/// The rate goes with the cube root of the variance, the error at it too, and both laws alike.
#[test]
fn functions_that_run_on_need_fewer_samples() {
    for criterion in Criterion::ALL {
        let independent = job("60s", "0.2", "10us", criterion);
        let visits = PlanJob { variance_ratio: 0.125, ..independent.clone() };
        let [one, other] = [&independent, &visits].map(|job| law::plan(job).unwrap());
        near(other.optimum_rate_hz / one.optimum_rate_hz, 0.5, 1e-9);
        near(other.anytime.samples / one.anytime.samples, 0.5, 1e-9);
        near(other.crossing_samples / one.crossing_samples, 0.5, 1e-9);
        near(other.best.error_s / one.best.error_s, 0.5, 1e-6);
        let lowest = other.curve.iter().map(|point| point.error_s).fold(f64::INFINITY, f64::min);
        assert!(other.best.error_s <= lowest, "{criterion}");
        assert!(render(&visits, &other).contains("0.125: the best rate is 0.50 times"), "{criterion}");
    }
}

/// Each of R replicas samples by the cube root of their number, and so falls the error of all together.
#[test]
fn replicas_need_fewer_samples_each_and_know_more_together() {
    for criterion in Criterion::ALL {
        let alone = PlanJob { budget: "50%".parse().unwrap(), ..job("60s", "0.2", "10us", criterion) };
        for replicas in [1, 8, 1_000] {
            let job = PlanJob { replicas, ..alone.clone() };
            let plan = law::plan(&job).unwrap();
            let factor = f64::from(replicas).cbrt().recip();
            near(plan.fleet.rate_hz / plan.optimum_rate_hz, factor, 1e-9);
            near(plan.fleet.samples / plan.best.samples, factor, 1e-9);
            near(plan.fleet.error_ratio / plan.fleet.alone_error_ratio, factor, 1e-6);
            assert_eq!(render(&job, &plan).contains("replicas"), replicas > 1, "{criterion}");
        }
    }
    // A budget that binds one alone may not bind one of many.
    let job = PlanJob { replicas: 1_000, ..published() };
    let plan = law::plan(&job).unwrap();
    assert_eq!((plan.bound_by, plan.fleet.bound_by), (BoundBy::Budget, BoundBy::Law));
    let text = render(&job, &plan);
    assert!(text.contains("1,000: each samples 0.15 times as often as one alone: 5.895/s of CPU time (bound by the law), 1,769 samples"), "{text}");
}
