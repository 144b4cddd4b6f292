//! Calm steps, in which nothing can have changed: they come as often as full ones, but do almost nothing.
//!
//! A step that takes stock costs a quarter of a millisecond where others use the caches meanwhile, most of it to fetch the code
//! that it runs. Ten of them a second were more than a hundred samples of a target that computes.

use profiler_core::rate::{BoundBy, Decision, Dither, Reading, Reason};

use super::pace::LONGEST_STEP_S;
use super::{DecisionLog, Engine};
use crate::sampler::perf::Attachment;

/// A full step is taken at least this often (ns), and once in `SHARE_OF_RUN` of the run so far: the anytime law falls
/// quickly at first.
const LONGEST_CALM_NS: u64 = 500_000_000;
const SHARE_OF_RUN: u64 = 10;
/// A step is not calm if it spends more than this share of a budget.
const CALM_SPENDING: f64 = 0.5;
/// A step is not calm if its samples cost more than this multiple of the usual cost.
const CALM_COST: f64 = 1.5;

impl<L: DecisionLog> Engine<L> {
    /// Whether nothing has happened since the last full step (`so_far`) that a full step would act on: no change of the
    /// rate, no thread or code that came or went, no storm of switches, and at most half of either budget spent.
    pub(super) fn is_calm(&self, now_ns: u64, so_far: &Reading) -> bool {
        let pause_ns = now_ns.saturating_sub(self.stepped_ns) + self.slack_ns();
        let longest_ns = LONGEST_CALM_NS.min(self.session.elapsed_ns() / SHARE_OF_RUN);
        pause_ns < longest_ns
            && now_ns < self.next_second_ns
            && self.resting.is_none() // whose steps get rarer instead
            && !self.sampler.is_inside()
            && self.storms_would_ring()
            && !self.session.awaits_reading()
            && so_far.side_records + so_far.forks + so_far.foreign_side_records + so_far.lost == 0
            && self.last_decision.is_some_and(|decided| is_settled(&decided) && self.spends_little(&decided, so_far))
    }

    /// Whether a storm of switches would be noticed without reading the threads' switches now: by the alarm, or because
    /// they are only read once a second anyway.
    fn storms_would_ring(&self) -> bool {
        let by_threads = matches!(self.sampler.attachment(), Attachment::Tasks(_));
        let is_looked_at = by_threads && self.sampler.few_threads() || self.switches.linger();
        !is_looked_at || self.has_alarm() && !self.switches.linger()
    }

    fn spends_little(&self, decided: &Decision, so_far: &Reading) -> bool {
        if decided.bound_by == BoundBy::Fixed {
            return true; // there is no budget to keep
        }
        let samples = so_far.samples.max(1) as f64;
        let sample = self.costs.sample(so_far.frames as f64 / samples, so_far.stack_bytes as f64 / samples);
        let usual_ns = self.controller.cost().target.mean_ns;
        let slowdown_ratio = self.controller.held_up() * usual_ns * 1e-9 * decided.rate_hz;
        let wall_ns = so_far.at_ns.saturating_sub(self.stepped_ns).max(1) as f64;
        let own_ns =
            so_far.self_cpu_ns as f64 + so_far.foreign_samples as f64 * self.costs.per_sample_ns.mean_ns;
        let own_ratio =
            decided.own_cpu_budget_ratio.or(decided.granted_ratio).unwrap_or(decided.budget_ratio);
        sample.mean_ns <= CALM_COST * usual_ns
            && slowdown_ratio <= CALM_SPENDING * decided.budget_ratio
            && own_ns <= CALM_SPENDING * own_ratio * wall_ns
    }

    /// Whether the step after a calm one can be skipped: it would redraw no period, and even the most expensive samples
    /// until the step after it spend little.
    pub(super) fn may_skip_step(&self) -> bool {
        Dither::redraw_ns(self.settings.period_ns) >= 2 * Dither::redraw_ns(0)
            && self.has_room_for_a_jump(2.0 * LONGEST_STEP_S)
    }

    /// A calm step only redraws periods, so that samples do not lock onto a program's own rhythm.
    pub(super) fn stay_calm(&mut self) {
        self.sampler.redraw();
    }
}

/// Whether only the law can change the rate: no budget is used up.
fn is_settled(decided: &Decision) -> bool {
    let by_law = matches!(decided.bound_by, BoundBy::Law | BoundBy::Floor | BoundBy::Fixed);
    by_law && matches!(decided.reason, Reason::Hold | Reason::Fixed | Reason::Retune)
}
