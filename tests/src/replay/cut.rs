//! Objects without what a replay does not need.

use anyhow::{Context, Result, ensure};

/// What unwinding and names need; all else becomes zeros, which take no room once compressed.
const KEPT: &[&str] =
    &[".eh_frame", ".eh_frame_hdr", ".debug_frame", ".symtab", ".strtab", ".shstrtab", ".note.gnu.build-id"];
const HEADER_BYTES: usize = 64;
const SECTION_BYTES: usize = 64;

/// The 64-bit little-endian object `file` with nothing but its headers, unwind tables and symbols.
pub fn cut_down(file: &[u8]) -> Result<Vec<u8>> {
    let number = |at: usize, len: usize| -> Result<usize> {
        let bytes = file.get(at..at + len).context("the object is cut")?;
        Ok(bytes.iter().rev().fold(0, |number, &byte| number << 8 | usize::from(byte)))
    };
    ensure!(file.starts_with(b"\x7fELF\x02\x01"), "no 64-bit object");
    let (programs, sections) = (number(32, 8)?, number(40, 8)?);
    let (program_bytes, section_count) = (number(54, 2)? * number(56, 2)?, number(60, 2)?);
    let contents = |index: usize| -> Result<(usize, usize)> {
        let header = sections + index * SECTION_BYTES;
        Ok((number(header + 24, 8)?, number(header + 32, 8)?))
    };
    let (names, _) = contents(number(62, 2)?)?;
    let mut kept =
        vec![(0, HEADER_BYTES), (programs, program_bytes), (sections, section_count * SECTION_BYTES)];
    for index in 0..section_count {
        let name = names + number(sections + index * SECTION_BYTES, 4)?;
        let name = file.get(name..).unwrap_or_default().split(|&byte| byte == 0).next().unwrap_or_default();
        if KEPT.iter().any(|kept| kept.as_bytes() == name) {
            kept.push(contents(index)?);
        }
    }
    let mut left = vec![0; file.len()];
    for (start, len) in kept {
        let range = start..start + len;
        left.get_mut(range.clone()).context("a section is cut")?.copy_from_slice(&file[range]);
    }
    Ok(left)
}
