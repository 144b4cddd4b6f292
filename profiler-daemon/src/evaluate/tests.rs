use std::time::Duration;

use super::design::Arm;
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

fn evaluated() -> (Vec<Observation>, Findings) {
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
    (runs, Findings { figures, claims })
}

#[test]
fn the_table_of_an_evaluation() {
    let (runs, Findings { figures, claims }) = evaluated();
    insta::assert_snapshot!(table::render(&runs, &figures, &claims));
}

#[test]
fn the_picture_has_the_programs_the_rates_and_the_choice() {
    let (runs, findings) = evaluated();
    let svg = content(Path::new("a.svg"), &job(), &runs, Some(&findings), &[]).unwrap();
    for text in
        ["big, expected", "halves, measured", "even, chosen: 1,500/s", "samples per CPU-second", "(%)"]
    {
        assert!(svg.contains(text), "{text} is missing");
    }
    assert!(!svg.contains("NaN"));
}

#[test]
fn the_file_has_everything_with_its_units() {
    let (runs, findings) = evaluated();
    let notes = ["a note".to_owned()];
    let text = content(Path::new("a.json"), &job(), &runs, Some(&findings), &notes).unwrap();
    let object: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(object["runs"].as_array().unwrap().len(), job().design.runs().len());
    assert_eq!(object["figures"]["shapes"].as_array().unwrap().len(), SHAPES.len());
    assert!(object["claims"].as_array().unwrap().iter().all(|claim| claim["low_ratio"].is_f64()));
    assert!(object["runs"][0]["cpu_s"].is_f64() && object["notes"][0] == "a note");
}

#[test]
fn runs_without_figures_are_written_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let job =
        EvaluateJob { files: ["a.json", "a.svg"].map(|name| folder.path().join(name)).to_vec(), ..job() };
    let mut runs = evaluated().0;
    runs.retain(|run| run.arm != Arm::Unsampled);
    let notes = ["a run is missing".to_owned()];
    let error = deliver(&job, &runs, &notes, Terminal { quiet: true }).unwrap_err().to_string();
    assert_eq!(error, verdict::NoFigures::TooFew.to_string());
    let text = std::fs::read_to_string(&job.files[0]).expect("fifteen minutes of runs");
    let object: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(object["figures"].is_null() && object["claims"].as_array().unwrap().is_empty());
    assert_eq!(object["runs"].as_array().unwrap().len(), runs.len());
    assert_eq!(object["notes"][0], "a run is missing");
    assert!(!job.files[1].exists(), "there is nothing to draw");
}
