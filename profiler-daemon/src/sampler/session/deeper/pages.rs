//! Which pages of a process can be read without a page fault.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use crate::sys::maps::regions;
use crate::sys::ring::page_size;

/// Bytes of an entry of `/proc/PID/pagemap`.
const ENTRY: usize = 8;
/// The page is in memory.
const PRESENT: u64 = 1 << 63;
/// The page is in swap, is being moved, or is marked in another way that a fault resolves.
const SWAPPED: u64 = 1 << 62;
/// The page belongs to a file or to shared memory.
const FILE_OR_SHARED: u64 = 1 << 61;

/// What reading a page would take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Page {
    /// Private memory that is present: no fault.
    Present,
    /// Nothing is there: never touched, a file's page that was not read yet, or no mapping.
    Untouched,
    /// Reading may wait for a disk or for whoever serves a file.
    MayWait,
}

impl Page {
    fn of_entry(entry: u64) -> Self {
        if entry & (SWAPPED | FILE_OR_SHARED) != 0 {
            Self::MayWait
        } else if entry & PRESENT != 0 {
            Self::Present
        } else {
            Self::Untouched
        }
    }
}

/// The pages of a range of addresses, at one moment.
#[derive(Debug)]
pub(super) struct Pages {
    first: u64,
    page_bytes: u64,
    pages: Vec<Page>,
}

impl Pages {
    /// Looks the pages of a range up. `None` if the process has ended or its `pagemap` may not be read.
    pub(super) fn read(pagemap: &File, range: Range<u64>) -> Option<Self> {
        let page_bytes = page_size() as u64;
        let first = range.start / page_bytes;
        let count = usize::try_from(range.end.div_ceil(page_bytes).checked_sub(first)?).ok()?;
        let mut entries = vec![0; count.checked_mul(ENTRY)?];
        let read =
            pagemap.read_at(&mut entries, first.checked_mul(ENTRY as u64)?).ok().filter(|&read| read > 0)?;
        let (entries, _) = entries[..read].as_chunks::<ENTRY>();
        let pages = entries.iter().map(|&entry| Page::of_entry(u64::from_ne_bytes(entry))).collect();
        Some(Self { first, page_bytes, pages })
    }

    /// The page at an address, and how many of `len` bytes from there are in pages of the same kind.
    pub(super) fn run(&self, address: u64, len: usize) -> (Page, usize) {
        let at = |page: u64| {
            let index = page.checked_sub(self.first).and_then(|index| usize::try_from(index).ok());
            index.and_then(|index| self.pages.get(index)).copied().unwrap_or(Page::MayWait)
        };
        let kind = at(address / self.page_bytes);
        let end = address.saturating_add(len as u64);
        let mut page = address / self.page_bytes + 1;
        while page.saturating_mul(self.page_bytes) < end && at(page) == kind {
            page += 1;
        }
        let run = page.saturating_mul(self.page_bytes).min(end) - address;
        (kind, run as usize)
    }

    /// Whether all of `len` bytes at an address are present.
    pub(super) fn are_present(&self, address: u64, len: usize) -> bool {
        self.run(address, len) == (Page::Present, len)
    }
}

/// How many of `len` untouched bytes at an address are in private memory without a file, by the text of `maps`, and
/// whether what follows them is no mapping.
pub(super) fn private_extent(maps: &[u8], address: u64, len: usize) -> (usize, bool) {
    let most = address.saturating_add(len as u64);
    let mut end = address;
    for region in regions(maps).skip_while(|region| region.end <= address) {
        if end >= most {
            return (len, false);
        }
        if region.start > end {
            break;
        }
        if !region.is_private_memory() {
            return ((end - address) as usize, false);
        }
        end = region.end;
    }
    ((end.min(most) - address) as usize, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_say_whether_a_page_can_be_read_without_waiting() {
        assert_eq!(Page::of_entry(PRESENT | 1 << 55), Page::Present);
        assert_eq!(Page::of_entry(1 << 55), Page::Untouched);
        for entry in [SWAPPED, PRESENT | FILE_OR_SHARED, FILE_OR_SHARED, SWAPPED | FILE_OR_SHARED] {
            assert_eq!(Page::of_entry(entry), Page::MayWait);
        }
    }

    #[test]
    fn runs_end_where_the_kind_of_page_changes_and_where_nothing_is_known() {
        let pages = Pages {
            first: 10,
            page_bytes: 100,
            pages: vec![Page::Present, Page::Present, Page::Untouched, Page::Present],
        };
        assert_eq!(pages.run(1_010, 1_000), (Page::Present, 190));
        assert_eq!(pages.run(1_010, 50), (Page::Present, 50));
        assert_eq!(pages.run(1_200, 1_000), (Page::Untouched, 100));
        assert_eq!(pages.run(1_350, 1_000), (Page::Present, 50));
        assert_eq!(pages.run(1_400, 1_000), (Page::MayWait, 1_000));
        assert_eq!(pages.run(990, 1_000), (Page::MayWait, 10));
        assert!(pages.are_present(1_096, 8));
        assert!(!pages.are_present(1_196, 8), "half in an untouched page");
    }

    #[test]
    fn untouched_memory_is_private_up_to_a_file_or_the_end_of_the_mapping() {
        const MAPS: &[u8] = b"\
1000-2000 rw-p 00000000 00:00 0 
2000-3000 rw-p 00000000 00:00 0 [anon:x]
3000-4000 rw-p 00000000 00:31 0 /served/without an inode
5000-6000 rw-p 00000000 00:00 0 [stack]
7000-8000 rw-s 00000000 00:00 0 
";
        assert_eq!(private_extent(MAPS, 0x1800, 0x100), (0x100, false));
        assert_eq!(private_extent(MAPS, 0x1800, 0x4000), (0x1800, false));
        assert_eq!(private_extent(MAPS, 0x3000, 0x1000), (0, false));
        assert_eq!(private_extent(MAPS, 0x4000, 0x1000), (0, true));
        assert_eq!(private_extent(MAPS, 0x5800, 0x4000), (0x800, true));
        assert_eq!(private_extent(MAPS, 0x7000, 0x1000), (0, false));
        assert_eq!(private_extent(MAPS, 0x9000, 0x1000), (0, true));
    }
}
