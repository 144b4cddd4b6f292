//! Slowdown by the stopwatch in every stretch of a program's work, not only on the whole.
//!
//! A run is the CPU time (s) at each mark of the same work; stretches are equal in work, so that two runs can
//! be compared stretch by stretch whatever their speed.

use crate::figures::median;

/// The largest slowdown of any stretch of work that takes at least `length_s` of CPU time unsampled: medians
/// over the runs, of the CPU time that the stretch took, less 1. `None` where no stretch is that long.
pub fn worst_slowdown(sampled: &[Vec<f64>], unsampled: &[Vec<f64>], length_s: f64) -> Option<f64> {
    let marks = sampled.iter().chain(unsampled).map(Vec::len).min()?;
    let took = |runs: &[Vec<f64>], from: usize, to: usize| {
        median(&runs.iter().map(|run| run[to] - run[from]).collect::<Vec<_>>())
    };
    let mut worst: Option<f64> = None;
    let mut to = 0;
    for from in 0..marks {
        while to < marks && took(unsampled, from, to) < length_s {
            to += 1;
        }
        if sampled.is_empty() || unsampled.is_empty() || to == marks {
            break;
        }
        let slowdown = took(sampled, from, to) / took(unsampled, from, to) - 1.0;
        worst = Some(worst.map_or(slowdown, |worst| worst.max(slowdown)));
    }
    worst
}

/// What [`worst_slowdown`] finds where there is none: every other unsampled run against the rest, or the rest
/// against these, whichever is more.
pub fn noise(unsampled: &[Vec<f64>], length_s: f64) -> Option<f64> {
    let every_other = |first: usize| unsampled.iter().skip(first).step_by(2).cloned().collect::<Vec<_>>();
    let (even, odd) = (every_other(0), every_other(1));
    Some(worst_slowdown(&even, &odd, length_s)?.max(worst_slowdown(&odd, &even, length_s)?))
}

#[cfg(test)]
mod tests {
    use super::{noise, worst_slowdown};

    /// A mark every 50 ms of unsampled CPU time for 20 s; the rate of time is `pace(s)`.
    fn run(pace: impl Fn(f64) -> f64) -> Vec<f64> {
        let mut at_s = 0.0;
        let step = |i: u32| {
            at_s += 0.05 * pace(f64::from(i) * 0.05);
            at_s
        };
        (0..=400).map(step).collect()
    }

    fn slow_second(at_s: f64) -> f64 {
        if (7.0..8.0).contains(&at_s) { 1.05 } else { 1.01 }
    }

    #[test]
    fn the_slowest_second_is_found_wherever_it_lies() {
        let (sampled, unsampled) = (vec![run(slow_second); 3], vec![run(|_| 1.0); 3]);
        assert!((worst_slowdown(&sampled, &unsampled, 0.999).unwrap() - 0.05).abs() < 1e-9);
        assert!((worst_slowdown(&sampled, &unsampled, 9.999).unwrap() - 0.014).abs() < 1e-9);
        assert_eq!(worst_slowdown(&sampled, &unsampled, 21.0), None);
    }

    #[test]
    fn one_disturbed_run_of_three_changes_nothing() {
        let disturbed = run(|at_s| if at_s < 2.0 { 3.0 } else { 1.0 });
        let (calm, unsampled) = (run(|_| 1.01), vec![run(|_| 1.0); 3]);
        let sampled = [calm.clone(), disturbed.clone(), calm];
        assert!((worst_slowdown(&sampled, &unsampled, 0.999).unwrap() - 0.01).abs() < 1e-9);
    }

    #[test]
    fn noise_is_what_unsampled_runs_differ_by() {
        let runs = [run(slow_second), run(|_| 1.0), run(slow_second), run(|_| 1.0)];
        assert!((noise(&runs, 0.999).unwrap() - 0.05).abs() < 1e-9);
        assert!((noise(&runs[1..3], 0.999).unwrap() - 0.05).abs() < 1e-9);
        assert_eq!(noise(&runs[..1], 0.999), None);
        assert_eq!(noise(&[], 0.999), None);
    }
}
