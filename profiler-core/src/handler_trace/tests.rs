use proptest::prelude::*;

use super::*;
use crate::record::RawData;

const ENTRY: &str = "name: hrtimer_expire_entry\nID: 459\nformat:\n\
    \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
    \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
    \tfield:void * hrtimer;\toffset:8;\tsize:8;\tsigned:0;\n\
    \tfield:s64 now;\toffset:16;\tsize:8;\tsigned:1;\n\
    \tfield:void *function;\toffset:24;\tsize:8;\tsigned:0;\n\n\
    print fmt: \"hrtimer=%p function=%ps\", REC->hrtimer, REC->function\n";
const EXIT: &str = "ID: 458\n\tfield:void * hrtimer;\toffset:8;\tsize:8;\tsigned:0;\n";
const PERF: u64 = 0xffff_ffff_8123_4560;
const TICK: u64 = 0xffff_ffff_8100_0000;

fn layout() -> TraceLayout {
    TraceLayout::parse(ENTRY, EXIT).unwrap()
}

fn bytes(at_ns: u64, number: u16, words: &[u64]) -> Vec<u8> {
    let mut said = [number.to_ne_bytes(), [0; 2], [0; 2], [0; 2]].concat();
    words.iter().for_each(|word| said.extend(word.to_ne_bytes()));
    said.extend([0; 4]); // padding
    [&at_ns.to_ne_bytes()[..], &(said.len() as u32).to_ne_bytes(), &said].concat()
}

fn entry(at_ns: u64, timer: u64, function: u64) -> (u32, Vec<u8>) {
    (SAMPLE, bytes(at_ns, 459, &[timer, at_ns, function]))
}

fn exit(at_ns: u64, timer: u64) -> (u32, Vec<u8>) {
    (SAMPLE, bytes(at_ns, 458, &[timer]))
}

fn traced(records: &[(u32, Vec<u8>)]) -> CpuTrace {
    let mut trace = CpuTrace::default();
    for (kind, body) in records {
        trace.record(&layout(), &RawRecord { kind: *kind, misc: 0, body: RawData::Single(body) });
    }
    trace
}

#[test]
fn the_format_files_say_where_things_are() {
    let expected = TraceLayout { entry: 459, exit: 458, entry_timer: 8, entry_function: 24, exit_timer: 8 };
    assert_eq!(layout(), expected);
    assert_eq!(layout().numbers(), [459, 458]);
    let narrow = ENTRY.replace("offset:24;\tsize:8", "offset:24;\tsize:4");
    for format in ["", "ID: x", EXIT, &narrow, &ENTRY.replace("hrtimer;", "timer;")] {
        assert_eq!(TraceLayout::parse(format, EXIT), None, "{format}");
    }
}

#[test]
fn a_sample_gets_the_bracket_that_it_lies_in() {
    let trace = traced(&[
        entry(100, 1, TICK),
        exit(150, 1),
        entry(200, 2, PERF),
        exit(900, 2),
        entry(1_000, 1, TICK),
        exit(1_050, 1),
    ]);
    assert_eq!(trace.around(555), Some(&Bracket { entry_ns: 200, exit_ns: 900, function: PERF }));
    assert_eq!([99, 175, 950, 2_000].map(|at| trace.around(at)), [None; 4]);
    assert!(trace.around(200).is_some() && trace.around(900).is_some());
    let sample = HandledSample { at_ns: 555, cpu: 0, frames: 7, stack_bytes: 4_096 };
    let time = sample.timed(trace.around(555).unwrap());
    assert_eq!(time, HandlerTime { time_ns: 700.0, frames: 7, stack_bytes: 4_096 });
    assert_eq!(trace.records(), 6);
}

#[test]
fn what_does_not_fit_together_is_dropped() {
    let lost = |count: u64| (LOST, [7, count].map(u64::to_ne_bytes).concat());
    let cases = [
        vec![entry(100, 1, PERF), exit(150, 2)],
        vec![entry(100, 1, PERF), lost(3), exit(150, 1)],
        vec![entry(100, 1, PERF), exit(90, 1)],
        vec![entry(100, 1, PERF), exit(100 + LONGEST_NS + 1, 1)],
        vec![exit(100, 1)],
        vec![entry(100, 1, PERF), exit(150, 3), exit(160, 1)],
        vec![entry(100, 1, PERF), (SAMPLE, bytes(120, 9, &[1])), exit(150, 1)],
        vec![entry(100, 1, PERF), (SAMPLE, bytes(150, 458, &[1])[..20].to_vec())],
    ];
    for records in cases {
        assert!(traced(&records).brackets.is_empty(), "{records:?}");
    }
    assert_eq!(traced(&[entry(100, 1, PERF), lost(3)]).records(), 4);
    let again = traced(&[entry(100, 1, PERF), entry(200, 1, PERF), exit(250, 1)]);
    assert_eq!(again.brackets, [Bracket { entry_ns: 200, exit_ns: 250, function: PERF }]);
}

proptest! {
    #[test]
    fn whatever_the_ring_holds_there_is_no_panic_and_brackets_are_in_order(
        records in prop::collection::vec(
            prop_oneof![
                (any::<u32>(), prop::collection::vec(any::<u8>(), 0..80)),
                (any::<u64>(), 0..3u64).prop_map(|(at, timer)| entry(at, timer, PERF)),
                (any::<u64>(), 0..3u64).prop_map(|(at, timer)| exit(at, timer)),
                (0..1_000u64, 0..2u64).prop_map(|(at, timer)| entry(at, timer, PERF)),
                (0..1_000u64, 0..2u64).prop_map(|(at, timer)| exit(at, timer)),
            ],
            0..40,
        ),
        at_ns in 0..1_000u64,
    ) {
        let trace = traced(&records);
        prop_assert!(trace.brackets.is_sorted_by_key(|bracket| bracket.entry_ns));
        prop_assert!(trace.brackets.iter().all(|bracket| bracket.entry_ns <= bracket.exit_ns));
        prop_assert!(trace.around(at_ns).is_none_or(|b| b.entry_ns <= at_ns && at_ns <= b.exit_ns));
    }

    #[test]
    fn whatever_the_files_say_there_is_no_panic(entry in ".{0,200}", offset: u64) {
        let format = ENTRY.replace("offset:24", &format!("offset:{offset}"));
        let parsed = TraceLayout::parse(&entry, &format);
        prop_assert!(parsed.is_none());
        if let Some(layout) = TraceLayout::parse(&format, EXIT) {
            let (kind, body) = exit(1, 1);
            CpuTrace::default().record(&layout, &RawRecord { kind, misc: 0, body: RawData::Single(&body) });
        }
    }
}
