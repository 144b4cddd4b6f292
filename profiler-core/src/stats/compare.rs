//! Which functions changed between two profiles, and by how much.
//!
//! Samples of a program come in bouts, so pooled counts vary more than a χ² test believes: it calls half and more
//! of identical pairs different. Here the share of a function in segments of each run says how much it varies, and
//! Welch's test compares the two runs by that. Of the many functions of a profile some differ by chance; the
//! procedure of Benjamini and Hochberg keeps the part of false ones among those called different.
//!
//! What changed gets effect sizes from the mixtures of the segments' shares (Worms and Touati 2016, I₁, I₂ and I₄).
//!
//! Limits. Bouts, or phases, longer than about a hundredth of the run make segments alike, and more pairs
//! look different than should. Two runs tell how each varied within itself; what differs from run to run (memory
//! layout, another machine) counts as a change.

use statrs::distribution::{ContinuousCDF, StudentsT};

use super::mixture::{Mixture, fit};

/// Segments that a run is cut into, at most: few enough that a segment outlasts most bouts, enough to know a variance by.
pub const SEGMENTS: usize = 30;
/// No share is known better than this; a difference below it is rounding.
const SMALLEST_ERROR: f64 = 1e-9;
/// Weights above this are no measurements.
const LARGEST_WEIGHT: f64 = 1e100;
/// Values that the share of a segment may gather around.
const MOST_COMPONENTS: usize = 4;

/// One function's windows in two runs: in each window its weight and that of all functions (ns), in the order of time.
/// A run that did not see the function has windows with a weight of 0.
#[derive(Clone, Copy, Debug)]
pub struct TwoRuns<'a> {
    /// The first run.
    pub old: &'a [(f64, f64)],
    /// The run that is compared to it.
    pub new: &'a [(f64, f64)],
}

/// How a function's share of the CPU time changed.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Share in the first run, 0 … 1.
    pub old_share: f64,
    /// Share in the second run.
    pub new_share: f64,
    /// Half of the confidence interval around `new_share − old_share`.
    pub half_width: f64,
    /// How often runs of one program would differ by as much (Welch).
    pub p_value: f64,
    /// The same among all functions compared (Benjamini and Hochberg): the rate of false discoveries at which
    /// this one would just be called different.
    pub adjusted_p_value: f64,
    /// What the change amounts to, where there is one.
    pub effect: Option<Effect>,
}

/// The size of a change, for a segment of a thirtieth of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effect {
    /// I₁: by how much the shares of an old and a new segment differ on average.
    pub mean_difference: f64,
    /// I₂: how often the share of a new segment is above that of an old one.
    pub probability_more: f64,
    /// I₄ of the old run: the number of values that the shares gather around.
    pub old_modes: usize,
    /// I₄ of the new run.
    pub new_modes: usize,
}

/// Compares each function's share in two runs; the answers are in the order of `functions`.
///
/// A function changed, and has an [`Effect`], when its adjusted p-value is at most `discovery_rate` (.05): that part of the
/// functions called different is not. Intervals hold at `confidence` (.95), each for itself. Windows that contradict
/// themselves (negative, not finite, the function above the total) are left out; with fewer than two windows
/// left in a run nothing is known, the p-value is 1 and the half-width too.
pub fn compare(functions: &[TwoRuns<'_>], discovery_rate: f64, confidence: f64) -> Vec<Change> {
    let segmented: Vec<[RunSegments; 2]> =
        functions.iter().map(|runs| [RunSegments::of(runs.old), RunSegments::of(runs.new)]).collect();
    let welches: Vec<Welch> = segmented.iter().map(|[old, new]| Welch::of(old, new)).collect();
    let p_values: Vec<f64> = welches.iter().map(Welch::p_value).collect();
    let adjusted = benjamini_hochberg(&p_values);
    let change = |index: usize| Change {
        old_share: segmented[index][0].share,
        new_share: segmented[index][1].share,
        half_width: welches[index].half_width(confidence),
        p_value: p_values[index],
        adjusted_p_value: adjusted[index],
        effect: (adjusted[index] <= discovery_rate).then(|| Effect::of(&segmented[index])).flatten(),
    };
    (0..functions.len()).map(change).collect()
}

/// The p-values of many tests, raised so that calling different those up to q is wrong in a part q of the calls on
/// average (Benjamini and Hochberg). What is not within 0 … 1 counts as 1.
pub fn benjamini_hochberg(p_values: &[f64]) -> Vec<f64> {
    let valid = |index: usize| if (0.0..=1.0).contains(&p_values[index]) { p_values[index] } else { 1.0 };
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    order.sort_by(|&a, &b| valid(a).total_cmp(&valid(b)));
    let mut adjusted = vec![1.0; p_values.len()];
    let mut least: f64 = 1.0;
    for (rank, &index) in order.iter().enumerate().rev() {
        least = least.min(valid(index) * p_values.len() as f64 / (rank + 1) as f64);
        adjusted[index] = least;
    }
    adjusted
}

/// A run in segments of about equal numbers of windows.
struct RunSegments {
    /// The function's weight over that of all, in the whole run.
    share: f64,
    /// The variance of `share`.
    variance: f64,
    /// The share in each segment.
    shares: Vec<f64>,
}

impl RunSegments {
    fn of(windows: &[(f64, f64)]) -> RunSegments {
        let sound =
            |(x, total): &&(f64, f64)| *x >= 0.0 && x <= total && *total > 0.0 && *total < LARGEST_WEIGHT;
        let windows: Vec<(f64, f64)> = windows.iter().filter(sound).copied().collect();
        let total: f64 = windows.iter().map(|(_, total)| total).sum();
        let count = windows.len().min(SEGMENTS);
        let segment = |i: usize| &windows[i * windows.len() / count..(i + 1) * windows.len() / count];
        // In parts of the total, which may be enormous or tiny.
        let sums: Vec<(f64, f64)> = (0..count).map(|i| sum(segment(i), total)).collect();
        let share = sums.iter().map(|(x, _)| x).sum::<f64>().min(1.0);
        let squares: f64 = sums.iter().map(|(x, part)| (x - share * part).powi(2)).sum();
        let m = count as f64;
        let variance = if count > 1 { m / (m - 1.0) * squares } else { 0.0 };
        let shares = sums.iter().filter(|(_, part)| *part > 0.0).map(|(x, part)| x / part).collect();
        RunSegments { share, variance, shares }
    }

    fn freedom(&self) -> f64 {
        self.shares.len() as f64 - 1.0
    }
}

fn sum(windows: &[(f64, f64)], total: f64) -> (f64, f64) {
    windows.iter().fold((0.0, 0.0), |sum, window| (sum.0 + window.0 / total, sum.1 + window.1 / total))
}

/// Welch's test: the difference of two means, its error and the degrees of freedom of that.
struct Welch {
    difference: f64,
    error: f64,
    /// `None` where a run has fewer than two segments.
    freedom: Option<f64>,
}

impl Welch {
    fn of(old: &RunSegments, new: &RunSegments) -> Welch {
        let variance = (old.variance + new.variance).max(SMALLEST_ERROR * SMALLEST_ERROR);
        let (m, n) = (old.freedom(), new.freedom());
        let enough = m >= 1.0 && n >= 1.0;
        // Each run's part of the variance: squares of the variances themselves could vanish.
        let parts = (old.variance / variance).powi(2) / m + (new.variance / variance).powi(2) / n;
        let freedom = enough.then(|| (1.0 / parts).min(m + n));
        Welch { difference: new.share - old.share, error: variance.sqrt(), freedom }
    }

    /// Two-sided.
    fn p_value(&self) -> f64 {
        let Some(student) = self.student() else { return 1.0 };
        // Beyond, the tail is zero in any case.
        let t = (self.difference.abs() / self.error).min(1e10);
        (2.0 * student.sf(t)).clamp(0.0, 1.0)
    }

    fn half_width(&self, confidence: f64) -> f64 {
        let confidence = if confidence.is_nan() { 0.95 } else { confidence.clamp(0.5, 0.999_999) };
        let Some(student) = self.student() else { return 1.0 };
        student.inverse_cdf(0.5 + 0.5 * confidence) * self.error
    }

    fn student(&self) -> Option<StudentsT> {
        StudentsT::new(0.0, 1.0, self.freedom?).ok()
    }
}

impl Effect {
    /// `None` where a run has no segment.
    fn of([old, new]: &[RunSegments; 2]) -> Option<Effect> {
        let mixture =
            |run: &RunSegments| -> Option<Mixture> { Some(fit(&run.shares, MOST_COMPONENTS)?.mixture) };
        let (old, new) = (mixture(old)?, mixture(new)?);
        Some(Effect {
            mean_difference: old.mean_difference(&new),
            probability_more: old.probability_below(&new, 0.0).clamp(0.0, 1.0),
            old_modes: old.modes().len(),
            new_modes: new.modes().len(),
        })
    }
}

#[cfg(test)]
mod tests;
