//! How often processes are scanned: a scan reads every process of the host, and is paid for from the host's budget.

/// Share of the host's budget that scans may take.
const SHARE: f64 = 0.1;
/// A new process is found within this time at the latest (ns).
const LONGEST_PAUSE_NS: u64 = 30_000_000_000;
/// [`ScanSchedule::is_due`] is called about once a second, give or take this (ns).
const SLACK_NS: u64 = 500_000_000;

/// When the next scan is due.
#[derive(Debug, Default)]
pub(super) struct ScanSchedule {
    due_ns: u64,
    /// Whether the last scan came before it was due.
    was_early: bool,
}

impl ScanSchedule {
    /// Whether a scan is due; called once a second.
    pub(super) fn is_due(&self, now_ns: u64) -> bool {
        now_ns + SLACK_NS >= self.due_ns
    }

    /// Whether a scan may be made before it is due: every second one. The next one is then due as much later.
    pub(super) fn may_be_early(&self) -> bool {
        !self.was_early
    }

    /// Notes a scan at `now_ns` that took `cost_ns` of CPU time; `host_cpus` is the host's budget.
    pub(super) fn note_scan(&mut self, now_ns: u64, cost_ns: u64, host_cpus: f64) {
        let pause_ns = (cost_ns as f64 / (SHARE * host_cpus)) as u64; // a budget of nothing is the longest pause
        self.was_early = now_ns + SLACK_NS < self.due_ns;
        let due_ns = self.due_ns.max(now_ns) + pause_ns.min(LONGEST_PAUSE_NS);
        self.due_ns = due_ns.min(now_ns + LONGEST_PAUSE_NS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    /// Number of scans in ten minutes if each costs `cost_ns`.
    fn scans(cost_ns: u64, host_cpus: f64) -> u64 {
        let mut schedule = ScanSchedule::default();
        let mut count = 0;
        for second in 1..=600 {
            if schedule.is_due(second * SECOND_NS) {
                schedule.note_scan(second * SECOND_NS, cost_ns, host_cpus);
                count += 1;
            }
        }
        count
    }

    #[test]
    fn a_cheap_scan_is_made_each_second() {
        assert_eq!(scans(1_000_000, 0.02), 600);
        assert_eq!(scans(2_000_000, 0.02), 600);
    }

    #[test]
    fn expensive_scans_take_no_more_than_their_share() {
        for cost_ns in [10_000_000, 20_000_000, 50_000_000] {
            let cpus = (scans(cost_ns, 0.02) * cost_ns) as f64 / 600e9;
            assert!((0.8..1.1).contains(&(cpus / (SHARE * 0.02))), "{cost_ns}: {cpus}");
        }
    }

    #[test]
    fn an_early_scan_is_paid_for_by_a_longer_pause() {
        let mut schedule = ScanSchedule::default();
        schedule.note_scan(0, 20_000_000, 0.02); // ten seconds
        assert!(schedule.may_be_early());
        schedule.note_scan(SECOND_NS, 20_000_000, 0.02);
        assert!(
            !schedule.may_be_early() && !schedule.is_due(19 * SECOND_NS) && schedule.is_due(20 * SECOND_NS)
        );
        schedule.note_scan(20 * SECOND_NS, 20_000_000, 0.02);
        assert!(schedule.may_be_early() && schedule.is_due(30 * SECOND_NS));
    }

    #[test]
    fn scans_go_on_whatever_they_cost() {
        assert_eq!(scans(60 * SECOND_NS, 0.02), 20);
        assert_eq!(scans(1, 0.0), 20);
    }
}
