//! Whether the agent can be preloaded into a program, and after which libraries, according to the program's
//! file.
//!
//! The profiler checks this before it starts a command, and the agent before an `exec`, perhaps in the child
//! of a `vfork`: so nothing is allocated here, little stack is used, and a file costs about four reads.

/// Longest path of an interpreter, and longest list of libraries (bytes).
const LONGEST: usize = 256;
/// Bytes that are read at once: the headers of most programs.
const WINDOW: usize = 1024;
/// Most program headers, loaded segments, entries of the dynamic section and needed libraries that are looked at.
const MOST_SEGMENTS: u64 = 128;
const MOST_LOADED: usize = 16;
const MOST_ENTRIES: u64 = 512;
const MOST_NEEDED: usize = 64;

const HEADER_BYTES: usize = 64;
const SEGMENT_BYTES: u64 = 56;
const ENTRY_BYTES: u64 = 16;
const LOAD: u32 = 1;
const DYNAMIC: u32 = 2;
const INTERPRETER: u32 = 3;
const DT_NULL: u64 = 0;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;

/// `EM_…` of this processor.
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = 183;
#[cfg(not(target_arch = "aarch64"))]
const MACHINE: u16 = 62;

/// How the names of sanitizer runtimes begin that have to come before any preloaded library: they end the program otherwise, or
/// stand between a signal and its handler.
const RUNTIMES: [&[u8]; 5] = [b"libasan.so", b"libhwasan.so", b"libtsan.so", b"liblsan.so", b"libclang_rt."];

/// A path, or names with colons between them.
#[derive(Clone, Copy)]
pub struct Text {
    bytes: [u8; LONGEST],
    length: usize,
}

impl Text {
    const EMPTY: Self = Self { bytes: [0; LONGEST], length: 0 };

    /// What it says.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Appends, unless it is too long.
    fn push(&mut self, more: &[u8]) -> Option<()> {
        let end = self.length + more.len();
        self.bytes.get_mut(self.length..end)?.copy_from_slice(more);
        self.length = end;
        Some(())
    }
}

impl std::fmt::Debug for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&String::from_utf8_lossy(self.bytes()))
    }
}

/// What a file is, as far as it matters for preloading a library into it.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::large_enum_variant, reason = "nothing is allocated here, and it lives for a moment")]
pub enum Program {
    /// A script, and the program that runs it.
    Script(Text),
    /// Its dynamic linker is glibc's.
    Dynamic {
        /// The dynamic linker's path.
        linker: Text,
        /// Needed libraries that have to stay in front of the agent, in their order; mostly none.
        first: Text,
    },
    /// Nothing can be preloaded into it.
    Refused(Obstacle),
    /// No program, or one that makes no sense.
    Unknown,
}

/// Why nothing can be preloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// There is no dynamic linker.
    Static,
    /// Its C library is musl.
    Musl,
    /// Neither glibc's nor musl's dynamic linker.
    OtherLinker,
    /// Another processor's, or 32 bits wide.
    OtherProcessor,
}

impl Program {
    /// Reads what is needed of a file: `read` fills the bytes from an offset on, and returns how many there were.
    pub fn read(read: impl FnMut(u64, &mut [u8]) -> usize) -> Self {
        let mut file = File { read, window: [0; WINDOW], start: 0, filled: 0 };
        file.program().unwrap_or(Self::Unknown)
    }
}

/// A file, and the part of it that was read last.
struct File<R> {
    read: R,
    window: [u8; WINDOW],
    start: u64,
    filled: usize,
}

/// Where a file's parts are that matter here.
struct Segments {
    interpreter: Option<(u64, u64)>,
    dynamic: Option<(u64, u64)>,
    /// Address, offset and length.
    loaded: [(u64, u64, u64); MOST_LOADED],
}

impl Segments {
    /// Where in the file an address is.
    fn offset_of(&self, address: u64) -> Option<u64> {
        let mut within = self.loaded.iter().filter_map(|&(start, offset, length)| {
            let at = address.checked_sub(start).filter(|&at| at < length)?;
            offset.checked_add(at)
        });
        within.next()
    }
}

impl<R: FnMut(u64, &mut [u8]) -> usize> File<R> {
    fn program(&mut self) -> Option<Program> {
        if self.bytes(0, 2)? == b"#!" {
            return self.script().map(Program::Script);
        }
        if self.bytes(0, 4)? != b"\x7fELF" {
            return None;
        }
        let other = Some(Program::Refused(Obstacle::OtherProcessor));
        let Some(header) = self.bytes(0, HEADER_BYTES) else { return other };
        let is_ours = header[4..6] == [2, 1] && u16_at(header, 18) == Some(MACHINE);
        if !is_ours {
            return other;
        }
        let segments = self.segments()?;
        let Some((at, length)) = segments.interpreter else {
            return Some(Program::Refused(Obstacle::Static));
        };
        let linker = self.text(at, length)?;
        match name_of(linker.bytes()) {
            name if name.starts_with(b"ld-musl") => Some(Program::Refused(Obstacle::Musl)),
            name if !name.starts_with(b"ld-linux") => Some(Program::Refused(Obstacle::OtherLinker)),
            _ => Some(Program::Dynamic { linker, first: self.first(&segments)? }),
        }
    }

    /// So many bytes from an offset on; `None` if there are fewer.
    fn bytes(&mut self, at: u64, length: usize) -> Option<&[u8]> {
        let is_there = |start: u64, filled: usize| {
            at >= start && at.checked_add(length as u64).is_some_and(|end| end <= start + filled as u64)
        };
        if !is_there(self.start, self.filled) {
            self.start = at;
            self.filled = (self.read)(at, &mut self.window).min(WINDOW);
            at.checked_add(WINDOW as u64)?;
        }
        let from = usize::try_from(at.checked_sub(self.start)?).ok()?;
        self.window.get(..self.filled)?.get(from..from.checked_add(length)?)
    }

    /// The program that a script names.
    fn script(&mut self) -> Option<Text> {
        let head = &self.window[..self.filled];
        let line = head.get(2..)?.split(|&byte| byte == b'\n').next()?;
        let mut words = line.split(|byte| matches!(byte, b' ' | b'\t')).filter(|word| !word.is_empty());
        let mut text = Text::EMPTY;
        text.push(words.next()?)?;
        Some(text)
    }

    fn segments(&mut self) -> Option<Segments> {
        let header = self.bytes(0, HEADER_BYTES)?;
        let (table, size, count) = (u64_at(header, 32)?, u16_at(header, 54)?, u16_at(header, 56)?);
        let mut found = Segments { interpreter: None, dynamic: None, loaded: [(0, 0, 0); MOST_LOADED] };
        if count > 0 && u64::from(size) != SEGMENT_BYTES {
            return None;
        }
        let mut loaded = 0;
        for index in 0..u64::from(count).min(MOST_SEGMENTS) {
            let segment = self.bytes(table.checked_add(index * SEGMENT_BYTES)?, SEGMENT_BYTES as usize)?;
            let kind = u32_at(segment, 0)?;
            let (offset, address, length) = (u64_at(segment, 8)?, u64_at(segment, 16)?, u64_at(segment, 32)?);
            match kind {
                INTERPRETER => found.interpreter = Some((offset, length)),
                DYNAMIC => found.dynamic = Some((offset, length)),
                LOAD => {
                    *found.loaded.get_mut(loaded)? = (address, offset, length);
                    loaded += 1;
                }
                _ => {}
            }
        }
        Some(found)
    }

    /// A string that ends within so many bytes.
    fn text(&mut self, at: u64, most: u64) -> Option<Text> {
        let mut text = Text::EMPTY;
        self.push_string(at, most, &mut text)?;
        Some(text)
    }

    fn push_string(&mut self, at: u64, most: u64, text: &mut Text) -> Option<()> {
        for index in 0..most.min(LONGEST as u64) {
            match self.bytes(at.checked_add(index)?, 1)? {
                [0] => return Some(()),
                byte => {
                    let byte = [byte[0]];
                    text.push(&byte)?;
                }
            }
        }
        None
    }

    /// The needed libraries up to the last sanitizer runtime: so they are loaded in the order that they are without us.
    fn first(&mut self, segments: &Segments) -> Option<Text> {
        let Some((at, length)) = segments.dynamic else { return Some(Text::EMPTY) };
        let (mut names, mut needed, mut strings) = ([0; MOST_NEEDED], 0, None);
        for index in 0..(length / ENTRY_BYTES).min(MOST_ENTRIES) {
            let entry = self.bytes(at.checked_add(index * ENTRY_BYTES)?, ENTRY_BYTES as usize)?;
            let (tag, value) = (u64_at(entry, 0)?, u64_at(entry, 8)?);
            match tag {
                DT_NULL => break,
                DT_STRTAB => strings = Some(value),
                DT_NEEDED if needed < MOST_NEEDED => {
                    names[needed] = value;
                    needed += 1;
                }
                _ => {}
            }
        }
        let Some(strings) = strings.and_then(|address| segments.offset_of(address)) else {
            return Some(Text::EMPTY);
        };
        let last = (0..needed).rev().find(|&index| self.is_runtime(strings.wrapping_add(names[index])));
        let Some(last) = last else { return Some(Text::EMPTY) };
        let mut first = Text::EMPTY;
        for (index, name) in names.iter().take(last + 1).enumerate() {
            if index > 0 {
                first.push(b":")?;
            }
            let start = first.length;
            self.push_string(strings.checked_add(*name)?, LONGEST as u64, &mut first)?;
            if first.bytes()[start..].iter().any(|byte| matches!(byte, b' ' | b':')) {
                return None; // a list cannot hold it
            }
        }
        Some(first)
    }

    fn is_runtime(&mut self, at: u64) -> bool {
        RUNTIMES.iter().any(|name| self.bytes(at, name.len()).is_some_and(|bytes| bytes == *name))
    }
}

fn name_of(path: &[u8]) -> &[u8] {
    path.rsplit(|&byte| byte == b'/').next().unwrap_or(path)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|bytes| u16::from_le_bytes(*bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

#[cfg(test)]
#[path = "program_tests.rs"]
mod tests;
