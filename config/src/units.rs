//! Quantities with units: parsed from what a person writes, printed so that they parse again.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Why a quantity could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnitError {
    /// The text is not a number with a known unit.
    #[error("expected {expected}, not `{found}`")]
    Malformed {
        /// What would have been understood.
        expected: &'static str,
        /// What was written.
        found: String,
    },
    /// A number without its unit, where the unit makes a difference.
    #[error("`{found}` has no unit: expected {expected}")]
    NoUnit {
        /// What would have been understood.
        expected: &'static str,
        /// What was written.
        found: String,
    },
    /// The number is understood and cannot be meant.
    #[error("`{found}` is out of range: expected {expected}")]
    OutOfRange {
        /// What would have been accepted.
        expected: &'static str,
        /// What was written.
        found: String,
    },
}

/// A share of something, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Ratio(f64);

/// A length of time, to the nanosecond and at most [`Span::MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Span(Duration);

/// A rate (events per second), positive.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Hertz(f64);

/// A size in memory or on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Bytes(u64);

const RATIO: &str = "a share such as 1% or 0.01, from 0 to 100%";
const SPAN: &str = "a time with its unit such as 250us, 60s, 5m or 1h, at most 1000h";
const HERTZ: &str = "a rate such as 99, 99Hz or 1.5kHz, more than 0";
const BYTES: &str = "a size such as 4096, 64KiB or 1MiB";

impl Ratio {
    /// A share from 0 to 1.
    ///
    /// # Errors
    ///
    /// If it lies outside 0 to 1 or is not a number.
    pub fn new(share: f64) -> Result<Self, UnitError> {
        if (0.0..=1.0).contains(&share) {
            return Ok(Self(share));
        }
        Err(UnitError::OutOfRange { expected: RATIO, found: share.to_string() })
    }

    /// A constant share, for defaults: checked when it is compiled.
    pub(crate) const fn constant(share: f64) -> Self {
        assert!(share >= 0.0 && share <= 1.0);
        Self(share)
    }

    /// The share, 0 to 1.
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl Span {
    /// The longest time that is accepted: 1000 hours. Its nanoseconds are exact in a double.
    pub const MAX: Duration = Duration::from_secs(3_600_000);

    /// Whole seconds, for defaults.
    pub(crate) const fn from_secs(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

    /// As the standard library's type.
    pub const fn duration(self) -> Duration {
        self.0
    }

    /// In seconds.
    pub const fn seconds(self) -> f64 {
        self.0.as_secs_f64()
    }
}

impl TryFrom<Duration> for Span {
    type Error = UnitError;

    fn try_from(duration: Duration) -> Result<Self, UnitError> {
        if duration <= Self::MAX {
            return Ok(Self(duration));
        }
        Err(UnitError::OutOfRange { expected: SPAN, found: format!("{}s", duration.as_secs()) })
    }
}

impl Hertz {
    /// A rate in events per second.
    ///
    /// # Errors
    ///
    /// If it is not a finite number above 0.
    pub fn new(hertz: f64) -> Result<Self, UnitError> {
        if hertz.is_finite() && hertz > 0.0 {
            return Ok(Self(hertz));
        }
        Err(UnitError::OutOfRange { expected: HERTZ, found: hertz.to_string() })
    }

    /// Events per second.
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl Bytes {
    /// A number of bytes.
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// The number of bytes.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl FromStr for Ratio {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let (number, unit) = split(text, RATIO)?;
        let share = match unit {
            "%" => number / 100.0,
            "" => number,
            _ => return Err(malformed(RATIO, text)),
        };
        Self::new(share).map_err(|_| out_of_range(RATIO, text))
    }
}

impl FromStr for Span {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let (number, unit) = split(text, SPAN)?;
        let ns_per_unit = match unit {
            "ns" => 1.0,
            "us" | "µs" | "μs" => 1e3, // the micro sign and the Greek letter look alike
            "ms" => 1e6,
            "s" => 1e9,
            "m" | "min" => 60e9,
            "h" => 3600e9,
            "" if number == 0.0 => 1.0,
            "" => return Err(UnitError::NoUnit { expected: SPAN, found: text.to_owned() }),
            _ => return Err(malformed(SPAN, text)),
        };
        let ns = (number * ns_per_unit).round();
        if ns > Self::MAX.as_nanos() as f64 {
            return Err(out_of_range(SPAN, text));
        }
        Ok(Self(Duration::from_nanos(ns as u64)))
    }
}

impl FromStr for Hertz {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let (number, unit) = split(text, HERTZ)?;
        let factor = match unit.to_ascii_lowercase().as_str() {
            "" | "hz" => 1.0,
            "k" | "khz" => 1e3,
            _ => return Err(malformed(HERTZ, text)),
        };
        Self::new(number * factor).map_err(|_| out_of_range(HERTZ, text))
    }
}

impl FromStr for Bytes {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let (number, unit) = split(text, BYTES)?;
        let factor: u64 = match unit.to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "kb" => 1000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "k" | "kib" => 1 << 10,
            "m" | "mib" => 1 << 20,
            "g" | "gib" => 1 << 30,
            _ => return Err(malformed(BYTES, text)),
        };
        let digits = text.trim().trim_end_matches(|c: char| !c.is_ascii_digit());
        // Whole numbers are read as such: a double would round those above 2^53.
        let bytes = match digits.parse::<u64>() {
            Ok(whole) => whole.checked_mul(factor),
            Err(_) => Some((number * factor as f64).round()).filter(|b| *b < 1e15).map(|b| b as u64),
        };
        bytes.map(Self).ok_or_else(|| out_of_range(BYTES, text))
    }
}

/// The number at the start of `text` and the unit after it. Signs and exponents are not understood: nobody
/// means them here, and `1e3` would read as a unit.
fn split<'a>(text: &'a str, expected: &'static str) -> Result<(f64, &'a str), UnitError> {
    let trimmed = text.trim();
    let end = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (digits, unit) = trimmed.split_at(end);
    let number = digits.parse::<f64>().map_err(|_| malformed(expected, text))?;
    if !number.is_finite() {
        return Err(out_of_range(expected, text));
    }
    Ok((number, unit.trim_start()))
}

fn malformed(expected: &'static str, found: &str) -> UnitError {
    UnitError::Malformed { expected, found: found.to_owned() }
}

fn out_of_range(expected: &'static str, found: &str) -> UnitError {
    UnitError::OutOfRange { expected, found: found.to_owned() }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Nine decimals hide that 0.07 * 100 is 7.000000000000001 and keep what anyone writes.
        let percent = format!("{:.9}", self.0 * 100.0);
        write!(f, "{}%", percent.trim_end_matches('0').trim_end_matches('.'))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A minute or an hour reads better in the smaller unit (`60s`), two of them in their own (`2m`).
        const UNITS: [(u128, u128, &str); 5] = [
            (2, 3_600_000_000_000, "h"),
            (2, 60_000_000_000, "m"),
            (1, 1_000_000_000, "s"),
            (1, 1_000_000, "ms"),
            (1, 1_000, "us"),
        ];
        let ns = self.0.as_nanos();
        if ns == 0 {
            return f.write_str("0s");
        }
        let fits = |&&(at_least, unit, _): &&(u128, u128, &str)| ns >= at_least * unit && ns % unit == 0;
        match UNITS.iter().find(fits) {
            Some((_, unit, name)) => write!(f, "{}{name}", ns / unit),
            None => write!(f, "{ns}ns"),
        }
    }
}

impl fmt::Display for Hertz {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}Hz", self.0)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        match UNITS.iter().find(|(unit, _)| self.0 >= *unit && self.0 % unit == 0) {
            Some((unit, name)) => write!(f, "{}{name}", self.0 / unit),
            None => write!(f, "{}", self.0),
        }
    }
}

/// Settings files hold quantities as text, with their units.
macro_rules! as_text {
    ($($unit:ty),*) => {$(
        impl From<$unit> for String {
            fn from(value: $unit) -> Self {
                value.to_string()
            }
        }

        impl TryFrom<String> for $unit {
            type Error = UnitError;

            fn try_from(text: String) -> Result<Self, UnitError> {
                text.parse()
            }
        }
    )*};
}

as_text!(Ratio, Span, Hertz, Bytes);
