//! A day of continuous operation on a big machine, under the real controller, in seconds.

use profiler_core::attach::{AttachChoice, AttachMode, Observed};
use profiler_core::rate::{
    Account, CostModel, Decision, RateController, RateSettings, Reading, Spend, TopShares,
};
use profiler_core::resources::{Resources, time_to_fill_ns};
use profiler_core::unwind::copy::CopySize;
use serde::Serialize;

use super::crowd::Crowd;

/// Mean length of a step; the daemon draws each (ns).
const TICK_NS: u64 = 100_000_000;
/// Time between two reads of the rings where a sample's cost could jump (ns).
const LOOK_NS: u64 = 25_000_000;
/// Most clocks that are redrawn in a step.
const REDRAWS_AT_ONCE: u64 = 64;
const SECOND_NS: u64 = 1_000_000_000;

/// A machine, its load and what the profiler costs on it.
#[derive(Clone, Debug)]
pub struct Day {
    /// CPUs of the machine.
    pub cpus: u64,
    /// Threads of the target.
    pub threads: u64,
    /// Length (h), from midnight on.
    pub hours: f64,
    /// The way to attach; `None` leaves the choice to the profiler.
    pub mode: Option<AttachMode>,
    /// The budget (ratio of the target's CPU time).
    pub budget_ratio: f64,
    /// W (CPU-seconds).
    pub horizon_s: f64,
    /// Depth of the stacks (bytes); they are copied.
    pub stack_bytes: u64,
    /// Context switches of the target per second of its CPU time.
    pub switches_per_cpu_s: f64,
    /// CPUs that non-target processes keep busy; events of whole CPUs hit them too.
    pub non_target_cpus: f64,
    /// Cost of samples and switches, as calibrated; noise comes on top.
    pub costs: CostModel,
    /// Noise of the true cost: each step's is uniform within this around the mean.
    pub noise_ratio: f64,
    /// The profiler's own CPU time.
    pub own: OwnCosts,
    /// Seed of the random numbers.
    pub seed: u64,
}

/// What the profiler uses itself (µs of CPU time).
#[derive(Clone, Copy, Debug)]
pub struct OwnCosts {
    /// Per second, whatever it does.
    pub per_second_us: f64,
    /// Per sample, of non-target processes too.
    pub per_sample_us: f64,
    /// Per look at one CPU's ring.
    pub per_ring_us: f64,
    /// Per redraw of a clock: a system call that interrupts the clock's CPU.
    pub per_redraw_us: f64,
    /// Per thread and second, where its context switches are read.
    pub per_thread_us: f64,
}

impl Default for OwnCosts {
    /// Measured on a virtual machine with two CPUs; the costs of a ring and of a redraw are guesses.
    fn default() -> Self {
        OwnCosts {
            per_second_us: 500.0,
            per_sample_us: 2.5,
            per_ring_us: 0.1,
            per_redraw_us: 1.5,
            per_thread_us: 10.0,
        }
    }
}

impl Default for Day {
    /// A server with 64 CPUs and 1,000 threads.
    fn default() -> Self {
        Day {
            cpus: 64,
            threads: 1000,
            hours: 24.0,
            mode: None,
            budget_ratio: 0.01,
            horizon_s: 60.0,
            stack_bytes: 3000,
            switches_per_cpu_s: 2000.0,
            non_target_cpus: 0.5,
            costs: CostModel::default(),
            noise_ratio: 0.2,
            own: OwnCosts::default(),
            seed: 1,
        }
    }
}

/// Results of a day. Overhead is by the true cost, relative to the budget.
#[derive(Clone, Debug, Serialize)]
pub struct DayOutcome {
    /// The way in force at the end.
    pub mode: AttachMode,
    /// Changes of the way.
    pub mode_changes: u64,
    /// Events, files and memory of the way at the end.
    pub resources: Resources,
    /// The shortest time in which the rings had to be read (ns).
    pub least_time_to_fill_ns: u64,
    /// CPU time of the target (s).
    pub target_cpu_s: f64,
    /// CPU time of the profiler (s).
    pub own_cpu_s: f64,
    /// Samples of the target.
    pub samples: u64,
    /// Changes of the rate by the law.
    pub retunes: u64,
    /// The worst second.
    pub worst_1s_of_budget: f64,
    /// When it ended (h), and how many CPUs the target kept busy then.
    pub worst_1s_at: (f64, f64),
    /// Share of the time that ended a second above 1.2 × budget.
    pub over_in_1s_ratio: f64,
    /// The worst ten seconds.
    pub worst_10s_of_budget: f64,
    /// The whole day.
    pub day_of_budget: f64,
}

/// Plays a day.
pub fn run_day(day: &Day) -> DayOutcome {
    let mut run = Run::new(day);
    let end_ns = (day.hours * 3600.0 * 1e9) as u64;
    while run.now_ns < end_ns {
        run.step();
    }
    run.outcome()
}

/// What really happened in a step.
#[derive(Default)]
struct StepTotals {
    cpu_ns: f64,
    target_ns: f64,
    foreign_ns: f64,
    own_us: f64,
    samples: u64,
    foreign: u64,
    stack_bytes: u64,
    counts: [u64; 8],
}

struct Run<'a> {
    day: &'a Day,
    crowd: Crowd,
    controller: RateController,
    attach: AttachChoice,
    copy: CopySize,
    account: Account,
    now_ns: u64,
    next_second_ns: u64,
    decision: Decision,
    /// Since the last second: switches, CPU time (ns) and foreign samples.
    switches: f64,
    cpu_ns: f64,
    foreign: u64,
    /// Charged to the target since the last look (ns).
    samples_ns: f64,
    own_us: f64,
    mode_changes: u64,
    least_time_to_fill_ns: u64,
    worst: (f64, f64, f64),
    over_ns: f64,
}

impl<'a> Run<'a> {
    fn new(day: &'a Day) -> Self {
        let copy = CopySize::default();
        let settings = RateSettings {
            budget_ratio: day.budget_ratio,
            horizon_s: Some(day.horizon_s),
            expected_frames: 0.0,
            expected_stack_bytes: f64::from(copy.bytes()),
            ..RateSettings::default()
        };
        let mut controller = RateController::new(settings, day.costs);
        let decision = controller.start(0);
        let attach = AttachChoice::new(day.mode, true, day.threads as usize, day.cpus as usize, 0.0);
        Run {
            day,
            crowd: Crowd::new(day),
            controller,
            attach,
            copy,
            account: Account::default(),
            now_ns: 0,
            next_second_ns: SECOND_NS,
            decision,
            switches: 0.0,
            cpu_ns: 0.0,
            foreign: 0,
            samples_ns: 0.0,
            own_us: 0.0,
            mode_changes: 0,
            least_time_to_fill_ns: u64::MAX,
            worst: (0.0, 0.0, 0.0),
            over_ns: 0.0,
        }
    }

    fn resources(&self) -> Resources {
        Resources::new(self.attach.mode(), self.day.threads, self.day.cpus)
    }

    /// Simulates a step, which the controller may cut short if it has spent too much, and the decision at its end.
    fn step(&mut self) {
        let (started_ns, mut step) = (self.now_ns, StepTotals::default());
        let noise = self.crowd.around_one(self.day.noise_ratio);
        let looks = self.controller.non_targets_may_overspend() || self.cost_may_jump();
        while self.now_ns - started_ns < TICK_NS {
            self.pass(&mut step, noise);
            if looks && self.look_shows_debt(&mut step) {
                break;
            }
        }
        step.own_us += self.day.cpus as f64 * self.day.own.per_ring_us;
        let redraws = (step.samples + step.foreign).min(self.resources().clocks).min(REDRAWS_AT_ONCE);
        step.own_us += redraws as f64 * self.day.own.per_redraw_us;
        let switches = if self.now_ns >= self.next_second_ns { self.each_second(&mut step) } else { 0 };
        let counted = step.counts.iter().enumerate().map(|(function, count)| (function as u64, *count));
        let shares = TopShares { counts: counted.collect(), ..TopShares::default() };
        let reading = Reading { target_cpu_ns: step.cpu_ns as u64, ..step.reading(self.now_ns, switches) };
        self.book((self.now_ns - started_ns) as f64, &step);
        self.decision = self.controller.step(&reading, &shares);
        self.copy.revise(self.now_ns);
        let ring_bytes = self.resources().ring_bytes;
        let filled_ns = time_to_fill_ns(ring_bytes, u64::from(self.copy.bytes()), self.decision.period_ns);
        self.least_time_to_fill_ns = self.least_time_to_fill_ns.min(filled_ns);
    }

    /// The daemon's assumption: the most expensive sample costs twice as much as usual ones.
    fn cost_may_jump(&self) -> bool {
        let dearest = self.day.costs.sample(0.0, f64::from(self.copy.bytes()));
        dearest.mean_ns > 2.0 * self.controller.cost().target.mean_ns
    }

    /// Reads the rings within the step; returns whether the step must end here.
    fn look_shows_debt(&self, step: &mut StepTotals) -> bool {
        step.own_us += self.day.cpus as f64 * self.day.own.per_ring_us;
        self.controller.overdrawn(&step.reading(self.now_ns, 0))
    }

    /// Simulates the time until the next read of the rings.
    fn pass(&mut self, step: &mut StepTotals, noise: f64) {
        let (day, length_s) = (self.day, LOOK_NS as f64 * 1e-9);
        let busy_cpus = self.crowd.busy_cpus(self.now_ns as f64 * 1e-9, length_s);
        let cpu_ns = busy_cpus * LOOK_NS as f64;
        let counts = self.crowd.samples(cpu_ns / self.decision.period_ns as f64);
        let samples: u64 = counts.iter().sum();
        let stack_bytes = u64::from(self.copy.bytes());
        let sample_ns = day.costs.sample(0.0, stack_bytes as f64).mean_ns;
        let switches = cpu_ns * 1e-9 * day.switches_per_cpu_s;
        let foreign = if self.attach.mode() == AttachMode::Cpu {
            self.crowd.poisson(day.non_target_cpus * LOOK_NS as f64 / self.decision.period_ns as f64)
        } else {
            step.target_ns += switches * day.costs.per_switch_ns.mean_ns;
            self.switches += switches;
            0
        };
        (0..samples.min(50)).for_each(|_| self.copy.observe(day.stack_bytes, false));
        (0..8).for_each(|function| step.counts[function] += counts[function]);
        step.cpu_ns += cpu_ns;
        step.target_ns += samples as f64 * sample_ns * noise;
        step.foreign_ns += foreign as f64 * sample_ns * noise;
        step.samples += samples;
        step.foreign += foreign;
        step.stack_bytes += samples * stack_bytes;
        step.own_us += length_s * day.own.per_second_us + (samples + foreign) as f64 * day.own.per_sample_us;
        self.now_ns += LOOK_NS;
    }

    /// Changes to the other way to attach if it is cheaper; returns the context switches that the events made more expensive.
    fn each_second(&mut self, step: &mut StepTotals) -> u64 {
        self.next_second_ns = self.now_ns + SECOND_NS;
        let costs = &self.day.costs;
        let (switches, foreign) = (std::mem::take(&mut self.switches), std::mem::take(&mut self.foreign));
        if self.attach.mode() == AttachMode::Task {
            step.own_us += self.day.threads as f64 * self.day.own.per_thread_us;
        }
        let extra_ns = switches * costs.per_switch_ns.mean_ns + foreign as f64 * costs.per_sample_ns.mean_ns;
        let target_ns = std::mem::take(&mut self.cpu_ns);
        let samples_ns = std::mem::take(&mut self.samples_ns);
        let observed = Observed { extra_ns, samples_ns, ends_ns: 0.0, target_ns, wall_ns: SECOND_NS as f64 };
        let task_events = (self.day.threads * self.day.cpus) as usize;
        if self.attach.observe(self.now_ns, observed, || task_events).is_some() {
            self.mode_changes += 1;
            self.controller.attached_anew();
            return 0;
        }
        switches as u64
    }

    fn book(&mut self, wall_ns: f64, step: &StepTotals) {
        let spend = Spend {
            base_ns: step.target_ns,
            foreign_ns: step.foreign_ns,
            self_ns: step.own_us * 1e3,
            ..Spend::default()
        };
        self.account.book(wall_ns, step.cpu_ns, &spend);
        self.cpu_ns += step.cpu_ns;
        self.foreign += step.foreign;
        self.samples_ns += step.target_ns;
        self.own_us += step.own_us;
        let last_1s = self.account.last_1s_ratio();
        if self.now_ns >= SECOND_NS && last_1s > self.worst.0 {
            self.worst = (last_1s, self.now_ns as f64 / 3600e9, step.cpu_ns / wall_ns);
        }
        if last_1s > 1.2 * self.day.budget_ratio {
            self.over_ns += wall_ns;
        }
    }

    fn outcome(self) -> DayOutcome {
        let of_budget = |ratio: f64| ratio / self.day.budget_ratio;
        DayOutcome {
            mode: self.attach.mode(),
            mode_changes: self.mode_changes,
            resources: self.resources(),
            least_time_to_fill_ns: self.least_time_to_fill_ns,
            target_cpu_s: self.account.target_cpu_s(),
            own_cpu_s: self.own_us * 1e-6,
            samples: self.decision.so_far.samples,
            retunes: self.decision.so_far.retunes,
            worst_1s_of_budget: of_budget(self.account.worst_1s_ratio()),
            worst_1s_at: (self.worst.1, self.worst.2),
            over_in_1s_ratio: self.over_ns / self.now_ns as f64,
            worst_10s_of_budget: of_budget(self.account.worst_10s_ratio()),
            day_of_budget: of_budget(self.account.ratio()),
        }
    }
}

impl StepTotals {
    /// The daemon's readings, without the target's CPU time.
    fn reading(&self, at_ns: u64, switches: u64) -> Reading {
        Reading {
            at_ns,
            self_cpu_ns: (self.own_us * 1e3) as u64,
            samples: self.samples,
            foreign_samples: self.foreign,
            stack_bytes: self.stack_bytes,
            switches,
            ..Reading::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn half_an_hour() -> Day {
        let mode = Some(AttachMode::Cpu);
        Day { hours: 0.5, non_target_cpus: 0.05, mode, ..Day::default() }
    }

    #[test]
    fn a_busy_half_hour_stays_within_the_budget() {
        let outcome = run_day(&half_an_hour());
        assert!(outcome.worst_1s_of_budget <= 1.2 && outcome.worst_10s_of_budget <= 1.02, "{outcome:?}");
        assert!(outcome.day_of_budget <= 1.0 && outcome.over_in_1s_ratio == 0.0, "{outcome:?}");
        assert!(outcome.samples > 100_000 && outcome.target_cpu_s > 1_000.0, "{outcome:?}");
    }

    #[test]
    fn the_first_of_the_night_stays_within_the_budget_beside_non_targets() {
        // From one o'clock on the target hardly runs, non-target processes as before.
        let outcome = run_day(&Day { hours: 1.1, mode: None, ..Day::default() });
        assert!(outcome.worst_1s_of_budget <= 1.2 && outcome.worst_10s_of_budget <= 1.02, "{outcome:?}");
        assert_eq!((outcome.mode, outcome.mode_changes), (AttachMode::Cpu, 0), "{outcome:?}");
    }

    #[test]
    fn own_time_beyond_the_budget_shows() {
        let own = OwnCosts { per_second_us: 5e5, ..OwnCosts::default() };
        let outcome = run_day(&Day { own, ..half_an_hour() });
        assert!(outcome.worst_10s_of_budget > 1.02 && outcome.over_in_1s_ratio > 0.0, "{outcome:?}");
    }

    #[test]
    fn a_day_can_be_played_again() {
        let day = Day { hours: 0.02, ..Day::default() };
        let played = |seed| format!("{:?}", run_day(&Day { seed, ..day.clone() }));
        assert_eq!(played(7), played(7));
        assert_ne!(played(7), played(8));
    }
}
