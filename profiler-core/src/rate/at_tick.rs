//! What a signal at the kernel's tick costs besides its handler, estimated from how long after the tick the
//! handler starts.
//!
//! The tick finds cold caches and, in a virtual machine, a host that is more or less busy: on one such
//! machine the same signal cost 5 to 16 µs within minutes, in a program that computes as in one that waits
//! for memory, and handlers began 21 to 55 µs after the tick. The one was .23 to .33 of the other in 32
//! measurements, half of them within .25 to .29.

use serde::{Deserialize, Serialize};

/// Later than that, as a share of the tick's period, a handler was kept from beginning by something else than its tick.
const LATEST: f64 = 0.05;

/// A signal's way into its handler and back, as a share of the time from the tick to the handler.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AtTick {
    /// The tick's period (ns).
    pub period_ns: u64,
    /// Position of the ticks in the period (ns of the monotonic clock, modulo the period).
    pub place_ns: u64,
    /// What the signal costs outside of its handler (ns for each ns from the tick to the handler).
    pub share: f64,
    /// Its standard error.
    pub share_se: f64,
}

impl AtTick {
    /// What a signal costs outside of its handler, which began at `begun_ns` (monotonic clock); `None` where that was not soon after
    /// a tick: ticks may come at another place on another CPU, and a thread in the kernel is given its signals late.
    pub fn outside_ns(&self, begun_ns: u64) -> Option<f64> {
        let period_ns = self.period_ns.max(1);
        let place_ns = self.place_ns % period_ns;
        let late_ns = (begun_ns % period_ns + period_ns - place_ns) % period_ns;
        (late_ns as f64 <= LATEST * period_ns as f64).then_some(self.share * late_ns as f64)
    }

    /// Whether these figures are possible for a machine.
    pub(super) fn is_plausible(&self) -> bool {
        (0.0..=1.0).contains(&self.share) && (0.0..=1.0).contains(&self.share_se)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICKS: AtTick = AtTick { period_ns: 4_000_000, place_ns: 3_999_300, share: 0.25, share_se: 0.02 };

    #[test]
    fn a_handler_that_begins_later_was_dearer_to_come_by() {
        let at = |late_ns: u64| TICKS.outside_ns(7 * 4_000_000 + 3_999_300 + late_ns);
        assert_eq!((at(0), at(20_000), at(40_000)), (Some(0.0), Some(5_000.0), Some(10_000.0)));
    }

    #[test]
    fn what_does_not_follow_a_tick_tells_nothing() {
        assert_eq!(TICKS.outside_ns(7 * 4_000_000 + 3_999_200), None);
        assert_eq!(TICKS.outside_ns(9 * 4_000_000 + 2_000_000), None);
    }

    #[test]
    fn no_figures_are_too_odd() {
        let odd = AtTick { period_ns: 0, place_ns: u64::MAX, share: f64::NAN, share_se: -1.0 };
        assert!(odd.outside_ns(u64::MAX).is_none_or(f64::is_nan) && !odd.is_plausible());
    }
}
