//! Random access to an object's bytes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Random access to an object's bytes.
///
/// It reads and never maps: a file that is truncated under a mapping kills its reader with SIGBUS, a read only fails.
pub trait ReadAt: Send + Sync {
    /// The number of bytes there are.
    fn len(&self) -> io::Result<u64>;

    /// Exactly `len` bytes from `offset` on, or an error; nothing is allocated for bytes that are not there.
    fn read_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>>;

    /// Whether there are no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// Bytes that are read for as long as the object is asked.
#[derive(Clone)]
pub(crate) enum ByteSource<'s> {
    /// The caller's.
    Borrowed(&'s dyn ReadAt),
    /// A separate debug file.
    Owned(Arc<dyn ReadAt>),
}

impl ByteSource<'_> {
    pub(crate) fn get(&self) -> &dyn ReadAt {
        match self {
            Self::Borrowed(source) => *source,
            Self::Owned(source) => &**source,
        }
    }
}

impl ReadAt for File {
    fn len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let end = offset.checked_add(len as u64).ok_or(io::ErrorKind::UnexpectedEof)?;
        if end > ReadAt::len(self)? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut bytes = vec![0; len];
        self.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }
}

impl ReadAt for [u8] {
    fn len(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }

    fn read_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let start = usize::try_from(offset).map_err(|_| io::ErrorKind::UnexpectedEof)?;
        let end = start.checked_add(len).ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok(self.get(start..end).ok_or(io::ErrorKind::UnexpectedEof)?.to_vec())
    }
}

impl ReadAt for &[u8] {
    fn len(&self) -> io::Result<u64> {
        ReadAt::len(*self)
    }

    fn read_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        ReadAt::read_at(*self, offset, len)
    }
}

impl ReadAt for Vec<u8> {
    fn len(&self) -> io::Result<u64> {
        ReadAt::len(self.as_slice())
    }

    fn read_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        ReadAt::read_at(self.as_slice(), offset, len)
    }
}
