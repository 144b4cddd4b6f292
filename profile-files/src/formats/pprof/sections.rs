//! The fields of a pprof file, sorted by what they are and bounded in number.

use std::str;

use super::WINDOWS_FIELD;
use super::read::ReadError;
use super::wire::{FieldValue, Fields, varint};

/// Most messages, and most texts, in one file. A day of a large fleet has fewer.
pub(super) const MAX_ENTRIES: usize = 4_000_000;
/// Most bytes of one message; texts and the windows of a long run are not bounded by it.
const MAX_MESSAGE: usize = 1 << 20;

/// The file's messages, not yet decoded.
#[derive(Default)]
pub(super) struct RawMessages<'a> {
    pub(super) sample_types: Vec<&'a [u8]>,
    pub(super) samples: Vec<&'a [u8]>,
    pub(super) mappings: Vec<&'a [u8]>,
    pub(super) locations: Vec<&'a [u8]>,
    pub(super) functions: Vec<&'a [u8]>,
    pub(super) strings: Vec<&'a [u8]>,
    pub(super) period_type: Option<&'a [u8]>,
    pub(super) windows: Option<&'a [u8]>,
    pub(super) comments: Vec<u64>,
    pub(super) time_nanos: i64,
    pub(super) duration_nanos: i64,
    pub(super) period: i64,
    pub(super) default_sample_type: u64,
    entries: usize,
}

impl<'a> RawMessages<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Result<Self, ReadError> {
        let mut sections = Self::default();
        for field in Fields::new(bytes) {
            let (number, value) = field?;
            sections.count(1)?;
            match value {
                FieldValue::Bytes(bytes) => sections.bytes(number, bytes)?,
                FieldValue::Number(value) => sections.number(number, value),
            }
        }
        Ok(sections)
    }

    /// The text at `index` of the string table.
    pub(super) fn text(&self, index: i64) -> Result<&'a str, ReadError> {
        let bytes = usize::try_from(index).ok().and_then(|index| self.strings.get(index));
        match bytes {
            Some(bytes) => str::from_utf8(bytes).map_err(|_| ReadError::Malformed("a text is not UTF-8")),
            None if index == 0 => Ok(""), // a file without names may leave out the table
            None => Err(ReadError::Malformed("a text is missing")),
        }
    }

    fn count(&mut self, more: usize) -> Result<(), ReadError> {
        self.entries += more;
        if self.entries > MAX_ENTRIES { Err(ReadError::TooMany(MAX_ENTRIES)) } else { Ok(()) }
    }

    fn bytes(&mut self, number: u64, bytes: &'a [u8]) -> Result<(), ReadError> {
        if bytes.len() > MAX_MESSAGE && !matches!(number, 6 | 13 | WINDOWS_FIELD) {
            return Err(ReadError::Malformed("a message of more than 1 MiB"));
        }
        match number {
            1 => self.sample_types.push(bytes),
            2 => self.samples.push(bytes),
            3 => self.mappings.push(bytes),
            4 => self.locations.push(bytes),
            5 => self.functions.push(bytes),
            6 => self.strings.push(bytes),
            11 => self.period_type = Some(bytes),
            13 => self.packed_comments(bytes)?,
            WINDOWS_FIELD => self.windows = Some(bytes),
            _ => {} // a field of a later version
        }
        Ok(())
    }

    fn number(&mut self, number: u64, value: u64) {
        match number {
            9 => self.time_nanos = value as i64,
            10 => self.duration_nanos = value as i64,
            12 => self.period = value as i64,
            13 => self.comments.push(value),
            14 => self.default_sample_type = value,
            _ => {}
        }
    }

    fn packed_comments(&mut self, mut bytes: &'a [u8]) -> Result<(), ReadError> {
        while !bytes.is_empty() {
            self.count(1)?;
            self.comments.push(varint(&mut bytes)?);
        }
        Ok(())
    }
}
