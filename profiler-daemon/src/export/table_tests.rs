use super::*;
use crate::export::functions::functions;
use crate::export::testing;

/// The profile's functions with intervals of plain figures, whatever the statistics say.
fn table(profile: &SymbolizedProfile) -> FunctionTable {
    let mut table = functions(profile);
    for (cost, tied) in table.functions.iter_mut().zip([false, true].into_iter().cycle()) {
        if cost.cpu_s_low.is_some() {
            (cost.cpu_s_low, cost.cpu_s_high) = (Some(cost.cpu_s - 0.3), Some(cost.cpu_s + 0.4));
            cost.tied = Some(tied);
        }
    }
    let reached = Reached { precision_ratio: 0.161, converged: false, cpu_s_to_converge: Some(94.0) };
    table.reached = table.reached.map(|_| reached);
    table
}

#[test]
fn table_of_a_run() {
    let profile = testing::profile();
    insta::assert_snapshot!(render(&profile, &table(&profile), View { width: 80, top: 4 }));
}

#[test]
fn precision_in_words() {
    let mut run = Run { precision_goal_ratio: 0.05, ..Run::default() };
    let in_words = |run: &Run, precision_ratio, converged, cpu_s_to_converge| {
        precision(run, &Reached { precision_ratio, converged, cpu_s_to_converge })
    };
    let text = |ratio, converged, cpu_s| in_words(&run, ratio, converged, cpu_s);
    assert_eq!(text(0.04, true, Some(0.0)), "the largest functions are known to ±4.0%: converged (goal ±5%)");
    assert!(text(0.3, false, Some(75.4)).ends_with("±30.0%; ±5% takes 75 s more of CPU time at this rate"));
    assert!(text(0.3, false, None).ends_with("nobody can say yet how long ±5% takes"));
    assert!(text(1.0, false, None).starts_with("too little is known"));
    run.stopped = "precise".to_owned();
    let text = |ratio, converged, cpu_s| in_words(&run, ratio, converged, cpu_s);
    assert!(text(0.04, true, Some(0.0)).ends_with("±4.0%, within ±5%: sampling stopped"));
    assert!(text(0.07, false, Some(3.0)).contains("±7.0%; to ±5% together with what is inlined"));
}

#[test]
fn a_file_of_another_tool_has_no_figures_of_ours() {
    let mut profile = testing::profile();
    profile.windows.clear();
    profile.stacks.iter_mut().for_each(|stack| stack.windows.clear());
    profile.run = Run { target: "a.out".to_owned(), samples: 602, ..Run::default() };
    let view = View { width: 80, top: 20 };
    insta::assert_snapshot!(render(&profile, &table(&profile), view));
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
        assert!(text.contains("…extend ["), "{text}");
    }
}

#[test]
fn an_empty_profile_is_said_to_be_empty() {
    let text = render(&SymbolizedProfile::default(), &FunctionTable::default(), View { width: 80, top: 20 });
    assert!(text.contains("no samples"));
}

#[test]
fn what_nobody_sampled_is_told_beside_the_target() {
    let run = |not_sampled_cpu_s| Run { target_cpu_s: 10.0, not_sampled_cpu_s, ..Run::default() };
    assert!(target(&run(4.0)).ends_with(", 4.000 s not sampled, in no function"));
    assert!(!target(&run(0.05)).contains("not sampled") && !target(&Run::default()).contains("not sampled"));
}
