//! Calm steps, in which nothing can have changed: they come as often as full ones, but do almost nothing.
//!
//! A step that takes stock costs a quarter of a millisecond where others use the caches meanwhile, most of it to fetch the code
//! that it runs. Ten of them a second were more than a hundred samples of a target that computes.

use profiler_core::rate::{BoundBy, Decision, Dither, RateReason, Reading};

use super::Engine;
use super::pace::LONGEST_STEP_S;
use crate::output::DecisionLog;
use crate::sampler::source::Attachment;

/// A full step is taken at least this often (ns), and once in `SHARE_OF_RUN` of the run so far: the anytime law falls
/// quickly at first. A step lasts for an eighth of the run then, so that every other one may be calm.
const LONGEST_CALM_NS: u64 = 500_000_000;
const SHARE_OF_RUN: u64 = 5;
/// A step is not calm if it spends more than this share of a budget.
const CALM_SPENDING: f64 = 0.5;
/// A step is not calm if its samples cost more than this multiple of the usual cost.
const CALM_COST: f64 = 1.5;

impl<L: DecisionLog> Engine<L> {
    /// Whether nothing has happened since the last full step (`so_far`) that a full step would act on: no change of the
    /// rate, no thread or code that came or went, no storm of switches, and at most half of either budget spent.
    pub(super) fn is_calm(&self, now_ns: u64, so_far: &Reading) -> bool {
        let pause_ns = now_ns.saturating_sub(self.pace.stepped_ns) + self.slack_ns();
        pause_ns < self.longest_calm_ns()
            && now_ns < self.pace.next_second_ns
            && self.pace.resting.is_none() // whose steps get rarer instead
            && !self.nature.times_itself
            && self.storms_would_ring()
            && !self.session.awaits_reading()
            && so_far.side_records + so_far.forks + so_far.foreign_side_records + so_far.lost == 0
            && self.last_decision.is_some_and(|decided| is_settled(&decided) && self.spends_little(&decided, so_far))
    }

    /// Whether a storm of switches would be noticed without reading the threads' switches now: by the alarm, or because
    /// they are only read once a second anyway.
    fn storms_would_ring(&self) -> bool {
        let by_threads = matches!(self.sampler.attachment(), Attachment::Tasks(_));
        let is_looked_at = by_threads && self.sampler.few_threads() || self.attaching.switches.linger();
        !is_looked_at || self.has_alarm() && !self.attaching.switches.linger()
    }

    fn spends_little(&self, decided: &Decision, so_far: &Reading) -> bool {
        if decided.bound_by == BoundBy::Fixed {
            return true; // there is no budget to keep
        }
        let samples = so_far.samples.max(1) as f64;
        let sample =
            self.costs.model.sample(so_far.frames as f64 / samples, so_far.stack_bytes as f64 / samples);
        let usual_ns = self.controller.cost().target.mean_ns;
        let slowdown_ratio = self.controller.held_up() * usual_ns * 1e-9 * decided.rate_hz;
        let wall_ns = so_far.at_ns.saturating_sub(self.pace.stepped_ns).max(1) as f64;
        let own_ns = so_far.self_cpu_ns as f64
            + so_far.foreign_samples as f64 * self.costs.model.per_sample_ns.mean_ns;
        let own_ratio = decided
            .caps
            .own_cpu_budget_ratio
            .or(decided.caps.granted_ratio)
            .unwrap_or(decided.caps.budget_ratio);
        sample.mean_ns <= CALM_COST * usual_ns
            && slowdown_ratio <= CALM_SPENDING * decided.caps.budget_ratio
            && own_ns <= CALM_SPENDING * own_ratio * wall_ns
    }

    /// Time until the step after a calm one, if it usually takes `step_ns` (ns).
    pub(super) fn calm_pause_ns(&self, now_ns: u64, step_ns: u64) -> u64 {
        let has_room = |steps: u64| self.has_room_for_a_jump(steps as f64 * LONGEST_STEP_S);
        let longest_ns = (self.pace.stepped_ns + self.longest_calm_ns()).saturating_sub(now_ns);
        (step_ns * steps_at_once(self.settings.period_ns, has_room)).min(longest_ns.max(step_ns))
    }

    /// The longest time between two full steps (ns).
    fn longest_calm_ns(&self) -> u64 {
        LONGEST_CALM_NS.min(self.session.elapsed_ns() / SHARE_OF_RUN)
    }

    /// A calm step only redraws periods, so that samples do not lock onto a program's own rhythm.
    pub(super) fn stay_calm(&mut self) {
        self.sampler.redraw();
    }
}

/// How many steps the step after a calm one stands for: those before it would redraw no period, and even the most expensive samples
/// meanwhile spend little.
fn steps_at_once(period_ns: u64, has_room: impl Fn(u64) -> bool) -> u64 {
    let until_redraw = Dither::steps_to_redraw(period_ns);
    [4, 2].into_iter().find(|&steps| steps <= until_redraw && has_room(steps)).unwrap_or(1)
}

/// Whether only the law can change the rate: no budget is used up.
fn is_settled(decided: &Decision) -> bool {
    let by_law = matches!(decided.bound_by, BoundBy::Law | BoundBy::Floor | BoundBy::Fixed);
    by_law && matches!(decided.reason, RateReason::Hold | RateReason::Fixed | RateReason::Retune)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_that_would_redraw_nothing_are_left_out_as_long_as_that_is_cheap() {
        let steps = |period_ns| steps_at_once(period_ns, |_| true);
        assert_eq!([1_000_000, 10_000_000, 20_000_000, 40_000_000, u64::MAX].map(steps), [1, 1, 2, 4, 4]);
        assert_eq!(steps_at_once(u64::MAX, |steps| steps <= 2), 2);
        assert_eq!(steps_at_once(u64::MAX, |_| false), 1);
    }
}
