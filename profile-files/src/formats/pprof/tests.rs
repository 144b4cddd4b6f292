use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use prost::Message;

use super::message::{
    PprofFunction, PprofLine, PprofLocation, PprofMapping, PprofProfile, PprofSample, PprofValueType,
};
use super::read::ReadError;
use super::{comments, read, write};
use crate::formats::Format;
use crate::formats::table::{View, render};
use crate::functions::functions;
use crate::testing;
use profiler_core::profile::{Outcome, StackWindow, SymbolizedProfile, WeightedStack};

fn written(profile: &SymbolizedProfile) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(profile, &mut bytes).unwrap();
    bytes
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// A file as another tool would write it: counts of samples, a period, addresses without names.
fn of_another_tool() -> PprofProfile {
    PprofProfile {
        string_table: ["", "samples", "count", "cpu", "nanoseconds", "/bin/prog", "work"]
            .map(String::from)
            .to_vec(),
        sample_type: vec![PprofValueType { kind: 1, unit: 2 }],
        period_type: Some(PprofValueType { kind: 3, unit: 4 }),
        period: 10_000_000,
        sample: vec![
            PprofSample { location_id: vec![1, 2], value: vec![3], label: vec![] },
            PprofSample { location_id: vec![2], value: vec![1], label: vec![] },
        ],
        mapping: vec![PprofMapping { id: 7, filename: 5, ..Default::default() }],
        location: vec![
            PprofLocation { id: 1, mapping_id: 7, address: 0x10, line: vec![] },
            PprofLocation {
                id: 2,
                mapping_id: 0,
                address: 0x20,
                line: vec![PprofLine { function_id: 9, line: -1 }],
            },
        ],
        function: vec![PprofFunction { id: 9, name: 6, ..Default::default() }],
        ..Default::default()
    }
}

/// More than the reader believes is left out with a word, and not written in vain.
#[test]
fn windows_that_nobody_would_read_are_left_out_and_that_is_said() {
    let profile = testing::profile();
    let windows = |count: usize| SymbolizedProfile {
        windows: (0..count as u64)
            .map(|at| profiler_core::profile::Window { start_ns: at, end_ns: at + 1 })
            .collect(),
        ..profile.clone()
    };
    let most = read(written(&windows(1024)).as_slice()).unwrap();
    assert_eq!((most.windows.len(), most.run.notes.len()), (1024, profile.run.notes.len()));
    let more = read(written(&windows(1025)).as_slice()).unwrap();
    assert_eq!((more.windows.len(), more.stacks.len()), (0, profile.stacks.len()));
    assert!(more.run.notes.last().unwrap().contains("left out"), "{:?}", more.run.notes);
    let mut large = windows(1024);
    let stack = large.stacks[0].clone();
    large.stacks = (0..20_000)
        .map(|at| WeightedStack {
            windows: (0..300).map(|window| StackWindow { window, cpu_ns: 1 << 40, samples: at }).collect(),
            ..stack.clone()
        })
        .collect();
    let large = read(written(&large).as_slice()).unwrap();
    assert_eq!((large.windows.len(), large.stacks.len()), (0, 20_000));
    assert!(large.run.notes.iter().any(|note| note.contains("left out")), "{:?}", large.run.notes);
}

#[test]
fn what_is_written_reads_back_whole() {
    let profile = testing::profile();
    let read = read(written(&profile).as_slice()).unwrap();
    assert_eq!(read.processes, profile.processes);
    assert_eq!(read.modules, profile.modules);
    assert_eq!(read.locations.len(), profile.locations.len());
    assert_eq!(read.locations[6].unknown, profile.locations[6].unknown);
    assert_eq!(read.stacks, profile.stacks);
    assert_eq!(read.windows, profile.windows);
    assert_eq!(read.run.rate_history, profile.run.rate_history);
}

#[test]
fn every_key_of_the_run_reads_back() {
    let mut profile = testing::profile();
    (profile.run.counts.undecodable, profile.run.counts.throttled, profile.run.counts.foreign_samples) =
        (4, 5, 6);
    (profile.run.cpu.setup_cpu_s, profile.run.how.stack_copy_bytes) = (0.25, 8192);
    profile.run.cpu.not_sampled_cpu_s = 0.125;
    (profile.run.files.maps_reread, profile.run.files.mappings_dropped, profile.run.files.objects) =
        (7, 8, 9);
    (profile.run.counts.walked_frames, profile.run.counts.copied_bytes) = (14, 15);
    (profile.run.merged_windows, profile.run.counts.unseen_interrupts) = (17, 18);
    profile.run.counts.outer_frames_from_earlier = 16;
    (profile.run.files.files_lost, profile.run.files.symbol_bytes_peak) = (10, 11);
    (profile.run.files.symbol_evictions, profile.run.files.symbol_rereads) = (12, 13);
    let json = |profile: &SymbolizedProfile| serde_json::to_value(&profile.run).unwrap();
    let read = json(&read(written(&profile).as_slice()).unwrap());
    assert_eq!(read, json(&profile));
    let defaults = serde_json::to_value(profiler_core::profile::Run::default()).unwrap();
    for (key, value) in read.as_object().unwrap() {
        assert_ne!(defaults[key], *value, "{key} is not put to the test");
    }
}

#[test]
fn the_table_of_a_file_is_that_of_the_run() {
    let profile = testing::profile();
    let read = read(written(&profile).as_slice()).unwrap();
    let table = functions(&profile);
    assert_eq!(functions(&read), table);
    let as_text = |profile| render(profile, &functions(profile), View { width: 80, top: 20 });
    assert_eq!(as_text(&read), as_text(&profile));
    assert!(table.functions.iter().all(|cost| cost.cpu_s_low.is_some()));
}

#[test]
fn a_file_that_another_tool_rewrote_loses_its_windows_only() {
    let mut profile = testing::profile();
    profile.stacks[0].windows[0].cpu_ns += 1; // no longer its weight
    let changed = read(written(&profile).as_slice()).unwrap();
    assert!(changed.windows.is_empty());
    assert_eq!(changed.run.counts.samples, 602);
    profile.stacks[0].windows[0].cpu_ns -= 1;
    assert!(!read(written(&profile).as_slice()).unwrap().windows.is_empty());
    profile.stacks[0].windows[0].samples += 1;
    assert!(read(written(&profile).as_slice()).unwrap().windows.is_empty());
}

fn unpacked(profile: &SymbolizedProfile) -> Vec<u8> {
    let mut bytes = Vec::new();
    let gz = written(profile);
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(gz.as_slice()), &mut bytes).unwrap();
    bytes
}

/// `profile` as earlier versions wrote it, with its windows as a text, changed by `edit`.
fn with_windows(profile: &SymbolizedProfile, edit: impl Fn(&mut serde_json::Value)) -> Vec<u8> {
    let mut file = PprofProfile::decode(unpacked(profile).as_slice()).unwrap();
    file.windows.clear();
    let spans: Vec<_> = profile.windows.iter().map(|window| (window.start_ns, window.end_ns)).collect();
    let of_stacks = || profile.stacks.iter().map(|stack| stack.windows.iter());
    let cpu_ns: Vec<Vec<_>> =
        of_stacks().map(|had| had.map(|had| (had.window, had.cpu_ns)).collect()).collect();
    let samples: Vec<Vec<_>> = of_stacks().map(|had| had.map(|had| had.samples).collect()).collect();
    let mut windows = serde_json::json!({ "spans_ns": spans, "cpu_ns": cpu_ns, "samples": samples });
    edit(&mut windows);
    file.string_table.push(format!("sweetspot.windows {windows}"));
    file.encode_to_vec()
}

#[test]
fn a_replica_says_what_it_is_one_of() {
    let mut profile = testing::profile();
    let first_comment = |profile: &SymbolizedProfile| comments::write(&profile.run).remove(0);
    assert!(!first_comment(&profile).contains("replicas"));
    profile.run.rate.replicas = 6.04;
    assert!(first_comment(&profile).contains("last rate 60.0 Hz (one of 6.0 replicas), slowdown"));
}

/// Earlier versions wrote comments for programs as pprof's tools show them.
#[test]
fn comments_of_an_earlier_version_are_the_same() {
    let mut profile = testing::profile();
    profile.run.notes = vec!["one\nnote".to_owned(), "and another".to_owned()];
    let mut file = PprofProfile::decode(unpacked(&profile).as_slice()).unwrap();
    let now = read(file.encode_to_vec().as_slice()).unwrap();
    let texts = |file: &PprofProfile| -> Vec<String> {
        file.comment.iter().map(|at| file.string_table[*at as usize].clone()).collect()
    };
    let shown: Vec<String> = texts(&file).into_iter().filter(|text| !text.starts_with('#')).collect();
    assert_eq!(shown.len(), 2, "{shown:?}");
    assert!(shown.iter().all(|text| text.len() < 100 && !text.contains('\n')), "{shown:?}");
    assert_eq!(shown[1], "2 notes: `sweetspot report FILE` shows them");
    for text in &mut file.string_table {
        *text = text.strip_prefix('#').unwrap_or(text).to_owned();
    }
    assert!(texts(&file).iter().any(|text| text.starts_with("sweetspot.run {")));
    let earlier = read(file.encode_to_vec().as_slice()).unwrap();
    let json = |profile: &SymbolizedProfile| serde_json::to_value(&profile.run).unwrap();
    assert_eq!(json(&earlier), json(&now));
    assert_eq!(earlier.run.rate_history, profile.run.rate_history);
}

/// pprof's tools take the first mapping for the program.
#[test]
fn the_program_of_the_heaviest_process_comes_first() {
    let files = |profile: &SymbolizedProfile| -> Vec<String> {
        let file = PprofProfile::decode(unpacked(profile).as_slice()).unwrap();
        file.mapping.iter().map(|mapping| file.string_table[mapping.filename as usize].clone()).collect()
    };
    let mut profile = testing::profile();
    profile.modules.swap(0, 1); // so that the library is where the program was
    assert_eq!(files(&profile)[0], "/opt/server", "by its name");
    let back = read(written(&profile).as_slice()).unwrap();
    assert_eq!(back.modules[0], profile.modules[1]);
    let costs = |profile: &SymbolizedProfile| -> Vec<(String, String, f64)> {
        let all = functions(profile).functions;
        all.into_iter().map(|cost| (cost.name, cost.module, cost.cpu_s)).collect()
    };
    assert_eq!(costs(&back), costs(&profile));
    // Other tools name no process: their first mapping is the program, of which there need be no sample.
    let mut other = of_another_tool();
    other.string_table[5] = "/bin/a-program-of-a-long-name".to_owned();
    other.string_table.push("/bin/helper".to_owned());
    other.mapping.push(PprofMapping { id: 8, filename: 7, ..Default::default() });
    other.location.iter_mut().for_each(|location| location.mapping_id = 8);
    assert_eq!(files(&read(other.encode_to_vec().as_slice()).unwrap())[0], "/bin/a-program-of-a-long-name");
    profile.processes[0].comm = "worker-7".to_owned();
    assert_eq!(files(&profile)[0], "/opt/server", "by its samples");
    profile.modules[1].path = "/opt/plugin.so".to_owned();
    assert_eq!(files(&profile), ["/usr/lib/libc.so.6", "/opt/plugin.so", "[kernel]"], "no program is known");
    profile.processes.clear();
    profile.stacks.clear();
    assert_eq!(files(&profile).len(), 3);
}

/// pprof's tools add up address by address what is of one file and as long.
#[test]
fn how_long_a_module_is_does_not_depend_on_what_was_sampled() {
    let limits = |profile: &SymbolizedProfile| -> Vec<u64> {
        let file = PprofProfile::decode(unpacked(profile).as_slice()).unwrap();
        assert!(file.mapping.iter().all(|mapping| mapping.memory_start == 0));
        file.mapping.iter().map(|mapping| mapping.memory_limit).collect()
    };
    let mut profile = testing::profile();
    profile.modules.iter_mut().find(|module| module.path == "/opt/server").unwrap().end = 0x7f_f123;
    let mut other = profile.clone();
    for location in &mut other.locations {
        location.address = location.address / 2 + 16;
    }
    assert_eq!(limits(&other), limits(&profile));
    assert_eq!(limits(&profile)[0], 0x80_0000);
    assert!(limits(&profile)[1..].iter().all(|limit| *limit == super::EVERYTHING), "{:x?}", limits(&profile));
    let back = read(written(&profile).as_slice()).unwrap();
    assert_eq!((limits(&back), back.modules[0].end), (limits(&profile), 0x80_0000));
}

/// `profile` with another field of windows.
fn with_field(profile: &SymbolizedProfile, windows: Vec<u8>) -> Vec<u8> {
    let mut file = PprofProfile::decode(unpacked(profile).as_slice()).unwrap();
    file.windows = windows;
    file.encode_to_vec()
}

#[test]
fn windows_of_an_earlier_version_are_the_same() {
    let profile = testing::profile();
    let (earlier, now) = (
        read(with_windows(&profile, |_| {}).as_slice()).unwrap(),
        read(written(&profile).as_slice()).unwrap(),
    );
    assert_eq!((earlier.windows, earlier.stacks), (now.windows, now.stacks));
}

#[test]
fn windows_that_are_cut_or_go_on_are_passed_over() {
    let profile = testing::profile();
    let field = PprofProfile::decode(unpacked(&profile).as_slice()).unwrap().windows;
    let windows_in = |field: Vec<u8>| read(with_field(&profile, field).as_slice()).unwrap().windows.len();
    assert_eq!(windows_in(field.clone()), 21);
    for length in 1..field.len() {
        assert_eq!(windows_in(field[..length].to_vec()), 0, "{length} of {}", field.len());
    }
    assert_eq!(windows_in([&field[..], &[0]].concat()), 0);
    assert_eq!(windows_in([&[2], &field[1..]].concat()), 0, "a later version");
    // Counts that nothing stands behind take no memory.
    let endless = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
    assert_eq!(windows_in([&[1][..], &endless].concat()), 0);
    assert_eq!(windows_in([&[1, 0][..], &endless].concat()), 0);
    assert_eq!(windows_in([&[1, 0, 1][..], &endless].concat()), 0);
}

#[test]
fn windows_of_an_earlier_version_and_impossible_ones_are_passed_over() {
    let profile = testing::profile();
    let windows_after = |edit: &dyn Fn(&mut serde_json::Value)| {
        let profile = read(with_windows(&profile, edit).as_slice()).unwrap();
        assert_eq!(profile.run.counts.samples, 602);
        assert!(functions(&profile).functions.len() == 6);
        profile.windows.len()
    };
    assert_eq!(windows_after(&|_| {}), 21);
    assert_eq!(windows_after(&|windows| drop(windows.as_object_mut().unwrap().remove("samples"))), 0);
    assert_eq!(windows_after(&|windows| windows["cpu_ns"][0][0][0] = 21.into()), 0);
    assert_eq!(windows_after(&|windows| windows["samples"][0] = vec![u64::MAX; 20].into()), 0);
    assert_eq!(windows_after(&|windows| windows["samples"][0][0] = (-1).into()), 0);
    assert_eq!(windows_after(&|windows| windows["cpu_ns"][0] = serde_json::Value::Null), 0);
    let many = || vec![serde_json::json!([0, 1]); 5000];
    assert_eq!(windows_after(&|windows| windows["spans_ns"] = many().into()), 0);
}

#[test]
fn a_file_that_another_tool_filtered_says_so() {
    let mut profile = testing::profile();
    profile.stacks.truncate(1);
    profile.windows.clear(); // a tool drops the texts that nothing refers to
    profile.stacks[0].windows.clear();
    let read = read(written(&profile).as_slice()).unwrap();
    assert_eq!((read.run.counts.samples, read.run.counts.truncated), (241, 0));
    assert!(read.run.notes.last().unwrap().contains("the run had 602 samples"));
}

#[test]
fn files_of_other_tools_are_read() {
    let read = read(of_another_tool().encode_to_vec().as_slice()).unwrap();
    let costs = functions(&read).functions;
    assert!(costs.iter().all(|cost| cost.cpu_s_low.is_none()));
    assert_eq!((costs[0].name.as_str(), costs[0].cpu_s), ("prog+0x10", 0.03));
    assert_eq!((costs[1].name.as_str(), costs[1].module.as_str()), ("work", "[unknown]"));
    assert_eq!(costs[1].total_share, 1.0);
    assert_eq!((read.run.counts.samples, read.run.target.as_str()), (4, "prog"));
    assert_eq!(read.processes[0].comm, "prog");
}

#[test]
fn what_is_no_profile_of_cpu_time_is_refused() {
    let error = |bytes: &[u8]| read(bytes).unwrap_err();
    assert!(matches!(error(b""), ReadError::Malformed(_)));
    assert!(matches!(error(b"#!/bin/sh\n"), ReadError::Malformed(_)));
    assert!(matches!(error(&gzip(b"hello")[..12]), ReadError::Io(_)));
    let mut file = of_another_tool();
    file.sample[0].value[0] = -1;
    assert!(matches!(error(&file.encode_to_vec()), ReadError::Negative));
    file.period = 0;
    assert!(matches!(error(&file.encode_to_vec()), ReadError::NotCpuTime(of) if of == "samples"));
    let mut file = of_another_tool();
    file.sample[0].location_id[0] = 99;
    assert!(matches!(error(&file.encode_to_vec()), ReadError::Malformed("a location is missing")));
}

/// A profile of locks, as Go writes it: how often, and how long they were waited for.
fn of_locks() -> PprofProfile {
    let mut file = of_another_tool();
    for (at, text) in [(1, "contentions"), (3, "delay")] {
        file.string_table[at] = text.to_owned();
    }
    file.sample_type.push(PprofValueType { kind: 3, unit: 4 });
    file.period_type = Some(PprofValueType { kind: 1, unit: 2 });
    file.period = 1;
    for sample in &mut file.sample {
        sample.value.push(700_000_000);
    }
    file
}

#[test]
fn a_time_that_is_no_cpu_time_stays_what_it_is() {
    let bytes = of_locks().encode_to_vec();
    let mut profile = read(bytes.as_slice()).unwrap();
    assert_eq!(profile.run.measure.in_words(), "delay time");
    assert!(
        matches!(super::read_cpu_time(bytes.as_slice()), Err(ReadError::NotCpuTime(of)) if of == "delay time")
    );
    let types = |bytes: &[u8]| -> Vec<String> {
        let file = PprofProfile::decode(bytes).unwrap();
        let text = |at: i64| file.string_table[at as usize].clone();
        let types = file.sample_type.iter().chain(&file.period_type);
        types.map(|of| format!("{}/{}", text(of.kind), text(of.unit))).collect()
    };
    let rewritten = super::encode(&profile);
    assert_eq!(types(&rewritten), ["contentions/count", "delay/nanoseconds", "delay/nanoseconds"]);
    assert_eq!(read(rewritten.as_slice()).unwrap().run.measure, profile.run.measure);
    let shown = render(&profile, &functions(&profile), View { width: 100, top: 1 });
    assert!(!shown.contains("CPU"), "{shown}");
    for text in [
        "prog: 1.40 s of delay time\n",
        "samples   4 contentions\n",
        "  delay s ",
        "(50.0% of the delay time)",
    ] {
        assert!(shown.contains(text), "{text} is missing in {shown}");
    }
    profile.locations[0].unknown = None;
    let list = crate::unknown::UnknownList::of(&profile);
    let list = crate::unknown::render(&list, &profile.run.measure, 80, 20);
    assert!(!list.contains("CPU") && list.contains("0.700 s of delay time"), "{list}");
    let other = |name: &str| {
        let mut out = Vec::new();
        Format::named(name).unwrap().write(&profile, View::default(), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    };
    assert!(other("svg").contains("prog: delay time"));
    assert!(other("speedscope.json").contains("prog (0): delay time"));
}

#[test]
fn only_what_is_called_cpu_is_cpu_time() {
    let named = |name: &str| {
        let mut file = of_locks();
        file.string_table[3] = name.to_owned();
        read(file.encode_to_vec().as_slice()).unwrap().run.measure.is_cpu()
    };
    for name in ["cpu", "CPU", "process_cpu", "cpu-time"] {
        assert!(named(name), "{name}");
    }
    for name in ["delay", "wall", "off-cpu", "offcpu", "time", "\u{1b}[1m", ""] {
        assert!(!named(name), "{name}");
    }
    // By a period alone: that of the clock on the wall is none of CPU time either.
    let mut file = of_another_tool();
    assert!(read(file.encode_to_vec().as_slice()).unwrap().run.measure.is_cpu());
    file.string_table[3] = "wall".to_owned();
    assert_eq!(read(file.encode_to_vec().as_slice()).unwrap().run.measure.in_words(), "wall time");
    // Beside another time, CPU time is what counts.
    let mut both = of_locks();
    both.string_table.push("cpu".to_owned());
    both.sample_type.insert(0, PprofValueType { kind: 7, unit: 4 });
    both.sample.iter_mut().for_each(|sample| sample.value.insert(0, 1));
    assert!(read(both.encode_to_vec().as_slice()).unwrap().run.measure.is_cpu());
}

#[test]
fn bombs_are_refused() {
    let bomb = gzip(&vec![0; 257 << 20]);
    assert!(bomb.len() < 1 << 20);
    assert!(matches!(read(bomb.as_slice()), Err(ReadError::TooLarge)));
    let samples = [0x12, 0x00].repeat(5_000_000); // empty samples of two bytes each
    assert!(matches!(read(gzip(&samples).as_slice()), Err(ReadError::TooMany(_))));
    let mut shared = of_another_tool();
    shared.string_table[5] = "x".repeat(10 << 20); // one name of 10 MiB for a thousand modules
    shared.mapping = vec![shared.mapping[0]; 1000];
    assert!(matches!(read(gzip(&shared.encode_to_vec()).as_slice()), Err(ReadError::TooMuchText)));
}

/// A few kilobytes of file that come to a hundred million functions on one stack.
#[test]
fn stacks_of_stacks_are_refused() {
    let mut deep = of_another_tool();
    deep.location[1].line = vec![PprofLine { function_id: 9, line: 1 }; 10_000];
    deep.sample[0].location_id = vec![2; 10_000];
    let file = gzip(&deep.encode_to_vec());
    assert!(file.len() < 4096);
    assert!(matches!(read(file.as_slice()), Err(ReadError::TooDeep)));
    deep.sample[0].location_id.truncate(100);
    assert!(read(gzip(&deep.encode_to_vec()).as_slice()).is_ok());
}

#[test]
fn each_limit_is_named_by_its_error() {
    let limits =
        [ReadError::TooLarge, ReadError::TooMuchText, ReadError::TooDeep, ReadError::TooMany(4_000_000)];
    assert!(limits.iter().all(ReadError::is_limit));
    assert_eq!(
        limits.map(|limit| limit.to_string()),
        [
            "it has more than 256 MiB uncompressed",
            "the names of its functions have more than 256 MiB",
            "its stacks have more than 67 million functions",
            "it has more than 4000000 entries",
        ]
    );
    assert!(!ReadError::Negative.is_limit());
}

/// A long run of code with long names: a gigabyte, if each frame had its name, and a few megabytes as it is.
#[test]
fn many_frames_of_long_names_are_read() {
    let mut profile = testing::profile();
    profile.functions[1].name = "x".repeat(2000);
    profile.windows.clear();
    profile.stacks = vec![testing::stack(&[1; 1000], Outcome::Complete, 0..0, 1, 1); 600];
    let read = read(written(&profile).as_slice()).unwrap();
    assert_eq!(read.stacks.len(), 600);
}

/// A reader that is not ours: skipped, and said so, where Go is not installed.
#[test]
fn the_pprof_tool_reads_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.pb.gz");
    std::fs::write(&path, written(&testing::profile())).unwrap();
    let tool = |arguments: &[&str]| {
        let mut command = std::process::Command::new("go");
        command.args(["tool", "pprof"]).args(arguments).arg(&path).env("HOME", folder.path()).output()
    };
    let Ok(top) = tool(&["-top", "-symbolize=none"]) else {
        return; // skipped: there is no `go` here
    };
    let top = String::from_utf8_lossy(&top.stdout).into_owned();
    assert!(top.contains("Type: cpu") && top.contains("Duration: 12.25s"), "{top}");
    let memcpy = top.lines().find(|line| line.ends_with("memcpy")).unwrap();
    assert!(memcpy.contains("39.96%"), "{memcpy}");
    assert!(top.contains("File: server\n") && top.contains("602 samples, last rate 60.0 Hz"), "{top}");
    assert!(
        !top.contains("sweetspot.") && top.lines().take_while(|line| !line.contains("flat%")).count() < 9,
        "{top}"
    );
    let comments = tool(&["-comments"]).unwrap();
    assert!(String::from_utf8_lossy(&comments.stdout).contains("#sweetspot.run {"));
    // What the tool wrote is still a file of ours, without the stack that has no frames.
    let kept = folder.path().join("kept.pb.gz");
    let words = ["-proto", "-symbolize=none", "-output", kept.to_str().unwrap()];
    assert!(tool(&words).unwrap().status.success());
    let kept = read(std::fs::File::open(kept).unwrap()).unwrap();
    assert_eq!((kept.run.counts.samples, kept.run.rate.law.as_str()), (601, "horizon"));
}

/// A stack of amounts that no run has, in windows that exist.
fn enormous() -> impl Strategy<Value = WeightedStack> {
    let amount = prop_oneof![0..10_u64, Just(u64::MAX), Just(i64::MAX as u64), any::<u64>()];
    let window = (0..4_u32, amount.clone(), amount);
    (0..7_u32, prop::collection::vec(window, 0..6)).prop_map(|(location, parts)| {
        let window = |(window, cpu_ns, samples)| StackWindow { window, cpu_ns, samples };
        let windows: Vec<StackWindow> = parts.into_iter().map(window).collect();
        let mut stack = testing::stack(&[location], Outcome::Complete, 0..1, 0, 0);
        stack.cpu_ns = windows.iter().fold(0, |sum, window| window.cpu_ns.saturating_add(sum));
        stack.samples = windows.iter().fold(0, |sum, window| window.samples.saturating_add(sum));
        WeightedStack { windows, ..stack }
    })
}

proptest! {
    #[test]
    fn no_bytes_panic_the_reader(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = read(bytes.as_slice());
        let _ = read(gzip(&bytes).as_slice());
    }

    #[test]
    fn enormous_figures_give_finite_ones(
        stacks in prop::collection::vec(enormous(), 0..8),
        figures in prop::array::uniform4(prop_oneof![any::<f64>(), -1.0..2.0]),
    ) {
        let mut profile = testing::profile();
        profile.windows.truncate(4);
        profile.stacks = stacks;
        let run = &mut profile.run;
        [run.how.confidence, run.cpu.sampling_cpu_s, run.cpu.sampling_cpu_se_s, run.how.precision_goal_ratio] = figures;
        let profile = read(written(&profile).as_slice()).unwrap();
        let table = functions(&profile);
        render(&profile, &table, View { width: 80, top: 20 });
        for cost in &table.functions {
            let ends = [cost.cpu_s_low, cost.cpu_s_high, cost.long_run_cpu_s_low, cost.long_run_cpu_s_high];
            prop_assert!(ends.into_iter().flatten().all(f64::is_finite), "{cost:?}");
        }
        prop_assert!(table.reached.is_none_or(|reached| reached.precision_ratio.is_finite()));
    }

    #[test]
    fn a_damaged_file_panics_no_one(at in any::<prop::sample::Index>(), byte: u8, cut in any::<prop::sample::Index>()) {
        let good = unpacked(&testing::profile());
        let mut damaged = good.clone();
        damaged[at.index(good.len())] = byte;
        if let Ok(profile) = read(damaged.as_slice()) {
            let _ = render(&profile, &functions(&profile), View { width: 80, top: 20 });
        }
        let _ = read(&good[..cut.index(good.len())]);
    }
}
