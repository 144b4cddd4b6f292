//! Any text as the tracepoints' format files, and any bytes as the records of their ring.

use profiler_core::handler_trace::{CpuTrace, TraceLayout};
use profiler_core::record::{RawData, RawRecord};

const HEADER_BYTES: usize = 8;
const ENTRY: &str =
    "ID: 2\n\tfield:void * hrtimer;\toffset:8;\tsize:8;\n\tfield:void * function;\toffset:24;\tsize:8;\n";
const EXIT: &str = "ID: 1\n\tfield:void * hrtimer;\toffset:8;\tsize:8;\n";

/// Takes any bytes.
pub(crate) fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let told = TraceLayout::parse(&text, &text);
    for layout in told.into_iter().chain(TraceLayout::parse(ENTRY, EXIT)) {
        follow(&layout, data);
    }
}

fn follow(layout: &TraceLayout, mut ring: &[u8]) {
    let mut trace = CpuTrace::default();
    while let Some((header, rest)) = ring.split_first_chunk::<HEADER_BYTES>() {
        let [kind, _, _, _, _, _, s0, s1] = *header;
        let size = usize::from(u16::from_le_bytes([s0, s1])).saturating_sub(HEADER_BYTES).min(rest.len());
        let (body, next) = rest.split_at(size);
        let body = RawData::Single(body);
        trace.record(layout, &RawRecord { kind: u32::from(kind), misc: 0, body });
        ring = next;
    }
    for at_ns in [0, 1, 1 << 32, u64::MAX] {
        let around = trace.around(at_ns);
        assert!(around.is_none_or(|bracket| bracket.entry_ns <= at_ns && at_ns <= bracket.exit_ns));
    }
}
