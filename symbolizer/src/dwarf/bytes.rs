//! Bytes of a section as `gimli` and `addr2line` read them: from memory, or piece by piece from the object's file.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use gimli::{Error, LittleEndian, Reader, ReaderOffsetId};

use crate::source::ByteSource;

/// A section.
pub(super) struct DwarfSection<'s> {
    contents: Contents<'s>,
    len: usize,
    /// Whether an address of zero is that of code which the linker has dropped, as in lines.
    pub(super) is_zero_dropped: bool,
}

enum Contents<'s> {
    Held(Arc<[u8]>),
    /// In a file, from this offset on, read in pieces of this length.
    Stored {
        source: ByteSource<'s>,
        start: u64,
        piece: usize,
    },
    /// What lies at these offsets, in ascending order, and `filler` everywhere else.
    Parts {
        parts: Vec<(usize, Arc<[u8]>)>,
        filler: Arc<[u8]>,
    },
}

/// Bytes of a section that are in memory, from some offset on.
struct Piece<'s> {
    section: Arc<DwarfSection<'s>>,
    bytes: Arc<[u8]>,
}

impl<'s> DwarfSection<'s> {
    pub(super) fn held(bytes: Vec<u8>) -> Self {
        Self { len: bytes.len(), contents: Contents::Held(bytes.into()), is_zero_dropped: false }
    }

    pub(super) fn stored(source: ByteSource<'s>, start: u64, len: usize, piece: usize) -> Self {
        Self { contents: Contents::Stored { source, start, piece }, len, is_zero_dropped: false }
    }

    pub(super) fn of_parts(parts: Vec<(usize, Arc<[u8]>)>, filler: Arc<[u8]>, len: usize) -> Self {
        Self { contents: Contents::Parts { parts, filler }, len, is_zero_dropped: false }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Adds bytes to those that are held; where they are.
    pub(super) fn append(&mut self, more: &[u8]) -> usize {
        let at = self.len;
        if let Contents::Held(bytes) = &mut self.contents {
            *bytes = [&**bytes, more].concat().into();
            self.len += more.len();
        }
        at
    }

    /// What it takes of memory.
    pub(super) fn held_bytes(&self) -> usize {
        if let Contents::Held(bytes) = &self.contents { bytes.len() } else { 0 }
    }

    /// All bytes of a part of it.
    pub(super) fn read(&self, at: usize, len: usize) -> gimli::Result<Arc<[u8]>> {
        let end = at.checked_add(len).filter(|&end| end <= self.len).ok_or(eof(at))?;
        match &self.contents {
            Contents::Held(bytes) => Ok(Arc::from(&bytes[at..end])),
            Contents::Stored { source, start, .. } => {
                let read = source.get().read_at(start + at as u64, len);
                read.map(Arc::from).map_err(|_| Error::Io)
            }
            Contents::Parts { .. } => Err(Error::Io),
        }
    }

    /// Some bytes that include those at `at`, and where in them these are.
    fn piece(&self, at: usize) -> gimli::Result<(Arc<[u8]>, usize)> {
        match &self.contents {
            Contents::Held(bytes) => Ok((Arc::clone(bytes), at)),
            Contents::Stored { piece, .. } => Ok((self.read(at, (*piece).min(self.len - at))?, 0)),
            Contents::Parts { parts, filler } => {
                let before = parts.partition_point(|(start, _)| *start <= at).checked_sub(1);
                let part = before.map(|index| &parts[index]);
                let part = part.filter(|(start, bytes)| at - start < bytes.len());
                Ok(part.map_or((Arc::clone(filler), 0), |(start, bytes)| (Arc::clone(bytes), at - start)))
            }
        }
    }
}

/// Bytes of a section that are yet to be read.
#[derive(Clone)]
pub(super) struct SectionReader<'s> {
    piece: Arc<Piece<'s>>,
    /// Of the piece, the bytes that come next.
    from: usize,
    to: usize,
    /// Of the section, all bytes that are to be read.
    at: usize,
    end: usize,
}

fn eof(at: usize) -> Error {
    Error::UnexpectedEof(ReaderOffsetId(at as u64))
}

impl<'s> SectionReader<'s> {
    /// All bytes of a section.
    pub(super) fn new(section: &Arc<DwarfSection<'s>>) -> Self {
        let bytes =
            if let Contents::Held(bytes) = &section.contents { Arc::clone(bytes) } else { Arc::new([]) };
        let (to, end) = (bytes.len(), section.len);
        Self { piece: Arc::new(Piece { section: Arc::clone(section), bytes }), from: 0, to, at: 0, end }
    }

    /// Bytes `at..at + len` of what is left to be read; none if they are outside.
    pub(super) fn part(&self, at: usize, len: usize) -> Option<Self> {
        let mut part = self.clone();
        part.skip(at).ok()?;
        part.split(len).ok()
    }

    fn next(&self) -> &[u8] {
        &self.piece.bytes[self.from..self.to]
    }

    /// Goes on to the next piece, where all of this one has been read.
    #[cold]
    fn refill(&mut self) -> gimli::Result<()> {
        let (bytes, from) = self.piece.section.piece(self.at)?;
        self.from = from;
        self.to = bytes.len().min(from.saturating_add(self.end - self.at));
        self.piece = Arc::new(Piece { section: Arc::clone(&self.piece.section), bytes });
        if self.from < self.to { Ok(()) } else { Err(eof(self.at)) }
    }

    #[cold]
    fn read_over_pieces(&mut self, mut into: &mut [u8]) -> gimli::Result<()> {
        if into.len() > self.end - self.at {
            return Err(eof(self.at));
        }
        while !into.is_empty() {
            if self.from == self.to {
                self.refill()?;
            }
            let some = into.len().min(self.to - self.from);
            let (now, later) = into.split_at_mut(some);
            now.copy_from_slice(&self.next()[..some]);
            self.advance(some);
            into = later;
        }
        Ok(())
    }

    #[inline]
    fn advance(&mut self, len: usize) {
        self.from = self.to.min(self.from + len);
        self.at += len;
    }
}

impl fmt::Debug for SectionReader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.at, self.end)
    }
}

impl Reader for SectionReader<'_> {
    type Endian = LittleEndian;
    type Offset = usize;

    #[inline]
    fn endian(&self) -> LittleEndian {
        LittleEndian
    }

    #[inline]
    fn len(&self) -> usize {
        self.end - self.at
    }

    #[inline]
    fn empty(&mut self) {
        (self.to, self.end) = (self.from, self.at);
    }

    #[inline]
    fn truncate(&mut self, len: usize) -> gimli::Result<()> {
        if len > self.len() {
            return Err(eof(self.at));
        }
        self.end = self.at + len;
        self.to = self.to.min(self.from + len);
        Ok(())
    }

    #[inline]
    fn offset_from(&self, base: &Self) -> usize {
        self.at.wrapping_sub(base.at)
    }

    #[inline]
    fn offset_id(&self) -> ReaderOffsetId {
        ReaderOffsetId(self.at as u64)
    }

    #[inline]
    fn lookup_offset_id(&self, _: ReaderOffsetId) -> Option<usize> {
        None
    }

    fn find(&self, byte: u8) -> gimli::Result<usize> {
        let mut rest = self.clone();
        loop {
            if let Some(found) = rest.next().iter().position(|&each| each == byte) {
                return Ok(rest.at + found - self.at);
            }
            rest.advance(rest.to - rest.from);
            if rest.at == rest.end {
                return Err(eof(self.at));
            }
            rest.refill()?;
        }
    }

    #[inline]
    fn skip(&mut self, len: usize) -> gimli::Result<()> {
        if len > self.len() {
            return Err(eof(self.at));
        }
        self.advance(len);
        Ok(())
    }

    #[inline]
    fn split(&mut self, len: usize) -> gimli::Result<Self> {
        let mut head = self.clone();
        head.truncate(len)?;
        self.advance(len);
        Ok(head)
    }

    fn to_slice(&self) -> gimli::Result<Cow<'_, [u8]>> {
        if self.to - self.from == self.len() {
            return Ok(self.next().into());
        }
        let mut all = vec![0; self.len()];
        self.clone().read_slice(&mut all)?;
        Ok(all.into())
    }

    fn to_string(&self) -> gimli::Result<Cow<'_, str>> {
        match self.to_slice()? {
            Cow::Borrowed(bytes) => std::str::from_utf8(bytes).map(Cow::from).map_err(|_| Error::BadUtf8),
            Cow::Owned(bytes) => String::from_utf8(bytes).map(Cow::from).map_err(|_| Error::BadUtf8),
        }
    }

    fn to_string_lossy(&self) -> gimli::Result<Cow<'_, str>> {
        Ok(match self.to_slice()? {
            Cow::Borrowed(bytes) => String::from_utf8_lossy(bytes),
            Cow::Owned(bytes) => String::from_utf8_lossy(&bytes).into_owned().into(),
        })
    }

    #[inline]
    fn read_slice(&mut self, into: &mut [u8]) -> gimli::Result<()> {
        let Some(next) = self.piece.bytes[self.from..self.to].get(..into.len()) else {
            return self.read_over_pieces(into);
        };
        into.copy_from_slice(next);
        self.advance(into.len());
        Ok(())
    }

    fn read_address(&mut self, address_size: u8) -> gimli::Result<u64> {
        let address = match address_size {
            4 => self.read_u32().map(u64::from),
            8 => self.read_u64(),
            other => Err(Error::UnsupportedAddressSize(other)),
        }?;
        // Newer linkers say so themselves.
        Ok(if address == 0 && self.piece.section.is_zero_dropped {
            u64::MAX >> (64 - 8 * address_size)
        } else {
            address
        })
    }
}

#[cfg(test)]
mod tests {
    use gimli::EndianSlice;
    use proptest::prelude::*;

    use super::*;

    /// Everything that two readers say of their next bytes.
    fn said(reader: &impl Reader<Offset = usize>, len: usize) -> Vec<Option<Vec<u8>>> {
        let mut rest = reader.clone();
        let zero = reader.find(0).ok().map(|at| vec![at as u8]);
        let word = rest.read_u32().ok().map(|word| word.to_le_bytes().to_vec());
        let part = rest.split(len).ok().map(|part| part.to_slice().unwrap().into_owned());
        let number = rest.read_uleb128().ok().map(|number| number.to_le_bytes().to_vec());
        let skipped = rest.skip(len / 2).ok().map(|()| vec![rest.len() as u8]);
        let text = rest.to_string_lossy().ok().map(|text| text.as_bytes().to_vec());
        vec![zero, word, part, number, skipped, text, Some(vec![rest.offset_from(reader) as u8])]
    }

    proptest! {
        #[test]
        fn pieces_of_any_length_read_as_the_whole(bytes in prop::collection::vec(0_u8..8, 0..60), piece in 1_usize..9, len in 0_usize..20) {
            let source: ByteSource<'_> = ByteSource::Borrowed(&bytes);
            let stored = SectionReader::new(&Arc::new(DwarfSection::stored(source, 0, bytes.len(), piece)));
            let held = SectionReader::new(&Arc::new(DwarfSection::held(bytes.clone())));
            let slice = EndianSlice::new(&bytes, LittleEndian);
            prop_assert_eq!(said(&stored, len), said(&slice, len));
            prop_assert_eq!(said(&held, len), said(&slice, len));
        }
    }

    #[test]
    fn between_parts_there_is_filler() {
        let parts = vec![(2, Arc::from([7, 8])), (6, Arc::from([9]))];
        let section = DwarfSection::of_parts(parts, Arc::from([1]), 8);
        let all = SectionReader::new(&Arc::new(section));
        assert_eq!(&*all.part(2, 2).unwrap().to_slice().unwrap(), [7, 8]);
        assert_eq!(&*all.part(4, 4).unwrap().to_slice().unwrap(), [1, 1, 9, 1]);
    }

    #[test]
    fn lines_at_zero_are_of_dropped_code() {
        let mut section = DwarfSection::held(vec![0; 16]);
        section.is_zero_dropped = true;
        assert_eq!(SectionReader::new(&Arc::new(section)).read_address(8), Ok(u64::MAX));
        assert_eq!(SectionReader::new(&Arc::new(DwarfSection::held(vec![0; 16]))).read_address(8), Ok(0));
    }
}
