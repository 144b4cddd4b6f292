//! The account that a test program gives of its own work, and how a profile compares.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::stats::{Function, Summary};

/// The line a program prints when it ends.
#[derive(Clone, Debug, Deserialize)]
pub struct Truth {
    /// Calls of each function; all of them cost the same.
    pub calls: BTreeMap<String, u64>,
    /// CPU time spent in these calls (s).
    pub work_cpu_s: f64,
    /// CPU time of the program and its children (s).
    pub cpu_s: f64,
    /// Wall-clock time (s).
    pub wall_s: f64,
}

/// A function's true CPU time beside the profile's.
#[derive(Clone, Debug)]
pub struct Compared {
    /// Name in the truth.
    pub name: String,
    /// True CPU time without what sampling added (s).
    pub true_cpu_s: f64,
    /// The profile's estimate (s).
    pub cpu_s: f64,
    /// Lower end of the profile's interval (s).
    pub low_s: f64,
    /// Upper end of the profile's interval (s).
    pub high_s: f64,
}

impl Compared {
    /// Whether the interval holds the truth.
    pub fn inside(&self) -> bool {
        self.low_s <= self.true_cpu_s && self.true_cpu_s <= self.high_s
    }
}

impl Truth {
    /// Reads what a program wrote with `--out`.
    pub fn read(path: &Path) -> Result<Truth> {
        let text = fs::read_to_string(path).with_context(|| format!("no truth in {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} is not a truth", path.display()))
    }

    /// A function's true share of the work.
    pub fn share(&self, function: &str) -> f64 {
        let all: u64 = self.calls.values().sum();
        self.calls[function] as f64 / all as f64
    }

    /// The functions with most calls, most first.
    pub fn top(&self, count: usize) -> Vec<&str> {
        let mut names: Vec<&str> = self.calls.keys().map(String::as_str).collect();
        names.sort_by_key(|name| std::cmp::Reverse(self.calls[*name]));
        names.truncate(count);
        names
    }

    /// The top functions, each beside its line in the profile.
    ///
    /// A profile states what the program would take unsampled. So what sampling added, which the program's own clock
    /// includes, is taken off the truth: the same share of each.
    pub fn compare(&self, summary: &Summary, top: usize) -> Result<Vec<Compared>> {
        let work_s = self.work_cpu_s * (1.0 - summary.sampling_cpu_s / self.cpu_s);
        self.top(top)
            .into_iter()
            .map(|name| {
                let found = find(&summary.functions, name)?;
                Ok(Compared {
                    name: name.to_string(),
                    true_cpu_s: work_s * self.share(name),
                    cpu_s: found.cpu_s,
                    low_s: found.cpu_s_low.with_context(|| format!("{name} has no interval"))?,
                    high_s: found.cpu_s_high.with_context(|| format!("{name} has no interval"))?,
                })
            })
            .collect()
    }
}

/// The one line of the profile for a function of the truth, whose name the profile may write with its type.
fn find<'a>(functions: &'a [Function], name: &str) -> Result<&'a Function> {
    let found: Vec<&Function> = functions.iter().filter(|function| is_named(&function.name, name)).collect();
    ensure!(found.len() == 1, "{} functions are called `{name}` in {functions:?}", found.len());
    Ok(found[0])
}

/// Whether `found` is `name`, or `name` with a return type, a namespace or parameters around it.
pub fn is_named(found: &str, name: &str) -> bool {
    let ends = |character: char| !(character.is_alphanumeric() || character == '_');
    found.match_indices(name).any(|(at, _)| {
        found[..at].chars().next_back().is_none_or(ends)
            && found[at + name.len()..].chars().next().is_none_or(ends)
    })
}

#[cfg(test)]
mod tests {
    use super::is_named;

    #[test]
    fn a_name_is_found_with_its_type_and_not_within_another() {
        assert!(is_named("work_a", "work_a"));
        assert!(is_named("unsigned long truth::work<1>(unsigned long)", "truth::work<1>"));
        assert!(!is_named("work_ab", "work_a"));
        assert!(!is_named("homework_a", "work_a"));
    }
}
