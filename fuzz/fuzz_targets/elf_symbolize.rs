//! Any bytes as an object, and as the debug file it asks for.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use symbolizer::{DebugFiles, Object, ReadAt};

/// The object is its own debug file.
struct Same(Vec<u8>);

impl DebugFiles for Same {
    fn open(&self, _: &Path) -> Option<Box<dyn ReadAt>> {
        Some(Box::new(self.0.clone()))
    }
}

fuzz_target!(|data: &[u8]| {
    let Ok(object) = Object::load(&data, Path::new("/bin/object"), &Same(data.to_vec())) else { return };
    for step in 0..64 {
        object.symbolize(0x1000 + step * 0x10);
        object.symbolize(step << 58);
    }
    object.symbolize(u64::MAX);
});
