//! Several targets under one budget of the host, in simulation.

use std::io::Write;

use profiler_core::rate::budget_division::{Demand, divide};
use profiler_core::rate::model::spread;
use tests::sim::{
    Fleet, FleetOutcome, Member, Phase, Scenario, Service, ServiceOutcome, run, run_fleet, run_service,
};

/// A target that may cost so much of its CPU time, and these phases.
fn member(budget_ratio: f64, phases: Vec<Phase>) -> Member {
    let scenario = Scenario { budget_ratio, own_per_second_us: 100.0, ..Scenario::of(phases, 120.0) };
    Member { from_s: 0.0, to_s: f64::INFINITY, weight: 1.0, replicas: 1.0, scenario }
}

/// In functions that don't run on for a period, as the law that the rates are compared with has it.
fn busy(from_s: f64, threads: usize, utilisation: f64) -> Phase {
    Phase { from_s, threads, utilisation, bout_ms: 0.1, ..Phase::default() }
}

/// Plays it with three seeds. The host's budget is kept in every ten seconds, and no target is ever without a rate.
fn play(name: &str, fleet: &Fleet) -> Vec<FleetOutcome> {
    let play = |seed| {
        let outcome = run_fleet(fleet, seed);
        writeln!(std::io::stderr(), "{name} seed {seed}: {outcome:?}").expect("stderr is open");
        assert!(outcome.worst_10s_of_budget <= 1.02, "{name} seed {seed}: {outcome:?}");
        assert!(outcome.least_rate_hz >= 1.0, "{name} seed {seed}: {outcome:?}");
        outcome
    };
    (1..=3).map(play).collect()
}

fn follows_the_law(outcomes: &[FleetOutcome]) {
    for outcome in outcomes {
        let near = outcome.rates_of_law.iter().all(|ratio| (0.7..1.4).contains(ratio));
        assert!(near, "{outcome:?}");
    }
}

#[test]
fn a_steady_host_is_shared_by_the_law_and_left_alone() {
    let members = vec![
        member(0.02, vec![busy(0.0, 1, 1.0)]),
        member(0.02, vec![busy(0.0, 3, 1.0)]),
        Member { weight: 3.0, ..member(0.02, vec![Phase { sample_us: 30.0, ..busy(0.0, 1, 0.5) }]) },
        member(0.02, vec![busy(0.0, 1, 0.05)]),
    ];
    let fleet = Fleet { duration_s: 60.0, budgets: vec![(0.0, 0.03)], housekeeping_cpus: 0.001, members };
    let outcomes = play("steady", &fleet);
    follows_the_law(&outcomes);
    for outcome in outcomes {
        // Half a minute: once in a while a cost is known better.
        assert!(outcome.changes.iter().all(|changes| *changes <= 6), "{outcome:?}");
    }
}

/// Of a budget that is short, replicas leave to others what these gain more by.
#[test]
fn replicas_share_a_host_with_programs_of_its_own() {
    let members = [1.0, 1_000.0, 30.0, 1.0]
        .map(|replicas| Member { replicas, ..member(0.02, vec![busy(0.0, 1, 1.0)]) });
    for host_cpus in [0.012, 0.2] {
        let fleet = Fleet {
            duration_s: 60.0,
            budgets: vec![(0.0, host_cpus)],
            housekeeping_cpus: 0.001,
            members: members.to_vec(),
        };
        follows_the_law(&play("replicas", &fleet));
    }
}

/// A service of so many replicas, of which a twentieth is replaced each quarter of a minute.
fn service(replicas: usize) -> Service {
    let phase = Phase { threads: 1, bout_ms: 0.1, sample_us: 8.0, ..Phase::default() };
    let scenario = Scenario { own_per_second_us: 100.0, ..Scenario::of(vec![phase], 90.0) };
    Service { replicas, scenario, asked_every_s: 15.0, churn_ratio: if replicas > 1 { 0.05 } else { 0.0 } }
}

#[test]
fn replicas_that_come_and_go_sample_by_the_cube_root_of_their_number() {
    // A thousand take minutes without optimization (`just sim`, with a release build, has them).
    let counts: &[usize] = if cfg!(debug_assertions) { &[10] } else { &[10, 1_000] };
    let alone: Vec<ServiceOutcome> = (1..=8).map(|seed| run_service(&service(1), seed)).collect();
    let profiles: Vec<_> = alone.iter().map(|outcome| outcome.pooled.clone()).collect();
    let error_alone = ServiceOutcome::error_ratio(&profiles);
    for &count in counts {
        let seeds = if count > 100 { 1 } else { 3 };
        let outcomes: Vec<ServiceOutcome> =
            (1..=seeds).map(|seed| run_service(&service(count), seed)).collect();
        let rates: Vec<f64> = outcomes.iter().flat_map(|outcome| outcome.rates_of_law.clone()).collect();
        let mean = rates.iter().sum::<f64>() / rates.len() as f64;
        let pooled: Vec<_> = outcomes.iter().map(|outcome| outcome.pooled.clone()).collect();
        let (pooled, each) =
            (ServiceOutcome::error_ratio(&pooled), ServiceOutcome::error_ratio(&outcomes[0].each));
        let worst = outcomes.iter().map(|outcome| outcome.worst_10s_of_budget).fold(0.0, f64::max);
        let gained = pooled / error_alone * (count as f64).cbrt();
        writeln!(
            std::io::stderr(),
            "{count} replicas: rates {mean:.3} of the law's ({:.3} to {:.3}), worst 10 s {worst:.3} of the budget, error {pooled:.4} together, \
             {each:.4} each, {error_alone:.4} of one alone; R^(1/3) times together over alone {gained:.2}",
            rates.iter().copied().fold(f64::INFINITY, f64::min),
            rates.iter().copied().fold(0.0, f64::max),
        )
        .expect("stderr is open");
        assert!((mean - 1.0).abs() <= 0.05, "{count}: {mean}");
        assert!(rates.iter().all(|ratio| (0.93..1.07).contains(ratio)), "{count}: {rates:?}");
        assert!(worst <= 1.02, "{count}: {worst}");
        // Four functions of a few runs tell an error to a factor.
        assert!((0.4..2.0).contains(&gained) && pooled < each, "{count}: {pooled} {each} {error_alone}");
    }
}

#[test]
fn a_target_that_wakes_up_takes_its_share_from_the_others() {
    let members = vec![
        member(0.02, vec![busy(0.0, 2, 1.0)]),
        member(0.02, vec![busy(0.0, 1, 0.0), busy(20.0, 4, 1.0), busy(50.0, 1, 0.1)]),
        member(0.02, vec![busy(0.0, 1, 0.5)]),
    ];
    let fleet = Fleet { duration_s: 80.0, budgets: vec![(0.0, 0.03)], housekeeping_cpus: 0.001, members };
    follows_the_law(&play("wakes up", &fleet));
}

#[test]
fn targets_come_and_go() {
    let mut members = vec![member(0.03, vec![busy(0.0, 2, 1.0)])];
    members.extend((0..6).map(|at| Member {
        from_s: 10.0 + 4.0 * f64::from(at),
        to_s: 50.0 + 2.0 * f64::from(at),
        ..member(0.03, vec![busy(0.0, 1, 0.7)])
    }));
    let fleet = Fleet { duration_s: 90.0, budgets: vec![(0.0, 0.04)], housekeeping_cpus: 0.001, members };
    follows_the_law(&play("come and go", &fleet));
}

#[test]
fn the_host_s_budget_may_change() {
    let members = (1..=4).map(|threads| member(0.02, vec![busy(0.0, threads, 0.8)])).collect();
    let budgets = vec![(0.0, 0.08), (25.0, 0.02), (60.0, 0.06)];
    let fleet = Fleet { duration_s: 100.0, budgets, housekeeping_cpus: 0.002, members };
    follows_the_law(&play("another budget", &fleet));
}

#[test]
fn bursts_of_many_at_once_are_paid_for() {
    let burst = Phase { burst_s: 0.5, burst_every_s: 4.0, ..busy(0.0, 2, 1.0) };
    let members = (0..5).map(|_| member(0.02, vec![burst.clone()])).collect();
    let fleet = Fleet { duration_s: 80.0, budgets: vec![(0.0, 0.04)], housekeeping_cpus: 0.001, members };
    // What is kept for a burst is kept between bursts too: else budgets would come and go with them.
    for outcome in play("bursts", &fleet) {
        assert!(outcome.changes.iter().all(|changes| *changes <= 6), "{outcome:?}");
    }
}

/// A target that works for half a second in every four, with this many threads.
fn bursty(threads: usize) -> Phase {
    Phase { burst_s: 0.5, burst_every_s: 4.0, ..busy(0.0, threads, 1.0) }
}

#[test]
fn targets_that_burst_use_what_is_left_to_them() {
    // All at once, and what the law asks for is several times the host's budget.
    let members = (0..5).map(|_| member(0.1, vec![bursty(2)])).collect();
    let fleet = Fleet { duration_s: 80.0, budgets: vec![(0.0, 0.006)], housekeeping_cpus: 0.001, members };
    for outcome in play("bursts beyond the budget", &fleet) {
        // Ten seconds hold three bursts at most and two and a half on the whole; controllers aim at nine tenths.
        assert!(outcome.used_of_budget >= 0.55, "{outcome:?}");
    }
}

#[test]
fn bursts_at_any_time_beside_steady_targets_are_paid_for() {
    let mut members: Vec<Member> = (0..4)
        .map(|at| Member { from_s: 0.7 * f64::from(at), ..member(0.1, vec![bursty(2 + at as usize)]) })
        .collect();
    members.push(member(0.1, vec![busy(0.0, 1, 0.8)]));
    members.push(member(0.1, vec![busy(0.0, 1, 0.3), busy(45.0, 3, 1.0)]));
    let fleet = Fleet { duration_s: 90.0, budgets: vec![(0.0, 0.03)], housekeeping_cpus: 0.001, members };
    for outcome in play("bursts beside steady targets", &fleet) {
        assert!(outcome.used_of_budget >= 0.6, "{outcome:?}");
    }
}

#[test]
fn bursts_that_grow_longer_are_paid_for() {
    let longer = Phase { from_s: 40.0, burst_s: 2.0, ..bursty(4) };
    let members = (0..3).map(|_| member(0.1, vec![bursty(4), longer.clone()])).collect();
    let fleet = Fleet { duration_s: 80.0, budgets: vec![(0.0, 0.02)], housekeeping_cpus: 0.001, members };
    for outcome in play("longer bursts", &fleet) {
        assert!(outcome.used_of_budget >= 0.55, "{outcome:?}");
    }
}

/// Targets that share a sampler: their parts of the CPU time, and what their samples cost, as factors on the usual cost.
struct Sharing {
    parts: Vec<f64>,
    costs: Vec<f64>,
}

impl Sharing {
    /// From nine tenths of the CPU time down to a ten-thousandth, with costs that differ by a factor of four.
    fn of(targets: usize, seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let parts: Vec<f64> =
            (0..targets).map(|at| if at == 0 { 0.9 } else { 0.9 * 9e3_f64.powf(-rng.f64()) }).collect();
        let all: f64 = parts.iter().sum();
        let parts: Vec<f64> = parts.into_iter().map(|part| part / all).collect();
        let costs: Vec<f64> = (0..targets).map(|_| 4f64.powf(rng.f64() - 0.5)).collect();
        let mean: f64 = parts.iter().zip(&costs).map(|(part, cost)| part * cost).sum();
        Self { costs: costs.into_iter().map(|cost| cost / mean).collect(), parts }
    }

    /// All of them as one program: what the sampler sees.
    fn scenario(&self, budget_ratio: f64) -> Scenario {
        let usual = Phase { threads: 2, bout_ms: 0.1, ..Phase::default() };
        let (mut shares, mut cost_factors) = (Vec::new(), Vec::new());
        for (part, cost) in self.parts.iter().zip(&self.costs) {
            shares.extend(usual.shares.iter().map(|share| share * part));
            cost_factors.extend(usual.shares.iter().map(|_| *cost));
        }
        Scenario { budget_ratio, ..Scenario::of(vec![Phase { shares, cost_factors, ..usual }], 120.0) }
    }

    /// What each would demand if everything were known: errors of CPU seconds, which add up over the targets.
    fn demands(&self, scenario: &Scenario, slowdown_ratio: f64) -> Vec<Demand> {
        let usual = Phase::default();
        let spread = spread(usual.shares.iter().copied(), 4).expect("there are functions");
        let each = self.parts.iter().zip(&self.costs).map(|(part, cost)| Demand {
            slowdown_ratio,
            busy_cpus: 2.0 * part,
            counted_cpus: 2.0 * part,
            sample_s: cost * usual.overhead_s(),
            target_s: cost * usual.overhead_s(),
            error: 2.0 * scenario.criterion.r() * spread / (scenario.horizon_s * part).sqrt(),
            weight: *part,
            ..Demand::default()
        });
        each.collect()
    }
}

/// Σ w·(A/√λ + o·λ).
fn error(demands: &[Demand], rate_hz: impl Fn(usize) -> f64) -> f64 {
    let of_one = |(at, demand): (usize, &Demand)| {
        demand.weight * (demand.error / rate_hz(at).sqrt() + demand.target_s * rate_hz(at))
    };
    demands.iter().enumerate().map(of_one).sum()
}

/// One rate for all is nearly as good as the best one for each: the error hardly depends on it near its least. Where the budget
/// binds, the target whose samples are the dearest binds all.
#[test]
fn a_rate_that_targets_share_is_nearly_as_good_as_one_for_each() {
    let few = [1, 2, 5, 19]
        .map(|targets| (targets, 1.45, &[(1, 0.05), (2, 0.05), (3, 0.05), (4, 0.004), (5, 0.004)][..]));
    // Thousands of functions take a minute without optimization (`just sim`, with a release build, has them).
    let many = if cfg!(debug_assertions) { &[100][..] } else { &[100, 500] };
    let many = many.iter().map(|&targets| (targets, 1.55, &[(1, 0.05), (4, 0.004)][..]));
    for (targets, most_where_bound, runs) in few.into_iter().chain(many) {
        for &(seed, slowdown_ratio) in runs {
            let sharing = Sharing::of(targets, seed);
            let scenario = sharing.scenario(0.05);
            let demands = sharing.demands(&scenario, slowdown_ratio);
            let best = divide(&demands, f64::MAX);
            let outcome = run(&scenario, seed, |_| ());
            let running = demands.iter().filter(|demand| demand.busy_cpus >= 0.01);
            let dearest_hz =
                running.map(|demand| demand.slowdown_ratio / demand.target_s).fold(f64::INFINITY, f64::min);
            let rate_hz = outcome.rate_hz.min(dearest_hz);
            let ratio = error(&demands, |_| rate_hz) / error(&demands, |at| best.of[at].rate_hz);
            let told =
                format!("{targets} targets, seed {seed}, slowdown {slowdown_ratio}: {ratio:.3}, {outcome:?}");
            writeln!(std::io::stderr(), "{told}").expect("stderr is open");
            // Where a budget binds, the others could have more than the dearest lets all have: of more targets, it is dearer.
            assert!(ratio <= if slowdown_ratio < 0.01 { most_where_bound } else { 1.15 }, "{told}");
            assert!(outcome.worst_10s_of_budget <= 1.02 && outcome.worst_1s_of_budget <= 1.2, "{told}");
        }
    }
}
