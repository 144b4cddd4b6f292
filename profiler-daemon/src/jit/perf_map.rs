//! A perf map: a list of generated code, of which what was read is remembered.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use profiler_core::profile::Unknown;
use symbolizer::{NamedFrame, PerfMap};

use super::limits::ReadLimits;
use crate::objects::names::{About, FoundFunctions, KeptNames, NameRoom, Naming};
use crate::objects::target_file::TargetFile;

/// Of a longer perf map, the end is read: later lines count.
const LENGTHS: Lengths = Lengths { piece: 64 << 20, whole: 256 << 20 };
/// Of a line that begins in one piece and ends in others, so much is kept (bytes): more than of any name.
const LONGEST_LINE: usize = 1 << 16;
/// So much before the end of what was read tells whether a perf map has grown, or was written anew (bytes).
const JOINT: u64 = 256;

/// A perf map, open.
pub(super) struct PerfMapFile {
    file: TargetFile,
    /// Where it was found.
    pub(super) path: String,
    names: Arc<KeptNames>,
    read: Mutex<Read>,
    /// Whether what was looked for in vain may be at its beginning, which was not read.
    is_cut: AtomicBool,
    /// Whether the process that writes to it has ended.
    is_final: AtomicBool,
    lengths: Lengths,
}

/// How much of a perf map is read (bytes).
#[derive(Clone, Copy)]
struct Lengths {
    /// At once.
    piece: u64,
    /// In all.
    whole: u64,
}

/// What was read.
#[derive(Default)]
struct Read {
    /// Size and time of the last change when it was read (bytes; s and ns), and whether its last line counted without an end.
    as_of: Option<(u64, i64, i64, bool)>,
    /// Where the first line begins that was not whole then.
    until: u64,
    /// What precedes that place.
    joint: Vec<u8>,
}

impl PerfMapFile {
    /// One that is open. This asks its file system.
    pub(super) fn new(file: File, path: String) -> io::Result<Self> {
        let file = TargetFile::new(file)?;
        let (names, read) = (Arc::default(), Mutex::default());
        let (is_cut, is_final) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Self { file, path, names, read, is_cut, is_final, lengths: LENGTHS })
    }

    /// Its process has ended: the last line counts, even if it has no end.
    pub(super) fn finish(&self) {
        self.is_final.store(true, Ordering::Relaxed);
    }

    /// The open file.
    pub(super) fn file(&self) -> &TargetFile {
        &self.file
    }

    /// Why it names no function at an address.
    pub(super) fn missing(&self) -> String {
        match self.is_cut.load(Ordering::Relaxed) {
            false => format!("the program's perf map ({}) lacks it", self.path),
            true => {
                let most = config::Bytes::new(self.lengths.whole);
                format!("the program's perf map ({}) is too long: only its last {most} was read", self.path)
            }
        }
    }

    /// The functions at these addresses, as the perf map tells at this moment. Nothing is read if it told of all of them before
    /// and has not changed since; of one that has grown, what was appended; all of it for addresses that are new. What would take
    /// more than the limits allow has no name.
    pub(super) fn names(
        &self,
        addresses: &[u64],
        room: &NameRoom,
        now: Naming,
        limits: &mut ReadLimits,
    ) -> Vec<Option<NamedFrame>> {
        let nothing = vec![None; addresses.len()];
        if addresses.is_empty() {
            return nothing;
        }
        let Some(mut read) = limits.lock(&self.read) else { return nothing };
        if !self.catch_up(&mut read, room, now, limits) {
            return nothing;
        }
        let mut known = self.names.known(addresses, now);
        let new: Vec<usize> = (0..known.len()).filter(|&at| known[at].is_none()).collect();
        if !new.is_empty() && limits.take(read.len().min(self.lengths.whole)) {
            let asked: Vec<u64> = new.iter().map(|&at| addresses[at]).collect();
            let named = self.read_whole(&mut read, &asked, room);
            self.keep(room, now, &named);
            new.into_iter().zip(named).for_each(|(at, (_, found))| known[at] = Some(found));
        }
        known.into_iter().map(|found| found?.ok()?.pop()).collect()
    }

    /// Brings what is kept up to date; whether the limits allow that.
    fn catch_up(&self, read: &mut Read, room: &NameRoom, now: Naming, limits: &mut ReadLimits) -> bool {
        let Ok(meta) = self.file.readable().and_then(|file| file.metadata()) else { return true };
        let is_final = self.is_final.load(Ordering::Relaxed);
        let as_of = Some((meta.len(), meta.mtime(), meta.mtime_nsec(), is_final));
        if read.as_of == as_of {
            return true;
        }
        let kept = self.names.addresses();
        if !kept.is_empty() && !limits.take(meta.len().saturating_sub(read.joint_start())) {
            return false;
        }
        read.as_of = as_of;
        if kept.is_empty() {
            return true; // whatever is asked for is new
        }
        let Some(text) = self.appended(read, meta.len()) else {
            self.names.clear();
            self.is_cut.store(false, Ordering::Relaxed);
            return true;
        };
        room.count_list(text.len() as u64);
        let named: Vec<(u64, FoundFunctions)> =
            named(read.counted(&text), &kept).filter(|(_, found)| found.is_ok()).collect();
        self.keep(room, now, &named);
        read.note(read.until, &text);
        true
    }

    fn keep(&self, room: &NameRoom, now: Naming, named: &[(u64, FoundFunctions)]) {
        self.names.keep(room, now, About { is_final: true, ..About::default() }, named);
    }

    /// Looks for addresses from the end to the beginning, a piece at a time, until all are found. The last line that covers one counts.
    fn read_whole(&self, read: &mut Read, addresses: &[u64], room: &NameRoom) -> Vec<(u64, FoundFunctions)> {
        let nothing = || addresses.iter().map(|&address| (address, Err(Unknown::default()))).collect();
        let mut found: Vec<(u64, FoundFunctions)> = nothing();
        let mut open: Vec<usize> = (0..addresses.len()).collect();
        let len = read.len();
        let first = len.saturating_sub(self.lengths.whole);
        let mut until = len;
        let mut has_line_end = false;
        // The end of a line that begins in a piece that is yet to be read.
        let mut line_end = Vec::new();
        while until > first && !open.is_empty() {
            let from = until.saturating_sub(self.lengths.piece).max(first);
            let Some(mut text) = self.bytes(from, until) else {
                // It is cut short in this very moment, and says nothing.
                found = nothing();
                open.clear();
                break;
            };
            until = from;
            if !has_line_end {
                read.note(from, &text);
                text.truncate(read.counted(&text).len());
                has_line_end = !text.is_empty();
            }
            text.append(&mut line_end);
            let lines = if from > 0 { first_line_end(&text) } else { 0 };
            line_end.extend_from_slice(&text[..lines.min(LONGEST_LINE)]);
            let asked: Vec<u64> = open.iter().map(|&at| addresses[at]).collect();
            let named: Vec<(u64, FoundFunctions)> = named(&text[lines..], &asked).collect();
            open.iter().zip(named).for_each(|(&at, named)| found[at] = named);
            open.retain(|&at| found[at].1.is_err());
        }
        room.count_list(len - until);
        if first > 0 && !open.is_empty() {
            self.is_cut.store(true, Ordering::Relaxed);
        }
        found
    }

    /// What was written behind that which was read; none if that is not there any more, or too much.
    fn appended(&self, read: &Read, len: u64) -> Option<Vec<u8>> {
        let mut text = self.bytes(read.joint_start(), len)?;
        text.starts_with(&read.joint).then(|| text.split_off(read.joint.len()))
    }

    fn bytes(&self, from: u64, until: u64) -> Option<Vec<u8>> {
        let len = until.checked_sub(from).filter(|&len| len <= self.lengths.piece + JOINT)?;
        let mut bytes = vec![0; len as usize];
        self.file.readable().ok()?.read_exact_at(&mut bytes, from).ok()?;
        Some(bytes)
    }
}

impl Read {
    /// The size when it was read (bytes).
    fn len(&self) -> u64 {
        self.as_of.map_or(0, |(len, ..)| len)
    }

    /// What counts of a text at its end.
    fn counted<'a>(&self, text: &'a [u8]) -> &'a [u8] {
        let is_final = self.as_of.is_some_and(|(.., is_final)| is_final);
        if is_final { text } else { whole_lines(text) }
    }

    fn joint_start(&self) -> u64 {
        self.until - self.joint.len() as u64
    }

    /// Notes that a text was read that begins at `from`.
    fn note(&mut self, from: u64, text: &[u8]) {
        let whole = whole_lines(text).len();
        if whole > 0 {
            self.until = from + whole as u64;
            self.joint = text[whole.saturating_sub(JOINT as usize)..whole].to_vec();
        }
    }
}

/// A text without its last line if that is yet to be written to its end: half of a name, or of a length, is another one.
fn whole_lines(text: &[u8]) -> &[u8] {
    &text[..text.iter().rposition(|&byte| byte == b'\n').map_or(0, |last| last + 1)]
}

/// Where the second line of a text begins, or its end.
fn first_line_end(text: &[u8]) -> usize {
    text.iter().position(|&byte| byte == b'\n').map_or(text.len(), |end| end + 1)
}

/// What a text says of addresses.
fn named(text: &[u8], addresses: &[u64]) -> impl Iterator<Item = (u64, FoundFunctions)> {
    let found = PerfMap::new(text).names(addresses);
    addresses.iter().zip(found).map(|(&address, name)| {
        let frame =
            |name: Arc<str>| NamedFrame { linkage_name: Arc::clone(&name), name, file: None, line: None };
        (address, name.map(|name| vec![frame(name)]).ok_or_else(Unknown::default))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::{ObjectStore, Symbols};
    use proptest::prelude::*;
    use std::io::{Seek, SeekFrom, Write};

    fn names(perf_map: &PerfMapFile, room: &NameRoom, addresses: &[u64]) -> Vec<Option<String>> {
        let found = perf_map.names(addresses, room, room.begin(), &mut ReadLimits::of_naming());
        found.into_iter().map(|frame| Some(frame?.name.to_string())).collect()
    }

    fn some(names: &[&str]) -> Vec<Option<String>> {
        names.iter().map(|&name| (!name.is_empty()).then(|| name.to_owned())).collect()
    }

    #[test]
    fn a_list_is_read_for_what_is_new_alone() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let store = ObjectStore::new(&Symbols::new(1 << 28));
        let room = store.snapshot().names;
        let perf_map = PerfMapFile::new(file.reopen().unwrap(), "perf-7.map".to_owned()).unwrap();
        let line_bytes = |count: u64| {
            (0..count).map(|i| format!("{:x} 10 f{i}\n", 0x1000 + 16 * i).len() as u64).sum::<u64>()
        };
        for i in 0..10_000u64 {
            writeln!(file, "{:x} 10 f{i}", 0x1000 + 16 * i).unwrap();
        }
        file.flush().unwrap();
        let whole = line_bytes(10_000);
        assert_eq!(names(&perf_map, &room, &[0x1000, 0x1010, 0x7]), some(&["f0", "f1", ""]));
        assert_eq!((room.counts().lists, room.counts().list_bytes), (1, whole));
        for _ in 0..1_000 {
            assert_eq!(names(&perf_map, &room, &[0x1010, 0x1000, 0x7]), some(&["f1", "f0", ""]));
        }
        assert_eq!(room.counts().lists, 1, "nothing is new");
        // Other code at an address that is not asked for now, the beginning of a line, and code where there was none.
        write!(file, "1000 8 other\n7 1 seven\n1010 10 hal").unwrap();
        assert_eq!(names(&perf_map, &room, &[0x1010, 0x7]), some(&["f1", "seven"]), "half of a line");
        assert_eq!(room.counts().list_bytes, whole + 34);
        writeln!(file, "f").unwrap();
        assert_eq!(names(&perf_map, &room, &[0x1010, 0x1000, 0x1008]), some(&["half", "other", "f0"]));
        assert_eq!(room.counts().list_bytes, whole + 34 + 13 + whole + 36, "one address is new");
        assert_eq!(room.counts().lists, 4);
    }

    #[test]
    fn the_last_line_needs_no_end_once_the_process_has_ended() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let room = ObjectStore::new(&Symbols::new(1 << 28)).snapshot().names;
        let perf_map = PerfMapFile::new(file.reopen().unwrap(), "perf-7.map".to_owned()).unwrap();
        std::fs::write(file.path(), "1000 10 first\n2000 10 last").unwrap();
        assert_eq!(names(&perf_map, &room, &[0x1000, 0x2000]), some(&["first", ""]));
        perf_map.finish();
        assert_eq!(names(&perf_map, &room, &[0x1000, 0x2000]), some(&["first", "last"]));

        let unread = PerfMapFile::new(file.reopen().unwrap(), "perf-7.map".to_owned()).unwrap();
        unread.finish();
        assert_eq!(names(&unread, &room, &[0x1000, 0x2000]), some(&["first", "last"]));
    }

    #[test]
    fn a_list_that_is_written_anew_is_read_anew() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let room = ObjectStore::new(&Symbols::new(1 << 28)).snapshot().names;
        let perf_map = PerfMapFile::new(file.reopen().unwrap(), "perf-7.map".to_owned()).unwrap();
        let mut last = String::new();
        for name in ["first", "second", "a third one", "4"] {
            std::fs::write(file.path(), format!("1000 10 {name}\n2000 10 rest\n")).unwrap();
            assert_eq!(names(&perf_map, &room, &[0x1000]), some(&[name]), "after {last}");
            last = name.to_owned();
        }
        std::fs::write(file.path(), "").unwrap();
        assert_eq!(names(&perf_map, &room, &[0x1000]), some(&[""]));
    }

    /// A perf map with this text, read in these lengths.
    fn perf_map(text: &[u8], lengths: Lengths) -> PerfMapFile {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(text).unwrap();
        let perf_map = PerfMapFile::new(file, "perf-7.map".to_owned()).unwrap();
        PerfMapFile { lengths, ..perf_map }
    }

    fn room() -> NameRoom {
        ObjectStore::new(&Symbols::new(1 << 28)).snapshot().names
    }

    #[test]
    fn a_long_list_is_read_to_its_beginning() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"1000 10 first\n2000 10 old\n").unwrap();
        file.seek(SeekFrom::Start(65 << 20)).unwrap();
        file.write_all(b"\n2000 10 last\n").unwrap();
        let perf_map = PerfMapFile::new(file, "perf-7.map".to_owned()).unwrap();
        let (room, addresses) = (room(), [0x1000, 0x2000, 0x3000]);
        assert_eq!(names(&perf_map, &room, &addresses), some(&["first", "last", ""]));
        let counts = room.counts();
        assert_eq!((counts.lists, counts.list_bytes), (1, (65 << 20) + 14));
        assert!(perf_map.missing().contains("lacks it"), "{}", perf_map.missing());
    }

    #[test]
    fn a_list_is_read_until_all_is_found_or_it_is_too_long_which_is_said() {
        let text: String = (0..20).map(|i| format!("{:x} 10 f{i:02}\n", 0x1000 + 16 * i)).collect();
        let lengths = Lengths { piece: 16, whole: 128 };
        let perf_map = perf_map(text.as_bytes(), lengths);
        let room = room();
        assert_eq!(names(&perf_map, &room, &[0x1130]), some(&["f19"]));
        assert_eq!(room.counts().list_bytes, 16, "it is at the end");
        assert!(perf_map.missing().contains("lacks it"), "{}", perf_map.missing());
        assert_eq!(names(&perf_map, &room, &[0x1130, 0x10f0, 0x1000]), some(&["f19", "f15", ""]));
        assert_eq!(room.counts().list_bytes, 16 + 128);
        let missing = perf_map.missing();
        assert!(missing.contains("too long") && missing.contains("128"), "{missing}");
    }

    proptest! {
        #[test]
        fn a_list_says_the_same_however_it_is_cut(
            lines in prop::collection::vec((0u64..40, 0u64..12, "[a-z ]{0,9}\n{0,2}"), 0..30),
            end in "[0-9a-z ]{0,20}",
            piece in 1u64..70,
        ) {
            let text = lines.iter().map(|(start, size, name)| format!("{start:x} {size:x} {name}"));
            let text = text.collect::<String>() + &end;
            let addresses: Vec<u64> = (0..60).collect();
            let in_pieces = perf_map(text.as_bytes(), Lengths { piece, whole: 1 << 20 });
            let whole = PerfMap::new(whole_lines(text.as_bytes())).names(&addresses);
            let whole: Vec<Option<String>> = whole.into_iter().map(|name| Some(name?.to_string())).collect();
            prop_assert_eq!(names(&in_pieces, &room(), &addresses), whole);
        }
    }
}
