use profiler_core::attach::AttachChoice;
use profiler_core::rate::{Cost, CostModel, RateSettings, predict};

use super::*;

fn job(budget: &str) -> PlanProcessJob {
    let sampling = config::SamplingSettings { budget: budget.parse().unwrap(), ..Default::default() };
    PlanProcessJob { pid: 4711, duration: Duration::from_secs(2), sampling, file: None, json: false }
}

fn busy() -> Activity {
    Activity {
        wall_ns: 2_000_000_000,
        target_cpu_ns: 3_000_000_000,
        foreign_cpu_ns: 500_000_000,
        switches: 2_400,
        side_records: 3,
        forks: 2,
        ends: 1,
        stack_bytes: Some(Figure::new(3_000.0, 3_000.0)),
        ..Activity::default()
    }
}

fn forecast_of(job: &PlanProcessJob, watched: Activity, per_sample_ns: Cost) -> Forecast {
    let settings = RateSettings {
        budget_ratio: job.sampling.budget.get(),
        own_cpu_ratio: Some(0.1),
        horizon_s: Some(60.0),
        expected_stack_bytes: 8_192.0,
        ..RateSettings::default()
    };
    let costs = CostModel { per_sample_ns, ..CostModel::default() };
    let choice = AttachChoice::new(None, true, 3, 2, watched.switches_per_s());
    let prediction = predict(settings, costs, &watched, choice);
    Forecast { name: "server".to_owned(), threads: 3, watched, prediction, notes: vec!["a note".to_owned()] }
}

fn plan_of(job: &PlanProcessJob, forecast: &Forecast) -> Plan {
    let function = largest_function(job, &forecast.prediction).unwrap();
    law::plan_under(&function, forecast.prediction.caps).unwrap()
}

#[test]
fn the_prediction_in_words() {
    let job = job("1%");
    insta::assert_snapshot!(render(&job, &forecast_of(&job, busy(), Cost::new(6_000.0, 500.0))));
}

/// The curve is that of the law which the prediction asked, under the caps that it found.
#[test]
fn the_curve_agrees_with_the_prediction() {
    for budget in ["1%", "5%"] {
        let job = job(budget);
        let forecast = forecast_of(&job, busy(), Cost::new(6_000.0, 500.0));
        let (plan, prediction) = (plan_of(&job, &forecast), forecast.prediction);
        let off = plan.optimum_rate_hz / prediction.unbounded_rate_hz - 1.0;
        assert!(off.abs() < 1e-4, "{} and {}", plan.optimum_rate_hz, prediction.unbounded_rate_hz);
        assert_eq!((plan.bound_by, plan.budget_hz), (prediction.bound_by, prediction.caps.budget_hz));
        let function = largest_function(&job, &prediction).unwrap();
        let drawn = chart(&forecast, &function, &plan).text(80);
        assert!(drawn.starts_with("server: a function that takes 15% of 60s"), "{drawn}");
        assert!(drawn.contains(&format!("budget of {budget}")), "{drawn}");
    }
}

#[test]
fn whatever_a_process_does_the_texts_hold_figures() {
    let wild = Activity { switches: u64::MAX, forks: u64::MAX, ..busy() };
    let idle = Activity { wall_ns: 1, ..Activity::default() };
    for watched in [busy(), wild, idle, Activity { target_cpu_ns: u64::MAX, ..busy() }] {
        for cost in [Cost::new(6_000.0, 500.0), Cost::new(50.0, 0.0), Cost::new(1e9, 1e9)] {
            let job = job("0.01%");
            let forecast = forecast_of(&job, watched, cost);
            let plan = plan_of(&job, &forecast);
            let function = largest_function(&job, &forecast.prediction).unwrap();
            let drawn = chart(&forecast, &function, &plan);
            let texts = [drawn.svg(), drawn.text(80), render(&job, &forecast)];
            assert!(texts.iter().all(|text| !text.contains("NaN") && !text.contains("inf")), "{texts:?}");
            let object: serde_json::Value = serde_json::from_str(&json(&job, &forecast, &plan)).unwrap();
            let figures = object.as_object().unwrap().iter().filter(|(key, _)| key.starts_with("predicted_"));
            assert_eq!(figures.clone().filter(|(_, value)| value.is_f64()).count(), 12, "{object}");
        }
    }
}
