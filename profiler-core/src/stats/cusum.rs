//! Has a share changed? Two-sided cumulative sums (CUSUM) of how far each window is off what is remembered.
//!
//! With slack k = ½ and threshold h = 5, in standard deviations, steadiness raises a false alarm about once
//! in 465 windows, and a shift by 1 is found in 10, by 3 in 3 (Page 1954).

/// Half the shift that is looked for, in standard deviations.
const SLACK: f64 = 0.5;
/// Sum at which a change is believed.
const THRESHOLD: f64 = 5.0;

/// The sums of one share.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cusum {
    up: f64,
    down: f64,
}

impl Cusum {
    /// Takes in a window's deviation in standard deviations of *independent* samples, divided by √VIF; true once a change
    /// is believed, and until [`Cusum::default`] starts anew. NaN, which says nothing, changes nothing.
    pub fn observe(&mut self, deviation: f64, inflation: f64) -> bool {
        let z = deviation / inflation.max(1.0).sqrt();
        if !z.is_nan() {
            self.up = (self.up + z - SLACK).max(0.0);
            self.down = (self.down - z - SLACK).max(0.0);
        }
        self.up.max(self.down) > THRESHOLD
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use statrs::distribution::{ContinuousCDF, Normal};

    use super::*;

    /// Mean windows until an alarm, at a shift (in standard deviations).
    fn run_length(shift: f64) -> f64 {
        let mut rng = fastrand::Rng::with_seed(5);
        let mut normal = || Normal::standard().inverse_cdf(rng.f64().clamp(1e-12, 1.0 - 1e-12));
        let runs = 300;
        let mut windows = 0;
        for _ in 0..runs {
            let mut cusum = Cusum::default();
            windows += 1;
            while !cusum.observe(2.0 * (normal() + shift), 4.0) {
                windows += 1;
            }
        }
        f64::from(windows) / f64::from(runs)
    }

    #[test]
    fn it_is_quick_to_find_a_shift_and_slow_to_cry_wolf() {
        assert!((380.0..560.0).contains(&run_length(0.0)), "{}", run_length(0.0));
        for (shift, expected) in [(1.0, 10.4), (-1.0, 10.4), (3.0, 2.6)] {
            let found = run_length(shift);
            assert!((found / expected - 1.0).abs() < 0.1, "{shift}: {found}");
        }
    }

    proptest! {
        #[test]
        fn it_takes_whatever_comes(deviations in prop::collection::vec((any::<f64>(), any::<f64>()), 0..20)) {
            let mut cusum = Cusum::default();
            for (deviation, inflation) in deviations {
                cusum.observe(deviation, inflation);
                prop_assert!(cusum.up >= 0.0 && cusum.down >= 0.0);
            }
        }
    }
}
