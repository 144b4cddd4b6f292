//! The ring buffer that the kernel writes records into.

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{MmapMut, MmapOptions};
use perf_event_open_sys::bindings::perf_event_mmap_page;
use profiler_core::record::{RawData, RawRecord};
use profiler_core::sorter::RecordQueue;

const HEADER_BYTES: usize = 8;

/// A ring buffer in memory shared with the kernel: a page of positions, then the data.
pub(crate) struct PerfRing {
    map: MmapMut,
    /// Offset of the data in `map`: one page.
    data_offset: usize,
    /// Bytes of data, a power of two.
    data_len: usize,
    /// Up to here records were read, in bytes since the ring was made.
    tail: u64,
    /// Up to here the kernel has written, as last seen.
    head: u64,
    /// Up to here what came was counted.
    counted: u64,
    /// Times that a header made no sense and everything up to `head` was skipped.
    damaged: u64,
}

impl PerfRing {
    /// Maps a ring of `data_len` bytes (a power of two pages) for the event with descriptor `fd`.
    pub(crate) fn map(fd: RawFd, data_len: usize) -> io::Result<Self> {
        let page = page_size();
        // SAFETY: the mapping is shared with the kernel alone, which writes only between `data_head` and
        // `data_tail`; `bytes` hands out what lies on the other side.
        let map = unsafe { MmapOptions::new().len(page + data_len).map_mut(fd)? };
        Ok(Self { map, data_offset: page, data_len, tail: 0, head: 0, counted: 0, damaged: 0 })
    }

    /// Bytes of data it holds.
    pub(crate) fn capacity(&self) -> usize {
        self.data_len
    }

    /// Times that the ring held something that is no record, since the last call.
    pub(crate) fn take_damaged(&mut self) -> u64 {
        std::mem::take(&mut self.damaged)
    }

    /// Bytes that the kernel has written since the last call.
    pub(crate) fn take_written(&mut self) -> u64 {
        let head = self.load_head();
        head.wrapping_sub(std::mem::replace(&mut self.counted, head))
    }

    fn positions(&self) -> *mut perf_event_mmap_page {
        self.map.as_ptr().cast_mut().cast()
    }

    fn load_head(&self) -> u64 {
        // SAFETY: the first page is a `perf_event_mmap_page` for as long as `map` lives, and its fields are
        // aligned.
        // ATOMICS: pairs with the kernel's release after it wrote a record.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.positions()).data_head) }.load(Ordering::Acquire)
    }

    /// Whether it holds anything; asks nobody but the memory that the kernel shares.
    pub(crate) fn is_empty(&self) -> bool {
        self.load_head() == self.tail
    }

    fn store_tail(&self) {
        // SAFETY: as in `load_head`.
        // ATOMICS: release, so that the kernel overwrites records only after they were read.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.positions()).data_tail) }
            .store(self.tail, Ordering::Release);
    }

    /// `len` bytes from position `at`; the caller keeps to what lies between tail and head.
    fn bytes(&self, at: u64, len: usize) -> RawData<'_> {
        let start = at as usize & (self.data_len - 1);
        let data = &self.map[self.data_offset..];
        match data.get(start..start + len) {
            Some(whole) => RawData::Single(whole),
            None => RawData::Split(&data[start..], &data[..start + len - self.data_len]),
        }
    }

    /// The header at the tail: type, misc, size. `None` where there is nothing, or nothing that makes sense.
    fn header(&mut self) -> Option<(u32, u16, usize)> {
        if self.tail == self.head {
            self.head = self.load_head();
        }
        let available = self.head.wrapping_sub(self.tail);
        if available == 0 {
            return None;
        }
        let mut header = [0; HEADER_BYTES];
        let fits = available >= HEADER_BYTES as u64 && available <= self.data_len as u64;
        if fits {
            self.bytes(self.tail, HEADER_BYTES).read_exact(&mut header).ok()?;
        }
        let [t0, t1, t2, t3, m0, m1, s0, s1] = header;
        let size = u16::from_ne_bytes([s0, s1]);
        if usize::from(size) < HEADER_BYTES || u64::from(size) > available {
            self.damaged += 1;
            self.tail = self.head;
            self.store_tail();
            return None;
        }
        let kind = u32::from_ne_bytes([t0, t1, t2, t3]);
        Some((kind, u16::from_ne_bytes([m0, m1]), usize::from(size)))
    }
}

impl RecordQueue for PerfRing {
    fn front(&mut self) -> Option<RawRecord<'_>> {
        let (kind, misc, size) = self.header()?;
        let body = self.bytes(self.tail + HEADER_BYTES as u64, size - HEADER_BYTES);
        Some(RawRecord { kind, misc, body })
    }

    fn pop(&mut self) {
        if let Some((_, _, size)) = self.header() {
            self.tail += size as u64;
            self.store_tail();
        }
    }
}

/// Bytes of a page of memory.
pub(crate) fn page_size() -> usize {
    nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE)
        .ok()
        .flatten()
        .and_then(|size| usize::try_from(size).ok())
        .unwrap_or(4096)
}
