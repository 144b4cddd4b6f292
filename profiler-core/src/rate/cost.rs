//! What the kernel's work for a sample costs, as a calibration of this machine found it.

use serde::{Deserialize, Serialize};

use super::at_tick::AtTick;
use super::cache_sensitivity::CacheSensitivity;

/// A cost and how sure it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Mean (ns).
    pub mean_ns: f64,
    /// Standard error of the mean (ns).
    pub se_ns: f64,
}

impl Cost {
    /// A cost of `mean_ns` with a standard error of `se_ns` (ns).
    pub const fn new(mean_ns: f64, se_ns: f64) -> Self {
        Cost { mean_ns, se_ns }
    }

    /// The upper end that budgets are kept with: two standard errors above the mean (ns).
    pub fn upper_ns(self) -> f64 {
        self.mean_ns + 2.0 * self.se_ns
    }

    /// Errors of one calibration go together, so they add up like the means and not like squares.
    pub(super) fn plus(self, count: f64, other: Cost) -> Cost {
        Cost::new(self.mean_ns + count * other.mean_ns, self.se_ns + count * other.se_ns)
    }

    /// The cost of both kinds of work that the two stand for: the mean of the two, and the difference is part of the
    /// doubt.
    pub fn pooled(self, other: Cost) -> Cost {
        let half_difference = 0.5 * (self.mean_ns - other.mean_ns);
        let noise = 0.5 * self.se_ns.hypot(other.se_ns);
        Cost::new(0.5 * (self.mean_ns + other.mean_ns), noise.hypot(half_difference))
    }

    /// The same cost by two independent estimates, each with the weight of its precision.
    pub fn weighed(self, other: Cost) -> Cost {
        let weight = |cost: Cost| 1.0 / cost.se_ns.max(f64::MIN_POSITIVE.sqrt()).powi(2);
        let (one, two) = (weight(self), weight(other));
        let mean_ns = (one * self.mean_ns + two * other.mean_ns) / (one + two);
        Cost::new(mean_ns, (one + two).sqrt().recip())
    }

    fn or(self, fallback: Cost) -> Cost {
        if self.is_valid() { self } else { fallback }
    }

    pub(super) fn is_valid(self) -> bool {
        let valid = |x: f64| (0.0..=1e9).contains(&x);
        valid(self.mean_ns) && valid(self.se_ns)
    }

    /// Whether this can be a part of what `whole` costs, within their errors.
    fn is_part_of(self, whole: Cost) -> bool {
        self.is_valid() && self.mean_ns > 0.0 && self.mean_ns - 2.0 * self.se_ns <= whole.upper_ns()
    }
}

/// What the kernel's work for a sample costs, from a calibration on this machine (T = Σ C·P).
///
/// `Default` is the prior for a machine that could not be calibrated: high, and unsure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CostModel {
    /// The interrupt and the record, without a stack.
    pub per_sample_ns: Cost,
    /// A frame walked by frame pointers.
    pub per_frame_ns: Cost,
    /// A byte of stack copied.
    pub per_byte_ns: Cost,
    /// A context switch of a task that has events.
    pub per_switch_ns: Cost,
    /// A record that is no sample: a mapping, a name, and for whole CPUs a fork or an exit.
    pub per_side_record_ns: Cost,
    /// A task that inherits events from its creator, until its end, records included.
    pub per_fork_ns: Cost,
    /// The part of `per_sample_ns` in the kernel's handler, as timed by tracepoints; `None` if they are not available.
    #[serde(default)]
    pub per_handler_ns: Option<Cost>,
    /// How the rest of a sample follows the handler; `None` if not measured: the rest is then constant.
    #[serde(default, rename = "coldness")]
    pub cache_sensitivity: Option<CacheSensitivity>,
    /// What samples by timer signals cost outside of their handlers, if it can be estimated for each; `None` if it
    /// cannot, and for other samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_tick: Option<AtTick>,
    /// A record of a tracepoint.
    #[serde(default = "trace_record")]
    pub per_trace_record_ns: Cost,
    /// The delay that a sample caused for a spinning thread at the calibration; the present delay is compared with it.
    /// `None` if not measured.
    #[serde(default)]
    pub per_interrupt_ns: Option<Cost>,
}

/// As measured on a virtual machine; it is charged for some dozens of records in ten seconds.
const fn trace_record() -> Cost {
    Cost::new(400.0, 200.0)
}

impl Default for CostModel {
    fn default() -> Self {
        CostModel {
            per_sample_ns: Cost::new(20_000.0, 10_000.0),
            per_frame_ns: Cost::new(50.0, 25.0),
            per_byte_ns: Cost::new(0.2, 0.1),
            per_switch_ns: Cost::new(500.0, 150.0),
            per_side_record_ns: Cost::new(1_000.0, 500.0),
            per_fork_ns: Cost::new(10_000.0, 5_000.0),
            per_handler_ns: None,
            cache_sensitivity: None,
            at_tick: None,
            per_trace_record_ns: trace_record(),
            per_interrupt_ns: None,
        }
    }
}

impl CostModel {
    /// Replaces what is no cost (NaN, negative, above a second) by the default, and a free sample by 50 ns. A handler
    /// that is no part of the sample is none.
    pub(super) fn sane(self) -> Self {
        let prior = CostModel::default();
        let mut bare = self.per_sample_ns.or(prior.per_sample_ns);
        bare.mean_ns = bare.mean_ns.max(50.0);
        CostModel {
            per_sample_ns: bare,
            per_frame_ns: self.per_frame_ns.or(prior.per_frame_ns),
            per_byte_ns: self.per_byte_ns.or(prior.per_byte_ns),
            per_switch_ns: self.per_switch_ns.or(prior.per_switch_ns),
            per_side_record_ns: self.per_side_record_ns.or(prior.per_side_record_ns),
            per_fork_ns: self.per_fork_ns.or(prior.per_fork_ns),
            per_handler_ns: self.per_handler_ns.filter(|handler| handler.is_part_of(bare)),
            cache_sensitivity: self.cache_sensitivity.filter(CacheSensitivity::is_plausible),
            at_tick: self.at_tick.filter(AtTick::is_plausible),
            per_trace_record_ns: self.per_trace_record_ns.or(prior.per_trace_record_ns),
            per_interrupt_ns: self.per_interrupt_ns.filter(|cost| cost.is_valid() && cost.mean_ns >= 1.0),
        }
    }

    /// Whether a machine can have these costs: an interrupt takes more than a tenth of a microsecond and less than a
    /// millisecond, and is known to a third; the others are costs.
    pub fn is_plausible(&self) -> bool {
        let bare = self.per_sample_ns;
        let others = [
            self.per_frame_ns,
            self.per_byte_ns,
            self.per_switch_ns,
            self.per_side_record_ns,
            self.per_fork_ns,
            self.per_trace_record_ns,
            self.per_handler_ns.unwrap_or_default(),
            self.per_interrupt_ns.unwrap_or_default(),
        ];
        (100.0..1_000_000.0).contains(&bare.mean_ns)
            && (0.0..=bare.mean_ns / 3.0).contains(&bare.se_ns)
            && others.iter().all(|cost| cost.is_valid())
            && self.cache_sensitivity.is_none_or(|cache_sensitivity| cache_sensitivity.is_plausible())
            && self.at_tick.is_none_or(|ticks| ticks.is_plausible())
    }

    /// What one sample with `frames` walked and `bytes` copied costs the task that it interrupts.
    pub fn sample(&self, frames: f64, bytes: f64) -> Cost {
        self.per_sample_ns.plus(frames, self.per_frame_ns).plus(bytes, self.per_byte_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_known_cost_is_plausible() {
        let with = |per_sample_ns| CostModel { per_sample_ns, ..CostModel::default() }.is_plausible();
        assert!(with(Cost::new(12_000.0, 500.0)));
        assert!(!with(Cost::new(12_000.0, 5_000.0)));
        assert!(!with(Cost::new(50.0, 1.0)));
        assert!(!with(Cost::new(f64::NAN, 0.0)) && !with(Cost::new(12_000.0, f64::NAN)));
        let handler = |cost| {
            CostModel {
                per_handler_ns: Some(cost),
                per_sample_ns: Cost::new(12_000.0, 500.0),
                ..CostModel::default()
            }
            .is_plausible()
        };
        assert!(handler(Cost::new(900.0, 50.0)) && !handler(Cost::new(f64::NAN, 50.0)));
        assert!(!CostModel { per_frame_ns: Cost::new(-1.0, 1.0), ..CostModel::default() }.is_plausible());
    }
}
