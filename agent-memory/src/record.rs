//! What a record holds.

/// Words of registers in a sample: sixteen general ones and the instruction pointer on x86-64, in DWARF's numbering; fewer on
/// others, and zeros behind them.
pub const REGISTERS: usize = 17;
/// Words of a sample before its copy of the stack.
pub const SAMPLE_HEAD_WORDS: usize = 5 + REGISTERS;
/// Words before the text of a record that has one.
const TEXT_AT: usize = 3;
/// Words before the name in a record of a beginning.
const NAME_AT: usize = 4;
/// Longest name of a process, as the kernel keeps it (bytes).
const NAME_BYTES: usize = 16;

/// What a record tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RecordKind {
    /// A sample of the thread.
    Sample = 1,
    /// A process begins: a copy of its parent.
    Forked = 2,
    /// A process begins: another program in place of the one before.
    Executed = 3,
    /// Lines of its list of mappings.
    Mappings = 4,
}

impl RecordKind {
    /// The first word of a record of so many words.
    #[inline]
    pub fn heading(self, words: usize) -> u64 {
        (words as u64) << 8 | self as u64
    }
}

/// A sample without its stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampleHead {
    /// Monotonic clock (ns).
    pub time_ns: u64,
    /// CPU time that it stands for (ns).
    pub weight_ns: u64,
    /// What the handler took, up to its last look at the clock (ns).
    pub handler_ns: u64,
    /// Bytes of stack that were asked for.
    pub requested_bytes: u64,
    /// Registers; see [`REGISTERS`].
    pub registers: [u64; REGISTERS],
}

impl SampleHead {
    /// The words before the stack, for a record of `words` in all; that of `handler_ns` is the fourth.
    #[inline]
    pub fn words(&self, words: usize) -> [u64; SAMPLE_HEAD_WORDS] {
        let mut out = [0; SAMPLE_HEAD_WORDS];
        out[0] = RecordKind::Sample.heading(words);
        (out[1], out[2], out[3], out[4]) =
            (self.time_ns, self.weight_ns, self.handler_ns, self.requested_bytes);
        out[5..].copy_from_slice(&self.registers);
        out
    }
}

/// A process that begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begun {
    /// When (ns of the monotonic clock).
    pub time_ns: u64,
    /// Who created it, or adopted it since.
    pub parent: u32,
    /// Its name, perhaps cut short.
    pub name: String,
}

impl Begun {
    /// Words of its record.
    pub const WORDS: usize = NAME_AT - 1 + NAME_BYTES / 8;

    /// The words of its record.
    pub fn words(kind: RecordKind, time_ns: u64, parent: u32, name: [u8; NAME_BYTES]) -> [u64; Self::WORDS] {
        let word = |from: usize| u64::from_ne_bytes(std::array::from_fn(|i| name[from + i]));
        [kind.heading(Self::WORDS), time_ns, u64::from(parent), word(0), word(8)]
    }
}

/// A record as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FoundRecord<'a> {
    /// A sample, and the copy of the stack in words.
    Sample(SampleHead, &'a [u64]),
    /// A process that is a copy of its parent.
    Forked(Begun),
    /// Another program in a process.
    Executed(Begun),
    /// Lines of a list of mappings: when, and the words that hold so many bytes of text.
    Mappings(u64, &'a [u64], usize),
}

/// What is no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damaged;

/// Length in words of the record that begins with this word; `None` if it is none, or longer than what waits.
pub fn length(heading: u64, waiting: usize) -> Option<usize> {
    let words = usize::try_from(heading >> 8).ok()?;
    (2..=waiting).contains(&words).then_some(words)
}

/// Makes sense of the words of a record.
///
/// # Errors
///
/// If there is none.
pub fn decode(words: &[u64]) -> Result<FoundRecord<'_>, Damaged> {
    let kind = words.first().ok_or(Damaged)? & 0xff;
    let found = match kind {
        kind if kind == RecordKind::Sample as u64 => sample(words),
        kind if kind == RecordKind::Forked as u64 => begun(words).map(FoundRecord::Forked),
        kind if kind == RecordKind::Executed as u64 => begun(words).map(FoundRecord::Executed),
        kind if kind == RecordKind::Mappings as u64 => mappings(words),
        _ => None,
    };
    found.ok_or(Damaged)
}

fn sample(words: &[u64]) -> Option<FoundRecord<'_>> {
    let (head, stack) = words.split_at_checked(SAMPLE_HEAD_WORDS)?;
    let head = SampleHead {
        time_ns: head[1],
        weight_ns: head[2],
        handler_ns: head[3],
        requested_bytes: head[4],
        registers: head[5..].try_into().ok()?,
    };
    Some(FoundRecord::Sample(head, stack))
}

fn begun(words: &[u64]) -> Option<Begun> {
    let &[_, time_ns, parent, first, second] = words else { return None };
    let bytes = [first.to_ne_bytes(), second.to_ne_bytes()].concat();
    let name = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    Some(Begun {
        time_ns,
        parent: u32::try_from(parent).ok()?,
        name: String::from_utf8_lossy(name).into_owned(),
    })
}

fn mappings(words: &[u64]) -> Option<FoundRecord<'_>> {
    let (head, text) = words.split_at_checked(TEXT_AT)?;
    let bytes = usize::try_from(head[2]).ok().filter(|&bytes| bytes <= text.len() * 8)?;
    Some(FoundRecord::Mappings(head[1], text, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_written_is_read() {
        let head = SampleHead {
            time_ns: 1,
            weight_ns: 2,
            handler_ns: 3,
            requested_bytes: 4,
            registers: [9; REGISTERS],
        };
        let mut words = head.words(SAMPLE_HEAD_WORDS + 1).to_vec();
        words.push(77);
        assert_eq!(length(words[0], words.len()), Some(words.len()));
        assert_eq!(decode(&words), Ok(FoundRecord::Sample(head, &[77])));
        let words = Begun::words(RecordKind::Executed, 5, 6, *b"sixteen letters!");
        let begun = Begun { time_ns: 5, parent: 6, name: "sixteen letters!".to_owned() };
        assert_eq!(decode(&words), Ok(FoundRecord::Executed(begun)));
        let words = [RecordKind::Mappings.heading(4), 5, 7, 0];
        assert_eq!(decode(&words), Ok(FoundRecord::Mappings(5, &[0], 7)));
        assert_eq!(decode(&[words[0], 5, 9, 0]), Err(Damaged), "more text than there is");
    }

    proptest! {
        #[test]
        fn no_words_panic(kind in 0_u64..8, words in prop::collection::vec(any::<u64>(), 0..40), waiting in 0_usize..50) {
            let mut words = words;
            if let Some(first) = words.first_mut() {
                prop_assert!(length(*first, waiting).is_none_or(|len| len <= waiting));
                *first = *first & !0xff | kind;
            }
            let _ = decode(&words);
        }
    }
}
