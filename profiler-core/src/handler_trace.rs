//! How long the kernel's handler took for each sample, from the tracepoints around it.
//!
//! Every expiry of a high-resolution timer is bracketed by the tracepoints `timer:hrtimer_expire_entry` and
//! `timer:hrtimer_expire_exit`. The handler that writes our samples is the one whose brackets our samples lie in: its
//! name, which differs between kernels, need not be known. On one CPU these handlers do not nest, so an exit belongs to
//! the entry before it if both name the same timer; whatever does not fit together is dropped.

use crate::rate::HandlerTime;
use crate::record::{RawRecord, StackCopy};

/// `perf_event_attr.sample_type` of the tracepoints: time and what the tracepoint says.
pub const SAMPLE_TYPE: u64 = PERF_SAMPLE_TIME | PERF_SAMPLE_RAW;
const PERF_SAMPLE_TIME: u64 = 1 << 2;
const PERF_SAMPLE_RAW: u64 = 1 << 10;

/// `PERF_RECORD_LOST`, `PERF_RECORD_SAMPLE`, `PERF_RECORD_LOST_SAMPLES`.
const LOST: u32 = 2;
const SAMPLE: u32 = 9;
const LOST_SAMPLES: u32 = 13;
/// Before what the tracepoint says stand: time, size.
const RAW_OFFSET: usize = 12;
/// Any bracket is shorter (ns): a longer one comes of a clock or of records that do not fit together.
const LONGEST_NS: u64 = 100_000_000;

/// Where the two tracepoints keep what is needed, from their files in tracefs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceLayout {
    entry: u16,
    exit: u16,
    entry_timer: usize,
    entry_function: usize,
    exit_timer: usize,
}

impl TraceLayout {
    /// From the tracepoints' `format` files: `None` if one lacks its number or a field of eight bytes that is needed.
    pub fn parse(entry_format: &str, exit_format: &str) -> Option<TraceLayout> {
        Some(TraceLayout {
            entry: number(entry_format)?,
            exit: number(exit_format)?,
            entry_timer: pointer(entry_format, "hrtimer")?,
            entry_function: pointer(entry_format, "function")?,
            exit_timer: pointer(exit_format, "hrtimer")?,
        })
    }

    /// `perf_event_attr.config` of the entry and of the exit.
    pub fn numbers(&self) -> [u64; 2] {
        [self.entry, self.exit].map(u64::from)
    }

    fn decode(&self, raw: &RawRecord<'_>) -> Option<Traced> {
        let said = |at: usize, len: usize| raw.body.get(RAW_OFFSET + at..RAW_OFFSET + at + len);
        let word = |at: usize| StackCopy::new(said(at, 8)?, 8).word(0);
        let mut number = [0; 2];
        said(0, 2)?.read_exact(&mut number).ok()?;
        let at_ns = StackCopy::new(raw.body.get(0..8)?, 8).word(0)?;
        match u16::from_ne_bytes(number) {
            number if number == self.entry => Some(Traced::Entry(HandlerEntry {
                at_ns,
                timer: word(self.entry_timer)?,
                function: word(self.entry_function)?,
            })),
            number if number == self.exit => Some(Traced::Exit { at_ns, timer: word(self.exit_timer)? }),
            _ => None,
        }
    }
}

/// The `ID:` of a format file.
fn number(format: &str) -> Option<u16> {
    format.lines().find_map(|line| line.strip_prefix("ID:")?.trim().parse().ok())
}

/// The offset of a field of eight bytes.
fn pointer(format: &str, name: &str) -> Option<usize> {
    let is_field = |line: &&str| {
        let declared = line.trim().strip_prefix("field:").and_then(|line| line.split(';').next());
        declared.and_then(|declared| declared.split([' ', '*']).next_back()) == Some(name)
    };
    let line = format.lines().find(is_field)?;
    let value = |key: &str| line.split(';').find_map(|part| part.trim().strip_prefix(key)?.parse().ok());
    let at: usize = value("offset:")?;
    (value("size:")? == 8 && at <= usize::from(u16::MAX)).then_some(at)
}

enum Traced {
    Entry(HandlerEntry),
    Exit { at_ns: u64, timer: u64 },
}

#[derive(Clone, Copy, Debug)]
struct HandlerEntry {
    at_ns: u64,
    timer: u64,
    function: u64,
}

/// A handler's run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bracket {
    /// When the entry was recorded (ns, the clock of the samples).
    pub entry_ns: u64,
    /// When the exit was.
    pub exit_ns: u64,
    /// The handler's address.
    pub function: u64,
}

/// What the tracepoints of one CPU recorded.
#[derive(Clone, Debug, Default)]
pub struct CpuTrace {
    begun: Option<HandlerEntry>,
    brackets: Vec<Bracket>,
    records: u64,
}

impl CpuTrace {
    /// Takes in the next record of this CPU's ring.
    pub fn record(&mut self, layout: &TraceLayout, raw: &RawRecord<'_>) {
        if raw.kind != SAMPLE {
            self.begun = None; // what was lost may have been this entry's exit
            self.records = self.records.saturating_add(lost(raw));
            return;
        }
        self.records = self.records.saturating_add(1);
        match (layout.decode(raw), self.begun.take()) {
            (Some(Traced::Entry(entry)), _) => self.begun = Some(entry),
            (Some(Traced::Exit { at_ns, timer }), Some(begun)) if timer == begun.timer => {
                self.end(begun, at_ns);
            }
            _ => {}
        }
    }

    fn end(&mut self, begun: HandlerEntry, exit_ns: u64) {
        let entry_ns = begun.at_ns;
        let in_order = self.brackets.last().is_none_or(|last| last.exit_ns <= entry_ns);
        if in_order && exit_ns.checked_sub(entry_ns).is_some_and(|long_ns| long_ns <= LONGEST_NS) {
            self.brackets.push(Bracket { entry_ns, exit_ns, function: begun.function });
        }
    }

    /// Records that were written, or were to be: each cost the task that it interrupted.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// The bracket that a sample at `at_ns` lies in.
    pub fn around(&self, at_ns: u64) -> Option<&Bracket> {
        let after = self.brackets.partition_point(|bracket| bracket.entry_ns <= at_ns);
        self.brackets.get(after.checked_sub(1)?).filter(|bracket| at_ns <= bracket.exit_ns)
    }
}

/// Records that the kernel says it dropped; 0 for a record of another kind.
fn lost(raw: &RawRecord<'_>) -> u64 {
    let word = |at: usize| StackCopy::new(raw.body.get(at..at + 8)?, 8).word(0);
    let count = match raw.kind {
        LOST => word(8), // behind the event's number
        LOST_SAMPLES => word(0),
        _ => None,
    };
    count.unwrap_or(0)
}

/// One of our samples, as far as its handler is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandledSample {
    /// When it was recorded (ns).
    pub at_ns: u64,
    /// On which CPU.
    pub cpu: u32,
    /// Frames that the kernel walked.
    pub frames: u64,
    /// Bytes of stack that it copied.
    pub stack_bytes: u64,
}

impl HandledSample {
    /// What the handler took for this sample, by the trace of its CPU.
    pub fn timed(&self, bracket: &Bracket) -> HandlerTime {
        let time_ns = bracket.exit_ns.saturating_sub(bracket.entry_ns) as f64;
        HandlerTime { time_ns, frames: self.frames, stack_bytes: self.stack_bytes }
    }
}

#[cfg(test)]
mod tests;
