use super::*;

const TICK_NS: u64 = 100_000_000;

fn busy(cpus: f64) -> Demand {
    Demand {
        slowdown_ratio: 0.05,
        busy_cpus: cpus,
        counted_cpus: cpus.max(0.1),
        sample_s: 20e-6,
        target_s: 15e-6,
        error: 0.4,
        ..Demand::default()
    }
}

/// Books a second in which so many CPUs are spent.
fn second(host: &mut HostBudget, from_ns: u64, cpus: f64) -> u64 {
    (1..=10).for_each(|tick| host.book(from_ns + tick * TICK_NS, cpus * TICK_NS as f64, 0.0, 0.0));
    from_ns + 10 * TICK_NS
}

#[test]
fn every_ten_seconds_that_have_begun_end_within_the_budget() {
    let mut host = HostBudget::new(0.02);
    assert_eq!((host.affordable_cpus(), host.last_10s_ratio()), (0.02, 0.0));
    let mut at_ns = 0;
    (0..20).for_each(|_| at_ns = second(&mut host, at_ns, 0.015));
    assert_eq!(host.affordable_cpus(), 0.02, "what was saved is not spent on top");
    at_ns = second(&mut host, at_ns, 0.05);
    assert!(host.affordable_cpus() < 0.017, "{}", host.affordable_cpus());
    for _ in 0..20 {
        let cpus = host.affordable_cpus();
        at_ns = second(&mut host, at_ns, cpus);
    }
    assert!((0.99..=1.0001).contains(&host.worst_10s_ratio()), "{}", host.worst_10s_ratio());
    assert!((host.affordable_cpus() - 0.02).abs() < 1e-3);
}

#[test]
fn what_can_wait_is_spent_at_once_where_there_is_room_for_it_in_every_ten_seconds() {
    let mut host = HostBudget::new(0.02);
    let mut at_ns = 0;
    (0..20).for_each(|_| at_ns = second(&mut host, at_ns, 0.008));
    let mut of_names_ns = 0.0;
    for tick in 0..600 {
        let spent_ns = host.room_ns(0.008).max(0.0);
        assert!(tick > 0 || (spent_ns - 0.12e9).abs() < 1.0, "{spent_ns}");
        of_names_ns += spent_ns;
        at_ns += TICK_NS;
        host.book(at_ns, 0.008 * TICK_NS as f64 + spent_ns, 0.0, 0.0);
    }
    assert!((0.99..=1.0001).contains(&host.worst_10s_ratio()), "{}", host.worst_10s_ratio());
    assert!(of_names_ns > 0.95 * 0.012 * 60e9, "{of_names_ns}");
    assert!(host.room_ns(0.03) < 0.0);
}

#[test]
fn a_smaller_budget_does_not_regret_what_was_spent_before() {
    let mut host = HostBudget::new(0.02);
    let mut at_ns = 0;
    (0..20).for_each(|_| at_ns = second(&mut host, at_ns, 0.02));
    host.set_cpus(0.005);
    assert!((host.affordable_cpus() - 0.005).abs() < 1e-9);
    second(&mut host, at_ns, 0.01);
    assert!(host.affordable_cpus() < 0.005);
}

#[test]
fn it_is_shared_once_a_second_or_when_it_would_be_overspent() {
    let mut host = HostBudget::new(0.02);
    let calm = [busy(0.5), busy(0.2)];
    let granted = |shares: &Division| shares.of.iter().map(|share| share.granted_ratio).collect::<Vec<f64>>();
    let first = granted(&host.share(0, 0.001, &calm, &[0.05, 0.05]).unwrap());
    assert!(would_spend(&calm, &first) <= 0.019 * 1.000_001);
    assert!(host.share(TICK_NS, 0.001, &calm, &first).is_none());
    // One wakes up.
    let stepped = [busy(0.5), busy(2.0)];
    let second = granted(&host.share(2 * TICK_NS, 0.001, &stepped, &first).unwrap());
    assert!(would_spend(&stepped, &second) <= 0.019 * SLACK);
    // Costs that are known a little better change nothing.
    let known_better = [Demand { sample_s: 20.5e-6, ..busy(0.5) }, busy(2.0)];
    let third = granted(&host.share(13 * TICK_NS, 0.001, &known_better, &second).unwrap());
    assert_eq!(second, third);
    // Another number of targets is shared among at once.
    assert!(host.share(14 * TICK_NS, 0.001, &[busy(1.0); 3], &third).is_some());
}

#[test]
fn it_is_short_when_for_five_minutes_the_lowest_rates_need_more() {
    let demands = [busy(1.0)];
    let mut host = HostBudget::new(1e-6);
    for second in 0..=300 {
        let at_ns = second * 1_000_000_000;
        assert!(host.share(at_ns, 0.0, &demands, &[]).is_some_and(|shares| shares.is_short));
        assert_eq!(host.is_short(at_ns), second == 300, "{second}");
    }
    host.set_cpus(0.02);
    assert!(host.share(301_000_000_000, 0.0, &demands, &[]).is_some_and(|shares| !shares.is_short));
    assert!(!host.is_short(900_000_000_000), "there is enough again");
}

#[test]
fn a_clock_that_stands_or_goes_back_spends_no_budget_twice() {
    let mut host = HostBudget::new(0.02);
    host.book(5 * TICK_NS, 1.0, 0.0, 0.0);
    host.book(5 * TICK_NS, 1.0, 0.0, 0.0);
    host.book(3 * TICK_NS, 1.0, 0.0, 0.0);
    assert!(host.affordable_cpus() <= 0.02 && host.affordable_cpus() > 0.019);
}

/// A window that is named, and somebody who asks, take no samples from anybody.
#[test]
fn names_lower_no_rate_and_wait_for_what_samples_leave() {
    let demand = busy(1.0);
    let mut host = HostBudget::new(0.02);
    let mut granted = [0.01];
    let mut least: f64 = 1.0;
    for tick in 1..=6_000_u64 {
        let names_ns = if tick % 600 == 0 { 0.06e9 } else { 0.0 };
        host.book(tick * TICK_NS, 0.008 * TICK_NS as f64 + names_ns, 0.0, names_ns);
        if let Some(shares) = host.share(tick * TICK_NS, 0.0, &[demand], &granted) {
            granted = [shares.of[0].granted_ratio];
        }
        least = least.min(granted[0]);
    }
    assert!(least > 0.7 * granted[0], "{least} of {}", granted[0]);
    assert!(host.room_ns(0.008) < 0.07e9, "names have used what there was");
}

/// Samples that are granted the whole budget would leave no room for the windows of a start.
#[test]
fn samples_leave_room_for_the_names_of_windows_that_wait() {
    for (waited_ns, kept) in [(0, 0.0), (LONG_WAIT_NS - 1, 0.0), (LONG_WAIT_NS, MOST_FOR_NAMES)] {
        let mut host = HostBudget::new(0.02);
        let at_ns = second(&mut host, 0, 0.0);
        host.expect_names(0.0, waited_ns);
        let division = host.share(at_ns, 0.0, &[busy(2.0)], &[0.005]).unwrap();
        let granted_cpus = division.of[0].granted_ratio * 2.0;
        assert!((granted_cpus / (0.02 * (1.0 - kept)) - 1.0).abs() < 0.01, "{waited_ns}: {granted_cpus}");
    }
}

#[test]
fn however_much_names_take_samples_have_two_thirds() {
    let demand = busy(1.0);
    let mut host = HostBudget::new(0.02);
    let (mut granted, mut least, mut most) = ([0.02], f64::INFINITY, 0.0_f64);
    for tick in 1..=6_000_u64 {
        let names_ns = if tick > 600 { 0.01 * TICK_NS as f64 } else { 0.0 };
        let samples_ns = 0.9 * granted[0] * TICK_NS as f64;
        host.book(tick * TICK_NS, samples_ns + names_ns, 0.0, names_ns);
        host.expect_names(if tick > 600 { 0.01 } else { 0.0 }, 0);
        if let Some(shares) = host.share(tick * TICK_NS, 0.0, &[demand], &granted) {
            granted = [shares.of[0].granted_ratio];
        }
        (least, most) = (least.min(granted[0]), most.max(granted[0]));
    }
    assert!(least > 0.5 * 0.02 && most < 2.0 * least, "{least} to {most}");
}
