//! The end of a run: its figures, its names, its outputs.

use anyhow::Result;
use config::{Ratio, SamplingSettings};
use profiler_core::audit::BELIEVED;
use profiler_core::profile::{Outcome, OverheadParts, Run, TruncatedBy};
use profiler_core::rate::Account;

use super::engine::{Engine, Figures};
use super::follow::Stop;
use super::{Setup, names};
use crate::debuginfod;
use crate::output::Outputs;
use crate::sampler::session::{Collected, Counts};

/// Share of the CPU time that is taken for sampling at most: a calibration that says more is wrong, and the functions
/// would vanish.
const MOST_SAMPLING: f64 = 0.9;
/// A law that asks for more asks for as many samples as there can be (Hz).
const MOST_LAW_HZ: f64 = 1e6;
/// Stacks without outer frames, as a share of all, from which the person is told.
const TRUNCATED_WORTH_A_NOTE: f64 = 0.005;

/// CPU time that nobody sampled, as a share of all and in seconds, from which the person is told why.
const NOT_SAMPLED_WORTH_A_NOTE: f64 = 0.05;
const NOT_SAMPLED_WORTH_A_NOTE_S: f64 = 0.1;

/// Names what was collected and writes every output.
pub(super) fn deliver(
    engine: Engine<Outputs>,
    setup: &Setup,
    sampling: &SamplingSettings,
    debuginfod: Option<&debuginfod::Settings>,
    target: String,
    stop: Stop,
) -> Result<()> {
    let (collected, figures, outputs) = engine.end();
    let (mut run, scale) = run(&figures, &collected, setup, sampling, target);
    run.stopped = stop.as_str().to_owned();
    let servers = debuginfod.map(|settings| debuginfod::Servers::new(settings.clone()));
    let profile =
        names::symbolize(collected, scale, run, servers.as_ref(), &names::Hurry::default(), &mut || ());
    outputs.deliver(&profile)
}

/// What a profile says of its run, or of the window of it that was cut, and what takes the weights to CPU time of the target.
pub(crate) fn run(
    figures: &Figures,
    collected: &Collected,
    setup: &Setup,
    sampling: &SamplingSettings,
    target: String,
) -> (Run, f64) {
    let mut run = figures_of(figures, &in_profile(&figures.counts, collected.ticks), setup, sampling, target);
    run.weight_s = collected.weight_ns() * 1e-9;
    if run.tick_samples > 0 && collected.ticks == 0 && run.tick_audit.starts_with(BELIEVED) {
        let why = if collected.ticks_compared {
            "the clock hits other functions"
        } else {
            "the clock took none to hold them against"
        };
        run.tick_audit = format!("dropped at the end: {why}");
        run.notes.push(format!("samples at the kernel's tick were {}; the clock's remain", run.tick_audit));
    }
    let seen = match (figures.is_inside, figures.kernel_seen) {
        (true, _) => Seen::Agents,
        (false, true) => Seen::Everything,
        (false, false) => Seen::UserCode,
    };
    let scale = compensate(&mut run, &figures.account, seen);
    let worth_s = (NOT_SAMPLED_WORTH_A_NOTE * run.target_cpu_s).max(NOT_SAMPLED_WORTH_A_NOTE_S);
    if run.not_sampled_cpu_s > worth_s {
        run.notes.push(not_sampled(&run));
    }
    (run, scale)
}

fn not_sampled(run: &Run) -> String {
    format!(
        "{:.0}% of the CPU time was not sampled, and is in no function: of programs that the library does not come into (static, musl, \
         with other rights), or of threads that were too short, came late or may not be signalled",
        run.not_sampled_cpu_s / run.target_cpu_s * 100.0
    )
}

/// What of the target can be sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// All that it does.
    Everything,
    /// All but what the kernel does for it.
    UserCode,
    /// All that threads do which have an agent's timer.
    Agents,
}

/// What takes the weights to the CPU time that the target would have used unsampled; says in `run` what sampling
/// added to it.
///
/// With the kernel sampled, the weights are scaled to the scheduler's figure, and all that was charged to the target is
/// taken out of it. Without, the kernel's time is missing from the weights, rightly so, and with it the cost of context
/// switches; but the period that each sample stands for begins with the interrupt of the one before, so what the
/// samples cost is in the weights and is taken out of them.
///
/// Agents' weights are the CPU time of their threads, but for samples that were lost. What the target has used beyond that is of threads that have
/// none, and does not become that of others: it is told by itself.
fn compensate(run: &mut Run, account: &Account, seen: Seen) -> f64 {
    let (whole_s, charged) = match seen {
        Seen::Everything if run.target_cpu_s > 0.0 => (run.target_cpu_s, account.charged()),
        Seen::Agents if run.target_cpu_s > 0.0 => {
            let with_lost = 1.0 + run.lost as f64 / run.samples.max(1) as f64;
            ((run.weight_s * with_lost).min(run.target_cpu_s), account.charged())
        }
        _ => (run.weight_s, account.charged_by_samples()),
    };
    if seen == Seen::Agents {
        run.not_sampled_cpu_s = (run.target_cpu_s - whole_s).max(0.0);
    }
    run.sampling_cpu_s = (charged.mean_ns * 1e-9).clamp(0.0, MOST_SAMPLING * whole_s);
    run.sampling_cpu_se_s = (charged.se_ns * 1e-9).clamp(0.0, whole_s);
    if run.weight_s > 0.0 { (whole_s - run.sampling_cpu_s) / run.weight_s } else { 1.0 }
}

/// Samples in the profile and how their stacks ended: of those at the kernel's tick, so many stayed.
struct InProfile {
    samples: u64,
    ticks: u64,
    truncated: TruncatedBy,
}

fn in_profile(counts: &Counts, ticks: u64) -> InProfile {
    let mut truncated = counts.truncated;
    for outcome in Outcome::TRUNCATED {
        let of_ticks = counts.ticks_truncated.count(outcome) as f64;
        let part = ticks as f64 / counts.ticks.max(1) as f64;
        truncated.add(outcome, (of_ticks * part.min(1.0)).round() as u64);
    }
    InProfile { samples: counts.samples + ticks, ticks, truncated }
}

fn figures_of(
    end: &Figures,
    in_profile: &InProfile,
    setup: &Setup,
    sampling: &SamplingSettings,
    target: String,
) -> Run {
    let (account, cost, handler) = (&end.account, &end.cost, end.handler.clone());
    let handler_ns = handler.as_ref().map(|handler| handler.time);
    let (decision, prediction) = (end.decision.as_ref(), &end.prediction);
    let ticks = decision.filter(|decision| decision.tick_rate_hz > 0.0 && in_profile.ticks > 0);
    let truncated = in_profile.truncated.total();
    let unwound = (end.counts.samples + end.counts.ticks).max(1) as f64;
    Run {
        target,
        start_unix_ns: end.start_unix_ns,
        duration_s: end.duration_ns as f64 * 1e-9,
        samples: in_profile.samples,
        lost: end.counts.lost,
        truncated,
        truncated_by: in_profile.truncated,
        complete_ratio: 1.0 - truncated as f64 / in_profile.samples.max(1) as f64,
        undecodable: end.counts.undecodable,
        maps_reread: end.counts.maps_reread,
        mappings_dropped: end.counts.mappings_dropped,
        // Known once there are names.
        objects: 0,
        files_lost: 0,
        symbol_bytes_peak: 0,
        symbol_evictions: 0,
        symbol_rereads: 0,
        throttled: end.counts.throttled,
        foreign_samples: end.counts.foreign,
        tick_samples: end.counts.ticks,
        tick_audit: end.tick_audit.clone(),
        walked_frames: end.counts.frames,
        copied_bytes: end.counts.stack_bytes,
        target_cpu_s: end.target_cpu_ns as f64 * 1e-9,
        sampling_cpu_s: 0.0,
        sampling_cpu_se_s: 0.0,
        not_sampled_cpu_s: 0.0,
        weight_s: 0.0,
        self_cpu_s: end.self_cpu_ns as f64 * 1e-9,
        setup_cpu_s: end.setup_cpu_ns as f64 * 1e-9,
        overhead_us: cost.target.mean_ns * 1e-3,
        overhead_se_us: cost.target.se_ns * 1e-3,
        handler_time: end.handler_time.clone(),
        handler_us: handler_ns.map(|time| time.mean_ns * 1e-3),
        handler_se_us: handler_ns.map(|time| time.se_ns * 1e-3),
        handler_samples: handler.as_ref().map_or(0, |handler| handler.samples),
        overhead_modes: handler.map_or_else(Vec::new, |handler| handler.modes),
        self_us: end.self_cpu_ns as f64 * 1e-3 / unwound,
        overhead_ratio: account.ratio(),
        overhead_parts: parts(account),
        overhead_worst_1s_ratio: account.worst_1s_ratio(),
        overhead_worst_10s_ratio: account.worst_10s_ratio(),
        budget_ratio: sampling.budget.get(),
        slowdown_ratio: over(account.target_spend_s(), account.target_cpu_s()),
        slowdown_budget_ratio: sampling.budget.get(),
        own_cpu_ratio: over(end.self_cpu_ns as f64, end.duration_ns as f64),
        own_cpu_budget_ratio: 0.0,
        rate_hz: decision.map_or(0.0, |decision| decision.rate_hz),
        tick_rate_hz: ticks.map_or(0.0, |decision| decision.tick_rate_hz),
        tick_overhead_us: ticks.map_or(0.0, |_| cost.tick.mean_ns * 1e-3),
        tick_overhead_se_us: ticks.map_or(0.0, |_| cost.tick.se_ns * 1e-3),
        optimum_rate_hz: decision.map_or(0.0, |decision| decision.optimum_rate_hz),
        unbounded_rate_hz: decision.map_or(0.0, |decision| decision.unbounded_rate_hz),
        bound_by: decision.map_or("", |decision| decision.bound_by.as_str()).to_owned(),
        law: if sampling.rate.is_some() { "fixed" } else { "horizon" }.to_owned(),
        law_samples: decision
            .map_or(0.0, |decision| law_samples(decision.unbounded_rate_hz, end.target_cpu_ns)),
        predicted_overhead_us: prediction.overhead_ns.mean * 1e-3,
        predicted_overhead_se_us: prediction.overhead_ns.se * 1e-3,
        predicted_overhead_ratio: prediction.overhead_ratio.mean,
        predicted_overhead_se_ratio: prediction.overhead_ratio.se,
        predicted_rate_hz: prediction.rate_hz.mean,
        predicted_rate_se_hz: prediction.rate_hz.se,
        retunes: decision.map_or(0, |decision| decision.retunes),
        attach_mode: end.attach_mode.as_str().to_owned(),
        event: end.event.to_owned(),
        unwind: end.settings.method.as_str().to_owned(),
        stack_copy_bytes: u64::from(end.settings.copied_bytes()),
        stopped: String::new(),
        confidence: sampling.confidence.get(),
        precision_goal_ratio: sampling.until_precision.map_or(0.0, Ratio::get),
        seed: setup.seed,
        rate_history: end.history.clone(),
        notes: notes(end, in_profile),
    }
}

/// What the law asks for without bounds; 0 where it asks for as many as there can be.
fn law_samples(unbounded_hz: f64, target_cpu_ns: u64) -> f64 {
    if unbounded_hz < MOST_LAW_HZ { unbounded_hz * target_cpu_ns as f64 * 1e-9 } else { 0.0 }
}

/// A share; 0 of nothing.
fn over(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// What the overhead is made of.
pub(crate) fn parts(account: &Account) -> OverheadParts {
    let spent = account.spent();
    let ratio = |ns: f64| over(ns * 1e-9, account.target_cpu_s());
    OverheadParts {
        base_ratio: ratio(spent.base_ns),
        frames_ratio: ratio(spent.frames_ns),
        stack_ratio: ratio(spent.stack_ns),
        switches_ratio: ratio(spent.switches_ns),
        side_records_ratio: ratio(spent.side_records_ns),
        foreign_ratio: ratio(spent.foreign_ns),
        self_ratio: ratio(spent.self_ns),
        fixed_ratio: ratio(spent.fixed_ns()),
    }
}

/// What would complete stacks that ended so.
fn remedy(outcome: Outcome) -> Option<&'static str> {
    match outcome {
        Outcome::CopyTooShort => {
            Some("no event copies more; code with frame pointers needs no copy (--unwind fp)")
        }
        Outcome::StackAbsent => {
            Some("frame pointers lead over such pages (--unwind fp, where code has them)")
        }
        Outcome::ChainTooLong => Some("raise kernel.perf_event_max_stack, or take --unwind dwarf"),
        Outcome::NoTables => Some("keep the section .eh_frame, or build with -fno-omit-frame-pointer"),
        _ => None,
    }
}

fn notes(end: &Figures, in_profile: &InProfile) -> Vec<String> {
    let mut notes = end.notes.clone();
    let by = &in_profile.truncated;
    let truncated = by.total() as f64 / in_profile.samples.max(1) as f64;
    if truncated > TRUNCATED_WORTH_A_NOTE {
        let shown = format!("{:.1}% of the stacks lack outer frames: {}", truncated * 100.0, by.in_words());
        let most = Outcome::TRUNCATED.into_iter().max_by_key(|&outcome| by.count(outcome));
        notes.push(match most.and_then(remedy) {
            Some(remedy) => format!("{shown}; {remedy}"),
            None => shown,
        });
    }
    if end.counts.lost > 0 {
        notes.push(format!("{} records were lost, and made up for by their neighbours", end.counts.lost));
    }
    if end.counts.lost_others > 0 {
        let count = end.counts.lost_others;
        notes.push(format!("{count} records of mappings and new tasks were lost; mappings were read again"));
    }
    notes
}

#[cfg(test)]
mod tests {
    use profiler_core::rate::Spend;

    use super::*;

    #[test]
    fn stacks_at_ticks_that_were_dropped_are_not_among_those_cut_short() {
        let of = |samples| {
            let mut truncated = TruncatedBy::default();
            truncated.add(Outcome::CopyTooShort, samples);
            truncated
        };
        let counts = Counts {
            samples: 100,
            ticks: 1_000,
            truncated: of(10),
            ticks_truncated: of(400),
            ..Counts::default()
        };
        for (ticks, samples, truncated) in [(0, 100, 10), (1_000, 1_100, 410), (500, 600, 210)] {
            let kept = in_profile(&counts, ticks);
            assert_eq!((kept.samples, kept.truncated), (samples, of(truncated)));
        }
    }

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

    fn compensated(target_cpu_s: f64, weight_s: f64, account: &Account, seen: Seen) -> (f64, Run) {
        let mut run = Run { target_cpu_s, weight_s, samples: 900, ..Run::default() };
        let scale = compensate(&mut run, account, seen);
        (scale * weight_s, run)
    }

    #[test]
    fn what_sampling_added_is_taken_out() {
        let (cpu_s, run) = compensated(10.0, 8.0, &account(1.0), Seen::Everything);
        assert!((cpu_s - 9.0).abs() < 1e-9, "{cpu_s}");
        assert_eq!((run.sampling_cpu_s, run.sampling_cpu_se_s), (1.0, 0.25));
    }

    #[test]
    fn without_the_kernel_the_samples_are_taken_out_of_the_weights() {
        let (cpu_s, run) = compensated(10.0, 8.0, &account(1.0), Seen::UserCode);
        assert!((cpu_s - 7.5).abs() < 1e-9, "{cpu_s}");
        assert_eq!((run.sampling_cpu_s, run.sampling_cpu_se_s), (0.5, 0.125));
    }

    #[test]
    fn who_has_no_agent_does_not_become_the_others() {
        let (cpu_s, run) = compensated(10.0, 4.0, &account(0.1), Seen::Agents);
        assert!((cpu_s - 3.9).abs() < 1e-9 && (run.not_sampled_cpu_s - 6.0).abs() < 1e-9, "{cpu_s} {run:?}");
        let (cpu_s, run) = compensated(10.0, 10.5, &account(0.1), Seen::Agents);
        assert!((cpu_s - 9.9).abs() < 1e-9 && run.not_sampled_cpu_s == 0.0, "{cpu_s} {run:?}");
        // Samples that were lost are made up for by the others.
        let mut run = Run { target_cpu_s: 10.0, weight_s: 4.5, samples: 900, lost: 100, ..Run::default() };
        let scale = compensate(&mut run, &account(0.0), Seen::Agents);
        assert!((4.5 * scale - 5.0).abs() < 1e-9 && (run.not_sampled_cpu_s - 5.0).abs() < 1e-9, "{run:?}");
        assert!(not_sampled(&run).starts_with("50% of the CPU time was not sampled"));
    }

    #[test]
    fn a_cost_above_everything_leaves_a_profile() {
        for (target_cpu_s, weight_s) in [(10.0, 10.0), (0.0, 10.0), (10.0, 0.0), (0.0, 0.0)] {
            for seen in [Seen::Everything, Seen::UserCode, Seen::Agents] {
                let (cpu_s, run) = compensated(target_cpu_s, weight_s, &account(1e6), seen);
                assert!(cpu_s.is_finite() && (cpu_s > 0.0) == (weight_s > 0.0), "{cpu_s}");
                assert!(run.sampling_cpu_s.is_finite() && run.sampling_cpu_se_s.is_finite());
            }
        }
    }
}
