//! What a sample by a timer's signal costs: the part that its handler cannot see, measured here; what the handler takes, it tells
//! with each sample.

use profiler_core::rate::{Cost, CostModel};

use super::Calibration;
use crate::sys::signal_cost;

/// Signals that are timed: some twenty milliseconds.
const SIGNALS: usize = 200;
/// What the handler takes before the first one has told (ns), and how far that may be off.
const HANDLER: Cost = Cost::new(1_500.0, 1_000.0);
/// A byte of stack that it copies (ns).
const BYTE: Cost = Cost::new(0.15, 0.1);
/// Part by which a signal that comes at a tick may cost more or less than one that comes at once.
const DOUBT: f64 = 0.1;

/// Measures it on the calling thread.
pub(crate) fn prepare() -> Calibration {
    let measured = signal_cost::measure(SIGNALS).ok().and_then(|found| outside(&found));
    let note = measured
        .is_none()
        .then(|| "the cost of a signal could not be measured; a cautious guess is used".to_owned());
    Calibration { model: model(measured.unwrap_or(Cost::new(8_000.0, 4_000.0))), note }
}

/// Of a handler that takes as usual.
fn model(outside: Cost) -> CostModel {
    CostModel {
        per_sample_ns: Cost::new(outside.mean_ns + HANDLER.mean_ns, outside.se_ns),
        per_frame_ns: Cost::default(),
        per_byte_ns: BYTE,
        per_switch_ns: Cost::default(),
        per_handler_ns: Some(HANDLER),
        ..CostModel::default()
    }
}

/// What the signal adds to a call that sends it at once: medians, since a neighbour's interrupt is no cost of ours.
fn outside(found: &[(u64, u64)]) -> Option<Cost> {
    let with = Sorted::new(found.iter().map(|(with, _)| *with as f64))?;
    let without = Sorted::new(found.iter().map(|(_, without)| *without as f64))?;
    let mean_ns = with.median() - without.median();
    let noise_ns = with.median_se().hypot(without.median_se());
    (mean_ns > 0.0).then(|| Cost::new(mean_ns, noise_ns.hypot(DOUBT * mean_ns)))
}

struct Sorted(Vec<f64>);

impl Sorted {
    fn new(times: impl Iterator<Item = f64>) -> Option<Self> {
        let mut times: Vec<f64> = times.collect();
        times.sort_by(f64::total_cmp);
        (times.len() >= 4).then_some(Self(times))
    }

    fn median(&self) -> f64 {
        self.0[self.0.len() / 2]
    }

    /// By the quartiles, as if the times were normal.
    fn median_se(&self) -> f64 {
        let (n, quarter) = (self.0.len(), self.0.len() / 4);
        0.93 * (self.0[n - 1 - quarter] - self.0[quarter]) / (n as f64).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disturbed_signal_changes_nothing_and_no_signal_is_no_cost() {
        let mut found = vec![(5_000, 1_000); 100];
        found[7] = (9_000_000, 1_000);
        let cost = outside(&found).unwrap();
        assert!((cost.mean_ns - 4_000.0).abs() < 1.0 && (400.0..500.0).contains(&cost.se_ns), "{cost:?}");
        assert_eq!(outside(&vec![(1_000, 1_000); 100]), None);
        assert_eq!(outside(&[(5_000, 1_000)]), None);
    }

    #[test]
    fn the_measured_cost_is_plausible_here() {
        let found = prepare();
        assert!(found.note.is_none() && found.model.is_plausible(), "{:?}", found.model);
    }
}
