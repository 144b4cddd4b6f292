use std::collections::BTreeMap;

use opentelemetry_proto::tonic::profiles::v1development::{KeyValueAndUnit, ProfilesDictionary};
use profile_files::{pprof, testing};
use profiler_core::profile::{Outcome, ProcessIndex, ProcessInfo, RateFigures, Run};

use super::*;

/// What a file of the profile holds, and the message that is made of it, after its way over the wire.
fn sent(profile: &SymbolizedProfile) -> (SymbolizedProfile, ExportProfilesServiceRequest) {
    let read = pprof::read(pprof::encode(profile).as_slice()).unwrap();
    let labels =
        [("team", "search"), ("service.name", "another")].map(|(key, value)| (key.into(), value.into()));
    let identity = PushIdentity { service: "shop".to_owned(), labels: BTreeMap::from(labels) };
    let message = message(&read, &identity, names_samples(&read));
    (read, ExportProfilesServiceRequest::decode(message.encode_to_vec().as_slice()).unwrap())
}

fn profiles(message: &ExportProfilesServiceRequest) -> (&ProfilesDictionary, &Profile, &Profile) {
    let [cpu, samples] = message.resource_profiles[0].scope_profiles[0].profiles.as_slice() else {
        panic!("not two profiles")
    };
    (message.dictionary.as_ref().unwrap(), cpu, samples)
}

fn text(dictionary: &ProfilesDictionary, at: i32) -> &str {
    &dictionary.string_table[at as usize]
}

fn attributes(dictionary: &ProfilesDictionary, indices: &[i32]) -> Vec<(String, Value, String)> {
    let resolved = |at: &i32| {
        let KeyValueAndUnit { key_strindex, value, unit_strindex } =
            &dictionary.attribute_table[*at as usize];
        let value = value.clone().unwrap().value.unwrap();
        (text(dictionary, *key_strindex).to_owned(), value, text(dictionary, *unit_strindex).to_owned())
    };
    indices.iter().map(resolved).collect()
}

fn of_text(key: &str, value: &str) -> (String, Value, String) {
    (key.to_owned(), Value::StringValue(value.to_owned()), String::new())
}

fn value_type_of(dictionary: &ProfilesDictionary, kind: Option<ValueType>) -> (&str, &str) {
    let kind = kind.unwrap();
    (text(dictionary, kind.type_strindex), text(dictionary, kind.unit_strindex))
}

/// An address as both formats have it: module, build id, address, and functions with their lines, innermost first.
type Frame = (String, Option<String>, u64, Vec<(String, String, String, i64)>);

fn frames_of_file(profile: &SymbolizedProfile, stack: &WeightedStack) -> Vec<Frame> {
    let frame = |at: &profiler_core::profile::LocationIndex| {
        let location = &profile.locations[at.0 as usize];
        let module = &profile.modules[location.module.0 as usize];
        let line = |line: &profiler_core::profile::Line| {
            let function = &profile.functions[line.function.0 as usize];
            let file = function.file.clone().unwrap_or_default();
            (function.name.clone(), function.system_name.clone(), file, i64::from(line.line))
        };
        let name = if module.path.is_empty() { &module.name } else { &module.path };
        (name.clone(), module.build_id.clone(), location.address, location.lines.iter().map(line).collect())
    };
    stack.frames.iter().map(frame).collect()
}

fn frames_of_message(dictionary: &ProfilesDictionary, sample: &Sample) -> Vec<Frame> {
    let frame = |at: &i32| {
        let location = &dictionary.location_table[*at as usize];
        let mapping = &dictionary.mapping_table[location.mapping_index as usize];
        assert!((mapping.memory_start..mapping.memory_limit).contains(&location.address), "{mapping:?}");
        let build_id = attributes(dictionary, &mapping.attribute_indices).pop().map(|(key, value, _)| {
            assert_eq!(key, "process.executable.build_id.gnu");
            let Value::StringValue(id) = value else { panic!("{value:?}") };
            id
        });
        let lines = location.lines.iter().map(|line| {
            let function = &dictionary.function_table[line.function_index as usize];
            let text = |at| text(dictionary, at).to_owned();
            let (name, system_name) = (text(function.name_strindex), text(function.system_name_strindex));
            (name, system_name, text(function.filename_strindex), line.line)
        });
        let name = text(dictionary, mapping.filename_strindex).to_owned();
        (name, build_id, location.address, lines.collect())
    };
    let stack = &dictionary.stack_table[sample.stack_index as usize];
    stack.location_indices.iter().map(frame).collect()
}

#[test]
fn a_message_holds_what_the_file_holds() {
    let (read, message) = sent(&testing::profile());
    let (dictionary, cpu, samples) = profiles(&message);
    assert_eq!(read.stacks.len(), 6);
    assert_eq!((cpu.samples.len(), samples.samples.len()), (6, 6));
    for (stack, (of_cpu, of_samples)) in read.stacks.iter().zip(cpu.samples.iter().zip(&samples.samples)) {
        assert_eq!(of_cpu.values, [stack.cpu_ns as i64]);
        assert_eq!(of_samples.values, [stack.samples as i64]);
        for sample in [of_cpu, of_samples] {
            assert_eq!(frames_of_message(dictionary, sample), frames_of_file(&read, stack));
            let mut expected = vec![("process.pid".to_owned(), Value::IntValue(4711), String::new())];
            if stack.outcome != Outcome::Complete {
                expected.push(of_text("sweetspot.stack.outcome", stack.outcome.as_str()));
            }
            assert_eq!(attributes(dictionary, &sample.attribute_indices), expected);
        }
    }
    let inlined = frames_of_message(dictionary, &cpu.samples[1]).remove(0).3;
    let names: Vec<(&str, i64)> = inlined.iter().map(|(name, .., line)| (name.as_str(), *line)).collect();
    assert_eq!(names, [("parse", 40), ("serve", 20)]);
}

#[test]
fn both_profiles_say_their_time_their_kind_and_a_period() {
    let (_, message) = sent(&testing::profile());
    let (dictionary, cpu, samples) = profiles(&message);
    for (profile, kind, period) in
        [(cpu, ("cpu", "nanoseconds"), 16_666_667), (samples, ("samples", "count"), 1)]
    {
        assert_eq!(value_type_of(dictionary, profile.sample_type), kind);
        assert_eq!(value_type_of(dictionary, profile.period_type), kind);
        assert_eq!(profile.period, period);
        assert_eq!(
            (profile.time_unix_nano, profile.duration_nano),
            (1_760_000_000_000_000_000, 12_250_000_000)
        );
        let about = attributes(dictionary, &profile.attribute_indices);
        assert!(
            about.contains(&("sweetspot.rate".into(), Value::DoubleValue(60.0), "Hz".into())),
            "{about:?}"
        );
        assert!(about.contains(&("sweetspot.overhead.ratio".into(), Value::DoubleValue(0.0074), "1".into())));
        assert!(
            about.iter().all(|(_, value, _)| !matches!(value, Value::StringValue(_))),
            "a label: {about:?}"
        );
    }
    let other = SymbolizedProfile {
        run: Run {
            rate: RateFigures { rate_hz: 0.0, ..testing::profile().run.rate },
            ..testing::profile().run
        },
        ..testing::profile()
    };
    let (_, message) = sent(&other);
    assert_eq!(profiles(&message).1.period, 10_010_000_000 / 602, "the mean");
    assert_eq!(profiles(&sent(&SymbolizedProfile::default()).1).1.period, 1);
}

#[test]
fn the_first_entry_of_each_table_is_none_and_nothing_is_there_twice() {
    let mut profile = testing::profile();
    profile.processes.push(ProcessInfo { pid: 4712, comm: "helper".to_owned() });
    profile.stacks.push(WeightedStack { process: ProcessIndex(1), ..profile.stacks[0].clone() });
    let (read, message) = sent(&profile);
    let (dictionary, cpu, _) = profiles(&message);
    assert_eq!(dictionary.mapping_table[0], Default::default());
    assert_eq!(dictionary.location_table[0], Default::default());
    assert_eq!(dictionary.function_table[0], Default::default());
    assert_eq!(dictionary.link_table, [Default::default()]);
    assert_eq!(dictionary.attribute_table[0], Default::default());
    assert_eq!(dictionary.stack_table[0], Default::default());
    assert_eq!(dictionary.string_table[0], "");
    let mut texts = dictionary.string_table.clone();
    texts.sort_unstable();
    texts.dedup();
    assert_eq!(texts.len(), dictionary.string_table.len());
    assert_eq!(dictionary.stack_table.len(), 6, "one is empty, and one is of two processes");
    let last = cpu.samples.last().unwrap();
    assert_eq!(last.stack_index, cpu.samples[0].stack_index);
    let names = attributes(dictionary, &last.attribute_indices);
    assert!(names.contains(&of_text("process.executable.name", "helper")), "{names:?}");
    assert_eq!(read.stacks.len(), 7);
}

#[test]
fn a_kernel_frame_is_one_and_an_empty_stack_has_none() {
    let (_, message) = sent(&testing::profile());
    let (dictionary, cpu, _) = profiles(&message);
    let kind_of = |sample: &Sample| {
        let location = dictionary.stack_table[sample.stack_index as usize].location_indices[0];
        attributes(dictionary, &dictionary.location_table[location as usize].attribute_indices)
    };
    assert_eq!(kind_of(&cpu.samples[3]), [of_text("profile.frame.type", "kernel")]);
    assert_eq!(kind_of(&cpu.samples[0]), [of_text("profile.frame.type", "native")]);
    assert_eq!(cpu.samples[5].stack_index, 0);
}

#[test]
fn the_resource_is_the_service_once_and_its_labels() {
    let (_, message) = sent(&testing::profile());
    let resource = message.resource_profiles[0].resource.as_ref().unwrap();
    let value = |attribute: &KeyValue| match attribute.value.clone().unwrap().value.unwrap() {
        Value::StringValue(text) => text,
        other => panic!("{other:?}"),
    };
    let all: Vec<(String, String)> =
        resource.attributes.iter().map(|one| (one.key.clone(), value(one))).collect();
    assert_eq!(all, [("service.name".into(), "shop".into()), ("team".into(), "search".into())]);
}

/// Protocol 1.10 renumbered these fields. A sample with the numbers of 1.9 is taken and kept nowhere.
#[test]
fn samples_have_the_fields_of_protocol_1_10() {
    let sample = Sample { stack_index: 7, attribute_indices: vec![5], values: vec![9], ..Sample::default() };
    assert_eq!(sample.encode_to_vec(), [1 << 3, 7, (2 << 3) | 2, 1, 5, (4 << 3) | 2, 1, 9]);
}
