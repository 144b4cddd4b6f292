//! Estimators of a program's run time from repeated runs (Haveraaen and Hundvebakke 2001, section 3).
//!
//! A machine's load lengthens a run and never shortens it. So the minimum of a few runs says what the program
//! needs, and varies least; the average says what the machine takes for it, load included.

/// What `runs` runs say about the run time, in their unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunTime {
    /// Runs that were counted.
    pub runs: usize,
    /// A(d): the mean.
    pub average: f64,
    /// M(d): the median.
    pub median: f64,
    /// Q(d): the lower quartile; for three runs and fewer it is the minimum.
    pub lower_quartile: f64,
    /// min(d): the shortest.
    pub minimum: f64,
}

impl RunTime {
    /// The four estimates of Haveraaen and Hundvebakke 2001; `None` without a run. Runs that are no time
    /// (negative, not finite) are left out.
    pub fn of(runs: &[f64]) -> Option<RunTime> {
        let mut sorted: Vec<f64> =
            runs.iter().copied().filter(|run| run.is_finite() && *run >= 0.0).collect();
        sorted.sort_by(f64::total_cmp);
        let minimum = *sorted.first()?;
        Some(RunTime {
            runs: sorted.len(),
            average: average(&sorted),
            median: quantile(&sorted, 2),
            lower_quartile: quantile(&sorted, 4),
            minimum,
        })
    }
}

/// The running mean: a sum of enormous runs would overflow.
fn average(runs: &[f64]) -> f64 {
    let step = |mean: f64, (index, run): (usize, &f64)| mean + (run - mean) / (index + 1) as f64;
    runs.iter().enumerate().fold(0.0, step)
}

/// The mean of the two runs around position (k+1)/`parts`, counted from 1; the position may lie before the
/// first run, where the paper's indices need to be brought back.
fn quantile(sorted: &[f64], parts: usize) -> f64 {
    let positions = sorted.len() + 1;
    let at = |position: usize| sorted[position.clamp(1, sorted.len()) - 1];
    let (low, high) = (at(positions / parts), at(positions.div_ceil(parts)));
    low + (high - low) / 2.0
}

#[cfg(test)]
mod tests;
