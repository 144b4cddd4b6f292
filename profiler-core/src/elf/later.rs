//! Bytes of a file that are read when they are needed.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::{Arc, LazyLock};

/// Reads a range of bytes of a file; `None` where that is not possible any more.
pub type ReadLater = Arc<dyn Fn(Range<u64>) -> Option<Vec<u8>> + Send + Sync>;

/// Bytes that many unwinders share, read when the first of them looks at them: most of the code that a process maps never
/// runs, and a big library has megabytes of tables. None, where they cannot be read any more.
#[derive(Clone)]
pub(crate) struct SectionBytes(Arc<LazyLock<Vec<u8>, Read>>);

type Read = Box<dyn FnOnce() -> Vec<u8> + Send>;

impl SectionBytes {
    pub(super) fn new(bytes: &[u8]) -> Self {
        let bytes = bytes.to_vec();
        Self::when_needed(move || bytes)
    }

    pub(super) fn when_needed(read: impl FnOnce() -> Vec<u8> + Send + 'static) -> Self {
        Self(Arc::new(LazyLock::new(Box::new(read))))
    }

    /// Reads them now.
    pub(super) fn read(&self) {
        LazyLock::force(&self.0);
    }
}

impl Deref for SectionBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
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
