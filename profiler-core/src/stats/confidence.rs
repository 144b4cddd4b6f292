//! A level of confidence, and the scores that belong to it.

use statrs::distribution::{ContinuousCDF, Normal, StudentsT};

/// The level taken where none was given that means anything.
const USUAL_ALPHA: f64 = 0.05;
/// Levels that a person may ask for: 50% to 99.9999%.
const ASKED_ALPHA: (f64, f64) = (1e-6, 0.5);
/// The least error that a split may leave; below it the scores mean nothing any more.
const LEAST_ALPHA: f64 = 1e-12;
/// Degrees of freedom from which Student's distribution is the normal one.
const MANY: f64 = 1e6;

/// How often an interval shall hold the truth: a level such as .95, kept as the error α that it leaves.
///
/// Never out of range: what is asked for is brought to 50% … 99.9999%, and what is split off from it leaves an
/// error of at least 10⁻¹².
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Confidence {
    alpha: f64,
}

impl Default for Confidence {
    fn default() -> Self {
        Confidence { alpha: USUAL_ALPHA }
    }
}

impl Confidence {
    /// The confidence of a level (.95), brought to .5 … .999999; NaN is taken for .95.
    pub fn new(level: f64) -> Self {
        if level.is_nan() {
            return Confidence::default();
        }
        Confidence { alpha: (1.0 - level).clamp(ASKED_ALPHA.0, ASKED_ALPHA.1) }
    }

    /// The confidence that a two-sided standard score stands for; NaN and less than 0 stand for none.
    pub fn of_score(z: f64) -> Self {
        Confidence { alpha: (2.0 * Normal::standard().sf(z.max(0.0))).max(LEAST_ALPHA) }
    }

    /// The level, such as .95.
    pub fn level(self) -> f64 {
        1.0 - self.alpha
    }

    /// The error that is left, such as .05.
    pub fn alpha(self) -> f64 {
        self.alpha
    }

    /// What each of `m` statements needs for all to hold together (Bonferroni): the error α/m.
    pub fn split(self, m: usize) -> Self {
        self.part(1.0 / m.max(1) as f64)
    }

    /// What a statement needs that gets this part of the error: α·part. Parts of all statements may sum to 1.
    ///
    /// A part outside of 0 … 1 is brought into it; NaN is taken for 0.
    pub fn part(self, part: f64) -> Self {
        let part = if part.is_nan() { 0.0 } else { part.clamp(0.0, 1.0) };
        Confidence { alpha: (self.alpha * part).max(LEAST_ALPHA) }
    }

    /// The standard score z of a two-sided interval: 1.96 for 95%.
    pub fn normal_score(self) -> f64 {
        -Normal::standard().inverse_cdf(self.alpha / 2.0)
    }

    /// Student's score t of a two-sided interval with so many degrees of freedom: 2.36 for 95% and 7.
    ///
    /// Freedoms need not be whole. Less than 1, and NaN, are taken for 1.
    pub fn student_score(self, freedom: f64) -> f64 {
        let z = self.normal_score();
        if freedom >= MANY {
            return z;
        }
        let freedom = freedom.max(1.0); // f64::max takes the 1 of a NaN
        match StudentsT::new(0.0, 1.0, freedom) {
            Ok(student) => refine(&student, self.alpha / 2.0, wallace(z, freedom)).max(z),
            Err(_) => z,
        }
    }
}

/// Wallace's approximation, t² = ν(exp(z²((8ν+3)/(8ν+1))²/ν) − 1), within a percent from ν = 3.
fn wallace(z: f64, freedom: f64) -> f64 {
    let corrected = z * (8.0 * freedom + 3.0) / (8.0 * freedom + 1.0);
    (freedom * (corrected * corrected / freedom).exp_m1()).sqrt()
}

/// Newton's steps on ln(tail) against ln t, which is almost straight far out. The library's own inverse gives up
/// there, or does not end.
fn refine(student: &StudentsT, tail: f64, guess: f64) -> f64 {
    use statrs::distribution::Continuous;
    let mut t = guess;
    for _ in 0..6 {
        let at = student.sf(t);
        let slope = t * student.pdf(t) / at;
        let step = (at / tail).ln() / slope;
        if !step.is_finite() {
            return guess;
        }
        t *= step.clamp(-2.0, 2.0).exp();
        if step.abs() < 1e-5 {
            // The next one would be of its square.
            break;
        }
    }
    t
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn scores_are_those_of_the_tables() {
        let level = |level| Confidence::new(level);
        for (score, expected) in [
            (level(0.95).normal_score(), 1.959_964),
            (level(0.9).normal_score(), 1.644_854),
            (level(0.9).student_score(7.0), 1.894_579),
            (level(0.95).student_score(7.0), 2.364_624),
            (level(0.95).student_score(1.0), 12.706_205),
            (level(0.99).student_score(2.0), 9.924_843),
            (level(0.999).student_score(4.0), 8.610_302),
            (level(0.95).student_score(f64::INFINITY), 1.959_964),
            (level(0.5).student_score(1.0), 1.0),
        ] {
            assert!((score / expected - 1.0).abs() < 1e-6, "{score} {expected}");
        }
    }

    #[test]
    fn a_split_leaves_its_part_of_the_error() {
        let split = Confidence::new(0.95).split(50);
        assert!((split.alpha() - 0.001).abs() < 1e-15 && (split.normal_score() - 3.290_527).abs() < 1e-6);
        assert_eq!(Confidence::new(0.95).split(0), Confidence::new(0.95));
        assert_eq!(Confidence::new(f64::NAN), Confidence::default());
        assert!((Confidence::of_score(1.959_964).alpha() - 0.05).abs() < 1e-7);
    }

    proptest! {
        #[test]
        fn a_score_is_a_number_and_grows_with_the_level(level: f64, part: f64, freedom: f64, m: usize) {
            let asked = Confidence::new(level);
            for confidence in [asked, asked.split(m), asked.part(part), asked.split(m).part(part)] {
                let (z, t) = (confidence.normal_score(), confidence.student_score(freedom));
                prop_assert!(z.is_finite() && t.is_finite() && z > 0.0, "{confidence:?} {z} {t}");
                prop_assert!(t >= z && z >= asked.normal_score());
            }
        }

        #[test]
        fn a_score_leaves_its_tail(level in 0.5..0.999_999f64, m in 1usize..100_000, freedom in 1.0..1e5f64) {
            let confidence = Confidence::new(level).split(m);
            let student = StudentsT::new(0.0, 1.0, freedom).unwrap();
            let tail = 2.0 * student.sf(confidence.student_score(freedom));
            prop_assert!((tail / confidence.alpha() - 1.0).abs() < 1e-6, "{tail} {}", confidence.alpha());
        }
    }
}
