//! Ticks against CPU time.

use super::detector::Detector;
use super::{AuditSettings, DAY_NS};

/// Ticks per CPU time of a locked program, over those of an unlocked one: from hardly any to every tick for a quarter of the
/// time.
const ALTERNATIVES: [f64; 10] = [0.02, 0.2, 0.4, 0.6, 0.8, 1.25, 1.5, 2.0, 3.0, 4.0];

/// One test of it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CountTest {
    ticks: u64,
    cpu_ns: u64,
    detector: Detector<{ ALTERNATIVES.len() }>,
}

impl CountTest {
    pub(super) fn hit(&mut self) {
        self.ticks = self.ticks.saturating_add(1);
    }

    pub(super) fn charge(&mut self, cpu_ns: u64) {
        self.cpu_ns = self.cpu_ns.saturating_add(cpu_ns);
    }

    /// Ends a block that has `least_ns` of CPU time, where `hz` hits are to be expected in a second of it. Returns the logarithm of
    /// the evidence (days), or nothing of it where the block goes on.
    ///
    /// With k hits and an expectation of μ, L = θᵏ·exp(−(θ − 1)·μ): 1 on average for any expectation, and less where
    /// that is above μ for θ < 1, or below it for θ > 1. So the tolerance moves μ outwards.
    pub(super) fn close(&mut self, settings: &AuditSettings, least_ns: u64, hz: f64) -> f64 {
        if self.cpu_ns == 0 || self.cpu_ns < least_ns {
            return f64::NEG_INFINITY;
        }
        let (ticks, cpu_ns) = (self.ticks as f64, self.cpu_ns as f64);
        let expected = hz * cpu_ns * 1e-9;
        let log_l = ALTERNATIVES.map(|theta| {
            let outwards = settings.count_tolerance_ratio.copysign(theta - 1.0);
            ticks * theta.ln() - (theta - 1.0) * expected * (1.0 + outwards)
        });
        (self.ticks, self.cpu_ns) = (0, 0);
        self.detector.observe(cpu_ns / DAY_NS, log_l)
    }
}
