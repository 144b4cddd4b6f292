//! Any bytes as what other bytes are packed in, and as the files that an object refers to: compressed sections,
//! `.gnu_debugdata`, Go's own table, and separate and shared debug files. What would keep a fuzzer out (checksums, build ids) is made to
//! fit.

use std::io::{Read, Write};
use std::path::Path;

use flate2::Compression;
use flate2::write::ZlibEncoder;
use symbolizer::{DebugFiles, Object, ReadAt};

use crate::lookups;
use crate::made::{Made, debug_sections, object, sized};

const COMPRESSED: u64 = 1 << 11;
const NOTE: u64 = 7;
const SYMTAB: u64 = 2;
const STRTAB: u64 = 3;
const BUILD_ID: [u8; 4] = [1, 2, 3, 4];

/// One file behind every path.
struct One(Option<Vec<u8>>);

impl DebugFiles for One {
    fn open(&self, _: &Path) -> Option<Box<dyn ReadAt>> {
        Some(Box::new(self.0.clone()?))
    }

    fn fetch(&self, _: &str) -> Option<Box<dyn ReadAt>> {
        self.open(Path::new(""))
    }
}

/// Takes any bytes: how it is packed, and what.
pub(crate) fn run(data: &[u8]) {
    let Some((&kind, mut data)) = data.split_first() else { return };
    let (object, other) = match kind % 10 {
        0 => (object(&[Made::new(".gnu_debugdata", data)]), None),
        1 => (object(&[Made::new(".gnu_debugdata", xz(data))]), None),
        2 => (object(&flagged(data)), None),
        3 => (object(&debug_sections(data).into_iter().map(packed).collect::<Vec<_>>()), None),
        4 => (object(&debug_sections(data).into_iter().map(packed_of_old).collect::<Vec<_>>()), None),
        5 => (object(&symbols(data)), None),
        6 => {
            let other = object(&[vec![build_id()], debug_sections(data)].concat());
            (object(&[build_id()]), Some(other))
        }
        7 => {
            let (name, other) = (sized(&mut data), object(&debug_sections(data)));
            (object(&[Made::new(".gnu_debuglink", link(name, &other))]), Some(other))
        }
        8 => (object(&[Made::new(".gopclntab", data)]), None),
        _ => {
            let own = debug_sections(sized(&mut data));
            let alt = [sized(&mut data), &[0], &BUILD_ID].concat();
            let other = object(&[vec![build_id()], debug_sections(data)].concat());
            (object(&[own, vec![Made::new(".gnu_debugaltlink", alt)]].concat()), Some(other))
        }
    };
    let Ok(object) = Object::load(&object, Path::new("/bin/object"), &One(other)) else { return };
    lookups::check(&object, &lookups::of_code(), None);
}

/// Sections that claim to be compressed: the bytes are the header, too.
fn flagged(mut data: &[u8]) -> Vec<Made> {
    let mut section = |name, kind| {
        let flags = if sized(&mut data).len().is_multiple_of(2) { COMPRESSED } else { 0 };
        Made { kind, flags, link: 3, ..Made::new(name, sized(&mut data)) }
    };
    vec![
        section(".symtab", SYMTAB),
        section(".strtab", STRTAB),
        section(".debug_info", 1),
        section(".zdebug_str", 1),
    ]
}

/// A symbol table that is compressed, and its names.
fn symbols(mut data: &[u8]) -> Vec<Made> {
    let table = Made { kind: SYMTAB, link: 3, ..Made::new(".symtab", sized(&mut data)) };
    let names = Made { kind: STRTAB, ..Made::new(".strtab", data) };
    vec![packed(table), packed(names)]
}

fn packed(section: Made) -> Made {
    let size = section.bytes.len() as u64;
    let header = [&1_u32.to_le_bytes()[..], &[0; 4], &size.to_le_bytes(), &1_u64.to_le_bytes()].concat();
    let bytes = [header, zlib(&section.bytes)].concat();
    Made { flags: section.flags | COMPRESSED, bytes, ..section }
}

fn packed_of_old(section: Made) -> Made {
    let bytes = [b"ZLIB", &(section.bytes.len() as u64).to_be_bytes()[..], &zlib(&section.bytes)].concat();
    Made { name: section.name.replace(".debug_", ".zdebug_"), bytes, ..section }
}

fn zlib(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).expect("memory takes everything");
    encoder.finish().expect("memory takes everything")
}

fn xz(bytes: &[u8]) -> Vec<u8> {
    let mut packed = Vec::new();
    liblzma::read::XzEncoder::new(bytes, 0).read_to_end(&mut packed).expect("memory takes everything");
    packed
}

fn build_id() -> Made {
    let note =
        [&4_u32.to_le_bytes()[..], &4_u32.to_le_bytes(), &3_u32.to_le_bytes(), b"GNU\0", &BUILD_ID].concat();
    Made { kind: NOTE, ..Made::new(".note.gnu.build-id", note) }
}

/// The name and checksum of a debug file.
fn link(name: &[u8], file: &[u8]) -> Vec<u8> {
    let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
    let mut bytes = [name, &[0]].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    let mut crc = flate2::Crc::new();
    crc.update(file);
    bytes.extend(crc.sum().to_le_bytes());
    bytes
}
