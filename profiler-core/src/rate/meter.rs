//! What a sample costs: a calibrated model times the counts of what actually happened.
//!
//! The meter believes its calibration: it follows how deep the stacks are, how much is copied and what the
//! profiler itself uses, but not a machine that changes under it.

use super::Reading;
use super::cost::{Cost, CostModel};
use super::own_cost::OwnCost;

/// Memory of the per-sample means (s): long enough to be calm.
const MEMORY_S: f64 = 6.0;
/// Memory that notices a step (s): half a second, so that a step is followed within two.
const QUICK_MEMORY_S: f64 = 0.5;
/// A cost that moved by this factor in the quick memory is a step, and the past is forgotten.
const STEP: f64 = 1.5;
/// Samples that the quick memory must hold before it may call a step.
const STEP_SAMPLES: f64 = 5.0;
/// Memory of the utilisation and of the switches (s): the longest window that overhead is judged over.
const LOAD_MEMORY_S: f64 = 10.0;
/// Weight of the expected stack, in samples, before any arrived.
const EXPECTED_SAMPLES: f64 = 5.0;
/// Shares of one CPU below which the profiler's own cost is not set against the target's CPU time; see
/// [`Account`](super::Account).
pub(super) const OWN_COST_FLOOR_CPUS: f64 = 0.1;

/// What one reading's worth of sampling cost, by cause (ns of CPU time).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spend {
    /// Charged to the target by its samples, the lost ones too: the interrupt and the record.
    pub base_ns: f64,
    /// The same: frames walked.
    pub frames_ns: f64,
    /// The same: stack copied.
    pub stack_ns: f64,
    /// Charged to the target by its context switches.
    pub switches_ns: f64,
    /// Charged to the target by records that are no samples, and by the tasks it created.
    pub side_records_ns: f64,
    /// Charged to others: samples and records of strangers.
    pub foreign_ns: f64,
    /// The profiler's own CPU time, as measured.
    pub self_ns: f64,
    /// The part of `self_ns` that passes with time, samples or none.
    pub self_fixed_ns: f64,
    /// By how much what was charged to the target and to others may be too low (two standard errors of the model).
    pub doubt_ns: f64,
    /// Standard error of what was charged to the target.
    pub target_se_ns: f64,
    /// Standard error of [`Spend::samples_ns`].
    pub samples_se_ns: f64,
}

impl Spend {
    /// Charged to the target (ns).
    pub fn target_ns(&self) -> f64 {
        self.samples_ns() + self.switches_ns + self.side_records_ns
    }

    /// Everything, at the model's mean (ns).
    pub fn total_ns(&self) -> f64 {
        self.target_ns() + self.foreign_ns + self.self_ns
    }

    /// What no sample causes and no rate changes (ns).
    pub fn fixed_ns(&self) -> f64 {
        self.switches_ns + self.side_records_ns + self.self_fixed_ns
    }

    /// Charged to the target by its samples, the lost ones too (ns).
    pub fn samples_ns(&self) -> f64 {
        self.base_ns + self.frames_ns + self.stack_ns
    }

    /// Errors of one calibration go together: they add up like the means.
    pub(super) fn add(&mut self, other: &Spend) {
        self.base_ns += other.base_ns;
        self.frames_ns += other.frames_ns;
        self.stack_ns += other.stack_ns;
        self.switches_ns += other.switches_ns;
        self.side_records_ns += other.side_records_ns;
        self.foreign_ns += other.foreign_ns;
        self.self_ns += other.self_ns;
        self.self_fixed_ns += other.self_fixed_ns;
        self.doubt_ns += other.doubt_ns;
        self.target_se_ns += other.target_se_ns;
        self.samples_se_ns += other.samples_se_ns;
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
    /// strangers cost counts less the less of a tenth of a CPU the target uses; see [`Account`](super::Account).
    pub total_hi_ns: f64,
    /// What is spent whatever the rate, as a ratio of the target's CPU time: own CPU time per second, switches,
    /// records that are no samples.
    pub fixed_ratio: f64,
}

/// Exponentially forgetting sums over samples.
#[derive(Clone, Copy, Debug)]
struct Stacks {
    samples: f64,
    frames: f64,
    bytes: f64,
    foreign: f64,
}

impl Stacks {
    fn remember(&mut self, new: Stacks, keep: f64) {
        self.samples = self.samples * keep + new.samples;
        self.frames = self.frames * keep + new.frames;
        self.bytes = self.bytes * keep + new.bytes;
        self.foreign = self.foreign * keep + new.foreign;
    }

    fn weighing(self, samples: f64) -> Stacks {
        let scale = samples / self.samples.max(samples);
        let scaled = |sum: f64| sum * scale;
        Stacks {
            samples: scaled(self.samples),
            frames: scaled(self.frames),
            bytes: scaled(self.bytes),
            foreign: scaled(self.foreign),
        }
    }

    fn per_sample(&self, sum: f64) -> f64 {
        sum / self.samples.max(f64::MIN_POSITIVE)
    }

    fn cost(&self, model: &CostModel) -> Cost {
        model.sample(self.per_sample(self.frames), self.per_sample(self.bytes))
    }

    fn foreign_cost(&self, model: &CostModel) -> Cost {
        Cost::default().plus(self.per_sample(self.foreign), model.sample(0.0, self.per_sample(self.bytes)))
    }
}

/// Follows what sampling costs, from readings.
#[derive(Clone, Debug)]
pub struct OverheadMeter {
    model: CostModel,
    calm: Stacks,
    quick: Stacks,
    own: OwnCost,
    /// Forgetting sums of target CPU time and wall time (ns), and of what switches, records that are no samples and
    /// new tasks cost, at the model's upper end (ns).
    cpu_ns: f64,
    wall_ns: f64,
    switches_ns: f64,
    side_records_ns: f64,
}

impl OverheadMeter {
    /// A meter that charges by `model` and expects stacks of 20 frames, nothing copied.
    pub fn new(model: CostModel) -> Self {
        OverheadMeter::expecting(model, 20.0, 0.0)
    }

    /// The same, when it is known how deep stacks are or how many bytes will be copied.
    pub fn expecting(model: CostModel, frames: f64, bytes: f64) -> Self {
        let count = |x: f64| if x.is_finite() { EXPECTED_SAMPLES * x.clamp(0.0, 1e6) } else { 0.0 };
        let samples = EXPECTED_SAMPLES;
        let prior = Stacks { samples, frames: count(frames), bytes: count(bytes), foreign: 0.0 };
        OverheadMeter {
            model: model.sane(),
            calm: prior,
            quick: prior,
            own: OwnCost::default(),
            // One CPU for a second: what a target is assumed to use until it shows.
            cpu_ns: 1e9,
            wall_ns: 1e9,
            switches_ns: 0.0,
            side_records_ns: 0.0,
        }
    }

    /// Takes in a reading over `wall_ns` nanoseconds; says what it cost.
    pub fn observe(&mut self, reading: &Reading, wall_ns: u64) -> Spend {
        let wall_s = (wall_ns as f64 * 1e-9).min(60.0);
        let mut spend = self.spend(reading);
        self.remember_stacks(reading, wall_s);
        let keep = (-wall_s / LOAD_MEMORY_S).exp();
        self.cpu_ns = self.cpu_ns * keep + reading.target_cpu_ns as f64;
        self.wall_ns = self.wall_ns * keep + wall_s * 1e9;
        self.switches_ns = self.switches_ns * keep + self.switches_cost(reading).upper_ns();
        self.side_records_ns = self.side_records_ns * keep + self.side_records_cost(reading).upper_ns();
        let arrivals = reading.samples as f64 + reading.foreign_samples as f64;
        self.own.observe(arrivals, wall_s, reading.self_cpu_ns as f64);
        spend.self_fixed_ns = (self.own.per_second_ns() * wall_s).min(spend.self_ns);
        spend
    }

    /// What a reading cost, without taking it in.
    pub fn spend(&self, reading: &Reading) -> Spend {
        let seen = reading.samples as f64;
        let (frames, bytes) = if reading.samples > 0 {
            (reading.frames as f64 / seen, reading.stack_bytes as f64 / seen)
        } else {
            (self.calm.per_sample(self.calm.frames), self.calm.per_sample(self.calm.bytes))
        };
        let hits = seen + reading.lost as f64; // a lost sample interrupted the target all the same
        let (switches, side_records) = (self.switches_cost(reading), self.side_records_cost(reading));
        let foreign = Cost::default()
            .plus(reading.foreign_samples as f64, self.model.sample(0.0, bytes))
            .plus(reading.foreign_side_records as f64, self.model.per_side_record_ns);
        let samples = Cost::default().plus(hits, self.model.sample(frames, bytes));
        let target_se_ns = samples.se_ns + switches.se_ns + side_records.se_ns;
        Spend {
            base_ns: hits * self.model.per_sample_ns.mean_ns,
            frames_ns: hits * frames * self.model.per_frame_ns.mean_ns,
            stack_ns: hits * bytes * self.model.per_byte_ns.mean_ns,
            switches_ns: switches.mean_ns,
            side_records_ns: side_records.mean_ns,
            foreign_ns: foreign.mean_ns,
            self_ns: reading.self_cpu_ns as f64,
            self_fixed_ns: 0.0,
            doubt_ns: 2.0 * (target_se_ns + foreign.se_ns),
            target_se_ns,
            samples_se_ns: samples.se_ns,
        }
    }

    fn switches_cost(&self, reading: &Reading) -> Cost {
        Cost::default().plus(reading.switches as f64, self.model.per_switch_ns)
    }

    fn side_records_cost(&self, reading: &Reading) -> Cost {
        Cost::default()
            .plus(reading.side_records as f64, self.model.per_side_record_ns)
            .plus(reading.forks as f64, self.model.per_fork_ns)
    }

    /// Only readings with samples age the memory: in an idle second there is nothing to learn, and nothing to
    /// forget.
    fn remember_stacks(&mut self, reading: &Reading, wall_s: f64) {
        if reading.samples == 0 {
            return;
        }
        let new = Stacks {
            samples: reading.samples as f64,
            frames: reading.frames as f64,
            bytes: reading.stack_bytes as f64,
            foreign: reading.foreign_samples as f64,
        };
        self.calm.remember(new, (-wall_s / MEMORY_S).exp());
        self.quick.remember(new, (-wall_s / QUICK_MEMORY_S).exp());
        let now = self.quick.cost(&self.model).mean_ns + self.quick.foreign_cost(&self.model).mean_ns;
        let before = self.calm.cost(&self.model).mean_ns + self.calm.foreign_cost(&self.model).mean_ns;
        let stepped = now > STEP * before || before > STEP * now;
        if stepped && self.quick.samples >= STEP_SAMPLES {
            // What came before the step lingers in the quick memory, and in part in this reading: it weighs
            // little.
            let latest = if reading.samples as f64 >= STEP_SAMPLES { new } else { self.quick };
            self.calm = latest.weighing(STEP_SAMPLES);
            self.quick = self.calm;
        }
    }

    /// Forgets the context switches and new tasks that were seen: from now on they cost nothing, or something else.
    pub fn forget_switches(&mut self) {
        (self.switches_ns, self.side_records_ns) = (0.0, 0.0);
    }

    /// What a sample costs at present.
    pub fn cost(&self) -> SampleCost {
        let target = self.calm.cost(&self.model);
        let foreign = self.calm.foreign_cost(&self.model);
        // Strangers' samples count against a tenth of a CPU where the target uses less.
        let counted = (self.utilisation_cpus() / OWN_COST_FLOOR_CPUS).min(1.0);
        let strangers = self.calm.per_sample(self.calm.foreign);
        let own_ns = self.own.per_sample_ns();
        let (frames, bytes) = (self.calm.per_sample(self.calm.frames), self.calm.per_sample(self.calm.bytes));
        SampleCost {
            target,
            frames_ns: frames * self.model.per_frame_ns.mean_ns,
            stack_ns: bytes * self.model.per_byte_ns.mean_ns,
            self_ns: own_ns * (1.0 + strangers),
            foreign_ns: foreign.mean_ns,
            total_hi_ns: target.upper_ns() + own_ns + counted * (foreign.upper_ns() + strangers * own_ns),
            fixed_ratio: self.fixed_ratio(self.utilisation_cpus()),
        }
    }

    /// What is spent whatever the rate, if the target keeps `busy_cpus` busy (ratio of its CPU time).
    pub(super) fn fixed_ratio(&self, busy_cpus: f64) -> f64 {
        self.own.per_second_ns() * 1e-9 / busy_cpus.max(OWN_COST_FLOOR_CPUS)
            + (self.switches_ns + self.side_records_ns) / self.cpu_ns.max(1e6)
    }

    /// What a sample that hits a stranger costs, the model's part at its upper end and own time (ns).
    pub(super) fn stranger_ns(&self) -> f64 {
        self.model.sample(0.0, self.calm.per_sample(self.calm.bytes)).upper_ns() + self.own.per_sample_ns()
    }

    /// Own CPU time per sample that arrives, whomever it hit (ns).
    pub(super) fn own_per_arrival_ns(&self) -> f64 {
        self.own.per_sample_ns()
    }

    /// CPUs that the target kept busy over the last ten seconds or so.
    pub fn utilisation_cpus(&self) -> f64 {
        self.cpu_ns / self.wall_ns.max(1.0)
    }

    /// Bytes that one sample brings to the ring: its record, its frames, its stack.
    pub fn record_bytes(&self) -> f64 {
        const RECORD_BYTES: f64 = 64.0;
        RECORD_BYTES + 8.0 * self.calm.per_sample(self.calm.frames) + self.calm.per_sample(self.calm.bytes)
    }
}

#[cfg(test)]
mod tests;
