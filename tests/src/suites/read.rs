//! Parses the output of the suites.

use std::collections::BTreeSet;

use super::Outcome;
use crate::run::Ended;

/// The failure of a suite that does not name the failed test.
const WHOLE: &str = "(the suite)";

fn lines(ended: &Ended) -> impl Iterator<Item = &str> {
    ended.stdout.lines().chain(ended.stderr.lines()).map(str::trim)
}

/// A suite that fails without naming a test has failed as a whole.
fn outcome(run: usize, mut failed: BTreeSet<String>, ended: &Ended) -> Outcome {
    if ended.status != 0 && failed.is_empty() {
        failed.insert(format!("{WHOLE}: status {}", ended.status));
    }
    Outcome { run, failed }
}

/// `Ran 56 tests in 21.350s`, `FAIL: test_x (test.test_y.Z.test_x)`.
pub(super) fn python(ended: &Ended) -> Outcome {
    let ran = |line: &str| line.strip_prefix("Ran ")?.split(' ').next()?.parse::<usize>().ok();
    let failed = |line: &str| {
        let name = line.strip_prefix("FAIL: ").or_else(|| line.strip_prefix("ERROR: "))?;
        Some(name.to_owned())
    };
    let run = lines(ended).filter_map(ran).max().unwrap_or(0);
    outcome(run, lines(ended).filter_map(failed).collect(), ended)
}

/// `[ok]: name (3 ms)`, `[err]: name in tests/unit/x.tcl`, `[exception]: ...`, in colours or not.
pub(super) fn redis(ended: &Ended) -> Outcome {
    let after = |line: &str, mark: &str| line.find(mark).map(|at| line[at + mark.len()..].trim().to_owned());
    let ok = lines(ended).filter(|line| after(line, "[ok]:").is_some()).count();
    let failed =
        |line: &str| ["[err]:", "[exception]:", "[TIMEOUT]:"].iter().find_map(|mark| after(line, mark));
    let failed: BTreeSet<String> = lines(ended).filter_map(failed).collect();
    outcome(ok + failed.len(), failed, ended)
}

/// The name of each test, and below it what differs from what is expected; warnings too.
pub(super) fn bash(ended: &Ended) -> Outcome {
    let (mut run, mut failed, mut current) = (0, BTreeSet::new(), String::new());
    for line in ended.stdout.lines() {
        if line.starts_with("run-") && !line.contains(' ') {
            run += 1;
            line.clone_into(&mut current);
        } else if line.starts_with("< ") || line.starts_with("> ") {
            failed.insert(current.clone());
        }
    }
    outcome(run, failed, ended)
}

/// One test: it has failed if it says so by its status.
pub(super) fn stress(ended: &Ended) -> Outcome {
    let failed = lines(ended).filter(|line| line.contains(": fail:")).map(reason).collect();
    outcome(1, failed, ended)
}

/// Without process numbers, which are never the same.
fn reason(line: &str) -> String {
    let said = line.split_once("fail:").map_or(line, |(_, said)| said);
    said.chars().filter(|char| !char.is_ascii_digit()).collect::<String>().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(status: i32, stdout: &str, stderr: &str) -> Ended {
        Ended { status, stdout: stdout.to_owned(), stderr: stderr.to_owned() }
    }

    #[test]
    fn each_suite_is_understood() {
        let ended = said(2, "FAIL: test_a (x.test_a)\n", "Ran 12 tests in 3.2s\nERROR: test_b (x.test_b)\n");
        let found = python(&ended);
        assert_eq!((found.run, found.failed.len()), (12, 2));
        let ended =
            said(1, "\u{1b}[0;32m[ok]\u{1b}[0m: A (3 ms)\n[ok]: B (0 ms)\n[err]: C in tests/c.tcl\n", "");
        let found = redis(&ended);
        assert_eq!(
            (found.run, found.failed.iter().next().map(String::as_str)),
            (2, Some("C in tests/c.tcl"))
        );
        let found = bash(&said(0, "run-a\nrun-b\n1c1\n< x\n---\n> y\nrun-c\nwarning: x\n", ""));
        assert_eq!((found.run, found.failed), (3, BTreeSet::from(["run-b".to_owned()])));
        let found = stress(&said(2, "stress-ng: fail:  [123] kill: no 77\n", ""));
        assert_eq!(found.failed, BTreeSet::from(["[] kill: no".to_owned()]));
        assert_eq!(python(&said(139, "", "")).failed.len(), 1, "no end is a failure");
    }
}
