//! The length of a service's windows: as configured, and up to six times as long where naming and storing them
//! would take more than 15% of the host's budget. Longer windows are coarser in time and just as complete.
//!
//! A window begins where the one before it ended, by the samples and by the clock: the store refuses windows
//! that overlap, and reports gaps.

/// Part of the host's budget that naming and keeping may take: samples come first, and the windows of a longer file are told apart as well.
const SHARE: f64 = 0.15;
/// Of what windows have cost, so much still counts after each that is kept: some fifty decide.
const REMEMBERED: f64 = 0.98;
/// So many times as long as asked for a window gets at most: the first one of a program may cost as much as a hundred others.
const MOST_STRETCHED: u64 = 6;

/// Learns what a window costs.
#[derive(Clone, Copy, Debug, Default)]
pub struct WindowLength {
    /// Sum of the costs (ns of CPU time), and its weight.
    spent_ns: f64,
    weight: f64,
    /// What was told last: windows and CPU time (ns).
    last: (u64, u64),
}

impl WindowLength {
    /// So many windows were named and kept until now, for so much CPU time (ns).
    pub fn observe(&mut self, windows: u64, cpu_ns: u64) {
        let more = windows.saturating_sub(self.last.0) as f64;
        if more == 0.0 {
            return; // what was spent belongs to the next
        }
        let remembered = REMEMBERED.powf(more);
        self.spent_ns = self.spent_ns * remembered + cpu_ns.saturating_sub(self.last.1) as f64;
        self.weight = self.weight * remembered + more;
        self.last = (windows, cpu_ns);
    }

    /// Length of the windows of so many targets (ns), where `asked_ns` is wanted and `budget_cpus` may be spent on the host.
    pub fn length_ns(&self, asked_ns: u64, targets: usize, budget_cpus: f64) -> u64 {
        let affordable_ns = targets as f64 * self.each_ns() / (SHARE * budget_cpus);
        let longest_ns = asked_ns.saturating_mul(MOST_STRETCHED);
        (affordable_ns as u64).clamp(asked_ns, longest_ns) // a budget of nothing makes it infinite, or no number
    }

    /// What naming and keeping the windows of so many targets takes in the mean, where each is so long (CPUs).
    pub fn expected_cpus(&self, targets: usize, length_ns: u64) -> f64 {
        targets as f64 * self.each_ns() / length_ns.max(1) as f64
    }

    fn each_ns(&self) -> f64 {
        self.spent_ns / self.weight.max(1.0)
    }
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
    fn one_dear_window_is_forgotten() {
        let mut length = after(100, 1);
        length.observe(101, 5_000_000_000);
        assert_eq!(length.length_ns(5 * SECOND, 10, 0.02), 30 * SECOND, "not without end");
        (102..400).for_each(|window| length.observe(window, 5_000_000_000 + window * 1_000_000));
        assert_eq!(length.length_ns(5 * SECOND, 10, 0.02), 5 * SECOND);
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
