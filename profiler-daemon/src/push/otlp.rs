//! A profile as OpenTelemetry's message (`v1development`, protocol 1.10).
//!
//! A message has one dictionary, which everything refers to by index; the first entry of each of its tables is empty and means
//! "none". A profile has one kind of value, so that CPU time and samples are two profiles with the same stacks.
//! Pyroscope multiplies samples by the period if the period is CPU time. Weights would be lost by that, so that samples have
//! a period of one sample.

mod dictionary;
#[cfg(test)]
mod tests;

use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value::Value};
use opentelemetry_proto::tonic::profiles::v1development::{
    Profile, ResourceProfiles, Sample, ScopeProfiles, ValueType,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use profiler_core::profile::{Measure, Run, SymbolizedProfile, WeightedStack};
use prost::Message;

use self::dictionary::Dictionary;
use super::client::Post;
use super::naming::{PushIdentity, only_command};
use super::source::gzip;

/// The request for a profile by HTTP.
///
/// # Errors
///
/// If it cannot be compressed.
pub(super) fn post(
    profile: &SymbolizedProfile,
    identity: &PushIdentity,
    is_named: bool,
) -> std::io::Result<Post> {
    Ok(Post {
        query: None,
        content_type: "application/x-protobuf",
        header: None,
        is_compressed: true,
        body: gzip(&message(profile, identity, is_named).encode_to_vec())?,
    })
}

/// The message of a profile, or of a part of one. `is_named` says that each sample has the command of its process.
pub(super) fn message(
    profile: &SymbolizedProfile,
    identity: &PushIdentity,
    is_named: bool,
) -> ExportProfilesServiceRequest {
    let mut dictionary = Dictionary::new(profile);
    let run = &profile.run;
    let attributes = about_run(run, &mut dictionary);
    let sample = |stack| sample(profile, stack, is_named, &mut dictionary);
    let stacks: Vec<Sample> = profile.stacks.iter().map(sample).collect();
    let with = |value: fn(&WeightedStack) -> u64| {
        let sample =
            |(sample, stack): (&Sample, _)| Sample { values: vec![signed(value(stack))], ..sample.clone() };
        stacks.iter().zip(&profile.stacks).map(sample).collect::<Vec<_>>()
    };
    let time = match &run.measure {
        Measure::CpuTime => "cpu",
        Measure::Other { time, .. } => time,
    };
    let time = value_type(&mut dictionary, time, "nanoseconds");
    let count = value_type(&mut dictionary, run.measure.counted(), "count");
    let of = |kind: ValueType, period: i64, samples: Vec<Sample>| Profile {
        sample_type: Some(kind),
        samples,
        time_unix_nano: run.start_unix_ns,
        duration_nano: (run.duration_s * 1e9) as u64,
        period_type: Some(kind),
        period,
        attribute_indices: attributes.clone(),
        ..Profile::default()
    };
    // What is first is what readers show.
    let profiles = vec![
        of(time, period_ns(profile), with(|stack| stack.cpu_ns)),
        of(count, 1, with(|stack| stack.samples)),
    ];
    let scope = InstrumentationScope {
        name: "sweetspot".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    };
    let scope_profiles = vec![ScopeProfiles { scope: Some(scope), profiles, ..ScopeProfiles::default() }];
    let resource = Some(resource(identity));
    ExportProfilesServiceRequest {
        resource_profiles: vec![ResourceProfiles { resource, scope_profiles, ..ResourceProfiles::default() }],
        dictionary: Some(dictionary.finish()),
    }
}

/// Whether samples say the commands of their processes: the resource has the name that all of a profile have.
pub(super) fn names_samples(profile: &SymbolizedProfile) -> bool {
    only_command(profile).is_none()
}

fn resource(identity: &PushIdentity) -> Resource {
    let service = [("service.name", identity.service.as_str())];
    let labels = identity.labels.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    let labels = labels.filter(|(key, _)| *key != "service.name");
    let attribute = |(key, value): (&str, &str)| KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(Value::StringValue(value.to_owned())) }),
        ..KeyValue::default()
    };
    Resource { attributes: service.into_iter().chain(labels).map(attribute).collect(), ..Resource::default() }
}

/// What the run was and cost, of the files that say it. Numbers, since texts become labels in some backends.
fn about_run(run: &Run, dictionary: &mut Dictionary) -> Vec<i32> {
    let mut indices = Vec::new();
    let ratio = |ratio: f64| (ratio > 0.0).then_some(Value::DoubleValue(ratio));
    let count = |count: u64| (count > 0).then(|| Value::IntValue(signed(count)));
    for (key, value, unit) in [
        ("sweetspot.rate", ratio(run.rate.rate_hz), "Hz"),
        ("sweetspot.overhead.ratio", ratio(run.overhead.overhead_ratio), "1"),
        ("sweetspot.slowdown.ratio", ratio(run.overhead.slowdown_ratio), "1"),
        ("sweetspot.complete.ratio", ratio(run.counts.complete_ratio), "1"),
        ("sweetspot.samples.lost", count(run.counts.lost), "1"),
    ] {
        if let Some(value) = value {
            indices.push(dictionary.attribute(key, value, unit));
        }
    }
    indices
}

/// A stack without its values, with the command of its process if `is_named`.
fn sample(
    profile: &SymbolizedProfile,
    stack: &WeightedStack,
    is_named: bool,
    dictionary: &mut Dictionary,
) -> Sample {
    let process = &profile.processes[stack.process.0 as usize];
    let mut attributes = vec![dictionary.attribute("process.pid", Value::IntValue(process.pid.into()), "")];
    if is_named && !process.comm.is_empty() {
        let name = Value::StringValue(process.comm.clone());
        attributes.push(dictionary.attribute("process.executable.name", name, ""));
    }
    if stack.outcome.is_truncated() {
        let outcome = Value::StringValue(stack.outcome.as_str().to_owned());
        attributes.push(dictionary.attribute("sweetspot.stack.outcome", outcome, ""));
    }
    Sample {
        stack_index: dictionary.stack(&stack.frames),
        attribute_indices: attributes,
        ..Sample::default()
    }
}

fn value_type(dictionary: &mut Dictionary, kind: &str, unit: &str) -> ValueType {
    ValueType { type_strindex: dictionary.text(kind), unit_strindex: dictionary.text(unit) }
}

/// What a sample stands for (ns), never 0: the period of the last rate, else the mean.
fn period_ns(profile: &SymbolizedProfile) -> i64 {
    let rate_hz = profile.run.rate.rate_hz;
    if rate_hz > 0.0 {
        return ((1e9 / rate_hz).round() as i64).max(1);
    }
    let sum =
        |value: fn(&WeightedStack) -> u64| profile.stacks.iter().map(value).fold(0, u64::saturating_add);
    signed(sum(|stack| stack.cpu_ns) / sum(|stack| stack.samples).max(1)).max(1)
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
