//! Plays a scenario and compares the results with its bands.

use profiler_core::attach::{AttachChoice, AttachMode};
use profiler_core::rate::{
    Account, Activity, BurstSchedule, Cost, CostModel, Decision, Figure, Prediction, RateController,
    RateReason, RateSettings, Reading, Spend, predict,
};

use super::host::{Host, Truth};
use super::scenario::{BYTE_US, FRAME_US, HANDLER_US, Scenario};

/// Cost of a tracepoint's record (ns), and of a burst at most.
const TRACE_RECORD_NS: f64 = 400.0;
const BURST_NS: f64 = 2.0 * BurstSchedule::SAMPLES as f64 * TRACE_RECORD_NS;

/// Results of a run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Lowest and highest rate once converged, relative to the law's optimum under the true cost.
    pub rate_ratio: (f64, f64),
    /// Lowest and highest o that the controller believed in, once converged, relative to the truth.
    pub overhead_ratio: (f64, f64),
    /// Worst overhead of a second, relative to the budget: true cost, and own CPU time.
    pub worst_1s_of_budget: f64,
    /// Worst overhead of ten seconds, relative to the budget.
    pub worst_10s_of_budget: f64,
    /// The same once converged.
    pub converged_10s_of_budget: f64,
    /// Worst overhead of a minute, relative to the budget.
    pub worst_60s_of_budget: f64,
    /// Worst overhead of 0.2 s in which the target was busy, relative to the budget.
    pub worst_200ms_of_budget: f64,
    /// Retunes a minute once converged.
    pub retunes_per_minute: f64,
    /// Share of steps in which the bucket throttled, once converged.
    pub throttled_ratio: f64,
    /// Sum of weights over CPU time, less one.
    pub weight_error_ratio: f64,
    /// Samples over those that the rates in force ask for.
    pub realised_ratio: f64,
    /// Samples over those that the anytime law asks for, or that the budget of the slowdown pays for, if that is less.
    pub samples_of_law: f64,
    /// Optimum of the last phase (samples per CPU-second).
    pub optimum_hz: f64,
    /// Rate at the end.
    pub rate_hz: f64,
}

/// Plays `scenario` with `seed`; `watch` sees each decision.
pub fn run(scenario: &Scenario, seed: u64, mut watch: impl FnMut(&Decision)) -> Outcome {
    let mut tally = Tally::default();
    let rate_hz = play(scenario, seed, |truth, rate_hz, decision| {
        watch(decision);
        tally.add(scenario, truth, rate_hz, decision);
    });
    tally.outcome(scenario, rate_hz)
}

/// The real controller against the simulated host; `each` sees what was true of a step, the rate during it, and the
/// decision at its end. Returns the last rate (samples per CPU-second).
pub(super) fn play(scenario: &Scenario, seed: u64, mut each: impl FnMut(&Truth, f64, &Decision)) -> f64 {
    let mut controller = RateController::new(settings(scenario), calibration(scenario));
    let first = controller.start(0);
    let mut host = Host::new(scenario, seed, &first);
    let mut rate_hz = first.rate_hz;
    let (mut schedule, mut timing) = (BurstSchedule::default(), false);
    schedule.begin(0);
    while host.now_s() < scenario.duration_s {
        let (mut reading, shares, mut truth) = host.step(|so_far| controller.overdrawn(so_far));
        if timing {
            time_handler(&mut controller, &mut reading, &mut truth);
            schedule.ended(reading.at_ns);
        }
        timing = scenario.bursts && schedule.is_due(reading.at_ns) && controller.has_room_for(BURST_NS);
        if let Some(times_ns) = host.interrupts() {
            controller.observe_interrupts(&times_ns);
        }
        let decision = controller.step(&reading, &shares);
        host.obey(&decision);
        each(&truth, rate_hz, &decision);
        rate_hz = decision.rate_hz;
    }
    rate_hz
}

/// A step was a burst: the handler was timed, and that had its cost.
fn time_handler(controller: &mut RateController, reading: &mut Reading, truth: &mut Truth) {
    reading.trace_records = 2 * truth.handlers.len() as u64;
    truth.target_ns += reading.trace_records as f64 * TRACE_RECORD_NS;
    controller.observe_handler(&truth.handlers);
}

/// The prediction for a scenario's first phase, from counts of two seconds.
pub fn prediction(scenario: &Scenario) -> Prediction {
    let phase = &scenario.phases[0];
    let exactly = |mean| Some(Figure { mean, se: 0.0 });
    let watched = Activity {
        wall_ns: 2_000_000_000,
        target_cpu_ns: (2e9 * phase.utilisation_cpus()) as u64,
        frames: exactly(phase.frames),
        stack_bytes: exactly(phase.stack_bytes as f64),
        ..Activity::default()
    };
    let choice = AttachChoice::new(Some(AttachMode::Task), true, phase.threads, 2, 0.0);
    predict(settings(scenario), calibration(scenario), &watched, choice)
}

pub(super) fn settings(scenario: &Scenario) -> RateSettings {
    RateSettings {
        budget_ratio: scenario.budget_ratio,
        own_cpu_ratio: scenario.own_cpu_ratio,
        horizon_s: (!scenario.anytime).then_some(scenario.horizon_s),
        criterion: scenario.criterion,
        fixed_rate_hz: scenario.fixed_rate_hz,
        expected_frames: scenario.phases[0].frames,
        expected_stack_bytes: scenario.phases[0].stack_bytes as f64,
        ..RateSettings::default()
    }
}

/// A calibration on the host of the first phase, off by what the scenario says.
pub(super) fn calibration(scenario: &Scenario) -> CostModel {
    let cost = |us: f64| {
        let mean_ns = us * 1e3 * (1.0 + scenario.calibration_error_ratio);
        Cost::new(mean_ns, mean_ns * scenario.calibration_se_ratio)
    };
    CostModel {
        per_sample_ns: cost(scenario.phases[0].sample_us),
        per_frame_ns: cost(FRAME_US),
        per_byte_ns: cost(BYTE_US * scenario.calibrated_byte_factor),
        per_handler_ns: scenario.bursts.then(|| cost(HANDLER_US)),
        per_switch_ns: cost(1.0),
        per_interrupt_ns: Some(cost(scenario.phases[0].sample_us)),
        ..CostModel::default()
    }
}

/// The largest overhead of any time range of at least `length_s` (s of wall time) in which the target used half a CPU or more.
fn worst_ratio(steps: &[StepTotals], length_s: f64) -> f64 {
    let mut worst = 0.0f64;
    for first in 0..steps.len() {
        let (mut wall_ns, mut cpu_ns, mut spent_ns) = (0.0, 0.0, 0.0);
        for step in &steps[first..] {
            (wall_ns, cpu_ns, spent_ns) =
                (wall_ns + step.wall_ns, cpu_ns + step.cpu_ns, spent_ns + step.spent_ns);
            if wall_ns >= length_s * 1e9 {
                worst = if cpu_ns >= 0.5 * wall_ns { worst.max(spent_ns / cpu_ns) } else { worst };
                break;
            }
        }
    }
    worst
}

#[derive(Clone, Copy)]
struct StepTotals {
    wall_ns: f64,
    cpu_ns: f64,
    spent_ns: f64,
}

#[derive(Default)]
struct Tally {
    history: Vec<StepTotals>,
    account: Account,
    converged: Vec<StepTotals>,
    cpu_ns: f64,
    weight_ns: f64,
    samples: f64,
    asked: f64,
    rates: Option<(f64, f64)>,
    overheads: Option<(f64, f64)>,
    steps: u32,
    wall_ns: f64,
    throttled: u32,
    retunes: u32,
}

impl Tally {
    fn add(&mut self, scenario: &Scenario, truth: &Truth, rate_hz: f64, decision: &Decision) {
        // Where own time has a budget of its own, the other one is for the slowdown alone.
        let self_ns = if scenario.own_cpu_ratio.is_some() { 0.0 } else { truth.self_ns };
        let spend = Spend { base_ns: truth.target_ns, self_ns, ..Spend::default() };
        self.account.book(truth.wall_ns, truth.cpu_ns, &spend);
        let step = StepTotals { wall_ns: truth.wall_ns, cpu_ns: truth.cpu_ns, spent_ns: spend.total_ns() };
        self.history.push(step);
        self.cpu_ns += truth.cpu_ns;
        self.weight_ns += truth.functions.weight_ns.iter().sum::<f64>();
        self.samples += truth.samples as f64;
        self.asked += rate_hz * truth.cpu_ns * 1e-9;

        let at_s = decision.at_ns as f64 * 1e-9;
        let phase = scenario.phase(at_s);
        if at_s < phase.from_s + scenario.bands.converged_after_s {
            return;
        }
        self.converged.push(step);
        let believed = decision.cost.overhead_us * 1e-6 / phase.overhead_s();
        let (least, most) = self.overheads.unwrap_or((believed, believed));
        self.overheads = Some((least.min(believed), most.max(believed)));
        let ratio = decision.rate_hz / scenario.optimum_hz(phase);
        let (low, high) = self.rates.unwrap_or((ratio, ratio));
        self.steps += 1;
        self.wall_ns += truth.wall_ns;
        match decision.reason {
            RateReason::Throttle => self.throttled += 1,
            RateReason::Retune | RateReason::PhaseChange => self.retunes += 1,
            _ => {}
        }
        // What the bucket does for a step has its own band.
        if decision.reason != RateReason::Throttle {
            self.rates = Some((low.min(ratio), high.max(ratio)));
        }
    }

    fn outcome(self, scenario: &Scenario, rate_hz: f64) -> Outcome {
        let steps = f64::from(self.steps.max(1));
        let minutes = self.wall_ns * 1e-9 / 60.0;
        Outcome {
            rate_ratio: self.rates.unwrap_or_default(),
            overhead_ratio: self.overheads.unwrap_or_default(),
            worst_1s_of_budget: self.account.worst_1s_ratio() / scenario.budget_ratio,
            worst_10s_of_budget: self.account.worst_10s_ratio() / scenario.budget_ratio,
            converged_10s_of_budget: worst_ratio(&self.converged, 10.0) / scenario.budget_ratio,
            worst_60s_of_budget: worst_ratio(&self.history, 60.0) / scenario.budget_ratio,
            worst_200ms_of_budget: worst_ratio(&self.history, 0.2) / scenario.budget_ratio,
            retunes_per_minute: f64::from(self.retunes) / minutes.max(1.0),
            throttled_ratio: f64::from(self.throttled) / steps,
            weight_error_ratio: if self.cpu_ns > 0.0 { self.weight_ns / self.cpu_ns - 1.0 } else { 0.0 },
            realised_ratio: if self.asked > 0.0 { self.samples / self.asked } else { 1.0 },
            samples_of_law: self.samples / scenario.law_samples(self.cpu_ns * 1e-9).max(1.0),
            optimum_hz: scenario.optimum_hz(scenario.phase(scenario.duration_s)),
            rate_hz,
        }
    }
}

impl Outcome {
    /// The bands that the run violated, each with its value.
    pub fn violations(&self, scenario: &Scenario) -> Vec<String> {
        let bands = &scenario.bands;
        let at_most = |name: &str, value: f64, most: f64| {
            (value.is_nan() || value > most).then(|| format!("{name} = {value:.3}, above {most}"))
        };
        let within = |name: &str, (low, high): (f64, f64), band: (f64, f64)| {
            (!(low >= band.0 && high <= band.1))
                .then(|| format!("{name} = {low:.3}..{high:.3}, outside {}..{}", band.0, band.1))
        };
        let realised = (self.realised_ratio, self.realised_ratio);
        [
            within("rate_ratio", self.rate_ratio, bands.rate_ratio),
            within("overhead_ratio", self.overhead_ratio, bands.overhead_ratio),
            at_most("worst_1s_of_budget", self.worst_1s_of_budget, bands.worst_1s_of_budget),
            at_most("worst_10s_of_budget", self.worst_10s_of_budget, bands.worst_10s_of_budget),
            at_most("converged_10s_of_budget", self.converged_10s_of_budget, bands.converged_10s_of_budget),
            at_most("worst_60s_of_budget", self.worst_60s_of_budget, bands.worst_60s_of_budget),
            at_most("worst_200ms_of_budget", self.worst_200ms_of_budget, bands.worst_200ms_of_budget),
            at_most("retunes_per_minute", self.retunes_per_minute, bands.retunes_per_minute),
            at_most("throttled_ratio", self.throttled_ratio, bands.throttled_ratio),
            at_most("weight_error_ratio", self.weight_error_ratio.abs(), bands.weight_error_ratio),
            within("realised_ratio", realised, bands.realised_ratio),
            within(
                "samples_of_law",
                (self.samples_of_law, self.samples_of_law),
                (bands.samples_of_law, f64::INFINITY),
            ),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}
