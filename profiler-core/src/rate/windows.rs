//! The length of a service's windows: as configured, and up to six times as long where naming and storing them
//! would take more than 15% of the host's budget. Longer windows are coarser in time and just as complete. Those of many targets
//! end in turn, so that handing them over takes little at any time. The first window of a target is short, unless targets are many.
//!
//! A window begins where the one before it ended, by the samples and by the clock: the store refuses windows
//! that overlap, and reports gaps.

use std::collections::VecDeque;

/// Share of the host's budget for naming and storing windows: samples have priority, and windows merged into one file
/// stay distinguishable.
const SHARE: f64 = 0.15;
/// How many recent windows decide the cost of one.
const REMEMBERED: usize = 64;
/// A window counts for at most this many times the median: a window with a new program reads symbols that others find
/// in memory, and may cost as much as hundreds of them.
const DEAREST: f64 = 8.0;
/// Largest multiple of the configured length that a window may get.
const MOST_STRETCHED: u64 = 6;

/// The first window of a target is no longer than this (ns), so that a profile can be seen soon after the service was started:
/// reading the names of large programs may take a minute more.
const FIRST_NS: u64 = 15_000_000_000;
/// Up to this many targets. Each window costs some milliseconds more, and those of hundreds would fill the host's budget at a start.
const MOST_FIRST: usize = 32;

/// Batches in which the windows of many targets end.
const BATCHES: usize = 6;
/// This many windows may always end at once.
const FEWEST_AT_ONCE: usize = 8;
/// How often it is looked for windows that are over (ns).
const TICK_NS: u64 = 1_000_000_000;

/// Learns the cost of a window.
#[derive(Clone, Debug, Default)]
pub struct WindowLength {
    /// The cost of each recent window (ns of CPU time), oldest first.
    costs_ns: VecDeque<f64>,
    /// Mean cost of a window, with outliers bounded (ns).
    each_ns: f64,
    /// Totals at the last observation: windows and CPU time (ns).
    last: (u64, u64),
}

impl WindowLength {
    /// Takes in the totals: `windows` were named and stored so far, for `cpu_ns`. The first window of each target is
    /// left out: it reads the target's symbols.
    pub fn observe(&mut self, windows: u64, cpu_ns: u64) {
        let more = windows.saturating_sub(self.last.0);
        if more == 0 {
            return; // what was spent belongs to the next
        }
        let each_ns = cpu_ns.saturating_sub(self.last.1) as f64 / more as f64;
        self.costs_ns.extend(std::iter::repeat_n(each_ns, more.min(REMEMBERED as u64) as usize));
        self.costs_ns.drain(..self.costs_ns.len().saturating_sub(REMEMBERED));
        self.last = (windows, cpu_ns);
        self.each_ns = mean_without_the_dearest(&self.costs_ns);
    }

    /// Length of windows (ns) with this many `targets`, where `asked_ns` is configured and `budget_cpus` is the host's
    /// budget.
    pub fn length_ns(&self, asked_ns: u64, targets: usize, budget_cpus: f64) -> u64 {
        let shortest_ns = targets as f64 * self.each_ns / (SHARE * budget_cpus);
        let longest_ns = asked_ns.saturating_mul(MOST_STRETCHED);
        (shortest_ns as u64).clamp(asked_ns, longest_ns) // with a budget of 0 it is infinite or NaN
    }

    /// Mean cost of naming and storing the windows of this many `targets`, each `length_ns` long (CPUs).
    pub fn expected_cpus(&self, targets: usize, length_ns: u64) -> f64 {
        targets as f64 * self.each_ns / length_ns.max(1) as f64
    }
}

/// Length of the first window of each of `targets` (ns), where the others have `window_ns`.
pub fn first_window_ns(targets: usize, window_ns: u64) -> u64 {
    if targets <= MOST_FIRST { window_ns.min(FIRST_NS) } else { window_ns }
}

/// How many windows of length `window_ns` may end at once if `targets` share a sampler: handing over hundreds would
/// hold up sampling, and use up the budget of ten seconds.
pub fn windows_at_once(targets: usize, window_ns: u64) -> usize {
    targets.div_ceil(batches(window_ns)).max(FEWEST_AT_ONCE)
}

/// Shortest time between two batches of ending windows (ns). Every second it is checked which windows are over.
pub fn window_batch_pause_ns(window_ns: u64) -> u64 {
    (window_ns / (batches(window_ns) + 2) as u64).saturating_sub(TICK_NS / 2)
}

/// Number of batches: each gets two ticks of the window's length, or more.
fn batches(window_ns: u64) -> usize {
    (window_ns / (2 * TICK_NS)).clamp(1, BATCHES as u64) as usize
}

/// The mean, with each cost bounded to [`DEAREST`] times the median.
fn mean_without_the_dearest(costs_ns: &VecDeque<f64>) -> f64 {
    let mut sorted: Vec<f64> = costs_ns.iter().copied().collect();
    sorted.sort_by(f64::total_cmp);
    let most_ns = DEAREST * sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or_default();
    let counted_ns: f64 = sorted.iter().map(|cost_ns| cost_ns.min(most_ns)).sum();
    counted_ns / sorted.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// After so many windows at so much each (ms).
    fn after(windows: u64, each_ms: u64) -> WindowLength {
        let mut length = WindowLength::default();
        (1..=windows).for_each(|window| length.observe(window, window * each_ms * 1_000_000));
        length
    }

    #[test]
    fn windows_are_as_long_as_asked_where_that_is_cheap() {
        assert_eq!(WindowLength::default().length_ns(5 * SECOND, 100, 0.02), 5 * SECOND);
        assert_eq!(after(100, 5).length_ns(60 * SECOND, 10, 0.02), 60 * SECOND);
    }

    #[test]
    fn where_it_is_dear_naming_and_keeping_take_their_part_of_the_budget() {
        let length_ns = after(100, 5).length_ns(5 * SECOND, 10, 0.02) as f64;
        let spent_cpus = 10.0 * 5e6 / length_ns;
        assert!((spent_cpus - SHARE * 0.02).abs() < 1e-6, "{spent_cpus}");
        let expected_cpus = after(100, 5).expected_cpus(10, length_ns as u64);
        assert!((expected_cpus - spent_cpus).abs() < 1e-6, "{expected_cpus}");
    }

    #[test]
    fn a_window_that_meets_a_large_program_is_not_expected_again() {
        let mut length = after(9, 1);
        length.observe(10, 9_000_000 + 120_000_000);
        let expected_cpus = length.expected_cpus(200, 60 * SECOND);
        assert!(expected_cpus < 2.0 * 200.0 * 1e-3 / 60.0, "{expected_cpus}");
        assert_eq!(length.length_ns(60 * SECOND, 100, 0.02), 60 * SECOND);
    }

    #[test]
    fn windows_that_are_all_dear_or_a_few_of_them_count() {
        let mut length = after(100, 1);
        let (mut windows, mut cpu_ns) = (100, 100_000_000);
        for at in 0..64_u64 {
            windows += 1;
            cpu_ns += if at % 8 == 0 { 5_000_000 } else { 1_000_000 };
            length.observe(windows, cpu_ns);
        }
        let each_ns = length.expected_cpus(1, 1) as u64;
        assert_eq!(each_ns, 1_500_000, "the mean of all");
        assert!(after(100, 200).length_ns(5 * SECOND, 10, 0.02) == 30 * SECOND, "not without end");
    }

    #[test]
    fn many_windows_that_are_told_of_at_once_count_as_that_many() {
        let mut length = after(100, 1);
        length.observe(140, 100_000_000 + 40 * 3_000_000);
        let each_ns = length.expected_cpus(1, 1);
        assert!((each_ns - (40.0 * 3e6 + 24.0 * 1e6) / 64.0).abs() < 1.0, "{each_ns}");
    }

    /// Windows that all begin at once, ended in turn for twenty lengths: the longest of them, the longest at last, and how many end
    /// at once.
    fn in_turn(targets: usize, window_ns: u64) -> (u64, u64, usize) {
        let mut begun_ns = vec![0; targets];
        let (mut next_ns, mut longest_ns, mut last_ns, mut most) = (0, 0, 0, 0);
        let until_ns = 20 * window_ns;
        for now_ns in (1..).map(|tick| tick * TICK_NS).take_while(|now_ns| *now_ns <= until_ns) {
            let over = begun_ns.iter_mut().filter(|begun_ns| now_ns - **begun_ns >= window_ns);
            let mut ended = 0;
            for begun_ns in over.take(if now_ns < next_ns { 0 } else { windows_at_once(targets, window_ns) })
            {
                let length_ns = now_ns - std::mem::replace(begun_ns, now_ns);
                longest_ns = length_ns.max(longest_ns);
                last_ns = if now_ns > until_ns / 2 { length_ns.max(last_ns) } else { 0 };
                ended += 1;
            }
            if ended > 0 {
                next_ns = now_ns + window_batch_pause_ns(window_ns);
                most = ended.max(most);
            }
        }
        (longest_ns, last_ns, most)
    }

    #[test]
    fn windows_of_many_targets_end_in_turn_and_are_soon_as_long_as_asked() {
        for seconds in (1..=60).chain([300, 3_600]) {
            for targets in [1, 8, 19, 41, 200, 2_000] {
                let window_ns = seconds * SECOND;
                let (longest_ns, last_ns, most) = in_turn(targets, window_ns);
                let case = format!("{targets} of {seconds} s");
                assert!(longest_ns <= window_ns / 4 * 7 + TICK_NS, "{case}: {longest_ns}");
                assert!(last_ns <= window_ns + TICK_NS, "{case}: {last_ns}");
                assert!(
                    most <= windows_at_once(targets, window_ns) && (targets > 8 || most == targets),
                    "{case}: {most}"
                );
                assert!(seconds < 12 || most <= (targets.div_ceil(6)).max(8), "{case}: {most}");
            }
        }
    }

    #[test]
    fn the_first_window_is_short_where_targets_are_few_and_windows_long() {
        assert_eq!(first_window_ns(1, 60 * SECOND), 15 * SECOND);
        assert_eq!(first_window_ns(32, 60 * SECOND), 15 * SECOND);
        assert_eq!(first_window_ns(33, 60 * SECOND), 60 * SECOND);
        assert_eq!(first_window_ns(1, 2 * SECOND), 2 * SECOND);
    }

    #[test]
    fn hostile_figures_do_no_harm() {
        let mut length = after(3, 1);
        length.observe(2, 1); // both run backwards
        length.observe(u64::MAX, u64::MAX);
        for budget_cpus in [0.0, f64::NAN, -1.0, f64::INFINITY] {
            let length_ns = length.length_ns(SECOND, usize::MAX, budget_cpus);
            assert!((SECOND..=6 * SECOND).contains(&length_ns), "{budget_cpus}: {length_ns}");
        }
    }
}
