//! A reader of DWARF bytes that draws on a budget.

use std::borrow::Cow;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gimli::{Error, LittleEndian, Reader, ReaderOffsetId};

/// Work a section's byte may cause. Reading everything once costs about two units a byte; the rest is for tables that
/// many units share, and are read again for each.
const WORK_PER_BYTE: u64 = 24;
/// Work granted whatever the size.
const BASE_WORK: u64 = 16 << 20;
/// Work granted anew for each address, for names.
const WORK_PER_LOOKUP: u64 = 64 << 10;

/// Work that a reader takes from the pool at once, so that several readers seldom meet there.
const GRANT: u64 = 1 << 20;

/// The work that may still be done on an object's debug information: about one unit for each byte read or item kept.
///
/// A few kilobytes of hostile DWARF can describe hours of work, by pointing a thousand times at the same table. Since
/// every loop reads or keeps something, a budget ends them all. The pool belongs to the object and is shared by all that
/// read it at the same time; each has a budget of its own, which is filled from there.
#[derive(Debug)]
pub(super) struct Pool {
    left: AtomicU64,
    /// All that the object's size warrants.
    all: AtomicU64,
}

impl Pool {
    pub(super) fn new(bytes: u64) -> Self {
        let all = bytes.saturating_mul(WORK_PER_BYTE).saturating_add(BASE_WORK);
        Self { left: AtomicU64::new(all), all: AtomicU64::new(all) }
    }

    /// Grants all of it anew. Returns whether there was nothing left.
    pub(super) fn renew(&self) -> bool {
        self.left.swap(self.all.load(Ordering::Relaxed), Ordering::Relaxed) == 0
    }

    /// Takes out this much, or what is left.
    fn draw(&self, work: u64) -> u64 {
        let taken = |left: u64| Some(left.saturating_sub(work));
        let left = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken);
        left.unwrap_or_else(|left| left).min(work)
    }

    fn is_empty(&self) -> bool {
        self.left.load(Ordering::Relaxed) == 0
    }

    /// Allows the work that another file of so many bytes warrants.
    pub(super) fn grant(&self, bytes: u64) {
        if !self.is_empty() {
            self.all.fetch_add(bytes.saturating_mul(WORK_PER_BYTE), Ordering::Relaxed);
            self.put_back(bytes.saturating_mul(WORK_PER_BYTE));
        }
    }

    fn put_back(&self, work: u64) {
        self.left.fetch_add(work, Ordering::Relaxed);
    }
}

/// One reader's part of the [`Pool`].
#[derive(Debug)]
pub(super) struct Budget {
    pool: Arc<Pool>,
    left: Cell<u64>,
    /// All that was granted so far.
    granted: Cell<u64>,
}

impl Budget {
    pub(super) fn new(pool: &Arc<Pool>) -> Self {
        Self { pool: Arc::clone(pool), left: Cell::new(0), granted: Cell::new(0) }
    }

    pub(super) fn top_up(&self) {
        if !self.is_spent() {
            self.grant(WORK_PER_LOOKUP);
        }
    }

    pub(super) fn is_spent(&self) -> bool {
        self.left.get() == 0 && self.pool.is_empty()
    }

    /// The work done with it so far.
    pub(super) fn spent(&self) -> u64 {
        self.granted.get() - self.left.get()
    }

    /// Takes `work` off, or fails for good.
    #[inline]
    pub(super) fn spend(&self, work: usize) -> gimli::Result<()> {
        match self.left.get().checked_sub(work as u64) {
            Some(left) => {
                self.left.set(left);
                Ok(())
            }
            None => self.refill_and_spend(work as u64),
        }
    }

    #[cold]
    fn refill_and_spend(&self, work: u64) -> gimli::Result<()> {
        self.grant(self.pool.draw(work.max(GRANT)));
        let left = self.left.get().checked_sub(work);
        self.left.set(left.unwrap_or(0));
        left.map(|_| ()).ok_or(Error::Io)
    }

    fn grant(&self, work: u64) {
        self.left.set(self.left.get().saturating_add(work));
        self.granted.set(self.granted.get().saturating_add(work));
    }
}

impl Drop for Budget {
    /// What was not used is for other readers. What addresses were granted stays with the object, too: it is little.
    fn drop(&mut self) {
        if !self.pool.is_empty() {
            self.pool.put_back(self.left.get());
        }
    }
}

/// Fails if more than `most` things are kept: a budget for work grows with the file, memory does not.
pub(super) fn at_most(kept: usize, most: usize) -> gimli::Result<()> {
    if kept > most { Err(Error::Io) } else { Ok(()) }
}

/// Bytes of a section that are yet to be read, and the budget for it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bytes<'a> {
    slice: &'a [u8],
    budget: &'a Budget,
}

impl<'a> Bytes<'a> {
    pub(super) fn new(slice: &'a [u8], budget: &'a Budget) -> Self {
        Self { slice, budget }
    }

    pub(super) fn slice(&self) -> &'a [u8] {
        self.slice
    }

    #[inline]
    fn take(&mut self, len: usize) -> gimli::Result<&'a [u8]> {
        self.budget.spend(1)?;
        let (head, rest) = self.slice.split_at_checked(len).ok_or(Error::UnexpectedEof(self.offset_id()))?;
        self.slice = rest;
        Ok(head)
    }
}

impl<'a> Reader for Bytes<'a> {
    type Endian = LittleEndian;
    type Offset = usize;

    #[inline]
    fn endian(&self) -> LittleEndian {
        LittleEndian
    }

    #[inline]
    fn len(&self) -> usize {
        self.slice.len()
    }

    #[inline]
    fn empty(&mut self) {
        self.slice = &self.slice[self.slice.len()..];
    }

    #[inline]
    fn truncate(&mut self, len: usize) -> gimli::Result<()> {
        self.slice = self.slice.get(..len).ok_or(Error::UnexpectedEof(self.offset_id()))?;
        Ok(())
    }

    #[inline]
    fn offset_from(&self, base: &Self) -> usize {
        (self.slice.as_ptr() as usize).wrapping_sub(base.slice.as_ptr() as usize)
    }

    #[inline]
    fn offset_id(&self) -> ReaderOffsetId {
        ReaderOffsetId(self.slice.as_ptr() as u64)
    }

    #[inline]
    fn lookup_offset_id(&self, id: ReaderOffsetId) -> Option<usize> {
        let offset = id.0.checked_sub(self.offset_id().0)? as usize;
        (offset <= self.slice.len()).then_some(offset)
    }

    #[inline]
    fn find(&self, byte: u8) -> gimli::Result<usize> {
        let found = self.slice.iter().position(|&b| b == byte);
        self.budget.spend(found.unwrap_or(self.slice.len()))?;
        found.ok_or(Error::UnexpectedEof(self.offset_id()))
    }

    #[inline]
    fn skip(&mut self, len: usize) -> gimli::Result<()> {
        self.take(len).map(|_| ())
    }

    #[inline]
    fn split(&mut self, len: usize) -> gimli::Result<Self> {
        Ok(Self { slice: self.take(len)?, budget: self.budget })
    }

    fn to_slice(&self) -> gimli::Result<Cow<'_, [u8]>> {
        Ok(self.slice.into())
    }

    fn to_string(&self) -> gimli::Result<Cow<'_, str>> {
        std::str::from_utf8(self.slice).map(Cow::from).map_err(|_| Error::BadUtf8)
    }

    fn to_string_lossy(&self) -> gimli::Result<Cow<'_, str>> {
        self.budget.spend(self.slice.len())?;
        Ok(String::from_utf8_lossy(self.slice))
    }

    #[inline]
    fn read_slice(&mut self, buf: &mut [u8]) -> gimli::Result<()> {
        buf.copy_from_slice(self.take(buf.len())?);
        Ok(())
    }
}
