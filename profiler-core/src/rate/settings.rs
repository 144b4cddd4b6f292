//! Settings of the controller.

use super::model::Criterion;

/// Settings of the [`RateController`](super::RateController). Values that make no sense are brought into
/// range by it.
#[derive(Clone, Debug, PartialEq)]
pub struct RateSettings {
    /// Share of the target's CPU time that sampling may take from it; 0.0001 to 0.5.
    pub budget_ratio: f64,
    /// Share of one CPU that the profiler itself may use, set-up left out; 0.0001 to 64. `None`: everything that sampling costs
    /// stays within what [`RateController::grant`](super::RateController::grant) grants, and within `budget_ratio` until then.
    pub own_cpu_ratio: Option<f64>,
    /// W: CPU time of the target that goes into one profile (s). `None`: unknown, and the rate follows the anytime law.
    pub horizon_s: Option<f64>,
    /// What the profile is optimised for.
    pub criterion: Criterion,
    /// Whether all threads wait for a sampled one, as at barriers: a sample then delays all running threads.
    pub are_threads_coupled: bool,
    /// A rate that the user fixed (samples per CPU-second): costs are then only measured.
    pub fixed_rate_hz: Option<f64>,
    /// K: how many of the largest functions the profile is for.
    pub top: usize,
    /// The lowest rate: a target that is sampled at all is sampled this often (samples per CPU-second).
    pub floor_hz: f64,
    /// The shortest period that the kernel is asked for (ns of CPU time); at least 20 µs.
    pub min_period_ns: u64,
    /// The kernel's tick (ns of CPU time), if clocks only expire at ticks.
    pub clock_tick_ns: Option<u64>,
    /// What rings and unwinder can take (bytes per second of wall time).
    pub max_bytes_per_s: f64,
    /// Frames expected per stack before any was seen (0 where frame pointers are not walked).
    pub expected_frames: f64,
    /// Bytes of stack that will be copied per sample (0 with frame pointers).
    pub expected_stack_bytes: f64,
}

/// The shortest period that Linux serves well (ns).
const MIN_PERIOD_NS: u64 = 20_000;
/// The longest (ns): a sample in a CPU-minute.
const MAX_PERIOD_NS: f64 = 60e9;

impl Default for RateSettings {
    fn default() -> Self {
        RateSettings {
            budget_ratio: 0.01,
            own_cpu_ratio: None,
            horizon_s: Some(60.0),
            criterion: Criterion::default(),
            are_threads_coupled: false,
            fixed_rate_hz: None,
            top: 4,
            floor_hz: 1.0,
            min_period_ns: MIN_PERIOD_NS,
            clock_tick_ns: None,
            max_bytes_per_s: 128.0 * 1024.0 * 1024.0,
            expected_frames: 20.0,
            expected_stack_bytes: 0.0,
        }
    }
}

impl RateSettings {
    /// Clamps every value; what is not a number becomes the default.
    pub(super) fn sane(self) -> Self {
        let default = RateSettings::default();
        let clamp = |x: f64, or: f64, low: f64, high: f64| if x.is_nan() { or } else { x.clamp(low, high) };
        let clock_tick_ns = self.clock_tick_ns.map(|tick_ns| tick_ns.clamp(MIN_PERIOD_NS, 1_000_000_000));
        let min_period_ns =
            self.min_period_ns.clamp(MIN_PERIOD_NS, 1_000_000_000).max(clock_tick_ns.unwrap_or(0));
        let ceiling = 1e9 / min_period_ns as f64;
        let floor_hz = clamp(self.floor_hz, default.floor_hz, 1e9 / MAX_PERIOD_NS, ceiling);
        let fixed =
            self.fixed_rate_hz.filter(|rate| !rate.is_nan()).map(|rate| rate.clamp(floor_hz, ceiling));
        let criterion = match self.criterion {
            Criterion::UpperCurve { z } if !(z.is_finite() && z > 0.0) => default.criterion,
            other => other,
        };
        RateSettings {
            budget_ratio: clamp(self.budget_ratio, default.budget_ratio, 1e-4, 0.5),
            own_cpu_ratio: self.own_cpu_ratio.map(|ratio| clamp(ratio, default.budget_ratio, 1e-4, 64.0)),
            horizon_s: self.horizon_s.map(|horizon_s| clamp(horizon_s, 60.0, 1e-3, 1e9)),
            criterion,
            are_threads_coupled: self.are_threads_coupled,
            fixed_rate_hz: fixed,
            top: self.top.clamp(1, 64),
            floor_hz,
            min_period_ns,
            clock_tick_ns,
            max_bytes_per_s: clamp(self.max_bytes_per_s, default.max_bytes_per_s, 1e3, 1e12),
            expected_frames: clamp(self.expected_frames, default.expected_frames, 0.0, 1_024.0),
            expected_stack_bytes: clamp(self.expected_stack_bytes, 0.0, 0.0, 65_536.0),
        }
    }

    pub(super) fn within_limits(&self, rate_hz: f64) -> f64 {
        rate_hz.max(self.floor_hz).min(self.ceiling_hz())
    }

    /// The highest rate (samples per CPU-second).
    pub fn ceiling_hz(&self) -> f64 {
        1e9 / self.min_period_ns.max(1) as f64
    }
}
