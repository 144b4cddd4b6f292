//! The present cost of sampling, at the load of the last step. The meter uses the memory of several seconds instead: a
//! rate based on it is stable, but too high for a target that has just fallen idle.

use super::Reading;
use super::account::TARGET_FLOOR_CPUS;
use super::budget_division::AGES;
use super::load::{Expected, RecentLoad};
use super::meter::{OverheadMeter, Spend};
use super::non_target::NonTargetLoad;
use super::sample_cost::OWN_COST_FLOOR_CPUS;

/// Samples that a mean cost needs.
const COST_SAMPLES: u64 = 5;

/// The highest load is remembered for this long, at most for twice as long (ns): a burst counts as a steady load until
/// it is known how often bursts come.
const PEAK_NS: u64 = 10_000_000_000;

/// The load of the last step.
#[derive(Clone, Debug, Default)]
pub(super) struct CurrentLoad {
    busy_cpus: f64,
    load: RecentLoad,
    /// The highest load of the span that lasts, and of the one before it.
    peaks_cpus: [f64; 2],
    /// How long the span has lasted (ns).
    span_ns: u64,
    non_targets: NonTargetLoad,
    /// Mean charge to the target per sample in the last steps that had enough samples together (ns).
    recent_ns: f64,
    /// Samples since then, and what they were charged at (ns).
    since: (u64, f64),
}

impl CurrentLoad {
    /// Takes in a step of `wall_ns` at `rate_hz`, and what it cost.
    pub(super) fn observe(&mut self, reading: &Reading, wall_ns: u64, rate_hz: f64, spend: &Spend) {
        if wall_ns > 0 {
            self.busy_cpus = reading.target_cpu_ns as f64 / wall_ns as f64;
            self.remember_peak(wall_ns);
            self.load.observe(wall_ns, reading.target_cpu_ns);
            self.non_targets.observe(reading.foreign_samples as f64, rate_hz, wall_ns as f64 * 1e-9);
        }
        // The clock expired for what brought no sample, too.
        let hits = reading.samples.saturating_add(reading.lost).saturating_add(reading.unseen);
        self.since.0 = self.since.0.saturating_add(hits);
        self.since.1 += spend.samples_ns() + spend.unseen_ns + 2.0 * spend.samples_se_ns;
        if self.since.0 >= COST_SAMPLES {
            self.recent_ns = self.since.1 / self.since.0 as f64;
            self.since = (0, 0.0);
        }
    }

    fn remember_peak(&mut self, wall_ns: u64) {
        self.span_ns = self.span_ns.saturating_add(wall_ns);
        if self.span_ns > PEAK_NS {
            self.span_ns = wall_ns;
            self.peaks_cpus = [0.0, self.peaks_cpus[0]];
        }
        self.peaks_cpus[0] = self.peaks_cpus[0].max(self.busy_cpus);
    }

    /// CPUs that the target kept busy.
    pub(super) fn busy_cpus(&self) -> f64 {
        self.busy_cpus
    }

    /// CPUs that the target keeps busy, or will at least if it rests and nothing else is sampled meanwhile.
    pub(super) fn cpus_when_awake(&self) -> f64 {
        let least_cpus = if self.non_targets.were_seen() { 0.0 } else { OWN_COST_FLOOR_CPUS };
        self.busy_cpus.max(least_cpus)
    }

    /// The load to expect in the next ten seconds: the usual one, or, if none is known or the target does more, its
    /// peak of the last 10 to 20 s.
    pub(super) fn expected(&self) -> Expected {
        let peak_cpus = self.peaks_cpus[0].max(self.peaks_cpus[1]);
        self.load.expected().unwrap_or(Expected { busy_cpus: peak_cpus, pace: [1.0; AGES] })
    }

    /// Mean charge to the target per sample of late (ns).
    pub(super) fn recent_charge_ns(&self) -> f64 {
        self.recent_ns
    }

    /// Cost per second for each hertz of the rate (ns): the profiler, and samples of other processes, if the target
    /// keeps `busy_cpus` busy.
    pub(super) fn own_per_hz_ns(&self, meter: &OverheadMeter, busy_cpus: f64) -> f64 {
        self.non_targets.busy_cpus() * meter.non_target_sample_ns() + busy_cpus * meter.own_per_arrival_ns()
    }

    /// What a sample of the target costs, non-target samples and own time included, as
    /// [`Account`](super::Account) counts it (ns).
    pub(super) fn sample_ns(&self, meter: &OverheadMeter) -> f64 {
        self.sample_ns_at(self.busy_cpus, meter)
    }

    /// [`Self::sample_ns`], if the target keeps `busy_cpus` busy (ns).
    pub(super) fn sample_ns_at(&self, busy_cpus: f64, meter: &OverheadMeter) -> f64 {
        self.counted_ns(busy_cpus, meter, meter.cost().target.upper_ns())
    }

    /// [`Self::sample_ns`], if all samples cost as much as those of late and that is more (ns).
    pub(super) fn recent_sample_ns(&self, meter: &OverheadMeter) -> f64 {
        self.counted_ns(self.busy_cpus, meter, meter.cost().target.upper_ns().max(self.recent_ns))
    }

    fn counted_ns(&self, busy_cpus: f64, meter: &OverheadMeter, charged_ns: f64) -> f64 {
        let non_target_ns = self.non_targets.busy_cpus() * meter.non_target_sample_ns();
        let others_ns = non_target_ns + busy_cpus * meter.own_per_arrival_ns();
        let counted_ns = charged_ns * (busy_cpus / TARGET_FLOOR_CPUS).min(1.0)
            + others_ns / busy_cpus.max(OWN_COST_FLOOR_CPUS);
        counted_ns.max(1.0)
    }

    /// What is spent whatever the rate (ratio of the target's CPU time).
    pub(super) fn fixed_ratio(&self, meter: &OverheadMeter) -> f64 {
        meter.fixed_ratio(self.busy_cpus)
    }

    /// What non-target samples cost in a second at `rate_hz` (ns).
    pub(super) fn non_target_ns_per_s(&self, meter: &OverheadMeter, rate_hz: f64) -> f64 {
        rate_hz * self.non_targets.busy_cpus() * meter.non_target_sample_ns()
    }
}
