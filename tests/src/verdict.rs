//! A figure, how sure it is, and the bound it is held against.

use anyhow::{Result, ensure};
use serde::Serialize;

/// What came of holding a figure against its bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Held {
    /// All of the interval is within the bound.
    Holds,
    /// The bound lies inside the interval.
    Undecided,
    /// All of the interval is beyond the bound.
    Fails,
}

/// A figure beside the most that it may be.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    what: String,
    value: f64,
    low: f64,
    high: f64,
    bound: f64,
    held: Held,
    #[serde(skip)]
    line: String,
}

impl Verdict {
    /// Holds a figure with its interval against a bound; `show` prints a figure with its unit.
    ///
    /// A figure that is no number fails.
    pub fn new(what: &str, value: f64, interval: (f64, f64), bound: f64, show: fn(f64) -> String) -> Verdict {
        let (low, high) = interval;
        let held = match (high <= bound, low <= bound) {
            (true, _) => Held::Holds,
            (false, true) => Held::Undecided,
            (false, false) => Held::Fails,
        };
        let word = match held {
            Held::Holds => "holds",
            Held::Undecided => "undecided, too noisy",
            Held::Fails => "FAILS",
        };
        let sure = if low == high { String::new() } else { format!(" ({} … {})", show(low), show(high)) };
        let line = format!("{what}: {}{sure}, at most {}: {word}", show(value), show(bound));
        Verdict { what: what.to_string(), value, low, high, bound, held, line }
    }

    /// The same for a figure without noise.
    pub fn exact(what: &str, value: f64, bound: f64, show: fn(f64) -> String) -> Verdict {
        Verdict::new(what, value, (value, value), bound, show)
    }

    /// What came of it.
    pub fn held(&self) -> Held {
        self.held
    }

    /// For a person, in one line.
    pub fn line(&self) -> &str {
        &self.line
    }
}

/// An error that counts the bounds that were broken, unless there are none.
pub fn ensure_none_fails<'a>(verdicts: impl IntoIterator<Item = &'a Verdict>) -> Result<()> {
    let failed = verdicts.into_iter().filter(|verdict| verdict.held == Held::Fails).count();
    ensure!(failed == 0, "bounds that do not hold: {failed}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Held, Verdict, ensure_none_fails};
    use crate::experiment::percent;

    fn held(interval: (f64, f64)) -> Held {
        Verdict::new("cost", 0.01, interval, 0.012, percent).held()
    }

    #[test]
    fn a_bound_within_the_noise_is_undecided() {
        assert_eq!(held((0.009, 0.012)), Held::Holds);
        assert_eq!(held((0.009, 0.013)), Held::Undecided);
        assert_eq!(held((0.0121, 0.013)), Held::Fails);
        assert_eq!(held((f64::NAN, f64::NAN)), Held::Fails);
    }

    #[test]
    fn only_a_broken_bound_is_an_error() {
        let undecided = Verdict::new("cost", 0.01, (0.009, 0.013), 0.012, percent);
        let broken = Verdict::exact("cost", 0.013, 0.012, percent);
        assert!(ensure_none_fails([&undecided]).is_ok());
        assert!(ensure_none_fails([&undecided, &broken]).is_err());
        assert_eq!(broken.line(), "cost: 1.30%, at most 1.20%: FAILS");
    }
}
