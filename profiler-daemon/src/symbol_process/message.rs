//! Messages between the profiler and its symbolizer process, as protocol buffers. Everything that comes from
//! the process is checked here.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use symbolizer::{NamedFrame, Reason, Symbolized};

use super::ObjectFacts;

/// The longest request (bytes): the hashes of a file, or addresses.
pub(super) const LONGEST_REQUEST: usize = 4 << 20;
/// The longest reply (bytes). Texts that come often are in it once.
pub(super) const LONGEST_REPLY: usize = 64 << 20;
/// The longest of any other kind than names (bytes).
pub(super) const LONGEST_SHORT_REPLY: usize = 1 << 20;
/// Addresses in one request: enough for all threads that read.
pub(super) const MOST_ADDRESSES: usize = 8_192;
/// Functions at one address, those that were inlined there included; of more, the innermost are left out.
const MOST_FRAMES: usize = 512;
/// Functions at all addresses of a reply: the profiler takes some 30 MiB to hold them.
pub(super) const MOST_FRAMES_TOGETHER: usize = 1 << 19;
/// Texts in a reply: a name, a linkage name and a file for each function.
pub(super) const MOST_TEXTS: usize = 3 * MOST_FRAMES_TOGETHER;
/// Reasons why some names of an object may be missing; there are a few.
pub(super) const MOST_WARNINGS: usize = 1_024;
/// The longest name or path (bytes).
const LONGEST_TEXT: usize = 1 << 20;
/// Numbers of a frame: name, linkage name, and file and line, which are 0 where they are not known and else one more.
pub(super) const FRAME: usize = 4;

/// To the process.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct WireRequest {
    #[prost(oneof = "SymbolRequest", tags = "1, 2, 3, 4, 5")]
    pub(super) request: Option<SymbolRequest>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum SymbolRequest {
    /// Shut yourself in. Comes first, and once.
    #[prost(message, tag = "1")]
    Confine(Confine),
    /// Read the object that comes with this.
    #[prost(message, tag = "2")]
    Load(LoadObject),
    /// Name addresses of one that was read.
    #[prost(message, tag = "3")]
    LookUp(LookUp),
    /// Drop objects; there is no reply.
    #[prost(message, tag = "4")]
    Forget(Forget),
    /// The answer to [`SymbolResponse::Open`] and [`SymbolResponse::Fetch`]: the file comes with this, if there is one.
    #[prost(message, tag = "5")]
    File(Nothing),
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Confine {
    #[prost(uint64, tag = "1")]
    pub(super) address_bytes: u64,
    #[prost(uint64, tag = "2")]
    pub(super) cpu_s: u64,
    #[prost(uint64, tag = "3")]
    pub(super) files: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct LoadObject {
    #[prost(uint64, tag = "1")]
    pub(super) number: u64,
    #[prost(string, tag = "2")]
    pub(super) path: String,
    /// Its limits: see [`symbolizer::Limits`].
    #[prost(uint64, tag = "3")]
    pub(super) bytes: u64,
    #[prost(uint64, tag = "4")]
    pub(super) all_bytes: u64,
    /// What it has to hold, where its names are for others too.
    #[prost(message, optional, tag = "5")]
    pub(super) print: Option<WirePrint>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct WirePrint {
    #[prost(uint64, tag = "1")]
    pub(super) len: u64,
    /// The hashes of its parts, one after another.
    #[prost(bytes = "vec", tag = "2")]
    pub(super) parts: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct LookUp {
    #[prost(uint64, tag = "1")]
    pub(super) number: u64,
    #[prost(uint64, repeated, tag = "2")]
    pub(super) addresses: Vec<u64>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Forget {
    #[prost(uint64, repeated, tag = "1")]
    pub(super) numbers: Vec<u64>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Nothing {}

/// From the process.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct WireReply {
    #[prost(oneof = "SymbolResponse", tags = "1, 2, 3, 4, 5, 6")]
    pub(super) response: Option<SymbolResponse>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum SymbolResponse {
    /// It has shut itself in, or why not.
    #[prost(message, tag = "1")]
    Confined(Confined),
    /// A separate debug file is wanted, of this path.
    #[prost(bytes = "vec", tag = "2")]
    Open(Vec<u8>),
    /// The same, of this build id.
    #[prost(string, tag = "3")]
    Fetch(String),
    /// The object was read.
    #[prost(message, tag = "4")]
    Loaded(WireFacts),
    /// It could not be.
    #[prost(message, tag = "5")]
    Refused(WireReason),
    /// The names.
    #[prost(message, tag = "6")]
    Found(WireNames),
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Confined {
    /// What could not be done; empty if all was.
    #[prost(string, tag = "1")]
    pub(super) problem: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct WireFacts {
    #[prost(string, optional, tag = "1")]
    build_id: Option<String>,
    #[prost(string, optional, tag = "2")]
    debug_link: Option<String>,
    #[prost(bool, tag = "3")]
    has_debug_info: bool,
    #[prost(message, repeated, tag = "4")]
    warnings: Vec<WireReason>,
    #[prost(uint64, tag = "5")]
    held_bytes: u64,
    #[prost(uint64, tag = "6")]
    memory_bytes: u64,
    #[prost(uint64, tag = "7")]
    unit_bytes: u64,
    /// Whether something was read that was not what it had to be.
    #[prost(bool, tag = "8")]
    pub(super) is_another: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct WireReason {
    #[prost(uint32, tag = "1")]
    kind: u32,
    #[prost(string, tag = "2")]
    text: String,
    #[prost(uint64, tag = "3")]
    bytes: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct WireNames {
    /// Names and paths, each once.
    #[prost(string, repeated, tag = "1")]
    texts: Vec<String>,
    /// How many functions there are at each address; 0 where the next of `unknown` says why.
    #[prost(uint32, repeated, tag = "2")]
    counts: Vec<u32>,
    /// All functions, [`FRAME`] numbers each.
    #[prost(uint32, repeated, tag = "3")]
    frames: Vec<u32>,
    /// Places in `reasons`.
    #[prost(uint32, repeated, tag = "4")]
    unknown: Vec<u32>,
    #[prost(message, repeated, tag = "5")]
    reasons: Vec<WireReason>,
    #[prost(message, optional, tag = "6")]
    pub(super) facts: Option<WireFacts>,
}

/// A reply that contradicts itself or the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InvalidReply;

impl WireFacts {
    pub(super) fn of(facts: &ObjectFacts, is_another: bool) -> Self {
        Self {
            build_id: facts.build_id.clone(),
            debug_link: facts.debug_link.clone(),
            has_debug_info: facts.has_debug_info,
            warnings: facts.warnings.iter().take(MOST_WARNINGS).map(WireReason::of).collect(),
            held_bytes: facts.held_bytes,
            memory_bytes: facts.memory_bytes,
            unit_bytes: facts.unit_bytes,
            is_another,
        }
    }

    /// The same; nothing takes more than `most_bytes`, which the process cannot have.
    pub(super) fn checked(self, most_bytes: u64) -> Result<ObjectFacts, InvalidReply> {
        let texts = [&self.build_id, &self.debug_link];
        if texts.iter().any(|text| text.as_ref().is_some_and(|text| text.len() > LONGEST_TEXT)) {
            return Err(InvalidReply);
        }
        Ok(ObjectFacts {
            build_id: self.build_id,
            debug_link: self.debug_link,
            has_debug_info: self.has_debug_info,
            warnings: self.warnings.into_iter().map(WireReason::checked).collect::<Result<_, _>>()?,
            held_bytes: self.held_bytes.min(most_bytes),
            memory_bytes: self.memory_bytes.min(most_bytes),
            unit_bytes: self.unit_bytes.min(most_bytes),
        })
    }
}

impl WireReason {
    pub(super) fn of(reason: &Reason) -> Self {
        let (kind, text, bytes) = match reason {
            Reason::Stripped => (1, "", 0),
            Reason::NoSymbol => (2, "", 0),
            Reason::NotElf => (3, "", 0),
            Reason::OtherElf => (4, "", 0),
            Reason::Unreadable(why) => (5, why.as_str(), 0),
            Reason::CorruptElf(what) => (6, &**what, 0),
            Reason::CorruptDebugInfo => (7, "", 0),
            Reason::TooLarge { what, bytes } => (9, what.as_str(), *bytes),
            Reason::OtherBuild(path) => (10, path.as_str(), 0),
            Reason::NoSplitFile(path) => (11, path.as_str(), 0),
            // Of no object.
            other => return Self { kind: 5, text: other.to_string(), bytes: 0 },
        };
        Self { kind, text: text.to_owned(), bytes }
    }

    pub(super) fn checked(self) -> Result<Reason, InvalidReply> {
        let Self { kind, text, bytes } = self;
        if text.len() > LONGEST_TEXT {
            return Err(InvalidReply);
        }
        Ok(match kind {
            1 => Reason::Stripped,
            2 => Reason::NoSymbol,
            3 => Reason::NotElf,
            4 => Reason::OtherElf,
            5 => Reason::Unreadable(text),
            6 => Reason::CorruptElf(text.into()),
            7 => Reason::CorruptDebugInfo,
            9 => Reason::TooLarge { what: text, bytes },
            10 => Reason::OtherBuild(text),
            11 => Reason::NoSplitFile(text),
            _ => return Err(InvalidReply),
        })
    }
}

/// Texts, each once.
#[derive(Default)]
struct Texts<'a> {
    known: FxHashMap<&'a str, u32>,
    list: Vec<String>,
}

impl<'a> Texts<'a> {
    /// The place of one.
    fn of(&mut self, text: &'a str) -> u32 {
        *self.known.entry(text).or_insert_with(|| {
            self.list.push(text.to_owned());
            self.list.len() as u32 - 1
        })
    }
}

impl WireNames {
    pub(super) fn of(symbolized_all: &[Symbolized], facts: WireFacts) -> Self {
        let mut texts = Texts::default();
        let mut found = Self { facts: Some(facts), ..Self::default() };
        for symbolized in symbolized_all {
            match symbolized {
                Symbolized::Known(frames) => {
                    let room = MOST_FRAMES_TOGETHER - found.frames.len() / FRAME;
                    // One is kept for each address that follows.
                    let most =
                        MOST_FRAMES.min(room.saturating_sub(symbolized_all.len() - found.counts.len()) + 1);
                    let frames = &frames[frames.len().saturating_sub(most)..];
                    found.counts.push(frames.len() as u32);
                    for frame in frames {
                        let file = frame.file.as_ref().map_or(0, |file| texts.of(file) + 1);
                        let line = frame.line.map_or(0, |line| line.saturating_add(1));
                        found.frames.extend([
                            texts.of(&frame.name),
                            texts.of(&frame.linkage_name),
                            file,
                            line,
                        ]);
                    }
                }
                Symbolized::Unknown(reason) => {
                    found.counts.push(0);
                    let reason = WireReason::of(reason);
                    let known = found.reasons.iter().rposition(|known| *known == reason);
                    found.unknown.push(known.unwrap_or(found.reasons.len()) as u32);
                    found.reasons.extend(known.is_none().then_some(reason));
                }
            }
        }
        found.texts = texts.list;
        found
    }

    /// The same for so many addresses.
    pub(super) fn checked(self, addresses: usize) -> Result<Vec<Symbolized>, InvalidReply> {
        if self.frames.len() > MOST_FRAMES_TOGETHER * FRAME {
            return Err(InvalidReply);
        }
        if self.counts.len() != addresses || self.texts.iter().any(|text| text.len() > LONGEST_TEXT) {
            return Err(InvalidReply);
        }
        let texts: Vec<Arc<str>> = self.texts.into_iter().map(Arc::from).collect();
        let reasons = self.reasons.into_iter().map(WireReason::checked).collect::<Result<Vec<_>, _>>()?;
        let text = |at: u32| texts.get(at as usize).map(Arc::clone).ok_or(InvalidReply);
        let frame = |numbers: &[u32]| -> Result<NamedFrame, InvalidReply> {
            let &[name, linkage_name, file, line] = numbers else { return Err(InvalidReply) };
            let file = file.checked_sub(1).map(text).transpose()?;
            Ok(NamedFrame {
                name: text(name)?,
                linkage_name: text(linkage_name)?,
                file,
                line: line.checked_sub(1),
            })
        };
        let (mut rest, mut unknown) = (&*self.frames, self.unknown.iter());
        let mut all = Vec::with_capacity(addresses);
        for count in self.counts {
            let count = count as usize;
            if count == 0 {
                let &reason = unknown.next().ok_or(InvalidReply)?;
                let reason = reasons.get(reason as usize).cloned().ok_or(InvalidReply)?;
                all.push(Symbolized::Unknown(reason));
                continue;
            }
            let numbers = count.checked_mul(FRAME).filter(|_| count <= MOST_FRAMES).ok_or(InvalidReply)?;
            let (these, others) = rest.split_at_checked(numbers).ok_or(InvalidReply)?;
            rest = others;
            all.push(Symbolized::Known(these.chunks(FRAME).map(frame).collect::<Result<_, _>>()?));
        }
        let is_whole = rest.is_empty() && unknown.next().is_none();
        if is_whole { Ok(all) } else { Err(InvalidReply) }
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::super::part_counts::is_bounded;
    use super::*;

    fn frame(name: &str, line: Option<u32>) -> NamedFrame {
        let file = line.map(|_| Arc::from("a.c"));
        NamedFrame { name: Arc::from(name), linkage_name: Arc::from("_Z"), file, line }
    }

    fn symbolized() -> Vec<Symbolized> {
        let corrupt = Reason::CorruptElf("no section header".into());
        vec![
            Symbolized::Known(vec![frame("inlined", Some(0)), frame("outer", Some(u32::MAX - 1))]),
            Symbolized::Unknown(Reason::NoSymbol),
            Symbolized::Known(vec![frame("outer", None)]),
            Symbolized::Unknown(Reason::TooLarge { what: ".debug_str".into(), bytes: 1 << 40 }),
            Symbolized::Unknown(corrupt),
            Symbolized::Unknown(Reason::NoSymbol),
        ]
    }

    /// Of functions inlined into each other the outer ones stay, and each address has one.
    #[test]
    fn more_functions_than_there_is_room_for_are_left_out() {
        let deep: Vec<NamedFrame> =
            (0..2 * MOST_FRAMES as u32).map(|line| frame("inlined", Some(line))).collect();
        let all = vec![Symbolized::Known(deep.clone()); 3 * MOST_FRAMES_TOGETHER / MOST_FRAMES];
        let found = WireNames::of(&all, WireFacts::default());
        assert!(found.frames.len() <= MOST_FRAMES_TOGETHER * FRAME);
        for named in found.clone().checked(all.len()).unwrap() {
            let Symbolized::Known(frames) = named else { panic!("{named:?}") };
            assert!((1..=MOST_FRAMES).contains(&frames.len()) && frames.last() == deep.last());
        }
        let mut hostile = found;
        hostile.frames.resize((MOST_FRAMES_TOGETHER + 1) * FRAME, 0);
        assert!(hostile.checked(all.len()).is_err());
    }

    fn found() -> WireNames {
        WireNames::of(&symbolized(), WireFacts::default())
    }

    #[test]
    fn names_come_out_as_they_went_in_and_equal_texts_are_one() {
        let found = WireNames::decode(found().encode_to_vec().as_slice()).unwrap();
        assert_eq!((found.texts.len(), found.reasons.len()), (4, 3));
        let came = found.checked(6).unwrap();
        assert_eq!(came, symbolized());
        let (Symbolized::Known(one), Symbolized::Known(other)) = (&came[0], &came[2]) else {
            panic!("{came:?}")
        };
        assert!(Arc::ptr_eq(&one[1].name, &other[0].name));
    }

    #[test]
    fn a_reply_that_contradicts_itself_is_refused() {
        assert_eq!(found().checked(5), Err(InvalidReply));
        let changed = |change: &dyn Fn(&mut WireNames)| {
            let mut found = found();
            change(&mut found);
            found.checked(6)
        };
        let changes: [&dyn Fn(&mut WireNames); 9] = [
            &|found| found.counts[0] = 3,
            &|found| found.counts[0] = u32::MAX,
            &|found| found.counts[0] = 1,
            &|found| found.counts[0] = 0,
            &|found| found.frames[1] = 99,
            &|found| found.frames[2] = 99,
            &|found| found.unknown[0] = 99,
            &|found| found.unknown.push(0),
            &|found| found.reasons[0].kind = 99,
        ];
        for (at, change) in changes.iter().enumerate() {
            assert_eq!(changed(*change), Err(InvalidReply), "{at}");
        }
        assert_eq!(changed(&|found| found.texts[0] = "x".repeat(LONGEST_TEXT + 1)), Err(InvalidReply));
        assert!(changed(&|_| ()).is_ok());
    }

    /// A reply with names, of these fields.
    fn reply(names: &[u8]) -> Vec<u8> {
        let mut reply = vec![6 << 3 | 2];
        prost::encoding::encode_varint(names.len() as u64, &mut reply);
        [&reply, names].concat()
    }

    #[test]
    fn a_reply_of_more_parts_than_one_of_ours_has_is_refused_before_it_is_decoded() {
        const EMPTY_TEXT: [u8; 2] = [1 << 3 | 2, 0];
        const EMPTY_REASON: [u8; 2] = [5 << 3 | 2, 0];
        for (part, most) in [(EMPTY_TEXT, MOST_TEXTS), (EMPTY_REASON, MOST_ADDRESSES)] {
            assert!(is_bounded(&reply(&part.repeat(most))));
            assert!(!is_bounded(&reply(&part.repeat(most + 1))));
            let many_messages = reply(&part).repeat(most);
            assert!(is_bounded(&many_messages));
            assert!(!is_bounded(&[many_messages, reply(&part)].concat()), "messages are merged");
        }
        let warning: &[u8] = &[6 << 3 | 2, 2, 4 << 3 | 2, 0];
        assert!(is_bounded(&reply(&warning.repeat(MOST_WARNINGS))));
        assert!(!is_bounded(&reply(&warning.repeat(MOST_WARNINGS + 1))));
        let number: &[u8] = &[2 << 3, 7];
        assert!(is_bounded(&reply(&number.repeat(MOST_ADDRESSES))));
        assert!(!is_bounded(&reply(&number.repeat(MOST_ADDRESSES + 1))));
        let is_packed_bounded = |count: usize| {
            let packed = WireNames { counts: vec![300; count], ..WireNames::default() };
            is_bounded(&reply(&packed.encode_to_vec()))
        };
        assert!(is_packed_bounded(MOST_ADDRESSES) && !is_packed_bounded(MOST_ADDRESSES + 1));
        for strange in [&[7 << 3, 0][..], &[6 << 3 | 2, 9], &[6 << 3 | 2], &[6 << 3 | 5, 0, 0, 0, 0], &[0x80]]
        {
            assert!(!is_bounded(strange), "{strange:?}");
        }
    }

    #[test]
    fn the_largest_reply_of_ours_is_bounded() {
        let frames = |at: usize| -> Vec<NamedFrame> {
            let text = |kind: &str, depth: usize| Arc::from(format!("{kind}{at}.{depth}"));
            let frame = |depth| NamedFrame {
                name: text("n", depth),
                linkage_name: text("l", depth),
                file: Some(text("f", depth)),
                line: Some(u32::MAX - 1),
            };
            (0..MOST_FRAMES).map(frame).collect()
        };
        let mut all: Vec<Symbolized> =
            (0..2 * MOST_FRAMES_TOGETHER / MOST_FRAMES).map(|at| Symbolized::Known(frames(at))).collect();
        let unknown = |at: usize| Symbolized::Unknown(Reason::Unreadable(at.to_string()));
        all.extend((all.len()..MOST_ADDRESSES).map(unknown));
        let facts = ObjectFacts {
            build_id: Some("ab".to_owned()),
            debug_link: Some("a.debug".to_owned()),
            has_debug_info: true,
            warnings: vec![Reason::NotElf; 2 * MOST_WARNINGS],
            held_bytes: 1,
            memory_bytes: 1,
            unit_bytes: 1,
        };
        let facts = WireFacts::of(&facts, true);
        let is_bounded = |response| is_bounded(&WireReply { response: Some(response) }.encode_to_vec());
        assert!(is_bounded(SymbolResponse::Found(WireNames::of(&all, facts.clone()))));
        assert!(is_bounded(SymbolResponse::Loaded(facts)));
        assert!(is_bounded(SymbolResponse::Refused(WireReason::of(&Reason::NotElf))));
        assert!(is_bounded(SymbolResponse::Confined(Confined { problem: "to".to_owned() })));
        assert!(is_bounded(SymbolResponse::Open(b"/a".to_vec())));
        assert!(is_bounded(SymbolResponse::Fetch("ab".to_owned())));
    }

    #[test]
    fn nobody_takes_more_than_a_process_can() {
        let facts = ObjectFacts {
            held_bytes: u64::MAX,
            unit_bytes: 7,
            warnings: vec![Reason::NotElf],
            ..ObjectFacts::default()
        };
        let checked = WireFacts::of(&facts, false).checked(1000).unwrap();
        assert_eq!((checked.held_bytes, checked.unit_bytes), (1000, 7));
        assert_eq!(checked.warnings, [Reason::NotElf]);
    }
}
