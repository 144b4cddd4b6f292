//! The outer part of a stack that is deeper than its copy, read from the memory of the process after the sample.
//!
//! Frames beyond a full copy belong to functions that were called long before the sample; most still run when the
//! memory is read. This is checked: at the place of the copy's outermost return address, the memory must hold a return
//! address into the same function, which may have called another function by now. Then that function has not returned,
//! and everything further out is unchanged.

use std::fs::File;
use std::os::unix::fs::FileExt;

use profiler_core::record::StackCopy;
use rustc_hash::FxHashMap;

/// The most that is read of a stack beyond its copy (bytes).
const MOST_BYTES: usize = 512 << 10;
/// Processes whose memory is kept open.
const MAX_OPEN: usize = 64;
const WORD: u64 = 8;

/// Reads the parts of stacks that copies lack.
#[derive(Debug, Default)]
pub(super) struct DeeperStacks {
    /// The memory of each process; `None` where it may not be read.
    memories: FxHashMap<u32, Option<File>>,
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
        let memory = self.memory(pid)?;
        // The return address lies right below where the caller's stack pointer is after the return.
        let slot = places.get(1..)?.last()?.checked_sub(WORD)?;
        let then = stack.word(slot.checked_sub(base)?)?;
        let mut now = [0; WORD as usize];
        memory.read_exact_at(&mut now, slot).ok()?;
        let now = u64::from_le_bytes(now);
        if now != then && !same_function(now.checked_sub(1)?, then.checked_sub(1)?) {
            return None;
        }
        let beyond = base.checked_add(stack.len() as u64)?;
        // The buffer never shrinks, so it isn't zeroed again.
        let mut bytes = std::mem::take(&mut self.bytes);
        let (copied, whole) = (stack.len(), stack.len() + MOST_BYTES);
        bytes.resize(bytes.len().max(whole), 0);
        stack.copy_to(&mut bytes);
        let read = self.memory(pid).and_then(|memory| memory.read_at(&mut bytes[copied..whole], beyond).ok());
        self.bytes = bytes;
        let length = copied + read.filter(|&read| read > 0)?;
        let is_all = length < whole;
        Some(StackCopy::of_bytes(&self.bytes[..length], length + usize::from(is_all)))
    }

    fn memory(&mut self, pid: u32) -> Option<&File> {
        if self.memories.len() >= MAX_OPEN && !self.memories.contains_key(&pid) {
            self.memories.clear();
        }
        let open = || File::open(format!("/proc/{pid}/mem")).ok();
        self.memories.entry(pid).or_insert_with(open).as_ref()
    }

    /// The process has ended, or runs another program.
    pub(super) fn forget(&mut self, pid: u32) {
        self.memories.remove(&pid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
