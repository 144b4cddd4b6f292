//! Announces a new process to the profiler: its parent, its name and its mapped code, because it may end
//! before the profiler reads `/proc`.

use agent_memory::{Begun, Entry, RecordKind, Slot};
use core::sync::atomic::AtomicU64;

use crate::sys;

/// How a process has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// As a copy of its parent.
    Forked,
    /// As another program.
    Executed,
}

/// Longest line of the list of mappings that is passed on: longer ones have names that no file has.
const LONGEST_LINE: usize = 4096 + 128;
/// Words before the text of a record.
const TEXT_AT: usize = 3;

/// Tells that the process begins. Nothing else may write to the slot's ring meanwhile.
pub(crate) fn process(slot: &Slot<'_>, how: How) {
    let Some(ring) = slot.ring() else { return };
    let kind = match how {
        How::Forked => RecordKind::Forked,
        How::Executed => RecordKind::Executed,
    };
    let words = Begun::words(kind, sys::monotonic_ns(), sys::getppid(), sys::name());
    if let Some(entry) = ring.begin(words.len()) {
        words.iter().enumerate().for_each(|(index, word)| entry.put(index, *word));
        entry.publish();
    }
    if how == How::Executed {
        code(slot); // of a copy, the parent has told
    }
}

/// Tells which code is mapped: a record for each line, as the kernel writes it.
fn code(slot: &Slot<'_>) {
    let Some(ring) = slot.ring() else { return };
    each_line(|line| {
        if line.iter().position(|&byte| byte == b' ').and_then(|at| line.get(at + 3)) != Some(&b'x') {
            return;
        }
        let words = TEXT_AT + line.len().div_ceil(8);
        if let Some(entry) = ring.begin(words) {
            entry.put(0, RecordKind::Mappings.heading(words));
            entry.put(1, sys::monotonic_ns());
            entry.put(2, line.len() as u64);
            put_text(&entry, line);
            entry.publish();
        }
    });
}

fn put_text(entry: &Entry<'_, AtomicU64>, line: &[u8]) {
    for (index, part) in line.chunks(8).enumerate() {
        let mut word = [0; 8];
        word[..part.len()].copy_from_slice(part);
        entry.put(TEXT_AT + index, u64::from_ne_bytes(word));
    }
}

/// Where the mapping ends that `address` lies in; `address` itself if nobody says.
pub(crate) fn end_of_mapping(address: usize) -> usize {
    let mut found = address;
    each_line(|line| {
        let mut numbers = line.split(|byte| !byte.is_ascii_hexdigit()).map(hex);
        if let (Some(start), Some(end)) = (numbers.next(), numbers.next())
            && (start..end).contains(&address)
        {
            found = end;
        }
    });
    found
}

/// Where the first thread's stack ends, as the kernel marks it.
pub(crate) fn end_of_first_stack() -> Option<usize> {
    let mut found = None;
    each_line(|line| {
        if line.ends_with(b"[stack]\n") {
            found = line.split(|byte| !byte.is_ascii_hexdigit()).nth(1).map(hex);
        }
    });
    found
}

fn hex(digits: &[u8]) -> usize {
    digits.iter().fold(0, |sum, digit| sum << 4 | (*digit as char).to_digit(16).unwrap_or(0) as usize)
}

/// Calls with each thread of this process.
pub(crate) fn each_thread(mut handle: impl FnMut(u32)) {
    /// Of an entry: the inode, an offset, its length and its type come before the name.
    const LENGTH_AT: usize = 16;
    const NAME_AT: usize = 19;
    let Some(fd) = sys::open(c"/proc/self/task".as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY) else { return };
    let mut buffer = [0_u8; 4096];
    loop {
        let count = sys::getdents(fd, &mut buffer);
        let mut entries = &buffer[..count];
        while let Some(length) = entries.get(LENGTH_AT..LENGTH_AT + 2) {
            let length = usize::from(u16::from_ne_bytes([length[0], length[1]])).max(NAME_AT);
            let name = entries.get(NAME_AT..length).unwrap_or_default();
            let digits = name.iter().take_while(|byte| byte.is_ascii_digit());
            let tid = digits.fold(0_u32, |tid, digit| tid.wrapping_mul(10) + u32::from(digit - b'0'));
            if tid != 0 {
                handle(tid);
            }
            entries = entries.get(length..).unwrap_or_default();
        }
        if count == 0 {
            break;
        }
    }
    sys::close(fd);
}

/// Calls with each line of the list of mappings, its end included.
fn each_line(mut handle: impl FnMut(&[u8])) {
    let Some(fd) = sys::open(c"/proc/self/maps".as_ptr(), libc::O_RDONLY) else { return };
    let mut buffer = [0_u8; 2 * LONGEST_LINE];
    let mut filled = 0;
    loop {
        let count = sys::read(fd, &mut buffer[filled..]);
        if count == 0 {
            break;
        }
        filled += count;
        let mut start = 0;
        while let Some(length) = buffer[start..filled].iter().position(|&byte| byte == b'\n') {
            handle(&buffer[start..start + length + 1]);
            start += length + 1;
        }
        buffer.copy_within(start..filled, 0);
        filled -= start;
        if filled > LONGEST_LINE {
            filled = 0; // its rest is taken for a line, which makes no sense to anybody
        }
    }
    sys::close(fd);
}
