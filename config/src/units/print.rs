//! Quantities so that they parse again.

use std::fmt;

use super::{Bytes, Hertz, Ratio, Span};

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
        const UNITS: [(u128, u128, &str); 6] = [
            (2, 86_400_000_000_000, "d"),
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
        let fits =
            |&&(at_least, unit, _): &&(u128, u128, &str)| ns >= at_least * unit && ns.is_multiple_of(unit);
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
        match UNITS.iter().find(|(unit, _)| self.0 >= *unit && self.0.is_multiple_of(*unit)) {
            Some((unit, name)) => write!(f, "{}{name}", self.0 / unit),
            None => write!(f, "{}", self.0),
        }
    }
}
