//! What a sample costs: a calibrated model times the counts of what actually happened.
//!
//! The meter believes its calibration, but for what the field shows: how deep the stacks are, how much is copied, what
//! the profiler itself uses, and, where the kernel's handler can be timed, what that takes in this target.

use super::Reading;
use super::account::TARGET_FLOOR_CPUS;
use super::cost::{Cost, CostModel};
use super::own_cost::{Own, OwnCost};
use super::prices::{FieldFigures, HandlerTime, Prices};
use super::sample_cost::{PerSample, SampleCost, own_ratio};

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

/// Standard errors between the mean of a cost and its upper end.
const DOUBT: f64 = 2.0;

/// Cost of sampling over one reading, by cause (ns of CPU time).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spend {
    /// Charged to the target by its samples, the lost ones too: the interrupt and the record.
    pub base_ns: f64,
    /// Charged to the target by its samples: frames walked.
    pub frames_ns: f64,
    /// Charged to the target by its samples: stack copied.
    pub stack_ns: f64,
    /// Charged to the target by interrupts in code that may not be sampled, which brought nothing.
    pub unseen_ns: f64,
    /// How many there were.
    pub unseen: f64,
    /// Charged to the target by its context switches.
    pub switches_ns: f64,
    /// Charged to the target by records that are no samples, those of the tracepoints included, and by the tasks it
    /// created.
    pub side_records_ns: f64,
    /// How long other threads of the target waited for the sampled ones, if threads are coupled: a slowdown without CPU
    /// time.
    pub waiting_ns: f64,
    /// Charged to others: samples and records of non-target processes.
    pub foreign_ns: f64,
    /// The profiler's own CPU time, as measured.
    pub self_ns: f64,
    /// The part of `self_ns` that passes per second, with or without samples.
    pub self_fixed_ns: f64,
    /// The part of `self_ns` for what is done once: set-up, unwind tables, the maps of a new process.
    pub self_once_ns: f64,
    /// The part of `self_ns` that a budget of everything counts later; negative if it counts earlier set-up now. It
    /// only shifts costs in time.
    pub put_off_ns: f64,
    /// How much too low the charges to the target and to others may be (two standard errors of the model).
    pub doubt_ns: f64,
    /// Standard error of what was charged to the target.
    pub target_se_ns: f64,
    /// Standard error of [`Spend::samples_ns`].
    pub samples_se_ns: f64,
}

impl Spend {
    /// Charged to the target (ns).
    pub fn target_ns(&self) -> f64 {
        self.samples_ns() + self.unseen_ns + self.switches_ns + self.side_records_ns
    }

    /// Everything, by the mean of the model (ns).
    pub fn total_ns(&self) -> f64 {
        self.target_ns() + self.foreign_ns + self.self_ns
    }

    /// What the budget of the profiler's own CPU time counts (ns): own time without set-up, and samples that hit other
    /// processes.
    pub fn own_ns(&self) -> f64 {
        (self.self_ns - self.self_once_ns).max(0.0) + self.foreign_ns
    }

    /// What the budget of the slowdown counts (ns): the upper end of what was charged to the target.
    pub(super) fn slowed_upper_ns(&self) -> f64 {
        self.target_ns() + DOUBT * self.target_se_ns
    }

    /// What is spent without samples and at any rate (ns).
    pub fn fixed_ns(&self) -> f64 {
        self.switches_ns + self.side_records_ns + self.self_fixed_ns
    }

    /// Charged to the target by its samples, the lost ones too (ns).
    pub fn samples_ns(&self) -> f64 {
        self.base_ns + self.frames_ns + self.stack_ns
    }

    /// What was spent after `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Spend) -> Spend {
        let mut since = *self;
        since.add(&earlier.times(-1.0));
        since
    }

    /// The part of one of several targets, which has these shares of the samples, of their frames and of the copied
    /// bytes. Costs without samples are divided by samples.
    #[must_use]
    pub fn part(&self, [samples, frames, bytes]: [f64; 3]) -> Spend {
        let all = self.times(samples);
        Spend { frames_ns: self.frames_ns * frames, stack_ns: self.stack_ns * bytes, ..all }
    }

    fn times(&self, factor: f64) -> Spend {
        Spend {
            base_ns: factor * self.base_ns,
            frames_ns: factor * self.frames_ns,
            stack_ns: factor * self.stack_ns,
            unseen_ns: factor * self.unseen_ns,
            unseen: factor * self.unseen,
            switches_ns: factor * self.switches_ns,
            side_records_ns: factor * self.side_records_ns,
            waiting_ns: factor * self.waiting_ns,
            foreign_ns: factor * self.foreign_ns,
            self_ns: factor * self.self_ns,
            self_fixed_ns: factor * self.self_fixed_ns,
            self_once_ns: factor * self.self_once_ns,
            put_off_ns: factor * self.put_off_ns,
            doubt_ns: factor * self.doubt_ns,
            target_se_ns: factor * self.target_se_ns,
            samples_se_ns: factor * self.samples_se_ns,
        }
    }

    /// Errors of one calibration go together: they add up like the means.
    pub(super) fn add(&mut self, other: &Spend) {
        self.base_ns += other.base_ns;
        self.frames_ns += other.frames_ns;
        self.stack_ns += other.stack_ns;
        self.unseen_ns += other.unseen_ns;
        self.unseen += other.unseen;
        self.switches_ns += other.switches_ns;
        self.side_records_ns += other.side_records_ns;
        self.waiting_ns += other.waiting_ns;
        self.foreign_ns += other.foreign_ns;
        self.self_ns += other.self_ns;
        self.self_fixed_ns += other.self_fixed_ns;
        self.self_once_ns += other.self_once_ns;
        self.put_off_ns += other.put_off_ns;
        self.doubt_ns += other.doubt_ns;
        self.target_se_ns += other.target_se_ns;
        self.samples_se_ns += other.samples_se_ns;
    }
}

/// Sums over samples that forget exponentially.
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

    fn per_sample(&self) -> PerSample {
        let mean = |sum: f64| sum / self.samples.max(f64::MIN_POSITIVE);
        PerSample { frames: mean(self.frames), bytes: mean(self.bytes), foreign: mean(self.foreign) }
    }

    /// Charged to the target and to others, per sample of the target (ns).
    fn cost_ns(&self, prices: &Prices) -> f64 {
        let sample = self.per_sample();
        sample.cost(prices).mean_ns + sample.non_target_cost(prices).mean_ns
    }
}

/// Follows what sampling costs, from readings.
#[derive(Clone, Debug)]
pub struct OverheadMeter {
    model: CostModel,
    prices: Prices,
    calm: Stacks,
    quick: Stacks,
    own: OwnCost,
    /// Decaying sums of target CPU time and wall time (ns), and of the cost of switches, records that are not samples
    /// and new tasks, by the upper estimate of the model (ns).
    cpu_ns: f64,
    wall_ns: f64,
    switches_ns: f64,
    side_records_ns: f64,
    /// Decaying sum of the cost of other records of non-target processes (ns).
    foreign_records_ns: f64,
}

impl OverheadMeter {
    /// A meter that charges by `model` and expects stacks of 20 frames, nothing copied.
    pub fn new(model: CostModel) -> Self {
        OverheadMeter::expecting(model, 20.0, 0.0)
    }

    /// [`Self::new`] with a known depth of stacks, or number of bytes to be copied.
    pub fn expecting(model: CostModel, frames: f64, bytes: f64) -> Self {
        let count = |x: f64| if x.is_finite() { EXPECTED_SAMPLES * x.clamp(0.0, 1e6) } else { 0.0 };
        let samples = EXPECTED_SAMPLES;
        let prior = Stacks { samples, frames: count(frames), bytes: count(bytes), foreign: 0.0 };
        let model = model.sane();
        OverheadMeter {
            model,
            prices: Prices::new(model),
            calm: prior,
            quick: prior,
            own: OwnCost::default(),
            // One CPU for a second: the assumed use of a target that has not run yet.
            cpu_ns: 1e9,
            wall_ns: 1e9,
            switches_ns: 0.0,
            side_records_ns: 0.0,
            foreign_records_ns: 0.0,
        }
    }

    /// Takes in a reading over `wall_ns`; returns its cost.
    pub fn observe(&mut self, reading: &Reading, wall_ns: u64) -> Spend {
        let wall_s = (wall_ns as f64 * 1e-9).min(60.0);
        let mut spend = self.spend(reading);
        self.remember_stacks(reading, wall_s);
        let keep = (-wall_s / LOAD_MEMORY_S).exp();
        self.cpu_ns = self.cpu_ns * keep + reading.target_cpu_ns as f64;
        self.wall_ns = self.wall_ns * keep + wall_ns as f64; // whole, as the CPU time is: their ratio counts
        self.switches_ns = self.switches_ns * keep + self.switches_cost(reading).upper_ns();
        self.side_records_ns = self.side_records_ns * keep + self.side_records_cost(reading).upper_ns();
        let arrivals = reading.samples as f64 + reading.foreign_samples as f64;
        let once_ns = reading.self_once_ns.min(reading.self_cpu_ns) as f64;
        self.foreign_records_ns =
            self.foreign_records_ns * keep + self.non_target_records_cost(reading).upper_ns();
        self.own.observe(arrivals, wall_s, reading.self_cpu_ns as f64 - once_ns);
        spend.self_fixed_ns = (self.own.now().per_second_ns * wall_s + once_ns).min(spend.self_ns);
        spend
    }

    /// Takes in handler times for some of the target's samples; invalid times are ignored.
    pub fn observe_handler(&mut self, times: &[HandlerTime]) {
        self.prices.observe(times);
    }

    /// Takes in for how long single samples held up a thread of the profiler's own, on this host, now (ns).
    pub fn observe_interrupts(&mut self, times_ns: &[f64]) {
        self.prices.observe_interrupts(times_ns);
    }

    /// The present cost of an interrupt for such a thread; `None` before it was measured.
    pub fn interrupt(&self) -> Option<Cost> {
        self.prices.interrupt()
    }

    /// [`Self::interrupt`] over the cost at the calibration; 1 if the two agree within their errors.
    pub fn interrupt_ratio(&self) -> f64 {
        self.prices.interrupt_ratio()
    }

    /// What a sample costs the target without its stack, for each frame and for each byte copied (ns).
    pub fn parts_ns(&self) -> [f64; 3] {
        let usual = self.calm.per_sample();
        self.prices.parts_ns(usual.frames, usual.bytes)
    }

    /// Figures of the handler in this target; `None` before it was timed, or if the calibration did not time it.
    pub fn handler(&mut self) -> Option<FieldFigures> {
        let usual = self.calm.per_sample();
        self.prices.field(usual.frames, usual.bytes)
    }

    /// The cost of a reading, without taking it in.
    pub fn spend(&self, reading: &Reading) -> Spend {
        let seen = reading.samples as f64;
        let (frames, bytes) = if reading.samples > 0 {
            (reading.frames as f64 / seen, reading.stack_bytes as f64 / seen)
        } else {
            let typical = self.calm.per_sample();
            (typical.frames, typical.bytes)
        };
        let hits = seen + reading.lost as f64; // a lost sample interrupted the target all the same
        let unseen = reading.unseen as f64;
        let (switches, side_records) = (self.switches_cost(reading), self.side_records_cost(reading));
        let foreign = Cost::default()
            .plus(reading.foreign_samples as f64, self.prices.sample(0.0, bytes))
            .plus(1.0, self.non_target_records_cost(reading));
        let samples = Cost::default().plus(hits, self.prices.sample(frames, bytes));
        let unseen_se_ns = Cost::default().plus(unseen, self.prices.sample(0.0, 0.0)).se_ns;
        let [bare_ns, frame_ns, byte_ns] = self.prices.parts_ns(frames, bytes);
        let target_se_ns = samples.se_ns + unseen_se_ns + switches.se_ns + side_records.se_ns;
        Spend {
            base_ns: hits * bare_ns,
            frames_ns: hits * frames * frame_ns,
            stack_ns: hits * bytes * byte_ns,
            unseen_ns: unseen * bare_ns,
            unseen,
            switches_ns: switches.mean_ns,
            side_records_ns: side_records.mean_ns,
            waiting_ns: 0.0,
            foreign_ns: foreign.mean_ns,
            self_ns: reading.self_cpu_ns as f64,
            self_fixed_ns: 0.0,
            self_once_ns: reading.self_once_ns.min(reading.self_cpu_ns) as f64,
            put_off_ns: 0.0,
            doubt_ns: DOUBT * (target_se_ns + foreign.se_ns),
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
            .plus(reading.trace_records as f64, self.model.per_trace_record_ns)
    }

    fn non_target_records_cost(&self, reading: &Reading) -> Cost {
        Cost::default().plus(reading.foreign_side_records as f64, self.model.per_side_record_ns)
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
        let (now, before) = (self.quick.cost_ns(&self.prices), self.calm.cost_ns(&self.prices));
        let stepped = now > STEP * before || before > STEP * now;
        if stepped && self.quick.samples >= STEP_SAMPLES {
            // Samples from before the step remain in the quick memory, and in part in this reading, so it gets little
            // weight.
            let latest = if reading.samples as f64 >= STEP_SAMPLES { new } else { self.quick };
            self.calm = latest.weighing(STEP_SAMPLES);
            self.quick = self.calm;
        }
    }

    /// Forgets the context switches and new tasks that were seen: from now on they cost nothing, or something else.
    pub fn forget_switches(&mut self) {
        (self.switches_ns, self.side_records_ns, self.foreign_records_ns) = (0.0, 0.0, 0.0);
    }

    /// What a sample costs at present.
    pub fn cost(&self) -> SampleCost {
        let sample = self.calm.per_sample();
        let own = Own { per_second_ns: self.others_per_second_ns(), ..self.own.now() };
        SampleCost::new(&self.prices, &sample, own, self.utilisation_cpus(), self.events_ratio())
    }

    /// What is spent whatever the rate, if the target keeps `busy_cpus` busy (ratio of its CPU time).
    pub(super) fn fixed_ratio(&self, busy_cpus: f64) -> f64 {
        own_ratio(self.others_per_second_ns(), busy_cpus) + self.events_ratio()
    }

    /// The part of it that the target does not pay: own time, and records of non-target processes (CPUs).
    pub(super) fn own_fixed_cpus(&self) -> f64 {
        self.others_per_second_ns() * 1e-9
    }

    /// What is spent at any rate, independent of the target's CPU time (CPUs).
    pub(super) fn fixed_cpus(&self) -> f64 {
        self.others_per_second_ns() * 1e-9 + self.events_ns() / self.wall_ns.max(1.0)
    }

    /// What is spent in a second beside the target, whatever the rate: own time, and records of non-target processes (ns).
    fn others_per_second_ns(&self) -> f64 {
        self.own.now().per_second_ns + self.foreign_records_ns * 1e9 / self.wall_ns.max(1.0)
    }

    fn events_ns(&self) -> f64 {
        self.switches_ns + self.side_records_ns
    }

    /// The part of what is spent whatever the rate that the target pays: switches and records that are no samples (ratio of
    /// its CPU time, or of the floor that budgets have).
    pub(super) fn events_ratio(&self) -> f64 {
        self.events_ns() / self.cpu_ns.max(TARGET_FLOOR_CPUS * self.wall_ns).max(1e6)
    }

    /// What a sample of a non-target process costs (ns): the upper estimate of the model, and own time.
    pub(super) fn non_target_sample_ns(&self) -> f64 {
        self.prices.sample(0.0, self.calm.per_sample().bytes).upper_ns() + self.own_per_arrival_ns()
    }

    /// Own CPU time per sample that arrives, whomever it hit (ns).
    pub(super) fn own_per_arrival_ns(&self) -> f64 {
        self.own.now().per_sample_ns
    }

    /// CPUs that the target kept busy over the last ten seconds or so.
    pub fn utilisation_cpus(&self) -> f64 {
        self.cpu_ns / self.wall_ns.max(1.0)
    }

    /// Bytes that one sample brings to the ring: its record, its frames, its stack.
    pub fn record_bytes(&self) -> f64 {
        self.calm.per_sample().record_bytes()
    }
}

#[cfg(test)]
mod tests;
