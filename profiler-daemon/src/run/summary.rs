//! The end of a run: its figures, names and outputs.
//!
//! - What sampling added is removed where weights become CPU time, so that all outputs agree. The scheduler's
//!   time includes samples and context switches; weights that are not scaled to it include samples only,
//!   because each period begins with the interrupt of the sample before.
//! - Without permission to sample the kernel, weights are not scaled: the time in the kernel is missing,
//!   rightly.
//! - Weights of agents are not scaled up either. CPU time beyond that of threads with a timer was used by
//!   programs without an agent, or by threads that were too short, and is reported separately
//!   (`not_sampled_cpu_s`): distributed, it would become other functions' time, outside of their intervals.

use anyhow::{Context, Result};
use config::{Ratio, SamplingSettings};
use profiler_core::profile::{
    CostFigures, CpuTimes, FileFigures, HowSampled, Measure, Outcome, OverheadFigures, OverheadParts,
    PredictedFigures, RateChange, RateFigures, Run, SampleCounts,
};
use profiler_core::rate::{Account, Decision, Prediction, RateReason};

use super::engine::{Engine, PartFigures, RunFigures, SamplingMode};
use super::follow::Stop;
use super::signals::CancelBySignal;
use super::{Setup, names};
use crate::debuginfod;
use crate::output::Outputs;
use crate::sampler::session::{Collected, Counts};

/// Largest share of the CPU time that is subtracted for sampling: a calibration that exceeds it is wrong, and functions
/// would vanish.
const MOST_SAMPLING: f64 = 0.9;
/// The note of a run in which that was subtracted.
const TOO_MUCH_SAMPLING: &str = "the estimated cost of sampling is 90% of the CPU time or more, so the functions' seconds are not to be trusted; \
                                 use a lower --rate, or leave it out";
/// Share of stacks without outer frames from which the user is informed.
const TRUNCATED_WORTH_A_NOTE: f64 = 0.005;

/// CPU time that was not sampled, as a share of all and in seconds, from which the user learns why.
const NOT_SAMPLED_WORTH_A_NOTE: f64 = 0.05;
const NOT_SAMPLED_WORTH_A_NOTE_S: f64 = 0.1;

/// Names what was collected and writes every output.
pub(super) fn deliver(
    engine: Engine<Outputs>,
    setup: &Setup,
    sampling: &SamplingSettings,
    debuginfod: Option<&debuginfod::DebuginfodSettings>,
    target: String,
    stop: Stop,
) -> Result<()> {
    let (collected, figures, outputs) = engine.end();
    let (mut run, scale) = run(&figures, &collected, setup, sampling, target);
    run.how.stopped = stop.as_str().to_owned();
    let servers = debuginfod.map(|settings| debuginfod::Servers::new(settings.clone()));
    let cancel = names::CancelFlag::default();
    let _cancelled = CancelBySignal::new(&cancel).context("signals could not be caught")?;
    let profile = names::symbolize(collected, scale, run, servers.as_ref(), &cancel, &mut || ());
    outputs.deliver(&profile)
}

/// The description of a run, or of a window of it, for its profile; and the factor from weights to CPU time of the
/// target.
pub(crate) fn run(
    figures: &RunFigures,
    collected: &Collected,
    setup: &Setup,
    sampling: &SamplingSettings,
    target: String,
) -> (Run, f64) {
    let mut run = figures_of(figures, setup, sampling, target);
    run.cpu.weight_s = collected.weight_ns() * 1e-9;
    let seen = match (figures.how.nature.runs_in_target, figures.how.kernel_seen) {
        (true, _) => VisiblePart::Agents,
        (false, true) => VisiblePart::Everything,
        (false, false) => VisiblePart::UserCode,
    };
    let sampled_s = match seen {
        VisiblePart::Everything => figures.part.counted_ns.map(|counted_ns| counted_ns as f64 * 1e-9),
        VisiblePart::UserCode | VisiblePart::Agents => None,
    };
    let scale = compensate(&mut run, &figures.account, seen, sampled_s) * undone(collected);
    let worth_s = (NOT_SAMPLED_WORTH_A_NOTE * run.cpu.target_cpu_s).max(NOT_SAMPLED_WORTH_A_NOTE_S);
    if run.cpu.not_sampled_cpu_s > worth_s {
        run.notes.push(not_sampled(&run, seen));
    }
    (run, scale)
}

/// Factor from the samples' time without their cost to that with it: the cost was subtracted function by function.
fn undone(collected: &Collected) -> f64 {
    let counted_ns = collected.counted.weight_ns();
    if counted_ns > 0.0 { collected.weight_ns() / counted_ns } else { 1.0 }
}

fn not_sampled(run: &Run, seen: VisiblePart) -> String {
    let whose = match seen {
        VisiblePart::Agents => {
            "programs without the library (static, musl, with other rights), or threads that were too \
             short, started late or cannot be signalled"
        }
        VisiblePart::Everything | VisiblePart::UserCode => {
            "processes at their end, when Linux frees their memory (since 6.16 it ends events before that), \
             or processes that had no event for a moment or could not be attached to"
        }
    };
    let share = run.cpu.not_sampled_cpu_s / run.cpu.target_cpu_s * 100.0;
    format!("{share:.0}% of the CPU time was not sampled and is in no function; it was used by {whose}")
}

/// What of the target can be sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VisiblePart {
    /// All of it.
    Everything,
    /// All but what the kernel does for it.
    UserCode,
    /// All threads with an agent's timer.
    Agents,
}

/// What takes the weights to the CPU time that the target would have used unsampled; says in `run` what sampling
/// added to it.
///
/// With the kernel sampled, the weights are scaled to the scheduler's figure, or to `sampled_s`, the part of it in which there were events
/// to sample it, where that is known; and all that was charged to the target is taken out of it. The rest was not sampled, and does not
/// become the functions'. Without, the kernel's time is missing from the weights, rightly so, and with it the cost of context
/// switches; but the period that each sample stands for begins with the interrupt of the one before, so what the
/// samples cost is in the weights and is taken out of them.
///
/// Agents' weights are the CPU time of their threads. Further CPU time of the target was used
/// by threads without a timer; it is reported separately, and not attributed to other functions.
fn compensate(run: &mut Run, account: &Account, seen: VisiblePart, sampled_s: Option<f64>) -> f64 {
    let (whole_s, charged) = match seen {
        VisiblePart::Everything if run.cpu.target_cpu_s > 0.0 => {
            (sampled_s.unwrap_or(f64::INFINITY).min(run.cpu.target_cpu_s), account.charged())
        }
        VisiblePart::Agents if run.cpu.target_cpu_s > 0.0 => {
            (run.cpu.weight_s.min(run.cpu.target_cpu_s), account.charged())
        }
        _ => (run.cpu.weight_s, account.charged_by_samples()),
    };
    if seen != VisiblePart::UserCode {
        run.cpu.not_sampled_cpu_s = (run.cpu.target_cpu_s - whole_s).max(0.0);
    }
    run.cpu.sampling_cpu_s = (charged.mean_ns * 1e-9).clamp(0.0, MOST_SAMPLING * whole_s);
    run.cpu.sampling_cpu_se_s = (charged.se_ns * 1e-9).clamp(0.0, whole_s);
    if run.cpu.weight_s > 0.0 { (whole_s - run.cpu.sampling_cpu_s) / run.cpu.weight_s } else { 1.0 }
}

fn figures_of(end: &RunFigures, setup: &Setup, sampling: &SamplingSettings, target: String) -> Run {
    Run {
        measure: Measure::CpuTime,
        target,
        start_unix_ns: end.part.start_unix_ns,
        duration_s: end.part.duration_ns as f64 * 1e-9,
        how: how_sampled(&end.how, setup, sampling),
        counts: sample_counts(&end.part.counts, &end.account),
        files: FileFigures {
            maps_reread: end.part.counts.maps_reread,
            mappings_dropped: end.part.counts.mappings_dropped,
            ..FileFigures::default()
        },
        cpu: CpuTimes {
            target_cpu_s: end.part.target_cpu_ns as f64 * 1e-9,
            self_cpu_s: end.part.self_cpu_ns as f64 * 1e-9,
            setup_cpu_s: (end.setup_cpu_ns as f64 + end.account.spent().self_once_ns) * 1e-9,
            ..CpuTimes::default()
        },
        cost: cost_figures(end),
        overhead: overhead_figures(&end.account, sampling),
        rate: end
            .decision
            .as_ref()
            .map(|decision| rate_figures(decision, &end.part, &end.history, sampling))
            .map(|rate| RateFigures { law_samples: rate.law_samples * seen_ratio(end), ..rate })
            .unwrap_or_default(),
        predicted: predicted(&end.prediction),
        rate_history: end.history.clone(),
        notes: notes(end),
        ..Run::default() // known once it is over
    }
}

fn how_sampled(how: &SamplingMode, setup: &Setup, sampling: &SamplingSettings) -> HowSampled {
    HowSampled {
        attach_mode: how.attach_mode.as_str().to_owned(),
        event: how.nature.event.to_owned(),
        unwind: how.settings.method.as_str().to_owned(),
        stack_copy_bytes: u64::from(how.settings.copied_bytes()),
        confidence: sampling.confidence.get(),
        precision_goal_ratio: sampling.until_precision.map_or(0.0, Ratio::get),
        seed: setup.seed,
        ..HowSampled::default() // the caller knows why it stopped
    }
}

fn sample_counts(counts: &Counts, account: &Account) -> SampleCounts {
    let truncated = counts.truncated.total();
    SampleCounts {
        samples: counts.samples,
        lost: counts.lost,
        unseen_interrupts: account.spent().unseen.round() as u64,
        truncated,
        truncated_by: counts.truncated,
        complete_ratio: 1.0 - truncated as f64 / counts.samples.max(1) as f64,
        outer_frames_from_earlier: counts.completed,
        undecodable: counts.undecodable,
        throttled: counts.throttled,
        foreign_samples: counts.foreign,
        walked_frames: counts.frames,
        copied_bytes: counts.stack_bytes,
    }
}

fn cost_figures(end: &RunFigures) -> CostFigures {
    let (cost, handler) = (&end.cost, end.handler.clone());
    let handler_ns = handler.as_ref().map(|handler| handler.time);
    CostFigures {
        overhead_us: cost.target.mean_ns * 1e-3,
        overhead_se_us: cost.target.se_ns * 1e-3,
        handler_time: end.handler_time.clone(),
        handler_us: handler_ns.map(|time| time.mean_ns * 1e-3),
        handler_se_us: handler_ns.map(|time| time.se_ns * 1e-3),
        handler_samples: handler.as_ref().map_or(0, |handler| handler.samples),
        overhead_modes: handler.map_or_else(Vec::new, |handler| handler.modes),
        self_us: end.part.self_cpu_ns as f64 * 1e-3 / end.part.counts.samples.max(1) as f64,
        interrupt_ratio: end.decision.as_ref().map_or(0.0, |decision| decision.cost.interrupt_ratio),
    }
}

fn overhead_figures(account: &Account, sampling: &SamplingSettings) -> OverheadFigures {
    OverheadFigures {
        overhead_ratio: account.ratio(),
        overhead_parts: parts(account),
        overhead_worst_1s_ratio: account.worst_1s_ratio(),
        overhead_worst_10s_ratio: account.worst_10s_ratio(),
        budget_ratio: sampling.budget.get(),
        slowdown_ratio: account.slowdown_ratio(),
        slowdown_budget_ratio: sampling.budget.get(),
        slowdown_worst_10s_ratio: account.worst_10s_slowdown_ratio(),
        own_cpu_ratio: account.own_cpu_ratio(),
        own_cpu_worst_10s_ratio: account.worst_10s_own_cpu_ratio(),
        own_cpu_budget_ratio: sampling.own_cpu.map_or(0.0, Ratio::get),
    }
}

/// The part of the interrupts that may bring a sample, of those that the law asks for.
fn seen_ratio(end: &RunFigures) -> f64 {
    let (unseen, samples) = (end.account.spent().unseen, end.part.counts.samples as f64);
    if unseen > 0.0 { samples / (samples + unseen) } else { 1.0 }
}

fn rate_figures(
    decision: &Decision,
    part: &PartFigures,
    history: &[RateChange],
    sampling: &SamplingSettings,
) -> RateFigures {
    RateFigures {
        rate_hz: decision.rate_hz,
        optimum_rate_hz: decision.terms.optimum_rate_hz,
        unbounded_rate_hz: decision.terms.unbounded_rate_hz,
        bound_by: decision.bound_by.as_str().to_owned(),
        law: decision.terms.law.as_str().to_owned(),
        law_samples: law_samples(decision, part, sampling),
        variance_ratio: decision.terms.variance_ratio,
        replicas: decision.terms.replicas,
        retunes: retunes(history),
    }
}

/// Changes of the rate by the law in a part of a run, whose history begins with the rate that was in force.
fn retunes(history: &[RateChange]) -> u64 {
    let by_law = [RateReason::Retune, RateReason::PhaseChange].map(RateReason::as_str);
    history.iter().skip(1).filter(|change| by_law.contains(&change.reason.as_str())).count() as u64
}

/// Samples that the law asks for in a part of a run, for one target. The decision's own figure is a sum since the start, and
/// over all targets of a shared sampler. By the anytime law there are no parts: the service always has a horizon.
fn law_samples(decision: &Decision, part: &PartFigures, sampling: &SamplingSettings) -> f64 {
    match sampling.horizon {
        None => decision.terms.law_samples,
        Some(_) => decision.terms.unbounded_rate_hz * part.target_cpu_ns as f64 * 1e-9,
    }
}

fn predicted(prediction: &Prediction) -> PredictedFigures {
    PredictedFigures {
        overhead_us: prediction.overhead_ns.mean * 1e-3,
        overhead_se_us: prediction.overhead_ns.se * 1e-3,
        overhead_ratio: prediction.overhead_ratio.mean,
        overhead_se_ratio: prediction.overhead_ratio.se,
        rate_hz: prediction.rate_hz.mean,
        rate_se_hz: prediction.rate_hz.se,
    }
}

/// What the overhead is made of.
pub(crate) fn parts(account: &Account) -> OverheadParts {
    let spent = account.spent();
    let ratio = |ns: f64| if account.target_cpu_s() > 0.0 { ns * 1e-9 / account.target_cpu_s() } else { 0.0 };
    OverheadParts {
        base_ratio: ratio(spent.base_ns),
        frames_ratio: ratio(spent.frames_ns),
        stack_ratio: ratio(spent.stack_ns),
        unseen_ratio: ratio(spent.unseen_ns),
        switches_ratio: ratio(spent.switches_ns),
        side_records_ratio: ratio(spent.side_records_ns),
        foreign_ratio: ratio(spent.foreign_ns),
        self_ratio: ratio(spent.self_ns),
        fixed_ratio: ratio(spent.fixed_ns()),
    }
}

/// What stacks lack if some unwind tables were left out.
const NO_ROOM_FOR_TABLES: &str =
    "end in code whose unwind tables did not fit into memory: raise --symbol-memory";

/// What stacks lack that ended so, and what would complete them.
fn remedy(outcome: Outcome) -> Option<&'static str> {
    match outcome {
        Outcome::CopyTooShort => {
            Some("are deeper than any copy; code with frame pointers needs none (--unwind fp)")
        }
        Outcome::StackAbsent => Some(
            "lack a page that was not in memory; frame pointers get past it, if the code was built with them (--unwind fp)",
        ),
        Outcome::ChainTooLong => Some(
            "are longer than the kernel's chain; raise kernel.perf_event_max_stack, or take --unwind dwarf",
        ),
        Outcome::NoTables => Some(
            "end in code without unwind tables: build with -fno-omit-frame-pointer, keep the section .eh_frame, and keep the file \
             that a process runs (as root, deleted ones are read, too)",
        ),
        _ => None,
    }
}

/// Said where what is left for the functions is no measure.
fn too_much_sampling(account: &Account) -> Option<String> {
    (account.slowdown_ratio() >= MOST_SAMPLING).then(|| TOO_MUCH_SAMPLING.to_owned())
}

/// Says what most stacks lack that are not complete, if they are worth a note.
fn incomplete_stacks(counts: &Counts, lacks_tables: bool) -> Option<String> {
    let by = &counts.truncated;
    if by.total() as f64 / counts.samples.max(1) as f64 <= TRUNCATED_WORTH_A_NOTE {
        return None;
    }
    let remedy = match Outcome::TRUNCATED.into_iter().max_by_key(|&outcome| by.count(outcome))? {
        Outcome::NoTables if lacks_tables => NO_ROOM_FOR_TABLES,
        most => remedy(most)?,
    };
    Some(format!("most incomplete stacks {remedy}"))
}

fn notes(end: &RunFigures) -> Vec<String> {
    let mut notes = end.notes.clone();
    notes.extend(too_much_sampling(&end.account));
    notes.extend(incomplete_stacks(&end.part.counts, end.lacks_tables));
    if end.part.counts.lost_others > 0 {
        let count = end.part.counts.lost_others;
        notes.push(format!("{count} records of mappings and new tasks were lost; mappings were read again"));
    }
    notes
}

#[cfg(test)]
mod tests {
    use profiler_core::rate::{CostModel, RateController, RateSettings, Reading, Spend, TopShares};

    use super::*;

    /// Ten seconds, of which a tenth is sampling; half of that is context switches.
    fn account(times: f64) -> Account {
        let mut account = Account::default();
        let spend = Spend {
            base_ns: times * 0.5e9,
            switches_ns: times * 0.5e9,
            target_se_ns: times * 0.25e9,
            samples_se_ns: times * 0.125e9,
            ..Spend::default()
        };
        account.book(10e9, 10e9, &spend);
        account
    }

    fn compensated(target_cpu_s: f64, weight_s: f64, account: &Account, seen: VisiblePart) -> (f64, Run) {
        let mut run = Run {
            cpu: CpuTimes { target_cpu_s, weight_s, ..CpuTimes::default() },
            counts: SampleCounts { samples: 900, ..SampleCounts::default() },
            ..Run::default()
        };
        let scale = compensate(&mut run, account, seen, None);
        (scale * weight_s, run)
    }

    #[test]
    fn what_sampling_added_is_taken_out() {
        let (cpu_s, run) = compensated(10.0, 8.0, &account(1.0), VisiblePart::Everything);
        assert!((cpu_s - 9.0).abs() < 1e-9, "{cpu_s}");
        assert_eq!((run.cpu.sampling_cpu_s, run.cpu.sampling_cpu_se_s), (1.0, 0.25));
    }

    #[test]
    fn without_the_kernel_the_samples_are_taken_out_of_the_weights() {
        let (cpu_s, run) = compensated(10.0, 8.0, &account(1.0), VisiblePart::UserCode);
        assert!((cpu_s - 7.5).abs() < 1e-9, "{cpu_s}");
        assert_eq!((run.cpu.sampling_cpu_s, run.cpu.sampling_cpu_se_s), (0.5, 0.125));
    }

    /// Interrupts in the kernel's code are in no sample's weight.
    #[test]
    fn what_brought_no_sample_is_not_taken_out_of_the_samples() {
        let spend = Spend { base_ns: 0.5e9, unseen_ns: 0.4e9, unseen: 4_000.0, ..Spend::default() };
        let mut account = Account::default();
        account.book(10e9, 10e9, &spend);
        let (cpu_s, run) = compensated(10.0, 8.0, &account, VisiblePart::UserCode);
        assert!((cpu_s - 7.5).abs() < 1e-9 && (run.cpu.sampling_cpu_s - 0.5).abs() < 1e-9, "{cpu_s} {run:?}");
        let parts = parts(&account);
        assert!((parts.base_ratio - 0.05).abs() < 1e-9 && (parts.unseen_ratio - 0.04).abs() < 1e-9);
        assert!((account.slowdown_ratio() - 0.09).abs() < 1e-9);
    }

    #[test]
    fn a_rate_that_takes_nearly_all_of_the_time_is_said_to() {
        assert_eq!([8.0, 10.0].map(|times| too_much_sampling(&account(times)).is_some()), [false, true]);
    }

    #[test]
    fn tables_that_had_no_room_are_not_blamed_on_the_build() {
        let mut counts = Counts { samples: 100, ..Counts::default() };
        assert_eq!(incomplete_stacks(&counts, true), None);
        counts.truncated.add(Outcome::NoTables, 50);
        let said = |lacks_tables| incomplete_stacks(&counts, lacks_tables).unwrap();
        assert!(said(true).ends_with("raise --symbol-memory") && said(false).contains(".eh_frame"));
    }

    #[test]
    fn who_has_no_agent_does_not_become_the_others() {
        let (cpu_s, run) = compensated(10.0, 4.0, &account(0.1), VisiblePart::Agents);
        assert!(
            (cpu_s - 3.9).abs() < 1e-9 && (run.cpu.not_sampled_cpu_s - 6.0).abs() < 1e-9,
            "{cpu_s} {run:?}"
        );
        let (cpu_s, run) = compensated(10.0, 10.5, &account(0.1), VisiblePart::Agents);
        assert!((cpu_s - 9.9).abs() < 1e-9 && run.cpu.not_sampled_cpu_s == 0.0, "{cpu_s} {run:?}");
        // Each window has made up for its lost samples already.
        let mut run = Run {
            cpu: CpuTimes { target_cpu_s: 10.0, weight_s: 5.0, ..CpuTimes::default() },
            counts: SampleCounts { samples: 900, lost: 100, ..SampleCounts::default() },
            ..Run::default()
        };
        let scale = compensate(&mut run, &account(0.0), VisiblePart::Agents, None);
        assert!((scale - 1.0).abs() < 1e-9 && (run.cpu.not_sampled_cpu_s - 5.0).abs() < 1e-9, "{run:?}");
        assert!(not_sampled(&run, VisiblePart::Agents).starts_with("50% of the CPU time was not sampled"));
    }

    #[test]
    fn what_no_event_sampled_does_not_become_the_functions() {
        for (sampled_s, not_sampled_s) in [(8.0, 2.0), (10.5, 0.0)] {
            let mut run = Run {
                cpu: CpuTimes { target_cpu_s: 10.0, weight_s: 7.9, ..CpuTimes::default() },
                ..Run::default()
            };
            let scale = compensate(&mut run, &account(0.0), VisiblePart::Everything, Some(sampled_s));
            assert!((7.9 * scale - (10.0 - not_sampled_s)).abs() < 1e-9, "{scale}");
            assert!((run.cpu.not_sampled_cpu_s - not_sampled_s).abs() < 1e-9, "{run:?}");
        }
    }

    #[test]
    fn a_cost_above_everything_leaves_a_profile() {
        for (target_cpu_s, weight_s) in [(10.0, 10.0), (0.0, 10.0), (10.0, 0.0), (0.0, 0.0)] {
            for seen in [VisiblePart::Everything, VisiblePart::UserCode, VisiblePart::Agents] {
                let (cpu_s, run) = compensated(target_cpu_s, weight_s, &account(1e6), seen);
                assert!(cpu_s.is_finite() && (cpu_s > 0.0) == (weight_s > 0.0), "{cpu_s}");
                assert!(run.cpu.sampling_cpu_s.is_finite() && run.cpu.sampling_cpu_se_s.is_finite());
            }
        }
    }

    /// A shared sampler decides for all targets and goes on from window to window.
    #[test]
    fn the_law_asks_for_samples_by_the_cpu_time_of_the_window_and_of_the_target() {
        let settings = RateSettings { horizon_s: Some(60.0), ..RateSettings::default() };
        let mut controller = RateController::new(settings, CostModel::default());
        controller.start(0);
        let reading =
            Reading { at_ns: 100_000_000_000, target_cpu_ns: 180_000_000_000, ..Reading::default() };
        let decision = controller.step(&reading, &TopShares::default());
        let sampling = SamplingSettings { horizon: "60s".parse().ok(), ..SamplingSettings::default() };
        let window = |target_cpu_ns| {
            rate_figures(&decision, &PartFigures { target_cpu_ns, ..PartFigures::default() }, &[], &sampling)
        };
        for (target_cpu_ns, cpu_s) in [(4_510_000_000, 4.51), (90_000_000, 0.09), (0, 0.0)] {
            let rate = window(target_cpu_ns);
            let law_samples = rate.unbounded_rate_hz * cpu_s;
            assert!(
                rate.unbounded_rate_hz > 0.0 && (rate.law_samples - law_samples).abs() < 1e-6,
                "{rate:?}"
            );
        }
    }

    /// The decision's own count goes on from window to window.
    #[test]
    fn only_changes_by_the_law_in_this_part_count_as_retunes() {
        let change = |at_s, reason: RateReason| RateChange {
            at_s,
            rate_hz: 100.0,
            reason: reason.as_str().to_owned(),
        };
        let reasons = [
            RateReason::Retune,
            RateReason::Retune,
            RateReason::Throttle,
            RateReason::Release,
            RateReason::PhaseChange,
        ];
        let history: Vec<RateChange> =
            reasons.into_iter().zip([0.0, 2.0, 3.0, 4.0, 5.0]).map(|(r, at)| change(at, r)).collect();
        assert_eq!((retunes(&history), retunes(&history[..1]), retunes(&[])), (2, 0, 0));
    }
}
