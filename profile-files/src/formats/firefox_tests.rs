use std::collections::BTreeSet;

use fxprof_processed_profile as fxprof;
use profiler_core::profile::{Measure, Outcome, ProcessInfo};

use super::*;
use crate::testing;

fn written(profile: &SymbolizedProfile) -> Value {
    let mut out = Vec::new();
    write(profile, &mut out).unwrap();
    serde_json::from_slice(&out).unwrap()
}

fn numbers(column: &Value) -> Vec<f64> {
    column.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

/// The names of the functions of a sample, root first.
fn names(thread: &Value, sample: usize) -> Vec<String> {
    let mut stack = thread["samples"]["stack"][sample].as_u64();
    let mut names = Vec::new();
    while let Some(at) = stack {
        let row = |table: &str, column: &str, at: &Value| {
            thread[table][column][at.as_u64().unwrap() as usize].clone()
        };
        let at = at.into();
        let function = row("frameTable", "func", &row("stackTable", "frame", &at));
        let name = row("funcTable", "name", &function).as_u64().unwrap() as usize;
        names.push(thread["stringArray"][name].as_str().unwrap().to_owned());
        stack = row("stackTable", "prefix", &at).as_u64();
    }
    names.reverse();
    names
}

/// The profile as a tool that keeps no times would have it.
fn without_times() -> SymbolizedProfile {
    let mut profile = testing::profile();
    profile.windows.clear();
    profile.stacks.iter_mut().for_each(|stack| stack.windows.clear());
    profile
}

#[test]
fn the_tables_of_a_run() {
    let file = written(&without_times());
    let keys = ["samples", "stackTable", "frameTable", "funcTable", "resourceTable", "stringArray"];
    let lines = keys.map(|key| format!("{key}: {}\n", file["threads"][0][key]));
    insta::assert_snapshot!(format!("meta: {}\nlibs: {}\n{}", file["meta"], file["libs"], lines.concat()));
}

/// Paths of all keys; of an array, those of its first element.
fn keys(value: &Value, at: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => object.iter().for_each(|(key, value)| {
            let path = format!("{at}.{key}");
            keys(value, &path, found);
            found.insert(path);
        }),
        Value::Array(array) => array.iter().take(1).for_each(|value| keys(value, at, found)),
        _ => {}
    }
}

#[test]
fn the_keys_are_those_of_the_crate_that_mozilla_s_profiler_has() {
    let interval = fxprof::SamplingInterval::from_millis(1);
    let start = fxprof::ReferenceTimestamp::from_millis_since_unix_epoch(0.0);
    let zero = fxprof::Timestamp::from_nanos_since_reference(0);
    let mut profile = fxprof::Profile::new("sweetspot", start, interval);
    let process = profile.add_process("server", 4711, zero);
    let thread = profile.add_thread(process, 4711, zero, true);
    let text = String::new;
    let library = profile.add_lib(fxprof::LibraryInfo {
        name: text(),
        debug_name: text(),
        path: text(),
        debug_path: text(),
        debug_id: fxprof::debugid::DebugId::nil(),
        code_id: None,
        arch: None,
        symbol_table: None,
    });
    let frame = fxprof::FrameInfo {
        frame: fxprof::Frame::RelativeAddressFromInstructionPointer(library, 1),
        category_pair: fxprof::CategoryHandle::OTHER.into(),
        flags: fxprof::FrameFlags::empty(),
    };
    let stack = profile.intern_stack_frames(thread, [frame].into_iter());
    profile.add_sample(thread, zero, stack, fxprof::CpuDelta::ZERO, 1);
    let theirs = serde_json::to_value(&profile).unwrap();
    let ours = written(&testing::profile());
    assert_eq!(ours["meta"]["preprocessedProfileVersion"], theirs["meta"]["preprocessedProfileVersion"]);
    let [mut our_keys, mut their_keys] = [BTreeSet::from([".meta.arguments".to_owned()]), BTreeSet::new()];
    keys(&theirs, "", &mut our_keys);
    keys(&ours, "", &mut their_keys);
    assert_eq!(our_keys, their_keys);
}

#[test]
fn weights_add_up_to_the_cpu_time_and_times_increase() {
    let many = {
        let mut profile = testing::profile();
        let third = profile.stacks[0].clone();
        profile.stacks = vec![WeightedStack { cpu_ns: 333_333, windows: Vec::new(), ..third }; 10_000];
        profile
    };
    for profile in [testing::profile(), without_times(), many] {
        let file = written(&profile);
        let samples = &file["threads"][0]["samples"];
        let (weights, deltas) = (numbers(&samples["weight"]), numbers(&samples["timeDeltas"]));
        let cpu_ns: u64 = profile.stacks.iter().map(|stack| stack.cpu_ns).sum();
        let sum: f64 = weights.iter().sum();
        assert!((sum - cpu_ns as f64 / 1e6).abs() < 1e-3, "{sum} ms of {cpu_ns} ns");
        let cpu: f64 = numbers(&samples["threadCPUDelta"]).iter().sum();
        assert!((cpu / 1e3 - sum).abs() < 1e-3, "{cpu} µs of {sum} ms");
        assert!(deltas.iter().all(|delta| *delta > 0.0), "{deltas:?}");
        assert_eq!(samples["length"], weights.len());
        for column in ["stack", "timeDeltas", "threadCPUDelta"] {
            assert_eq!(samples[column].as_array().unwrap().len(), weights.len(), "{column}");
        }
        assert_eq!(samples["weightType"], "tracing-ms");
    }
}

#[test]
fn every_stack_has_its_cpu_time_and_its_inlined_functions() {
    let thread = &written(&testing::profile())["threads"][0];
    let weights = numbers(&thread["samples"]["weight"]);
    let of = |leaf: &[&str]| -> f64 {
        let is_it = |at: &usize| names(thread, *at) == leaf;
        (0..weights.len()).filter(is_it).map(|at| weights[at]).sum()
    };
    for (stack, ms) in [
        (&["_start", "main", "serve", "parse", "memcpy"][..], 4_000.0),
        (&["_start", "main", "serve", "parse"], 3_000.0),
        (&["_start", "main", "walk", "walk", "walk"], 2_000.0),
        (&["clear_page"], 800.0),
        (&["[no stack]"], 10.0),
    ] {
        assert!((of(stack) - ms).abs() < 1e-6, "{stack:?}: {} ms", of(stack));
    }
}

#[test]
fn samples_are_in_their_windows() {
    let profile = testing::profile();
    let thread = &written(&profile)["threads"][0];
    let mut time_ms = 0.0;
    for (at, delta) in numbers(&thread["samples"]["timeDeltas"]).iter().enumerate() {
        time_ms += delta;
        if names(thread, at) == ["clear_page"] {
            assert!(time_ms > 5_000.0 && time_ms <= 10_000.0, "windows 10 to 19, not {time_ms} ms");
        }
    }
    assert!(
        (time_ms - 10_000.0).abs() < 1e-3,
        "the last window that saw anything ends then, not at {time_ms}"
    );
    assert_eq!(
        (thread["registerTime"].as_f64(), thread["unregisterTime"].as_f64()),
        (Some(0.0), Some(12_250.0))
    );
}

#[test]
fn nothing_runs_between_windows() {
    let mut profile = testing::profile();
    profile.stacks = vec![testing::stack(&[0], Outcome::Complete, 4..5, 1, 1_000_000)];
    profile.stacks.push(testing::stack(&[1], Outcome::Complete, 7..9, 2, 4_000_000));
    let samples = &written(&profile)["threads"][0]["samples"];
    assert_eq!(samples["stack"], json!([null, 0, null, 1, 1]));
    assert_eq!(numbers(&samples["timeDeltas"]), [2_000.0, 500.0, 1_000.0, 500.0, 500.0]);
    assert_eq!(numbers(&samples["weight"]), [0.0, 1.0, 0.0, 2.0, 2.0]);
}

#[test]
fn each_process_is_a_thread_with_a_pid_of_its_own() {
    let mut profile = testing::profile();
    profile.processes.extend(["sh", "idle"].map(|comm| ProcessInfo { pid: 4711, comm: comm.to_owned() }));
    profile.stacks[1].process.0 = 1;
    let file = written(&profile);
    let threads = file["threads"].as_array().unwrap();
    let told: Vec<_> =
        threads.iter().map(|thread| [&thread["name"], &thread["pid"], &thread["tid"]]).collect();
    assert_eq!(told, [["server", "4711", "4711"], ["sh", "4711.1", "4711.1"], ["idle", "4711.2", "4711.2"]]);
    let sum = |at: usize| numbers(&threads[at]["samples"]["weight"]).iter().sum::<f64>();
    assert!((sum(0) - 7_010.0).abs() < 1e-3 && (sum(1) - 3_000.0).abs() < 1e-3 && sum(2) == 0.0);
    assert_eq!(threads[2]["stringArray"], json!([]));
}

#[test]
fn another_time_is_called_what_it_is() {
    let mut profile = without_times();
    profile.run.measure = Measure::Other { time: "delay".to_owned(), counted: "contentions".to_owned() };
    profile.run.duration_s = 0.0;
    profile.run.rate.rate_hz = 0.0;
    let file = written(&profile);
    assert_eq!(
        (file["threads"][0]["name"].as_str(), file["meta"]["interval"].as_f64()),
        (Some("server: delay time"), Some(1.0))
    );
    let samples = &file["threads"][0]["samples"];
    assert!(samples["threadCPUDelta"].is_null());
    assert_eq!(samples["timeDeltas"], samples["weight"], "one after the other");
}

#[test]
fn hostile_names_and_numbers_are_read_back() {
    let mut profile = testing::profile();
    let hostile = format!("</script><script>|\n\"\\\u{0}{}", "x".repeat(10_000));
    profile.functions[0].name.clone_from(&hostile);
    profile.processes[0].comm.clone_from(&hostile);
    profile.stacks[0].windows[0].window = 99; // there is no such window
    profile.stacks[1].cpu_ns = u64::MAX;
    profile.stacks[1].windows.clear();
    let file = written(&profile);
    assert_eq!(file["threads"][0]["name"], *hostile);
    assert!(file["threads"][0]["stringArray"].as_array().unwrap().contains(&hostile.into()));
}

#[test]
fn a_profile_without_samples_has_no_threads_and_equal_profiles_give_equal_bytes() {
    assert_eq!(written(&SymbolizedProfile::default())["threads"], json!([]));
    let bytes = || {
        let mut out = Vec::new();
        write(&testing::profile(), &mut out).unwrap();
        out
    };
    assert_eq!(bytes(), bytes());
}
