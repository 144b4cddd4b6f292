use super::*;
use crate::export::functions::functions;
use crate::export::testing;

fn interval(windows: &[(f64, f64)], _: u64) -> Option<(f64, f64)> {
    let own: f64 = windows.iter().map(|(own, _)| own).sum();
    let all: f64 = windows.iter().map(|(_, all)| all).sum();
    Some((own / all - 0.03, own / all + 0.04))
}

#[test]
fn table() {
    let profile = testing::profile();
    let view = View { width: 80, top: 4 };
    insta::assert_snapshot!(render(&profile, &functions(&profile, &interval), view));
}

#[test]
fn a_file_of_another_tool_has_no_figures_of_ours() {
    let mut profile = testing::profile();
    profile.windows.clear();
    profile.stacks.iter_mut().for_each(|stack| stack.windows.clear());
    profile.run = Run { target: "a.out".to_owned(), samples: 602, ..Run::default() };
    let view = View { width: 80, top: 20 };
    insta::assert_snapshot!(render(&profile, &functions(&profile, &interval), view));
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
        let text = render(&profile, &functions(&profile, &interval), View { width, top: 20 });
        for line in text.lines() {
            assert!(line.chars().count() <= width, "{width}: {line}");
        }
        assert!(text.contains("…extend ["), "{text}");
    }
}

#[test]
fn an_empty_profile_is_said_to_be_empty() {
    let text = render(&SymbolizedProfile::default(), &[], View { width: 80, top: 20 });
    assert!(text.contains("no samples"));
}
