//! Which period a sample was taken with, and so how much CPU time it stands for.
//!
//! - The `period` of a sample is the one at open: `PERF_EVENT_IOC_PERIOD` does not change what samples of
//!   `cpu-clock` report, so the period is looked up here by the sample's time.
//! - Setting a period restarts the countdown. What had elapsed is never sampled, and neither is what has
//!   elapsed when a task ends. So the first sample of each time range, and of each inherited clock, stands for
//!   half a period more.
//! - A clock of a task is redrawn only after it has taken samples; otherwise a target that runs for less than a
//!   period between redraws would never be sampled. A clock of a whole CPU is redrawn by time: it keeps running
//!   while the target sleeps, and with a period that divides the target's own it would wait for a sample for
//!   seconds.

use std::collections::VecDeque;

use super::Dither;
use super::dither::REDRAW_SAMPLES;

/// Shortest time between two settings of an event, relative to a usual step: the shortest one less the jitter of its end.
const MIN_SPAN: f64 = 0.8;
/// A wanted period longer by this factor is set at once: the budget is at stake. One that much shorter is set
/// even if no sample came: it would be long in coming.
const MUCH: u64 = 3;
/// Samples that a frequent event takes before a change of its rate. A rare event waits as for a redraw: it spends
/// little, and a setting only discards the expected part of a period after many samples.
const CHANGE_SAMPLES: u32 = 4;
/// A wanted period that differs by this much is a change of rate and not just a redraw (per mille).
const CHANGE_PER_MILLE: u64 = 20;
/// Samples between two steps from which the part of a period that passed by the step is as good as random.
const MIXED: f64 = 4.0;
/// Weight of the latest span in the utilisation of the event.
const UTILISATION_GAIN: f64 = 0.3;

/// Spans that are kept for samples on their way: those of half a minute and more. An idle CPU may take no sample for days.
const MOST_SPANS: usize = 512;

/// A span with one period.
#[derive(Clone, Copy, Debug)]
struct PeriodSpan {
    at_ns: u64,
    period_ns: u64,
    samples: u32,
}

/// The periods of one event over time.
///
/// The kernel stamps samples with the period at open, so their weight is looked up here by time. And setting
/// a period restarts the countdown: what had elapsed of the old one is never sampled; the same goes for what has
/// elapsed when the task or the run ends. The first sample of each span therefore stands for half a period more,
/// the expected part. That is right if settings fall at random into the period;
/// [`due`](Self::due) sees to it.
#[derive(Clone, Debug)]
pub struct PeriodTimeline {
    /// Spans whose samples may still arrive, never empty. The last weighed sample fell into the first one.
    spans: VecDeque<PeriodSpan>,
    /// Time of spans without a sample that no later one stands for yet (ns).
    carry_ns: u64,
    /// CPU time per wall time of this event, 0 to 1.
    utilisation: f64,
    /// The mean period that the one in force was drawn around (ns).
    mean_ns: u64,
    /// Whether its time passes while its task sleeps: that of a whole CPU, of which idle time brings no sample.
    runs_on: bool,
    /// Samples weighed since the last setting, and when the last was taken.
    fresh: u32,
    last_sample_ns: u64,
    due_at_ns: Option<u64>,
}

impl PeriodTimeline {
    /// An event opened at `at_ns` with `period_ns`.
    pub fn new(at_ns: u64, period_ns: u64) -> Self {
        let first = PeriodSpan { at_ns, period_ns: period_ns.max(1), samples: 0 };
        PeriodTimeline {
            spans: VecDeque::from([first]),
            carry_ns: 0,
            utilisation: 0.5,
            mean_ns: period_ns.max(1),
            runs_on: false,
            fresh: 0,
            last_sample_ns: at_ns,
            due_at_ns: None,
        }
    }

    /// Whether its time passes also while nothing that is sampled runs, as that of a whole CPU's clock does.
    pub fn run_on(&mut self, runs_on: bool) {
        self.runs_on = runs_on;
    }

    /// Whether to set the event to a period drawn around `mean_period_ns` now.
    ///
    /// A redraw waits for a step and ten samples; a change of rate for a step and four, if that many come in
    /// one: a task that runs for less than a period between settings would never be sampled. Where samples
    /// are rarer than steps it also waits for a random part of the time between samples, because a setting
    /// right after a sample discards less than half a period.
    pub fn due(&mut self, now_ns: u64, mean_period_ns: u64, dither: &mut Dither) -> bool {
        let set_ns = self.latest().at_ns;
        let elapsed = now_ns.saturating_sub(set_ns);
        if self.runs_on {
            return self.due_after(elapsed, now_ns, mean_period_ns, dither);
        }
        let urgent = mean_period_ns / MUCH > self.mean_ns && self.fresh >= CHANGE_SAMPLES;
        let step_ns = dither.usual_step_ns() as f64;
        if (elapsed as f64) < MIN_SPAN * step_ns && !urgent {
            return false;
        }
        if self.fresh == 0 {
            return mean_period_ns.saturating_mul(MUCH) < self.latest().period_ns;
        }
        let gap_ns = self.last_sample_ns.saturating_sub(set_ns) / u64::from(self.fresh);
        let frequent = gap_ns as f64 * MIXED <= step_ns;
        let changed = self.is_change(mean_period_ns);
        if self.fresh < if changed && frequent { CHANGE_SAMPLES } else { REDRAW_SAMPLES } {
            return false;
        }
        if frequent {
            return true;
        }
        now_ns >= *self.due_at_ns.get_or_insert_with(|| now_ns + dither.delay(gap_ns))
    }

    /// [`due`](Self::due) for an event whose time also passes without samples. It must not wait for them: with a period
    /// that divides a program's own, the program might always be asleep when it expires.
    fn due_after(&mut self, elapsed_ns: u64, now_ns: u64, mean_period_ns: u64, dither: &mut Dither) -> bool {
        let period_ns = self.latest().period_ns;
        let much = mean_period_ns / MUCH > self.mean_ns || self.mean_ns / MUCH > mean_period_ns;
        let least = if self.is_change(mean_period_ns) { CHANGE_SAMPLES } else { REDRAW_SAMPLES };
        let step_ns = dither.usual_step_ns() as f64;
        if !much && ((elapsed_ns as f64) < MIN_SPAN * step_ns || elapsed_ns / period_ns < u64::from(least)) {
            return false;
        }
        let frequent = period_ns as f64 * MIXED <= step_ns;
        much || frequent || now_ns >= *self.due_at_ns.get_or_insert_with(|| now_ns + dither.delay(period_ns))
    }

    fn is_change(&self, mean_period_ns: u64) -> bool {
        self.mean_ns.abs_diff(mean_period_ns) > self.mean_ns / 1_000 * CHANGE_PER_MILLE
    }

    /// Notes that the event was set to `period_ns`, drawn around `mean_period_ns`; `at_ns` is read right
    /// after the call.
    pub fn set(&mut self, at_ns: u64, period_ns: u64, mean_period_ns: u64) {
        let at_ns = at_ns.max(self.latest().at_ns);
        while self.spans.len() >= MOST_SPANS {
            self.leave_span();
        }
        self.spans.push_back(PeriodSpan { at_ns, period_ns: period_ns.max(1), samples: 0 });
        (self.mean_ns, self.fresh, self.last_sample_ns, self.due_at_ns) =
            (mean_period_ns.max(1), 0, at_ns, None);
    }

    /// The CPU time that a sample taken at `time_ns` stands for (ns). Samples must come in the order of their
    /// times; they may be weighed long after later settings.
    pub fn weight(&mut self, time_ns: u64) -> u64 {
        while self.spans.get(1).is_some_and(|next| next.at_ns <= time_ns) {
            self.leave_span();
        }
        let latest = self.latest().at_ns;
        if time_ns >= latest {
            self.fresh = self.fresh.saturating_add(1);
            self.last_sample_ns = time_ns;
        }
        let span = &mut self.spans[0];
        let is_first = span.samples == 0;
        span.samples = span.samples.saturating_add(1);
        let cut_off_ns = match (is_first, self.runs_on) {
            (false, _) => 0,
            // Of the half period that is cut off, the part in which the CPU was busy.
            (true, true) => (0.5 * self.utilisation * span.period_ns as f64) as u64,
            (true, false) => span.period_ns / 2,
        };
        span.period_ns.saturating_add(cut_off_ns).saturating_add(std::mem::take(&mut self.carry_ns))
    }

    /// The period in force after the last setting (ns).
    pub fn period_ns(&self) -> u64 {
        self.latest().period_ns
    }

    fn latest(&self) -> &PeriodSpan {
        &self.spans[self.spans.len() - 1]
    }

    fn leave_span(&mut self) {
        let Some(old) = self.spans.pop_front() else { return };
        let wall_ns = self.spans[0].at_ns.saturating_sub(old.at_ns).max(1) as f64;
        let period_ns = old.period_ns as f64;
        if old.samples > 0 || self.runs_on {
            let cut_off = if self.runs_on { 0.0 } else { 0.5 };
            let used = (f64::from(old.samples) + cut_off) * period_ns;
            self.utilisation += UTILISATION_GAIN * ((used / wall_ns).min(1.0) - self.utilisation);
            return;
        }
        // It ran for less than a period; how long can only be estimated from its usual utilisation. The more time there
        // was for a sample, the less that is believed.
        let ran_ns = (self.utilisation * wall_ns).min(period_ns);
        self.utilisation = ran_ns / wall_ns * (1.0 - UTILISATION_GAIN * (wall_ns / period_ns).min(1.0));
        self.carry_ns = self.carry_ns.saturating_add(ran_ns as u64);
    }
}

#[cfg(test)]
mod tests;
