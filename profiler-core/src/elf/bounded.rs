//! Limits how much of a file is read: its headers state how long its tables are, and may state anything.
//!
//! For unwinding, headers are read on the thread that samples, so a file that claims millions of sections is not read further.
//! A compressed table is charged with its unpacked size before it is read.

use std::cell::Cell;
use std::ops::Range;

use object::ReadRef;

/// Headers, their names and notes of a file together. Programs have some forty sections; this is enough for a quarter of a million.
const MOST_BYTES: u64 = 16 << 20;
/// What a search for the end of a string reads at most where there is none (`object` gives up after that).
const LONGEST_STRING: u64 = 4096;

/// What may still be read of a file. To be shared by its readers.
pub struct Allowance {
    left: Cell<u64>,
    is_exceeded: Cell<bool>,
}

impl Default for Allowance {
    fn default() -> Self {
        Self::of(MOST_BYTES)
    }
}

impl Allowance {
    /// So many bytes may be read.
    pub fn of(bytes: u64) -> Self {
        Self { left: Cell::new(bytes), is_exceeded: Cell::new(false) }
    }

    /// Whether something was left unread for it.
    pub fn is_exceeded(&self) -> bool {
        self.is_exceeded.get()
    }

    fn spend(&self, bytes: u64) -> Result<(), ()> {
        let left = self.left.get().checked_sub(bytes);
        self.left.set(left.unwrap_or(self.left.get()));
        self.is_exceeded.set(self.is_exceeded.get() || left.is_none());
        left.map(drop).ok_or(())
    }
}

/// A file that reads no more than is allowed.
#[derive(Clone, Copy)]
pub struct Bounded<'a, R> {
    file: R,
    allowance: &'a Allowance,
}

impl<'a, R> Bounded<'a, R> {
    /// Reads `file` until the allowance is used up.
    pub fn new(file: R, allowance: &'a Allowance) -> Self {
        Self { file, allowance }
    }
}

impl<'d, R: ReadRef<'d>> ReadRef<'d> for Bounded<'_, R> {
    fn len(self) -> Result<u64, ()> {
        self.file.len()
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'d [u8], ()> {
        self.allowance.spend(size)?;
        self.file.read_bytes_at(offset, size)
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'d [u8], ()> {
        let most = range.end.saturating_sub(range.start).min(LONGEST_STRING);
        self.allowance.spend(most)?;
        let found = self.file.read_bytes_at_until(range, delimiter);
        // What was not read of it is given back: a table is as long as all of its strings.
        let unread = found.map_or(0, |found| most.saturating_sub(found.len() as u64 + 1));
        self.allowance.left.set(self.allowance.left.get() + unread);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_read_than_is_allowed() {
        let (bytes, allowance) = (vec![7; 100], Allowance::of(100));
        let file = Bounded::new(&bytes[..], &allowance);
        assert_eq!(file.read_bytes_at(90, 10), Ok(&bytes[..10]));
        assert!(!allowance.is_exceeded());
        assert_eq!(file.read_bytes_at(0, 91), Err(()), "it is too much");
        assert!(allowance.is_exceeded());
        assert_eq!(file.read_bytes_at(0, 90), Ok(&bytes[..90]));
        assert_eq!(file.read_bytes_at(0, 1), Err(()));
        assert_eq!(file.len(), Ok(100));
    }

    #[test]
    fn a_string_is_charged_with_its_own_length() {
        let (bytes, allowance) = (b"name\0rest of a table".repeat(10), Allowance::of(210));
        let file = Bounded::new(&bytes[..], &allowance);
        for _ in 0..2 {
            assert_eq!(file.read_bytes_at_until(0..200, 0), Ok(&b"name"[..]));
        }
        assert_eq!(allowance.left.get(), 200);
        assert_eq!(file.read_bytes_at_until(0..200, b'!'), Err(()));
        assert_eq!(allowance.left.get(), 0, "all was searched");
    }
}
