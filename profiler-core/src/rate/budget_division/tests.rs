use proptest::prelude::*;

use super::*;

/// A target that keeps this many CPUs busy, with samples of 20 µs.
fn busy(cpus: f64) -> Demand {
    Demand {
        busy_cpus: cpus,
        counted_cpus: cpus.max(0.1),
        sample_s: 20e-6,
        target_s: 15e-6,
        fixed_cpus: 300e-6,
        error: 0.4,
        cap_hz: 50_000.0,
        ..Demand::default()
    }
}

fn demand() -> impl Strategy<Value = Demand> {
    let costs = (1e-6..200e-6_f64, 0.2..1.0_f64, 0.0..2e-3_f64);
    let load = prop_oneof![1 => Just(0.0), 4 => 0.01..64.0_f64];
    let budget = prop_oneof![1 => 1e-4..2e-3_f64, 3 => 2e-3..0.2_f64];
    (costs, load, budget, 0.01..2.0_f64, 0.2..5.0_f64, 50.0..50_000.0_f64).prop_map(
        |((sample_s, part, fixed_cpus), busy_cpus, slowdown_ratio, error, weight, cap_hz)| Demand {
            slowdown_ratio,
            busy_cpus,
            counted_cpus: busy_cpus.max(0.1),
            sample_s,
            target_s: part * sample_s,
            fixed_cpus,
            error,
            weight,
            cap_hz,
            ..Demand::default()
        },
    )
}

/// The sum of the losses that the law minimises.
fn loss(demands: &[Demand], rates_hz: &[f64]) -> f64 {
    let of = |(demand, rate_hz): (&Demand, &f64)| {
        demand.weight * (demand.target_s * rate_hz + demand.error / rate_hz.sqrt())
    };
    demands.iter().zip(rates_hz).map(of).sum()
}

/// The least loss on a grid of rates of two or three targets, each between its floor and its most; the last one gets what
/// is left.
fn best_on_a_grid(demands: &[Demand], host_cpus: f64) -> Option<f64> {
    const POINTS: i32 = 120;
    let claims: Vec<DemandTerms> = demands.iter().map(DemandTerms::new).collect();
    let fixed: f64 = demands.iter().map(|demand| demand.fixed_cpus).sum();
    let grid = |claim: &DemandTerms| {
        let (low, high) = (claim.floor_hz, claim.most_hz);
        (0..=POINTS).map(move |at| low * (high / low).powf(f64::from(at) / f64::from(POINTS)))
    };
    let last = claims.last()?;
    let with_last = |mut rates: Vec<f64>| {
        let spent: f64 = claims.iter().zip(&rates).map(|(claim, rate)| claim.per_hz_cpus * rate).sum();
        let left = host_cpus - fixed - spent;
        let optimum = if last.bias > 0.0 { two_thirds_power(last.gain / last.bias) } else { f64::INFINITY };
        let rate = if last.per_hz_cpus > 0.0 { left / last.per_hz_cpus } else { last.most_hz };
        let rate = rate.min(last.most_hz).min(optimum.max(last.floor_hz));
        (left >= 0.0 && rate >= last.floor_hz * (1.0 - 1e-9)).then(|| {
            rates.push(rate);
            loss(demands, &rates)
        })
    };
    let losses: Vec<f64> = match &claims[..claims.len() - 1] {
        [first] => grid(first).filter_map(|a| with_last(vec![a])).collect(),
        [first, second] => {
            let pairs = grid(first).flat_map(|a| grid(second).map(move |b| (a, b)));
            pairs.filter_map(|(a, b)| with_last(vec![a, b])).collect()
        }
        _ => return None,
    };
    losses.into_iter().min_by(f64::total_cmp)
}

fn rates(shares: &Division) -> Vec<f64> {
    shares.of.iter().map(|share| share.rate_hz).collect()
}

#[test]
fn equals_get_equal_shares_and_the_dearer_gets_less() {
    let shares = divide(&[busy(1.0), busy(1.0)], 0.01);
    assert_eq!(shares.of[0], shares.of[1]);
    assert!((shares.spent_cpus - 0.01).abs() < 1e-9 && shares.price > 0.0 && !shares.is_short);
    let shares = divide(&[busy(1.0), busy(8.0)], 0.03);
    // Far below the optimum the loss is all scatter: λ falls as c^(−2/3).
    let ratio = shares.of[0].rate_hz / shares.of[1].rate_hz;
    assert!((2.5..4.1).contains(&ratio), "{ratio}");
    let heavy = divide(&[Demand { weight: 4.0, ..busy(1.0) }, busy(1.0)], 0.01);
    assert!(heavy.of[0].rate_hz > 1.5 * heavy.of[1].rate_hz);
}

#[test]
fn where_there_is_enough_everyone_gets_what_the_law_asks_for() {
    let shares = divide(&[busy(1.0), busy(2.0), busy(0.0)], 1.0);
    assert_eq!((shares.price, shares.is_short), (0.0, false));
    assert!(shares.of.iter().all(|share| share.rate_hz > 500.0), "{shares:?}");
    assert!(divide(&[], 1.0).of.is_empty());
}

/// A load that grows between two divisions is not held back while there is room; where there is little, little is granted.
#[test]
fn a_grant_has_the_room_that_the_budget_has() {
    let takes = |host_cpus| {
        let shares = divide(&[busy(1.0)], host_cpus);
        (shares.of[0].rate_hz, shares.of[0].granted_ratio / shares.spent_cpus)
    };
    let (rate_hz, needed) = takes(divide(&[busy(1.0)], 1.0).spent_cpus);
    assert!((needed - 1.0).abs() < 1e-6);
    for (host_cpus, most) in [(2.0, 2.0), (100.0, MOST_HEADROOM)] {
        let (with_room_hz, headroom) = takes(host_cpus * divide(&[busy(1.0)], 1.0).spent_cpus);
        assert_eq!(with_room_hz, rate_hz);
        assert!((headroom - most).abs() < 1e-6, "{headroom}");
    }
    // A target that costs nothing, of a host that has nothing.
    let idle = Demand { fixed_cpus: 0.0, ..busy(0.0) };
    let (poor, rich) = (divide(&[idle], 0.0).of[0], divide(&[idle], 1.0).of[0]);
    assert!((rich.granted_ratio / poor.granted_ratio - MOST_HEADROOM).abs() < 1e-6, "{poor:?} {rich:?}");
}

#[test]
fn what_one_does_not_need_the_others_get() {
    // Within a generous budget of its own, the law of the first asks for little: it is sure of its profile.
    let sure = Demand { error: 0.01, slowdown_ratio: 0.2, ..busy(4.0) };
    let (beside_sure, beside_equal) =
        (divide(&[sure, busy(4.0)], 0.04).of[1], divide(&[busy(4.0), busy(4.0)], 0.04).of[1]);
    assert!(beside_sure.rate_hz > 1.2 * beside_equal.rate_hz, "{beside_sure:?} {beside_equal:?}");
}

/// Each of R hosts has a replica of one service, and a program of its own.
#[test]
fn replicas_get_what_makes_the_error_of_the_whole_fleet_least() {
    for (replicas, host_cpus) in [(1.0, 0.01), (6.0, 0.01), (30.0, 0.006), (1_000.0, 1.0)] {
        let alone = Demand { slowdown_ratio: 0.2, fixed_cpus: 0.0, ..busy(1.0) };
        let one_of_many = Demand { error: alone.error / f64::sqrt(replicas), ..alone };
        let error = |hz: f64, count: f64| alone.target_s * hz + alone.error / (count * hz).sqrt();
        // In CPU-seconds: the service's profile is of R times as many, and there are R other programs.
        let of_the_fleet = |service_hz: f64, own_hz: f64| {
            replicas * error(service_hz, replicas) + replicas * error(own_hz, 1.0)
        };
        let shared = divide(&[one_of_many, alone], host_cpus);
        let found = of_the_fleet(shared.of[0].rate_hz, shared.of[1].rate_hz);
        let most_hz = host_cpus / alone.sample_s;
        let grid = (1..400).map(|at| most_hz * f64::from(at) / 400.0);
        let best_alone_hz = two_thirds_power(0.5 * alone.error / alone.target_s);
        let losses = grid.map(|hz| of_the_fleet(hz, (most_hz - hz).min(best_alone_hz)));
        let best = losses.min_by(f64::total_cmp).unwrap();
        assert!(found <= 1.02 * best, "{replicas}: {found} {best} {shared:?}");
    }
}

#[test]
fn too_many_targets_are_told_and_none_is_forgotten() {
    let demands = vec![busy(1.0); 2000];
    let shares = divide(&demands, 0.02); // their fixed costs alone are 0.6
    assert!(shares.is_short && shares.spent_cpus >= 0.6);
    assert!(shares.of.iter().all(|share| share.granted_ratio > 0.0));
    let shares = divide(&demands, 1.0);
    assert!(shares.is_short && shares.of[0].rate_hz > 0.0 && (shares.spent_cpus - 1.0).abs() < 1e-9);
    let shares = divide(&demands, 4.0);
    assert!(!shares.is_short && (shares.spent_cpus - 4.0).abs() < 1e-6);
}

#[test]
fn what_is_no_number_takes_nothing() {
    let bad = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 0.0, f64::MAX, 1e-320];
    for value in bad {
        let broken = [
            Demand { slowdown_ratio: value, ..busy(1.0) },
            Demand { busy_cpus: value, ..busy(1.0) },
            Demand { counted_cpus: value, ..busy(1.0) },
            Demand { sample_s: value, ..busy(1.0) },
            Demand { target_s: value, ..busy(1.0) },
            Demand { fixed_cpus: value, ..busy(1.0) },
            Demand { error: value, ..busy(1.0) },
            Demand { weight: value, ..busy(1.0) },
            Demand { cap_hz: value, ..busy(1.0) },
        ];
        for demand in broken {
            let shares = divide(&[demand, busy(1.0)], 0.01);
            let finite = |share: &Share| share.rate_hz >= 0.0 && share.granted_ratio >= 0.0;
            assert!(shares.of.iter().all(finite), "{demand:?}: {shares:?}");
        }
        assert!(divide(&[busy(1.0)], value).of[0].granted_ratio > 0.0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// No rates on a grid within the same bounds have a smaller sum of losses.
    #[test]
    fn nothing_else_is_better(demands in prop::collection::vec(demand(), 2..4), part in 0.05..1.5_f64) {
        let fixed: f64 = demands.iter().map(|demand| demand.fixed_cpus).sum();
        let claims: Vec<DemandTerms> = demands.iter().map(DemandTerms::new).collect();
        prop_assume!(claims.iter().all(|claim| claim.most_hz > 1e-3));
        let host_cpus = fixed + part * spent(&claims, |claim| claim.most_hz);
        let shares = divide(&demands, host_cpus);
        let found = loss(&demands, &rates(&shares));
        match best_on_a_grid(&demands, host_cpus) {
            Some(best) => prop_assert!(found <= 1.0005 * best, "{found} {best} {shares:?}"),
            None => prop_assert!(shares.is_short, "{shares:?}"),
        }
    }

    /// The host's budget holds, each target's own too, nobody is below its floor, and more for the host lowers nobody.
    #[test]
    fn bounds_hold_and_more_lowers_nobody(demands in prop::collection::vec(demand(), 1..20), budgets in prop::array::uniform2(1e-4..2.0_f64)) {
        let [less, more] = [budgets[0].min(budgets[1]), budgets[0].max(budgets[1])];
        let fixed: f64 = demands.iter().map(|demand| demand.fixed_cpus).sum();
        for host_cpus in [less, more] {
            let shares = divide(&demands, host_cpus);
            // What the busy may spend of their grants; an idle one's are of a tenth of a CPU that it does not use.
            let granted = |(share, demand): (&Share, &Demand)| share.granted_ratio * demand.busy_cpus;
            let granted_cpus: f64 = shares.of.iter().zip(&demands).map(granted).sum();
            prop_assert!(granted_cpus <= host_cpus.max(fixed) * (1.0 + 1e-9), "{shares:?}");
            prop_assert!(shares.spent_cpus <= host_cpus.max(fixed) * (1.0 + 1e-9), "{shares:?}");
            for (share, demand) in shares.of.iter().zip(&demands) {
                let claim = DemandTerms::new(demand);
                prop_assert!(share.rate_hz <= claim.most_hz * 1.000_001, "{share:?} {demand:?}");
                prop_assert!(shares.is_short || share.rate_hz >= claim.floor_hz);
            }
        }
        let (poor, rich) = (divide(&demands, less), divide(&demands, more));
        for (poor, rich) in poor.of.iter().zip(&rich.of) {
            prop_assert!(rich.rate_hz >= poor.rate_hz * (1.0 - 1e-9), "{poor:?} {rich:?}");
            prop_assert!(rich.granted_ratio >= poor.granted_ratio * (1.0 - 1e-9));
        }
    }

    /// What a target gets does not depend on its place in the list, but for the last digits of sums.
    #[test]
    fn the_order_does_not_matter(demands in prop::collection::vec(demand(), 1..20), host_cpus in 1e-3..2.0_f64) {
        let forward = rates(&divide(&demands, host_cpus));
        let reversed: Vec<Demand> = demands.iter().rev().copied().collect();
        let backward = rates(&divide(&reversed, host_cpus));
        for (a, b) in forward.iter().zip(backward.iter().rev()) {
            prop_assert!((a - b).abs() <= 1e-6 * a.abs(), "{a} {b}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn two_thousand_targets_are_shared_among(demands in prop::collection::vec(demand(), 2000), host_cpus in 1.0..40.0_f64) {
        let shares = divide(&demands, host_cpus);
        let fixed: f64 = demands.iter().map(|demand| demand.fixed_cpus).sum();
        prop_assert_eq!(shares.of.len(), 2000);
        prop_assert!(shares.spent_cpus <= host_cpus.max(fixed) * (1.0 + 1e-9));
        prop_assert!(shares.price == 0.0 || shares.is_short || shares.spent_cpus > 0.99 * host_cpus);
        prop_assert_eq!(shares, divide(&demands, host_cpus));
    }
}
