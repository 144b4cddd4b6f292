//! A ring with one writer, which never waits, and one reader, which trusts nothing.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::Word;

/// A ring: two positions in words since it was made, and a power of two of words.
#[derive(Debug)]
pub struct Ring<'a, W> {
    /// Written up to here; the writer's.
    head: &'a W,
    /// Read up to here; the reader's.
    tail: &'a W,
    data: &'a [W],
}

impl<W> Clone for Ring<'_, W> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W> Copy for Ring<'_, W> {}

/// Room for a record that is being written; nobody sees it before [`Entry::publish`].
#[derive(Debug)]
pub struct Entry<'a, W> {
    ring: Ring<'a, W>,
    start: u64,
    words: usize,
}

impl<'a, W: Word> Ring<'a, W> {
    /// A ring over `data`; `None` unless its length is a power of two.
    pub fn new(head: &'a W, tail: &'a W, data: &'a [W]) -> Option<Self> {
        data.len().is_power_of_two().then_some(Self { head, tail, data })
    }

    #[inline]
    fn word(&self, position: u64) -> &'a W {
        &self.data[position as usize & (self.data.len() - 1)]
    }

    /// Words that it holds at most.
    #[inline]
    pub fn words(&self) -> usize {
        self.data.len()
    }

    /// Room for a record of so many words; `None` while the ring is too full for it. For the writer alone.
    #[inline]
    pub fn begin(&self, words: usize) -> Option<Entry<'a, W>> {
        let start = self.head.load(Relaxed); // nobody else writes it
        // ATOMICS: what the reader has read, it read before it gave the room back.
        let used = start.wrapping_sub(self.tail.load(Acquire));
        let free = (self.data.len() as u64).checked_sub(used)?;
        (words as u64 <= free).then_some(Entry { ring: *self, start, words })
    }
}

impl<W: Word> Entry<'_, W> {
    /// Writes a word of the record; one that lies outside of it is left out.
    #[inline]
    pub fn put(&self, index: usize, value: u64) {
        if index < self.words {
            self.ring.word(self.start.wrapping_add(index as u64)).store(value, Relaxed);
        }
    }

    /// Words of the record.
    #[inline]
    pub fn words(&self) -> usize {
        self.words
    }

    /// Where its words from `from` on lie, in two pieces.
    #[inline]
    pub fn room(&self, from: usize) -> [&[W]; 2] {
        let (from, data) = (from.min(self.words), self.ring.data);
        let start = self.start.wrapping_add(from as u64) as usize & (data.len() - 1);
        let (before, behind) = data.split_at(start);
        let words = self.words - from;
        let first = words.min(behind.len());
        [&behind[..first], &before[..(words - first).min(start)]]
    }

    /// Makes it a record of so many words, no more than it has.
    #[inline]
    pub fn shorten(&mut self, words: usize) {
        self.words = self.words.min(words);
    }

    /// Shows the record to the reader.
    #[inline]
    pub fn publish(self) {
        // ATOMICS: the words of the record come before the position behind it.
        self.ring.head.store(self.start.wrapping_add(self.words as u64), Release);
    }
}

/// The reader's side of a ring.
#[derive(Clone, Copy, Debug, Default)]
pub struct RingReader {
    /// Read up to here. The shared position is only told: who wrote over it has harmed nobody but its own process.
    tail: u64,
}

impl RingReader {
    /// Words that wait to be read, if the positions can be; else everything is skipped.
    pub fn waiting<W: Word>(&mut self, ring: &Ring<'_, W>) -> Option<usize> {
        // ATOMICS: pairs with the publication of a record.
        let head = ring.head.load(Acquire);
        let waiting = head.wrapping_sub(self.tail);
        if waiting > ring.data.len() as u64 {
            self.tail = head;
            ring.tail.store(head, Release);
            return None;
        }
        Some(waiting as usize)
    }

    /// Words that wait to be read, without any change; 0 where positions cannot be.
    pub fn peek<W: Word>(&self, ring: &Ring<'_, W>) -> usize {
        // ATOMICS: whoever reads on looks again.
        let waiting = ring.head.load(Relaxed).wrapping_sub(self.tail);
        if waiting > ring.data.len() as u64 { 0 } else { waiting as usize }
    }

    /// The word `index` words ahead; some value where nothing was written yet.
    #[inline]
    pub fn word<W: Word>(&self, ring: &Ring<'_, W>, index: usize) -> u64 {
        ring.word(self.tail.wrapping_add(index as u64)).load(Relaxed)
    }

    /// Gives the room of so many words back.
    pub fn advance<W: Word>(&mut self, ring: &Ring<'_, W>, words: usize) {
        self.tail = self.tail.wrapping_add(words as u64);
        // ATOMICS: what lies before was read.
        ring.tail.store(self.tail, Release);
    }

    /// Empties the ring for the next writer. There may be none at the time.
    pub fn reset<W: Word>(&mut self, ring: &Ring<'_, W>) {
        self.tail = 0;
        ring.head.store(0, Relaxed);
        ring.tail.store(0, Relaxed);
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
