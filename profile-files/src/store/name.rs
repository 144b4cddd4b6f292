//! The names of the store's files: when, what and whose, and a checksum over everything.
//!
//! `2026-11-22/10-31-00_window_60.000s_web_5f1d2c3b-86400123_1a2b3c4d.pb.gz`: begin (UTC), level, length, target, the
//! boot with its monotonic time (ms) at the begin, checksum. The checksum is over the rest of the name and every byte of
//! the file: it finds a changed name, a changed header and padding too, which gzip's own does not cover. Two windows never
//! share a name, since no boot has a moment twice.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use jiff::civil::{Date, Time};
use jiff::tz::TimeZone;

use super::stamp::Stamp;

/// The ending of every profile.
pub(crate) const ENDING: &str = ".pb.gz";
/// Most characters of a target's name in a file's.
const MAX_SLUG: usize = 64;
const SECOND_NS: u64 = 1_000_000_000;

/// How much time a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Level {
    /// One window.
    Window,
    /// The windows that began in one hour.
    Hour,
    /// The hours of one day (UTC).
    Day,
}

impl Level {
    fn as_str(self) -> &'static str {
        match self {
            Self::Window => "window",
            Self::Hour => "hour",
            Self::Day => "day",
        }
    }

    fn from_str(word: &str) -> Option<Self> {
        [Self::Window, Self::Hour, Self::Day].into_iter().find(|level| level.as_str() == word)
    }
}

/// What the name of a file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    /// Begin, to the second below (s since the Unix epoch).
    pub(crate) begin_unix_s: u64,
    /// From there to the end, to the millisecond above.
    pub(crate) length_ms: u64,
    /// How much time it holds.
    pub(crate) level: Level,
    /// The target's name, as far as a file's can hold it.
    pub(crate) slug: String,
    /// Boot and its time at the begin.
    id: String,
    /// Checksum over the rest of the name and the file.
    pub(crate) crc: u32,
}

/// A target's name as a part of a file's: other characters than these are written as `-`.
pub(crate) fn slug(target: &str) -> String {
    let part = |c: char| if c.is_ascii_alphanumeric() || "-.@:".contains(c) { c } else { '-' };
    target.chars().take(MAX_SLUG).map(part).collect()
}

/// The folder of the day (UTC) of this second.
pub(crate) fn day_of(unix_s: u64) -> String {
    date_of(unix_s).to_string()
}

/// The day (UTC) of this second; the last one there is, for seconds beyond.
pub(crate) fn date_of(unix_s: u64) -> Date {
    let second = i64::try_from(unix_s).ok().and_then(|second| Timestamp::from_second(second).ok());
    second.unwrap_or(Timestamp::MAX).to_zoned(TimeZone::UTC).date()
}

impl Name {
    /// The name of a file with this stamp, but for the checksum.
    pub(crate) fn of(stamp: &Stamp) -> Self {
        let span = stamp.span();
        let begin_unix_s = span.from_unix_ns / SECOND_NS;
        let length_ns = span.to_unix_ns - begin_unix_s * SECOND_NS;
        let first = stamp.time_ranges.iter().min_by_key(|time_range| time_range.begin_unix_ns);
        let id = first.map_or_else(String::new, |first| {
            let boot: String = first.boot.chars().filter(char::is_ascii_alphanumeric).take(8).collect();
            format!("{boot}-{}", first.from_ns / 1_000_000)
        });
        let length_ms = length_ns.div_ceil(1_000_000);
        Self { begin_unix_s, length_ms, level: stamp.level, slug: slug(&stamp.target), id, crc: 0 }
    }

    /// Its folder and name, as far as the checksum covers them.
    fn unsigned(&self) -> String {
        let second =
            i64::try_from(self.begin_unix_s).ok().and_then(|second| Timestamp::from_second(second).ok());
        let time = second
            .unwrap_or(Timestamp::MAX)
            .to_zoned(TimeZone::UTC)
            .strftime("%Y-%m-%d/%H-%M-%S")
            .to_string();
        let (s, ms) = (self.length_ms / 1000, self.length_ms % 1000);
        format!("{time}_{}_{s}.{ms:03}s_{}_{}", self.level.as_str(), self.slug, self.id)
    }

    /// Its path in the store.
    pub(crate) fn path(&self) -> PathBuf {
        PathBuf::from(format!("{}_{:08x}{ENDING}", self.unsigned(), self.crc))
    }

    /// The checksum that a file of this name with these bytes has.
    pub(crate) fn checksum(&self, bytes: &[u8]) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(self.unsigned().as_bytes());
        hasher.update(bytes);
        hasher.finalize()
    }

    /// Reads the name of a file in the folder of a day. Nothing, unless it is just as we write it.
    pub(crate) fn parse(path: &Path) -> Option<Self> {
        let (day, file) = path.to_str()?.split_once('/')?;
        let parts: Vec<&str> = file.strip_suffix(ENDING)?.split('_').collect();
        let [time, level, length, slug, id, crc] = parts.as_slice() else { return None };
        let time = Time::strptime("%H-%M-%S", time).ok()?;
        let begin = day.parse::<Date>().ok()?.to_datetime(time).to_zoned(TimeZone::UTC).ok()?;
        let (s, ms) = length.strip_suffix('s')?.split_once('.')?;
        let name = Self {
            begin_unix_s: u64::try_from(begin.timestamp().as_second()).ok()?,
            length_ms: s
                .parse::<u64>()
                .ok()?
                .checked_mul(1000)?
                .checked_add(ms.parse::<u16>().ok()?.into())?,
            level: Level::from_str(level)?,
            slug: (*slug).to_owned(),
            id: (*id).to_owned(),
            crc: u32::from_str_radix(crc, 16).ok()?,
        };
        (name.path() == path).then_some(name)
    }

    /// Whether a file of this name can have this stamp.
    pub(crate) fn fits(&self, stamp: &Stamp) -> bool {
        Self { crc: self.crc, ..Self::of(stamp) } == *self
    }

    /// Its wall-clock time, no narrower than the stamp's (ns since the Unix epoch).
    pub(crate) fn span(&self) -> profiler_core::merge::Range {
        let from_unix_ns = self.begin_unix_s.saturating_mul(SECOND_NS);
        let length_ns = self.length_ms.saturating_mul(1_000_000);
        profiler_core::merge::Range { from_unix_ns, to_unix_ns: from_unix_ns.saturating_add(length_ns) }
    }
}
