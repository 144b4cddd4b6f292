//! The present cost of an interrupt on this host, compared with the cost at the calibration.
//!
//! A calibration is right for the host it was taken on. A host that becomes busy, or a virtual machine that
//! moves to another one, has more expensive interrupts, and nothing in the target shows it: the kernel's
//! handler only measures itself. So a thread of the profiler's own spins for a moment every few seconds under
//! a clock of its own, and measures how long each sample delays it. The calibration did the same, so the two
//! figures can be compared. Where they differ by more than their errors, the costs follow what is seen.
//!
//! The factor only moves beyond three tenths: two measurements of an unchanged virtual machine differ by half
//! of that. The probe's clock is that of its thread, not of its CPU: a thread clock stops while another task
//! runs, which would otherwise look like a long interrupt.

use std::collections::VecDeque;

use super::cost::Cost;

/// Most measurements that count: those of a minute.
const MOST: usize = 12;
/// The latest measurements: if their median differs from the mean of the others, the host has changed, and the others
/// are forgotten.
const LATEST: usize = 3;
/// Fewest times in a valid measurement.
const FEWEST: usize = 4;
/// Longest plausible time (ns).
const LONGEST_NS: f64 = 1e9;
/// A time longer than this many medians is not an interrupt: another task ran.
const MUCH: f64 = 20.0;
/// Difference between measurements on an unchanged host, as a share, besides their noise.
const SYSTEMATIC: f64 = 0.15;
/// Standard errors within which two figures agree.
const AGREE: f64 = 2.0;
/// Standard errors within which two figures must come to agree again after they differed.
const CLOSE: f64 = 1.0;

/// The result of a measurement: the mean time for which single interrupts delayed a thread (ns). `None` if there are
/// too few times.
pub fn interrupt_cost(times_ns: &[f64]) -> Option<Cost> {
    let mut times: Vec<f64> = times_ns.iter().copied().filter(|ns| (1.0..=LONGEST_NS).contains(ns)).collect();
    times.sort_by(f64::total_cmp);
    let longest_ns = MUCH * times.get(times.len() / 2)?;
    times.retain(|ns| *ns <= longest_ns);
    let n = times.len() as f64;
    let mean_ns = times.iter().sum::<f64>() / n;
    let squares: f64 = times.iter().map(|ns| (ns - mean_ns).powi(2)).sum();
    (times.len() >= FEWEST).then(|| Cost::new(mean_ns, (squares / (n * (n - 1.0))).sqrt()))
}

/// The present cost of an interrupt over that when the machine was calibrated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct InterruptCostChange {
    /// The factor; 1 where the two agree.
    pub(super) factor: f64,
    /// Its standard error.
    pub(super) se: f64,
}

impl InterruptCostChange {
    const NONE: InterruptCostChange = InterruptCostChange { factor: 1.0, se: 0.0 };
}

/// Follows what interrupts cost on this host.
#[derive(Clone, Debug)]
pub(super) struct Interrupts {
    /// `None` if the calibration did not measure it.
    calibrated: Option<Cost>,
    recent: VecDeque<Cost>,
    /// Whether the two figures have differed, and not come close again since.
    differ: bool,
    /// The result for the present measurements: it is read several times at each step.
    change: InterruptCostChange,
}

impl Interrupts {
    pub(super) fn new(calibrated: Option<Cost>) -> Self {
        Interrupts {
            calibrated,
            recent: VecDeque::with_capacity(MOST + 1),
            differ: false,
            change: InterruptCostChange::NONE,
        }
    }

    /// Takes in a measurement. A failed one discards all earlier ones.
    pub(super) fn observe(&mut self, times_ns: &[f64]) {
        self.remember(times_ns);
        self.change = self.compare();
    }

    fn remember(&mut self, times_ns: &[f64]) {
        let Some(cost) = interrupt_cost(times_ns) else {
            self.recent.clear();
            return;
        };
        self.recent.push_back(cost);
        let earlier = self.recent.len().saturating_sub(LATEST);
        let (before, latest) = (usual(self.recent.range(..earlier)), usual(self.recent.range(earlier..)));
        let has_changed = before.zip(latest).is_some_and(|(before, latest)| {
            let (factor, error) = compared(latest, before);
            (factor - 1.0).abs() > AGREE * error
        });
        if has_changed {
            self.recent.drain(..earlier);
        } else if self.recent.len() > MOST {
            self.recent.pop_front();
        }
        if let Some((factor, error)) = self.of_calibrated(self.now()) {
            let bound = if self.differ { CLOSE } else { AGREE };
            self.differ = (factor - 1.0).abs() > bound * error;
        }
    }

    /// The present cost of an interrupt. `None` before it was measured.
    pub(super) fn now(&self) -> Option<Cost> {
        usual(self.recent.iter())
    }

    /// The factor for the calibrated cost of an interrupt. A latest measurement above it only widens the error, at
    /// once; the factor follows when a second measurement confirms it.
    pub(super) fn change(&self) -> InterruptCostChange {
        self.change
    }

    fn compare(&self) -> InterruptCostChange {
        let (now, latest) = (self.of_calibrated(self.now()), self.of_calibrated(self.recent.back().copied()));
        let Some(((factor, error), (latest, latest_error))) = now.zip(latest) else {
            return InterruptCostChange::NONE;
        };
        let mut change = match self.differ && self.recent.len() > 1 {
            true => InterruptCostChange { factor, se: factor * error },
            false => InterruptCostChange::NONE,
        };
        if latest > change.factor * (1.0 + AGREE * latest_error) {
            change.se = change.se.max(0.5 * (latest - change.factor)); // so that its upper end is the latest
        }
        change
    }

    fn of_calibrated(&self, cost: Option<Cost>) -> Option<(f64, f64)> {
        Some(compared(cost?, self.calibrated?))
    }
}

/// One cost over another, and the relative error of that ratio.
fn compared(cost: Cost, other: Cost) -> (f64, f64) {
    let parts = [cost.se_ns / cost.mean_ns, other.se_ns / other.mean_ns, SYSTEMATIC];
    (cost.mean_ns / other.mean_ns, parts.iter().map(|part| part * part).sum::<f64>().sqrt())
}

/// The lower median of few measurements, the mean of more without the lowest and the highest: a single one may be off.
fn usual<'a>(measured: impl Iterator<Item = &'a Cost>) -> Option<Cost> {
    let mut measured: Vec<Cost> = measured.copied().collect();
    measured.sort_by(|a, b| a.mean_ns.total_cmp(&b.mean_ns));
    if measured.len() <= LATEST {
        return measured.get(measured.len().saturating_sub(1) / 2).copied();
    }
    let inner = &measured[1..measured.len() - 1];
    let n = inner.len() as f64;
    let mean_ns = inner.iter().map(|cost| cost.mean_ns).sum::<f64>() / n;
    let squares: f64 = inner.iter().map(|cost| cost.se_ns * cost.se_ns).sum();
    Some(Cost::new(mean_ns, squares.sqrt() / n))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn times(mean_ns: f64) -> [f64; 10] {
        std::array::from_fn(|at| mean_ns * (0.9 + 0.2 * at as f64 / 9.0))
    }

    fn after(means_ns: &[f64]) -> Interrupts {
        let mut interrupts = Interrupts::new(Some(Cost::new(10_000.0, 500.0)));
        means_ns.iter().for_each(|mean_ns| interrupts.observe(&times(*mean_ns)));
        interrupts
    }

    #[test]
    fn what_agrees_changes_nothing() {
        assert_eq!(after(&[]).change(), InterruptCostChange::NONE);
        assert_eq!(after(&[11_000.0, 9_000.0, 12_500.0]).change(), InterruptCostChange::NONE);
        let mut uncalibrated = Interrupts::new(None);
        uncalibrated.observe(&times(50_000.0));
        assert_eq!((uncalibrated.change(), uncalibrated.now().is_some()), (InterruptCostChange::NONE, true));
    }

    #[test]
    fn a_step_widens_at_once_and_is_followed_at_the_second_measurement() {
        let first = after(&[10_000.0, 10_000.0, 200_000.0]).change();
        assert!(first.factor == 1.0 && (first.factor + 2.0 * first.se - 20.0).abs() < 0.1, "{first:?}");
        let second = after(&[10_000.0, 10_000.0, 200_000.0, 200_000.0]).change();
        assert!((second.factor - 20.0).abs() < 0.1 && second.se < 5.0, "{second:?}");
        let back = after(&[200_000.0, 200_000.0, 10_000.0, 10_000.0]).change();
        assert_eq!(back, InterruptCostChange::NONE);
        let alone = after(&[200_000.0]).change();
        assert!(alone.factor == 1.0 && alone.se > 9.0, "{alone:?}");
        let cheaper = after(&[4_000.0; 3]).change();
        assert!((cheaper.factor - 0.4).abs() < 0.01, "{cheaper:?}");
    }

    #[test]
    fn what_hardly_differs_does_not_come_and_go() {
        let mut interrupts = after(&[15_000.0; 3]);
        assert!(interrupts.change().factor > 1.3);
        for mean_ns in [12_500.0, 13_500.0, 12_500.0, 13_500.0] {
            interrupts.observe(&times(mean_ns));
            assert!(interrupts.change().factor > 1.2, "{:?}", interrupts.change());
        }
        interrupts.observe(&[]);
        assert_eq!(
            (interrupts.change(), interrupts.now()),
            (InterruptCostChange::NONE, None),
            "nothing is known any more"
        );
    }

    #[test]
    fn whoever_got_the_cpu_meanwhile_is_no_interrupt() {
        let mut held = times(10_000.0).to_vec();
        held.push(3_000_000.0);
        let cost = interrupt_cost(&held).unwrap();
        assert!((cost.mean_ns - 10_000.0).abs() < 1.0 && cost.se_ns < 300.0, "{cost:?}");
        assert_eq!(interrupt_cost(&held[..3]), None);
    }

    proptest! {
        #[test]
        fn hostile_times_do_no_harm(
            mean_ns in any::<f64>(), se_ns in any::<f64>(),
            measured in prop::collection::vec(prop::collection::vec(any::<f64>(), 0..20), 0..6),
        ) {
            let calibrated = Some(Cost::new(mean_ns, se_ns)).filter(|cost| cost.is_valid() && mean_ns > 0.0);
            let mut interrupts = Interrupts::new(calibrated);
            measured.iter().for_each(|times| interrupts.observe(times));
            let InterruptCostChange { factor, se } = interrupts.change();
            prop_assert!(factor > 0.0 && se >= 0.0, "{factor} {se}");
        }
    }
}
