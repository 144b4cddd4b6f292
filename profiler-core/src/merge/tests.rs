use proptest::prelude::*;

use super::*;
use crate::profile::*;

const SECOND: u64 = 1_000_000_000;

/// A profile of a target that began at `start_s`: one window of a second for each entry, and in it each stack's weight.
fn profile(target: &str, start_s: u64, windows: &[&[(u32, u64)]]) -> SymbolizedProfile {
    let names = ["main", "parse", "copy", "walk"];
    let module =
        ModuleInfo { name: target.to_owned(), path: format!("/bin/{target}"), build_id: None, end: 0 };
    let function = |name: &&str| Function {
        name: (*name).to_owned(),
        system_name: (*name).to_owned(),
        module: ModuleIndex(0),
        file: None,
    };
    let location = |at: u32| Location {
        module: ModuleIndex(0),
        address: u64::from(at),
        lines: vec![Line { function: FunctionIndex(at), line: 0 }],
        unknown: None,
    };
    let stack = |at: u32| {
        let had = |(window, entries): (u32, &&[(u32, u64)])| {
            let cpu_ns: u64 = entries.iter().filter(|(stack, _)| *stack == at).map(|(_, ns)| ns).sum();
            (cpu_ns > 0).then_some(StackWindow { window, cpu_ns, samples: cpu_ns })
        };
        let windows: Vec<StackWindow> = (0..).zip(windows).filter_map(had).collect();
        let sum = windows.iter().map(|had| had.cpu_ns).sum();
        let frames = vec![LocationIndex(at), LocationIndex(0)];
        let outcome = if at == 3 { Outcome::Broken } else { Outcome::Complete };
        WeightedStack { process: ProcessIndex(0), frames, outcome, samples: sum, cpu_ns: sum, windows }
    };
    let window = |at: u64| Window { start_ns: at * SECOND, end_ns: (at + 1) * SECOND };
    let stacks: Vec<WeightedStack> = (0..4).map(stack).filter(|stack| stack.samples > 0).collect();
    let samples = stacks.iter().map(|stack| stack.samples).sum::<u64>();
    SymbolizedProfile {
        processes: vec![ProcessInfo { pid: 7, comm: target.to_owned() }],
        modules: vec![module],
        functions: names.iter().map(function).collect(),
        locations: (0..4).map(location).collect(),
        stacks,
        windows: (0..windows.len() as u64).map(window).collect(),
        run: Run {
            target: target.to_owned(),
            start_unix_ns: start_s * SECOND,
            duration_s: windows.len() as f64,
            counts: SampleCounts { samples, lost: 10, ..SampleCounts::default() },
            cpu: CpuTimes { target_cpu_s: samples as f64, ..CpuTimes::default() },
            cost: CostFigures { overhead_us: 20.0, ..CostFigures::default() },
            overhead: OverheadFigures {
                overhead_ratio: 0.01,
                budget_ratio: 0.02,
                ..OverheadFigures::default()
            },
            how: HowSampled { confidence: 0.95, attach_mode: "cpu".to_owned(), ..HowSampled::default() },
            rate_history: vec![RateChange { at_s: 0.5, rate_hz: 99.0, reason: "law".to_owned() }],
            notes: vec!["a note".to_owned()],
            ..Run::default()
        },
    }
}

fn seconds(from: u64, to: u64) -> Range {
    Range { from_unix_ns: from * SECOND, to_unix_ns: to * SECOND }
}

fn merged(range: Range, bin_s: u64, profiles: &[SymbolizedProfile]) -> SymbolizedProfile {
    let mut merger = Merger::new(range, bin_s * SECOND);
    for profile in profiles {
        merger.add(profile);
    }
    merger.finish()
}

/// Weight of the stack that ends in this function of this target.
fn weight(profile: &SymbolizedProfile, target: &str, name: &str) -> u64 {
    let is_it = |stack: &&WeightedStack| {
        let location = &profile.locations[stack.frames[0].0 as usize];
        let function = &profile.functions[location.lines[0].function.0 as usize];
        function.name == name && profile.modules[function.module.0 as usize].name == target
    };
    profile.stacks.iter().filter(is_it).map(|stack| stack.cpu_ns).sum()
}

#[test]
fn a_module_of_which_one_profile_knows_more_of_its_end_is_one_module() {
    let profiles = [(0, 0x1000), (1, 0x3000), (2, 0)].map(|(start_s, end)| {
        let mut profile = profile("a", start_s, &[&[(1, 5)]]);
        profile.modules[0].end = end;
        profile
    });
    let merged = merged(seconds(0, 3), 1, &profiles);
    assert_eq!(merged.modules.iter().map(|module| module.end).collect::<Vec<_>>(), [0x3000]);
}

#[test]
fn equal_stacks_add_up_and_targets_stay_apart() {
    let a = profile("a", 100, &[&[(1, 5), (2, 7)], &[(1, 1)]]);
    let b = profile("b", 100, &[&[(1, 50)]]);
    let sum = merged(seconds(0, 1000), 1, &[a.clone(), b, profile("a", 102, &[&[(1, 4)]])]);
    assert_eq!(
        (weight(&sum, "a", "parse"), weight(&sum, "a", "copy"), weight(&sum, "b", "parse")),
        (10, 7, 50)
    );
    assert_eq!(sum.stacks.len(), 3);
    assert_eq!((sum.modules.len(), sum.processes.len()), (2, 2));
    assert_eq!(sum.windows.len(), 3);
    assert_eq!(sum.stacks[0].windows.len(), 3);
    assert_eq!(sum.run.target, "a, b");
    assert_eq!((sum.run.start_unix_ns, sum.run.duration_s), (100 * SECOND, 3.0));
    assert_eq!((sum.run.counts.samples, sum.run.counts.lost), (67, 30));
    assert!(
        (sum.run.overhead.overhead_ratio - 0.01).abs() < 1e-12
            && (sum.run.cost.overhead_us - 20.0).abs() < 1e-12
    );
    assert_eq!((sum.run.how.attach_mode.as_str(), sum.run.notes.len()), ("cpu", 1));
    assert_eq!(sum.run.rate_history.iter().map(|change| change.at_s).collect::<Vec<_>>(), [0.5, 0.5, 2.5]);
}

/// Samples of one nanosecond and of eight, in the same second.
#[test]
fn windows_of_samples_that_weigh_differently_stay_apart() {
    let (light, mut heavy) = (profile("a", 100, &[&[(1, 64)]]), profile("b", 100, &[&[(1, 64)]]));
    for stack in &mut heavy.stacks {
        stack.samples /= 8;
        stack.windows.iter_mut().for_each(|had| had.samples /= 8);
    }
    let sum = merged(seconds(0, 1000), 60, &[light.clone(), heavy, profile("c", 101, &[&[(2, 3)]])]);
    assert_eq!(sum.windows.len(), 2);
    let had: Vec<_> = sum.stacks.iter().flat_map(|stack| &stack.windows).map(|had| had.window).collect();
    assert_eq!(had, [0, 1, 0], "those of equal weight share a window");
    let twice = merged(seconds(0, 1000), 60, &[sum]);
    assert_eq!(twice.windows.len(), 2);
    assert_eq!(merged(seconds(0, 1000), 60, &[light.clone(), light]).windows.len(), 1);
}

#[test]
fn a_sum_that_becomes_too_large_has_longer_bins() {
    let windows: Vec<&[(u32, u64)]> = (0..200).map(|_| &[(1, 1), (2, 1)][..]).collect();
    let profiles: Vec<_> = (0..20).map(|at| profile("a", 200 * at, &windows)).collect();
    let sum = merged(seconds(0, 4000), 1, &profiles);
    assert_eq!(sum.windows.len(), 1000, "4 s each, since 2,000 would be too many");
    assert_eq!(sums(&sum), (8000, 8000));
    assert!(sum.stacks.iter().all(|stack| stack.windows.len() == 1000));
    assert!(sum.windows.windows(2).all(|pair| pair[0].end_ns <= pair[1].start_ns));
}

#[test]
fn a_part_of_a_profile_is_its_windows_in_the_range() {
    let a = profile("a", 100, &[&[(1, 1)], &[(1, 2)], &[(3, 4)], &[(1, 8)]]);
    let sum = merged(seconds(101, 103), 1, std::slice::from_ref(&a));
    assert_eq!((weight(&sum, "a", "parse"), weight(&sum, "a", "walk")), (2, 4));
    assert_eq!(
        (sum.run.counts.samples, sum.run.counts.truncated, sum.run.counts.truncated_by.broken),
        (6, 4, 4)
    );
    assert_eq!(sum.run.counts.lost, 4, "of 10, the part of the CPU time");
    assert!((sum.run.cpu.target_cpu_s - 6.0).abs() < 1e-9);
    assert!(!Merger::new(seconds(0, 100), 1).add(&a));
}

/// Where samples are rare, no window reaches to the ends of the range, which were sampled all the same.
#[test]
fn the_part_of_a_run_lasts_as_long_as_the_range() {
    let mut a = profile("a", 100, &[&[(1, 1)], &[(1, 2)]]);
    a.run.duration_s = 4.0;
    (a.windows[0].start_ns, a.windows[0].end_ns) = (SECOND, 2 * SECOND);
    (a.windows[1].start_ns, a.windows[1].end_ns) = (2 * SECOND, 3 * SECOND);
    let sum = merged(seconds(100, 103), 1, std::slice::from_ref(&a));
    assert_eq!((sum.run.start_unix_ns, sum.run.duration_s), (100 * SECOND, 3.0));
    assert_eq!(sum.windows[0].start_ns, SECOND);
    let sum = merged(seconds(0, 1000), 1, &[a]);
    assert_eq!((sum.run.start_unix_ns, sum.run.duration_s), (100 * SECOND, 4.0));
}

#[test]
fn a_profile_without_windows_is_one() {
    let mut a = profile("a", 100, &[&[(1, 1)], &[(1, 2)]]);
    a.windows.clear();
    a.stacks.iter_mut().for_each(|stack| stack.windows.clear());
    let sum = merged(seconds(100, 102), 60, std::slice::from_ref(&a));
    assert_eq!((sum.windows.len(), weight(&sum, "a", "parse")), (1, 3));
    assert_eq!(sum.stacks[0].windows, [StackWindow { window: 0, cpu_ns: 3, samples: 3 }]);
    assert!(merged(seconds(100, 101), 60, &[a]).stacks.is_empty(), "its middle is the end of the range");
}

#[test]
fn a_target_that_did_nothing_was_watched() {
    let idle = profile("a", 100, &[&[], &[]]);
    let sum = merged(seconds(0, 1000), 1, &[idle]);
    assert_eq!((sum.stacks.len(), sum.windows.len(), sum.run.counts.lost), (0, 2, 10));
    assert_eq!(sum.run.counts.complete_ratio, 1.0);
}

#[test]
fn bins_are_as_many_as_a_run_has_windows() {
    for (length_s, bin_ms) in [
        (0, 20),
        (4, 20),
        (60, 500),
        (240, 1_000),
        (3600, 15_000),
        (86_400, 600_000),
        (7 * 86_400, 3_600_000),
    ] {
        assert_eq!(seconds(0, length_s).bin_ns(), bin_ms * SECOND / 1_000, "{length_s}");
    }
    let enormous = Range { from_unix_ns: 0, to_unix_ns: u64::MAX };
    assert!(u64::MAX.div_ceil(enormous.bin_ns()) <= MAX_BINS);
}

/// Nobody sampled between two runs, and of targets that were sampled together the time counts once.
#[test]
fn own_time_is_a_share_of_the_time_in_which_there_was_sampling() {
    let run = |target, start_s| {
        let mut profile = profile(target, start_s, &[&[(1, 20)], &[(1, 20)]]);
        // Half of it was set-up, which is a figure of its own.
        (profile.run.cpu.self_cpu_s, profile.run.overhead.own_cpu_ratio) = (0.2, 0.05);
        (profile.run.rate.rate_hz, profile.run.counts.lost) = (7.0, 0);
        profile
    };
    let own =
        |profiles: &[SymbolizedProfile]| merged(seconds(0, 1000), 1, profiles).run.overhead.own_cpu_ratio;
    assert!((own(&[run("a", 100), run("a", 400)]) - 0.05).abs() < 1e-9);
    assert!((own(&[run("a", 100), run("b", 100), run("b", 101)]) - 0.1).abs() < 1e-9);
    let mut hosts = Merger::of_hosts(seconds(0, 1000), SECOND);
    for profile in [run("a", 100), run("a", 100)] {
        hosts.add(&profile);
    }
    assert!((hosts.finish().run.overhead.own_cpu_ratio - 0.05).abs() < 1e-9, "of each host");
    // A sample for each second of CPU time, whatever the rate was at the end.
    let rate_hz = merged(seconds(0, 1000), 1, &[run("a", 100), run("a", 400)]).run.rate.rate_hz;
    assert!((rate_hz - 1.0).abs() < 1e-9, "{rate_hz}");
}

#[test]
fn runs_of_several_hosts_last_as_long_as_any_of_them_was_sampled() {
    let lasted_s = |starts_s: &[u64]| {
        let mut hosts = Merger::of_hosts(seconds(0, 1_000_000), 60 * SECOND);
        starts_s.iter().for_each(|start_s| {
            hosts.add(&profile("a", *start_s, &[&[(1, 20)], &[(1, 20)]]));
        });
        hosts.finish().run.duration_s
    };
    assert!((lasted_s(&[100, 86_500]) - 4.0).abs() < 1e-9, "a day apart");
    assert!((lasted_s(&[100, 101]) - 3.0).abs() < 1e-9, "they overlap");
    assert!((lasted_s(&[100, 100]) - 2.0).abs() < 1e-9, "at once");
}

/// Seventeen million frames: more than the file of a sum may hold.
#[test]
fn of_too_many_stacks_the_innermost_functions_are_kept() {
    let mut deep = profile("a", 100, &[&[(1, 20)]]);
    deep.stacks = (0..17_000_u32)
        .map(|at| {
            // No two are the same in their inner frames, and all are deep.
            let digits =
                (0..1000).map(|digit| LocationIndex(if digit < 8 { at >> (2 * digit) & 3 } else { 0 }));
            let windows = vec![StackWindow { window: 0, cpu_ns: 2, samples: 1 }];
            let (process, outcome) = (ProcessIndex(0), Outcome::Complete);
            WeightedStack { process, frames: digits.collect(), outcome, samples: 1, cpu_ns: 2, windows }
        })
        .collect();
    let sum = merged(seconds(0, 1000), 1, std::slice::from_ref(&deep));
    let frames: usize = sum.stacks.iter().map(|stack| stack.frames.len()).sum();
    assert!(frames <= STACK_LIMITS.frames + STACK_LIMITS.leaves, "{frames}");
    assert_eq!(sums(&sum), (34_000, 17_000));
    for name in ["main", "parse", "copy", "walk"] {
        assert_eq!(weight(&sum, "a", name), weight(&deep, "a", name), "{name}");
    }
    let cut = sum.stacks.iter().filter(|stack| stack.outcome == Outcome::NotKept);
    assert!(cut.clone().all(|stack| stack.frames.len() == 1));
    let cut = cut.map(|stack| stack.samples).sum::<u64>();
    assert_eq!(sum.run.counts.truncated_by.not_kept, cut);
    let note = sum.run.notes.last().unwrap();
    assert!(cut > 0 && note.starts_with(&format!("{cut} samples have no more")), "{cut}: {note}");
}

#[test]
fn limits_hold_for_whatever_there_is_most_of() {
    let a = profile("a", 100, &[&[(0, 1), (1, 2), (2, 3), (3, 4)]]);
    let plenty = StackLimits { stacks: 9, frames: 99, functions: 99, leaves: 9 };
    for (limits, whole, stacks) in [
        (plenty, 4, 4),
        (StackLimits { stacks: 1, ..plenty }, 1, 4),
        (StackLimits { frames: 4, ..plenty }, 2, 4),
        (StackLimits { functions: 7, ..plenty }, 3, 4),
        (StackLimits { frames: 4, leaves: 1, ..plenty }, 2, 4),
        (StackLimits { stacks: 1, leaves: 1, ..plenty }, 1, 3),
        (StackLimits { stacks: 0, leaves: 0, ..plenty }, 0, 1),
    ] {
        let range = seconds(0, 1000);
        let mut merger = Merger { interner: Interner::within(limits), ..Merger::new(range, SECOND) };
        merger.add(&a);
        let sum = merger.finish();
        assert_eq!(sums(&sum), (10, 10));
        let found = sum.stacks.iter().filter(|stack| stack.outcome != Outcome::NotKept).count();
        assert_eq!((found, sum.stacks.len()), (whole, stacks), "{sum:?}");
        assert_eq!(sum.run.notes.len(), 1 + usize::from(whole < 4));
    }
}

#[test]
fn figures_that_are_none_stay_out() {
    let mut a = profile("a", 100, &[&[(1, 1)]]);
    (a.run.cost.overhead_us, a.run.cpu.target_cpu_s, a.run.rate.rate_hz) =
        (f64::NAN, f64::INFINITY, f64::NEG_INFINITY);
    a.stacks[0].windows[0].cpu_ns = u64::MAX;
    a.stacks[0].cpu_ns = u64::MAX;
    let sum = merged(seconds(0, 1000), 1, &[a.clone(), a]);
    assert!(
        sum.run.cost.overhead_us.is_finite()
            && sum.run.cpu.target_cpu_s.is_finite()
            && sum.run.rate.rate_hz.is_finite()
    );
    assert_eq!(sum.stacks[0].cpu_ns, u64::MAX);
}

/// A key that a later version adds is carried too, or said here not to be.
#[test]
fn every_figure_of_a_run_is_carried() {
    const OF_A_START: [&str; 6] = [
        "predicted_overhead_us",
        "predicted_overhead_se_us",
        "predicted_overhead_ratio",
        "predicted_overhead_se_ratio",
        "predicted_rate_hz",
        "predicted_rate_se_hz",
    ];
    let mut a = profile("a", 100, &[&[(1, 5), (3, 5)]]);
    let run = &mut a.run;
    macro_rules! set {
        ($value:expr; $($group:ident: $($key:ident),*;)*) => {$($(run.$group.$key = $value;)*)*};
    }
    set!(
        3;
        counts: lost, unseen_interrupts, outer_frames_from_earlier, undecodable, throttled, foreign_samples, walked_frames, copied_bytes;
        files: maps_reread, mappings_dropped, objects, files_lost, symbol_bytes_peak, symbol_evictions, symbol_rereads;
        cost: handler_samples;
        rate: retunes;
        how: stack_copy_bytes, seed;
    );
    set!(
        0.5;
        cpu: target_cpu_s, sampling_cpu_s, sampling_cpu_se_s, not_sampled_cpu_s, weight_s, self_cpu_s, setup_cpu_s;
        cost: overhead_us, overhead_se_us, self_us, interrupt_ratio;
        overhead: overhead_ratio, overhead_worst_1s_ratio, overhead_worst_10s_ratio, budget_ratio;
        overhead: slowdown_ratio, slowdown_budget_ratio, slowdown_worst_10s_ratio;
        overhead: own_cpu_ratio, own_cpu_budget_ratio, own_cpu_worst_10s_ratio;
        rate: rate_hz, optimum_rate_hz, unbounded_rate_hz, law_samples, variance_ratio, replicas;
        how: confidence, precision_goal_ratio;
    );
    set!("word".to_owned(); cost: handler_time; rate: bound_by, law; how: attach_mode, event, unwind, stopped;);
    set!(Some(0.5); cost: handler_us, handler_se_us;);
    run.overhead.overhead_parts.base_ratio = 0.5;
    run.cost.overhead_modes = vec![crate::rate::CostMode { overhead_us: 1.0, share: 1.0 }];
    let sum = serde_json::to_value(&merged(seconds(0, 1000), 1, &[a]).run).unwrap();
    let nothing = serde_json::to_value(Run::default()).unwrap();
    for (key, value) in sum.as_object().unwrap() {
        assert_eq!(*value == nothing[key], OF_A_START.contains(&key.as_str()), "{key}");
    }
}

fn profiles() -> impl Strategy<Value = Vec<SymbolizedProfile>> {
    let window = prop::collection::vec((0..4_u32, 0..100_u64), 0..4);
    let one = (prop::sample::select(&["a", "b", "c"][..]), 0..300_u64, prop::collection::vec(window, 0..6));
    let made = |(target, start, windows): (&str, u64, Vec<Vec<(u32, u64)>>)| {
        profile(target, start, &windows.iter().map(Vec::as_slice).collect::<Vec<_>>())
    };
    prop::collection::vec(one.prop_map(made), 0..8)
}

fn sums(profile: &SymbolizedProfile) -> (u64, u64) {
    let sum = |of: fn(&WeightedStack) -> u64| profile.stacks.iter().map(of).sum();
    (sum(|stack| stack.cpu_ns), sum(|stack| stack.samples))
}

proptest! {
    /// Cut anywhere, the parts hold what the whole does.
    #[test]
    fn ranges_side_by_side_share_nothing_and_miss_nothing(profiles in profiles(), cut in 0..320_u64, bin in 1..90_u64) {
        let whole = merged(seconds(0, 400), bin, &profiles);
        let left = merged(seconds(0, cut), bin, &profiles);
        let right = merged(seconds(cut, 400), bin, &profiles);
        let (left, right) = (sums(&left), sums(&right));
        prop_assert_eq!(sums(&whole), (left.0 + right.0, left.1 + right.1));
        let all: u64 = profiles.iter().map(|profile| sums(profile).0).sum();
        prop_assert_eq!(sums(&whole).0, all);
    }

    /// Parts share no stack, miss none, and hold nothing that their stacks do not refer to.
    #[test]
    fn parts_add_up_to_the_whole_and_hold_what_is_theirs(profiles in profiles(), cut in 0..12_usize) {
        let whole = merged(seconds(0, 400), 60, &profiles);
        let parts = [part_of(&whole, 0..cut), part_of(&whole, cut..usize::MAX)];
        prop_assert_eq!(parts[0].stacks.len() + parts[1].stacks.len(), whole.stacks.len());
        let of_parts = parts.each_ref().map(sums);
        prop_assert_eq!(sums(&whole), (of_parts[0].0 + of_parts[1].0, of_parts[0].1 + of_parts[1].1));
        for target in ["a", "b", "c"] {
            for name in ["main", "parse", "copy", "walk"] {
                let sum: u64 = parts.iter().map(|part| weight(part, target, name)).sum();
                prop_assert_eq!(sum, weight(&whole, target, name));
            }
        }
        for part in &parts {
            let mut used: Vec<u32> = part.stacks.iter().flat_map(|stack| &stack.frames).map(|frame| frame.0).collect();
            used.sort_unstable();
            used.dedup();
            prop_assert_eq!(used.len(), part.locations.len());
            prop_assert!(part.functions.len() <= part.locations.len() && part.processes.len() <= part.stacks.len());
            prop_assert_eq!(&part.run.target, &whole.run.target);
        }
    }

    /// The sum of sums is the sum.
    #[test]
    fn the_order_of_merging_does_not_matter(profiles in profiles(), at in 0..8_usize) {
        let range = seconds(0, 400);
        let (first, second) = profiles.split_at(at.min(profiles.len()));
        let twice = merged(range, 60, &[merged(range, 1, first), merged(range, 1, second)]);
        let once = merged(range, 60, &profiles);
        for target in ["a", "b", "c"] {
            for name in ["main", "parse", "copy", "walk"] {
                prop_assert_eq!(weight(&twice, target, name), weight(&once, target, name));
            }
        }
        prop_assert_eq!(twice.stacks.len(), once.stacks.len());
        for stack in &once.stacks {
            prop_assert_eq!(stack.windows.iter().map(|had| had.cpu_ns).sum::<u64>(), stack.cpu_ns);
            prop_assert!(stack.windows.windows(2).all(|pair| pair[0].window < pair[1].window));
            prop_assert!(stack.windows.iter().all(|had| (had.window as usize) < once.windows.len()));
        }
    }
}

/// Another tool's file says nothing about what its samples cost.
#[test]
fn a_run_that_does_not_state_a_figure_leaves_it_to_the_others() {
    let mut ours = profile("web", 0, &[&[(1, 10)]]);
    ours.run.cpu.target_cpu_s = 10.0;
    ours.run.overhead.slowdown_ratio = 0.0044;
    ours.run.overhead.overhead_parts.base_ratio = 0.0044;
    ours.run.cost.overhead_us = 73.0;
    ours.run.rate.replicas = 3.0;
    let mut other = profile("web", 20, &[&[(1, 10)]]);
    other.run.cpu.target_cpu_s = 10.0;
    other.run.cost.overhead_us = 0.0;
    (other.run.how.confidence, other.run.overhead.budget_ratio) = (0.0, 0.0);
    let run = merged(seconds(0, 40), 1, &[ours, other]).run;
    let found = [
        run.overhead.slowdown_ratio,
        run.overhead.overhead_parts.base_ratio,
        run.cost.overhead_us,
        run.rate.replicas,
    ];
    let stated = [0.0044, 0.0044, 73.0, 3.0];
    assert!(found.iter().zip(stated).all(|(found, stated)| (found - stated).abs() < 1e-9), "{found:?}");
}

#[test]
fn a_window_without_a_sample_was_not_slowed_down_and_counts() {
    let mut sampled = profile("web", 0, &[&[(1, 10)]]);
    sampled.run.cpu.target_cpu_s = 10.0;
    sampled.run.overhead.slowdown_ratio = 0.01;
    sampled.run.overhead.overhead_parts.base_ratio = 0.01;
    let mut silent = profile("web", 1, &[&[]]);
    silent.run.cpu.target_cpu_s = 10.0;
    let overhead = merged(seconds(0, 2), 1, &[sampled, silent]).run.overhead;
    assert!((overhead.slowdown_ratio - 0.005).abs() < 1e-9, "{overhead:?}");
    assert!((overhead.overhead_parts.base_ratio - 0.005).abs() < 1e-9, "{overhead:?}");
}

#[test]
fn a_part_of_a_run_has_that_part_of_what_its_notes_count() {
    let mut hour = profile("web", 0, &[&[(1, 10)], &[(1, 10)], &[(1, 10)], &[(1, 10)]]);
    hour.run.notes = vec!["2400 records were lost".to_owned()];
    let run = merged(seconds(0, 1), 1, &[hour]).run;
    assert_eq!(run.notes, ["600 records were lost"]);
}
