//! What a file says of itself in the header of its compression, where it is read without unpacking anything.
//!
//! RFC 1952 has a field for such extras, which every reader of gzip passes over. It holds a checksum of its own: the one in
//! the file's name is known to hold only once all of the file has been read.

use std::collections::BTreeMap;
use std::io::Read;

use flate2::read::GzDecoder;
use profiler_core::merge::Range;
use serde::{Deserialize, Serialize};

use super::name::Level;
use super::time_range::TimeRanges;

/// How our part of the field is called.
const TAG: &[u8; 2] = b"Sw";
/// Most bytes of the field: its length takes 16 bits.
const MAX_EXTRA: usize = 65_535;

/// Whose profile it is and which time it counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// Version of the layout.
    version: u32,
    /// How much time it holds.
    pub(crate) level: Level,
    /// The target.
    pub target: String,
    /// Labels of the target.
    pub labels: BTreeMap<String, String>,
    /// The time it counts; never empty.
    #[serde(flatten)]
    pub(crate) time_ranges: TimeRanges,
}

impl Stamp {
    const VERSION: u32 = 1;

    /// A stamp of this version.
    pub(crate) fn new(
        level: Level,
        target: String,
        labels: BTreeMap<String, String>,
        time_ranges: TimeRanges,
    ) -> Self {
        Self { version: Self::VERSION, level, target, labels, time_ranges }
    }

    /// From its first to its last moment, by the wall clock (ns since the Unix epoch).
    pub(crate) fn span(&self) -> Range {
        let spans = || self.time_ranges.iter().map(super::time_range::TimeRange::span);
        Range {
            from_unix_ns: spans().map(|span| span.from_unix_ns).min().unwrap_or_default(),
            to_unix_ns: spans().map(|span| span.to_unix_ns).max().unwrap_or_default(),
        }
    }

    /// As the extra field of a gzip header; nothing if it is too long for one.
    pub(crate) fn to_extra(&self) -> Option<Vec<u8>> {
        let json = serde_json::to_vec(self).ok()?;
        let length = u16::try_from(json.len() + 4).ok()?;
        let mut extra = TAG.to_vec();
        extra.extend(length.to_le_bytes());
        extra.extend(crc32fast::hash(&json).to_le_bytes());
        extra.extend(json);
        (extra.len() <= MAX_EXTRA).then_some(extra)
    }

    /// Reads it from the beginning of a file; nothing if there is none that is sound.
    pub fn read(file: impl Read) -> Option<Self> {
        let decoder = GzDecoder::new(file);
        let extra = decoder.header()?.extra()?;
        let (tag, rest) = extra.split_at_checked(2)?;
        let (length, rest) = rest.split_first_chunk::<2>()?;
        let (crc, json) = rest.split_first_chunk::<4>()?;
        let is_ours = tag == TAG && usize::from(u16::from_le_bytes(*length)) == rest.len();
        if !is_ours || crc32fast::hash(json) != u32::from_le_bytes(*crc) {
            return None;
        }
        serde_json::from_slice(json).ok().filter(|stamp: &Self| stamp.version == Self::VERSION)
    }
}
