//! Any text as a linkage name.

/// Takes any bytes.
pub(crate) fn run(data: &[u8]) {
    let Ok(name) = std::str::from_utf8(data) else { return };
    let readable = symbolizer::demangle(name);
    assert!(readable == name || readable.len() <= 16 * 1024);
}
