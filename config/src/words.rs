//! Settings with a grammar of their own: patterns and modes of files.

use std::fmt;
use std::str::FromStr;

use regex::bytes::{Regex, RegexBuilder, RegexSet, RegexSetBuilder};

/// Most memory that a compiled pattern takes.
pub(crate) const PATTERN_BYTES: usize = 1 << 20;
/// Most memory that many of them take together.
const TOGETHER_BYTES: usize = 32 << 20;

/// A regular expression over the bytes that a process calls itself by: they need not be UTF-8.
#[derive(Clone, Debug)]
pub struct Pattern(Regex);

/// Why a text is no setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WordError {
    /// Not a regular expression.
    #[error("`{found}` is not a regular expression: {reason}")]
    Pattern {
        /// What was written.
        found: String,
        /// Why it is none.
        reason: String,
    },
    /// Not the mode of a file.
    #[error("`{0}` is not a file mode; write three octal digits such as 0660")]
    Mode(String),
}

impl WordError {
    /// Of a text that the library did not compile.
    pub(crate) fn pattern(text: &str, error: &regex::Error) -> Self {
        // The library draws the place over several lines; the last one says what it is.
        let drawn = error.to_string();
        let reason = drawn.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
        Self::Pattern { found: text.to_owned(), reason }
    }
}

impl Pattern {
    /// Whether it matches anywhere in `text`.
    pub fn matches(&self, text: &[u8]) -> bool {
        self.0.is_match(text)
    }

    /// As it was written.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

/// Many patterns, asked at once: the time that a text takes hardly depends on how many there are.
#[derive(Clone, Debug)]
pub struct Patterns {
    all: Vec<Pattern>,
    /// None where all together take too much memory; they are asked one by one then.
    together: Option<RegexSet>,
}

impl Patterns {
    /// Takes patterns; each is known by its place among them.
    pub fn new(patterns: impl IntoIterator<Item = Pattern>) -> Self {
        Self::within(patterns, TOGETHER_BYTES)
    }

    fn within(patterns: impl IntoIterator<Item = Pattern>, bytes: usize) -> Self {
        let all: Vec<Pattern> = patterns.into_iter().collect();
        let texts = all.iter().map(Pattern::as_str);
        let together = RegexSetBuilder::new(texts).size_limit(bytes).build().ok();
        Self { all, together }
    }

    /// The places of those that match anywhere in `text`, in ascending order.
    pub fn matching(&self, text: &[u8]) -> Vec<usize> {
        match &self.together {
            Some(set) => set.matches(text).into_iter().collect(),
            None => (0..self.all.len()).filter(|at| self.all[*at].matches(text)).collect(),
        }
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl FromStr for Pattern {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        let compiled = RegexBuilder::new(text).size_limit(PATTERN_BYTES).build();
        compiled.map(Self).map_err(|error| WordError::pattern(text, &error))
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The mode of a file: who may read and write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode(u32);

impl Mode {
    /// A constant mode, for defaults: checked when it is compiled.
    pub(crate) const fn constant(bits: u32) -> Self {
        assert!(bits <= 0o777);
        Self(bits)
    }

    /// The permission bits.
    pub const fn bits(self) -> u32 {
        self.0
    }
}

impl FromStr for Mode {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        let digits = text.strip_prefix("0o").or_else(|| text.strip_prefix('0')).unwrap_or(text);
        let octal = digits.len() == 3 && digits.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
        let bits = if octal { u32::from_str_radix(digits, 8).ok() } else { None };
        bits.map(Self).ok_or_else(|| WordError::Mode(text.to_owned()))
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0{:03o}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_bytes_and_say_what_is_wrong() {
        let pattern: Pattern = "^nginx: worker".parse().unwrap();
        assert!(pattern.matches(b"nginx: worker process \xff") && !pattern.matches(b"an nginx: worker"));
        let error = "a(b".parse::<Pattern>().unwrap_err().to_string();
        assert_eq!(error, "`a(b` is not a regular expression: unclosed group");
        assert!("(?:a{1000}){1000}".parse::<Pattern>().unwrap_err().to_string().contains("size limit"));
    }

    #[test]
    fn many_patterns_answer_as_each_does() {
        let parse = |text: &str| text.parse::<Pattern>().unwrap();
        let few: Vec<Pattern> = ["^a", "b$", "\\d", "^a"].into_iter().map(parse).collect();
        let (set, none) = (Patterns::new(few.clone()), Patterns::new([]));
        let one_by_one = Patterns::within(few.clone(), 10);
        assert!(set.together.is_some() && one_by_one.together.is_none());
        for text in [&b"ab"[..], b"a1", b"", b"\xff7"] {
            let each: Vec<usize> = (0..few.len()).filter(|at| few[*at].matches(text)).collect();
            assert_eq!((set.matching(text), one_by_one.matching(text)), (each.clone(), each));
            assert!(none.matching(text).is_empty());
        }
    }

    #[test]
    fn modes_are_octal() {
        for text in ["0660", "660", "0o660"] {
            assert_eq!(text.parse::<Mode>().unwrap().to_string(), "0660");
        }
        for text in ["", "6", "0680", "66", "6600", "rw-rw----", "-660"] {
            assert!(text.parse::<Mode>().is_err(), "{text}");
        }
    }
}
