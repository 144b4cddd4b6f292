//! What a sample costs, everything included, and what is spent without one.

use super::cost::Cost;
use super::own_cost::Own;
use super::prices::Prices;

/// Least CPUs that the target is assumed to use when the profiler's own cost is compared with its CPU time; see
/// [`Account`](super::Account).
pub(crate) const OWN_COST_FLOOR_CPUS: f64 = 0.1;

/// What happens with each sample of the target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PerSample {
    /// Frames walked.
    pub(super) frames: f64,
    /// Bytes of stack copied.
    pub(super) bytes: f64,
    /// Samples of non-target processes.
    pub(super) foreign: f64,
}

impl PerSample {
    /// Charged to the target.
    pub(super) fn cost(&self, prices: &Prices) -> Cost {
        prices.sample(self.frames, self.bytes)
    }

    /// Charged to others.
    pub(super) fn non_target_cost(&self, prices: &Prices) -> Cost {
        Cost::default().plus(self.foreign, prices.sample(0.0, self.bytes))
    }

    /// Bytes that come to the ring: the record, its frames, its stack.
    pub(super) fn record_bytes(&self) -> f64 {
        const RECORD_BYTES: f64 = 64.0;
        RECORD_BYTES + 8.0 * self.frames + self.bytes
    }
}

/// What a sample costs at present.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleCost {
    /// o: charged to the target per sample of it (ns).
    pub target: Cost,
    /// The part of `target` for frames that were walked (ns).
    pub frames_ns: f64,
    /// The part of `target` for stack that was copied (ns).
    pub stack_ns: f64,
    /// Own CPU time per sample of the target, without what is spent per second (ns).
    pub self_ns: f64,
    /// Charged to others per sample of the target (ns).
    pub foreign_ns: f64,
    /// The cost that the budget is kept with: everything per sample, the model's part at its upper end (ns). What
    /// non-target processes cost counts less the less of a tenth of a CPU the target uses; see [`Account`](super::Account).
    pub total_hi_ns: f64,
    /// What is spent whatever the rate, as a ratio of the target's CPU time: own CPU time per second, switches,
    /// records that are no samples, also of non-target processes.
    pub fixed_ratio: f64,
}

impl SampleCost {
    /// The cost where a sample is `sample`, the profiler and records of non-target processes need `own`, the target keeps `utilisation_cpus` busy, and
    /// switches and records that are no samples take `events_ratio` of its CPU time.
    pub(super) fn new(
        prices: &Prices,
        sample: &PerSample,
        own: Own,
        utilisation_cpus: f64,
        events_ratio: f64,
    ) -> Self {
        let (target, foreign) = (sample.cost(prices), sample.non_target_cost(prices));
        let [_, frame_ns, byte_ns] = prices.parts_ns(sample.frames, sample.bytes);
        let non_target_own_ns = sample.foreign * own.per_sample_ns;
        let counted = (utilisation_cpus / OWN_COST_FLOOR_CPUS).min(1.0);
        SampleCost {
            target,
            frames_ns: sample.frames * frame_ns,
            stack_ns: sample.bytes * byte_ns,
            self_ns: own.per_sample_ns + non_target_own_ns,
            foreign_ns: foreign.mean_ns,
            total_hi_ns: target.upper_ns()
                + own.per_sample_ns
                + counted * (foreign.upper_ns() + non_target_own_ns),
            fixed_ratio: own_ratio(own.per_second_ns, utilisation_cpus) + events_ratio,
        }
    }
}

/// Own CPU time that passes with time, against the target's.
pub(super) fn own_ratio(per_second_ns: f64, utilisation_cpus: f64) -> f64 {
    per_second_ns / utilisation_cpus.max(OWN_COST_FLOOR_CPUS) * 1e-9
}
