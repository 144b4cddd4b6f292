use std::time::Duration;

use super::simulated::Machine;
use super::*;

fn job() -> EvaluateJob {
    EvaluateJob {
        design: Design { rounds: 2, cpu: Duration::from_secs(2), seed: 3 },
        unwind: config::Unwind::Auto,
        files: Vec::new(),
        quiet: true,
    }
}

fn evaluated() -> (Vec<Observation>, Figures, Vec<Claim>) {
    let machine = Machine {
        overhead_us: 13.0,
        exponent: 0.0,
        told_us: 13.0,
        variance: 1.0,
        noise_ratio: 0.003,
        adaptive_hz: 1_500.0,
    };
    let runs = machine.run(&job().design);
    let figures = figures(&runs.iter().collect::<Vec<_>>()).unwrap();
    let claims = claims(&runs, &figures, 3);
    (runs, figures, claims)
}

#[test]
fn the_table_of_an_evaluation() {
    let (runs, figures, claims) = evaluated();
    insta::assert_snapshot!(table::render(&runs, &figures, &claims));
}

#[test]
fn the_picture_has_the_programs_the_rates_and_the_choice() {
    let (runs, figures, claims) = evaluated();
    let svg = content(Path::new("a.svg"), &job(), &runs, &figures, &claims, &[]);
    for text in
        ["big, expected", "halves, measured", "even, chosen: 1,500/s", "samples per CPU-second", "(%)"]
    {
        assert!(svg.contains(text), "{text} is missing");
    }
    assert!(!svg.contains("NaN"));
}

#[test]
fn the_file_has_everything_with_its_units() {
    let (runs, figures, claims) = evaluated();
    let notes = ["a note".to_owned()];
    let text = content(Path::new("a.json"), &job(), &runs, &figures, &claims, &notes);
    let object: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(object["runs"].as_array().unwrap().len(), job().design.runs().len());
    assert_eq!(object["figures"]["shapes"].as_array().unwrap().len(), SHAPES.len());
    assert!(object["claims"].as_array().unwrap().iter().all(|claim| claim["low_ratio"].is_f64()));
    assert!(object["runs"][0]["cpu_s"].is_f64() && object["notes"][0] == "a note");
}
