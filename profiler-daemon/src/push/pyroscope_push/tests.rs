//! Requests are read field by field here, by the numbers in Pyroscope's `push.proto` and `types.proto`.

use std::collections::BTreeSet;

use profile_files::{pprof, testing};
use profiler_core::profile::SymbolizedProfile;

use super::super::source::gzip;
use super::*;

/// The fields of a message in their order. All of these have a length.
fn fields(mut message: &[u8]) -> Vec<(u64, &[u8])> {
    let mut fields = Vec::new();
    while !message.is_empty() {
        let key = varint(&mut message);
        assert_eq!(key & 7, 2, "a field without a length");
        let length = varint(&mut message) as usize;
        let (contents, rest) = message.split_at(length);
        fields.push((key >> 3, contents));
        message = rest;
    }
    fields
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first().unwrap();
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if *first < 0x80 {
            return value;
        }
    }
    panic!("a number without an end");
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// What is in a request for one profile.
pub(in super::super) struct Pushed {
    /// `name=value` of each label.
    pub(in super::super) labels: Vec<String>,
    pub(in super::super) pprof: Vec<u8>,
    pub(in super::super) id: String,
}

impl Pushed {
    pub(in super::super) fn read(body: &[u8]) -> Self {
        let [(1, series)] = fields(body)[..] else { panic!("not one series") };
        let (mut labels, mut samples) = (Vec::new(), Vec::new());
        for (number, contents) in fields(series) {
            match number {
                1 => labels.push(label(contents)),
                2 => samples.push(fields(contents)),
                other => panic!("a field {other} in a series"),
            }
        }
        let [sample] = &samples[..] else { panic!("not one sample") };
        let [(1, pprof), (2, id)] = sample[..] else { panic!("not a profile and its id: {sample:?}") };
        Self { labels, pprof: pprof.to_vec(), id: text(id) }
    }
}

fn label(contents: &[u8]) -> String {
    let [(1, name), (2, value)] = fields(contents)[..] else { panic!("not a name and a value") };
    format!("{}={}", text(name), text(value))
}

fn source(profile: SymbolizedProfile) -> PushSource {
    PushSource { pprof: gzip(&pprof::encode(&profile)).unwrap(), profile, stamp: None }
}

fn identity(service: &str, labels: &[(&str, &str)]) -> PushIdentity {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    PushIdentity { service: service.to_owned(), labels: labels.iter().map(owned).collect() }
}

fn pushed(source: &PushSource, identity: &PushIdentity) -> Pushed {
    Pushed::read(&post(source, identity).body)
}

#[test]
fn a_call_has_the_file_and_the_labels_of_its_series() {
    let source = source(testing::profile());
    let post = post(&source, &identity("shop", &[("team", "a, b}"), ("k8s.pod.name", "shop-0")]));
    assert_eq!((post.content_type, post.is_compressed, &post.query), ("application/proto", false, &None));
    let (name, value) = post.header.unwrap();
    assert_eq!((name.as_str(), value.as_bytes()), ("connect-protocol-version", &b"1"[..]));
    let pushed = Pushed::read(&post.body);
    let expected = [
        "__delta__=false",
        "__name__=process_cpu",
        "k8s_pod_name=shop-0",
        "pyroscope_spy=sweetspot",
        "service_name=shop",
        "team=a, b}",
    ];
    assert_eq!(pushed.labels, expected);
    assert_eq!(pushed.pprof, source.pprof);
    assert_eq!(pprof::read(pushed.pprof.as_slice()).unwrap().stacks.len(), source.profile.stacks.len());
}

/// Pyroscope refuses a profile that has a label twice or by a wrong name.
#[test]
fn no_label_takes_the_place_of_the_profiles_own_or_has_a_wrong_name() {
    let labels = [
        ("3rd", " v "),
        ("__name__", "memory"),
        ("__session.id__", "x"),
        ("a b", "two\nlines"),
        ("a-b", "x"),
        ("pyroscope_spy", "x"),
        ("service.name", "x"),
        ("service_name", "x"),
    ];
    let expected = [
        "_3rd=v",
        "__delta__=false",
        "__name__=process_cpu",
        "a_b=two_lines",
        "pyroscope_spy=sweetspot",
        "service_name=node_0_1_",
    ];
    assert_eq!(pushed(&source(testing::profile()), &identity("node:0 1{", &labels)).labels, expected);
}

#[test]
fn a_time_that_is_not_cpu_time_is_called_as_its_file_does() {
    let mut profile = testing::profile();
    profile.run.measure = Measure::Other { time: "wall-clock".to_owned(), counted: "samples".to_owned() };
    let labels = pushed(&source(profile), &identity("shop", &[])).labels;
    assert!(labels.contains(&"__name__=wall_clock".to_owned()), "{labels:?}");
}

#[test]
fn the_same_profile_has_the_same_id_and_each_part_another() {
    let (source, shop) = (source(testing::profile()), identity("shop", &[]));
    let first = pushed(&source, &shop).id;
    assert_eq!(pushed(&source, &shop).id, first);
    let parts = [0..1, 1..2].map(|stacks| source.part(stacks, true).unwrap());
    let ids = parts.iter().map(|part| pushed(part, &shop).id);
    let other = pushed(&source, &identity("other", &[])).id;
    let all: BTreeSet<String> = ids.chain([first.clone(), other]).collect();
    assert_eq!(all.len(), 4, "{all:?}");
    for id in all {
        let lengths: Vec<usize> = id.split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12], "{id}");
        assert!(id.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit()), "{id}");
        assert!(&id[14..15] == "8" && "89ab".contains(&id[19..20]), "version and variant of {id}");
    }
}
