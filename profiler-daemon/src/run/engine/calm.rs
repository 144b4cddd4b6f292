//! Steps in which nothing can have changed: they are taken as often as others, and next to nothing is done in them.
//!
//! A step that takes stock costs a quarter of a millisecond where others use the caches meanwhile, most of it to fetch the code
//! that it runs. Ten of them a second were more than a hundred samples of a target that computes.

use profiler_core::rate::{BoundBy, Decision, Dither, Reading, Reason};

use super::pace::LONGEST_STEP_S;
use super::{DecisionLog, Engine};
use crate::sampler::perf::Attachment;

/// Stock is taken this often at least (ns), and as often as this share of the run so far: the anytime law falls quickly at first.
const LONGEST_CALM_NS: u64 = 500_000_000;
const SHARE_OF_RUN: u64 = 10;
/// A step is no calm one where more than this share of a budget is spent in it.
const CALM_SPENDING: f64 = 0.5;
/// What a sample may cost more than is reckoned with.
const CALM_COST: f64 = 1.5;

impl<L: DecisionLog> Engine<L> {
    /// Whether nothing can have come up since stock was taken last that would be decided now: no rate that would change, no
    /// thread or code that has come or gone, no storm, and no more than half of either budget spent. `so_far` is what has
    /// happened since.
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

    /// Whether a storm of switches would be heard of without a look at the threads: by the alarm, or since nobody looks more
    /// often than once a second.
    fn storms_would_ring(&self) -> bool {
        let by_threads = matches!(self.sampler.attachment(), Attachment::Tasks(_));
        let is_looked_at = by_threads && self.sampler.few_threads() || self.switches.linger();
        !is_looked_at || self.has_alarm() && !self.switches.linger()
    }

    fn spends_little(&self, decided: &Decision, so_far: &Reading) -> bool {
        if decided.bound_by == BoundBy::Fixed {
            return true; // no budget is kept
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

    /// Whether the step after a calm one has nothing to do: no period would be redrawn in it, and what may come until the one
    /// after that spends little, whatever a sample costs.
    pub(super) fn may_skip_step(&self) -> bool {
        Dither::redraw_ns(self.settings.period_ns) >= 2 * Dither::redraw_ns(0)
            && self.has_room_for_a_jump(2.0 * LONGEST_STEP_S)
    }

    /// What there is to do in a calm step: periods are redrawn, so that no program's rhythm meets that of its samples.
    pub(super) fn stay_calm(&mut self) {
        self.sampler.redraw();
    }
}

/// Whether the rate stays what it is but for what the law asks for: no budget is at its end.
fn is_settled(decided: &Decision) -> bool {
    let by_law = matches!(decided.bound_by, BoundBy::Law | BoundBy::Floor | BoundBy::Fixed);
    by_law && matches!(decided.reason, Reason::Hold | Reason::Fixed | Reason::Retune)
}
