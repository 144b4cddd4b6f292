//! Bytes of a file that are read when they are needed.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::{Arc, OnceLock};

/// Reads a range of bytes of a file, of which what is made takes so many bytes of memory; `None` where that is not possible any
/// more, or not permitted for now.
pub type ReadLater = Arc<dyn Fn(Range<u64>, u64) -> Option<Vec<u8>> + Send + Sync>;

/// Bytes that many unwinders share, read when the first of them looks at them: most of the code that a process maps never
/// runs, and a big library has megabytes of tables. None, where they cannot be read any more.
#[derive(Clone)]
pub(crate) struct SectionBytes(Arc<Lazy>);

struct Lazy {
    bytes: OnceLock<Vec<u8>>,
    read: Read,
}

type Read = Arc<dyn Fn() -> Vec<u8> + Send + Sync>;

impl SectionBytes {
    pub(super) fn new(bytes: &[u8]) -> Self {
        let bytes: Arc<[u8]> = bytes.into();
        Self::when_needed(move || bytes.to_vec())
    }

    pub(super) fn when_needed(read: impl Fn() -> Vec<u8> + Send + Sync + 'static) -> Self {
        Self(Arc::new(Lazy { bytes: OnceLock::new(), read: Arc::new(read) }))
    }

    /// The same bytes, to be read anew. These go when nobody refers to them any more.
    pub(super) fn unread(&self) -> Self {
        Self(Arc::new(Lazy { bytes: OnceLock::new(), read: Arc::clone(&self.0.read) }))
    }

    /// Reads them now.
    pub(super) fn read(&self) {
        let _: &[u8] = self;
    }
}

impl Deref for SectionBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.0.bytes.get_or_init(|| (self.0.read)())
    }
}

impl Default for SectionBytes {
    fn default() -> Self {
        Self::new(&[])
    }
}

impl PartialEq for SectionBytes {
    fn eq(&self, other: &Self) -> bool {
        self[..] == other[..]
    }
}

impl Eq for SectionBytes {}

impl fmt::Debug for SectionBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SectionBytes") // to show them would be to read them
    }
}
