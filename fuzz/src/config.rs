//! Any bytes as a settings file, and any text as a setting: what is wrong has its place in the file, and what is
//! understood is printed so that it is understood again.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;

use config::{
    AttachMode, Backend, Bytes, DaemonSettings, Hertz, Mode, Pattern, Ratio, RelabelAction,
    RelabelRegex, Span, Unwind,
};

/// Takes any bytes.
pub(crate) fn run(data: &[u8]) {
    settings_file(data);
    let Ok(text) = std::str::from_utf8(data) else { return };
    again::<Ratio>(text);
    again::<Span>(text);
    again::<Hertz>(text);
    again::<Bytes>(text);
    again::<profiler_core::rate::Criterion>(text);
    again::<AttachMode>(text);
    again::<Backend>(text);
    again::<Unwind>(text);
    again::<Mode>(text);
    again::<Pattern>(text);
    again::<RelabelRegex>(text);
    again::<RelabelAction>(text);
}

fn settings_file(data: &[u8]) {
    let problems = match DaemonSettings::parse(data) {
        Ok(settings) => {
            assert_eq!(settings.in_words().lines().count(), 1);
            for target in &settings.targets {
                settings.sampling_of(target).validate().expect("what is sampled has been checked");
            }
            let mut labels = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
            let is_kept = settings.relabel.apply("web", &mut labels);
            assert!(labels.len() <= 64 && (is_kept || !settings.relabel.is_empty()));
            return;
        }
        Err(problems) => problems,
    };
    assert!(!problems.is_empty());
    let text = String::from_utf8_lossy(data);
    let lines: Vec<&str> = text.split('\n').collect();
    for problem in problems {
        let line = lines.get(problem.line - 1).expect("a problem is in a line");
        assert!((1..=line.chars().count() + 1).contains(&problem.column), "{problem} is outside its line");
        assert!(!problem.text.contains(char::is_control), "{problem:?}");
    }
}

fn again<T: FromStr<Err: Display> + Display>(text: &str) {
    match text.parse::<T>() {
        Ok(value) => {
            let printed = value.to_string();
            let again = printed.parse::<T>().map(|again| again.to_string());
            assert_eq!(again.ok().as_ref(), Some(&printed), "{text:?}");
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
