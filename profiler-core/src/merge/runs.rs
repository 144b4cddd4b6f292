//! What several runs were together.
//!
//! Counts and times add up; ratios and rates are means over the targets' CPU time, and costs of a sample means over the
//! samples, so that each is what one run over all of it would have found. Of a run that lies in the range in part, that
//! part of its counts is taken. Standard errors add up like the figures: the runs share a calibration, and err together. Those of
//! other hosts have other calibrations: there variances add up.

use std::collections::BTreeSet;

use super::Range;
use super::notes::Notes;
use crate::profile::{OverheadParts, RateChange, Run, TruncatedBy, WeightedStack};

/// Targets that a sum names.
const MAX_TARGETS: usize = 5;
/// Changes of the rate that a sum has; of more, none are shown.
const MAX_CHANGES: usize = 1000;
/// Said where the runs differ.
const SEVERAL: &str = "several";

/// The sum of runs.
#[derive(Default)]
pub(super) struct Runs {
    sum: Run,
    runs: usize,
    targets: BTreeSet<String>,
    /// Whether each run is of another host.
    are_independent: bool,
    /// CPU time that the means are over (s).
    cpu_s: f64,
    /// Samples that the means are over.
    samples: f64,
    handler_runs: f64,
    /// CPU time of those that say what interrupts cost (s).
    interrupts_cpu_s: f64,
    changes: Vec<(u64, RateChange)>,
    notes: Notes,
}

/// A figure that may be anything: a file holds it.
fn finite(figure: f64) -> f64 {
    if figure.is_finite() { figure } else { 0.0 }
}

/// The part of a count, to the next whole number.
pub(super) fn part_of(count: u64, part: f64) -> u64 {
    if part >= 1.0 { count } else { (count as f64 * part).round() as u64 }
}

impl Runs {
    /// Runs of as many hosts.
    pub(super) fn independent() -> Self {
        Self { are_independent: true, ..Self::default() }
    }

    /// Two standard errors, or a sum of them and another.
    fn errors(&self, one: f64, other: f64) -> f64 {
        if self.are_independent { one.hypot(other) } else { one + other }
    }

    /// Adds a `part` (0 to 1) of `run`, all of which that lies in `range`.
    pub(super) fn add(&mut self, run: &Run, part: f64, range: Range) {
        let part = finite(part).clamp(0.0, 1.0);
        self.targets.insert(run.target.clone());
        self.counts(run, part);
        self.times(run, part);
        self.ratios(run, finite(run.target_cpu_s).max(0.0) * part);
        self.costs(run, run.samples as f64 * part);
        self.words(run);
        self.notes.add(&run.notes, run.merged_windows, part);
        self.changes(run, range);
        self.runs += 1;
    }

    fn counts(&mut self, run: &Run, part: f64) {
        macro_rules! add {
            ($($count:ident),*) => {$(
                self.sum.$count = self.sum.$count.saturating_add(part_of(run.$count, part));
            )*};
        }
        add!(lost, undecodable, throttled, foreign_samples, handler_samples, retunes);
        add!(
            walked_frames,
            copied_bytes,
            outer_frames_from_earlier,
            maps_reread,
            mappings_dropped,
            files_lost,
            symbol_evictions,
            symbol_rereads
        );
        // The next run meets the same objects again.
        self.sum.objects = self.sum.objects.max(run.objects);
        self.sum.symbol_bytes_peak = self.sum.symbol_bytes_peak.max(run.symbol_bytes_peak);
    }

    fn times(&mut self, run: &Run, part: f64) {
        macro_rules! add {
            ($($seconds:ident),*) => {$(self.sum.$seconds += finite(run.$seconds) * part;)*};
        }
        add!(target_cpu_s, sampling_cpu_s, not_sampled_cpu_s, weight_s, self_cpu_s, setup_cpu_s, law_samples);
        self.sum.sampling_cpu_se_s =
            self.errors(self.sum.sampling_cpu_se_s, finite(run.sampling_cpu_se_s) * part);
    }

    /// Adds `cpu_s` times each ratio; [`Self::finish`] divides.
    fn ratios(&mut self, run: &Run, cpu_s: f64) {
        macro_rules! add {
            ($sum:expr, $of:expr; $($ratio:ident),*) => {$($sum.$ratio += finite($of.$ratio) * cpu_s;)*};
        }
        add!(self.sum, run; overhead_ratio, budget_ratio, slowdown_ratio, slowdown_budget_ratio, own_cpu_budget_ratio,
            variance_ratio, replicas);
        if run.interrupt_ratio > 0.0 {
            self.sum.interrupt_ratio += finite(run.interrupt_ratio) * cpu_s;
            self.interrupts_cpu_s += cpu_s;
        }
        add!(self.sum, run; rate_hz, optimum_rate_hz, unbounded_rate_hz);
        add!(
            self.sum.overhead_parts, run.overhead_parts;
            base_ratio, frames_ratio, stack_ratio, switches_ratio, side_records_ratio, foreign_ratio, self_ratio,
            fixed_ratio
        );
        let worst = |a: f64, b: f64| a.max(finite(b));
        self.sum.overhead_worst_1s_ratio =
            worst(self.sum.overhead_worst_1s_ratio, run.overhead_worst_1s_ratio);
        self.sum.overhead_worst_10s_ratio =
            worst(self.sum.overhead_worst_10s_ratio, run.overhead_worst_10s_ratio);
        self.sum.slowdown_worst_10s_ratio =
            worst(self.sum.slowdown_worst_10s_ratio, run.slowdown_worst_10s_ratio);
        self.sum.own_cpu_worst_10s_ratio =
            worst(self.sum.own_cpu_worst_10s_ratio, run.own_cpu_worst_10s_ratio);
        self.cpu_s += cpu_s;
    }

    /// Adds `samples` times the cost of each; [`Self::finish`] divides.
    fn costs(&mut self, run: &Run, samples: f64) {
        self.sum.overhead_us += finite(run.overhead_us) * samples;
        self.sum.overhead_se_us = self.errors(self.sum.overhead_se_us, finite(run.overhead_se_us) * samples);
        self.sum.self_us += finite(run.self_us) * samples;
        if let (Some(handler_us), Some(se_us)) = (run.handler_us, run.handler_se_us) {
            *self.sum.handler_us.get_or_insert_default() += finite(handler_us) * samples;
            let sum_us = self.sum.handler_se_us.unwrap_or_default();
            self.sum.handler_se_us = Some(self.errors(sum_us, finite(se_us) * samples));
            self.handler_runs += samples;
        }
        self.samples += samples;
    }

    fn words(&mut self, run: &Run) {
        let first = self.runs == 0;
        macro_rules! common {
            ($($word:ident),*) => {$(
                if first {
                    self.sum.$word = run.$word.clone();
                } else if self.sum.$word != run.$word {
                    self.sum.$word = SEVERAL.to_owned();
                }
            )*};
        }
        common!(handler_time, bound_by, law, attach_mode, event, unwind, stopped);
        self.sum.overhead_modes = if first { run.overhead_modes.clone() } else { Vec::new() };
        self.sum.stack_copy_bytes = self.sum.stack_copy_bytes.max(run.stack_copy_bytes);
        self.sum.confidence = if run.confidence > 0.0 { run.confidence } else { self.sum.confidence };
        self.sum.precision_goal_ratio = run.precision_goal_ratio;
        self.sum.seed = run.seed;
    }

    fn changes(&mut self, run: &Run, range: Range) {
        for change in &run.rate_history {
            let at_unix_ns = run.start_unix_ns.saturating_add((finite(change.at_s).max(0.0) * 1e9) as u64);
            if self.changes.len() <= MAX_CHANGES && range.contains(at_unix_ns) {
                self.changes.push((at_unix_ns, change.clone()));
            }
        }
    }

    /// The run of all of them: `stacks` in `span`.
    pub(super) fn finish(mut self, stacks: &[WeightedStack], span: Range) -> Run {
        self.means();
        let mut run = self.sum;
        run.target = targets(&self.targets);
        (run.notes, run.merged_windows) = self.notes.finish();
        run.start_unix_ns = span.from_unix_ns;
        run.duration_s = (span.to_unix_ns - span.from_unix_ns) as f64 * 1e-9;
        run.own_cpu_ratio = if run.duration_s > 0.0 { run.self_cpu_s / run.duration_s } else { 0.0 };
        run.samples = stacks.iter().fold(0, |sum, stack| stack.samples.saturating_add(sum));
        let mut truncated_by = TruncatedBy::default();
        stacks.iter().for_each(|stack| truncated_by.add(stack.outcome, stack.samples));
        (run.truncated, run.truncated_by) = (truncated_by.total(), truncated_by);
        run.complete_ratio = 1.0 - run.truncated as f64 / run.samples.max(1) as f64;
        if self.changes.len() <= MAX_CHANGES {
            self.changes.sort_by_key(|(at, _)| *at);
            let since = |at: u64| at.saturating_sub(span.from_unix_ns) as f64 * 1e-9;
            let change = |(at, change): (u64, RateChange)| RateChange { at_s: since(at), ..change };
            run.rate_history = self.changes.into_iter().map(change).collect();
        }
        run
    }

    fn means(&mut self) {
        macro_rules! divide {
            ($of:expr, $by:expr; $($figure:ident),*) => {$($of.$figure /= $by;)*};
        }
        if self.cpu_s > 0.0 {
            divide!(
                self.sum, self.cpu_s;
                overhead_ratio, budget_ratio, slowdown_ratio, slowdown_budget_ratio, own_cpu_budget_ratio, variance_ratio,
                replicas, rate_hz, optimum_rate_hz, unbounded_rate_hz
            );
            divide!(
                self.sum.overhead_parts, self.cpu_s;
                base_ratio, frames_ratio, stack_ratio, switches_ratio, side_records_ratio, foreign_ratio, self_ratio,
                fixed_ratio
            );
        } else {
            self.sum.overhead_parts = OverheadParts::default();
        }
        if self.interrupts_cpu_s > 0.0 {
            self.sum.interrupt_ratio /= self.interrupts_cpu_s;
        }
        if self.samples > 0.0 {
            divide!(self.sum, self.samples; overhead_us, overhead_se_us, self_us);
        }
        let per_sample =
            |sum: &mut Option<f64>, samples: f64| *sum = sum.filter(|_| samples > 0.0).map(|us| us / samples);
        per_sample(&mut self.sum.handler_us, self.handler_runs);
        per_sample(&mut self.sum.handler_se_us, self.handler_runs);
    }
}

fn targets(targets: &BTreeSet<String>) -> String {
    let named: Vec<&str> = targets.iter().take(MAX_TARGETS).map(String::as_str).collect();
    let named = named.join(", ");
    match targets.len().saturating_sub(MAX_TARGETS) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}
