//! Any bytes as the sections of debug information, in an object that is sound.

use std::path::Path;

use symbolizer::{NoDebugFiles, Object};

use crate::{lookups, made};

/// Takes any bytes: the sections, each behind its length in two bytes; the last takes the rest.
pub(crate) fn run(data: &[u8]) {
    let object = made::object(&made::debug_sections(data));
    let Ok(object) = Object::load(&object, Path::new("/bin/object"), &NoDebugFiles) else {
        panic!("the object around the input is sound")
    };
    lookups::check(&object, &lookups::of_code(), None);
}
