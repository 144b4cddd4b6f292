//! `jit-PID.dump`: a journal of the code that a program made, with times, as `perf` defined it
//! (`tools/perf/Documentation/jitdump-specification.txt` of the kernel).

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::code::CodeSpace;
use super::perf_map::readable_name;
use crate::object::NamedFrame;
use crate::reason::Reason;
use crate::source::ReadAt;

/// `JiTD` as a number of this machine's byte order.
const MAGIC: u32 = 0x4a69_5444;
const HEADER_BYTES: usize = 40;
/// Set where the times are those of a counter of the processor, which cannot be compared with a sample's.
const FLAG_ARCH_TIMESTAMP: u64 = 1;

const RECORD_HEADER_BYTES: usize = 16;
const CODE_LOAD: u32 = 0;
const CODE_MOVE: u32 = 1;
const CODE_DEBUG_INFO: u32 = 2;

/// Read at once. Of a record that is longer only so much is looked at.
const CHUNK: u64 = 1 << 20;
/// Codes, bytes of names and lines that are kept of one journal.
const MOST_CODES: usize = 1 << CodePlace::NUMBER_BITS;
const MOST_NAME_BYTES: usize = 64 << 20;
const MOST_LINES: usize = 1 << 22;
/// Stands for a code of which no more is known than where it lies.
const NAMELESS: u32 = u32::MAX;
/// What a name takes beside its bytes.
const NAME_BYTES: usize = 48;
/// What `perf inject` writes before the code, and what some programs therefore add to the addresses of their lines.
const ELF_HEADER_BYTES: u64 = 0x40;

/// A place in a code that a journal tells of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CodePlace {
    /// The number of the code; a code that is moved gets another.
    pub number: u32,
    /// Bytes from its first one.
    pub offset: u32,
}

impl CodePlace {
    /// Numbers of codes have no more bits.
    pub const NUMBER_BITS: u32 = 18;
}

/// What a journal has told so far.
///
/// A program goes on writing it: [`JitDump::read`] takes in what is new. Nothing that it holds can make this take more
/// than some 300 MB, or more time than in proportion to its length. A code that is left out takes the place of older ones all
/// the same: no address has the name of a code that lay there before.
#[derive(Debug, Default)]
pub struct JitDump {
    /// Where the next record begins.
    at: u64,
    is_behind: bool,
    has_times: bool,
    codes: Vec<LoadedCode>,
    space: CodeSpace,
    /// The latest place of each code, by the number that the journal gives it.
    by_index: FxHashMap<u64, u32>,
    /// Lines that precede their code, whose address they carry.
    lines: Option<(u64, Vec<CodeLine>)>,
    names: NameTable,
    lines_kept: usize,
    left_out: u64,
    /// How long the journal must be before there is another record to read.
    needed: u64,
    /// Bytes that were read of records that were not there yet as a whole.
    in_vain: u64,
    /// The latest time that it told.
    last_ns: u64,
    /// From then on it is not known what lies where.
    deaf_since_ns: Option<u64>,
    end: Option<Reason>,
}

#[derive(Debug)]
struct LoadedCode {
    start: u64,
    size: u64,
    name: u32,
    lines: Arc<[CodeLine]>,
}

/// From this offset on, the code belongs to this line.
#[derive(Debug, Clone, Copy)]
struct CodeLine {
    /// While the code is not known yet: an address.
    offset: u64,
    file: u32,
    line: u32,
}

impl JitDump {
    /// Takes in the records that were appended since the last call, `most_bytes` of them at most; the rest waits for the
    /// next call. After an error, nothing more is read; what was read stays, for the time until then.
    pub fn read(&mut self, source: &dyn ReadAt, most_bytes: u64) -> Result<(), Reason> {
        if let Some(reason) = &self.end {
            return Err(reason.clone());
        }
        let read = self.read_records(source, most_bytes);
        if let Err(reason) = &read {
            self.end_with(reason.clone());
        }
        read
    }

    fn read_records(&mut self, source: &dyn ReadAt, most_bytes: u64) -> Result<(), Reason> {
        let len = source.len()?;
        let until = len.min(self.at.saturating_add(most_bytes));
        self.is_behind = until < len;
        if len < self.needed {
            self.is_behind = false;
            return Ok(());
        }
        while self.at < until {
            let chunk = source.read_at(self.at, (len - self.at).min(CHUNK) as usize)?;
            let before = self.at;
            if self.at == 0 {
                self.at = self.header(&chunk)?;
            } else {
                self.records(&chunk, len - self.at)?;
            }
            if self.at == before {
                self.is_behind = false;
                self.in_vain = self.in_vain.saturating_add(chunk.len() as u64);
                break; // the rest of a record is yet to be written
            }
        }
        self.is_behind &= self.at < len;
        Ok(())
    }

    /// Where the first record begins; 0 if the header is not yet written.
    fn header(&mut self, bytes: &[u8]) -> Result<u64, Reason> {
        if bytes.len() < HEADER_BYTES {
            self.needed = HEADER_BYTES as u64;
            return Ok(0);
        }
        let mut fields = Fields(bytes);
        let (magic, _version, total_bytes) = (fields.u32(), fields.u32(), fields.u32());
        let (_machine, _padding, _pid, _time_ns) = (fields.u32(), fields.u32(), fields.u32(), fields.u64());
        let flags = fields.u64().unwrap_or(0);
        let total_bytes = total_bytes.map_or(0, u64::from);
        if magic != Some(MAGIC) || total_bytes < HEADER_BYTES as u64 {
            return Err(Reason::CorruptJitDump);
        }
        self.has_times = flags & FLAG_ARCH_TIMESTAMP == 0;
        Ok(total_bytes)
    }

    /// Takes in the whole records of `chunk`, whose first byte is that of a record. There are `available` bytes.
    fn records(&mut self, chunk: &[u8], available: u64) -> Result<(), Reason> {
        let mut rest = chunk;
        self.needed = self.at.saturating_add(RECORD_HEADER_BYTES as u64);
        while rest.len() >= RECORD_HEADER_BYTES {
            let mut fields = Fields(rest);
            let (Some(kind), Some(total), Some(time_ns)) = (fields.u32(), fields.u32(), fields.u64()) else {
                break;
            };
            let bytes = total as usize;
            if bytes < RECORD_HEADER_BYTES {
                return Err(Reason::CorruptJitDump);
            }
            let is_first = rest.len() == chunk.len();
            // One that is longer than a chunk has what counts at its beginning.
            if bytes > rest.len() && !(is_first && u64::from(total) <= available) {
                self.needed = self.at.saturating_add(total.into());
                break;
            }
            let (record, next) = rest.split_at(bytes.min(rest.len()));
            self.record(kind, time_ns, Fields(&record[RECORD_HEADER_BYTES..]));
            self.at = self.at.saturating_add(total.into());
            self.needed = self.at.saturating_add(RECORD_HEADER_BYTES as u64);
            rest = next;
        }
        Ok(())
    }

    /// What is cut short says nothing.
    fn record(&mut self, kind: u32, time_ns: u64, fields: Fields<'_>) {
        let since_ns = if self.has_times { time_ns } else { 0 };
        self.last_ns = self.last_ns.max(since_ns);
        let is_told = match kind {
            CODE_LOAD => self.load(since_ns, fields),
            CODE_MOVE => self.moved(since_ns, fields),
            CODE_DEBUG_INFO => self.debug_info(fields),
            // The end of the journal (3), unwind tables (4), and whatever is yet to be invented.
            _ => Some(()),
        };
        self.left_out += u64::from(is_told.is_none());
    }

    fn load(&mut self, since_ns: u64, mut fields: Fields<'_>) -> Option<()> {
        let (_pid, _tid, _vma) = (fields.u32()?, fields.u32()?, fields.u64()?);
        let (start, size, index) = (fields.u64()?, fields.u64()?, fields.u64()?);
        let name = fields.text().and_then(|name| self.names.intern(name));
        let lines = self.lines.take().filter(|&(address, _)| address == start);
        let Some(name) = name else { return self.cover(since_ns, index, start, size) };
        let lines = lines.map_or_else(|| Arc::from([]), |(_, lines)| offsets(lines, start, size));
        self.lines_kept += lines.len();
        self.enter(since_ns, index, LoadedCode { start, size, name, lines })
    }

    fn moved(&mut self, since_ns: u64, mut fields: Fields<'_>) -> Option<()> {
        let (_pid, _tid, _vma) = (fields.u32()?, fields.u32()?, fields.u64()?);
        let (_old, start, size, index) = (fields.u64()?, fields.u64()?, fields.u64()?, fields.u64()?);
        let known = self.by_index.get(&index).and_then(|&number| self.codes.get(number as usize));
        let Some(code) = known else { return self.cover(since_ns, index, start, size) };
        let code = LoadedCode { start, size, name: code.name, lines: Arc::clone(&code.lines) };
        self.enter(since_ns, index, code)
    }

    fn enter(&mut self, since_ns: u64, index: u64, code: LoadedCode) -> Option<()> {
        let number = self.codes.len();
        if number >= MOST_CODES {
            return self.cover(since_ns, index, code.start, code.size);
        }
        self.occupy(since_ns, code.start, code.size, number as u32)?;
        self.by_index.insert(index, number as u32);
        self.codes.push(code);
        Some(())
    }

    /// A code that is left out: what lay at its place before does not lie there any more.
    fn cover(&mut self, since_ns: u64, index: u64, start: u64, size: u64) -> Option<()> {
        self.by_index.remove(&index);
        self.occupy(since_ns, start, size, NAMELESS)?;
        None
    }

    fn occupy(&mut self, since_ns: u64, start: u64, size: u64, number: u32) -> Option<()> {
        let end = start.checked_add(size).filter(|&end| end > start)?;
        let is_room = self.space.enter(start..end, since_ns, number);
        if !is_room {
            self.be_deaf(since_ns);
        }
        is_room.then_some(())
    }

    fn be_deaf(&mut self, since_ns: u64) {
        let since_ns = self.deaf_since_ns.map_or(since_ns, |before_ns| before_ns.min(since_ns));
        self.deaf_since_ns = Some(since_ns);
    }

    /// There is no room to read on: what it told stays, for the time until then.
    pub fn give_up(&mut self) {
        let bytes = self.held_bytes();
        self.end_with(Reason::TooLarge { what: "the jitdump".into(), bytes });
    }

    /// Nothing more is read: what code comes after that which was read is not known. The first reason stays.
    fn end_with(&mut self, reason: Reason) {
        self.end.get_or_insert(reason);
        self.is_behind = false;
        self.be_deaf(self.last_ns);
    }

    /// Whether nothing more is read, for whatever reason.
    pub fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Why the reading failed, if it did; not if there was no room for more.
    pub fn failure(&self) -> Option<&Reason> {
        self.end.as_ref().filter(|reason| !matches!(reason, Reason::TooLarge { .. }))
    }

    /// Whether there was no room to tell all that it told of.
    pub fn has_given_up(&self) -> bool {
        self.deaf_since_ns.is_some()
    }

    /// What it takes of memory (bytes).
    pub fn held_bytes(&self) -> u64 {
        let codes = self.codes.capacity() * (size_of::<LoadedCode>() + size_of::<(u64, u32)>());
        let waiting = self.lines.as_ref().map_or(0, |(_, lines)| lines.capacity());
        let lines = (self.lines_kept + waiting) * size_of::<CodeLine>();
        self.space.held_bytes() + (codes + lines + self.names.held_bytes()) as u64
    }

    fn debug_info(&mut self, mut fields: Fields<'_>) -> Option<()> {
        let (code, count) = (fields.u64()?, fields.u64()?);
        let mut lines = Vec::new();
        let mut file = None;
        for _ in 0..count {
            let Some((address, line, _column)) = fields.line_entry() else { break };
            let Some(name) = fields.text() else { break };
            // One name is short for: the file of the entry before.
            if name != [0xff] {
                file = self.names.intern(name);
            }
            if self.lines_kept + lines.len() >= MOST_LINES {
                break;
            }
            lines.extend(file.map(|file| CodeLine { offset: address, file, line }));
        }
        self.lines = Some((code, lines));
        Some(())
    }

    /// Whether there was more to read than the last call of [`JitDump::read`] took in.
    pub fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// So much of it was read (bytes), records that were not whole more than once.
    pub fn bytes_read(&self) -> u64 {
        self.at.saturating_add(self.in_vain)
    }

    /// The code at an address at a time (ns, the monotonic clock).
    pub fn at(&self, address: u64, time_ns: u64) -> Option<CodePlace> {
        let time_ns = if self.has_times { time_ns } else { u64::MAX };
        self.place(address, time_ns, self.space.at(address, time_ns)?)
    }

    /// The code that lay at an address for most of a span of time, for addresses that were met before the journal told of
    /// them.
    pub fn during(&self, address: u64, first_ns: u64, last_ns: u64) -> Option<CodePlace> {
        if !self.has_times {
            return self.at(address, last_ns);
        }
        self.place(address, last_ns, self.space.during(address, first_ns, last_ns)?)
    }

    fn place(&self, address: u64, time_ns: u64, number: u32) -> Option<CodePlace> {
        if self.deaf_since_ns.is_some_and(|since_ns| time_ns >= since_ns) {
            return None;
        }
        let code = self.codes.get(number as usize)?;
        Some(CodePlace { number, offset: u32::try_from(address.checked_sub(code.start)?).ok()? })
    }

    /// The address of a place.
    pub fn address(&self, place: CodePlace) -> Option<u64> {
        self.codes.get(place.number as usize)?.start.checked_add(place.offset.into())
    }

    /// The function at a place, with its file and line where the journal has them.
    pub fn frame(&self, place: CodePlace) -> Option<NamedFrame> {
        let code = self.codes.get(place.number as usize)?;
        let after = code.lines.partition_point(|line| line.offset <= place.offset.into());
        let line = code.lines[..after].last();
        let linkage_name = self.names.get(code.name)?;
        Some(NamedFrame {
            name: readable_name(linkage_name.as_bytes()).into(),
            linkage_name: Arc::clone(linkage_name),
            file: line.and_then(|line| self.names.get(line.file)).cloned(),
            line: line.map(|line| line.line),
        })
    }

    /// Records that said nothing, or for which there was no room.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }
}

/// Lines by their distance from the code's start, in their order.
fn offsets(mut lines: Vec<CodeLine>, start: u64, size: u64) -> Arc<[CodeLine]> {
    let first = lines.iter().map(|line| line.offset).min().unwrap_or(0);
    let shift = if first.saturating_sub(start) >= ELF_HEADER_BYTES { ELF_HEADER_BYTES } else { 0 };
    lines.retain_mut(|line| {
        let offset = line.offset.checked_sub(start).and_then(|offset| offset.checked_sub(shift));
        line.offset = offset.unwrap_or(u64::MAX);
        line.offset < size
    });
    lines.sort_by_key(|line| line.offset);
    lines.into()
}

/// Names of functions and files, each once.
#[derive(Debug, Default)]
struct NameTable {
    names: Vec<Arc<str>>,
    ids: FxHashMap<Arc<str>, u32>,
    bytes: usize,
}

impl NameTable {
    fn intern(&mut self, bytes: &[u8]) -> Option<u32> {
        let name = String::from_utf8_lossy(bytes);
        if let Some(&id) = self.ids.get(&*name) {
            return Some(id);
        }
        if self.bytes + name.len() > MOST_NAME_BYTES || name.is_empty() {
            return None;
        }
        self.bytes += name.len();
        let (id, name) = (self.names.len() as u32, Arc::<str>::from(name));
        self.names.push(Arc::clone(&name));
        self.ids.insert(name, id);
        Some(id)
    }

    fn held_bytes(&self) -> usize {
        self.bytes + self.names.len() * NAME_BYTES
    }

    fn get(&self, id: u32) -> Option<&Arc<str>> {
        self.names.get(id as usize)
    }
}

/// Numbers of this machine's byte order and texts, one behind the other.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn u32(&mut self) -> Option<u32> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_ne_bytes(*word))
    }

    fn u64(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_ne_bytes(*word))
    }

    /// Address, line and column.
    fn line_entry(&mut self) -> Option<(u64, u32, u32)> {
        Some((self.u64()?, self.u32()?, self.u32()?))
    }

    /// Up to a zero byte; longer ones than any path are cut.
    fn text(&mut self) -> Option<&'a [u8]> {
        const LONGEST: usize = 4096;
        let len = self.0.iter().position(|&byte| byte == 0)?;
        let (text, rest) = self.0.split_at(len);
        self.0 = &rest[1..];
        Some(&text[..len.min(LONGEST)])
    }
}

#[cfg(test)]
mod tests;
