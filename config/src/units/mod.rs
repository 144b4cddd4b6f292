//! Quantities with units: parsed from what a person writes, printed so that they parse again.

mod parse;
mod print;

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
const SPAN: &str = "a time with its unit such as 250us, 60s, 5m, 1h or 7d, at most 1000h";
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
    pub const fn constant(share: f64) -> Self {
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

    /// A minute.
    pub const MINUTE: Self = Self::from_secs(60);

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
