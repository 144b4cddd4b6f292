use super::*;

const SECOND: u64 = 1_000_000_000;

/// Runs for `seconds` where each way has its cost; returns the changes.
fn run(choice: &mut AttachChoice, seconds: u64, task: f64, cpu: f64) -> Vec<AttachMode> {
    let step = |second: u64| {
        let ratio = if choice.mode() == AttachMode::Task { task } else { cpu };
        let (extra_ns, target_ns) = (ratio * 1e9, 1e9);
        choice.observe(
            second * SECOND,
            Observed { extra_ns, target_ns, samples_ns: 1e9, ends_ns: 0.0, wall_ns: 1e9 },
            || 4,
        )
    };
    (0..seconds).filter_map(step).collect()
}

#[test]
fn the_cheaper_way_is_found_and_kept() {
    let mut choice = AttachChoice::new(None, true, 2, 2, 0.0);
    assert_eq!(run(&mut choice, 60, 0.18, 0.03), [AttachMode::Cpu]);
    let mut choice = AttachChoice::new(None, true, 2, 2, 0.0);
    assert_eq!(run(&mut choice, 60, 0.0001, 0.03), []);
}

#[test]
fn events_of_threads_that_switched_much_are_not_tried_out() {
    let mut choice = AttachChoice::new(None, true, 2, 2, 50_000.0);
    assert_eq!(run(&mut choice, 60, 0.3, 0.004), []);
    // Unless whole CPUs turn out to be dearer still.
    let mut choice = AttachChoice::new(None, true, 2, 2, 5_000.0);
    assert_eq!(run(&mut choice, 60, 0.003, 0.1), [AttachMode::Task]);
}

#[test]
fn storms_that_were_seen_without_events_keep_these_away() {
    let mut choice = AttachChoice::new(None, true, 2, 2, 50_000.0);
    let mut changes = Vec::new();
    for second in 0..600 {
        if second % 60 == 59 {
            choice.expect_switches(second * SECOND, 50_000.0);
        }
        let observed =
            Observed { extra_ns: 4e6, target_ns: 1e9, samples_ns: 4e6, ends_ns: 0.0, wall_ns: 1e9 };
        changes.extend(choice.observe(second * SECOND, observed, || 4));
    }
    assert_eq!(changes, []);
    // Without a look, they would be tried out once the first one is forgotten.
    assert_eq!(run(&mut choice, 1, 0.3, 0.004), []);
    let observed = Observed { extra_ns: 4e6, target_ns: 1e9, samples_ns: 4e6, ends_ns: 0.0, wall_ns: 1e9 };
    let later = (800..803).find_map(|second| choice.observe(second * SECOND, observed, || 4));
    assert_eq!(later, Some(AttachMode::Task));
}

#[test]
fn a_dearer_way_is_left_again_and_not_tried_for_a_while() {
    let mut choice = AttachChoice::new(None, true, 2, 2, 0.0);
    assert_eq!(run(&mut choice, 100, 0.003, 0.03), [AttachMode::Cpu, AttachMode::Task]);
}

#[test]
fn a_way_that_cannot_be_had_is_not_tried_again() {
    let mut choice = AttachChoice::new(None, true, 2, 2, 0.0);
    assert_eq!(run(&mut choice, 5, 0.18, 0.0), [AttachMode::Cpu]);
    choice.refuse();
    assert_eq!(run(&mut choice, 60, 0.18, 0.0), []);
    assert_eq!(choice.mode(), AttachMode::Task);
}

#[test]
fn what_was_asked_for_stays() {
    let mut choice = AttachChoice::new(Some(AttachMode::Task), true, 1000, 64, 1e6);
    assert_eq!(run(&mut choice, 60, 0.5, 0.0), []);
    assert_eq!(AttachChoice::new(None, false, 1000, 64, 1e6).mode(), AttachMode::Task);
    assert_eq!(AttachChoice::new(None, true, 1000, 64, 0.0).mode(), AttachMode::Cpu);
    assert_eq!(AttachChoice::new(None, true, 2, 2, 50_000.0).mode(), AttachMode::Cpu);
}

fn seen(extra_ns: f64, ends_ns: f64, target_ns: f64) -> Observed {
    Observed { extra_ns, samples_ns: 1e9, ends_ns, target_ns, wall_ns: target_ns }
}

#[test]
fn what_is_clearly_too_dear_is_left_at_once_but_not_for_a_moment_of_it() {
    let mut choice = AttachChoice::new(None, true, 1, 2, 0.0);
    assert_eq!(choice.observe(0, seen(0.9e6, 0.0, 25e6), || 4), None); // too little CPU time to tell
    assert_eq!(choice.observe(SECOND / 5, seen(0.9e6, 0.0, 25e6), || 4), Some(AttachMode::Cpu));
    let mut choice = AttachChoice::new(None, true, 1, 2, 0.0);
    assert_eq!(choice.observe(0, seen(0.5e6, 0.0, 100e6), || 4), None);
    assert_eq!(choice.observe(SECOND, seen(0.5e6, 0.0, 100e6), || 4), Some(AttachMode::Cpu));
}

#[test]
fn a_few_switches_are_no_reason_to_leave_though_samples_are_fewer() {
    let mut choice = AttachChoice::new(None, true, 1, 2, 0.0);
    let few = |second: u64| {
        let seen =
            Observed { extra_ns: 0.3e6, samples_ns: 0.1e6, ends_ns: 0.0, target_ns: 1e9, wall_ns: 1e9 };
        choice.observe(second * SECOND, seen, || 4)
    };
    assert_eq!((0..10).filter_map(few).next(), None);
}

/// Twenty looks a second at something that has not happened: two percent of next to nothing.
#[test]
fn the_switches_of_a_target_that_does_next_to_nothing_are_no_reason_to_leave() {
    let mut choice = AttachChoice::new(None, true, 1, 2, 0.0);
    let idle = Observed { wall_ns: 1e9, ..seen(20e3, 0.0, 500e3) };
    assert_eq!((0..600).filter_map(|second| choice.observe(second * SECOND, idle, || 4)).next(), None);
}

#[test]
fn a_storm_after_a_calm_is_left_at_once() {
    let mut choice = AttachChoice::new(None, true, 1, 2, 0.0);
    assert_eq!(choice.observe(0, seen(0.0, 0.0, 900e6), || 4), None);
    assert_eq!(choice.observe(SECOND / 2, seen(1e6, 0.0, 5e6), || 4), None); // a gust
    assert_eq!(choice.observe(SECOND / 2, seen(2.5e6, 0.0, 10e6), || 4), Some(AttachMode::Cpu));
}

#[test]
fn short_lived_threads_are_sampled_by_whole_cpus_whatever_that_costs() {
    let mut choice = AttachChoice::new(None, true, 1, 2, 0.0);
    assert_eq!(choice.observe(0, seen(0.0, 4e6, 100e6), || 4), None);
    assert_eq!(choice.observe(1, seen(0.0, 8e6, 100e6), || 4), Some(AttachMode::Cpu));
    let dear = |second: u64| choice.observe(second * SECOND, seen(0.2e9, 0.06e9, 1e9), || 4);
    assert_eq!((1..60).filter_map(dear).collect::<Vec<_>>(), []);
    assert!(!choice.misses_short_lived());
    // Once they live longer, what counts is the cost again.
    let longer = |second: u64| choice.observe(second * SECOND, seen(0.2e9, 0.0, 1e9), || 4);
    assert_eq!((60..65).filter_map(longer).next(), Some(AttachMode::Task));
}

#[test]
fn whole_cpus_are_left_where_most_samples_are_of_non_targets_and_threads_live_on() {
    let mut choice = AttachChoice::new(None, true, 1, 2, 0.0);
    assert_eq!(choice.observe(0, seen(0.0, 8e6, 100e6), || 4), Some(AttachMode::Cpu));
    // A fifth of a percent of the CPU time at most, but twice what the target's own samples cost.
    let idle = Observed { extra_ns: 1e6, samples_ns: 0.5e6, ends_ns: 0.0, target_ns: 1e9, wall_ns: 1e9 };
    let changes = |choice: &mut AttachChoice, from: u64| {
        (from..from + 60).find(|second| choice.observe(second * SECOND, idle, || 4).is_some())
    };
    let (first, short) = (changes(&mut choice, 1), seen(0.0, 80e6, 1000e6));
    assert_eq!((first, choice.mode()), (Some(2), AttachMode::Task));
    // Each time it was wrong, the next change waits longer.
    assert_eq!(choice.observe(100 * SECOND, short, || 4), Some(AttachMode::Cpu));
    assert_eq!(changes(&mut choice, 101), Some(104));
}

#[test]
fn among_others_whole_cpus_are_for_storms_and_left_where_non_targets_take_most() {
    let choice = || AttachChoice::new(None, true, 1, 2, 0.0).among_others();
    assert_eq!(run(&mut choice(), 60, 0.01, 0.0), []);
    let mut storm = choice();
    assert_eq!(run(&mut storm, 1, 0.18, 0.03), [AttachMode::Cpu]);
    // It goes on costing more than events of threads would, but for the storm.
    assert_eq!(run(&mut storm, 60, 0.18, 0.03), []);
    // Short-lived ones are over, and the clocks stand at their slowest: nothing seems to cost anything.
    let mut throttled = choice();
    assert_eq!(throttled.observe(0, seen(0.0, 8e6, 100e6), || 4), Some(AttachMode::Cpu));
    let slow = Observed { extra_ns: 0.1e6, samples_ns: 0.02e6, ends_ns: 0.0, target_ns: 1e9, wall_ns: 1e9 };
    let back = (1..60).find(|second| throttled.observe(second * SECOND, slow, || 4).is_some());
    assert_eq!((back.is_some(), throttled.mode()), (true, AttachMode::Task));
}

#[test]
fn among_others_whole_cpus_are_for_what_takes_half_of_the_budget_without_a_sample() {
    let choice = |budget_ratio| {
        let mut choice = AttachChoice::new(None, true, 32, 2, 0.0).among_others();
        choice.set_budget(budget_ratio);
        choice
    };
    assert_eq!(run(&mut choice(0.01), 60, 0.0045, 0.0001), []);
    let mut dear = choice(0.01);
    assert_eq!(run(&mut dear, 60, 0.0075, 0.0001), [AttachMode::Cpu]);
    // Throttled, they cost nothing; until it is forgotten what events of threads did, that is no reason to go back.
    assert_eq!(run(&mut dear, 60, 0.0075, 0.0001), []);
    assert_eq!(run(&mut choice(0.05), 60, 0.0075, 0.0001), []);
    // Whole CPUs on which non-target processes come and go all the time are dearer.
    assert_eq!(run(&mut choice(0.01), 60, 0.0075, 0.02), [AttachMode::Cpu, AttachMode::Task]);
}

#[test]
fn short_lived_threads_are_told_of_where_the_way_is_fixed() {
    for (asked, permitted) in [(Some(AttachMode::Task), true), (None, false)] {
        let mut choice = AttachChoice::new(asked, permitted, 1, 2, 0.0);
        assert_eq!(choice.observe(0, seen(0.0, 4e6, 100e6), || 4), None);
        assert!(!choice.misses_short_lived());
        assert_eq!(choice.observe(1, seen(0.0, 8e6, 100e6), || 4), None);
        assert!(choice.misses_short_lived());
    }
}

#[test]
fn too_many_threads_are_never_given_events_of_their_own() {
    let mut choice = AttachChoice::new(None, true, 1000, 64, 0.0);
    let dear = seen(2.0, 0.0, 1.0);
    let crowd = |second: u64| choice.observe(second * SECOND, dear, || 64_000);
    assert_eq!((0..600).filter_map(crowd).next(), None);
    // Most of them are gone: for two minutes they may come back.
    let few = |second: u64| Some((second, choice.observe(second * SECOND, dear, || 64)?));
    assert_eq!((600..800).find_map(few), Some((719, AttachMode::Task)));
}

#[test]
fn a_crowd_that_comes_is_left_to_whole_cpus_and_one_that_comes_and_goes_changes_nothing() {
    let mut choice = AttachChoice::new(None, true, 1, 64, 0.0);
    let pool = |second: u64| if second % 20 < 10 { 64 } else { 64_000 };
    let swings = |second: u64| choice.observe(second * SECOND, seen(0.1, 0.0, 1.0), || pool(second));
    assert_eq!((0..600).filter_map(swings).collect::<Vec<_>>(), [AttachMode::Cpu]);
    let mut cheap = AttachChoice::new(None, true, 1, 64, 0.0);
    assert_eq!(cheap.observe(0, seen(0.0, 0.0, 1e9), || 64_000), None);
    assert_eq!(cheap.observe(SECOND, seen(0.0, 0.0, 1e9), || 64_000), Some(AttachMode::Cpu));
}

#[test]
fn hostile_figures_do_no_harm() {
    let mut choice = AttachChoice::new(None, true, usize::MAX, usize::MAX, f64::NAN);
    for x in [f64::NAN, f64::INFINITY, -1.0, f64::MAX, 0.0] {
        choice.observe(u64::MAX, seen(x, x, x), || 4);
        choice.observe(0, seen(x, -x, 1.0), || 4);
    }
}

/// As [`run`], with a cost for each of the three ways.
fn run_three(choice: &mut AttachChoice, costs: [f64; 3], seconds: std::ops::Range<u64>) -> Vec<AttachMode> {
    let step = |second: u64| {
        let extra_ns = costs[choice.mode() as usize] * 1e9;
        choice.observe(second * SECOND, seen(extra_ns, 0.0, 1e9), || 4)
    };
    seconds.filter_map(step).collect()
}

#[test]
fn of_three_ways_the_cheapest_is_kept() {
    use AttachMode::{Cgroup, Cpu, Task};
    let choice = || AttachChoice::new(None, true, 2, 2, 0.0).with_group();
    // By mode: task, cpu, cgroup.
    for (costs, expected) in [
        ([0.001, 0.3, 0.3], vec![]),
        ([0.1, 0.3, 0.001], vec![Cgroup]),
        ([0.1, 0.01, 0.05], vec![Cgroup, Cpu]),
        ([0.1, 0.3, 0.08], vec![Cgroup, Cpu, Cgroup]),
        ([0.01, 0.3, 0.08], vec![Cgroup, Cpu, Task]),
    ] {
        assert_eq!(run_three(&mut choice(), costs, 0..60), expected, "{costs:?}");
    }
}

#[test]
fn what_needs_one_event_for_all_has_the_groups_first() {
    let crowd = AttachChoice::new(None, true, 1000, 64, 0.0).with_group();
    assert_eq!(crowd.mode(), AttachMode::Cgroup);
    let mut short = AttachChoice::new(None, true, 1, 2, 0.0).with_group();
    assert_eq!(short.observe(0, seen(0.0, 80e6, 1e9), || 4), Some(AttachMode::Cgroup));
    // The group turns out to be dear, and the threads are as short-lived as before.
    let dear = |second: u64| short.observe(second * SECOND, seen(0.2e9, 0.06e9, 1e9), || 4);
    assert_eq!((1..20).find_map(dear), Some(AttachMode::Cpu));
}

#[test]
fn a_group_that_is_no_longer_the_targets_own_is_left_for_good() {
    let mut choice = AttachChoice::new(None, true, 2, 2, 0.0).with_group();
    assert_eq!(run_three(&mut choice, [0.1, 0.3, 0.001], 0..9), [AttachMode::Cgroup]);
    assert_eq!(choice.lose_group(), Some(AttachMode::Task));
    assert_eq!(choice.lose_group(), None);
    assert_eq!(run_three(&mut choice, [0.1, 0.05, 0.001], 10..60), [AttachMode::Cpu]);
    let asked = || AttachChoice::new(Some(AttachMode::Cgroup), true, 2, 2, 0.0);
    assert_eq!((asked().lose_group(), asked().with_group().mode()), (None, AttachMode::Cgroup));
    let alone = AttachChoice::new(None, false, 2, 2, 0.0).with_group();
    assert!(!alone.offers_group());
}

#[test]
fn a_crowd_is_not_given_events_only_to_lose_them_again() {
    let mut choice = AttachChoice::new(None, true, 1, 2, 0.0);
    assert_eq!(choice.would_open(5, MANY_EVENTS), None);
    assert_eq!(choice.would_open(5, MANY_EVENTS + 1), Some(AttachMode::Cpu));
    assert_eq!((choice.mode(), choice.would_open(6, 1_000_000)), (AttachMode::Cpu, None));
    for mut fixed in [
        AttachChoice::new(Some(AttachMode::Task), true, 1, 2, 0.0),
        AttachChoice::new(None, false, 1, 2, 0.0),
    ] {
        assert_eq!((fixed.would_open(5, 1_000_000), fixed.mode()), (None, AttachMode::Task));
    }
}

#[test]
fn a_refused_way_leaves_the_others() {
    let mut choice = AttachChoice::new(None, true, 2, 2, 0.0).with_group();
    assert_eq!(run_three(&mut choice, [0.1, 0.01, 0.0], 0..3), [AttachMode::Cgroup]);
    choice.refuse();
    assert_eq!(choice.mode(), AttachMode::Task);
    assert_eq!(run_three(&mut choice, [0.1, 0.01, 0.0], 3..60), [AttachMode::Cpu]);
}

/// A busy server of one thread: it keeps a CPU busy, and so does whoever asks it. A sample costs 10 µs, and one of others 2 µs of
/// the profiler's own time beside it.
#[derive(Clone, Copy)]
struct Server {
    switches_per_s: f64,
    switch_ns: f64,
    wanted_hz: f64,
}

impl Server {
    const OTHER_CPUS: f64 = 1.0;

    fn task_cpus(&self) -> f64 {
        self.switches_per_s * self.switch_ns * 1e-9
    }

    fn cpu_cpus(&self) -> f64 {
        Self::OTHER_CPUS * self.wanted_hz * 12e-6
    }

    fn foreseen(&self, mode: AttachMode) -> Foreseen {
        match mode {
            AttachMode::Task => Foreseen { cpu_cpus: Some(self.cpu_cpus()), ..Foreseen::default() },
            _ => Foreseen { task_cpus: Some(self.task_cpus()), ..Foreseen::default() },
        }
    }

    fn step(&self, choice: &mut AttachChoice, second: u64) -> Option<AttachMode> {
        choice.foresee(self.foreseen(choice.mode()));
        let cpus = if choice.mode() == AttachMode::Task { self.task_cpus() } else { self.cpu_cpus() };
        let samples_ns = self.wanted_hz * 10e3;
        let seen = Observed { extra_ns: cpus * 1e9, samples_ns, ends_ns: 0.0, target_ns: 1e9, wall_ns: 1e9 };
        choice.observe(second * SECOND, seen, || 4)
    }

    fn run(&self, choice: &mut AttachChoice) -> Vec<AttachMode> {
        (0..600).filter_map(|second| self.step(choice, second)).collect()
    }
}

fn beside_a_client() -> AttachChoice {
    let mut choice = AttachChoice::new(None, true, 1, 2, 0.0);
    choice.set_budget(0.05);
    choice
}

#[test]
fn a_busy_server_keeps_its_own_events_where_samples_of_its_clients_would_cost_more_than_its_switches() {
    for (switches_per_s, switch_ns) in
        [(10_000.0, 250.0), (10_000.0, 1_500.0), (30_000.0, 400.0), (60_000.0, 250.0)]
    {
        let server = Server { switches_per_s, switch_ns, wanted_hz: 1_000.0 };
        let name = format!("{switches_per_s} of {switch_ns}");
        assert_eq!(server.run(&mut beside_a_client()), [], "{name}");
        // Whole CPUs to begin with are left where they cost twice as much, and not tried again.
        let mut whole = AttachChoice::new(None, true, 1, 2, switches_per_s);
        whole.set_budget(0.05);
        let is_clear = server.task_cpus() < CLEARLY_CHEAPER * server.cpu_cpus();
        let changes = if is_clear { vec![AttachMode::Task] } else { vec![] };
        assert_eq!(server.run(&mut whole), changes, "{name}");
        // Where it was watched before, they are not even begun with.
        let mut watched = AttachChoice::new(None, true, 1, 2, switches_per_s);
        watched.set_budget(0.05);
        let both = Foreseen {
            task_cpus: Some(server.task_cpus()),
            cpu_cpus: Some(server.cpu_cpus()),
            ..Foreseen::default()
        };
        let mut watched = watched.foreseeing(both, 1.0);
        assert_eq!((watched.mode(), server.run(&mut watched)), (AttachMode::Task, vec![]), "{name}");
    }
}

#[test]
fn a_server_that_storms_leaves_its_budget_to_its_samples_whatever_those_of_its_clients_cost() {
    // Of 5%: 9%, 6% and, where whole CPUs cost less after all, 3%.
    for (switches_per_s, switch_ns, wanted_hz) in
        [(60_000.0, 1_500.0, 1_000.0), (60_000.0, 1_000.0, 8_000.0), (30_000.0, 1_000.0, 2_000.0)]
    {
        let server = Server { switches_per_s, switch_ns, wanted_hz };
        assert_eq!(server.run(&mut beside_a_client()), [AttachMode::Cpu], "{switches_per_s} of {switch_ns}");
    }
    let dear = Server { switches_per_s: 30_000.0, switch_ns: 1_000.0, wanted_hz: 4_000.0 };
    assert_eq!(dear.run(&mut beside_a_client()), []);
}

#[test]
fn a_rate_that_falls_makes_whole_cpus_the_cheaper_way_once_and_a_load_that_swings_changes_nothing() {
    let mut choice = beside_a_client();
    let at = |wanted_hz: f64| Server { switches_per_s: 20_000.0, switch_ns: 500.0, wanted_hz };
    // From 10,000 samples a second to 100, as the anytime law asks for them.
    let falls = |second: u64| at(10_000.0 / (1.0 + second as f64).powf(0.75)).step(&mut choice, second);
    assert_eq!((0..460).filter_map(falls).collect::<Vec<_>>(), [AttachMode::Cpu]);
    let mut choice = beside_a_client();
    let swings = |second: u64| {
        let wanted_hz = if second.is_multiple_of(2) { 450.0 } else { 1_600.0 }; // .54 to 1.92 times what its switches cost
        at(wanted_hz).step(&mut choice, second)
    };
    assert_eq!((0..600).filter_map(swings).collect::<Vec<_>>(), []);
}

#[test]
fn what_is_foreseen_may_be_nonsense() {
    let mut choice =
        beside_a_client().foreseeing(Foreseen { task_cpus: Some(f64::NAN), ..Foreseen::default() }, f64::NAN);
    for x in [f64::NAN, f64::INFINITY, -1.0, f64::MAX] {
        choice.foresee(Foreseen { task_cpus: Some(x), cpu_cpus: Some(x), group_cpus: Some(x) });
        choice.observe(SECOND, seen(1e8, 0.0, 1e9), || 4);
    }
    choice.foresee(Foreseen { group_cpus: Some(f64::NAN), ..Foreseen::default() });
}
