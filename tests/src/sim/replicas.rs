//! Replicas of one service, each on its own host, under the real controllers: each learns of the others with a delay, and replicas
//! come and go.

use profiler_core::rate::{Account, RateController, Replicas, Spend, Usage};

use super::host::Host;
use super::profile::Functions;
use super::run::{calibration, settings};
use super::scenario::{Phase, Scenario};

/// A service.
#[derive(Clone, Debug)]
pub struct Service {
    /// How many replicas there are at any time.
    pub replicas: usize,
    /// What each does; of the load of its first phase, between half and all.
    pub scenario: Scenario,
    /// How often each learns the CPU time that all of them used since the last time (s).
    pub asked_every_s: f64,
    /// Share of the replicas that end each time, and others begin.
    pub churn_ratio: f64,
}

/// Results of the second half of the run.
#[derive(Clone, Debug, Default)]
pub struct ServiceOutcome {
    /// Rates at the end over those of the law for as many replicas under the true cost, of replicas that had time to settle.
    pub rates_of_law: Vec<f64>,
    /// The most that any ten seconds of any replica cost, over its budget.
    pub worst_10s_of_budget: f64,
    /// The sum of all profiles, beside the truth.
    pub pooled: Functions,
    /// The same of each replica that was there all the time.
    pub each: Vec<Functions>,
}

impl ServiceOutcome {
    /// Root of the mean squared relative error of the shares of the largest functions in these profiles.
    pub fn error_ratio(profiles: &[Functions]) -> f64 {
        let errors = profiles.iter().flat_map(|profile| {
            (0..4).map(|function| profile.share(function) / profile.true_share(function) - 1.0)
        });
        let squares: Vec<f64> = errors.map(|error| error * error).collect();
        (squares.iter().sum::<f64>() / squares.len() as f64).sqrt()
    }
}

struct Replica<'s> {
    scenario: &'s Scenario,
    /// When it began (s).
    from_s: f64,
    host: Host<'s>,
    controller: RateController,
    account: Account,
    rate_hz: f64,
    /// CPU time since it was asked last (s).
    cpu_s: f64,
    seen: Functions,
}

impl<'s> Replica<'s> {
    fn new(scenario: &'s Scenario, from_s: f64, seed: u64) -> Self {
        let mut controller = RateController::new(settings(scenario), calibration(scenario));
        let first = controller.start(0);
        Replica {
            scenario,
            from_s,
            host: Host::new(scenario, seed, &first),
            controller,
            account: Account::default(),
            rate_hz: first.rate_hz,
            cpu_s: 0.0,
            seen: Functions::default(),
        }
    }

    fn play(&mut self, until_s: f64, counts: bool) {
        while self.from_s + self.host.now_s() < until_s {
            let (reading, shares, truth) = self.host.step(|so_far| self.controller.overdrawn(so_far));
            let decision = self.controller.step(&reading, &shares);
            self.host.obey(&decision);
            self.rate_hz = decision.rate_hz;
            let spend = Spend { base_ns: truth.target_ns, self_ns: truth.self_ns, ..Spend::default() };
            self.account.book(truth.wall_ns, truth.cpu_ns, &spend);
            self.cpu_s += truth.cpu_ns * 1e-9;
            if counts {
                self.seen.add(&truth.functions);
            }
        }
    }

    /// Learns that all replicas used `fleet_cpus` over the last `range_s`.
    fn hear(&mut self, fleet_cpus: f64, now_s: f64, range_s: f64) {
        let cpu_s = std::mem::take(&mut self.cpu_s);
        let present_s = (now_s - self.from_s).clamp(1.0, range_s);
        let here = Usage { counted_cpus: cpu_s / range_s, present_cpus: cpu_s / present_s };
        self.controller.join_fleet(Replicas::of(fleet_cpus, here).unwrap_or_default());
    }

    /// The law's rate for a profile of `fleet_cpus`, this replica's part of it being its true one.
    fn law_hz(&self, fleet_cpus: f64) -> f64 {
        let phase = self.scenario.phase(0.0);
        let replicas = fleet_cpus / phase.utilisation_cpus();
        Scenario { horizon_s: replicas * self.scenario.horizon_s, ..self.scenario.clone() }.optimum_hz(phase)
    }
}

/// Plays `service` with `seed`.
pub fn run_service(service: &Service, seed: u64) -> ServiceOutcome {
    let mut rng = fastrand::Rng::with_seed(seed);
    let (range_s, duration_s) = (service.asked_every_s, service.scenario.duration_s);
    let usual = service.scenario.phase(0.0);
    let loads: Vec<Scenario> = (0..16)
        .map(|at| {
            let utilisation = usual.utilisation * (0.5 + f64::from(at) / 30.0);
            Scenario { phases: vec![Phase { utilisation, ..usual.clone() }], ..service.scenario.clone() }
        })
        .collect();
    let mut begun = 0_u64;
    let mut begin = |from_s: f64, rng: &mut fastrand::Rng| {
        begun += 1;
        Replica::new(&loads[rng.usize(..loads.len())], from_s, seed * 100_000 + begun)
    };
    let mut replicas: Vec<Replica<'_>> = (0..service.replicas).map(|_| begin(0.0, &mut rng)).collect();
    let mut outcome = ServiceOutcome::default();
    let leave = |outcome: &mut ServiceOutcome, replica: &Replica<'_>| {
        let worst = replica.account.worst_10s_ratio() / replica.scenario.budget_ratio;
        outcome.worst_10s_of_budget = outcome.worst_10s_of_budget.max(worst);
        outcome.pooled.add(&replica.seen);
    };
    let mut now_s = 0.0;
    while now_s < duration_s {
        let counts = now_s >= 0.5 * duration_s;
        now_s += range_s;
        replicas.iter_mut().for_each(|replica| replica.play(now_s, counts));
        let fleet_cpus = replicas.iter().map(|replica| replica.cpu_s).sum::<f64>() / range_s;
        replicas.iter_mut().for_each(|replica| replica.hear(fleet_cpus, now_s, range_s));
        for replica in &mut replicas {
            if now_s < duration_s && rng.f64() < service.churn_ratio {
                leave(&mut outcome, replica);
                *replica = begin(now_s, &mut rng);
            }
        }
    }
    let fleet_cpus: f64 = replicas.iter().map(|replica| replica.scenario.phase(0.0).utilisation_cpus()).sum();
    for replica in &replicas {
        leave(&mut outcome, replica);
        if now_s - replica.from_s >= 2.0 * range_s {
            outcome.rates_of_law.push(replica.rate_hz / replica.law_hz(fleet_cpus));
        }
        if replica.from_s == 0.0 {
            outcome.each.push(replica.seen.clone());
        }
    }
    outcome
}
