//! The processed format of the Firefox Profiler, in its version 55: one thread for each process.
//!
//! Mozilla's crate for it knows whole milliseconds only, no source lines and no inlined frames, so the tables are written here; a test
//! compares their keys with the crate's.
//!
//! A profile holds what each stack had in each window of time, not when. Within a window the stacks follow each other, each for as
//! long as its share of the window's CPU time: the timeline shows the CPU time of each window rightly, and no order within it.

use std::collections::BTreeMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::io::{self, Write};
use std::ops::Range;

use profiler_core::profile::{
    Function, FunctionIndex, LocationIndex, ModuleIndex, ModuleInfo, ProcessIndex, Run, StackWindow,
    SymbolizedProfile, WeightedStack, Window,
};
use rustc_hash::FxHashMap;
use serde::Serialize;
use serde_json::{Value, json};

use super::{NO_STACK, process_title};
use crate::functions::KERNEL;

/// The version of the format; the viewer reads older ones than its own.
const VERSION: u32 = 55;
/// The largest whole number that JavaScript can tell from the next.
const MAX_SAFE_INTEGER: u64 = (1 << 53) - 1;
/// No address, or no module.
const NONE: i64 = -1;

/// Indices into the categories of [`meta`].
const OTHER: u8 = 0;
const USER: u8 = 1;
const IN_KERNEL: u8 = 2;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct File<'a> {
    meta: Value,
    libs: Vec<Value>,
    threads: Vec<Thread<'a>>,
    pages: [(); 0],
    profiler_overhead: [(); 0],
    counters: [(); 0],
}

#[derive(Serialize)]
struct Thread<'a> {
    #[serde(flatten)]
    about: Value,
    samples: Samples,
    #[serde(flatten)]
    tables: Tables<'a>,
}

/// Times and weights are milliseconds. All columns are as long as `length`, as in the tables below.
#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Samples {
    length: usize,
    weight_type: &'static str,
    stack: Vec<Option<u32>>,
    time_deltas: Vec<f64>,
    weight: Vec<f64>,
    /// CPU time since the sample before (µs); absent if another time was measured.
    #[serde(rename = "threadCPUDelta", skip_serializing_if = "Vec::is_empty")]
    cpu_deltas: Vec<f64>,
}

/// What samples refer to. The rows of a table are numbered from 0.
#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Tables<'a> {
    frame_table: Frames,
    func_table: Functions,
    stack_table: Stacks,
    resource_table: Resources,
    string_array: Vec<&'a str>,
    #[serde(skip)]
    known: Known<'a>,
}

/// The rows of what is in the tables.
#[derive(Default)]
struct Known<'a> {
    frames: FxHashMap<Option<LocationIndex>, Range<u32>>,
    functions: FxHashMap<FunctionIndex, u32>,
    stacks: FxHashMap<(Option<u32>, u32), u32>,
    resources: FxHashMap<ModuleIndex, u32>,
    strings: FxHashMap<&'a str, u32>,
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Frames {
    length: usize,
    address: Vec<i64>,
    inline_depth: Vec<u32>,
    category: Vec<u8>,
    subcategory: Vec<u8>,
    func: Vec<u32>,
    native_symbol: Vec<()>,
    #[serde(rename = "innerWindowID")]
    inner_window_id: Vec<u8>,
    line: Vec<Option<u32>>,
    column: Vec<()>,
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Functions {
    length: usize,
    name: Vec<u32>,
    #[serde(rename = "isJS")]
    is_js: Vec<bool>,
    #[serde(rename = "relevantForJS")]
    relevant_for_js: Vec<bool>,
    resource: Vec<i64>,
    file_name: Vec<Option<u32>>,
    line_number: Vec<()>,
    column_number: Vec<()>,
}

/// Each stack is that of its callers (`prefix`) and one more frame.
#[derive(Default, Serialize)]
struct Stacks {
    length: usize,
    prefix: Vec<Option<u32>>,
    frame: Vec<u32>,
}

#[derive(Default, Serialize)]
struct Resources {
    length: usize,
    lib: Vec<u32>,
    name: Vec<u32>,
    host: Vec<()>,
    r#type: Vec<u8>,
}

/// Writes `profile` for the Firefox Profiler.
///
/// # Errors
///
/// If `out` refuses.
pub(super) fn write(profile: &SymbolizedProfile, out: &mut dyn Write) -> io::Result<()> {
    let file = File {
        meta: meta(&profile.run),
        libs: profile.modules.iter().map(library).collect(),
        threads: threads(profile),
        pages: [],
        profiler_overhead: [],
        counters: [],
    };
    serde_json::to_writer(&mut *out, &file)?;
    writeln!(out)
}

fn meta(run: &Run) -> Value {
    let category =
        |name: &str, color: &str| json!({"name": name, "color": color, "subcategories": ["Other"]});
    // Of CPU time; a file of another tool may not tell.
    let interval_ms = if run.rate.rate_hz > 0.0 { 1e3 / run.rate.rate_hz } else { 1.0 };
    json!({
        "arguments": run.target,
        "categories": [category("Other", "grey"), category("User", "yellow"), category("Kernel", "orange")],
        "debug": false,
        "extensions": {"length": 0, "baseURL": [], "id": [], "name": []},
        "interval": interval_ms,
        "markerSchema": [],
        "pausedRanges": [],
        "preprocessedProfileVersion": VERSION,
        "processType": 0,
        "product": "sweetspot",
        "sampleUnits": {"time": "ms", "eventDelay": "ms", "threadCPUDelta": "µs"},
        "sourceCodeIsNotOnSearchfox": true,
        "startTime": run.start_unix_ns as f64 / 1e6,
        "symbolicated": true,
        "usesOnlyOneStackType": true,
        "version": 24,
    })
}

fn library(module: &ModuleInfo) -> Value {
    json!({
        "name": module.name,
        "path": module.path,
        "debugName": module.name,
        "debugPath": module.path,
        "breakpadId": "", // nothing has to be looked up
        "codeId": module.build_id,
        "arch": null,
    })
}

fn threads<'a>(profile: &'a SymbolizedProfile) -> Vec<Thread<'a>> {
    let mut stacks_of = vec![Vec::new(); profile.processes.len()];
    for stack in &profile.stacks {
        stacks_of[stack.process.0 as usize].push(stack);
    }
    let mut same_pids = FxHashMap::default();
    let of_process = |(at, stacks): (u32, Vec<&'a WeightedStack>)| {
        let mut tables = Tables::default();
        let samples = samples(profile, &stacks, &mut tables);
        let pid = profile.processes[at as usize].pid;
        let others = same_pids.entry(pid).and_modify(|others| *others += 1).or_insert(0);
        // One pid may have had several commands; to the viewer, threads of one pid are of one process.
        let id = if *others > 0 { format!("{pid}.{others}") } else { pid.to_string() };
        Thread { about: about(profile, ProcessIndex(at), &id), samples, tables }
    };
    (0..).zip(stacks_of).map(of_process).collect()
}

/// What a thread is, beside its samples and tables.
fn about(profile: &SymbolizedProfile, process: ProcessIndex, id: &str) -> Value {
    let name = process_title(&profile.run, &profile.processes[process.0 as usize].comm);
    let end_ms = profile.run.duration_s * 1e3;
    json!({
        "name": name,
        "processName": name,
        "isMainThread": true,
        "processType": "default",
        "pid": id,
        "tid": id,
        "registerTime": 0.0,
        "unregisterTime": end_ms,
        "processStartupTime": 0.0,
        "processShutdownTime": end_ms,
        "pausedRanges": [],
        "showMarkersInTimeline": false,
        "markers": {"length": 0, "category": [], "data": [], "endTime": [], "name": [], "phase": [], "startTime": []},
        "nativeSymbols": {"length": 0, "address": [], "functionSize": [], "libIndex": [], "name": []},
    })
}

/// The samples of a process, in time order.
fn samples<'a>(
    profile: &'a SymbolizedProfile,
    stacks: &[&'a WeightedStack],
    tables: &mut Tables<'a>,
) -> Samples {
    let mut samples = Samples { weight_type: "tracing-ms", ..Samples::default() };
    let mut before_ns = 0;
    for TimelinePart { end_ns, stack, cpu_ns } in timeline(profile, stacks) {
        if stack.is_none() && end_ns == before_ns {
            continue; // no pause
        }
        samples.length += 1;
        samples.stack.push(stack.and_then(|stack| tables.stack(profile, stack)));
        samples.time_deltas.push((end_ns - before_ns) as f64 / 1e6);
        samples.weight.push(cpu_ns as f64 / 1e6);
        if profile.run.measure.is_cpu() {
            samples.cpu_deltas.push(cpu_ns as f64 / 1e3);
        }
        before_ns = end_ns;
    }
    samples
}

/// A time, from the end of the part before.
struct TimelinePart<'a> {
    /// Its end (ns since the start).
    end_ns: u64,
    /// What ran; nothing from the end of a window to the start of the next that saw anything.
    stack: Option<&'a WeightedStack>,
    /// Its CPU time (ns).
    cpu_ns: u64,
}

/// When which of `stacks` ran, in time order.
fn timeline<'a>(profile: &SymbolizedProfile, stacks: &[&'a WeightedStack]) -> Vec<TimelinePart<'a>> {
    let all_ns = stacks.iter().fold(0_u64, |sum, stack| sum.saturating_add(stack.cpu_ns));
    // Where the file does not say when: anywhere in the run, or one after the other.
    let duration_ns = Some((profile.run.duration_s * 1e9) as u64).filter(|duration_ns| *duration_ns > 0);
    let run = Window { start_ns: 0, end_ns: duration_ns.unwrap_or(all_ns) };
    let mut by_window: BTreeMap<u32, Vec<(&WeightedStack, u64)>> = BTreeMap::new();
    for stack in stacks {
        let anywhere = [StackWindow { window: u32::MAX, cpu_ns: stack.cpu_ns, samples: stack.samples }];
        let windows = if stack.windows.is_empty() { &anywhere[..] } else { &stack.windows };
        for part in windows.iter().filter(|part| part.cpu_ns > 0) {
            by_window.entry(part.window).or_default().push((stack, part.cpu_ns));
        }
    }
    let mut timeline = Vec::new();
    for (window, parts) in by_window {
        let Window { start_ns, end_ns } = *profile.windows.get(window as usize).unwrap_or(&run);
        let length_ns = u128::from(end_ns.saturating_sub(start_ns));
        let in_window_ns: u128 = parts.iter().map(|(_, cpu_ns)| u128::from(*cpu_ns)).sum();
        timeline.push(TimelinePart { end_ns: start_ns, stack: None, cpu_ns: 0 });
        let mut so_far_ns = 0;
        for (stack, cpu_ns) in parts {
            so_far_ns += u128::from(cpu_ns);
            let end_ns = start_ns + (length_ns * so_far_ns / in_window_ns) as u64;
            timeline.push(TimelinePart { end_ns, stack: Some(stack), cpu_ns });
        }
    }
    // A window may end when the next starts: there is no pause then.
    timeline.sort_by_key(|part| (part.end_ns, part.stack.is_none()));
    timeline
}

impl<'a> Tables<'a> {
    fn stack(&mut self, profile: &'a SymbolizedProfile, stack: &WeightedStack) -> Option<u32> {
        let locations = stack.frames.iter().rev().copied().map(Some);
        // A stack without frames is one frame that says so.
        let none = stack.frames.is_empty().then_some(None);
        let mut prefix = None;
        for location in locations.chain(none) {
            for frame in self.frames(profile, location) {
                let row = row_of(&mut self.known.stacks, (prefix, frame), &mut self.stack_table.length);
                if row.is_new {
                    self.stack_table.prefix.push(prefix);
                    self.stack_table.frame.push(frame);
                }
                prefix = Some(row.at);
            }
        }
        prefix
    }

    /// The frames of a location, the outermost function first.
    fn frames(&mut self, profile: &'a SymbolizedProfile, index: Option<LocationIndex>) -> Range<u32> {
        if let Some(frames) = self.known.frames.get(&index) {
            return frames.clone();
        }
        let first = self.frame_table.length as u32;
        if let Some(index) = index {
            let location = &profile.locations[index.0 as usize];
            let address = Some(location.address).filter(|address| *address <= MAX_SAFE_INTEGER);
            let address = address.map_or(NONE, |address| address as i64);
            for (depth, line) in (0..).zip(location.lines.iter().rev()) {
                let function = &profile.functions[line.function.0 as usize];
                let is_kernel = profile.modules[function.module.0 as usize].name == KERNEL;
                let category = if is_kernel { IN_KERNEL } else { USER };
                let func = self.function(profile, line.function);
                self.frame_table.push(
                    address,
                    depth,
                    category,
                    func,
                    Some(line.line).filter(|line| *line > 0),
                );
            }
        } else {
            let name = self.string(NO_STACK);
            let func = self.func_table.push(name, NONE, None);
            self.frame_table.push(NONE, 0, OTHER, func, None);
        }
        let frames = first..self.frame_table.length as u32;
        self.known.frames.insert(index, frames.clone());
        frames
    }

    fn function(&mut self, profile: &'a SymbolizedProfile, index: FunctionIndex) -> u32 {
        if let Some(row) = self.known.functions.get(&index) {
            return *row;
        }
        let Function { name, module, file, .. } = &profile.functions[index.0 as usize];
        let (name, resource) = (self.string(name), self.resource(profile, *module));
        let file = file.as_deref().map(|file| self.string(file));
        let row = self.func_table.push(name, resource.into(), file);
        self.known.functions.insert(index, row);
        row
    }

    fn resource(&mut self, profile: &'a SymbolizedProfile, module: ModuleIndex) -> u32 {
        const LIBRARY: u8 = 1;
        let row = row_of(&mut self.known.resources, module, &mut self.resource_table.length);
        if row.is_new {
            let name = self.string(&profile.modules[module.0 as usize].name);
            let table = &mut self.resource_table;
            table.lib.push(module.0);
            table.name.push(name);
            table.host.push(());
            table.r#type.push(LIBRARY);
        }
        row.at
    }

    fn string(&mut self, text: &'a str) -> u32 {
        let row = row_of(&mut self.known.strings, text, &mut self.string_array.len());
        if row.is_new {
            self.string_array.push(text);
        }
        row.at
    }
}

/// A row of a table, and whether it has to be written.
struct Row {
    at: u32,
    is_new: bool,
}

/// The row of `key` in a table of `length` rows; the next one, by which the table then is longer, if it has none.
fn row_of<K: Eq + Hash>(known: &mut FxHashMap<K, u32>, key: K, length: &mut usize) -> Row {
    match known.entry(key) {
        Entry::Occupied(row) => Row { at: *row.get(), is_new: false },
        Entry::Vacant(new) => {
            let at = *new.insert(*length as u32);
            *length += 1;
            Row { at, is_new: true }
        }
    }
}

impl Frames {
    fn push(&mut self, address: i64, inline_depth: u32, category: u8, func: u32, line: Option<u32>) {
        self.length += 1;
        self.address.push(address);
        self.inline_depth.push(inline_depth);
        self.category.push(category);
        self.subcategory.push(OTHER);
        self.func.push(func);
        self.native_symbol.push(());
        self.inner_window_id.push(0);
        self.line.push(line);
        self.column.push(());
    }
}

impl Functions {
    fn push(&mut self, name: u32, resource: i64, file: Option<u32>) -> u32 {
        let row = self.length as u32;
        self.length += 1;
        self.name.push(name);
        self.is_js.push(false);
        self.relevant_for_js.push(false);
        self.resource.push(resource);
        self.file_name.push(file);
        self.line_number.push(());
        self.column_number.push(());
        row
    }
}

#[cfg(test)]
#[path = "firefox_tests.rs"]
mod tests;
