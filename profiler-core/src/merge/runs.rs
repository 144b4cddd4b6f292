//! What several runs were together.
//!
//! Counts and times add up; ratios and rates are means over the targets' CPU time, and costs of a sample means over the
//! samples, so that each is what one run over all of it would have found; runs that do not state a figure do not
//! count in its mean. Of a run that lies in the range in part, that part of its counts is taken. Standard errors add up like the figures: the runs share a calibration, and err together. Those of
//! other hosts have other calibrations: there variances add up.

use std::collections::BTreeSet;

use super::Range;
use super::notes::MergedNotes;
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
    /// What each mean is over: CPU time (s), or samples.
    weights: Run,
    handler_runs: f64,
    /// The profiler's own CPU time that is held to a budget: without set-up, with samples of other processes (s).
    own_cpu_s: f64,
    changes: Vec<(u64, RateChange)>,
    /// When each was, from and until (ns since the epoch).
    spans: Vec<(u64, u64)>,
    notes: MergedNotes,
}

/// A figure that may be anything: a file holds it.
fn finite(figure: f64) -> f64 {
    if figure.is_finite() { figure } else { 0.0 }
}

/// All of them, in one order.
fn each(parts: &mut OverheadParts) -> [&mut f64; 9] {
    [
        &mut parts.base_ratio,
        &mut parts.frames_ratio,
        &mut parts.stack_ratio,
        &mut parts.unseen_ratio,
        &mut parts.switches_ratio,
        &mut parts.side_records_ratio,
        &mut parts.foreign_ratio,
        &mut parts.self_ratio,
        &mut parts.fixed_ratio,
    ]
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
        self.ratios(run, finite(run.cpu.target_cpu_s).max(0.0) * part);
        self.costs(run, run.counts.samples as f64 * part);
        self.words(run);
        self.notes.add(&run.notes, run.merged_windows, part);
        let lasted_ns = (finite(run.duration_s).max(0.0) * part * 1e9) as u64;
        self.own_cpu_s += finite(run.overhead.own_cpu_ratio) * lasted_ns as f64 * 1e-9;
        self.spans.push((run.start_unix_ns, run.start_unix_ns.saturating_add(lasted_ns)));
        self.changes(run, range);
        self.runs += 1;
    }

    fn counts(&mut self, run: &Run, part: f64) {
        macro_rules! add {
            ($($group:ident.$count:ident),*) => {$(
                let sum = &mut self.sum.$group.$count;
                *sum = sum.saturating_add(part_of(run.$group.$count, part));
            )*};
        }
        add!(
            counts.lost,
            counts.unseen_interrupts,
            counts.undecodable,
            counts.throttled,
            counts.foreign_samples,
            cost.handler_samples,
            rate.retunes
        );
        add!(
            counts.walked_frames,
            counts.copied_bytes,
            counts.outer_frames_from_earlier,
            files.maps_reread,
            files.mappings_dropped,
            files.files_lost,
            files.symbol_evictions,
            files.symbol_rereads
        );
        // The next run meets the same objects again.
        self.sum.files.objects = self.sum.files.objects.max(run.files.objects);
        self.sum.files.symbol_bytes_peak = self.sum.files.symbol_bytes_peak.max(run.files.symbol_bytes_peak);
    }

    fn times(&mut self, run: &Run, part: f64) {
        macro_rules! add {
            ($($group:ident.$seconds:ident),*) => {$(self.sum.$group.$seconds += finite(run.$group.$seconds) * part;)*};
        }
        add!(
            cpu.target_cpu_s,
            cpu.sampling_cpu_s,
            cpu.not_sampled_cpu_s,
            cpu.weight_s,
            cpu.self_cpu_s,
            cpu.setup_cpu_s,
            rate.law_samples
        );
        self.sum.cpu.sampling_cpu_se_s =
            self.errors(self.sum.cpu.sampling_cpu_se_s, finite(run.cpu.sampling_cpu_se_s) * part);
    }

    /// Adds `cpu_s` times each ratio that the run states; [`Self::finish`] divides. Other tools' files state none.
    fn ratios(&mut self, run: &Run, cpu_s: f64) {
        macro_rules! add {
            ($is_stated:expr; $($group:ident: $($ratio:ident),*;)*) => {$($(if $is_stated(run.$group.$ratio) {
                self.sum.$group.$ratio += finite(run.$group.$ratio) * cpu_s;
                self.weights.$group.$ratio += cpu_s;
            })*)*};
        }
        // A target without a sample was not slowed down, and says so with its budget.
        let states_overhead = run.how.confidence > 0.0 || run.overhead.budget_ratio > 0.0;
        add!(
            |_| states_overhead;
            overhead: overhead_ratio, budget_ratio, slowdown_ratio, slowdown_budget_ratio, own_cpu_budget_ratio;
        );
        // Of these 0 says nothing.
        add!(
            |figure| figure > 0.0;
            cost: interrupt_ratio;
            rate: variance_ratio, replicas, rate_hz, optimum_rate_hz, unbounded_rate_hz;
        );
        if states_overhead {
            let mut parts = run.overhead.overhead_parts;
            for (sum, part) in each(&mut self.sum.overhead.overhead_parts).into_iter().zip(each(&mut parts)) {
                *sum += finite(*part) * cpu_s;
            }
        }
        let worst = |a: f64, b: f64| a.max(finite(b));
        self.sum.overhead.overhead_worst_1s_ratio =
            worst(self.sum.overhead.overhead_worst_1s_ratio, run.overhead.overhead_worst_1s_ratio);
        self.sum.overhead.overhead_worst_10s_ratio =
            worst(self.sum.overhead.overhead_worst_10s_ratio, run.overhead.overhead_worst_10s_ratio);
        self.sum.overhead.slowdown_worst_10s_ratio =
            worst(self.sum.overhead.slowdown_worst_10s_ratio, run.overhead.slowdown_worst_10s_ratio);
        self.sum.overhead.own_cpu_worst_10s_ratio =
            worst(self.sum.overhead.own_cpu_worst_10s_ratio, run.overhead.own_cpu_worst_10s_ratio);
    }

    /// Adds `samples` times the cost of each; [`Self::finish`] divides.
    fn costs(&mut self, run: &Run, samples: f64) {
        if run.cost.overhead_us > 0.0 {
            self.sum.cost.overhead_us += finite(run.cost.overhead_us) * samples;
            self.sum.cost.overhead_se_us =
                self.errors(self.sum.cost.overhead_se_us, finite(run.cost.overhead_se_us) * samples);
            self.weights.cost.overhead_us += samples;
        }
        if run.cost.self_us > 0.0 {
            self.sum.cost.self_us += finite(run.cost.self_us) * samples;
            self.weights.cost.self_us += samples;
        }
        if let (Some(handler_us), Some(se_us)) = (run.cost.handler_us, run.cost.handler_se_us) {
            *self.sum.cost.handler_us.get_or_insert_default() += finite(handler_us) * samples;
            let sum_us = self.sum.cost.handler_se_us.unwrap_or_default();
            self.sum.cost.handler_se_us = Some(self.errors(sum_us, finite(se_us) * samples));
            self.handler_runs += samples;
        }
    }

    fn words(&mut self, run: &Run) {
        let first = self.runs == 0;
        macro_rules! common {
            ($($group:ident.$word:ident),*) => {$(
                let (sum, word) = (&mut self.sum.$group.$word, &run.$group.$word);
                if first {
                    sum.clone_from(word);
                } else if sum != word {
                    *sum = SEVERAL.to_owned();
                }
            )*};
        }
        common!(
            cost.handler_time,
            rate.bound_by,
            rate.law,
            how.attach_mode,
            how.event,
            how.unwind,
            how.stopped
        );
        self.sum.cost.overhead_modes = if first { run.cost.overhead_modes.clone() } else { Vec::new() };
        self.sum.how.stack_copy_bytes = self.sum.how.stack_copy_bytes.max(run.how.stack_copy_bytes);
        self.sum.how.confidence =
            if run.how.confidence > 0.0 { run.how.confidence } else { self.sum.how.confidence };
        self.sum.how.precision_goal_ratio = run.how.precision_goal_ratio;
        self.sum.how.seed = run.how.seed;
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
        let sampled_s = sampled_s(&mut self.spans, self.are_independent);
        let own_cpu_s = self.own_cpu_s;
        let mut run = self.sum;
        run.target = targets(&self.targets);
        (run.notes, run.merged_windows) = self.notes.finish();
        run.start_unix_ns = span.from_unix_ns;
        // Of one host, that is a range of time; other hosts may have been sampled on other days.
        run.duration_s = match self.are_independent {
            true => union_s(&mut self.spans),
            false => (span.to_unix_ns - span.from_unix_ns) as f64 * 1e-9,
        };
        run.overhead.own_cpu_ratio = if sampled_s > 0.0 { own_cpu_s / sampled_s } else { 0.0 };
        run.counts.samples = stacks.iter().fold(0, |sum, stack| stack.samples.saturating_add(sum));
        let (taken, sampled_cpu_s) = (
            run.counts.samples.saturating_add(run.counts.lost).saturating_add(run.counts.unseen_interrupts),
            run.cpu.target_cpu_s - run.cpu.not_sampled_cpu_s,
        );
        if self.runs > 1 && run.rate.rate_hz > 0.0 && taken > 0 && sampled_cpu_s > 0.0 {
            run.rate.rate_hz = taken as f64 / sampled_cpu_s; // each run's is the one at its end
        }
        let mut truncated_by = TruncatedBy::default();
        stacks.iter().for_each(|stack| truncated_by.add(stack.outcome, stack.samples));
        (run.counts.truncated, run.counts.truncated_by) = (truncated_by.total(), truncated_by);
        run.counts.complete_ratio = 1.0 - run.counts.truncated as f64 / run.counts.samples.max(1) as f64;
        if self.changes.len() <= MAX_CHANGES {
            self.changes.sort_by_key(|(at, _)| *at);
            let since = |at: u64| at.saturating_sub(span.from_unix_ns) as f64 * 1e-9;
            let change = |(at, change): (u64, RateChange)| RateChange { at_s: since(at), ..change };
            run.rate_history = self.changes.into_iter().map(change).collect();
        }
        run
    }

    fn means(&mut self) {
        let divide = |sum: &mut f64, weight: f64| *sum = if weight > 0.0 { *sum / weight } else { 0.0 };
        macro_rules! means {
            ($($group:ident: $($figure:ident),*;)*) => {$($(
                divide(&mut self.sum.$group.$figure, self.weights.$group.$figure);
            )*)*};
        }
        means!(
            cost: interrupt_ratio, overhead_us, self_us;
            overhead: overhead_ratio, budget_ratio, slowdown_ratio, slowdown_budget_ratio, own_cpu_budget_ratio;
            rate: variance_ratio, replicas, rate_hz, optimum_rate_hz, unbounded_rate_hz;
        );
        divide(&mut self.sum.cost.overhead_se_us, self.weights.cost.overhead_us);
        let parts = each(&mut self.sum.overhead.overhead_parts);
        parts.into_iter().for_each(|part| divide(part, self.weights.overhead.overhead_ratio));
        let per_sample =
            |sum: &mut Option<f64>, samples: f64| *sum = sum.filter(|_| samples > 0.0).map(|us| us / samples);
        per_sample(&mut self.sum.cost.handler_us, self.handler_runs);
        per_sample(&mut self.sum.cost.handler_se_us, self.handler_runs);
    }
}

/// How long all runs took (s): those of other hosts one after the other, of one host without the time between them, and once where
/// several were sampled.
fn sampled_s(spans: &mut [(u64, u64)], are_independent: bool) -> f64 {
    if are_independent {
        return spans.iter().map(|(from, until)| (until - from) as f64 * 1e-9).sum();
    }
    union_s(spans)
}

/// How long any of these spans lasted (s).
fn union_s(spans: &mut [(u64, u64)]) -> f64 {
    spans.sort_unstable();
    let (mut covered_ns, mut covered_until) = (0, 0);
    for &(from, until) in &*spans {
        covered_ns += until.saturating_sub(from.max(covered_until));
        covered_until = covered_until.max(until);
    }
    covered_ns as f64 * 1e-9
}

fn targets(targets: &BTreeSet<String>) -> String {
    let named: Vec<&str> = targets.iter().take(MAX_TARGETS).map(String::as_str).collect();
    let named = named.join(", ");
    match targets.len().saturating_sub(MAX_TARGETS) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}
