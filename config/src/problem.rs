//! What is wrong with a settings file: all of it, each with its place and what to do.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// One thing that is wrong with a settings file. Printed as `12:9: what is wrong; what to do`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub struct SettingsProblem {
    /// Line in the file, from 1.
    pub line: usize,
    /// Character in the line, from 1.
    pub column: usize,
    /// What is wrong and what to do, without line breaks or control characters.
    pub text: String,
}

impl fmt::Display for SettingsProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.line, self.column, self.text)
    }
}

/// What was noticed while a file was read: problems, and where each key stands.
#[derive(Debug, Default)]
pub(crate) struct Log {
    /// Byte of the file, and what is wrong there.
    found: Vec<(usize, String)>,
    /// The same where the text could not be parsed at all.
    unparsed: Vec<(usize, String)>,
    /// Paths of keys whose value could not be read, and of sections with such a key or one that is unknown.
    spoiled: BTreeSet<String>,
    /// The byte where each key that is written begins, by its path (`store.age`, `target[0].unit`).
    places: BTreeMap<String, usize>,
}

impl Log {
    /// The text cannot be parsed at this byte.
    pub(crate) fn unparsable(&mut self, at: usize, text: impl Into<String>) {
        self.unparsed.push((at, text.into()));
    }

    /// Something is wrong at this byte.
    pub(crate) fn wrong(&mut self, at: usize, text: impl Into<String>) {
        self.found.push((at, text.into()));
    }

    /// The value of the key at `path` cannot be used. A key that is not written is blamed on its section.
    pub(crate) fn wrong_key(&mut self, path: &str, text: impl Into<String>) {
        let section = path.rfind('.').map_or("", |end| &path[..end]);
        let at = self.places.get(path).or_else(|| self.places.get(section)).copied().unwrap_or_default();
        self.found.push((at, format!("{path}: {}", text.into())));
    }

    /// The key at `path` is written, and its value is unknown: what depends on it cannot be judged.
    pub(crate) fn spoil(&mut self, path: &str) {
        self.spoiled.insert(path.to_owned());
    }

    /// Whether all that is written at these paths could be read.
    pub(crate) fn are_read(&self, paths: &[&str]) -> bool {
        !paths.iter().any(|path| self.spoiled.contains(*path))
    }

    /// Whether the key at `path` is written in the file.
    pub(crate) fn is_written(&self, path: &str) -> bool {
        self.places.contains_key(path)
    }

    /// The key at `path` begins at this byte.
    pub(crate) fn place(&mut self, path: String, at: usize) {
        self.places.insert(path, at);
    }

    /// Whether all of the text could be parsed.
    pub(crate) fn is_parsed(&self) -> bool {
        self.unparsed.is_empty()
    }

    /// All problems in the order of the file. In a line that cannot be parsed only the first one counts: the others follow
    /// from it.
    pub(crate) fn into_problems(mut self, text: &str) -> Vec<SettingsProblem> {
        let lines = Lines::of(text);
        self.unparsed.sort();
        self.unparsed.dedup_by_key(|(at, _)| lines.line(*at));
        let lost: BTreeSet<usize> = self.unparsed.iter().map(|(at, _)| lines.line(*at)).collect();
        self.found.retain(|(at, _)| !lost.contains(&lines.line(*at)));
        self.found.append(&mut self.unparsed);
        self.found.sort();
        self.found.dedup();
        let problem = |(at, what): (usize, String)| {
            let (line, column) = lines.position(text, at);
            SettingsProblem { line, column, text: one_line(&what) }
        };
        self.found.into_iter().map(problem).collect()
    }
}

/// A text that a file chose, on one line and without what a terminal would act upon.
fn one_line(text: &str) -> String {
    let visible = |c: char| if c.is_control() { c.escape_default().collect() } else { String::from(c) };
    text.chars().map(visible).collect()
}

/// Where the lines of a text begin.
struct Lines {
    starts: Vec<usize>,
}

impl Lines {
    fn of(text: &str) -> Self {
        let after = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
        Self { starts: std::iter::once(0).chain(after).collect() }
    }

    /// The line that holds this byte, from 1.
    fn line(&self, at: usize) -> usize {
        self.starts.partition_point(|start| *start <= at)
    }

    /// Line and character of this byte, each from 1.
    fn position(&self, text: &str, at: usize) -> (usize, usize) {
        let line = self.line(at.min(text.len()));
        let start = self.starts[line - 1];
        let before = text.get(start..at.min(text.len())).unwrap_or_default();
        (line, before.chars().count() + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_count_characters_from_one() {
        let mut log = Log::default();
        let text = "a = 1\nµµ = 2\n";
        log.wrong(6 + 5, "here\nand there");
        log.wrong(text.len(), "at the end");
        log.wrong(0, "first");
        let problems: Vec<String> = log.into_problems(text).iter().map(SettingsProblem::to_string).collect();
        assert_eq!(problems, ["1:1: first", "2:4: here\\nand there", "3:1: at the end"]);
    }

    #[test]
    fn what_follows_from_a_line_that_cannot_be_parsed_is_not_told() {
        let mut log = Log::default();
        let text = "a = = 1\nb = 2\n";
        log.unparsable(4, "no value");
        log.unparsable(6, "no line break");
        log.wrong(6, "not a share");
        log.wrong(8, "no such key");
        let problems: Vec<String> = log.into_problems(text).iter().map(SettingsProblem::to_string).collect();
        assert_eq!(problems, ["1:5: no value", "2:1: no such key"]);
    }
}
