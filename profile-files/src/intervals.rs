//! How sure the CPU time of the functions is: from what each had in each window to intervals in seconds.

use std::collections::BTreeMap;

use profiler_core::profile::{self, Run, SymbolizedProfile, WeightedStack};
use profiler_core::stats::{Confidence, Goal, Interval, IntervalTable, Part, WindowSums};
use serde::Serialize;

/// CPU time (ns) and samples.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Amount {
    /// CPU time (ns).
    pub(super) cpu_ns: u64,
    /// Samples.
    pub(super) samples: u64,
    /// Sum of the squares of the samples' weights (ns²), those that were added together taken to weigh the same.
    squares_ns2: f64,
}

impl Amount {
    /// A file from elsewhere may hold sums that overflow; they stay at the top.
    pub(super) fn add(&mut self, cpu_ns: u64, samples: u64) {
        self.cpu_ns = self.cpu_ns.saturating_add(cpu_ns);
        self.samples = self.samples.saturating_add(samples);
        self.squares_ns2 += (cpu_ns as f64).powi(2) / samples.max(1) as f64;
    }
}

/// What a function, or everything, had at each time.
pub(super) type ByTime = BTreeMap<u32, Amount>;

/// Groups a profile's windows by time: in a sum, samples of different weights have separate windows for the same time.
pub(super) struct Times {
    /// The time of each window, as a number from 0 to `count` − 1.
    of: Vec<u32>,
    count: u32,
}

impl Times {
    pub(super) fn of(windows: &[profile::Window]) -> Self {
        let (mut of, mut count, mut end_ns) = (Vec::with_capacity(windows.len()), 0_u32, None);
        for window in windows {
            let middle_ns = window.start_ns + window.end_ns.saturating_sub(window.start_ns) / 2;
            if end_ns.is_none_or(|end_ns| middle_ns >= end_ns) {
                (count, end_ns) = (count + 1, Some(window.end_ns));
            }
            of.push(count - 1);
        }
        Self { of, count }
    }

    /// Adds what a stack had to what its function, or everything, had.
    pub(super) fn add(&self, sums: &mut ByTime, stack: &WeightedStack) {
        for had in &stack.windows {
            let Some(&time) = self.of.get(had.window as usize) else { continue };
            sums.entry(time).or_default().add(had.cpu_ns, had.samples);
        }
    }
}

/// Σw² over that of equal weights from which weights are uneven: periods that are drawn anew, and a rate that is retuned a little,
/// stay below.
const UNEVEN: f64 = 1.25;

/// How far a profile is from what it shall reach.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Reached {
    /// The widest interval of the largest functions' long-run shares: half its width as a ratio of the share; 1 and
    /// more: nothing is known.
    pub precision_ratio: f64,
    /// Whether that is within [`HowSampled::precision_goal_ratio`](profiler_core::profile::HowSampled::precision_goal_ratio).
    pub converged: bool,
    /// CPU time of the target until it is, at the last rate (s); 0 if it is, absent where nobody can say.
    pub cpu_s_to_converge: Option<f64>,
}

/// The intervals of all functions at the run's level, given what each had at which time. Nothing without windows or a level: a file of another
/// tool has none.
pub(super) fn table<'a>(
    profile: &SymbolizedProfile,
    times: &Times,
    total: &ByTime,
    functions: impl Iterator<Item = &'a ByTime>,
) -> Option<IntervalTable> {
    table_at(confidence(&profile.run), profile, times, total, functions)
}

/// The same at another level.
pub(super) fn table_at<'a>(
    confidence: Confidence,
    profile: &SymbolizedProfile,
    times: &Times,
    total: &ByTime,
    functions: impl Iterator<Item = &'a ByTime>,
) -> Option<IntervalTable> {
    if profile.windows.is_empty() || profile.run.how.confidence <= 0.0 {
        return None;
    }
    let in_windows: Vec<Amount> =
        (0..times.count).map(|at| total.get(&at).copied().unwrap_or_default()).collect();
    let is_uneven = is_uneven(&in_windows);
    let squares_ns2 = |had: &Amount| if is_uneven { had.squares_ns2 } else { 0.0 };
    let window = |had: &Amount| WindowSums {
        weight_ns: had.cpu_ns as f64,
        samples: had.samples,
        squares_ns2: squares_ns2(had),
    };
    let part = |(&window, had): (&u32, &Amount)| Part {
        window,
        weight_ns: had.cpu_ns as f64,
        samples: had.samples,
        squares_ns2: squares_ns2(had),
    };
    let windows: Vec<WindowSums> = in_windows.iter().map(window).collect();
    let functions: Vec<Vec<Part>> = functions.map(|function| function.iter().map(part).collect()).collect();
    Some(IntervalTable::new(&windows, &functions, confidence))
}

/// Whether samples of one window weigh differently, as those of targets at different rates do.
fn is_uneven(windows: &[Amount]) -> bool {
    let even_ns2 = |had: &Amount| (had.cpu_ns as f64).powi(2) / had.samples.max(1) as f64;
    let even: f64 = windows.iter().map(even_ns2).sum();
    windows.iter().map(|had| had.squares_ns2).sum::<f64>() > UNEVEN * even
}

fn confidence(run: &Run) -> Confidence {
    Confidence::new(run.how.confidence)
}

/// Whether the run's goal is reached.
pub(super) fn reached(run: &Run, table: &IntervalTable) -> Reached {
    let asked = Some(run.how.precision_goal_ratio).filter(|ratio| *ratio > 0.0 && *ratio < 1.0);
    let goal = asked.map_or_else(Goal::default, |relative| Goal { relative, ..Goal::default() });
    let precision = goal.judge(table);
    Reached {
        precision_ratio: if precision.ratio.is_finite() { precision.ratio } else { 1.0 },
        converged: precision.converged,
        cpu_s_to_converge: precision.cpu_s_to_converge.filter(|cpu_s| cpu_s.is_finite()),
    }
}

/// The target's CPU time without sampling, and how sure it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Total {
    cpu_s: f64,
    /// How far it may be off at the level of the table (s).
    doubt_s: f64,
}

impl Total {
    /// `cpu_ns` of CPU time, from which `run` took what sampling added.
    pub(super) fn new(cpu_ns: u64, run: &Run) -> Self {
        let cpu_s = cpu_ns as f64 / 1e9;
        // One error for all functions: however many there are, it needs no wider interval.
        let doubt_s = confidence(run).normal_score() * run.cpu.sampling_cpu_se_s;
        let doubt_s = if doubt_s.is_finite() { doubt_s.clamp(0.0, cpu_s) } else { 0.0 };
        Self { cpu_s, doubt_s }
    }

    /// The CPU time of a share, and the ends of its interval (s); nothing where nothing is known.
    ///
    /// The share and the total err independently, so the two parts of the interval add up like the sides of a right
    /// triangle, upwards and downwards each (Zou and Donner's MOVER).
    pub(super) fn ends(self, share: f64, interval: Interval) -> Option<(f64, f64)> {
        if interval == Interval::UNKNOWN || !(interval.low <= share && share <= interval.high) {
            return None;
        }
        let doubt_s = share * self.doubt_s;
        let part = |distance: f64| (distance * self.cpu_s).hypot(doubt_s);
        let cpu_s = share * self.cpu_s;
        Some(((cpu_s - part(share - interval.low)).max(0.0), cpu_s + part(interval.high - share)))
    }
}

#[cfg(test)]
mod tests {
    use profiler_core::profile::{CpuTimes, HowSampled};
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_errors_of_share_and_total_add_up_at_right_angles() {
        let run = Run {
            how: HowSampled { confidence: 0.95, ..HowSampled::default() },
            cpu: CpuTimes { sampling_cpu_se_s: 0.4 / 1.959_964, ..CpuTimes::default() },
            ..Run::default()
        };
        let total = Total::new(10_000_000_000, &run);
        // 5 s: .3 s from the share upwards and .15 s downwards, and .2 s from the total.
        let (low, high) = total.ends(0.5, Interval { low: 0.485, high: 0.53 }).unwrap();
        assert!((low - (5.0 - 0.25)).abs() < 1e-6, "{low}");
        assert!((high - (5.0 + 0.3_f64.hypot(0.2))).abs() < 1e-6, "{high}");
    }

    #[test]
    fn windows_of_samples_that_weigh_differently_are_of_one_time() {
        let windows = |spans: &[(u64, u64)]| {
            let window = |&(start_ns, end_ns)| profile::Window { start_ns, end_ns };
            Times::of(&spans.iter().map(window).collect::<Vec<_>>()).of
        };
        assert_eq!(windows(&[(0, 60), (60, 120), (120, 121)]), [0, 1, 2]);
        assert_eq!(windows(&[(0, 60), (2, 61), (0, 58), (58, 121), (60, 119)]), [0, 0, 0, 1, 1]);
        assert_eq!(windows(&[(5, 5), (5, 5)]), [0, 1]);
        assert_eq!(windows(&[(u64::MAX, u64::MAX), (0, u64::MAX)]), [0, 0]);
    }

    #[test]
    fn nothing_known_is_no_interval() {
        let total = Total::new(1, &Run::default());
        assert_eq!(total.ends(0.5, Interval::UNKNOWN), None);
        assert_eq!(total.ends(f64::NAN, Interval { low: 0.1, high: 0.2 }), None);
    }

    proptest! {
        #[test]
        fn ends_are_finite_and_hold_the_figure(
            cpu_ns: u64, se_s: f64, confidence: f64, share in 0.0..=1.0, low in 0.0..=1.0, high in 0.0..=1.0,
        ) {
            let run = Run { cpu: CpuTimes { sampling_cpu_se_s: se_s, ..CpuTimes::default() }, how: HowSampled { confidence, ..HowSampled::default() }, ..Run::default() };
            let total = Total::new(cpu_ns, &run);
            if let Some((low, high)) = total.ends(share, Interval { low, high }) {
                let cpu_s = cpu_ns as f64 / 1e9 * share;
                prop_assert!(low >= 0.0 && low <= cpu_s && cpu_s <= high && high.is_finite());
            }
        }
    }
}
