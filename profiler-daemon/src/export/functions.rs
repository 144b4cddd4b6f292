//! Functions and their CPU time: what the table and the summary list.

use std::collections::BTreeMap;

use profiler_core::profile::{FunctionIndex, SymbolizedProfile, WeightedStack};
use rustc_hash::FxHashMap;
use serde::Serialize;

use super::root_first;

/// The interval of a function's share. It is given the function's weight and the weight of everything, for each
/// window in which the target ran, and the number of samples of the profile; it returns the low and the high
/// end of the share, or nothing where it cannot tell.
pub(crate) type ShareInterval<'a> = &'a dyn Fn(&[Weights], u64) -> Option<Ends>;

/// The weight of a function and of everything in one window (ns).
pub(crate) type Weights = (f64, f64);
/// The low and the high end of an interval.
pub(crate) type Ends = (f64, f64);

/// What a function cost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct FunctionCost {
    /// Its name.
    pub(crate) name: String,
    /// The module that holds its code.
    pub(crate) module: String,
    /// CPU time in the function itself (s).
    pub(crate) cpu_s: f64,
    /// Low end of the interval of `cpu_s`; absent where nothing can be said.
    pub(crate) cpu_s_low: Option<f64>,
    /// High end of the interval of `cpu_s`.
    pub(crate) cpu_s_high: Option<f64>,
    /// `cpu_s` as a share of the profile.
    pub(crate) share: f64,
    /// Share of the profile in the function and in what it called; recursion counts once.
    pub(crate) total_share: f64,
}

/// Functions that spent CPU time themselves, the largest first. Functions of one name in one module are one.
pub(crate) fn functions(profile: &SymbolizedProfile, interval: ShareInterval) -> Vec<FunctionCost> {
    let sums = Sums::of(profile);
    let mut costs: Vec<FunctionCost> = sums.rows.iter().filter_map(|row| sums.cost(row, interval)).collect();
    let by_name = |a: &FunctionCost, b: &FunctionCost| (&a.name, &a.module).cmp(&(&b.name, &b.module));
    costs.sort_by(|a, b| b.cpu_s.total_cmp(&a.cpu_s).then_with(|| by_name(a, b)));
    costs
}

/// Sums over the stacks of a profile, in ns.
struct Sums<'a> {
    rows: Vec<Row<'a>>,
    total_ns: u64,
    total_by_window: BTreeMap<u32, u64>,
    samples: u64,
}

struct Row<'a> {
    name: &'a str,
    module: &'a str,
    self_ns: u64,
    total_ns: u64,
    self_by_window: FxHashMap<u32, u64>,
}

impl<'a> Sums<'a> {
    fn of(profile: &'a SymbolizedProfile) -> Self {
        let (mut rows, row_of) = rows(profile);
        let no_stack = rows.len();
        rows.push(Row::new("[no stack]", "[unknown]"));
        let mut sums = Self { rows, total_ns: 0, total_by_window: BTreeMap::new(), samples: 0 };
        for stack in &profile.stacks {
            sums.add(profile, stack, &row_of, no_stack);
        }
        sums
    }

    fn add(&mut self, profile: &SymbolizedProfile, stack: &WeightedStack, row_of: &[usize], no_stack: usize) {
        self.samples = self.samples.saturating_add(stack.samples);
        self.total_ns = self.total_ns.saturating_add(stack.cpu_ns);
        for had in &stack.windows {
            add(self.total_by_window.entry(had.window).or_default(), had.cpu_ns);
        }
        let innermost = innermost(profile, stack).map_or(no_stack, |function| row_of[function.0 as usize]);
        self.rows[innermost].add_self(stack);

        let mut on_stack: Vec<usize> =
            root_first(profile, stack).map(|function| row_of[function.0 as usize]).collect();
        on_stack.push(innermost);
        on_stack.sort_unstable();
        on_stack.dedup();
        for row in on_stack {
            add(&mut self.rows[row].total_ns, stack.cpu_ns);
        }
    }

    fn cost(&self, row: &Row<'_>, interval: ShareInterval) -> Option<FunctionCost> {
        if row.self_ns == 0 {
            return None;
        }
        let seconds = |ns: u64| ns as f64 / 1e9;
        let share_of = |ns: u64| ns as f64 / self.total_ns as f64;
        let ends = self.interval(row, interval).map(|(low, high)| {
            let total_s = seconds(self.total_ns);
            (low * total_s, high * total_s)
        });
        Some(FunctionCost {
            name: row.name.to_owned(),
            module: row.module.to_owned(),
            cpu_s: seconds(row.self_ns),
            cpu_s_low: ends.map(|(low, _)| low),
            cpu_s_high: ends.map(|(_, high)| high),
            share: share_of(row.self_ns),
            total_share: share_of(row.total_ns),
        })
    }

    /// Asks for the row's interval, over the windows in which the target ran.
    fn interval(&self, row: &Row<'_>, interval: ShareInterval) -> Option<Ends> {
        let ran = self.total_by_window.iter().filter(|(_, total)| **total > 0);
        let windows: Vec<Weights> = ran
            .map(|(window, total)| {
                let own = row.self_by_window.get(window).copied().unwrap_or_default();
                (own as f64, *total as f64)
            })
            .collect();
        if windows.is_empty() {
            return None;
        }
        interval(&windows, self.samples).filter(|(low, high)| low.is_finite() && high.is_finite())
    }
}

impl<'a> Row<'a> {
    fn new(name: &'a str, module: &'a str) -> Self {
        Self { name, module, self_ns: 0, total_ns: 0, self_by_window: FxHashMap::default() }
    }

    fn add_self(&mut self, stack: &WeightedStack) {
        add(&mut self.self_ns, stack.cpu_ns);
        for had in &stack.windows {
            add(self.self_by_window.entry(had.window).or_default(), had.cpu_ns);
        }
    }
}

/// A file from elsewhere may hold sums that overflow; they stay at the top.
fn add(sum: &mut u64, ns: u64) {
    *sum = sum.saturating_add(ns);
}

/// One row for each name in a module, and the row of each function.
fn rows(profile: &SymbolizedProfile) -> (Vec<Row<'_>>, Vec<usize>) {
    let mut rows = Vec::new();
    let mut known: FxHashMap<(&str, &str), usize> = FxHashMap::default();
    let row_of = profile.functions.iter().map(|function| {
        let module = profile.modules[function.module.0 as usize].name.as_str();
        *known.entry((&function.name, module)).or_insert_with(|| {
            rows.push(Row::new(&function.name, module));
            rows.len() - 1
        })
    });
    let row_of = row_of.collect();
    (rows, row_of)
}

/// The innermost function, inlined or not: the one whose code ran.
fn innermost(profile: &SymbolizedProfile, stack: &WeightedStack) -> Option<FunctionIndex> {
    let location = &profile.locations[stack.frames.first()?.0 as usize];
    location.lines.first().map(|line| line.function)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::testing;

    #[test]
    fn own_time_goes_to_the_innermost_inlined_function() {
        let costs = functions(&testing::profile(), &|_, _| None);
        let memcpy = &costs[0];
        assert_eq!((memcpy.name.as_str(), memcpy.module.as_str()), ("memcpy", "libc.so.6"));
        assert_eq!(memcpy.cpu_s, 4.0);
        let parse = costs.iter().find(|cost| cost.name == "parse").unwrap();
        assert_eq!(parse.cpu_s, 3.0);
        assert!((parse.total_share - 7.0 / 10.01).abs() < 1e-12);
    }

    #[test]
    fn recursion_counts_once() {
        let costs = functions(&testing::profile(), &|_, _| None);
        let walk = costs.iter().find(|cost| cost.name == "walk").unwrap();
        assert_eq!(walk.cpu_s, 2.0);
        assert_eq!(walk.total_share, walk.share);
    }

    #[test]
    fn the_interval_is_asked_over_windows_with_time_in_them() {
        let ask = |windows: &[(f64, f64)], samples: u64| {
            assert_eq!(windows.len(), 2);
            assert_eq!(samples, 602);
            let total: f64 = windows.iter().map(|(_, total)| total).sum();
            assert_eq!(total, 10.01e9);
            Some((0.1, 0.2))
        };
        let costs = functions(&testing::profile(), &ask);
        assert!((costs[0].cpu_s_low.unwrap() - 1.001).abs() < 1e-9);
        assert!((costs[0].cpu_s_high.unwrap() - 2.002).abs() < 1e-9);
    }

    #[test]
    fn shares_add_up_to_one() {
        let sum: f64 = functions(&testing::profile(), &|_, _| None).iter().map(|cost| cost.share).sum();
        assert!((sum - 1.0).abs() < 1e-12);
    }
}
