//! Whether records of mappings are worth what they cost, of one target among many.

use profiler_core::reports::{MappingReports, Reported};

use super::Engine;
use crate::explain;
use crate::output::DecisionLog;

/// What was known at the last look.
#[derive(Default)]
pub(super) struct ReportWatch {
    decision: MappingReports,
    /// Whether the clocks are to be reopened with other records.
    pub(super) changed: bool,
    at_ns: u64,
    target_cpu_ns: u64,
    mappings: u64,
    execs: u64,
}

impl<L: DecisionLog> Engine<L> {
    /// Stops records of mappings if they are too expensive, or requests them again. A target that is sampled alone
    /// keeps all names, and the user sees what they cost.
    pub(super) fn look_at_reports(&mut self, now_ns: u64) {
        let Some(decided) = self.last_decision.filter(|_| self.pace.resting.is_some()) else { return };
        let (target_cpu_ns, counts) = (self.session.target_cpu_ns(), &self.session.counts);
        let last = &mut self.reports;
        let since = |now: u64, last: &mut u64| now.saturating_sub(std::mem::replace(last, now));
        let is_first = last.at_ns == 0;
        let reported = Reported {
            wall_ns: since(now_ns, &mut last.at_ns) as f64,
            target_cpu_ns: since(target_cpu_ns, &mut last.target_cpu_ns) as f64,
            mappings: since(counts.side_records.mappings, &mut last.mappings),
            execs: since(counts.side_records.execs, &mut last.execs),
        };
        let record_ns = self.costs.model.per_side_record_ns.mean_ns;
        let observed =
            (!is_first).then(|| last.decision.observe(&reported, record_ns, decided.caps.budget_ratio));
        let Some(wanted) = observed.flatten() else { return };
        self.settings.mappings = wanted;
        self.reports.changed = true;
        self.note_while(explain::MAPPINGS_NOT_TOLD, !wanted);
    }
}
