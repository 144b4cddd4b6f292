//! The outer part of a stack that is deeper than its copy, read from the memory of the process after the sample.
//!
//! Frames beyond a full copy belong to functions that were called long before the sample; most still run when the
//! memory is read. This is checked: at the place of the copy's outermost return address, the memory must hold a return
//! address into the same function, which may have called another function by now. Then that function has not returned,
//! and everything further out is unchanged.
//!
//! Sampling waits for these reads, so they must not cause page faults. The outer pages of a stack may belong to a file that
//! the process itself serves (FUSE) and never delivers; pages in swap take a disk. `/proc/PID/pagemap`, which is
//! read without a fault, is consulted first:
//!
//! | page | treatment |
//! |---|---|
//! | present, private memory | read |
//! | swapped, or of a file or shared memory | the stack ends there, incomplete |
//! | untouched, in private memory without a file | taken as zeros, without a read |
//! | untouched, in another mapping | the stack ends there, incomplete |
//! | untouched, in no mapping | the stack ends there, whole |
//!
//! What remains:
//!
//! - A race: a process may replace a mapping, or the kernel may swap a page out, between the look and the read.
//! - `pagemap`, `maps` and `mem` all wait for the lock of the address space, as other files of `/proc/PID` do. A process
//!   that holds this lock for long delays them.

mod pages;

use std::fs::File;
use std::os::unix::fs::FileExt;

use profiler_core::record::StackCopy;
use rustc_hash::FxHashMap;

use self::pages::{Page, Pages, private_extent};
use crate::sys::procfs;

/// The most that is read of a stack beyond its copy (bytes).
const MOST_BYTES: usize = 512 << 10;
/// Processes whose memory is kept open.
const MAX_OPEN: usize = 64;
/// The longest gap of untouched memory within a stack (bytes): beyond the stacks of threads lie those of others.
const LONGEST_GAP: usize = 256 << 10;
/// A longer `maps` is not used (bytes): some 10,000 mappings, a few milliseconds.
const MAX_MAPS_BYTES: u64 = 1 << 20;
const WORD: u64 = 8;

/// Reads the parts of stacks that copies lack.
#[derive(Debug, Default)]
pub(super) struct DeeperStacks {
    /// The memory of each process; `None` where it may not be read.
    memories: FxHashMap<u32, Option<Memory>>,
    bytes: Vec<u8>,
}

impl DeeperStacks {
    /// Returns the copy together with what lies beyond it now. `places` are the stack pointers in each frame found,
    /// innermost first; `same_function` says whether two lookup addresses lie in one function. `None` if the memory may
    /// not be read, or the stack has changed.
    pub(super) fn read(
        &mut self,
        pid: u32,
        stack: StackCopy<'_>,
        places: &[u64],
        same_function: impl Fn(u64, u64) -> bool,
    ) -> Option<StackCopy<'_>> {
        let base = *places.first()?;
        // The return address lies right below where the caller's stack pointer is after the return.
        let slot = places.get(1..)?.last()?.checked_sub(WORD)?;
        let then = stack.word(slot.checked_sub(base)?)?;
        let beyond = base.checked_add(stack.len() as u64)?;
        let memory = memory(&mut self.memories, pid)?;
        let pages = Pages::read(&memory.pagemap, slot..beyond.checked_add(MOST_BYTES as u64)?)?;
        let now = memory.word(&pages, slot)?;
        if now != then && !same_function(now.checked_sub(1)?, then.checked_sub(1)?) {
            return None;
        }
        // The buffer never shrinks, so it isn't zeroed again.
        let (copied, whole) = (stack.len(), stack.len() + MOST_BYTES);
        self.bytes.resize(self.bytes.len().max(whole), 0);
        stack.copy_to(&mut self.bytes);
        let (read, is_all) = memory.read(pid, &pages, beyond, &mut self.bytes[copied..whole]);
        let length = copied + Some(read).filter(|&read| read > 0)?;
        Some(StackCopy::of_bytes(&self.bytes[..length], length + usize::from(is_all)))
    }

    /// The process has ended, or runs another program.
    pub(super) fn forget(&mut self, pid: u32) {
        self.memories.remove(&pid);
    }
}

/// The open memory of a process.
fn memory(memories: &mut FxHashMap<u32, Option<Memory>>, pid: u32) -> Option<&mut Memory> {
    if memories.len() >= MAX_OPEN && !memories.contains_key(&pid) {
        memories.clear();
    }
    memories.entry(pid).or_insert_with(|| Memory::open(pid)).as_mut()
}

/// The memory of a process.
#[derive(Debug)]
struct Memory {
    bytes: File,
    /// Says which pages are present.
    pagemap: File,
    /// Where a stack ended last: most end there again, and `maps` need not be read for it.
    last_end: u64,
    /// Where a gap began last that is longer than any within a stack.
    last_gap: u64,
}

impl Memory {
    /// `None` where one of the two may not be opened.
    fn open(pid: u32) -> Option<Self> {
        let open = |name| File::open(format!("/proc/{pid}/{name}")).ok();
        Some(Self { bytes: open("mem")?, pagemap: open("pagemap")?, last_end: 0, last_gap: 0 })
    }

    /// The word at an address, if it is present.
    fn word(&self, pages: &Pages, address: u64) -> Option<u64> {
        let mut word = [0; WORD as usize];
        if !pages.are_present(address, word.len()) {
            return None;
        }
        self.bytes.read_exact_at(&mut word, address).ok()?;
        Some(u64::from_le_bytes(word))
    }

    /// Fills `bytes` from `start` on as far as that takes no fault. Returns how many were filled, and whether the memory
    /// ends there.
    fn read(&mut self, pid: u32, pages: &Pages, start: u64, bytes: &mut [u8]) -> (usize, bool) {
        let mut maps = None;
        let mut done = 0;
        while done < bytes.len() {
            let address = start + done as u64;
            let (page, len) = pages.run(address, bytes.len() - done);
            let part = &mut bytes[done..done + len];
            let (read, is_end) = match page {
                Page::Present => (self.bytes.read_at(part, address).unwrap_or(0), true),
                Page::Untouched if address == self.last_end => (0, true),
                Page::Untouched if address == self.last_gap && len > LONGEST_GAP => (0, false),
                Page::Untouched => {
                    let maps = maps.get_or_insert_with(|| procfs::short_maps(pid, MAX_MAPS_BYTES));
                    let extent = |maps: &Vec<u8>| private_extent(maps, address, len);
                    let (zeros, is_end) = maps.as_ref().map_or((0, false), extent);
                    if zeros > LONGEST_GAP {
                        self.last_gap = address;
                        return (done, false);
                    }
                    part[..zeros].fill(0);
                    if is_end {
                        self.last_end = address + zeros as u64;
                    }
                    (zeros, is_end)
                }
                Page::MayWait => (0, false),
            };
            done += read;
            if read < len {
                return (done, is_end);
            }
        }
        (done, false)
    }
}

#[cfg(test)]
mod tests {
    use memmap2::{MmapMut, MmapOptions, MmapRaw};

    use super::*;
    use crate::sys::maps::regions;
    use crate::sys::ring::page_size;

    /// A stack of our own: a piece of memory, of which the first bytes were copied.
    fn memory() -> Vec<u64> {
        (0..64u64).map(|word| word * 1_000_003).collect()
    }

    #[test]
    fn what_lies_beyond_a_copy_is_read_while_its_outermost_frames_are_there() {
        let words = memory();
        let base = words.as_ptr() as u64;
        let copy: Vec<u8> = words[..16].iter().flat_map(|word| word.to_le_bytes()).collect();
        let places = [base, base + 40, base + 80];
        let mut deeper = DeeperStacks::default();
        let mut read = |copy: &[u8], places: &[u64], pid| {
            let found = deeper
                .read(pid, StackCopy::of_bytes(copy, copy.len()), places, |a, b| a / 1_000 == b / 1_000);
            found.map(|whole| (whole.len(), whole.word(40 * WORD)))
        };
        let pid = std::process::id();
        let whole = read(&copy, &places, pid).unwrap();
        assert!(whole.0 > copy.len());
        assert_eq!(whole.1, Some(words[40]));
        // Another call of the same function has put another return address there since then, or one of another function.
        let mut other = copy.clone();
        other[72] ^= 1;
        assert!(read(&other, &places, pid).is_some());
        other[74] ^= 1;
        assert!(read(&other, &places, pid).is_none());
        assert!(read(&copy, &places[..1], pid).is_none(), "no caller");
        assert!(read(&copy, &places, u32::MAX).is_none());
    }

    /// Bytes of the copies below.
    const COPIED: usize = 128;

    /// Reads a stack of our own that begins at `base`, of which the first bytes were copied: its bytes, and whether there
    /// may be more of it.
    fn read_own(base: u64) -> Option<(Vec<u8>, bool)> {
        let mut copy = [0; COPIED];
        File::open("/proc/self/mem").unwrap().read_exact_at(&mut copy, base).unwrap();
        let stack = StackCopy::of_bytes(&copy, COPIED);
        let mut deeper = DeeperStacks { bytes: vec![0xff; COPIED + MOST_BYTES], ..Default::default() };
        let mut read = || {
            let whole = deeper.read(std::process::id(), stack, &[base, base + 40], |a, b| a == b)?;
            let mut bytes = vec![0; whole.len()];
            whole.copy_to(&mut bytes);
            Some((bytes, whole.is_full()))
        };
        let first = read();
        assert!(read() == first, "what is remembered of it changes nothing");
        first
    }

    fn map_file(file: &File, bytes: usize) -> MmapRaw {
        MmapOptions::new().len(bytes).map_raw(file).unwrap()
    }

    /// A file of `bytes` bytes that are all 7.
    fn file(bytes: usize) -> File {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&vec![7; bytes], 0).unwrap();
        file
    }

    #[test]
    fn memory_that_was_never_touched_is_read_as_zeros() {
        let page = page_size();
        let mut map = MmapMut::map_anon(32 * page).unwrap();
        let used = (0..page).chain(9 * page..10 * page).chain(31 * page..32 * page);
        used.for_each(|at| map[at] = 1 + (at % 251) as u8);
        let (bytes, _) = read_own(map.as_ptr() as u64).unwrap();
        assert!(bytes.len() >= map.len(), "{} bytes", bytes.len());
        assert!(bytes[..map.len()] == map[..]);
    }

    /// Above the stack of a thread lies that of another, mostly untouched.
    #[test]
    fn a_long_gap_ends_a_stack_incomplete() {
        let page = page_size();
        let mut map = MmapMut::map_anon(2 * LONGEST_GAP).unwrap();
        map[..page].fill(1);
        let (bytes, may_go_on) = read_own(map.as_ptr() as u64).unwrap();
        assert_eq!((bytes.len(), may_go_on), (page, true));
    }

    #[test]
    fn a_stack_that_ends_with_its_mapping_is_whole() {
        let maps = procfs::short_maps(std::process::id(), MAX_MAPS_BYTES).unwrap();
        let stack = regions(&maps).find(|region| region.name == b"[stack]").unwrap();
        // Strings of the environment, which nothing changes; further down are the frames of the first thread.
        let (bytes, may_go_on) = read_own(stack.end - 2 * COPIED as u64).unwrap();
        assert_eq!(bytes.len(), 2 * COPIED);
        assert!(!may_go_on);
    }

    #[test]
    fn a_file_behind_a_stack_ends_it_incomplete() {
        let page = page_size();
        let file = file(4 * page);
        // The kernel maps downward: sooner or later memory comes to lie right below a file.
        let mut maps = Vec::new();
        let found = (0..1_000).find_map(|_| {
            let mapped = map_file(&file, 4 * page);
            let mut memory = MmapMut::map_anon(4 * page).unwrap();
            let end = memory.as_ptr() as usize + memory.len();
            memory[0] = 1;
            maps.push((mapped, memory));
            let mut files = maps.iter().map(|(file, _)| file.as_ptr() as usize);
            files.any(|start| start == end).then_some(end - 4 * page)
        });
        let (bytes, may_go_on) = read_own(found.unwrap() as u64).unwrap();
        assert_eq!(bytes.len(), 4 * page);
        assert!(may_go_on);
    }

    #[test]
    fn return_addresses_in_a_file_are_not_read() {
        let file = file(4 * page_size());
        let map = map_file(&file, 4 * page_size());
        assert_eq!(read_own(map.as_ptr() as u64), None);
    }
}
