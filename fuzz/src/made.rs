//! Objects that are sound, around sections that are not.
#![allow(dead_code, reason = "each target uses some of it")]

/// Where their code is.
const TEXT: u64 = 0x1000;
const TEXT_BYTES: u64 = 0x1000;

/// The sections of debug information, in the order in which inputs hold them.
const DEBUG_SECTIONS: [&str; 9] = [
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

const HEADER_BYTES: usize = 64;
/// A section header has ten fields, of four or eight bytes.
const FIELD_BYTES: [usize; 10] = [4, 4, 8, 8, 8, 8, 4, 4, 8, 8];
const PROGBITS: u64 = 1;
const STRTAB: u64 = 3;
/// Readable and executable.
const CODE: u64 = 6;

/// A section of an object that is made.
#[derive(Clone)]
pub(crate) struct Made {
    pub(crate) name: String,
    pub(crate) kind: u64,
    pub(crate) flags: u64,
    /// The section that it refers to; the first of the given ones is 2.
    pub(crate) link: u64,
    pub(crate) bytes: Vec<u8>,
}

impl Made {
    pub(crate) fn new(name: &str, bytes: impl Into<Vec<u8>>) -> Self {
        Self { name: name.to_owned(), kind: PROGBITS, flags: 0, link: 0, bytes: bytes.into() }
    }
}

/// Takes a piece from the front, behind its length in two bytes.
pub(crate) fn sized<'d>(data: &mut &'d [u8]) -> &'d [u8] {
    let (head, rest) = data.split_at(data.len().min(2));
    let len = head.iter().rev().fold(0, |len, &byte| len << 8 | usize::from(byte));
    let (piece, rest) = rest.split_at(len.min(rest.len()));
    *data = rest;
    piece
}

/// The sections of debug information that an input holds, each behind its length but for the last.
pub(crate) fn debug_sections(mut data: &[u8]) -> Vec<Made> {
    let (last, others) = DEBUG_SECTIONS.split_last().expect("some sections");
    let mut sections: Vec<Made> = others.iter().map(|name| Made::new(name, sized(&mut data))).collect();
    sections.push(Made::new(last, data));
    sections
}

/// An object of code without symbols, with these sections.
pub(crate) fn object(sections: &[Made]) -> Vec<u8> {
    let mut object = vec![0; HEADER_BYTES];
    // The first section is none; the second is the code.
    let mut headers = vec![[0; 10], [1, PROGBITS, CODE, TEXT, 0, TEXT_BYTES, 0, 0, 1, 0]];
    let mut names = b"\0.text\0".to_vec();
    for Made { name, kind, flags, link, bytes } in sections {
        let (at, len) = (object.len() as u64, bytes.len() as u64);
        headers.push([names.len() as u64, *kind, *flags, 0, at, len, *link, 0, 1, 0]);
        names.extend_from_slice(name.as_bytes());
        names.push(0);
        object.extend_from_slice(bytes);
    }
    let (name, at) = (names.len() as u64, object.len() as u64);
    names.extend_from_slice(b".shstrtab\0");
    headers.push([name, STRTAB, 0, 0, at, names.len() as u64, 0, 0, 1, 0]);
    object.extend_from_slice(&names);
    let headers_at = object.len() as u64;
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
