//! A file that is read as long as nobody writes into it: parts of it were read before.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use symbolizer::ReadAt;

use crate::sys::file;

/// A file, and what it was when it was opened.
pub(crate) struct Unchanged {
    file: File,
    state: (u64, i64, i64),
}

impl Unchanged {
    pub(crate) fn new(file: File) -> io::Result<Self> {
        let state = file::state(&file)?;
        Ok(Self { file, state })
    }
}

impl ReadAt for Unchanged {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state.0)
    }

    fn read_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        if file::state(&self.file)? != self.state {
            return Err(io::Error::other("the file was written into"));
        }
        let end = offset.checked_add(len as u64).filter(|&end| end <= self.state.0);
        end.ok_or(io::ErrorKind::UnexpectedEof)?;
        let mut bytes = vec![0; len];
        self.file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }
}
