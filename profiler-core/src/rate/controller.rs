//! The controller: from readings to the next sampling period.

mod budget_caps;
mod deciding;
mod retuning;

use self::budget_caps::charge_ns;
use self::retuning::Retuning;
use super::account::{Account, TARGET_FLOOR_CPUS};
use super::anytime::AnytimeSchedule;
use super::bucket::TokenBucket;
use super::budget_grant::Grant;
use super::cost::CostModel;
use super::current_load::CurrentLoad;
use super::decision::{Decision, RateReason};
use super::fixed_overhead::FixedOverhead;
use super::fleet::Replicas;
use super::function_shares::{ShareMemory, TopShares};
use super::limit::Limit;
use super::meter::OverheadMeter;
use super::model::{Law, Threads};
use super::prices::{FieldFigures, HandlerTime};
use super::rate_target::{BUDGET_MARGIN, BudgetLoad, Circumstances, RateTarget, horizon_s, threads_held_up};
use super::sample_cost::SampleCost;
use super::set_up::SetUp;
use super::visits::ratio_at_optimum;
use super::{RateSettings, Reading};

pub(super) use self::retuning::SETTLED;

/// The first guess uses at most this share of the budget.
const START_BUDGET: f64 = 0.5;
/// Assumed length of the first reading if its start is not known (ns).
const FIRST_TICK_NS: u64 = 100_000_000;
/// A reading further off than this has a clock that jumped (ns).
const MAX_TICK_NS: u64 = 3_600_000_000_000;
/// What a start may take from its target beforehand is at most the budget of this time (ns of CPU time).
const MOST_AHEAD_NS: f64 = 0.5e9;
/// Own CPU time for a sample of code that was never seen before (ns), several times that of known code: the
/// first tenths of a second of a run may take that.
const OWN_WHEN_COLD_NS: f64 = 40_000.0;
/// The reference for own CPU time.
pub(super) const ONE_CPU: f64 = 1.0;

/// Chooses the sampling rate from the cost of sampling and the shares in the profile.
///
/// The rate is per CPU-second of the target, so an idle target keeps it and it is in force when a burst
/// starts. With a horizon, the rate is retuned at most once a second, and only the token buckets may lower it
/// in between. Without one, it follows the anytime law in each step, and a retune is counted when it has
/// moved by a fifth.
#[derive(Clone, Debug)]
pub struct RateController {
    pub(super) settings: RateSettings,
    pub(super) budgets: Budgets,
    /// The replicas of the target's service: present, and when the rate was settled.
    pub(super) replicas: [Replicas; 2],
    pub(super) meter: OverheadMeter,
    /// Progress of a run without a horizon.
    pub(super) schedule: Option<AnytimeSchedule>,
    pub(super) shares: ShareMemory,
    pub(super) account: Account,
    /// The account since it was last taken.
    part: Account,
    pub(super) retuning: Retuning,
    pub(super) started: bool,
    began_ns: u64,
    pub(super) last_ns: Option<u64>,
    samples: u64,
    pub(super) current: CurrentLoad,
    fixed_overhead: FixedOverhead,
}

/// What sampling may cost, and what is left of it.
#[derive(Clone, Debug)]
pub(super) struct Budgets {
    /// The budget of the target's slowdown.
    pub(super) slowdown: Limit,
    /// The budget of own CPU time, where there is one.
    pub(super) own: Option<Limit>,
    /// The target's part of the host's budget, for everything that sampling costs.
    pub(super) granted: Option<Grant>,
    /// The token bucket of the granted budget.
    pub(super) bucket: TokenBucket,
    /// The rate that the most expensive of several targets allows (samples per CPU-second).
    dearest_hz: f64,
    set_up: SetUp,
}

impl Budgets {
    fn new(settings: &RateSettings) -> Self {
        Self {
            slowdown: Limit::new(settings.budget_ratio, TARGET_FLOOR_CPUS),
            own: settings.own_cpu_ratio.map(|ratio| Limit::new(ratio, ONE_CPU)),
            granted: None,
            bucket: TokenBucket::new(settings.budget_ratio),
            dearest_hz: f64::INFINITY,
            set_up: SetUp::default(),
        }
    }
}

impl RateController {
    /// A controller with its first guess: the law at the calibrated cost and a share of 15%, within half the
    /// budget.
    ///
    /// Settings out of range are clamped, and an invalid cost is replaced by the default.
    pub fn new(settings: RateSettings, costs: CostModel) -> Self {
        let settings = settings.sane();
        let meter = OverheadMeter::expecting(costs, settings.expected_frames, settings.expected_stack_bytes);
        let mut controller = RateController {
            budgets: Budgets::new(&settings),
            replicas: [Replicas::ONE; 2],
            schedule: settings.horizon_s.is_none().then(AnytimeSchedule::default),
            shares: ShareMemory::new(settings.top),
            account: Account::new(settings.budget_ratio),
            part: Account::default(),
            retuning: Retuning::new(settings.floor_hz),
            started: false,
            began_ns: 0,
            last_ns: None,
            samples: 0,
            current: CurrentLoad::default(),
            fixed_overhead: FixedOverhead::default(),
            meter,
            settings,
        };
        controller.guess();
        controller
    }

    pub(super) fn guess(&mut self) {
        self.allow_ahead();
        let rate_target = self.rate_target(START_BUDGET);
        (self.retuning.rate_hz, self.retuning.bound_by) = (rate_target.optimum_hz, rate_target.bound_by);
        self.retuning.noted_hz = self.retuning.rate_hz;
    }

    /// The decision to open the events with; `at_ns` is when sampling begins. To be called once, before the
    /// first step.
    pub fn start(&mut self, at_ns: u64) -> Decision {
        self.begin(at_ns);
        self.decision(at_ns, RateReason::Start)
    }

    fn begin(&mut self, at_ns: u64) {
        self.started = true;
        self.last_ns = Some(at_ns);
        (self.began_ns, self.retuning.retuned_ns) = (at_ns, at_ns);
    }

    /// Processes a reading of the time since the last step, and decides on the rate until the next one, 25 to 100 ms
    /// later.
    pub fn step(&mut self, reading: &Reading, shares: &TopShares) -> Decision {
        if !self.started {
            self.begin(reading.at_ns.saturating_sub(FIRST_TICK_NS));
        }
        let at_ns = reading.at_ns.max(self.last_ns.unwrap_or(0)); // a clock that went back counts as stopped
        let wall_ns = (at_ns - self.last_ns.unwrap_or(at_ns)).min(MAX_TICK_NS);
        self.last_ns = Some(at_ns);

        self.book(reading, wall_ns);
        self.retuning.phase_changed |= self.shares.observe(shares, wall_ns);
        let reason = if self.settings.fixed_rate_hz.is_some() {
            RateReason::Fixed
        } else {
            let retuned =
                if self.schedule.is_some() { self.follow_schedule(at_ns) } else { self.retune(at_ns) };
            self.throttle(retuned)
        };
        self.decision(at_ns, reason)
    }

    fn book(&mut self, reading: &Reading, wall_ns: u64) {
        let rate_hz = self.rate_hz();
        let mut spend = self.meter.observe(reading, wall_ns);
        let (wall, cpu_ns) = (wall_ns as f64, reading.target_cpu_ns as f64);
        let held_up = threads_held_up(&self.settings, cpu_ns / wall.max(1.0)).count;
        spend.waiting_ns = (held_up - 1.0) * spend.target_ns();
        spend.put_off_ns = self.budgets.set_up.put_off_ns(wall, spend.self_once_ns);
        self.account.book(wall, cpu_ns, &spend);
        self.part.book(wall, cpu_ns, &spend);
        self.budgets.bucket.settle(wall, cpu_ns, charge_ns(&spend, wall, cpu_ns));
        self.budgets.slowdown.book(wall, cpu_ns, held_up * spend.slowed_upper_ns());
        if let Some(own) = &mut self.budgets.own {
            own.book(wall, wall, spend.own_ns());
        }
        self.current.observe(reading, wall_ns, rate_hz, &spend);
        self.fixed_overhead.observe(wall, self.budgets.bucket.accrual_ns(wall, cpu_ns), &spend);
        self.samples = self.samples.saturating_add(reading.samples);
        self.retuning.samples_since = self.retuning.samples_since.saturating_add(reading.samples);
        self.retuning.cpu_since_ns = self.retuning.cpu_since_ns.saturating_add(reading.target_cpu_ns);
        let for_one_s_hz = self.rate_for_one_s_hz();
        if let Some(schedule) = &mut self.schedule {
            let taken = reading.samples.saturating_add(reading.lost).saturating_add(reading.unseen);
            schedule.observe(cpu_ns * 1e-9, cpu_ns / wall.max(1.0), taken, for_one_s_hz);
        }
        self.allow_ahead();
    }

    /// A run without a horizon may be a short one: its start may spend something of its next second beforehand.
    fn allow_ahead(&mut self) {
        let Some(schedule) = &self.schedule else { return };
        let samples = schedule.next_second(self.rate_for_one_s_hz());
        let charged_ns = samples * self.threads().count * self.meter.cost().target.upper_ns();
        let most_ns = MOST_AHEAD_NS * self.settings.budget_ratio;
        self.budgets.slowdown.allow_ahead((0.5 * charged_ns).min(most_ns));
        if let Some(own) = &mut self.budgets.own {
            own.allow_ahead(samples * self.meter.own_per_arrival_ns().max(OWN_WHEN_COLD_NS));
        }
    }

    /// The law's constant rate for a profile of one CPU-second, under present conditions.
    fn rate_for_one_s_hz(&self) -> f64 {
        self.law(self.spread(), 1.0).rate_hz().unwrap_or(0.0) // where it has no answer, it asks for nothing
    }

    fn law(&self, spread: f64, horizon_s: f64) -> Law {
        let overhead_s = self.meter.cost().target.mean_ns * 1e-9;
        Law::new(self.settings.criterion, spread, overhead_s, horizon_s)
            .threads(self.threads())
            .replicas(self.replicas().get())
    }

    /// The threads that a sample delays: the sampled one, or all running threads.
    fn threads(&self) -> Threads {
        threads_held_up(&self.settings, self.meter.utilisation_cpus())
    }

    /// How many threads a sample delays.
    pub fn held_up(&self) -> f64 {
        self.threads().count
    }

    /// The variance of the samples at the law's rate over that of independent ones: below 1 where functions
    /// run on for longer than a period.
    fn variance_ratio(&self) -> f64 {
        let law = self.law(self.shares.spread(), horizon_s(&self.settings, self.schedule));
        ratio_at_optimum(law.rate_hz().unwrap_or(0.0), self.shares.memory_s())
    }

    /// S of the law: of samples as good as these.
    pub(super) fn spread(&self) -> f64 {
        self.shares.spread() * self.variance_ratio().sqrt()
    }

    pub(super) fn rate_target(&self, budget_share: f64) -> RateTarget {
        let now = Circumstances {
            cost: self.meter.cost(),
            spread: self.spread(),
            record_bytes: self.meter.record_bytes(),
            utilisation_cpus: self.meter.utilisation_cpus(),
            load: self.load(),
            granted_ratio: self.granted().at(self.meter.utilisation_cpus()),
            dearest_hz: self.budgets.dearest_hz,
            schedule: self.schedule,
            threads: self.threads(),
            replicas: self.replicas(),
        };
        RateTarget::new(&self.settings, &now, budget_share)
    }

    fn load(&self) -> BudgetLoad {
        let busy_cpus = self.current.busy_cpus().max(self.meter.utilisation_cpus());
        BudgetLoad {
            slowdown_fixed_ratio: self.threads().count * self.meter.events_ratio(),
            slowdown_spare_ratio: self.budgets.slowdown.spare_ratio(),
            own_fixed_cpus: self.meter.own_fixed_cpus(),
            own_per_hz_cpus: self.current.own_per_hz_ns(&self.meter, busy_cpus) * 1e-9,
            own_spare_cpus: self.budgets.own.as_ref().map_or(0.0, Limit::spare_ratio),
        }
    }

    /// To be called when the events are attached in another way: the measured cost of context switches is discarded.
    pub fn attached_anew(&mut self) {
        self.meter.forget_switches();
    }

    /// Processes timings of the kernel's handler for some of the target's samples. The cost of a sample
    /// follows at once, the rate at the next step.
    pub fn observe_handler(&mut self, times: &[HandlerTime]) {
        self.meter.observe_handler(times);
    }

    /// Processes how long single samples delayed a thread of the profiler's own (ns). The cost of a sample
    /// follows at once.
    pub fn observe_interrupts(&mut self, times_ns: &[f64]) {
        self.meter.observe_interrupts(times_ns);
    }

    /// The present cost of interrupts over that at the calibration; 1 if the two agree within their errors.
    pub fn interrupt_ratio(&self) -> f64 {
        self.meter.interrupt_ratio()
    }

    /// What a sample costs the target without its stack, for each frame and for each byte copied (ns).
    pub fn parts_ns(&self) -> [f64; 3] {
        self.meter.parts_ns()
    }

    /// Wall time between two samples of the target at the present rate and the expected load (ns).
    pub fn sample_gap_ns(&self) -> f64 {
        let hz = self.rate_hz() * self.current.expected().busy_cpus;
        1e9 / hz.max(f64::MIN_POSITIVE)
    }

    /// Whether costs without samples leave next to nothing of the budget. Never at a fixed rate.
    pub fn watching_takes_the_budget(&self) -> bool {
        self.settings.fixed_rate_hz.is_none() && self.fixed_overhead.is_heavy()
    }

    /// Figures of the kernel's handler in this target, once it was timed.
    pub fn handler(&mut self) -> Option<FieldFigures> {
        self.meter.handler()
    }

    /// The rate in force (samples per CPU-second of the target).
    pub fn rate_hz(&self) -> f64 {
        match self.settings.fixed_rate_hz {
            Some(rate_hz) => rate_hz,
            None if self.retuning.throttled => self.retuning.rate_hz.min(self.bucket_cap_hz()),
            None => self.retuning.rate_hz,
        }
    }

    /// Caps the rate (samples per CPU-second) that several targets share: a higher one would slow down one of
    /// them by more than its budget.
    pub fn bound_rate(&mut self, most_hz: f64) {
        self.budgets.dearest_hz = if most_hz.is_nan() { f64::INFINITY } else { most_hz.max(0.0) };
    }

    /// What sampling has cost since the start.
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// What sampling has cost since the last call, or the start.
    pub fn take_account(&mut self) -> Account {
        self.part.take()
    }

    /// What a sample costs at present.
    pub fn cost(&self) -> SampleCost {
        self.meter.cost()
    }

    /// Samples that the law asks for at the CPU time so far: without a horizon the anytime law, else the horizon's rate.
    pub fn law_samples(&self) -> f64 {
        match &self.schedule {
            Some(schedule) => schedule.asked(),
            None => self.rate_target(BUDGET_MARGIN).unbounded_hz * self.account.target_cpu_s(),
        }
    }

    /// How old a run is for the length of its steps, `elapsed_ns` after it began. One with a horizon is never young: its rate
    /// does not fall at first, and its intervals are read when it is long.
    pub fn age_for_steps_ns(&self, elapsed_ns: u64) -> u64 {
        self.schedule.map_or(u64::MAX, |_| elapsed_ns)
    }
}

#[cfg(test)]
mod tests;
