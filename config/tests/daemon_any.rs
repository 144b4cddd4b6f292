//! Whatever bytes a settings file has, it is read or all that is wrong has a place in it.

use config::DaemonSettings;
use proptest::prelude::*;

const SHIPPED: &str = include_str!("../../systemd/sweetspot.toml");

/// What is commented out in the shipped file is meant to be uncommented.
fn uncommented() -> String {
    let key = |line: &str| {
        line.strip_prefix('#').filter(|rest| !rest.is_empty() && !rest.starts_with(' ')).map(String::from)
    };
    SHIPPED.lines().map(|line| key(line).unwrap_or_else(|| line.to_owned()) + "\n").collect()
}

/// What is likely to be in such a file, in any order.
fn fragments() -> impl Strategy<Value = String> {
    const KEYS: &[&str] = &[
        "store", "age", "target", "name", "budget", "host", "labels", "tcp", "pid", "process", "memory", "x",
    ];
    const VALUES: &[&str] = &[
        "\"1%\"",
        "\"7d\"",
        "1",
        "-1",
        "0x10",
        "1e3",
        "true",
        "[",
        "]",
        "{",
        "}",
        "\"\"",
        "\"a(\"",
        "'/a'",
        "1979-05-27",
        "{ a = \"b\" }",
    ];
    const SIGNS: &[&str] =
        &["=", "[", "]", "[[", "]]", "\n", ".", " ", "#", "\"", "\"\"\"", "\\u", "µ", "\r\n"];
    let any = prop_oneof![
        prop::sample::select(KEYS).prop_map(String::from),
        prop::sample::select(VALUES).prop_map(String::from),
        prop::sample::select(SIGNS).prop_map(String::from),
        (prop::sample::select(KEYS), prop::sample::select(VALUES))
            .prop_map(|(k, v)| format!("\n{k} = {v}\n")),
        prop::sample::select(KEYS).prop_map(|key| format!("\n[{key}]\n")),
        prop::sample::select(KEYS).prop_map(|key| format!("\n[[{key}]]\n")),
    ];
    prop::collection::vec(any, 0..40).prop_map(|parts| parts.concat())
}

fn check(bytes: &[u8]) -> Result<(), TestCaseError> {
    let Err(found) = DaemonSettings::parse(bytes) else { return Ok(()) };
    prop_assert!(!found.is_empty());
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<&str> = text.split('\n').collect();
    for problem in &found {
        prop_assert!((1..=lines.len()).contains(&problem.line), "{problem}");
        prop_assert!(
            (1..=lines[problem.line - 1].chars().count() + 1).contains(&problem.column),
            "{problem}"
        );
        prop_assert!(!problem.text.is_empty() && !problem.text.contains(char::is_control), "{problem:?}");
    }
    prop_assert!(found.is_sorted());
    Ok(())
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_told_what_is_wrong(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        check(&bytes)?;
    }

    #[test]
    fn any_text_has_its_problems_inside(text in "\\PC{0,200}") {
        check(text.as_bytes())?;
    }

    #[test]
    fn fragments_of_a_file_have_their_problems_inside(text in fragments()) {
        check(text.as_bytes())?;
    }

    #[test]
    fn a_shipped_file_with_a_slip_has_its_problems_inside(at in any::<prop::sample::Index>(), slip in "[ -~\\n]{0,3}", cut in 0..9_usize) {
        let text = uncommented();
        let at = at.index(text.len());
        let rest = text.get(at + cut..).unwrap_or_default();
        check(format!("{}{slip}{rest}", &text[..at]).as_bytes())?;
    }
}
