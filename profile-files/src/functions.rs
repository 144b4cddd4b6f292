//! Functions and their CPU time: what the table and the summary list.

use profiler_core::profile::{FunctionIndex, SymbolizedProfile, WeightedStack};
use profiler_core::stats::{self, Confidence, IntervalTable};
use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::formats::root_first;
use crate::intervals::{self, ByTime, Reached, Times, Total};

/// What the kernel is called among the modules.
pub(crate) const KERNEL: &str = "[kernel]";

/// What a function cost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FunctionCost {
    /// Its name.
    pub name: String,
    /// The module that holds its code.
    pub module: String,
    /// CPU time in the function itself, without what sampling added (s).
    pub cpu_s: f64,
    /// Low end of the interval of what it took in this run (s); absent where nothing can be said. All functions'
    /// intervals hold together at the run's confidence.
    pub cpu_s_low: Option<f64>,
    /// High end of the same.
    pub cpu_s_high: Option<f64>,
    /// Low end of the interval of what it would take in any such run, by its long-run share (s).
    pub long_run_cpu_s_low: Option<f64>,
    /// High end of the same.
    pub long_run_cpu_s_high: Option<f64>,
    /// `cpu_s` as a share of the profile.
    pub share: f64,
    /// The interval of `share` in this run, with those of all functions; absent where nothing can be said.
    #[serde(skip)]
    pub share_ends: Option<(f64, f64)>,
    /// Share of the profile in the function and in what it called; recursion counts once.
    pub total_share: f64,
    /// Low end of the interval of `total_share` in this run; absent where nothing can be said. Those of all functions hold together.
    pub total_share_low: Option<f64>,
    /// High end of the same.
    pub total_share_high: Option<f64>,
    /// Whether it may well take no more than the next in the list; absent where nothing can be said.
    pub tied: Option<bool>,
}

/// What the kernel did for the target itself, as a share of the profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct KernelShare {
    /// The share; absent where no sample fell into the kernel, which may have been left out.
    pub kernel_share: Option<f64>,
    /// Low end of its interval in this run; absent where nothing can be said.
    pub kernel_share_low: Option<f64>,
    /// High end of the same.
    pub kernel_share_high: Option<f64>,
}

/// The functions of a profile.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FunctionTable {
    /// Those that spent CPU time themselves, the largest first. Functions of one name in one module are one.
    pub functions: Vec<FunctionCost>,
    /// Whether the largest are known well enough; absent where nothing can be said.
    pub reached: Option<Reached>,
    /// The kernel's part.
    pub kernel: KernelShare,
}

/// The table of `profile`.
pub fn functions(profile: &SymbolizedProfile) -> FunctionTable {
    let sums = StackSums::of(profile);
    let by_window = sums.rows.iter().map(|row| &row.self_by_time);
    let intervals = intervals::table(profile, &sums.times, &sums.total_by_time, by_window);
    let total = Total::new(sums.total_ns, &profile.run);
    let totals = sums.rows.iter().map(|row| &row.total_by_time);
    let totals = intervals::table(profile, &sums.times, &sums.total_by_time, totals);
    let sure = |table: &Option<IntervalTable>, at: usize| table.as_ref().map(|table| table.rows()[at]);
    let costs = sums.rows.iter().enumerate();
    let costs = costs.map(|(at, row)| sums.cost(row, total, sure(&intervals, at), sure(&totals, at)));
    FunctionTable {
        functions: costs.collect(),
        reached: intervals.as_ref().map(|table| intervals::reached(&profile.run, table)),
        kernel: sums.kernel(profile),
    }
}

/// What a function took of the profile with what it called, and the interval of that in this run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct InclusiveShare {
    /// The share.
    pub(crate) share: f64,
    /// The ends of its interval.
    pub(crate) ends: (f64, f64),
}

/// What each function took with what it called, by name: also those without CPU time of their own. All intervals hold together. A
/// name that functions of several modules have is left out.
pub(crate) fn wholes(profile: &SymbolizedProfile) -> FxHashMap<&str, InclusiveShare> {
    let sums = StackSums::of_all(profile);
    let totals = sums.rows.iter().map(|row| &row.total_by_time);
    let Some(table) = intervals::table(profile, &sums.times, &sums.total_by_time, totals) else {
        return FxHashMap::default();
    };
    let mut wholes: FxHashMap<&str, Option<InclusiveShare>> = FxHashMap::default();
    for (row, sure) in sums.rows.iter().zip(table.rows()) {
        let share = row.total_ns as f64 / sums.total_ns as f64;
        let is_known = row.total_ns > 0 && sure.this_run != stats::Interval::UNKNOWN;
        let whole = is_known.then(|| InclusiveShare { share, ends: around(share, sure.this_run) });
        wholes.entry(row.name).and_modify(|known| *known = None).or_insert(whole);
    }
    wholes.into_iter().filter_map(|(name, whole)| Some((name, whole?))).collect()
}

/// The CPU time of a run's functions in stretches of it, each with about as much of all CPU time as the others.
pub(crate) struct RunInStretches<'a> {
    /// Functions that had any.
    pub(crate) functions: Vec<FunctionInStretches<'a>>,
    /// CPU time of all functions in each stretch (ns); empty for a file of another tool.
    pub(crate) all_ns: Vec<f64>,
    /// Whether the run shows how much others may differ from it.
    pub(crate) tells_of_others: bool,
}

/// One function of these.
pub(crate) struct FunctionInStretches<'a> {
    pub(crate) name: &'a str,
    pub(crate) module: &'a str,
    /// Its share of the profile.
    pub(crate) share: f64,
    /// The ends of the interval of its share in this run, at the level asked for; all functions' hold together. Absent where nothing can be said.
    pub(crate) ends: Option<(f64, f64)>,
    /// Its CPU time in each stretch (ns).
    pub(crate) own_ns: Vec<f64>,
}

/// Cuts a run into at most `stretches`; a function's time is that in itself or, if `with_called`, in what it called as well.
pub(crate) fn in_stretches(
    profile: &SymbolizedProfile,
    with_called: bool,
    stretches: usize,
    confidence: Confidence,
) -> RunInStretches<'_> {
    let sums = StackSums::of_all(profile);
    let sum_ns = |row: &Row<'_>| if with_called { row.total_ns } else { row.self_ns };
    let table = |of_called: bool| {
        let by_time =
            sums.rows.iter().map(|row| if of_called { &row.total_by_time } else { &row.self_by_time });
        intervals::table_at(confidence, profile, &sums.times, &sums.total_by_time, by_time)
    };
    let own = table(false);
    let tells_of_others = own.as_ref().is_some_and(IntervalTable::inflation_is_known);
    let sure = if with_called { table(true) } else { own };
    let all_ns: f64 = sums.total_by_time.values().map(|had| had.cpu_ns as f64).sum();
    let (mut so_far_ns, mut stretch_of) = (0.0, FxHashMap::default());
    for (time, had) in &sums.total_by_time {
        let middle_ns = so_far_ns + had.cpu_ns as f64 / 2.0;
        stretch_of.insert(*time, ((middle_ns / all_ns * stretches as f64) as usize).min(stretches - 1));
        so_far_ns += had.cpu_ns as f64;
    }
    let cut = |by_time: &ByTime| {
        let mut in_each = vec![0.0; if stretch_of.is_empty() { 0 } else { stretches }];
        for (time, had) in by_time {
            if let Some(at) = stretch_of.get(time) {
                in_each[*at] += had.cpu_ns as f64;
            }
        }
        in_each
    };
    let ends = |at: usize, share: f64| {
        let interval = sure.as_ref().map(|table| table.rows()[at].this_run);
        interval
            .filter(|interval| *interval != stats::Interval::UNKNOWN)
            .map(|interval| around(share, interval))
    };
    let seen = sums.rows.iter().enumerate().filter(|(_, row)| sum_ns(row) > 0);
    let seen = seen.map(|(at, row)| (at, row, sum_ns(row) as f64 / sums.total_ns as f64));
    RunInStretches {
        functions: seen
            .map(|(at, row, share)| FunctionInStretches {
                name: row.name,
                module: row.module,
                share,
                ends: ends(at, share),
                own_ns: cut(if with_called { &row.total_by_time } else { &row.self_by_time }),
            })
            .collect(),
        all_ns: cut(&sums.total_by_time),
        tells_of_others,
    }
}

/// Sums over the stacks of a profile.
struct StackSums<'a> {
    rows: Vec<Row<'a>>,
    times: Times,
    total_ns: u64,
    total_by_time: ByTime,
    kernel_ns: u64,
    kernel_by_time: ByTime,
}

struct Row<'a> {
    name: &'a str,
    module: &'a str,
    self_ns: u64,
    total_ns: u64,
    self_by_time: ByTime,
    total_by_time: ByTime,
}

impl<'a> StackSums<'a> {
    /// Those with CPU time of their own, the largest first.
    fn of(profile: &'a SymbolizedProfile) -> Self {
        let mut sums = Self::of_all(profile);
        sums.rows.retain(|row| row.self_ns > 0);
        let by_name = |a: &Row, b: &Row| (a.name, a.module).cmp(&(b.name, b.module));
        sums.rows.sort_by(|a, b| b.self_ns.cmp(&a.self_ns).then_with(|| by_name(a, b)));
        sums
    }

    fn of_all(profile: &'a SymbolizedProfile) -> Self {
        let (mut rows, row_of) = rows(profile);
        let no_stack = rows.len();
        rows.push(Row::new("[no stack]", "[unknown]"));
        let times = Times::of(&profile.windows);
        let (total_by_time, kernel_by_time) = (ByTime::new(), ByTime::new());
        let mut sums = Self { rows, times, total_ns: 0, total_by_time, kernel_ns: 0, kernel_by_time };
        for stack in &profile.stacks {
            sums.add(profile, stack, &row_of, no_stack);
        }
        sums
    }

    fn add(&mut self, profile: &SymbolizedProfile, stack: &WeightedStack, row_of: &[usize], no_stack: usize) {
        self.total_ns = self.total_ns.saturating_add(stack.cpu_ns);
        self.times.add(&mut self.total_by_time, stack);
        let innermost = innermost(profile, stack).map_or(no_stack, |function| row_of[function.0 as usize]);
        self.rows[innermost].add_self(stack, &self.times);
        if is_in_the_kernel(profile, stack) {
            self.kernel_ns = self.kernel_ns.saturating_add(stack.cpu_ns);
            self.times.add(&mut self.kernel_by_time, stack);
        }

        let mut on_stack: Vec<usize> =
            root_first(profile, stack).map(|function| row_of[function.0 as usize]).collect();
        on_stack.push(innermost);
        on_stack.sort_unstable();
        on_stack.dedup();
        for row in on_stack {
            self.rows[row].add_total(stack, &self.times);
        }
    }

    fn kernel(&self, profile: &SymbolizedProfile) -> KernelShare {
        if self.kernel_ns == 0 {
            return KernelShare::default();
        }
        let kernel_share = self.kernel_ns as f64 / self.total_ns as f64;
        let kernel = std::iter::once(&self.kernel_by_time);
        let table = intervals::table(profile, &self.times, &self.total_by_time, kernel);
        let sure =
            table.map(|table| table.rows()[0].this_run).filter(|sure| *sure != stats::Interval::UNKNOWN);
        let (kernel_share_low, kernel_share_high) = sure.map(|sure| around(kernel_share, sure)).unzip();
        KernelShare { kernel_share: Some(kernel_share), kernel_share_low, kernel_share_high }
    }

    fn cost(
        &self,
        row: &Row<'_>,
        total: Total,
        sure: Option<stats::Row>,
        sure_total: Option<stats::Row>,
    ) -> FunctionCost {
        let share_of = |ns: u64| ns as f64 / self.total_ns as f64;
        let ends = |interval: fn(&stats::Row) -> stats::Interval| {
            sure.and_then(|sure| total.ends(sure.share, interval(&sure))).unzip()
        };
        let (cpu_s_low, cpu_s_high) = ends(|sure| sure.this_run);
        let is_told = sure.is_some_and(|sure| sure.long_run != stats::Interval::UNKNOWN);
        let (long_run_cpu_s_low, long_run_cpu_s_high) =
            if is_told { ends(|sure| sure.long_run) } else { (None, None) };
        let (share, total_share) = (share_of(row.self_ns), share_of(row.total_ns));
        let known = sure_total.filter(|sure| sure.this_run != stats::Interval::UNKNOWN);
        let (total_share_low, total_share_high) =
            known.map(|sure| around(total_share, sure.this_run)).unzip();
        FunctionCost {
            name: row.name.to_owned(),
            module: row.module.to_owned(),
            cpu_s: row.self_ns as f64 / 1e9,
            cpu_s_low,
            cpu_s_high,
            long_run_cpu_s_low,
            long_run_cpu_s_high,
            share,
            share_ends: cpu_s_low.and(sure).map(|sure| around(share, sure.this_run)),
            total_share,
            total_share_low,
            total_share_high,
            tied: sure.map(|sure| sure.tied_with_next),
        }
    }
}

impl<'a> Row<'a> {
    fn new(name: &'a str, module: &'a str) -> Self {
        let (self_by_time, total_by_time) = (ByTime::new(), ByTime::new());
        Self { name, module, self_ns: 0, total_ns: 0, self_by_time, total_by_time }
    }

    fn add_total(&mut self, stack: &WeightedStack, times: &Times) {
        self.total_ns = self.total_ns.saturating_add(stack.cpu_ns);
        times.add(&mut self.total_by_time, stack);
    }

    fn add_self(&mut self, stack: &WeightedStack, times: &Times) {
        self.self_ns = self.self_ns.saturating_add(stack.cpu_ns);
        times.add(&mut self.self_by_time, stack);
    }
}

/// The ends of an interval that holds `share`, within 0 and 1.
fn around(share: f64, interval: stats::Interval) -> (f64, f64) {
    (interval.low.clamp(0.0, share), interval.high.clamp(share, share.max(1.0)))
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

/// Whether the kernel's code ran.
fn is_in_the_kernel(profile: &SymbolizedProfile, stack: &WeightedStack) -> bool {
    let module = innermost(profile, stack).map(|function| profile.functions[function.0 as usize].module);
    module.is_some_and(|module| profile.modules[module.0 as usize].name == KERNEL)
}

/// The innermost function, inlined or not: the one whose code ran.
pub(crate) fn innermost(profile: &SymbolizedProfile, stack: &WeightedStack) -> Option<FunctionIndex> {
    let location = &profile.locations[stack.frames.first()?.0 as usize];
    location.lines.first().map(|line| line.function)
}

#[cfg(test)]
mod tests {
    use profiler_core::profile::Outcome;

    use super::*;
    use crate::testing;

    fn find<'a>(table: &'a FunctionTable, name: &str) -> &'a FunctionCost {
        table.functions.iter().find(|cost| cost.name == name).unwrap()
    }

    #[test]
    fn own_time_goes_to_the_innermost_inlined_function() {
        let table = functions(&testing::profile());
        let memcpy = &table.functions[0];
        assert_eq!((memcpy.name.as_str(), memcpy.module.as_str()), ("memcpy", "libc.so.6"));
        assert_eq!(memcpy.cpu_s, 4.0);
        let parse = find(&table, "parse");
        assert_eq!(parse.cpu_s, 3.0);
        assert!((parse.total_share - 7.0 / 10.01).abs() < 1e-12);
    }

    #[test]
    fn recursion_counts_once() {
        let table = functions(&testing::profile());
        let walk = find(&table, "walk");
        assert_eq!(walk.cpu_s, 2.0);
        assert_eq!(walk.total_share, walk.share);
    }

    #[test]
    fn totals_and_the_kernel_s_part_have_intervals() {
        let table = functions(&testing::profile());
        let parse = find(&table, "parse");
        let holds = |low: Option<f64>, share: f64, high: Option<f64>| {
            low.is_some_and(|low| low < share) && high.is_some_and(|high| high > share && high <= 1.0)
        };
        assert!(holds(parse.total_share_low, parse.total_share, parse.total_share_high), "{parse:?}");
        let KernelShare { kernel_share, kernel_share_low, kernel_share_high } = table.kernel;
        let kernel_share = kernel_share.unwrap();
        assert!((kernel_share - find(&table, "clear_page").share).abs() < 1e-12);
        assert!(holds(kernel_share_low, kernel_share, kernel_share_high), "{:?}", table.kernel);
    }

    #[test]
    fn intervals_hold_their_figure_and_widen_with_the_doubt_about_sampling() {
        let mut profile = testing::profile();
        let width = |profile: &SymbolizedProfile| {
            let table = functions(profile);
            for cost in &table.functions {
                let within =
                    |low: Option<f64>, high: Option<f64>| low < Some(cost.cpu_s) && high > Some(cost.cpu_s);
                assert!(within(cost.cpu_s_low, cost.cpu_s_high), "{cost:?}");
                assert!(within(cost.long_run_cpu_s_low, cost.long_run_cpu_s_high), "{cost:?}");
            }
            table.functions[0].cpu_s_high.unwrap() - table.functions[0].cpu_s_low.unwrap()
        };
        let narrow = width(&profile);
        profile.run.cpu.sampling_cpu_se_s = 0.5;
        assert!(width(&profile) > narrow * 1.05);
    }

    #[test]
    fn of_two_alike_nobody_knows_which_is_larger() {
        let mut profile = testing::profile();
        let clear_page = profile.stacks.remove(3);
        assert_eq!(find(&functions(&profile), "walk").tied, Some(false), "ten times the next");
        profile.stacks.insert(3, clear_page);
        // walk: 2 s in 120 samples; clear_page: now about as much.
        profile.stacks[3] = testing::stack(&[5], Outcome::NoUserStack, 0..20, 119, 1_990_000_000);
        let table = functions(&profile);
        assert_eq!(find(&table, "walk").tied, Some(true));
        assert_eq!(table.functions.last().unwrap().tied, Some(false), "there is none below");
    }

    #[test]
    fn the_goal_is_the_run_s() {
        let mut profile = testing::profile();
        profile.stacks.truncate(3); // the three large ones
        profile.run.how.precision_goal_ratio = 0.9;
        assert!(functions(&profile).reached.unwrap().converged);
        profile.run.how.precision_goal_ratio = 0.001;
        let reached = functions(&profile).reached.unwrap();
        assert!(!reached.converged && reached.cpu_s_to_converge > Some(100.0), "{reached:?}");
    }

    #[test]
    fn without_windows_nothing_is_said() {
        let mut profile = testing::profile();
        profile.windows.clear();
        let table = functions(&profile);
        assert_eq!(table.reached, None);
        assert!(table.functions.iter().all(|cost| cost.cpu_s_low.is_none() && cost.tied.is_none()));
    }

    #[test]
    fn shares_add_up_to_one() {
        let sum: f64 = functions(&testing::profile()).functions.iter().map(|cost| cost.share).sum();
        assert!((sum - 1.0).abs() < 1e-12);
    }
}
