//! An interval.

use serde::Serialize;

/// Where a figure lies: a share, within 0 and 1, unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Interval {
    /// Nothing is known of a share.
    pub const UNKNOWN: Interval = Interval { low: 0.0, high: 1.0 };

    /// Whether `share` lies within, ends included.
    pub fn contains(&self, share: f64) -> bool {
        self.low <= share && share <= self.high
    }

    /// The same interval, widened to hold `share` where rounding put it outside.
    pub(super) fn including(self, share: f64) -> Self {
        Interval { low: self.low.min(share), high: self.high.max(share) }
    }
}
