//! Several targets on one host, each under a controller of its own, and the host's budget between them.

use std::collections::VecDeque;

use profiler_core::rate::budget_division::{Demand, Division, divide};
use profiler_core::rate::{HostBudget, RateController, Replicas};

use super::host::Host;
use super::run::{calibration, settings};
use super::scenario::{Phase, Scenario};

/// What a host does.
#[derive(Clone, Debug)]
pub struct Fleet {
    /// Length (s).
    pub duration_s: f64,
    /// The host's budget (CPUs) from so many seconds on; the first from 0.
    pub budgets: Vec<(f64, f64)>,
    /// What is spent on no target (CPUs).
    pub housekeeping_cpus: f64,
    /// The targets.
    pub members: Vec<Member>,
}

/// A target of a host.
#[derive(Clone, Debug)]
pub struct Member {
    /// When it is attached to (s).
    pub from_s: f64,
    /// When it is left (s).
    pub to_s: f64,
    /// How much it matters.
    pub weight: f64,
    /// How many replicas there are of it, itself included.
    pub replicas: f64,
    /// What it does, by its own time.
    pub scenario: Scenario,
}

/// The results.
#[derive(Clone, Debug, Default)]
pub struct FleetOutcome {
    /// The most that was truly spent in any ten seconds, over the budget of these.
    pub worst_10s_of_budget: f64,
    /// What was truly spent in the last half, over the budget of it.
    pub used_of_budget: f64,
    /// The most of any ten seconds as the host's budget saw it.
    pub seen_10s_of_budget: f64,
    /// Rates at the end over those of the law under the true costs, for the targets that are there.
    pub rates_of_law: Vec<f64>,
    /// Changes of budgets in the last half of the run, for each target.
    pub changes: Vec<u64>,
    /// The smallest rate of any target at any step after its first two seconds (samples per CPU-second).
    pub least_rate_hz: f64,
}

struct Run<'f> {
    member: &'f Member,
    host: Host<'f>,
    controller: RateController,
    rate_hz: f64,
    changes: u64,
}

impl<'f> Run<'f> {
    fn new(member: &'f Member, seed: u64, granted: f64) -> Self {
        let mut controller = RateController::new(settings(&member.scenario), calibration(&member.scenario));
        controller.grant(granted);
        controller.join_fleet(Replicas::new(member.replicas));
        let first = controller.start(0);
        let host = Host::new(&member.scenario, seed, &first);
        Run { member, host, controller, rate_hz: first.rate_hz, changes: 0 }
    }

    fn now_s(&self) -> f64 {
        self.member.from_s + self.host.now_s()
    }

    fn phase(&self) -> &Phase {
        self.member.scenario.phase(self.host.now_s())
    }

    /// What it would demand if all costs were known.
    fn true_demand(&self) -> Demand {
        let (scenario, phase) = (&self.member.scenario, self.phase());
        let believed = self.controller.demand(self.member.weight);
        let spread = profiler_core::rate::model::spread(phase.all_shares(), 4);
        let busy_cpus = phase.utilisation_cpus();
        Demand {
            busy_cpus,
            counted_cpus: busy_cpus.max(0.1),
            sample_s: phase.overhead_s() + phase.own_us * 1e-6,
            target_s: phase.overhead_s(),
            fixed_cpus: scenario.own_per_second_us * 1e-6,
            error: 2.0 * scenario.criterion.r() * spread.unwrap_or_default()
                / (self.member.replicas * scenario.horizon_s).sqrt(),
            ..believed
        }
    }
}

/// The host's truth: what was spent, and when.
#[derive(Default)]
struct Books {
    last_ten: VecDeque<(f64, f64, f64)>,
    last_s: f64,
    worst: f64,
    /// Spent and granted from a moment on (s, ns, ns).
    later: (f64, f64, f64),
}

impl Books {
    /// Notes `spent_ns` up to `at_s`, of a budget of `granted_ns`.
    fn book(&mut self, at_s: f64, spent_ns: f64, granted_ns: f64) {
        self.last_ten.push_back((at_s - self.last_s, spent_ns, granted_ns));
        self.last_s = at_s;
        if at_s >= self.later.0 {
            self.later = (self.later.0, self.later.1 + spent_ns, self.later.2 + granted_ns);
        }
        let mut held_s: f64 = self.last_ten.iter().map(|(wall_s, ..)| wall_s).sum();
        while let Some((wall_s, ..)) = self.last_ten.front().filter(|(wall_s, ..)| held_s - wall_s >= 10.0) {
            held_s -= wall_s;
            self.last_ten.pop_front();
        }
        if held_s >= 10.0 {
            let sum = self
                .last_ten
                .iter()
                .fold((0.0, 0.0), |sum, (_, spent, granted)| (sum.0 + spent, sum.1 + granted));
            self.worst = self.worst.max(sum.0 / sum.1);
        }
    }
}

/// Plays `fleet` with `seed`.
pub fn run_fleet(fleet: &Fleet, seed: u64) -> FleetOutcome {
    let budget =
        |at_s: f64| fleet.budgets.iter().rev().find(|(from_s, _)| *from_s <= at_s).map_or(0.0, |step| step.1);
    let (mut host, mut books) = (HostBudget::new(budget(0.0)), Books::default());
    books.later.0 = 0.5 * fleet.duration_s;
    let mut runs: Vec<Run<'_>> = Vec::new();
    let mut waiting: Vec<(u64, &Member)> = (1..).zip(&fleet.members).collect();
    waiting.sort_by(|a, b| b.1.from_s.total_cmp(&a.1.from_s));
    let (mut now_s, mut in_force, mut least_rate_hz) = (0.0_f64, budget(0.0), f64::INFINITY);
    let mut left = Vec::new();
    while now_s < fleet.duration_s {
        while let Some((number, member)) = waiting.pop_if(|(_, member)| member.from_s <= now_s) {
            // A new target begins with what is left for one more like it.
            let run = Run::new(
                member,
                seed * 100 + number,
                host.affordable_cpus().min(member.scenario.budget_ratio),
            );
            runs.push(run);
            reshare(&mut host, fleet, &mut runs, now_s);
        }
        if budget(now_s) != in_force {
            in_force = budget(now_s);
            host.set_cpus(in_force);
        }
        let Some(next) = (0..runs.len()).min_by(|a, b| runs[*a].now_s().total_cmp(&runs[*b].now_s())) else {
            now_s += 0.01;
            continue;
        };
        let run = &mut runs[next];
        let (reading, shares, truth) = run.host.step(|so_far| run.controller.overdrawn(so_far));
        let decision = run.controller.step(&reading, &shares);
        run.host.obey(&decision);
        run.rate_hz = decision.rate_hz;
        if run.host.now_s() > 2.0 {
            least_rate_hz = least_rate_hz.min(decision.rate_hz);
        }
        let passed_s = (run.now_s() - now_s).max(0.0);
        now_s += passed_s;
        let spent_ns = truth.target_ns + truth.self_ns + fleet.housekeeping_cpus * passed_s * 1e9;
        books.book(now_s, spent_ns, in_force * passed_s * 1e9);
        host.book((now_s * 1e9) as u64, spent_ns, 0.0, 0.0);
        if run.now_s() >= run.member.to_s {
            left.push(runs.remove(next).changes);
        }
        reshare(&mut host, fleet, &mut runs, now_s);
    }
    let law = divide(
        &runs.iter().map(Run::true_demand).collect::<Vec<_>>(),
        0.9 * (in_force - fleet.housekeeping_cpus),
    );
    FleetOutcome {
        worst_10s_of_budget: books.worst,
        used_of_budget: books.later.1 / books.later.2,
        seen_10s_of_budget: host.worst_10s_ratio(),
        rates_of_law: runs.iter().zip(&law.of).map(|(run, share)| run.rate_hz / share.rate_hz).collect(),
        changes: runs.iter().map(|run| run.changes).chain(left).collect(),
        least_rate_hz,
    }
}

fn reshare(host: &mut HostBudget, fleet: &Fleet, runs: &mut [Run<'_>], now_s: f64) {
    let demands: Vec<Demand> = runs.iter().map(|run| run.controller.demand(run.member.weight)).collect();
    let granted: Vec<f64> = runs.iter().map(|run| run.controller.granted_ratio()).collect();
    let at_ns = (now_s * 1e9) as u64;
    let Some(Division { of, .. }) = host.share(at_ns, fleet.housekeeping_cpus, &demands, &granted) else {
        return;
    };
    for ((run, share), granted) in runs.iter_mut().zip(of).zip(granted) {
        if share.granted_ratio != granted {
            run.controller.grant(share.granted_ratio);
            run.changes += u64::from(now_s > 0.5 * fleet.duration_s);
        }
    }
}
