//! The windows of time, and what each stack had in them, in a field of the file that other readers pass over.
//!
//! A day of ten targets has twenty million such figures: as numbers of 7 bits a byte they are read ten times as fast as the
//! JSON that earlier versions wrote into a text, and take a third of the room. The layout, all of it such numbers: the
//! version; how many windows there are, and of each how long after the last one's start it starts and how long it is (ns);
//! how many stacks, and of each how many windows it was in, by how much each one's index is above the last one's, its
//! samples in them, and its CPU time in them (ns).

use profiler_core::profile::{StackWindow, SymbolizedProfile, WeightedStack, Window};
use serde::Deserialize;

use super::wire::{put_varint, varint};

const VERSION: u64 = 1;
/// Longest field that is read: in memory it takes up to eight times the room.
const MAX_BYTES: usize = 16 << 20;
/// Most windows that are believed. A run has a few hundred, and statistics over them take time.
const MAX_WINDOWS: usize = 1024;

/// The windows of a file and what each of its entries, in the file's order, had in them.
#[derive(Default)]
pub(super) struct Windows {
    spans: Vec<Window>,
    had: Vec<Vec<StackWindow>>,
}

/// The field for `profile`; empty for one without windows. Nothing if no reader would believe it.
pub(super) fn encode(profile: &SymbolizedProfile) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    if profile.windows.is_empty() {
        return Some(out);
    }
    if profile.windows.len() > MAX_WINDOWS {
        return None;
    }
    put_varint(&mut out, VERSION);
    put_varint(&mut out, profile.windows.len() as u64);
    let mut last_ns = 0_u64;
    for window in &profile.windows {
        put_varint(&mut out, window.start_ns.wrapping_sub(last_ns));
        put_varint(&mut out, window.end_ns.wrapping_sub(window.start_ns));
        last_ns = window.start_ns;
    }
    put_varint(&mut out, profile.stacks.len() as u64);
    for stack in &profile.stacks {
        encode_stack(&mut out, &stack.windows);
        if out.len() > MAX_BYTES {
            return None;
        }
    }
    Some(out)
}

fn encode_stack(out: &mut Vec<u8>, windows: &[StackWindow]) {
    put_varint(out, windows.len() as u64);
    let mut last = 0_u32;
    for had in windows {
        put_varint(out, u64::from(had.window.wrapping_sub(last)));
        last = had.window;
    }
    windows.iter().for_each(|had| put_varint(out, had.samples));
    windows.iter().for_each(|had| put_varint(out, had.cpu_ns));
}

impl Windows {
    /// What the field holds; nothing if it is not as we write it.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = Some(bytes).filter(|bytes| bytes.len() <= MAX_BYTES)?;
        let rest = &mut rest;
        (varint(rest).ok()? == VERSION).then_some(())?;
        let spans = count(rest, 2).filter(|windows| *windows <= MAX_WINDOWS)?;
        let mut windows = Self { spans: Vec::with_capacity(spans), had: Vec::new() };
        let mut start_ns = 0_u64;
        for _ in 0..spans {
            start_ns = start_ns.wrapping_add(varint(rest).ok()?);
            let end_ns = start_ns.wrapping_add(varint(rest).ok()?);
            windows.spans.push(Window { start_ns, end_ns });
        }
        for _ in 0..count(rest, 1)? {
            windows.had.push(decode_stack(rest)?);
        }
        rest.is_empty().then_some(windows)
    }

    /// What the text of an earlier version holds; nothing if it is not as that wrote it.
    pub(super) fn from_json(text: &str) -> Option<Self> {
        let written: Written = serde_json::from_str(text).ok()?;
        if written.cpu_ns.len() != written.samples.len() {
            return None;
        }
        let spans = written.spans_ns.into_iter().map(|(start_ns, end_ns)| Window { start_ns, end_ns });
        let had = |(cpu_ns, samples): (Vec<(u32, u64)>, Vec<u64>)| {
            let had = |((window, cpu_ns), samples)| StackWindow { window, cpu_ns, samples };
            (cpu_ns.len() == samples.len()).then(|| cpu_ns.into_iter().zip(samples).map(had).collect())
        };
        let had = written.cpu_ns.into_iter().zip(written.samples).map(had).collect::<Option<_>>()?;
        Some(Self { spans: spans.collect(), had })
    }

    /// Gives `profile` its windows, if they fit: else another tool has filtered or merged the file.
    pub(super) fn apply(self, profile: &mut SymbolizedProfile) {
        if !self.fits(profile) {
            return;
        }
        profile.windows = self.spans;
        for (stack, had) in profile.stacks.iter_mut().zip(self.had) {
            stack.windows = had;
        }
    }

    /// Whether there is one entry for each stack, of its CPU time and samples, in windows that exist.
    fn fits(&self, profile: &SymbolizedProfile) -> bool {
        self.spans.len() <= MAX_WINDOWS
            && self.had.len() == profile.stacks.len()
            && profile.stacks.iter().zip(&self.had).all(|(stack, had)| self.entry_fits(stack, had))
    }

    fn entry_fits(&self, stack: &WeightedStack, had: &[StackWindow]) -> bool {
        let sums = had.iter().try_fold((0_u64, 0_u64), |(cpu_ns, samples), had| {
            let exists = (had.window as usize) < self.spans.len();
            Some((cpu_ns.checked_add(had.cpu_ns)?, samples.checked_add(had.samples)?)).filter(|_| exists)
        });
        sums == Some((stack.cpu_ns, stack.samples))
    }
}

/// A number of things that take `each` bytes at least, if there are so many left.
fn count(rest: &mut &[u8], each: usize) -> Option<usize> {
    let count = usize::try_from(varint(rest).ok()?).ok()?;
    (count <= rest.len() / each).then_some(count)
}

fn decode_stack(rest: &mut &[u8]) -> Option<Vec<StackWindow>> {
    let length = count(rest, 3)?;
    let mut had = Vec::with_capacity(length);
    let mut window = 0_u32;
    for _ in 0..length {
        window = window.wrapping_add(u32::try_from(varint(rest).ok()?).ok()?);
        had.push(StackWindow { window, ..StackWindow::default() });
    }
    for had in &mut had {
        had.samples = varint(rest).ok()?;
    }
    for had in &mut had {
        had.cpu_ns = varint(rest).ok()?;
    }
    Some(had)
}

/// As earlier versions wrote them.
#[derive(Deserialize)]
struct Written {
    /// Start and end (ns since the start of sampling).
    spans_ns: Vec<(u64, u64)>,
    /// For each entry, in the file's order: windows and its CPU time in them (ns).
    cpu_ns: Vec<Vec<(u32, u64)>>,
    /// For each entry, its samples in these windows. The first versions lacked them.
    #[serde(default)]
    samples: Vec<Vec<u64>>,
}
