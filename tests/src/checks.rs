//! What a profile of a program of known truth must satisfy. Each check fails with the figures it saw.

use anyhow::{Context, Result, ensure};

use crate::folded::{Folded, Stack};
use crate::run::Recorded;

/// What a variant of the program calls its functions, and where its stacks start.
#[derive(Clone, Copy, Debug)]
pub struct Names {
    /// Frames that every stack starts from, outermost first.
    pub roots: &'static [&'static str],
    /// What every work function's name contains.
    pub work: &'static str,
}

/// Names in the C programs.
pub const C: Names = Names { roots: &["main"], work: "work_" };
/// Names in the C++ program.
pub const CXX: Names = Names { roots: &["main"], work: "truth::work<" };
/// Names in the Rust program, whose work is in threads.
pub const RUST_THREAD: Names = Names { roots: &["start_thread"], work: "threads::work_" };

impl Names {
    /// The share of stacks in work functions that reach from the root through the whole recursion.
    pub fn complete_ratio(&self, folded: &Folded, depth: usize) -> f64 {
        folded.complete_ratio(self.roots, depth, |frame| frame.contains(self.work))
    }
}

/// Truth, weights and stacks; all that is wrong, not only the first.
pub fn check(recorded: &Recorded, names: &Names, depth: usize) -> Result<()> {
    let checks = [check_truth(recorded), check_weights(recorded), check_stacks(recorded, names, depth)];
    let failed: Vec<String> =
        checks.into_iter().filter_map(|check| Some(format!("{:#}", check.err()?))).collect();
    ensure!(failed.is_empty(), "{}", failed.join("\n"));
    Ok(())
}

/// The top four functions' intervals hold their true CPU time, and are narrow enough to say something.
pub fn check_truth(recorded: &Recorded) -> Result<()> {
    let summary = &recorded.stats.summary;
    ensure!(summary.samples > 300, "too few samples to judge: {}", summary.samples);
    for compared in recorded.truth()?.compare(summary, 4)? {
        ensure!(compared.inside(), "the interval misses the truth: {compared:?}");
        let half = (compared.high_s - compared.low_s) / 2.0;
        // Of a level at which nothing misses by chance, and of bouts: a quarter still tells large from small.
        ensure!(half < 0.25 * summary.target_cpu_s, "the interval says nothing: {compared:?}");
    }
    Ok(())
}

/// The samples' weights add up to the CPU time, by the profiler's account and by the program's own.
pub fn check_weights(recorded: &Recorded) -> Result<()> {
    let summary = &recorded.stats.summary;
    check_weight_sum(recorded, 0.02)?;
    within("target_cpu_s and the program's rusage", summary.target_cpu_s, recorded.truth()?.cpu_s, 0.02)
}

/// The sum of the weights is within a tolerance of the scheduler's CPU time.
///
/// Two allowances are added to the tolerance; on a machine used by nothing else both are zero. The sampling clock goes on
/// while a hypervisor takes the CPU away; the scheduler's does not. And where events of whole CPUs hit other
/// processes too, the target's part of the samples is random: 3.3 standard deviations are allowed.
pub fn check_weight_sum(recorded: &Recorded, tolerance: f64) -> Result<()> {
    let summary = &recorded.stats.summary;
    let (own, foreign) = (summary.samples as f64, summary.foreign_samples as f64);
    let drawn = 3.3 * (foreign / (own + foreign) / own).sqrt();
    let allowed = tolerance + recorded.stolen_ratio + drawn;
    within("weight_s and target_cpu_s", summary.weight_s, summary.target_cpu_s, allowed).with_context(|| {
        format!("allowed are {tolerance} + {} stolen + {drawn} drawn", recorded.stolen_ratio)
    })
}

/// At least 99.5% of the stacks reach the root, by the profiler's account and by their own frames.
pub fn check_stacks(recorded: &Recorded, names: &Names, depth: usize) -> Result<()> {
    let summary = &recorded.stats.summary;
    let truncated = summary.truncated as f64 / summary.samples as f64;
    // A process that exits, or becomes another program, has no user stack any more.
    let between = |stack: &Stack| stack.has("do_exit") || stack.has("bprm_execve");
    let without_stack = recorded.folded.weight_of(between) / recorded.folded.weight_of(|_| true);
    ensure!(
        truncated <= 0.005 + without_stack,
        "{truncated} of the stacks are truncated: {:?}",
        summary.notes
    );
    let complete = names.complete_ratio(&recorded.folded, depth);
    ensure!(
        complete >= 0.995,
        "{complete} of the stacks are whole. Most seen:\n{}",
        heaviest(&recorded.folded)
    );
    let works = |frame: &String| frame.contains(names.work);
    let work = recorded.folded.weight_of(|stack| stack.frames.iter().any(works));
    within("weight of stacks with a work function", work, recorded.folded.weight_of(|_| true), 0.05)
}

/// Fails unless a figure is within a tolerance, relative, of what it should be.
pub fn within(what: &str, found: f64, expected: f64, tolerance: f64) -> Result<()> {
    let off = (found - expected).abs() / expected;
    ensure!(off <= tolerance, "{what}: {found} is {:.1}% from {expected}", off * 100.0);
    Ok(())
}

/// The three heaviest stacks, for the message of a failed check.
pub fn heaviest(folded: &Folded) -> String {
    let mut stacks: Vec<_> = folded.0.iter().collect();
    stacks.sort_by(|a, b| b.weight.total_cmp(&a.weight));
    let lines = stacks.iter().take(3).map(|stack| format!("{} {}", stack.frames.join(";"), stack.weight));
    lines.collect::<Vec<_>>().join("\n")
}
