//! Any bytes as the sections of debug information, in an object that is sound.

use std::path::Path;

use symbolizer::{NoDebugFiles, Object, Symbolized};

/// What the input holds, one after the other, each behind its length in two bytes; the last takes the rest.
const SECTIONS: [&str; 9] = [
    ".debug_abbrev",
    ".debug_str",
    ".debug_line_str",
    ".debug_str_offsets",
    ".debug_addr",
    ".debug_ranges",
    ".debug_rnglists",
    ".debug_line",
    ".debug_info",
];
const TEXT: u64 = 0x1000;
const TEXT_BYTES: u64 = 0x1000;
const HEADER_BYTES: usize = 64;

/// Takes any bytes.
pub(crate) fn run(data: &[u8]) {
    let object = object(data);
    let Ok(object) = Object::load(&object.as_slice(), Path::new("/bin/object"), &NoDebugFiles) else {
        panic!("the object around the input is sound")
    };
    for svma in (TEXT..TEXT + TEXT_BYTES).step_by(31).chain([0, u64::MAX]) {
        if let Symbolized::Known(frames) = object.symbolize(svma) {
            assert!(!frames.is_empty());
        }
    }
}

/// An object of code without symbols, with these sections.
fn object(mut data: &[u8]) -> Vec<u8> {
    let mut object = vec![0; HEADER_BYTES];
    // The first section is none; the second is the code.
    let mut headers = vec![[0; 10], section(1, 1, 6, TEXT, 0, TEXT_BYTES)];
    let mut names = b"\0.text\0".to_vec();
    for (at, name) in SECTIONS.iter().enumerate() {
        let mut len = data.len();
        if at + 1 < SECTIONS.len() {
            let (head, rest) = data.split_at(data.len().min(2));
            len = head.iter().rev().fold(0, |len, &byte| len << 8 | usize::from(byte));
            data = rest;
        }
        let (bytes, rest) = data.split_at(len.min(data.len()));
        data = rest;
        headers.push(section(names.len(), 1, 0, 0, object.len(), bytes.len() as u64));
        names.extend_from_slice(name.as_bytes());
        names.push(0);
        object.extend_from_slice(bytes);
    }
    headers.push(section(names.len(), 3, 0, 0, object.len(), names.len() as u64 + 10));
    names.extend_from_slice(b".shstrtab\0");
    object.extend_from_slice(&names);
    let headers_at = object.len() as u64;
    // A header has ten fields, of four or eight bytes.
    const FIELD_BYTES: [usize; 10] = [4, 4, 8, 8, 8, 8, 4, 4, 8, 8];
    for header in &headers {
        for (field, bytes) in header.iter().zip(FIELD_BYTES) {
            object.extend_from_slice(&field.to_le_bytes()[..bytes]);
        }
    }
    object[..16].copy_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    object[16..24].copy_from_slice(&[3, 0, 62, 0, 1, 0, 0, 0]); // a shared object for x86-64
    object[40..48].copy_from_slice(&headers_at.to_le_bytes());
    object[52..54].copy_from_slice(&64_u16.to_le_bytes());
    object[58..60].copy_from_slice(&64_u16.to_le_bytes());
    object[60..62].copy_from_slice(&(headers.len() as u16).to_le_bytes());
    object[62..64].copy_from_slice(&(headers.len() as u16 - 1).to_le_bytes());
    object
}

fn section(name: usize, kind: u64, flags: u64, address: u64, offset: usize, size: u64) -> [u64; 10] {
    [name as u64, kind, flags, address, offset as u64, size, 0, 0, 1, 0]
}
