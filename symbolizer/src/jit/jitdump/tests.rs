use proptest::prelude::*;

use super::*;

const ALL: u64 = u64::MAX;

fn header(flags: u64) -> Vec<u8> {
    let words = [MAGIC, 1, HEADER_BYTES as u32, 62, 0, 7].map(u32::to_ne_bytes);
    [words.concat(), [1, flags].map(u64::to_ne_bytes).concat()].concat()
}

fn record(kind: u32, time_ns: u64, body: &[u8]) -> Vec<u8> {
    let total = (RECORD_HEADER_BYTES + body.len()) as u32;
    [&kind.to_ne_bytes()[..], &total.to_ne_bytes(), &time_ns.to_ne_bytes(), body].concat()
}

fn numbers(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

fn load(time_ns: u64, start: u64, size: u64, index: u64, name: &str) -> Vec<u8> {
    let numbers = numbers(&[7 << 32 | 7, start, start, size, index]);
    record(
        CODE_LOAD,
        time_ns,
        &[&numbers, name.as_bytes(), &[0], &vec![0x90; size.min(64) as usize]].concat(),
    )
}

fn moved(time_ns: u64, from: u64, to: u64, size: u64, index: u64) -> Vec<u8> {
    record(CODE_MOVE, time_ns, &numbers(&[7 << 32 | 7, to, from, to, size, index]))
}

fn lines(code: u64, lines: &[(u64, u32, &[u8])]) -> Vec<u8> {
    let entry = |&(address, line, file): &(u64, u32, &[u8])| {
        [&address.to_ne_bytes()[..], &line.to_ne_bytes(), &[0; 4], file, &[0]].concat()
    };
    let entries: Vec<Vec<u8>> = lines.iter().map(entry).collect();
    record(CODE_DEBUG_INFO, 0, &[numbers(&[code, lines.len() as u64]), entries.concat()].concat())
}

fn read(records: &[Vec<u8>]) -> JitDump {
    let mut dump = JitDump::default();
    dump.read(&[header(0), records.concat()].concat(), ALL).unwrap();
    dump
}

fn name(dump: &JitDump, address: u64, time_ns: u64) -> Option<String> {
    Some(dump.frame(dump.at(address, time_ns)?)?.name.to_string())
}

fn position(dump: &JitDump, address: u64) -> (String, u32) {
    let frame = dump.frame(dump.at(address, 0).unwrap()).unwrap();
    (frame.file.unwrap_or_default().to_string(), frame.line.unwrap_or(0))
}

#[test]
fn code_is_named_by_address_and_time() {
    let dump = read(&[load(10, 0x1000, 0x20, 1, "first"), load(20, 0x1000, 0x10, 2, "_ZN5space3fooEii")]);
    assert_eq!(name(&dump, 0x1008, 15).unwrap(), "first");
    assert_eq!(name(&dump, 0x1008, 25).unwrap(), "space::foo(int, int)");
    assert_eq!(name(&dump, 0x1018, 25).unwrap(), "first");
    assert_eq!(name(&dump, 0x1020, 25), None);
    let place = dump.during(0x1008, 0, 19).unwrap();
    assert_eq!((place.offset, dump.address(place)), (8, Some(0x1008)));
    assert_eq!(dump.left_out(), 0);
}

#[test]
fn code_that_moves_keeps_its_name_and_leaves_its_place() {
    let records =
        [load(10, 0x1000, 0x20, 1, "a"), moved(20, 0x1000, 0x2000, 0x20, 1), load(30, 0x1000, 0x20, 2, "b")];
    let dump = read(&records);
    assert_eq!(name(&dump, 0x2008, 25).unwrap(), "a");
    assert_eq!([15, 35].map(|time| name(&dump, 0x1008, time).unwrap()), ["a", "b"]);
    assert_eq!(read(&[moved(1, 2, 3, 4, 99)]).left_out(), 1);
}

#[test]
fn lines_belong_to_the_code_that_follows() {
    let entries: [(u64, u32, &[u8]); 2] = [(0x1000, 3, b"app.js"), (0x1008, 4, &[0xff])];
    let dump = read(&[lines(0x1000, &entries), load(1, 0x1000, 0x20, 1, "f"), load(1, 0x2000, 0x20, 2, "g")]);
    assert_eq!(
        [0x1007, 0x1008].map(|at| position(&dump, at)),
        [3, 4].map(|line| ("app.js".to_owned(), line))
    );
    assert_eq!(position(&dump, 0x2000), (String::new(), 0));
}

/// V8 writes them so.
#[test]
fn lines_may_count_from_the_header_that_perf_puts_before_the_code() {
    let entries: [(u64, u32, &[u8]); 2] = [(0x1040, 3, b"app.js"), (0x1048, 4, &[0xff])];
    let dump = read(&[lines(0x1000, &entries), load(1, 0x1000, 0x20, 1, "f")]);
    assert_eq!([0x1007, 0x1008].map(|at| position(&dump, at).1), [3, 4]);
}

#[test]
fn times_of_another_clock_are_only_an_order() {
    let mut dump = JitDump::default();
    let records = [load(1 << 60, 0x1000, 0x20, 1, "old"), load(1 << 50, 0x1000, 0x20, 2, "new")];
    dump.read(&[header(FLAG_ARCH_TIMESTAMP), records.concat()].concat(), ALL).unwrap();
    assert_eq!(name(&dump, 0x1000, 5).unwrap(), "new");
}

#[test]
fn what_is_not_written_yet_is_read_later() {
    let whole = [header(0), load(1, 0x1000, 0x20, 1, "a"), load(2, 0x2000, 0x20, 2, "b")].concat();
    let mut dump = JitDump::default();
    for len in 0..=whole.len() {
        dump.read(&whole[..len].to_vec(), 1).unwrap();
    }
    dump.read(&whole, ALL).unwrap();
    assert_eq!([0x1000, 0x2000].map(|at| name(&dump, at, 5).unwrap()), ["a", "b"]);
    assert_eq!(dump.codes.len(), 2);
}

#[test]
fn a_journal_of_which_only_a_part_was_read_says_so() {
    let records: Vec<u8> = (0..100_000u64).flat_map(|i| load(i, 0x1000 * i, 0x10, i, "f")).collect();
    let mut whole = [header(0), records].concat();
    let mut dump = JitDump::default();
    dump.read(&whole, 1).unwrap();
    assert!(dump.is_behind() && dump.bytes_read() > 0);
    dump.read(&whole, ALL).unwrap();
    assert!(!dump.is_behind() && dump.bytes_read() == whole.len() as u64);
    whole.extend(&load(1, 2, 3, 4, "late")[..20]);
    dump.read(&whole, ALL).unwrap();
    assert!(!dump.is_behind(), "the rest of the record is yet to be written");
}

#[test]
fn a_code_that_is_left_out_takes_the_place_of_older_ones() {
    let nameless = load(20, 0x1000, 0x20, 2, "");
    let unknown = moved(20, 0x9000, 0x1000, 0x20, 99);
    for left_out in [nameless, unknown] {
        let mut dump = read(&[load(10, 0x1000, 0x20, 1, "a"), left_out, load(40, 0x1000, 0x20, 3, "b")]);
        let at = |dump: &JitDump, time_ns| name(dump, 0x1008, time_ns);
        assert_eq!(
            [15, 25, 45].map(|time_ns| at(&dump, time_ns)),
            [Some("a".into()), None, Some("b".into())]
        );
        assert_eq!(dump.during(0x1008, 22, 39), None);
        assert_eq!(dump.left_out(), 1);
        // So does all that is not read any more.
        dump.give_up();
        assert_eq!([15, 39].map(|time_ns| at(&dump, time_ns)), [Some("a".into()), None]);
        assert_eq!((at(&dump, 40), dump.during(0x1008, 30, 41)), (None, None));
        assert!(dump.read(&header(0), ALL).is_err() && !dump.is_behind());
    }
    // What is moved afterwards is not the code that had the number before.
    let records = [load(1, 0x1000, 8, 1, "a"), load(2, 0x2000, 8, 1, ""), moved(3, 0x2000, 0x3000, 8, 1)];
    assert_eq!(name(&read(&records), 0x3000, 4), None);
}

#[test]
fn behind_damage_no_code_keeps_its_name_and_nothing_is_awaited() {
    let mut damaged = record(9, 30, &[]);
    damaged[4] = 15;
    let whole = [header(0), load(10, 0x1000, 0x20, 1, "a"), load(20, 0x2000, 0x20, 2, "b"), damaged].concat();
    let mut dump = JitDump::default();
    assert!(dump.read(&[whole.clone(), vec![0; 2 * CHUNK as usize]].concat(), CHUNK).is_err());
    assert!(!dump.is_behind() && dump.has_ended());
    assert_eq!(dump.failure(), Some(&Reason::CorruptJitDump));
    let at = |time_ns| name(&dump, 0x1008, time_ns);
    assert_eq!((at(15), at(20), at(99)), (Some("a".into()), None, None));
    assert_eq!((dump.during(0x1008, 30, 40), dump.failure()), (None, Some(&Reason::CorruptJitDump)));
    let mut full = read(&[load(10, 0x1000, 0x20, 1, "a")]);
    full.give_up();
    assert_eq!(full.failure(), None);
}

#[test]
fn where_no_more_code_can_be_told_apart_nothing_new_has_a_name() {
    let mut dump = read(&[load(1, 0x10, 8, 1, "a")]);
    let space = &mut dump.space;
    let full = (1..1 << 20).find(|&at| !space.enter(0x100 * at..0x100 * at + 1, 2, 0)).unwrap();
    let journal = [header(0), load(1, 0x10, 8, 1, "a"), load(9, 0x10, 8, 2, "b")].concat();
    dump.read(&journal, ALL).unwrap();
    assert_eq!((name(&dump, 0x10, 8), name(&dump, 0x10, 9)), (Some("a".into()), None), "{full}");
}

/// A journal that counts what is read of it.
struct Counted(Vec<u8>, std::sync::atomic::AtomicU64);

impl ReadAt for Counted {
    fn len(&self) -> std::io::Result<u64> {
        ReadAt::len(&self.0)
    }

    fn read_at(&self, offset: u64, len: usize) -> std::io::Result<Vec<u8>> {
        self.1.fetch_add(len as u64, std::sync::atomic::Ordering::Relaxed);
        self.0.read_at(offset, len)
    }
}

#[test]
fn a_long_record_that_is_yet_to_be_written_is_read_once() {
    let long = (2 * CHUNK) as usize;
    let body = [numbers(&[7, 0x1000, 0x1000, long as u64, 1]), b"long\0".to_vec(), vec![0; long]].concat();
    let whole = [header(0), record(CODE_LOAD, 1, &body)].concat();
    let read = |journal: &Counted| journal.1.load(std::sync::atomic::Ordering::Relaxed);
    let mut dump = JitDump::default();
    let part = Counted(whole[..whole.len() - 1].to_vec(), Default::default());
    dump.read(&part, ALL).unwrap();
    let once = read(&part);
    assert!(dump.bytes_read() >= CHUNK, "it counts, though nothing was learnt");
    for _ in 0..10 {
        dump.read(&part, ALL).unwrap();
    }
    assert!(read(&part) == once && !dump.is_behind());
    dump.read(&whole, ALL).unwrap();
    assert_eq!(name(&dump, 0x1000, 5).unwrap(), "long");
}

#[test]
fn what_is_held_is_known() {
    let records: Vec<Vec<u8>> =
        (0..1000).map(|i| load(i, 0x100 * i, 0x10, i, &format!("{i:01000}"))).collect();
    let held = read(&records).held_bytes();
    assert!((1_000_000..1_500_000).contains(&held), "{held}");
}

#[test]
fn a_code_longer_than_what_is_read_at_once_is_named() {
    let long = (2 * CHUNK) as usize;
    let body = [numbers(&[7, 0x1000, 0x1000, long as u64, 1]), b"long\0".to_vec(), vec![0; long]].concat();
    let dump = read(&[
        load(1, 0x9000_0000, 1, 9, "x"),
        record(CODE_LOAD, 1, &body),
        load(1, 0x9100_0000, 1, 8, "z"),
    ]);
    assert_eq!(name(&dump, 0x1000 + CHUNK, 5).unwrap(), "long");
    assert_eq!(name(&dump, 0x9100_0000, 5).unwrap(), "z");
}

#[test]
fn what_is_no_journal_is_refused_for_good() {
    let mut dump = JitDump::default();
    assert_eq!(dump.read(&vec![1; 100], ALL), Err(Reason::CorruptJitDump));
    assert!(dump.read(&header(0), ALL).is_err());
    let mut cut = record(9, 0, &[]);
    cut[4] = 15;
    assert_eq!(JitDump::default().read(&[header(0), cut].concat(), ALL), Err(Reason::CorruptJitDump));
}

proptest! {
    #[test]
    fn any_bytes_are_read(bytes: Vec<u8>, address: u64, time_ns: u64) {
        let mut dump = JitDump::default();
        // An error is as good an answer as any.
        let _ = dump.read(&bytes, ALL);
        let _ = dump.read(&[header(0), bytes].concat(), ALL);
        dump.at(address, time_ns).map(|place| dump.frame(place));
    }

    #[test]
    fn any_fields_are_read_however_they_arrive(
        records in prop::collection::vec((0u32..6, any::<u64>(), prop::collection::vec(any::<u8>(), 0..90)), 0..12),
        places in prop::collection::vec((0u64..64, 0u64..80), 0..12),
        cuts in prop::collection::vec(0usize..1500, 0..8),
    ) {
        let mut bytes = header(0);
        bytes.extend(records.iter().flat_map(|(kind, time, body)| record(*kind, *time, body)));
        bytes.extend(places.iter().flat_map(|&(start, size)| load(size, start, size, start, "f")));
        let mut at_once = JitDump::default();
        at_once.read(&bytes, ALL).unwrap();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
        cuts.sort_unstable();
        let mut in_parts = JitDump::default();
        for cut in cuts.into_iter().chain([bytes.len()]) {
            in_parts.read(&bytes[..cut].to_vec(), ALL).unwrap();
        }
        for address in 0..150 {
            let (one, other) = (at_once.at(address, 40), in_parts.at(address, 40));
            prop_assert_eq!(one, other);
            prop_assert_eq!(one.and_then(|place| at_once.frame(place)), other.and_then(|place| in_parts.frame(place)));
            prop_assert!(one.is_none_or(|place| at_once.address(place) == Some(address)));
        }
    }
}
