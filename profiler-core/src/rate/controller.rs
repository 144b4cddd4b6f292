//! The controller: from readings to the next sampling period.

mod deciding;

use super::account::{Account, TARGET_FLOOR_CPUS};
use super::anytime::AnytimeSchedule;
use super::bucket::{TRICKLE, TokenBucket};
use super::budget_grant::Grant;
use super::cost::CostModel;
use super::current_load::CurrentLoad;
use super::decision::{Decision, RateReason};
use super::fixed_overhead::FixedOverhead;
use super::fleet::Replicas;
use super::function_shares::{ShareMemory, TopShares};
use super::limit::{Limit, OPEN};
use super::meter::{OverheadMeter, Spend};
use super::model::{BoundBy, Law, Threads};
use super::prices::{FieldFigures, HandlerTime};
use super::rate_target::{BUDGET_MARGIN, BudgetLoad, Circumstances, RateTarget, horizon_s, threads_held_up};
use super::sample_cost::{OWN_COST_FLOOR_CPUS, SampleCost};
use super::set_up::SetUp;
use super::visits::ratio_at_optimum;
use super::{RateSettings, Reading};

/// Between two retunes (ns), less the jitter of a step.
const RETUNE_NS: u64 = 950_000_000;
const FIRST_RETUNE_NS: u64 = 100_000_000;
/// What a retune needs since the last one: this many samples, or a CPU-second without them.
const RETUNE_SAMPLES: u64 = 10;
const RETUNE_CPU_NS: u64 = 1_000_000_000;
/// Gain in logarithms. With o growing as λ^η the update has slope 1 − g(1+2η/3): stable up to η = 2.25.
const GAIN: f64 = 0.8;
/// Limits for the change of the rate in one retune, as factors.
const MAX_STEP_UP: f64 = 2.0;
const MAX_STEP_DOWN: f64 = 0.25;
/// A settled rate is kept while it is within this factor of the optimum: the loss is flat, and a change is not free.
const DEAD_BAND: f64 = 1.2;
/// Once left, the optimum is approached this closely before the rate counts as settled again.
pub(super) const SETTLED: f64 = 1.05;
/// The first guess uses at most this share of the budget.
const START_BUDGET: f64 = 0.5;
/// Assumed length of the first reading if its start is not known (ns).
const FIRST_TICK_NS: u64 = 100_000_000;
/// A reading further off than this has a clock that jumped (ns).
const MAX_TICK_NS: u64 = 3_600_000_000_000;
/// Assumed length of a step when computing what one may overspend (s).
const STEP_S: f64 = 0.1;
/// What a start may take from its target beforehand is at most the budget of this time (ns of CPU time).
const MOST_AHEAD_NS: f64 = 0.5e9;
/// Own CPU time for a sample of code that was never seen before (ns), several times that of known code: the
/// first tenths of a second of a run may take that.
const OWN_WHEN_COLD_NS: f64 = 40_000.0;
/// The reference for own CPU time.
pub(super) const ONE_CPU: f64 = 1.0;
/// A step's samples of non-targets are harmless below this share of what a second of an idle target may cost.
const HARMLESS: f64 = 0.25;

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

/// The rate decided on, and what makes it move again.
#[derive(Clone, Debug)]
pub(super) struct Retuning {
    /// Before the buckets (samples per CPU-second).
    rate_hz: f64,
    bound_by: BoundBy,
    /// Whether it has reached the optimum, and may stay in the dead band around it.
    pub(super) settled: bool,
    throttled: bool,
    phase_changed: bool,
    /// The rate at the last retune of a run without a horizon.
    noted_hz: f64,
    retuned_ns: u64,
    /// Since the last retune.
    samples_since: u64,
    cpu_since_ns: u64,
    retunes: u64,
}

impl Retuning {
    fn new(rate_hz: f64) -> Self {
        Self {
            rate_hz,
            bound_by: BoundBy::Law,
            settled: false,
            throttled: false,
            phase_changed: false,
            noted_hz: rate_hz,
            retuned_ns: 0,
            samples_since: 0,
            cpu_since_ns: 0,
            retunes: 0,
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

    /// Moves the rate to where the anytime law is now.
    fn follow_schedule(&mut self, at_ns: u64) -> RateReason {
        let rate_target = self.rate_target(BUDGET_MARGIN);
        let distance = (rate_target.target_hz(&self.settings) / self.retuning.rate_hz).ln();
        self.retuning.bound_by = rate_target.bound_by;
        let factor = (GAIN * distance).exp().clamp(MAX_STEP_DOWN, MAX_STEP_UP);
        self.retuning.rate_hz = self.settings.within_limits(self.retuning.rate_hz * factor);
        let has_moved = (self.retuning.rate_hz / self.retuning.noted_hz).ln().abs() > DEAD_BAND.ln();
        if !has_moved || at_ns - self.retuning.retuned_ns < RETUNE_NS {
            return RateReason::Hold;
        }
        (self.retuning.retuned_ns, self.retuning.noted_hz) = (at_ns, self.retuning.rate_hz);
        self.count_retune()
    }

    fn count_retune(&mut self) -> RateReason {
        self.retuning.retunes = self.retuning.retunes.saturating_add(1);
        let is_another_phase = std::mem::take(&mut self.retuning.phase_changed);
        if is_another_phase { RateReason::PhaseChange } else { RateReason::Retune }
    }

    /// Moves the rate towards the law's, if it is time, there is evidence, and it is worth it.
    fn retune(&mut self, at_ns: u64) -> RateReason {
        let rate_target = self.rate_target(BUDGET_MARGIN);
        let evidence =
            self.retuning.samples_since >= RETUNE_SAMPLES || self.retuning.cpu_since_ns >= RETUNE_CPU_NS;
        // At the start of a run everything is new, and a short run has no time to wait.
        let pause_ns =
            RETUNE_NS.min(self.retuning.retuned_ns.saturating_sub(self.began_ns).max(FIRST_RETUNE_NS));
        if !evidence || at_ns - self.retuning.retuned_ns < pause_ns {
            return RateReason::Hold;
        }
        let target_hz = rate_target.target_hz(&self.settings);
        let distance = (target_hz / self.retuning.rate_hz).ln();
        let cap_hz = rate_target.caps.budget_hz.min(rate_target.caps.own_hz);
        let over_budget = self.retuning.rate_hz > self.settings.within_limits(cap_hz);
        let band = if self.retuning.settled { DEAD_BAND } else { SETTLED };
        self.retuning.bound_by = rate_target.bound_by;
        if !over_budget && distance.abs() <= band.ln() {
            self.retuning.settled = true;
            return RateReason::Hold;
        }
        self.move_to(target_hz, distance, over_budget);
        (self.retuning.retuned_ns, self.retuning.samples_since, self.retuning.cpu_since_ns) = (at_ns, 0, 0);
        self.count_retune()
    }

    fn move_to(&mut self, target_hz: f64, distance: f64, over_budget: bool) {
        let gain = if over_budget { 1.0 } else { GAIN };
        let factor = (gain * distance).exp().clamp(MAX_STEP_DOWN, MAX_STEP_UP);
        self.retuning.rate_hz = self.settings.within_limits(self.retuning.rate_hz * factor);
        self.retuning.settled = (target_hz / self.retuning.rate_hz).ln().abs() <= SETTLED.ln();
    }

    /// The rate until the next step, after the token bucket.
    fn throttle(&mut self, retuned: RateReason) -> RateReason {
        let was = self.retuning.throttled;
        self.retuning.throttled = self.bucket_cap_hz() < self.retuning.rate_hz;
        match (was, self.retuning.throttled) {
            (_, true) => RateReason::Throttle,
            (true, false) => RateReason::Release,
            (false, false) => retuned,
        }
    }

    fn bucket_cap_hz(&self) -> f64 {
        let (slowdown_hz, beside_hz) = self.bucket_caps_hz();
        self.settings.within_limits(slowdown_hz.min(beside_hz))
    }

    /// What the bucket of the slowdown allows, and that of own CPU time or of everything.
    fn bucket_caps_hz(&self) -> (f64, f64) {
        let (meter, current) = (&self.meter, &self.current);
        let held_up = self.threads().count;
        let usual_ns = held_up * meter.cost().target.upper_ns().max(1.0);
        let recent_ns = (held_up * current.recent_charge_ns()).max(usual_ns);
        let slowdown_hz = self.budgets.slowdown.cap_hz(
            held_up * meter.events_ratio(),
            current.busy_cpus(),
            usual_ns,
            recent_ns,
        );
        let beside_hz = match &self.budgets.own {
            Some(own) => {
                let per_hz_ns = current.own_per_hz_ns(meter, current.busy_cpus()).max(f64::MIN_POSITIVE);
                own.cap_hz(meter.own_fixed_cpus(), ONE_CPU, per_hz_ns, per_hz_ns)
            }
            None => self.granted_cap_hz(),
        };
        (slowdown_hz, beside_hz)
    }

    /// The cap by the bucket of everything that sampling costs.
    fn granted_cap_hz(&self) -> f64 {
        let current = &self.current;
        let budget_ratio = self.granted().at(current.busy_cpus());
        let fixed_ratio = current.fixed_ratio(&self.meter);
        let (allowed, least) = (budget_ratio * self.budgets.bucket.allowed_part(), TRICKLE * budget_ratio);
        // A full bucket is a reserve for a jump of the cost, not to be spent on purpose.
        let expected = (allowed.min(OPEN * budget_ratio) - fixed_ratio).max(least);
        let by_level = (expected / current.sample_ns(&self.meter))
            .min((allowed - fixed_ratio).max(least) / current.recent_sample_ns(&self.meter));
        let affordable = self.account.affordable_ratio(current.busy_cpus()) - fixed_ratio;
        let by_account = (affordable / current.sample_ns(&self.meter)).max(self.trickle_per_ns());
        by_level.min(by_account) * 1e9
    }

    /// The rate while a debt is paid back (samples per nanosecond of CPU time). A busy target is still sampled. One that rests can wait
    /// where other processes are sampled with it; where none are, its samples cost nothing until it works again, and its next burst
    /// shall not begin unseen.
    fn trickle_per_ns(&self) -> f64 {
        let busy_cpus = self.current.cpus_when_awake();
        let least = TRICKLE * self.granted().at(busy_cpus) * (busy_cpus / OWN_COST_FLOOR_CPUS).min(1.0);
        least / self.current.sample_ns_at(busy_cpus, &self.meter)
    }

    /// Whether what came since the last step has already spent more than the bucket holds, so that the next
    /// step should not be waited for. `so_far` is a reading of the unfinished step; its CPU times may be 0
    /// where they are not known yet: how busy the target is, its samples tell.
    ///
    /// A step of 100 ms at ten times the expected cost spends the budget of a second. To be called whenever a
    /// ring is read; never true at a fixed rate.
    pub fn overdrawn(&self, so_far: &Reading) -> bool {
        let wall_ns = self.last_ns.map_or(0, |last| so_far.at_ns.saturating_sub(last)) as f64;
        let hits = so_far.samples.saturating_add(so_far.lost) as f64;
        let cpu_ns = (hits * 1e9 / self.rate_hz()).max(so_far.target_cpu_ns as f64);
        if self.settings.fixed_rate_hz.is_some() {
            return false;
        }
        let spend = self.meter.spend(so_far);
        let held_up = threads_held_up(&self.settings, cpu_ns / wall_ns.max(1.0)).count;
        let slowed_ns = held_up * spend.slowed_upper_ns();
        let is_slowed = || self.budgets.slowdown.is_overdrawn(wall_ns, cpu_ns, slowed_ns);
        if let Some(own) = &self.budgets.own {
            return is_slowed() || own.is_overdrawn(wall_ns, wall_ns, spend.own_ns());
        }
        if self.settings.are_threads_coupled && is_slowed() {
            return true;
        }
        let spend = Spend { put_off_ns: spend.self_once_ns, ..spend };
        let inflow_ns = self.budgets.bucket.accrual_ns(wall_ns, so_far.target_cpu_ns as f64);
        charge_ns(&spend, wall_ns, cpu_ns) - inflow_ns
            > self.budgets.bucket.holds_ns(cpu_ns / wall_ns.max(1.0))
    }

    /// Whether samples of non-targets would cost too much within a step if the target fell idle now, so that
    /// the rings should be read more often. Only for events of whole CPUs.
    pub fn non_targets_may_overspend(&self) -> bool {
        let step_ns = STEP_S * self.current.non_target_ns_per_s(&self.meter, self.rate_hz());
        let granted_ns = || self.budgets.bucket.accrual_ns(1e9, 0.0);
        let idle_second_ns = self.budgets.own.as_ref().map_or_else(granted_ns, |own| own.idle_grant_ns(1e9));
        self.settings.fixed_rate_hz.is_none() && step_ns > HARMLESS * idle_second_ns
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

    /// Whether `cost_ns` more can be spent without slowing sampling down. At a fixed rate nothing is.
    pub fn has_room_for(&self, cost_ns: f64) -> bool {
        let has_room = || match self.budgets.own {
            Some(_) => self.budgets.slowdown.has_room_for(cost_ns),
            None => self.budgets.bucket.level_ns() - cost_ns >= 0.5 * self.budgets.bucket.depth_ns(),
        };
        self.settings.fixed_rate_hz.is_some() || has_room()
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
    pub fn handler(&self) -> Option<FieldFigures> {
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

    fn bound_by(&self) -> BoundBy {
        match self.settings.fixed_rate_hz {
            Some(_) => BoundBy::Fixed,
            None if self.retuning.throttled => {
                let (slowdown_hz, beside_hz) = self.bucket_caps_hz();
                match self.budgets.own {
                    _ if beside_hz >= slowdown_hz => BoundBy::Bucket,
                    Some(_) => BoundBy::OwnCpu,
                    None => BoundBy::Host,
                }
            }
            None => self.retuning.bound_by,
        }
    }
}

/// What the bucket pays for `wall_ns` in which the target used `cpu_ns`: the upper end of what was charged to others, and
/// own time; what was charged to the target counts for more where [`Account`] sets it against less (ns).
fn charge_ns(spend: &Spend, wall_ns: f64, cpu_ns: f64) -> f64 {
    let counted = |floor_cpus: f64| cpu_ns.max(floor_cpus * wall_ns).max(1.0);
    let weight = counted(OWN_COST_FLOOR_CPUS) / counted(TARGET_FLOOR_CPUS);
    weight * spend.target_ns() + spend.doubt_ns + spend.foreign_ns + spend.self_ns - spend.put_off_ns
}

#[cfg(test)]
mod tests;
