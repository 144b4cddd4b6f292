//! Any text as a linkage name.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|name: &str| {
    let readable = symbolizer::demangle(name);
    assert!(readable == name || readable.len() <= 16 * 1024);
});
