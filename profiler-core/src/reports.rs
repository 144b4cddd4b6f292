//! Whether mapping records are requested. Where hundreds of programs start each second, or one program maps
//! without end, these records cost more than the samples of a low rate.
//!
//! Without them, names, forks and exits are still reported, and a process' mappings are read when it is first
//! sampled and every ten seconds. Processes that live for less than a step then have no names, and the profile
//! says so. `record` and `attach` always request mapping records.

use crate::rate::OWN_COST_FLOOR_CPUS;

/// Part of what may be spent that the records may cost; above it, they are given up.
const DEAR: f64 = 0.25;
/// Part that they must have become as cheap as, by the programs that begin, to be asked for again.
const CHEAP: f64 = 0.1;
/// For so long (ns of wall time) they have to be too dear, or cheap.
const DEAR_FOR_NS: f64 = 3e9;
const CHEAP_FOR_NS: f64 = 30e9;
/// If they turn out to be too dear again, the latter is doubled, up to so many times.
const MOST_PATIENCE: u32 = 5;
/// Mappings that a program of some libraries reports when it begins, before any was seen to.
const USUAL_MAPPINGS: f64 = 8.0;
/// Of what programs reported, so much still counts after each one that begins.
const REMEMBERED: f64 = 0.99;

/// What was reported in a stretch of time, by whole CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reported {
    /// Length (ns).
    pub wall_ns: f64,
    /// CPU time of the target (ns).
    pub target_cpu_ns: f64,
    /// Mappings.
    pub mappings: u64,
    /// Programs that began.
    pub execs: u64,
}

/// Whether mappings are reported.
#[derive(Clone, Debug)]
pub struct MappingReports {
    are_reported: bool,
    /// Mappings of a program that begins: a sum and its weight.
    mappings: f64,
    execs: f64,
    /// For how long they have been too dear, or cheap (ns).
    for_ns: f64,
    /// How often they were asked for in vain.
    patience: u32,
    /// For how long they have been reported (ns).
    reported_ns: f64,
}

impl Default for MappingReports {
    fn default() -> Self {
        Self {
            are_reported: true,
            mappings: USUAL_MAPPINGS,
            execs: 1.0,
            for_ns: 0.0,
            patience: 0,
            reported_ns: 0.0,
        }
    }
}

impl MappingReports {
    /// Takes in what was reported since the last call. `record_ns` is what a record costs, `budget_ratio` what may be spent of
    /// the target's CPU time. Returns whether they shall be reported from now on, if that changes.
    pub fn observe(&mut self, reported: &Reported, record_ns: f64, budget_ratio: f64) -> Option<bool> {
        let execs = reported.execs as f64;
        if self.are_reported {
            let remembered = REMEMBERED.powf(execs);
            self.mappings = self.mappings * remembered + reported.mappings as f64;
            self.execs = self.execs * remembered + execs;
        }
        let mappings =
            if self.are_reported { reported.mappings as f64 } else { execs * self.mappings / self.execs };
        let may_spend_ns = budget_ratio * reported.target_cpu_ns.max(OWN_COST_FLOOR_CPUS * reported.wall_ns);
        let cheap_for_ns = CHEAP_FOR_NS * f64::from(1 << self.patience);
        let (matters, for_ns) = match self.are_reported {
            true => (mappings * record_ns > DEAR * may_spend_ns, DEAR_FOR_NS),
            false => (mappings * record_ns < CHEAP * may_spend_ns, cheap_for_ns),
        };
        self.reported_ns += reported.wall_ns;
        self.for_ns = if matters { self.for_ns + reported.wall_ns } else { 0.0 };
        if self.for_ns < for_ns {
            return None;
        }
        if self.are_reported {
            let in_vain = self.reported_ns < cheap_for_ns;
            self.patience = if in_vain { (self.patience + 1).min(MOST_PATIENCE) } else { 0 };
        }
        (self.for_ns, self.reported_ns) = (0.0, 0.0);
        self.are_reported = !self.are_reported;
        Some(self.are_reported)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD_NS: f64 = 3_000.0;
    const BUDGET: f64 = 0.01;

    /// A second of a host that uses half a CPU.
    fn second(mappings: u64, execs: u64) -> Reported {
        Reported { wall_ns: 1e9, target_cpu_ns: 5e8, mappings, execs }
    }

    fn seconds(reports: &mut MappingReports, count: usize, reported: Reported) -> Vec<(usize, bool)> {
        let changes = (1..=count).map(|second| (second, reports.observe(&reported, RECORD_NS, BUDGET)));
        changes.filter_map(|(second, change)| Some((second, change?))).collect()
    }

    #[test]
    fn a_quiet_host_reports_all() {
        assert!(seconds(&mut MappingReports::default(), 1000, second(40, 5)).is_empty());
    }

    #[test]
    fn records_that_take_a_quarter_of_the_budget_are_given_up_after_three_seconds() {
        let mut reports = MappingReports::default();
        assert!(seconds(&mut reports, 100, second(40, 5)).is_empty());
        assert_eq!(seconds(&mut reports, 20, second(1300, 170)), [(3, false)]);
        // Nobody sees mappings any more; the programs tell.
        assert!(seconds(&mut reports, 100, second(0, 170)).is_empty());
        assert_eq!(seconds(&mut reports, 100, second(0, 2)), [(30, true)]);
    }

    #[test]
    fn a_second_of_many_does_not_matter() {
        let mut reports = MappingReports::default();
        for _ in 0..100 {
            assert!(seconds(&mut reports, 2, second(9000, 900)).is_empty());
            assert!(seconds(&mut reports, 1, second(9, 1)).is_empty());
        }
    }

    /// A compiler's programs map much, a shell's little: what they mapped when they were seen decides.
    #[test]
    fn it_is_remembered_how_much_a_program_maps() {
        let change_after = |mappings_each: u64, execs: u64| {
            let mut reports = MappingReports::default();
            assert!(seconds(&mut reports, 100, second(mappings_each, 1)).is_empty());
            assert_eq!(seconds(&mut reports, 3, second(500 * mappings_each, 500)), [(3, false)]);
            seconds(&mut reports, 100, second(0, execs))
        };
        assert_eq!(change_after(2, 50), [(30, true)]);
        assert!(change_after(40, 50).is_empty());
    }

    /// One program that maps and maps begins nothing by which it could be told.
    #[test]
    fn what_was_asked_for_in_vain_is_asked_for_ever_more_rarely() {
        let mut reports = MappingReports::default();
        let mut asked = 0;
        for _ in 0..3600 {
            let mappings = if reports.are_reported { 1000 } else { 0 };
            asked += usize::from(reports.observe(&second(mappings, 0), RECORD_NS, BUDGET) == Some(true));
        }
        assert!((3..=8).contains(&asked), "{asked} times in an hour");
    }

    /// Load must not be thought to be zero: an idle host has something to spend, too.
    #[test]
    fn an_idle_host_counts_as_a_tenth_of_a_cpu() {
        let idle = |mappings| Reported { target_cpu_ns: 0.0, ..second(mappings, 1) };
        assert!(seconds(&mut MappingReports::default(), 100, idle(80)).is_empty());
        assert_eq!(seconds(&mut MappingReports::default(), 10, idle(90)), [(3, false)]);
    }
}
