//! Any bytes as an object, and as the debug file it asks for.

use std::path::Path;

use symbolizer::{DebugFiles, Object, ReadAt};

use crate::lookups;

/// The object is its own debug file.
struct Same(Vec<u8>);

impl DebugFiles for Same {
    fn open(&self, _: &Path) -> Option<Box<dyn ReadAt>> {
        Some(Box::new(self.0.clone()))
    }
}

/// Takes any bytes.
pub(crate) fn run(data: &[u8]) {
    let Ok(object) = Object::load(&data, Path::new("/bin/object"), &Same(data.to_vec())) else { return };
    lookups::check(&object, &lookups::addresses(data), lookups::Symbols::of(data).as_ref());
}
