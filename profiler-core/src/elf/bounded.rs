//! A file of which no more is read than headers take: they state how long their tables are, and may state anything.
//!
//! Headers are read on the thread that samples, so a file that claims millions of sections is not read further.
//! A compressed table is charged with its unpacked size before it is read.

use std::cell::Cell;
use std::ops::Range;

use object::ReadRef;

/// Headers, their names and notes of a file together. Programs have some forty sections; this is enough for a quarter of a million.
const MOST_BYTES: u64 = 16 << 20;

/// What may still be read of a file. To be shared by its readers.
pub(super) struct Allowance(Cell<u64>);

impl Default for Allowance {
    fn default() -> Self {
        Self(Cell::new(MOST_BYTES))
    }
}

/// A file that reads no more than is allowed.
#[derive(Clone, Copy)]
pub(super) struct Bounded<'a, R> {
    file: R,
    allowance: &'a Allowance,
}

impl<'a, R> Bounded<'a, R> {
    pub(super) fn new(file: R, allowance: &'a Allowance) -> Self {
        Self { file, allowance }
    }

    fn spend(&self, bytes: u64) -> Result<(), ()> {
        let left = self.allowance.0.get().checked_sub(bytes).ok_or(())?;
        self.allowance.0.set(left);
        Ok(())
    }
}

impl<'d, R: ReadRef<'d>> ReadRef<'d> for Bounded<'_, R> {
    fn len(self) -> Result<u64, ()> {
        self.file.len()
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'d [u8], ()> {
        self.spend(size)?;
        self.file.read_bytes_at(offset, size)
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'d [u8], ()> {
        self.spend(range.end.saturating_sub(range.start))?;
        self.file.read_bytes_at_until(range, delimiter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_read_than_is_allowed() {
        let (bytes, allowance) = (vec![7; 100], Allowance(Cell::new(100)));
        let file = Bounded::new(&bytes[..], &allowance);
        assert_eq!(file.read_bytes_at(90, 10), Ok(&bytes[..10]));
        assert_eq!(file.read_bytes_at(0, 91), Err(()), "it is too much");
        assert_eq!(file.read_bytes_at(0, 90), Ok(&bytes[..90]));
        assert_eq!(file.read_bytes_at(0, 1), Err(()));
        assert_eq!(file.len(), Ok(100));
    }
}
