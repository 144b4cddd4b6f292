//! A mean and its interval, of measurements that are independent.

use super::confidence::Confidence;
use super::interval::Interval;

/// The mean of some measurements, and how they scatter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mean {
    /// x̄ = Σx/n (Lilja 2000, "The Sample Mean").
    pub mean: f64,
    /// s = √(Σ(x−x̄)²/(n−1)) (Lilja 2000, "Variance"); infinite of a single measurement, which says nothing of it.
    pub deviation: f64,
    /// How many there were.
    pub count: usize,
}

impl Mean {
    /// The mean of measurements in any unit; `None` of none, or where one is not finite, or their squares are not.
    pub fn of(values: &[f64]) -> Option<Mean> {
        let n = values.len() as f64;
        let mean = values.iter().map(|x| x / n).sum::<f64>();
        let squares: f64 = values.iter().map(|x| (x - mean).powi(2)).sum();
        let deviation = if values.len() > 1 { (squares / (n - 1.0)).sqrt() } else { f64::INFINITY };
        (!values.is_empty() && squares.is_finite()).then_some(Mean { mean, deviation, count: values.len() })
    }

    /// x̄ ± t·s/√n with Student's t at n−1 degrees of freedom (Lilja 2000, "Confidence Intervals", case 2), in the
    /// measurements' unit.
    ///
    /// The unit's ends are not 0 and 1; of a single measurement they are infinite.
    pub fn interval(&self, confidence: Confidence) -> Interval {
        let half = confidence.student_score(self.count as f64 - 1.0) * self.error();
        Interval { low: self.mean - half, high: self.mean + half }
    }

    /// s/√n: the standard error of the mean.
    pub fn error(&self) -> f64 {
        self.deviation / (self.count as f64).sqrt()
    }
}

/// n/Σ(1/x): the mean of rates over equal amounts of work (Lilja 2000, "Harmonic Mean"); `None` of none, or where one
/// is not a finite number above zero.
pub fn harmonic_mean(rates: &[f64]) -> Option<f64> {
    let sound = rates.iter().all(|rate| *rate > 0.0 && rate.is_finite());
    let mean = rates.len() as f64 / rates.iter().map(|rate| 1.0 / rate).sum::<f64>();
    (sound && mean > 0.0 && mean.is_finite()).then_some(mean)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn within(interval: Interval, low: f64, high: f64) {
        assert!((interval.low - low).abs() < 0.006 && (interval.high - high).abs() < 0.006, "{interval:?}");
    }

    /// Lilja 2000, "How long does it take to write a file?" (s).
    const DISK: [f64; 8] = [8.0, 7.0, 5.0, 9.0, 9.5, 11.3, 5.2, 8.5];

    #[test]
    fn the_lectures_disk() {
        let disk = Mean::of(&DISK).unwrap();
        assert!((disk.mean - 7.9375).abs() < 1e-9 && (disk.deviation - 2.1447).abs() < 5e-5, "{disk:?}");
        within(disk.interval(Confidence::new(0.9)), 6.50, 9.37);
        within(disk.interval(Confidence::new(0.95)), 6.14, 9.73);
    }

    #[test]
    fn the_lectures_means() {
        let mean = |values: &[f64]| Mean::of(values).unwrap().mean;
        assert!((mean(&[10.0, 20.0, 15.0, 18.0, 16.0]) - 15.8).abs() < 1e-12);
        assert!((mean(&[10.0, 20.0, 15.0, 18.0, 16.0, 200.0]) - 46.5).abs() < 1e-12);
        // 10⁹ operations over seconds; the slide's own sums are off.
        let rates = [(130.0, 312.0), (160.0, 436.0), (115.0, 284.0), (252.0, 601.0), (187.0, 482.0)]
            .map(|(work, seconds)| 1_000.0 * work / seconds);
        assert!((harmonic_mean(&rates).unwrap() - 398.2).abs() < 0.05);
    }

    #[test]
    fn the_edges_are_defined() {
        assert_eq!(Mean::of(&[]), None);
        assert_eq!(Mean::of(&[1.0, f64::NAN]), None);
        let single = Mean::of(&[3.0]).unwrap().interval(Confidence::default());
        assert_eq!((single.low, single.high), (f64::NEG_INFINITY, f64::INFINITY));
        assert_eq!(harmonic_mean(&[]), None);
        assert_eq!(harmonic_mean(&[1.0, 0.0]), None);
    }

    proptest! {
        #[test]
        fn the_mean_lies_within_its_interval(values in prop::collection::vec(any::<f64>(), 0..9), level: f64) {
            if let Some(mean) = Mean::of(&values) {
                let ends = mean.interval(Confidence::new(level));
                prop_assert!(ends.low <= mean.mean && mean.mean <= ends.high, "{mean:?} {ends:?}");
            }
            prop_assert!(harmonic_mean(&values).is_none_or(|mean| mean > 0.0));
        }
    }
}
