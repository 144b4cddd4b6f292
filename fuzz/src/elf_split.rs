//! Any bytes as an object, and as the file that holds the other halves of its units. The first two bytes say where the
//! one ends and the other begins.
use std::path::Path;

use symbolizer::{DebugFiles, Object, ReadAt};

use crate::lookups;

/// The same bytes behind every path.
#[derive(Clone)]
struct Half(Vec<u8>);

impl DebugFiles for Half {
    fn open(&self, path: &Path) -> Option<Box<dyn ReadAt>> {
        // Packages and the files of units in turn: the same bytes can be both.
        let wanted = self.0.len().is_multiple_of(2) || path.extension().is_some_and(|end| end == "dwo");
        wanted.then(|| Box::new(self.0.clone()) as Box<dyn ReadAt>)
    }

    fn share(&self) -> Option<Box<dyn DebugFiles + Send + Sync>> {
        Some(Box::new(self.clone()))
    }
}

/// Takes any bytes.
pub(crate) fn run(data: &[u8]) {
    let Some((end, bytes)) = data.split_first_chunk() else { return };
    let end = usize::from(u16::from_le_bytes(*end)).min(bytes.len());
    let (object_bytes, half) = bytes.split_at(end);
    let Ok(object) = Object::load(&object_bytes, Path::new("/bin/object"), &Half(half.to_vec())) else {
        return;
    };
    lookups::check(&object, &lookups::addresses(object_bytes), None);
}
