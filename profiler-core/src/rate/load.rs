//! How busy a target is expected to be, for budgets that are kept over ten seconds.
//!
//! The load is that of the busiest ten seconds that are usual. Using the peak would leave most of the budget
//! unused for targets with bursts; using the mean would overspend it. What is usual is known after twenty
//! seconds; before that, and when a target does more than usual, its peak is expected to continue.

use std::collections::VecDeque;

use super::budget_division::AGES;
use super::last_ten_seconds::{LastTenSeconds, SpanFigures, TEN_SECONDS_NS};

const SECOND_NS: f64 = 1e9;
/// For how many seconds ten-second maxima are remembered, and how many of the newest are ignored: a load that has just
/// begun would look usual.
const REMEMBERED: usize = 20;
const TOO_FRESH: usize = 10;
/// More than this many times the most that was usual is something new.
const USUAL: f64 = 1.1;

#[derive(Clone, Copy, Debug, Default)]
struct LoadSpan {
    wall_ns: f64,
    cpu_ns: f64,
}

impl SpanFigures for LoadSpan {
    fn wall_ns(&self) -> f64 {
        self.wall_ns
    }

    fn add(&mut self, other: Self) {
        self.wall_ns += other.wall_ns;
        self.cpu_ns += other.cpu_ns;
    }
}

/// The load of the last ten seconds, and of those before.
#[derive(Clone, Debug, Default)]
pub(super) struct RecentLoad {
    history: LastTenSeconds<LoadSpan>,
    /// The most CPU time of ten seconds that ended in each second, oldest first (ns).
    records: VecDeque<f64>,
    /// Length of the present second so far (ns).
    second_ns: f64,
}

/// The expected load of a target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Expected {
    /// CPUs that it keeps busy in the busiest ten seconds.
    pub(super) busy_cpus: f64,
    /// Load in the rest of a ten-second window that is 1, 2, … 9 s old, over `busy_cpus`.
    pub(super) pace: [f64; AGES],
}

impl RecentLoad {
    /// Takes in a step, of `wall_ns` in which the target used `cpu_ns`.
    pub(super) fn observe(&mut self, wall_ns: u64, cpu_ns: u64) {
        let step = LoadSpan { wall_ns: wall_ns as f64, cpu_ns: cpu_ns as f64 };
        self.history.book(step);
        self.remember(step.wall_ns);
    }

    fn remember(&mut self, wall_ns: f64) {
        self.second_ns += wall_ns;
        if self.records.is_empty() || self.second_ns >= SECOND_NS {
            // In a step of many seconds, all of these seconds end at once.
            let seconds = ((self.second_ns / SECOND_NS) as usize).clamp(1, REMEMBERED);
            self.second_ns %= SECOND_NS;
            self.records.extend(std::iter::repeat_n(0.0, seconds));
            self.records.drain(..self.records.len().saturating_sub(REMEMBERED));
        }
        if let Some(record) = self.records.back_mut() {
            *record = record.max(self.history.held().cpu_ns);
        }
    }

    /// The expected load, if the target continues as usual; `None` if nothing is usual yet, or if it does more than
    /// that.
    ///
    /// With recurring bursts, it is the load of all bursts in ten seconds together.
    pub(super) fn expected(&self) -> Option<Expected> {
        let usual = self.records.len().checked_sub(TOO_FRESH).filter(|old| *old > 0)?;
        let usual_ns = self.records.iter().take(usual).copied().fold(0.0, f64::max);
        let held = self.history.held();
        if held.wall_ns < TEN_SECONDS_NS || held.cpu_ns > USUAL * usual_ns {
            return None;
        }
        let most_ns = held.cpu_ns.max(usual_ns);
        Some(Expected { busy_cpus: most_ns / TEN_SECONDS_NS, pace: self.pace(most_ns) })
    }

    /// The remaining part of the expected ten-second load `most_ns`, limited to what fits into the rest of the time.
    fn pace(&self, most_ns: f64) -> [f64; AGES] {
        let peak_cpus =
            self.history.latest_first().map(|span| span.cpu_ns / span.wall_ns.max(1.0)).fold(0.0, f64::max);
        let peak_cpus = peak_cpus.max(most_ns / TEN_SECONDS_NS);
        let (mut pace, mut over) = ([1.0; AGES], LoadSpan::default());
        let mut spans = self.history.latest_first();
        for (age, pace) in (1..).zip(&mut pace) {
            let age_ns = f64::from(age) * SECOND_NS;
            while over.wall_ns < age_ns
                && let Some(span) = spans.next()
            {
                over.add(*span);
            }
            let rest_ns = TEN_SECONDS_NS - age_ns;
            let rest_cpus = ((most_ns - over.cpu_ns) / rest_ns).clamp(0.0, peak_cpus);
            *pace = if most_ns > 0.0 { rest_cpus * TEN_SECONDS_NS / most_ns } else { 1.0 };
        }
        pace
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP_NS: u64 = 100_000_000;

    fn play(load: &mut RecentLoad, seconds: u64, busy_cpus: impl Fn(u64) -> f64) {
        for step in 0..10 * seconds {
            load.observe(STEP_NS, (busy_cpus(step) * STEP_NS as f64) as u64);
        }
    }

    fn burst(step: u64) -> f64 {
        if step % 40 < 5 { 2.0 } else { 0.0 }
    }

    #[test]
    fn a_steady_load_is_expected_to_go_on_once_it_is_known() {
        let mut load = RecentLoad::default();
        play(&mut load, 9, |_| 1.5);
        assert_eq!(load.expected(), None);
        play(&mut load, 20, |_| 1.5);
        let expected = load.expected().unwrap();
        assert!((expected.busy_cpus - 1.5).abs() < 1e-9, "{expected:?}");
        assert!(expected.pace.iter().all(|pace| (pace - 1.0).abs() < 1e-6), "{expected:?}");
    }

    #[test]
    fn of_bursts_all_that_ten_seconds_hold_is_expected_and_no_more() {
        let mut load = RecentLoad::default();
        play(&mut load, 40, burst);
        for step in 0..80 {
            load.observe(STEP_NS, (burst(step) * STEP_NS as f64) as u64);
            let expected = load.expected().unwrap();
            // Three bursts of half a second by two CPUs.
            assert!((expected.busy_cpus - 0.3).abs() < 1e-6, "{step}: {expected:?}");
            let most = expected.pace.iter().copied().fold(0.0, f64::max);
            assert!(expected.pace.iter().all(|pace| *pace >= 0.0) && most <= 2.0 / 0.3 + 1e-6);
        }
        // Ten seconds that hold three bursts already are expected to hold no other.
        play(&mut load, 9, burst);
        assert!(load.expected().unwrap().pace[8] < 1e-6, "{:?}", load.expected());
    }

    #[test]
    fn more_than_is_usual_is_not_expected_at_once_and_less_is() {
        let mut load = RecentLoad::default();
        play(&mut load, 40, |_| 0.1);
        play(&mut load, 1, |_| 4.0);
        assert_eq!(load.expected(), None);
        play(&mut load, 30, |_| 4.0);
        assert!((load.expected().unwrap().busy_cpus - 4.0).abs() < 1e-6);
        play(&mut load, 5, |_| 0.0);
        assert!((load.expected().unwrap().busy_cpus - 4.0).abs() < 1e-6, "it may come back");
        play(&mut load, 40, |_| 0.0);
        assert_eq!(load.expected().unwrap().busy_cpus, 0.0);
    }

    #[test]
    fn a_step_of_no_time_or_of_hours_is_taken_in() {
        let mut load = RecentLoad::default();
        load.observe(0, 0);
        load.observe(0, 5);
        load.observe(u64::MAX, u64::MAX);
        play(&mut load, 60, |_| 1.0);
        assert!((load.expected().unwrap().busy_cpus - 1.0).abs() < 0.2, "{:?}", load.expected());
    }
}
