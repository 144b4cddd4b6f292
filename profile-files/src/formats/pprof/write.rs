//! A profile as pprof's messages.

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use profiler_core::profile::{self, Measure, ModuleIndex, Run, SymbolizedProfile};
use prost::Message;

use super::message::{
    PprofFunction, PprofLabel, PprofLine, PprofLocation, PprofMapping, PprofProfile, PprofSample,
    PprofValueType,
};
use super::strings::Strings;
use super::{COMM, EVERYTHING, OUTCOME, PID, comments, main_program, windows};

/// Writes `profile` compressed.
///
/// # Errors
///
/// If `out` refuses.
pub fn write(profile: &SymbolizedProfile, out: &mut dyn Write) -> io::Result<()> {
    let mut encoder = GzEncoder::new(out, Compression::default());
    encoder.write_all(&encode(profile))?;
    encoder.finish()?.flush()
}

/// The bytes of `profile`, not compressed.
pub fn encode(profile: &SymbolizedProfile) -> Vec<u8> {
    message(profile).encode_to_vec()
}

fn message(profile: &SymbolizedProfile) -> PprofProfile {
    let mut strings = Strings::new();
    let run = &profile.run;
    let time = match &run.measure {
        Measure::CpuTime => "cpu",
        Measure::Other { time, .. } => time,
    };
    let samples = PprofValueType { kind: strings.add(run.measure.counted()), unit: strings.add("count") };
    let cpu = PprofValueType { kind: strings.add(time), unit: strings.add("nanoseconds") };
    let windows = windows::encode(profile);
    let noted = windows.is_none().then(|| Run { notes: noted(run), ..run.clone() });
    let modules = main_program::first(profile);
    let period_ns = if run.rate.rate_hz > 0.0 { (1e9 / run.rate.rate_hz).round() as i64 } else { 0 };
    PprofProfile {
        sample_type: vec![samples, cpu],
        default_sample_type: cpu.kind,
        sample: profile.stacks.iter().map(|stack| sample(profile, stack, &mut strings)).collect(),
        mapping: mappings(profile, &modules, &mut strings),
        location: profile.locations.iter().zip(1..).map(location).collect(),
        function: profile.functions.iter().zip(1..).map(|f| function(f, &mut strings)).collect(),
        time_nanos: signed(run.start_unix_ns),
        duration_nanos: (run.duration_s * 1e9) as i64,
        period_type: Some(cpu),
        period: period_ns,
        comment: comments::write(noted.as_ref().unwrap_or(run))
            .into_iter()
            .map(|text| strings.add(text))
            .collect(),
        string_table: strings
            .into_table()
            .into_iter()
            .chain([comments::attachment(profile, &modules)])
            .collect(),
        windows: windows.unwrap_or_default(),
    }
}

/// The notes of a run whose windows of time are left out.
fn noted(run: &Run) -> Vec<String> {
    const LEFT_OUT: &str = "when each stack was seen is left out, since it is more than a reader takes; without it there are \
                            no intervals: ask for a shorter range, or for fewer targets";
    run.notes.iter().cloned().chain([LEFT_OUT.to_owned()]).collect()
}

fn sample<'a>(
    profile: &'a SymbolizedProfile,
    stack: &profile::WeightedStack,
    strings: &mut Strings<'a>,
) -> PprofSample {
    let process = &profile.processes[stack.process.0 as usize];
    let mut label = vec![
        PprofLabel { key: strings.add(PID), number: i64::from(process.pid), text: 0 },
        PprofLabel { key: strings.add(COMM), text: strings.add(process.comm.as_str()), number: 0 },
    ];
    if stack.outcome.is_truncated() {
        label.push(PprofLabel {
            key: strings.add(OUTCOME),
            text: strings.add(stack.outcome.as_str()),
            number: 0,
        });
    }
    PprofSample {
        location_id: stack.frames.iter().map(|location| id(location.0)).collect(),
        value: vec![signed(stack.samples), signed(stack.cpu_ns)],
        label,
    }
}

/// One mapping for each module. Addresses are those that the module's file states, so that each module lies at
/// 0, as if it were mapped where it was linked. They are in the order of `modules`; ids are those of the profile.
fn mappings<'a>(
    profile: &'a SymbolizedProfile,
    modules: &[ModuleIndex],
    strings: &mut Strings<'a>,
) -> Vec<PprofMapping> {
    let mapping = |(module, at): (&'a profile::ModuleInfo, u32)| {
        let name = if module.path.is_empty() { &module.name } else { &module.path };
        PprofMapping {
            id: id(at),
            filename: strings.add(name.as_str()),
            build_id: strings.add(module.build_id.as_deref().unwrap_or_default()),
            memory_limit: if module.end == 0 { EVERYTHING } else { page_end(module.end - 1) },
            ..PprofMapping::default()
        }
    };
    let mut mappings: Vec<PprofMapping> = profile.modules.iter().zip(0..).map(mapping).collect();
    for location in &profile.locations {
        extend(&mut mappings, profile, location);
    }
    modules.iter().map(|at| mappings[at.0 as usize]).collect()
}

/// Where the page of an address ends.
fn page_end(address: u64) -> u64 {
    const PAGE: u64 = 4096;
    (address | (PAGE - 1)).saturating_add(1)
}

/// Makes the location's mapping hold its address and say what is known there.
fn extend(mappings: &mut [PprofMapping], profile: &SymbolizedProfile, location: &profile::Location) {
    let ModuleIndex(module) = location.module;
    let mapping = &mut mappings[module as usize];
    if mapping.memory_limit != EVERYTHING {
        mapping.memory_limit = mapping.memory_limit.max(page_end(location.address));
    }
    mapping.has_functions |= location.unknown.is_none();
    mapping.has_inline_frames |= location.lines.len() > 1;
    for line in &location.lines {
        mapping.has_line_numbers |= line.line > 0;
        mapping.has_filenames |= profile.functions[line.function.0 as usize].file.is_some();
    }
}

fn location((location, id_): (&profile::Location, u64)) -> PprofLocation {
    let line =
        |line: &profile::Line| PprofLine { function_id: id(line.function.0), line: i64::from(line.line) };
    PprofLocation {
        id: id_,
        mapping_id: id(location.module.0),
        address: location.address,
        line: location.lines.iter().map(line).collect(),
    }
}

fn function<'a>((function, id): (&'a profile::Function, u64), strings: &mut Strings<'a>) -> PprofFunction {
    PprofFunction {
        id,
        name: strings.add(function.name.as_str()),
        system_name: strings.add(function.system_name.as_str()),
        filename: strings.add(function.file.as_deref().unwrap_or_default()),
    }
}

/// Ids start at 1: 0 is "none".
fn id(index: u32) -> u64 {
    u64::from(index) + 1
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
