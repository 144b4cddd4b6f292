//! Quantities as people write them.

use std::str::FromStr;
use std::time::Duration;

use super::{BYTES, Bytes, HERTZ, Hertz, RATIO, Ratio, SPAN, Span, UnitError};

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
            "d" => 24.0 * 3600e9,
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
