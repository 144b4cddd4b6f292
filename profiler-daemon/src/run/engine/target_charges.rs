//! Many targets under one engine: they share its clocks and its rate, and each pays for its own samples.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use profiler_core::profile::RateChange;
use profiler_core::rate::{Account, Replicas, Spend};
use profiler_core::stats::WeightedSum;

use super::Engine;
use super::parts::{PartFigures, RunFigures};
use crate::cgroup::Cgroup;
use crate::output::DecisionLog;
use crate::sampler::session::{Collected, Counts, Owner, OwnerShare, Owners, Session};
use crate::sys::clock;

/// Samples from which the cost of one target's sample is known.
const FEW: f64 = 50.0;
/// Share of the earlier samples that still counts after a second: samples of about half a minute decide.
const REMEMBERED: f64 = 0.97;
/// A target that uses less than this share of a CPU cannot be slowed down noticeably.
const BARELY_RUNS_CPUS: f64 = 0.01;

/// What all targets were charged.
#[derive(Default)]
pub(super) struct TargetCharges {
    of: BTreeMap<Owner, TargetCharge>,
    /// What had been spent and counted at the last booking, non-target samples included, and its time (ns).
    spent: Spend,
    counted: Counts,
    booked_ns: u64,
    /// Lost samples that were shared out, or that hit processes of no target.
    lost: u64,
}

/// What one target was charged.
struct TargetCharge {
    /// Bound on its slowdown (share of its CPU time).
    budget_ratio: f64,
    /// The replicas of its service.
    replicas: Replicas,
    account: Account,
    /// Since its last cut.
    part: Account,
    /// What had been counted at its last cut, and at its last booking.
    cut: Counts,
    cut_cpu_ns: f64,
    booked: Counts,
    booked_cpu_ns: f64,
    /// Recent samples, frames and bytes, decayed.
    recent: [f64; 3],
    recent_cpus: f64,
    /// Its part of the lost samples.
    lost: f64,
}

/// The status of one target.
#[derive(Clone, Copy)]
pub(crate) struct ShareStatus<'a> {
    /// Since it entered.
    pub(crate) account: &'a Account,
    pub(crate) counts: Counts,
    /// CPU time that it used (ns).
    pub(crate) cpu_ns: u64,
    /// The part of that which is known by samples alone (ns).
    pub(crate) unsure: WeightedSum,
    /// What a sample costs it (ns).
    pub(crate) sample_ns: f64,
}

impl TargetCharge {
    fn new(budget_ratio: f64) -> Self {
        Self {
            budget_ratio,
            replicas: Replicas::ONE,
            account: Account::default(),
            part: Account::default(),
            cut: Counts::default(),
            cut_cpu_ns: 0.0,
            booked: Counts::default(),
            booked_cpu_ns: 0.0,
            recent: [0.0; 3],
            recent_cpus: 0.0,
            lost: 0.0,
        }
    }

    /// Samples, frames and bytes that it was charged for since the last booking.
    fn since(&self, counts: &Counts) -> [f64; 3] {
        let since = counts.since(&self.booked);
        [since.samples as f64, since.frames as f64, since.stack_bytes as f64]
    }

    /// Notes what it used, and its samples, frames and bytes, in the last `wall_ns`. However often that is done, a second counts as much.
    fn note_recent(&mut self, wall_ns: f64, used_ns: f64, since: [f64; 3]) {
        let kept = REMEMBERED.powf(wall_ns * 1e-9);
        self.recent_cpus = kept * self.recent_cpus + (1.0 - kept) * used_ns / wall_ns.max(1.0);
        self.recent.iter_mut().zip(since).for_each(|(sum, count)| *sum = kept * *sum + count);
    }

    /// The cost of one of its samples (ns), from the prices of a sample, a frame and a byte; `None` with too few
    /// samples.
    fn sample_ns(&self, prices_ns: &[f64; 3]) -> Option<f64> {
        let [samples, ..] = self.recent;
        let cost_ns: f64 = self.recent.iter().zip(prices_ns).map(|(count, price)| count * price).sum();
        (samples >= FEW).then(|| cost_ns / samples)
    }
}

impl<L: DecisionLog> Engine<L> {
    /// One more target shares the clocks from now on, with `budget_ratio` as the bound on its slowdown; it may be the
    /// control group `group`. `is_rest`: it also gets the processes of no other target.
    pub(crate) fn enter_share(
        &mut self,
        owner: Owner,
        group: Option<Arc<Cgroup>>,
        budget_ratio: f64,
        is_rest: bool,
    ) {
        let Some(owners) = &mut self.session.counted.owners else { return };
        owners.enter(owner, group, is_rest, clock::monotonic_ns());
        self.shares.of.entry(owner).or_insert_with(|| TargetCharge::new(budget_ratio)).budget_ratio =
            budget_ratio;
    }

    /// The target is one of `replicas` from now on; the rate follows at the next booking.
    pub(crate) fn join_fleet(&mut self, owner: Owner, replicas: Replicas) {
        if let Some(charged) = self.shares.of.get_mut(&owner) {
            charged.replicas = replicas;
        }
    }

    /// The target no longer shares the clocks.
    pub(crate) fn leave_share(&mut self, owner: Owner) {
        if let Some(owners) = &mut self.session.counted.owners {
            owners.end(owner);
        }
        self.shares.of.remove(&owner);
    }

    /// The status of each target.
    pub(crate) fn share_statuses(&self) -> BTreeMap<Owner, ShareStatus<'_>> {
        // Read once, since it is the same for all and costs time.
        let (usual_ns, prices_ns) = (self.controller.cost().target.mean_ns, self.controller.parts_ns());
        let status = |(owner, share): (Owner, &'_ OwnerShare)| {
            let charged = self.shares.of.get(&owner)?;
            let status = ShareStatus {
                account: &charged.account,
                counts: Counts { lost: charged.lost as u64, ..share.counts },
                cpu_ns: share.cpu_ns.max(charged.booked_cpu_ns) as u64,
                unsure: share.unsure,
                sample_ns: charged.sample_ns(&prices_ns).unwrap_or(usual_ns),
            };
            Some((owner, status))
        };
        self.session.counted.owners.iter().flat_map(Owners::shares).filter_map(status).collect()
    }

    /// Books what was spent since the last call on each target, and bounds the rate by the target that is slowed down
    /// most.
    pub(crate) fn book_shares(&mut self) {
        let (Some(owners), now_ns) = (&self.session.counted.owners, clock::monotonic_ns()) else { return };
        let spent = *self.controller.account().spent();
        let since_ns = std::mem::replace(&mut self.shares.booked_ns, now_ns).max(self.session.start_ns());
        let wall_ns = now_ns.saturating_sub(since_ns) as f64;
        let counted =
            self.session.counts.since(&std::mem::replace(&mut self.shares.counted, self.session.counts));
        let all = [counted.samples as f64, counted.frames as f64, counted.stack_bytes as f64];
        // What was spent or lost with no sample beside it is shared out by the next ones.
        let new = match all[0] > 0.0 {
            true => spent.since(&std::mem::replace(&mut self.shares.spent, spent)),
            false => Spend::default(),
        };
        let mut of_each = Vec::new();
        for (owner, share) in owners.shares() {
            let Some(charged) = self.shares.of.get(&owner) else { continue };
            let since = charged.since(&share.counts);
            of_each.push((owner, since, share.counts, share.cpu_ns));
        }
        let lost = self.session.counts.lost.saturating_sub(self.shares.lost);
        let lost = if all[0] > 0.0 { lost } else { 0 };
        self.shares.lost += lost;
        for (owner, since, counts, cpu_ns) in of_each {
            let Some(charged) = self.shares.of.get_mut(&owner) else { continue };
            // Samples that waited for their target arrive here later than in the total that they are a part of.
            let part = |at: usize| if all[at] > 0.0 { (since[at] / all[at]).min(1.0) } else { 0.0 };
            let spend = new.part([part(0), part(1), part(2)]);
            let used_ns = (cpu_ns - charged.booked_cpu_ns).max(0.0);
            charged.account.book(wall_ns, used_ns, &spend);
            charged.part.book(wall_ns, used_ns, &spend);
            charged.lost += lost as f64 * part(0);
            charged.booked = counts;
            charged.booked_cpu_ns += used_ns;
            charged.note_recent(wall_ns, used_ns, since);
        }
        self.bound_rate();
        let fleets = self.shares.of.values().map(|charged| (charged.recent_cpus, charged.replicas));
        self.controller.join_fleet(Replicas::common(fleets));
    }

    /// All targets share one rate: the target that can afford the fewest of its samples bounds it.
    fn bound_rate(&mut self) {
        let prices_ns = self.controller.parts_ns();
        let held_up = self.controller.held_up();
        let bound_hz = |charged: &TargetCharge| {
            let sample_ns = charged.sample_ns(&prices_ns)?;
            Some(charged.budget_ratio / (held_up * sample_ns * 1e-9))
        };
        let running = self.shares.of.values().filter(|charged| charged.recent_cpus >= BARELY_RUNS_CPUS);
        let dearest_hz = running.filter_map(bound_hz).fold(f64::INFINITY, f64::min);
        self.controller.bound_rate(dearest_hz);
    }

    /// What was collected for one target since its last cut, with its figures; the next cut begins here.
    pub(crate) fn cut_share(&mut self, owner: Owner) -> Option<(Collected, RunFigures)> {
        self.catch_up();
        let once = self.session.begin_once();
        self.book_shares();
        let cut = self.session.cut_share(owner);
        let of_all = self.figures();
        let with_figures =
            cut.and_then(|cut| self.share_figures(owner, &cut.span, &of_all).map(|figures| (cut, figures)));
        self.forget_old_history();
        self.session.spent_once(once);
        with_figures
    }

    /// [`Self::cut_share`] for several targets.
    pub(crate) fn cut_shares(&mut self, of: &[Owner]) -> Vec<(Owner, Collected, RunFigures)> {
        self.cut_many(|session| session.cut_shares(of))
    }

    /// [`Self::cut_share`] for all targets.
    pub(crate) fn cut_all_shares(&mut self) -> Vec<(Owner, Collected, RunFigures)> {
        self.cut_many(Session::cut_all_shares)
    }

    /// [`Self::cut_share`] for all targets when sampling has ended.
    pub(crate) fn finish_shares(&mut self) -> Vec<(Owner, Collected, RunFigures)> {
        self.cut_many(Session::finish_shares)
    }

    fn cut_many(
        &mut self,
        cut: impl FnOnce(&mut Session) -> Vec<(Owner, Collected)>,
    ) -> Vec<(Owner, Collected, RunFigures)> {
        self.catch_up();
        let once = self.session.begin_once();
        self.book_shares();
        let collected = cut(&mut self.session);
        let of_all = self.figures();
        let with_figures = collected.into_iter().filter_map(|(owner, collected)| {
            let figures = self.share_figures(owner, &collected.span, &of_all)?;
            Some((owner, collected, figures))
        });
        let all = with_figures.collect();
        self.forget_old_history();
        self.session.spent_once(once);
        all
    }

    /// The figures of one target. `of_all` has what is the same for all.
    fn share_figures(&mut self, owner: Owner, span: &Range<u64>, of_all: &RunFigures) -> Option<RunFigures> {
        let share = self.session.counted.owners.as_ref()?.share(owner)?;
        let (counts, cpu_ns) = (share.counts, share.cpu_ns);
        let charged = self.shares.of.get_mut(&owner)?;
        let counts = Counts { lost: charged.lost as u64, ..counts };
        let since = counts.since(&std::mem::replace(&mut charged.cut, counts));
        let used_ns = (cpu_ns - charged.cut_cpu_ns).max(0.0);
        charged.cut_cpu_ns += used_ns;
        let account = charged.part.take();
        let ago_ns = clock::monotonic_ns().saturating_sub(span.start);
        let part = PartFigures {
            start_unix_ns: clock::unix_ns().saturating_sub(ago_ns),
            duration_ns: span.end.saturating_sub(span.start),
            counts: since,
            target_cpu_ns: used_ns as u64,
            counted_ns: None,
            self_cpu_ns: account.spent().self_ns as u64,
        };
        let history = self.history_since(span.start);
        Some(RunFigures { account, part, setup_cpu_ns: 0, history, ..of_all.clone() })
    }

    /// The rates since `start_ns`, beginning with the one in force then.
    fn history_since(&self, start_ns: u64) -> Vec<RateChange> {
        let at_s = self.since_begin_s(start_ns);
        let later =
            |change: &RateChange| RateChange { at_s: (change.at_s - at_s).max(0.0), ..change.clone() };
        self.history[in_force_at(&self.history, at_s)..].iter().map(later).collect()
    }

    /// Drops rates from before the oldest open window.
    fn forget_old_history(&mut self) {
        if let Some(oldest_ns) = self.session.counted.owners.as_ref().and_then(Owners::oldest_start_ns) {
            let in_force = in_force_at(&self.history, self.since_begin_s(oldest_ns));
            self.history.drain(..in_force);
        }
    }

    fn since_begin_s(&self, at_ns: u64) -> f64 {
        at_ns.saturating_sub(self.part.start_ns) as f64 * 1e-9
    }
}

/// Index of the rate that was in force at `at_s` (s since the run began).
fn in_force_at(history: &[RateChange], at_s: f64) -> usize {
    history.partition_point(|change| change.at_s <= at_s).saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests and windows that end have targets booked many times a second.
    #[test]
    fn what_is_recent_does_not_depend_on_how_often_it_is_booked() {
        let (mut seldom, mut often) = (TargetCharge::new(0.01), TargetCharge::new(0.01));
        for _ in 0..200 {
            seldom.note_recent(1e9, 2e7, [3.0, 30.0, 300.0]);
            often.note_recent(1e9 - 2e6, 2e7, [3.0, 30.0, 300.0]);
            often.note_recent(1e6, 0.0, [0.0; 3]);
            often.note_recent(1e6, 0.0, [0.0; 3]);
        }
        let close = |a: f64, b: f64| (a / b - 1.0).abs() < 0.01;
        assert!(close(seldom.recent_cpus, 0.02) && close(often.recent_cpus, 0.02), "{}", often.recent_cpus);
        assert!(close(seldom.recent[0], often.recent[0]), "{:?} {:?}", seldom.recent, often.recent);
    }

    #[test]
    fn the_rate_in_force_is_the_last_one_that_has_begun() {
        let change = |at_s| RateChange { at_s, rate_hz: 100.0, reason: String::new() };
        let history = [change(0.0), change(2.0), change(5.0)];
        for (at_s, expected) in [(0.0, 0), (1.9, 0), (2.0, 1), (4.0, 1), (5.0, 2), (9.0, 2)] {
            assert_eq!(in_force_at(&history, at_s), expected, "{at_s}");
        }
        assert_eq!(in_force_at(&[], 3.0), 0);
        assert_eq!(in_force_at(&history[1..], 1.0), 0, "what was in force before is forgotten");
    }
}
