//! The file format of the speedscope viewer: one sampled profile for each process.

use std::io::{self, Write};

use profiler_core::profile::{Function, SymbolizedProfile};
use serde::Serialize;

use super::{NO_STACK, process_title, root_first};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct File<'a> {
    #[serde(rename = "$schema")]
    schema: &'static str,
    name: &'a str,
    exporter: &'static str,
    active_profile_index: usize,
    shared: SharedFrames<'a>,
    profiles: Vec<SpeedscopeProfile>,
}

#[derive(Serialize)]
struct SharedFrames<'a> {
    frames: Vec<SpeedscopeFrame<'a>>,
}

#[derive(Serialize)]
struct SpeedscopeFrame<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a str>,
}

/// Samples are stacks, root first, of indices into the frames; weights are in the unit.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SpeedscopeProfile {
    r#type: &'static str,
    name: String,
    unit: &'static str,
    start_value: u64,
    end_value: u64,
    samples: Vec<Vec<u32>>,
    weights: Vec<u64>,
}

/// Writes `profile` for speedscope.
pub(super) fn write(profile: &SymbolizedProfile, out: &mut dyn Write) -> io::Result<()> {
    let file = File {
        schema: "https://www.speedscope.app/file-format-schema.json",
        name: &profile.run.target,
        exporter: concat!("sweetspot ", env!("CARGO_PKG_VERSION")),
        active_profile_index: 0,
        shared: SharedFrames { frames: frames(profile) },
        profiles: profiles(profile),
    };
    serde_json::to_writer(&mut *out, &file)?;
    writeln!(out)
}

/// One for each function, and one more for stacks without frames, if there are any.
fn frames(profile: &SymbolizedProfile) -> Vec<SpeedscopeFrame<'_>> {
    let is_needed = profile.stacks.iter().any(|stack| stack.frames.is_empty());
    let no_stack = is_needed.then_some(SpeedscopeFrame { name: NO_STACK, file: None });
    profile.functions.iter().map(frame).chain(no_stack).collect()
}

fn frame(function: &Function) -> SpeedscopeFrame<'_> {
    SpeedscopeFrame { name: &function.name, file: function.file.as_deref() }
}

fn profiles(profile: &SymbolizedProfile) -> Vec<SpeedscopeProfile> {
    let named = profile.processes.iter().map(|process| SpeedscopeProfile {
        r#type: "sampled",
        name: process_title(&profile.run, &format!("{} ({})", process.comm, process.pid)),
        unit: "nanoseconds",
        start_value: 0,
        end_value: 0,
        samples: Vec::new(),
        weights: Vec::new(),
    });
    let mut profiles: Vec<SpeedscopeProfile> = named.collect();
    for stack in &profile.stacks {
        let of_process = &mut profiles[stack.process.0 as usize];
        of_process.samples.push(match stack.frames.is_empty() {
            true => vec![profile.functions.len() as u32],
            false => root_first(profile, stack).map(|function| function.0).collect(),
        });
        of_process.weights.push(stack.cpu_ns);
        of_process.end_value = of_process.end_value.saturating_add(stack.cpu_ns);
    }
    profiles
}

#[cfg(test)]
mod tests {
    use crate::testing;

    #[test]
    fn samples_are_root_first_and_weights_add_up() {
        let mut out = Vec::new();
        super::write(&testing::profile(), &mut out).unwrap();
        let file: serde_json::Value = serde_json::from_slice(&out).unwrap();
        let profile = &file["profiles"][0];
        let first = profile["samples"][0][0].as_u64().unwrap() as usize;
        assert_eq!(file["shared"]["frames"][first]["name"], "_start");
        let weights = profile["weights"].as_array().unwrap();
        assert_eq!(weights.len(), profile["samples"].as_array().unwrap().len());
        let sum: u64 = weights.iter().filter_map(serde_json::Value::as_u64).sum();
        assert_eq!(Some(sum), profile["endValue"].as_u64());
    }

    #[test]
    fn a_stack_without_frames_is_one_frame_that_says_so() {
        let mut profile = testing::profile();
        let mut out = Vec::new();
        super::write(&profile, &mut out).unwrap();
        let file: serde_json::Value = serde_json::from_slice(&out).unwrap();
        let frames = file["shared"]["frames"].as_array().unwrap();
        let samples = file["profiles"][0]["samples"].as_array().unwrap();
        assert_eq!(frames.last().unwrap()["name"], "[no stack]");
        assert_eq!(samples.last().unwrap(), &serde_json::json!([frames.len() - 1]));
        profile.stacks.retain(|stack| !stack.frames.is_empty());
        out.clear();
        super::write(&profile, &mut out).unwrap();
        assert!(!String::from_utf8(out).unwrap().contains("[no stack]"));
    }
}
