use profiler_core::rate::CostModel;

use super::super::full::SampleCosts;
use super::*;

fn kept(thoroughness: Thoroughness, load_ratio: f64) -> StoredCalibration {
    let model = CostModel {
        per_sample_ns: Cost::new(12_600.0, 210.0),
        per_frame_ns: Cost::new(49.0, 3.0),
        per_byte_ns: Cost::new(0.2, 0.01),
        ..CostModel::default()
    };
    let (machine, quick) = ("here".to_owned(), Vec::new());
    StoredCalibration { machine, taken_unix_ns: 1, thoroughness, load_ratio, model, quick }
}

fn found(kept: &StoredCalibration) -> Characterised {
    let CostModel { per_sample_ns, per_frame_ns, per_byte_ns, .. } = kept.model;
    let costs = SampleCosts { per_sample_ns, per_frame_ns, per_byte_ns };
    Characterised {
        model: kept.model,
        compute: costs,
        memory: costs,
        rare: per_sample_ns,
        own: costs,
        load_ratio: kept.load_ratio,
    }
}

fn report<'a>(kept: &'a StoredCalibration, parts: Option<&'a Characterised>, keeping: Keeping) -> Report<'a> {
    let access = Access { cpu_wide: false, kernel: false, targets: 1 };
    Report { kept, parts, access, place: CpuPair { work: 0, profiler: None }, keeping }
}

#[test]
fn the_table_has_every_cost_with_its_unit() {
    let kept = kept(Thoroughness::Full, 0.01);
    let found = found(&kept);
    let text = report(&kept, Some(&found), Keeping::Kept("/c/calibration.json".into())).text();
    let costs = text.split("\nmachine").next().unwrap();
    insta::assert_snapshot!(costs);
}

#[test]
fn what_is_less_than_perfect_is_said() {
    let kept = kept(Thoroughness::Quick, 0.5);
    let text = report(&kept, None, Keeping::BetterThere("/c/calibration.json".into())).text();
    for word in ["busy", "guesses", "one CPU", "kernel", "not kept"] {
        assert!(text.contains(word), "no {word} in {text}");
    }
}

#[test]
fn a_program_gets_one_object() {
    let kept = kept(Thoroughness::Full, 0.01);
    let found = found(&kept);
    let json = report(&kept, Some(&found), Keeping::Nowhere).json().unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["type"], "calibration");
    assert_eq!(json["model"]["per_sample_ns"]["mean_ns"], 12_600.0);
    assert_eq!(json["parts"]["memory"]["per_frame_ns"]["se_ns"], 3.0);
    assert_eq!((&json["loaded"], &json["thoroughness"]), (&false.into(), &"full".into()));
}
