//! The outer layer of a protocol buffer: fields one after the other, none of them copied.
//!
//! A decoder that builds the whole message at once turns a few bytes of an empty message into a hundred in
//! memory. This one hands out slices, so that the reader can count and bound what it keeps.

use super::read::ReadError;

/// A field of the outermost message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FieldValue<'a> {
    /// A number.
    Number(u64),
    /// A message, a text or a packed list.
    Bytes(&'a [u8]),
}

/// The fields of a message with their numbers. Ends after the first error.
pub(super) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    fn field(&mut self) -> Result<(u64, FieldValue<'a>), ReadError> {
        let key = varint(&mut self.rest)?;
        let value = match key & 7 {
            0 => FieldValue::Number(varint(&mut self.rest)?),
            1 => FieldValue::Bytes(self.take(8)?),
            2 => {
                let length = varint(&mut self.rest)?;
                FieldValue::Bytes(self.take(length)?)
            }
            5 => FieldValue::Bytes(self.take(4)?),
            _ => return Err(ReadError::Malformed("a field of an unknown kind")),
        };
        Ok((key >> 3, value))
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8], ReadError> {
        let length = usize::try_from(length).map_err(|_| CUT)?;
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(CUT)?;
        self.rest = rest;
        Ok(taken)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, FieldValue<'a>), ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

const CUT: ReadError = ReadError::Malformed("it ends in the middle of a field");

/// A number of 7 bits a byte, lowest first.
pub(super) fn varint(bytes: &mut &[u8]) -> Result<u64, ReadError> {
    if let Some((&byte @ ..0x80, rest)) = bytes.split_first() {
        *bytes = rest;
        return Ok(byte.into()); // most are that short
    }
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first().ok_or(CUT)?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(ReadError::Malformed("a number of more than 64 bits"))
}

/// Writes a number as [`varint`] reads it.
pub(super) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
