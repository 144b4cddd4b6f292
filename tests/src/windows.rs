//! Overhead in windows of time, computed from what the kernel says of the processes rather than from what
//! the profiler says of itself. Only the count of samples and their mean cost are the profiler's.

use anyhow::Result;
use nix::time::{ClockId, clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use serde_json::Value;

use crate::stats::Stats;

/// CPU time used up to a moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Point {
    /// The monotonic clock (s).
    pub at_s: f64,
    /// CPU time of the target so far (s).
    pub target_s: f64,
    /// CPU time of the profiler so far (s).
    pub own_s: f64,
}

/// Now, on the clock that the profiler's decisions carry.
pub fn monotonic_s() -> Result<f64> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
    Ok(now.tv_sec() as f64 + now.tv_nsec() as f64 * 1e-9)
}

/// CPU time of all threads of a process so far, of those that ended too (s).
pub fn cpu_s(pid: u32) -> Result<f64> {
    let used = clock_gettime(clock_getcpuclockid(Pid::from_raw(pid as i32))?)?;
    Ok(used.tv_sec() as f64 + used.tv_nsec() as f64 * 1e-9)
}

/// The largest overhead of any window of at least this length in which the target ran.
///
/// Overhead is the profiler's CPU time plus its samples' cost to the target, over the target's CPU time. A
/// window in which the target used less than half of its length is left out: it would tell of idling.
pub fn worst_ratio(points: &[Point], stats: &Stats, length_s: f64) -> Option<f64> {
    let samples = sample_counts(stats);
    let cost_s = stats.summary.overhead_us * 1e-6;
    let mut worst: Option<f64> = None;
    for (first, start) in points.iter().enumerate() {
        let Some(end) = points[first..].iter().find(|end| end.at_s - start.at_s >= length_s) else { break };
        let target_s = end.target_s - start.target_s;
        if target_s >= length_s / 2.0 {
            let taken = count_at(&samples, end.at_s) - count_at(&samples, start.at_s);
            let ratio = (end.own_s - start.own_s + taken * cost_s) / target_s;
            worst = Some(worst.unwrap_or(0.0).max(ratio));
        }
    }
    worst
}

/// Moments (s) and samples so far.
fn sample_counts(stats: &Stats) -> Vec<(f64, f64)> {
    let count = |line: &Value| Some((line["at_ns"].as_f64()? * 1e-9, line["samples"].as_f64()?));
    stats.lines.iter().filter_map(count).collect()
}

/// Samples up to a moment, on the line between the two decisions around it.
fn count_at(counts: &[(f64, f64)], at_s: f64) -> f64 {
    let after = counts.partition_point(|(at, _)| *at <= at_s);
    match (after.checked_sub(1).map(|before| counts[before]), counts.get(after)) {
        (Some((t0, n0)), Some((t1, n1))) => n0 + (n1 - n0) * (at_s - t0) / (t1 - t0),
        (Some((_, n0)), None) => n0,
        (None, _) => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::{Point, count_at, worst_ratio};
    use crate::stats::Stats;

    #[test]
    fn counts_are_interpolated() {
        let counts = [(1.0, 100.0), (2.0, 300.0)];
        assert_eq!([0.5, 1.5, 9.0].map(|at| count_at(&counts, at)), [0.0, 200.0, 300.0]);
    }

    #[test]
    fn the_worst_window_is_found_wherever_it_lies() {
        let text = r#"{"type":"decision","at_ns":0,"samples":0}
            {"type":"decision","at_ns":4000000000,"samples":0}
            {"type":"summary","samples":0,"lost":0,"truncated":0,"foreign_samples":0,"target_cpu_s":4,"sampling_cpu_s":0,"weight_s":4,"self_cpu_s":0,
             "setup_cpu_s":0,"overhead_us":10,"overhead_se_us":1,"handler_time":"measured","handler_samples":0,"overhead_ratio":0,
             "predicted_overhead_us":0,"predicted_overhead_ratio":0,"predicted_rate_hz":0,"overhead_parts":{},"overhead_worst_1s_ratio":0,
             "overhead_worst_10s_ratio":0,"budget_ratio":0.01,"rate_hz":0,"bound_by":"law","attach_mode":"cpu",
             "unwind":"fp","stopped":"duration","notes":[],"functions":[]}"#;
        let text = text.replace("\n             ", "");
        let stats = Stats::parse(&text).unwrap();
        let own = [0.0, 0.01, 0.05, 0.06, 0.07];
        let points: Vec<Point> = (0..5)
            .map(|i| Point { at_s: f64::from(i), target_s: f64::from(i), own_s: own[i as usize] })
            .collect();
        assert!((worst_ratio(&points, &stats, 1.0).unwrap() - 0.04).abs() < 1e-9);
        assert!((worst_ratio(&points, &stats, 4.0).unwrap() - 0.07 / 4.0).abs() < 1e-9);
        assert_eq!(worst_ratio(&points, &stats, 5.0), None);
    }
}
