use super::summary::{bound, goal, largest, overhead, rate, samples, target, weights};
use super::*;
use crate::functions::functions;
use crate::intervals::Reached;
use crate::testing;
use profiler_core::profile::{
    CostFigures, CpuTimes, HowSampled, OverheadFigures, OverheadParts, RateFigures, SampleCounts,
};

/// The profile's functions with intervals of plain figures, whatever the statistics say.
fn table(profile: &SymbolizedProfile) -> FunctionTable {
    let mut table = functions(profile);
    for (cost, tied) in table.functions.iter_mut().zip([false, true].into_iter().cycle()) {
        if cost.cpu_s_low.is_some() {
            (cost.cpu_s_low, cost.cpu_s_high) = (Some(cost.cpu_s * 0.9), Some(cost.cpu_s * 1.2));
            cost.share_ends = Some((cost.share * 0.9, cost.share * 1.2));
            cost.tied = Some(tied);
        }
    }
    let reached = Reached { precision_ratio: 0.161, converged: false, cpu_s_to_converge: Some(94.0) };
    table.reached = table.reached.map(|_| reached);
    table
}

/// The run of the test profile, of which nothing is asked.
fn run() -> Run {
    Run {
        how: HowSampled { precision_goal_ratio: 0.0, ..testing::profile().run.how },
        ..testing::profile().run
    }
}

fn rendered(profile: &SymbolizedProfile, top: usize) -> String {
    render(profile, &table(profile), View { width: 80, top })
}

/// The profile with `count` functions in place of its own, all alike.
fn of_functions(count: u32) -> SymbolizedProfile {
    let mut profile = testing::profile();
    let (function, location, stack) =
        (profile.functions[0].clone(), profile.locations[0].clone(), profile.stacks[0].clone());
    (profile.functions, profile.locations, profile.stacks) = (Vec::new(), Vec::new(), Vec::new());
    for at in 0..count {
        let name = format!("f{at}");
        profile.functions.push(profiler_core::profile::Function { name, ..function.clone() });
        let mut location = location.clone();
        location.lines[0].function = profiler_core::profile::FunctionIndex(at);
        profile.locations.push(location);
        let frames = vec![profiler_core::profile::LocationIndex(at)];
        profile.stacks.push(profiler_core::profile::WeightedStack { frames, ..stack.clone() });
    }
    profile
}

#[test]
fn on_a_small_screen_each_line_of_the_summary_is_one_line() {
    let profile = testing::profile();
    let view = View { width: 60, top: 20 };
    let (whole, brief) =
        (render(&profile, &table(&profile), view), render_brief(&profile, &table(&profile), view));
    let labels = |text: &str| -> Vec<String> {
        text.lines()
            .filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()))
            .map(|line| line[..10].to_owned())
            .collect()
    };
    assert_eq!(labels(&brief), labels(&whole));
    assert!(brief.lines().count() < whole.lines().count() && brief.contains('…'), "{brief}");
    assert!(brief.lines().all(|line| line.chars().count() <= 60), "{brief}");
}

#[test]
fn table_of_a_run() {
    let profile = SymbolizedProfile { run: run(), ..testing::profile() };
    insta::assert_snapshot!(rendered(&profile, 4));
}

#[test]
fn table_of_a_run_with_a_goal() {
    let text = rendered(&testing::profile(), 4);
    assert!(text.contains("±16.1%; ±5% takes 94 s more of CPU"), "{text}");
    assert!(!text.contains("all together"), "{text}");
}

#[test]
fn precision_in_words() {
    let mut run =
        Run { how: HowSampled { precision_goal_ratio: 0.05, ..HowSampled::default() }, ..Run::default() };
    let in_words = |run: &Run, precision_ratio, converged, cpu_s_to_converge| {
        goal(run, &Reached { precision_ratio, converged, cpu_s_to_converge })
    };
    let text = |ratio, converged, cpu_s| in_words(&run, ratio, converged, cpu_s);
    assert_eq!(text(0.04, true, Some(0.0)), "the largest functions are known to ±4.0%: converged (goal ±5%)");
    assert!(text(0.3, false, Some(75.4)).ends_with("±30.0%; ±5% takes 75 s more of CPU time at this rate"));
    assert!(text(0.0504, false, Some(0.4)).ends_with("±5% takes 0.40 s more of CPU time at this rate"));
    assert!(text(0.3, false, None).ends_with("it is not known yet how long ±5% takes"));
    assert!(text(1.0, false, None).starts_with("too little is known"));
    run.how.stopped = "precise".to_owned();
    let text = |ratio, converged, cpu_s| in_words(&run, ratio, converged, cpu_s);
    assert!(text(0.04, true, Some(0.0)).ends_with("±4.0%, within ±5%: sampling stopped"));
    assert!(text(0.07, false, Some(3.0)).contains("±7.0%; to ±5% together with what is inlined"));
}

#[test]
fn the_widest_interval_of_the_four_largest_is_the_precision() {
    let mut functions = table(&testing::profile()).functions;
    let text = |functions: &[FunctionCost]| largest(&run(), functions);
    let of_four = "the 4 largest functions are known to ±20% (95%, all together)";
    assert_eq!(text(&functions).as_deref(), Some(of_four));
    functions[1].cpu_s_high = Some(functions[1].cpu_s * 1.9);
    assert!(text(&functions).unwrap().contains("±90%"));
    functions[4].cpu_s_high = Some(1e3); // the fifth
    assert!(text(&functions).unwrap().contains("±90%"));
    functions[3].share = 0.005;
    assert!(text(&functions).unwrap().starts_with("the 3 largest"), "small ones do not count");
    functions[1].cpu_s_high = Some(functions[1].cpu_s * 3.0);
    assert_eq!(text(&functions), None, "wider than the figure");
    functions[1].cpu_s_low = None;
    assert_eq!(text(&functions), None);
    functions[0].cpu_s_high = Some(functions[0].cpu_s * 1.0312);
    functions[0].cpu_s_low = Some(functions[0].cpu_s * 0.97);
    assert_eq!(text(&functions[..1]).as_deref(), Some("the largest function is known to ±3.1% (95%)"));
}

#[test]
fn a_file_of_another_tool_has_no_figures_of_ours() {
    let mut profile = testing::profile();
    profile.windows.clear();
    profile.stacks.iter_mut().for_each(|stack| stack.windows.clear());
    profile.run = Run {
        target: "a.out".to_owned(),
        counts: SampleCounts { samples: 602, ..SampleCounts::default() },
        ..Run::default()
    };
    insta::assert_snapshot!(rendered(&profile, 20));
}

/// A file of a version that knew no slowdown, no law and no goal.
#[test]
fn a_file_without_a_figure_leaves_its_phrase_out() {
    let run = Run {
        overhead: OverheadFigures {
            slowdown_ratio: 0.0,
            slowdown_budget_ratio: 0.0,
            own_cpu_ratio: 0.0,
            own_cpu_budget_ratio: 0.0,
            ..run().overhead
        },
        cpu: CpuTimes { setup_cpu_s: 0.0, ..run().cpu },
        rate: RateFigures {
            law: String::new(),
            law_samples: 0.0,
            variance_ratio: 0.0,
            replicas: 0.0,
            ..run().rate
        },
        cost: CostFigures { interrupt_ratio: 0.0, ..run().cost },
        ..run()
    };
    assert_eq!(overhead(&run).unwrap(), "66.4 ± 2.7 µs a sample");
    assert_eq!(rate(&run).unwrap(), "60/s of CPU time now; limited by the slowdown budget");
    assert_eq!((overhead(&Run::default()), rate(&Run::default())), (None, None));
}

#[test]
fn everything_fits_the_width() {
    let mut profile = testing::profile();
    let long = "<std::collections::HashMap<alloc::string::String, Vec<u8>> as core::iter::Extend<_>>::extend";
    profile.functions[4].name = long.to_owned();
    profile.functions[3].name = "x".repeat(300);
    profile.modules[1].name = "libverylongnameofalibrary-with-version.so.1.2.3".to_owned();
    profile.run.target = format!("./server {}", "y".repeat(200));
    for width in [60, 80, 120] {
        let text = render(&profile, &table(&profile), View { width, top: 20 });
        for line in text.lines() {
            assert!(line.chars().count() <= width, "{width}: {line}");
        }
        assert!(text.contains("extend ["), "{text}");
    }
    let wide = render(&profile, &table(&profile), View { width: 200, top: 20 });
    assert!(wide.contains(&format!("{long} [libverylong")), "{wide}");
}

#[test]
fn rows_that_are_hidden_are_counted_with_what_shows_them() {
    let text = rendered(&of_functions(49), 12);
    assert_eq!(text.lines().filter(|line| line.ends_with("[server]")).count(), 12);
    let more = "…and 37 more functions (75.5% of the CPU time); --top 0 shows them";
    assert!(text.lines().any(|line| line == more), "{text}");
    assert!(
        rendered(&of_functions(13), 12)
            .contains("…and 1 more function (7.7% of the CPU time); --top 0 shows it")
    );
    assert!(!rendered(&of_functions(12), 12).contains("more function"));
    // A mark that stands beside no row needs no explanation: every second one has it.
    assert_eq!([1, 2].map(|top| rendered(&of_functions(12), top).contains("order  ")), [false, true]);
}

#[test]
fn intervals_are_shares_between_nothing_and_all() {
    for cost in functions(&testing::profile()).functions {
        let (low, high) = cost.share_ends.unwrap();
        assert!(0.0 <= low && low <= cost.share && cost.share <= high && high <= 1.0, "{cost:?}");
    }
    let mut cost = functions(&testing::profile()).functions.remove(0);
    let mut text = |ends| {
        cost.share_ends = ends;
        interval(&cost)
    };
    assert_eq!(text(Some((0.382, 0.4311))), "38.2–43.1%");
    assert_eq!(text(Some((0.0005, 0.0008))), "0.05–0.08%");
    assert_eq!(text(Some((0.99, 1.0))), "99.0–100.0%");
    assert_eq!(text(None), "");
}

#[test]
fn what_bounds_the_rate_is_said_in_plain_words() {
    let of = |bound_by: &str| {
        bound(&Run {
            rate: RateFigures { bound_by: bound_by.to_owned(), ..RateFigures::default() },
            ..Run::default()
        })
    };
    for (bound_by, words) in [
        ("law", "set by the law"),
        ("fixed", "fixed by --rate"),
        ("budget", "limited by the slowdown budget"),
        ("bucket", "limited by the slowdown budget"),
        ("own_cpu", "limited by the profiler's own CPU time"),
        ("kernel", "limited by the kernel's highest rate"),
        ("tick", "limited by the kernel's tick"),
        ("floor", "the lowest rate that yields a profile"),
    ] {
        assert_eq!(of(bound_by).as_deref(), Some(words));
    }
    assert_eq!((of(""), of("several")), (None, None));
    let fixed = Run {
        rate: RateFigures { bound_by: "fixed".to_owned(), law: "fixed".to_owned(), ..run().rate },
        ..run()
    };
    assert_eq!(rate(&fixed).unwrap(), "60/s of CPU time now; fixed by --rate");
    assert!(
        overhead(&fixed).unwrap().starts_with("slowdown 0.44% ± 0.02%, own CPU time")
            && !overhead(&fixed).unwrap().contains("at most"),
        "nothing bounds it"
    );
    let mut ahead = Run { duration_s: 2.0, ..run() };
    assert!(!overhead(&ahead).unwrap().contains("over ten seconds"));
    ahead.overhead.slowdown_ratio = 2.0 * ahead.overhead.slowdown_budget_ratio;
    assert!(overhead(&ahead).unwrap().contains("% over ten seconds, own CPU time"));
    ahead.duration_s = 12.0;
    assert!(!overhead(&ahead).unwrap().contains("over ten seconds"), "it is not kept then");
    (ahead.duration_s, ahead.overhead.own_cpu_ratio, ahead.overhead.own_cpu_budget_ratio) = (1.0, 0.02, 0.01);
    assert!(overhead(&ahead).unwrap().contains("own CPU time 2.0% of a CPU of at most 1% over ten seconds"));
    // What the slowdown is made of is what a sample is said to cost.
    let mut early = run();
    early.overhead.overhead_parts = OverheadParts {
        base_ratio: 0.01,
        stack_ratio: 0.02,
        switches_ratio: 0.5,
        ..OverheadParts::default()
    };
    let each_us = 0.03 * early.cpu.target_cpu_s * 1e6 / (early.counts.samples + early.counts.lost) as f64;
    assert!(overhead(&early).unwrap().contains(&format!("; {each_us:.1} ± ")), "{:?}", overhead(&early));
    let of_windows = |merged_windows| rate(&Run { merged_windows, ..run() }).unwrap();
    assert!(of_windows(1).contains("CPU time now") && of_windows(2).contains("CPU time on average"));
    let anytime =
        Run { rate: RateFigures { law: "anytime".to_owned(), law_samples: 5600.4, ..run().rate }, ..run() };
    assert!(rate(&anytime).unwrap().contains("602 samples, the law asks for 5600 (anytime law); limited by"));
    let with_all =
        Run { rate: RateFigures { law: "anytime".to_owned(), law_samples: 601.0, ..run().rate }, ..run() };
    assert!(rate(&with_all).unwrap().ends_with("the law asks for 601 (anytime law)"), "no bound was felt");
    let by_law =
        Run { rate: RateFigures { bound_by: "law".to_owned(), ..with_all.rate.clone() }, ..with_all.clone() };
    assert!(rate(&by_law).unwrap().ends_with("(anytime law); set by the law"));
    let of_many = Run { rate: RateFigures { replicas: 8.0, ..run().rate }, ..run() };
    assert!(
        rate(&of_many).unwrap().contains("; one of 8.0 replicas: 0.50 of the rate of one alone; limited by")
    );
    assert!(
        !rate(&Run { rate: RateFigures { bound_by: "fixed".to_owned(), ..of_many.rate }, ..of_many })
            .unwrap()
            .contains("replicas")
    );
}

/// A sum of runs that differ in everything has words for none of it.
#[test]
fn a_sum_of_different_runs_says_nothing_of_several() {
    let mut run = run();
    for word in [
        &mut run.rate.bound_by,
        &mut run.rate.law,
        &mut run.how.attach_mode,
        &mut run.how.unwind,
        &mut run.how.stopped,
        &mut run.cost.handler_time,
        &mut run.how.event,
    ] {
        "several".clone_into(word);
    }
    run.target = "sh -c 'one\ntwo'".to_owned();
    run.notes = vec!["first\nsecond (in 1 of 3 windows)".to_owned()];
    for (windows, law_samples) in [(21, 839.2), (0, 5000.0)] {
        let mut profile = SymbolizedProfile {
            run: Run { rate: RateFigures { law_samples, ..run.rate.clone() }, ..run.clone() },
            ..testing::profile()
        };
        profile.windows.truncate(windows);
        let text = render(&profile, &functions(&profile), View { width: 80, top: usize::MAX });
        assert!(!text.contains("several") && !text.contains("\\x"), "{text}");
        assert!(text.starts_with("target    sh -c 'one two': 10.05 s"), "{text}");
        let (note, rows) = (text.find("first second (in 1 of 3").unwrap(), text.find("[module]").unwrap());
        assert!(note < rows, "{text}");
    }
}

#[test]
fn samples_say_why_stacks_are_incomplete_where_some_are() {
    assert_eq!(
        samples(&run()),
        "602: 89.9% with complete stacks, 3 lost and made up for by those around them; incomplete: 49 of which nothing was recorded, 12 that contradict their \
         unwind information"
    );
    let complete = Run {
        counts: SampleCounts { samples: 5375, complete_ratio: 1.0, ..SampleCounts::default() },
        how: HowSampled { confidence: 0.95, ..HowSampled::default() },
        ..Run::default()
    };
    assert_eq!(samples(&complete), "5375: 100.0% with complete stacks, 0 lost");
    let mut nearly = complete.clone();
    (nearly.counts.truncated, nearly.counts.complete_ratio) = (1, 1.0 - 1.0 / 5375.0);
    assert!(samples(&nearly).starts_with("5375: 99.9% with complete stacks"));
    let completed =
        Run { counts: SampleCounts { outer_frames_from_earlier: 21, ..complete.counts }, ..complete };
    assert_eq!(
        samples(&completed),
        "5375: 100.0% with complete stacks (21 with outer frames from an earlier sample), 0 lost"
    );
}

#[test]
fn weights_are_told_where_they_are_off() {
    let of = |weight_s| {
        weights(&Run {
            cpu: CpuTimes { weight_s, target_cpu_s: 10.0, ..CpuTimes::default() },
            ..Run::default()
        })
    };
    assert_eq!((of(9.81), of(10.19), of(0.0)), (None, None, None));
    assert_eq!(of(9.0).unwrap(), "the samples stand for 9.00 s, the scheduler counted 10.00 s (-10.0%)");
}

#[test]
fn a_run_of_few_samples_says_why_and_what_brings_more() {
    let few = |run: &Run, functions: &[FunctionCost]| few::why(run, functions);
    let functions = table(&testing::profile()).functions;
    let (known, unknown) = (&functions[..], &[][..]);
    assert_eq!(few(&run(), known), None);
    let mut asked = Run { rate: RateFigures { law_samples: 1205.0, ..run().rate }, ..run() };
    let of_budget = "few samples: limited by the slowdown budget; --budget 2% allows more";
    assert_eq!((few(&asked, known), few(&asked, unknown).as_deref()), (None, Some(of_budget)));
    asked.how.stopped = "window".to_owned();
    assert!(few(&asked, unknown).unwrap().ends_with("; a budget of 2% allows more"));
    asked.cpu.target_cpu_s = 0.03;
    let short = "few samples: the target used 30 ms of CPU time; profile a longer run";
    assert_eq!(few(&asked, unknown).as_deref(), Some(short));
    // Of a program without large functions.
    assert_eq!(
        few(
            &Run { counts: SampleCounts { samples: 1_100, ..asked.counts.clone() }, ..asked.clone() },
            unknown
        ),
        None
    );
    assert!(
        few(
            &Run {
                counts: SampleCounts { samples: 1_100, ..asked.counts },
                rate: RateFigures { law_samples: 2_500.0, ..asked.rate },
                ..asked
            },
            unknown
        )
        .is_some()
    );
    for (bound_by, text) in [
        ("law", "few samples: the target used 10.05 s of CPU time; profile a longer run"),
        ("kernel", "few samples: limited by the kernel's highest rate; profile a longer run"),
        ("fixed", "few samples: fixed by --rate; a higher --rate brings more"),
    ] {
        let run = Run { rate: RateFigures { bound_by: bound_by.to_owned(), ..run().rate }, ..run() };
        assert_eq!((few(&run, known), few(&run, unknown).as_deref()), (None, Some(text)));
    }
    // Windows that were bounded in different ways: the target did use much CPU time.
    for bound_by in ["several", "law"] {
        let rate = RateFigures { bound_by: bound_by.to_owned(), law_samples: 1205.0, ..run().rate };
        let below = "few samples: the rate was below the law's for part of the time; profile a longer run";
        assert_eq!(few(&Run { rate, ..run() }, unknown).as_deref(), Some(below));
    }
    assert_eq!(few(&Run::default(), unknown), None, "of another tool");
    for (budget_ratio, text) in [(0.3, "--budget 50% allows more"), (0.5, "profile a longer run")] {
        let rate = RateFigures { bound_by: "budget".to_owned(), ..run().rate };
        let overhead = OverheadFigures { budget_ratio, ..run().overhead };
        let text_of = few(&Run { rate, overhead, ..run() }, unknown).unwrap();
        assert!(text_of.ends_with(text), "{text_of}");
    }
}

#[test]
fn an_empty_profile_is_said_to_be_empty() {
    let text = |run| {
        let profile = SymbolizedProfile { run, ..SymbolizedProfile::default() };
        render(&profile, &FunctionTable::default(), View { width: 80, top: 12 })
    };
    assert!(text(Run::default()).starts_with("no samples\n"));
    let ls = |target_cpu_s| Run {
        target: "ls".to_owned(),
        cpu: CpuTimes { target_cpu_s, ..CpuTimes::default() },
        how: HowSampled { confidence: 0.95, ..HowSampled::default() },
        ..Run::default()
    };
    assert_eq!(text(ls(0.001)), "ls used 1 ms of CPU time: nothing to sample\n");
    assert_eq!(text(ls(0.0)), "ls used no CPU time: nothing to sample\n");
    let noted = Run { notes: vec!["as user".to_owned()], ..ls(0.0004) };
    assert_eq!(text(noted), "ls used 0.4 ms of CPU time: nothing to sample\n\nnote      as user\n");
    let unseen = text(Run {
        cost: CostFigures { overhead_us: 3.0, ..ls(3.0).cost },
        overhead: OverheadFigures { slowdown_budget_ratio: 0.05, ..ls(3.0).overhead },
        ..ls(3.0)
    });
    assert!(unseen.starts_with("no samples of 3.00 s of CPU time\n\ntarget    ls: 3.00 s"), "{unseen}");
    assert_eq!(
        overhead(&Run {
            cost: CostFigures { overhead_us: 3.0, ..ls(0.001).cost },
            overhead: OverheadFigures { slowdown_budget_ratio: 0.05, ..ls(0.001).overhead },
            ..ls(0.001)
        }),
        None
    );
}

#[test]
fn what_nobody_sampled_is_told_beside_the_target() {
    let run = |not_sampled_cpu_s| Run {
        cpu: CpuTimes { target_cpu_s: 10.0, not_sampled_cpu_s, ..CpuTimes::default() },
        ..Run::default()
    };
    assert!(target(&run(4.0)).ends_with(", 4.00 s not sampled, in no function"));
    assert!(!target(&run(0.05)).contains("not sampled") && !target(&Run::default()).contains("not sampled"));
}
