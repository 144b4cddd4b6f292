//! Where functions begin by the unwind information, which knows those without symbols too.

use super::Elf;

/// A table of a million functions has 8 MB.
const LARGEST_TABLE: u64 = 64 << 20;
/// What linkers write: its version, an encoding of the address of the frames, four bytes for the number of entries, and entries of four bytes
/// each, relative to the section.
const VERSION: u8 = 1;
const COUNT: u8 = 0x03;
const RELATIVE: u8 = 0x3b;

impl Elf<'_> {
    /// Where the functions of `.eh_frame_hdr` begin, in ascending order; none if there is no table as linkers write it.
    pub(super) fn unwound_starts(&self) -> Vec<u64> {
        let Some(section) = self.find_contents(".eh_frame_hdr") else { return Vec::new() };
        let bytes = self.read_within(section, LARGEST_TABLE).unwrap_or_default();
        let mut starts = starts(&bytes, section.address).unwrap_or_default();
        starts.sort_unstable();
        starts
    }
}

fn starts(table: &[u8], address: u64) -> Option<Vec<u64>> {
    let (&[version, frames, count, entries], rest) = table.split_first_chunk()?;
    ((version, count, entries) == (VERSION, COUNT, RELATIVE)).then_some(())?;
    let rest = rest.get(if matches!(frames & 0x0f, 0x00 | 0x04 | 0x0c) { 8 } else { 4 }..)?;
    let (count, rest) = rest.split_first_chunk()?;
    let entries = rest.chunks_exact(8).take(u32::from_le_bytes(*count) as usize);
    let start =
        |entry: &[u8]| Some(address.wrapping_add_signed(i32::from_le_bytes(*entry.first_chunk()?).into()));
    Some(entries.filter_map(start).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_are_relative_to_the_table() {
        let mut table = vec![VERSION, 0x1b, COUNT, RELATIVE, 0, 0, 0, 0, 2, 0, 0, 0];
        for word in [-16i32, 7, 32, 8, 64, 9] {
            table.extend(word.to_le_bytes());
        }
        assert_eq!(starts(&table, 0x1000).unwrap(), [0xff0, 0x1020]);
        assert_eq!(starts(&table[..20], 0x1000).unwrap(), [0xff0]);
        table[3] = 0x1b;
        assert_eq!(starts(&table, 0x1000), None);
        assert_eq!(starts(&table[..3], 0), None);
    }
}
