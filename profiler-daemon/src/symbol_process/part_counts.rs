//! Counts the parts of a reply before it is decoded.

use prost::encoding::{WireType, decode_key, decode_varint};

use super::message::{FRAME, MOST_ADDRESSES, MOST_FRAMES_TOGETHER, MOST_TEXTS, MOST_WARNINGS};

/// Whether a reply has no more parts than one of ours. Decoded, an empty part takes many times its two bytes, so they are
/// counted before that.
pub(super) fn is_bounded(reply: &[u8]) -> bool {
    let mut parts = PartCounts::default();
    parts.add_reply(reply).is_some() && parts.are_bounded()
}

/// How often repeated fields come in a reply. Messages for the same field are merged, so theirs count together.
#[derive(Default)]
struct PartCounts {
    texts: usize,
    counts: usize,
    frames: usize,
    unknown: usize,
    reasons: usize,
    warnings: usize,
}

impl PartCounts {
    fn are_bounded(&self) -> bool {
        [self.counts, self.unknown, self.reasons].iter().all(|count| *count <= MOST_ADDRESSES)
            && self.texts <= MOST_TEXTS
            && self.frames <= MOST_FRAMES_TOGETHER * FRAME
            && self.warnings <= MOST_WARNINGS
    }

    /// Nothing for a field that no reply has.
    fn add_reply(&mut self, reply: &[u8]) -> Option<()> {
        each_field(reply, |tag, field| match (tag, field) {
            (1 | 2 | 3 | 5, Field::Bytes(_)) => Some(()),
            (4, Field::Bytes(facts)) => self.add_facts(facts),
            (6, Field::Bytes(names)) => self.add_names(names),
            _ => None,
        })
    }

    fn add_facts(&mut self, facts: &[u8]) -> Option<()> {
        each_field(facts, |tag, field| match (tag, field) {
            (1 | 2, Field::Bytes(_)) | (3 | 5..=8, Field::Number) => Some(()),
            (4, Field::Bytes(_)) => {
                self.warnings += 1;
                Some(())
            }
            _ => None,
        })
    }

    fn add_names(&mut self, names: &[u8]) -> Option<()> {
        each_field(names, |tag, field| {
            let (count, more) = match (tag, &field) {
                (1, Field::Bytes(_)) => (&mut self.texts, 1),
                (2, _) => (&mut self.counts, field.numbers()),
                (3, _) => (&mut self.frames, field.numbers()),
                (4, _) => (&mut self.unknown, field.numbers()),
                (5, Field::Bytes(_)) => (&mut self.reasons, 1),
                (6, Field::Bytes(facts)) => return self.add_facts(facts),
                _ => return None,
            };
            *count += more;
            Some(())
        })
    }
}

/// The content of a field.
enum Field<'a> {
    Number,
    Bytes(&'a [u8]),
}

impl Field<'_> {
    /// How many numbers it holds, if it is one, or a list of them.
    fn numbers(&self) -> usize {
        match self {
            Self::Number => 1,
            Self::Bytes(packed) => packed.iter().filter(|byte| **byte < 0x80).count(), // the last of each number
        }
    }
}

/// Calls with the number and the content of each field of a message, until that gives nothing. So does a message that is malformed,
/// or has other fields than ours.
fn each_field(mut message: &[u8], mut call: impl FnMut(u32, Field<'_>) -> Option<()>) -> Option<()> {
    while !message.is_empty() {
        let (tag, kind) = decode_key(&mut message).ok()?;
        let number = decode_varint(&mut message).ok()?;
        match kind {
            WireType::Varint => call(tag, Field::Number)?,
            WireType::LengthDelimited => {
                let (content, rest) = message.split_at_checked(usize::try_from(number).ok()?)?;
                message = rest;
                call(tag, Field::Bytes(content))?;
            }
            _ => return None,
        }
    }
    Some(())
}
