//! Moments as people write them: `now`, `-1h`, `09:30`, `2026-11-22T09:30`, `2026-11-22T09:30:00Z`.

use std::str::FromStr;

use config::Span;
use jiff::civil::{DateTime, Time};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{Timestamp, Zoned};

/// A moment, as far as it is known before anyone looks at a clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// So long ago.
    Ago(Span),
    /// The last time that it was this time of day.
    Last(Time),
    /// This date and time, where we are.
    Here(DateTime),
    /// This moment.
    At(Timestamp),
}

/// Why a text is no moment.
#[derive(Debug, thiserror::Error)]
#[error("write a time such as -1h, 09:30, 2026-11-22T09:30 or 2026-11-22T09:30Z")]
pub struct NoMoment;

impl FromStr for When {
    type Err = NoMoment;

    fn from_str(text: &str) -> Result<Self, NoMoment> {
        if text == "now" {
            return "0".parse().map(Self::Ago).map_err(|_| NoMoment);
        }
        if let Some(ago) = text.strip_prefix('-') {
            return ago.parse().map(Self::Ago).map_err(|_| NoMoment);
        }
        let time = |text: &str| text.parse().map(Self::Last).ok().filter(|_| !text.contains('-'));
        let here = |text: &str| text.parse().map(Self::Here).ok();
        text.parse().map(Self::At).ok().or_else(|| time(text)).or_else(|| here(text)).ok_or(NoMoment)
    }
}

impl When {
    /// The moment (ns since the Unix epoch); nothing if it is before that, or there is no such time.
    pub fn unix_ns(self, now: &Zoned) -> Option<u64> {
        let at = match self {
            Self::Ago(ago) => now.timestamp().checked_sub(ago.duration()).ok()?,
            Self::At(at) => at,
            Self::Here(at) => at.to_zoned(now.time_zone().clone()).ok()?.timestamp(),
            Self::Last(time) => last(time, now)?,
        };
        u64::try_from(at.as_nanosecond()).ok()
    }
}

/// The last moment that it was this time of day. Where clocks are set back it may have been twice in a day, and the later one
/// counts; a time that they were set over is the moment that they would have shown it.
fn last(time: Time, now: &Zoned) -> Option<Timestamp> {
    let days = std::iter::successors(Some(now.date()), |day| day.yesterday().ok());
    let moments = days.take(3).flat_map(|day| {
        let at = now.time_zone().to_ambiguous_timestamp(day.to_datetime(time));
        let moments = match at.offset() {
            AmbiguousOffset::Fold { .. } => [at.later().ok(), at.earlier().ok()],
            _ => [at.compatible().ok(), None],
        };
        moments.into_iter().flatten()
    });
    let now = now.timestamp();
    moments.into_iter().find(|moment| *moment <= now)
}

/// A moment as a person reads it, where we are, and as it can be written again.
pub fn in_words(unix_ns: u64) -> String {
    let at = Timestamp::from_nanosecond(i128::from(unix_ns)).unwrap_or(Timestamp::MAX);
    at.to_zoned(TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S%:z").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Option<String> {
        at_of(text, "2026-11-22T08:15:00+01:00[Europe/Berlin]")
    }

    fn at_of(text: &str, now: &str) -> Option<String> {
        let now: Zoned = now.parse().ok()?;
        let ns = text.parse::<When>().ok()?.unix_ns(&now)?;
        Some(Timestamp::from_nanosecond(i128::from(ns)).ok()?.to_string())
    }

    #[test]
    fn moments_are_read_as_people_write_them() {
        for (text, expected) in [
            ("now", "2026-11-22T07:15:00Z"),
            ("-0", "2026-11-22T07:15:00Z"),
            ("-90s", "2026-11-22T07:13:30Z"),
            ("-1h", "2026-11-22T06:15:00Z"),
            ("-7d", "2026-11-15T07:15:00Z"),
            ("2026-11-22T07:00Z", "2026-11-22T07:00:00Z"),
            ("2026-11-22T07:00:00.5+02:00", "2026-11-22T05:00:00.5Z"),
        ] {
            assert_eq!(at(text).as_deref(), Some(expected), "{text}");
        }
        for text in
            ["", "-", "-1", "1h", "yesterday", "25:00", "2026-13-01", "-1000000h", "1969-01-01T00:00Z"]
        {
            assert_eq!(at(text), None, "{text}");
        }
    }

    /// Skipped where the zone is unknown.
    #[test]
    fn times_of_day_are_those_of_here_and_in_the_past() {
        if TimeZone::get("Europe/Berlin").is_err() {
            return;
        }
        for (text, expected) in [
            ("08:00", "2026-11-22T07:00:00Z"),
            ("23:30", "2026-11-21T22:30:00Z"),
            ("2026-11-22", "2026-11-21T23:00:00Z"),
            ("2026-11-22 08:00", "2026-11-22T07:00:00Z"),
            ("2026-07-01T08:00:30", "2026-07-01T06:00:30Z"),
        ] {
            assert_eq!(at(text).as_deref(), Some(expected), "{text}");
        }
    }

    /// Skipped where the zone is unknown. Clocks are set on at 02:00 on the 29th of March, and back at 03:00 on the 25th of October.
    #[test]
    fn times_of_day_are_the_last_ones_also_where_clocks_are_set() {
        if TimeZone::get("Europe/Berlin").is_err() {
            return;
        }
        for (text, now, expected) in [
            ("02:30", "2026-03-29T10:00:00+02:00", "2026-03-29T01:30:00Z"),
            ("02:30", "2026-03-29T03:10:00+02:00", "2026-03-28T01:30:00Z"),
            ("02:30", "2026-03-30T01:00:00+02:00", "2026-03-29T01:30:00Z"),
            ("02:30", "2026-03-30T02:40:00+02:00", "2026-03-30T00:30:00Z"),
            ("02:30", "2026-10-25T10:00:00+01:00", "2026-10-25T01:30:00Z"),
            ("02:30", "2026-10-25T02:40:00+01:00", "2026-10-25T01:30:00Z"),
            ("02:30", "2026-10-25T02:10:00+01:00", "2026-10-25T00:30:00Z"),
            ("02:30", "2026-10-25T02:10:00+02:00", "2026-10-24T00:30:00Z"),
            ("02:30", "2026-10-26T01:00:00+01:00", "2026-10-25T01:30:00Z"),
            ("08:15", "2026-11-22T08:15:00+01:00", "2026-11-22T07:15:00Z"),
        ] {
            let found = at_of(text, &format!("{now}[Europe/Berlin]"));
            assert_eq!(found.as_deref(), Some(expected), "{text} at {now}");
        }
    }

    #[test]
    fn a_moment_in_words_can_be_written_again() {
        let words = in_words(1_794_819_600_000_000_000);
        let again = words.parse::<When>().unwrap().unix_ns(&Zoned::now());
        assert_eq!(again, Some(1_794_819_600_000_000_000), "{words}");
    }
}
