//! A change of a target's sampling settings. A new budget is adopted by the controller under the existing
//! events; a new way to sample opens new events next to the old ones, and one moment separates the samples that
//! count.

use config::SamplingSettings;

use super::{Retry, Watched};
use crate::daemon::window_writer::PendingWindow;
use crate::run::Setup;
use crate::service::state::TargetState;

impl Watched {
    /// Requests other sampling settings. A change that only concerns the controller takes effect now, under the
    /// existing events; other events take a while to open, so [`Self::resample`] does it later.
    pub(crate) fn ask_for(&mut self, sampling: SamplingSettings, setup: &Setup) -> Option<PendingWindow> {
        self.wanted = None;
        if sampling == self.sampling {
            return None;
        }
        self.attempts.retry = Retry::default(); // these may be what it takes
        if !self.is_sampled() {
            self.sampling = sampling;
            return None;
        }
        if self.shares() {
            self.wanted = Some(sampling);
            return None;
        }
        if !differ_in_control_alone(&self.sampling, &sampling) {
            self.wanted = Some(sampling);
            return None;
        }
        let pending = self.cut(setup); // the figures of a window are those of one budget
        self.sampling = sampling;
        if let Some(sampled) = &mut self.sampled {
            sampled.engine.adopt(&self.sampling);
        }
        pending
    }

    /// Looks, after a scan, whether the target has events of a control group that it no longer is: they also count processes of the group
    /// that have joined other targets. Events of its own processes take their place. If it has no process, they stay for the next one,
    /// unless others are in the group.
    pub(crate) fn check_group(&mut self, now_ns: u64) {
        let Some(sampled) = &mut self.sampled else { return };
        let is_divided = sampled.engine.session.group().is_some() && self.identity.group.is_none();
        let is_others = is_divided && self.processes.is_empty() && sampled.engine.group_has_others();
        sampled.scans_without_own = if is_others { sampled.scans_without_own + 1 } else { 0 };
        if is_divided && !self.processes.is_empty() && now_ns >= self.attempts.retry.at_ns() {
            self.wanted.get_or_insert(self.sampling.clone());
        }
    }

    /// Whether other events are to be opened for it.
    pub(crate) fn is_to_be_resampled(&self) -> bool {
        self.wanted.is_some()
    }

    /// Opens them if so, and closes the old ones once the new ones run. One moment separates the samples that count. The old ones stay
    /// if events for the same settings cannot be opened.
    pub(crate) fn resample(&mut self, setup: &Setup, now_ns: u64) -> Option<PendingWindow> {
        let before = std::mem::replace(&mut self.sampling, self.wanted.take()?);
        let mut old = self.sampled.take()?;
        self.open(setup, self.selector(), None, now_ns);
        let new = self.sampled.take();
        if new.is_none() && before == self.sampling {
            // The next scan asks for new ones again.
            (self.sampled, self.state, self.reason) = (Some(old), TargetState::Sampled, None);
            return None;
        }
        if let Some(new) = &new {
            old.engine.session.count_until(new.engine.session.start_ns());
        }
        // The old window ends as it was sampled.
        let after = std::mem::replace(&mut self.sampling, before);
        old.engine.session.own_time.enter();
        old.engine.stop();
        old.engine.session.own_time.leave();
        self.sampled = Some(old);
        let pending = self.cut(setup);
        (self.before, self.before_own) = (self.totals(), self.own_totals());
        (self.sampled, self.sampling) = (new, after);
        if let Some((sampled, pending)) = self.sampled.as_mut().zip(pending.as_ref()) {
            sampled.from_ns = pending.window.to_ns; // without a gap, and without counting anything twice
        }
        pending
    }
}

/// Whether the two settings only differ in how the rate is chosen.
pub(in super::super) fn differ_in_control_alone(old: &SamplingSettings, new: &SamplingSettings) -> bool {
    let SamplingSettings { budget, own_cpu, horizon, rate, criterion, threads, confidence, .. } = new.clone();
    SamplingSettings { budget, own_cpu, horizon, rate, criterion, threads, confidence, ..old.clone() } == *new
}

#[cfg(test)]
mod tests {
    use config::Unwind;

    use super::*;

    #[test]
    fn a_budget_needs_no_other_events_and_another_way_to_unwind_does() {
        let old = SamplingSettings::default();
        let other = SamplingSettings {
            budget: "3%".parse().unwrap(),
            horizon: Some("5s".parse().unwrap()),
            rate: Some("99Hz".parse().unwrap()),
            confidence: "90%".parse().unwrap(),
            ..old.clone()
        };
        assert!(differ_in_control_alone(&old, &other));
        let unwound = SamplingSettings { unwind: Unwind::Dwarf, ..other };
        assert!(!differ_in_control_alone(&old, &unwound));
    }
}
