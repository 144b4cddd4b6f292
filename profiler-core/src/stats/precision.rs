//! Is the profile precise enough, and if not, how long would it take?
//!
//! The question may be repeated while the profile grows: the answer holds at *all* looks together, with the
//! confidence of the table. An interval for one look does not: stopping when it is narrow enough selects the
//! moment. So the score is that of a confidence sequence ([`super::sequence::normal_mixture_score`]), tuned
//! to be tightest where this goal is reached, and Student's on top where few bouts were seen.

use super::confidence::Confidence;
use super::sequence::normal_mixture_score;
use super::table::{IntervalTable, Row};

/// A function below this share is nobody's goal, unless there is no larger one.
const LEAST_SHARE: f64 = 0.01;
/// Degrees of freedom that an inflation must have before a profile is called precise.
const LEAST_FREEDOM: f64 = 5.0;
/// The goals that make sense: ±.01% to ±100%.
const SANE_RELATIVE: (f64, f64) = (1e-4, 1.0);
/// Times the CPU time so far that are looked ahead, at most.
const HORIZON: f64 = 1e9;
/// Halvings of the logarithm of the time ahead.
const HALVINGS: usize = 50;

/// What a profile shall reach: the long-run shares of its top functions known this well.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Goal {
    /// Half the width of the interval over the share, .05 for ±5%.
    pub relative: f64,
    /// How many of the largest functions, those below 1% left out.
    pub top: usize,
}

impl Default for Goal {
    fn default() -> Self {
        Goal { relative: 0.05, top: 4 }
    }
}

/// How far a profile is from its [`Goal`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Precision {
    /// The largest relative half width of the goal's functions, valid at every look; 1: nothing is known.
    pub ratio: f64,
    /// Whether the goal is reached.
    pub converged: bool,
    /// CPU time of the target until it is, at the present rate (s): 0 when reached, `None` where nothing can be said.
    pub cpu_s_to_converge: Option<f64>,
}

impl Goal {
    /// Whether the goal is reached: each of the top functions' long-run shares is within `ratio` of what was seen, at
    /// this and all other looks.
    ///
    /// Never reached while [nothing is said of other runs](IntervalTable::inflation_is_known). A goal
    /// outside of ±.01% … ±100% is brought into it; NaN is taken for the default's.
    pub fn judge(&self, table: &IntervalTable) -> Precision {
        let relative = if self.relative.is_nan() { Goal::default().relative } else { self.relative };
        let relative = relative.clamp(SANE_RELATIVE.0, SANE_RELATIVE.1);
        if !table.inflation_is_known() {
            return Precision { ratio: 1.0, converged: false, cpu_s_to_converge: None };
        }
        let doubts = self.doubts(table);
        let ratio = widest(&doubts, relative, 1.0);
        let firm = doubts.iter().all(|doubt| doubt.freedom >= LEAST_FREEDOM);
        let converged = firm && ratio <= relative;
        let cpu_s = table.weight_ns() * 1e-9;
        let ahead = || growth(&doubts, relative).map(|growth| (growth - 1.0) * cpu_s).filter(|s| *s > 0.0);
        let cpu_s_to_converge = if converged { Some(0.0) } else { ahead() };
        Precision { ratio, converged, cpu_s_to_converge }
    }

    fn doubts(&self, table: &IntervalTable) -> Vec<Doubt> {
        let rows = table.order().iter().map(|index| &table.rows()[*index]);
        let top = rows.filter(|row| row.samples > 0).take(self.top.max(1));
        let counts = |(rank, row): &(usize, &Row)| *rank == 0 || row.share >= LEAST_SHARE;
        top.enumerate().filter(counts).map(|(_, row)| Doubt::of(row, table)).collect()
    }
}

/// What keeps a function's share from being known.
struct Doubt {
    /// The share's error over the share, squared, if samples were independent.
    variance: f64,
    inflation: f64,
    freedom: f64,
    confidence: Confidence,
}

impl Doubt {
    fn of(row: &Row, table: &IntervalTable) -> Self {
        let n = row.independent;
        // A sample more of something else: no share is 1 for certain.
        let rest = 1.0 - row.share + row.inflation / n;
        Doubt {
            variance: rest / (row.share * n),
            inflation: row.inflation,
            freedom: row.freedom,
            confidence: table.confidence().part(row.part),
        }
    }

    /// The relative half width after `growth` times the samples.
    fn ratio(&self, relative: f64, growth: f64) -> f64 {
        let variance = self.variance * self.inflation / growth;
        // Tightest at ten times the information of ±`relative`, that is with a score of 3 to 4.
        let score = normal_mixture_score(1.0 / variance, 1.0 / (relative * relative), self.confidence);
        let wider = self.student_over_normal(score, growth);
        score * wider * variance.sqrt()
    }

    fn student_over_normal(&self, score: f64, growth: f64) -> f64 {
        if self.inflation <= 1.0 || score.is_infinite() {
            return 1.0;
        }
        let confidence = Confidence::of_score(score);
        confidence.student_score(self.freedom * growth) / confidence.normal_score()
    }
}

/// The widest ratio after so many times the samples, at most 1; 1 without functions.
fn widest(doubts: &[Doubt], relative: f64, growth: f64) -> f64 {
    let ratios = doubts.iter().map(|doubt| doubt.ratio(relative, growth));
    if doubts.is_empty() { 1.0 } else { ratios.fold(0.0, |widest, ratio| ratio.min(1.0).max(widest)) }
}

/// How many times the samples reach the goal; `None` if not even very many.
fn growth(doubts: &[Doubt], relative: f64) -> Option<f64> {
    let reached = |growth: f64| {
        widest(doubts, relative, growth) <= relative
            && doubts.iter().all(|doubt| doubt.freedom * growth >= LEAST_FREEDOM)
    };
    if !reached(HORIZON) || doubts.is_empty() {
        return None;
    }
    let (mut short, mut enough) = (0.0, HORIZON.ln());
    for _ in 0..HALVINGS {
        let middle: f64 = 0.5 * (short + enough);
        if reached(middle.exp()) { enough = middle } else { short = middle }
    }
    Some(enough.exp())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::stats::{Part, WindowSums};

    /// Two functions, independent samples: `windows` of a thousand.
    fn table(windows: u32, rng: &mut fastrand::Rng) -> IntervalTable {
        let mut parts = [Vec::new(), Vec::new()];
        for window in 0..windows {
            let first = (0..1_000).filter(|_| rng.f64() < 0.4).count() as u64;
            for (parts, samples) in parts.iter_mut().zip([first, 1_000 - first]) {
                parts.push(Part { window, weight_ns: samples as f64 * 1e6, samples, ..Part::default() });
            }
        }
        let all = WindowSums { weight_ns: 1e9, samples: 1_000, ..WindowSums::default() };
        IntervalTable::new(&vec![all; windows as usize], &parts, Confidence::default())
    }

    #[test]
    fn a_goal_is_reached_when_it_said_it_would_be() {
        let goal = Goal::default();
        let mut rng = fastrand::Rng::with_seed(1);
        let early = goal.judge(&table(6, &mut rng));
        let ahead_s = early.cpu_s_to_converge.unwrap();
        assert!(!early.converged && early.ratio > 0.05 && ahead_s > 0.0, "{early:?}");
        // z = 3.5 of 60% to 40%: n = (3.5/.05)²·1.5 = 7,350 samples, or more where they seem to vary more.
        assert!((2.0..60.0).contains(&(6.0 + ahead_s)), "{early:?}");
        let late = goal.judge(&table(60, &mut rng));
        assert!(late.converged && late.ratio <= 0.05 && late.cpu_s_to_converge == Some(0.0), "{late:?}");
        let wider = Goal { relative: 0.5, top: 1 }.judge(&table(6, &mut rng));
        assert!(wider.converged, "{wider:?}");
    }

    /// 40% and 60% of 6,000 samples that vary less than chance: α = .0225 for the first, its error 1/√3,999 of the share,
    /// and a score of √(1.1·(2·ln(1/.0225) + ln 11)) = 3.31 for all looks, where one look would have 2.28.
    #[test]
    fn the_ratio_is_that_of_every_look() {
        let all = WindowSums { weight_ns: 1e9, samples: 1_000, ..WindowSums::default() };
        let steady = |samples: u64| {
            let part = |window| Part { window, weight_ns: samples as f64 * 1e6, samples, ..Part::default() };
            (0..6).map(part).collect::<Vec<_>>()
        };
        let table = IntervalTable::new(&[all; 6], &[steady(400), steady(600)], Confidence::default());
        let judged = Goal::default().judge(&table);
        assert!((judged.ratio - 0.0524).abs() < 2e-4 && !judged.converged, "{judged:?}");
    }

    #[test]
    fn too_little_is_never_precise() {
        let mut rng = fastrand::Rng::with_seed(1);
        let goal = Goal { relative: 1.0, top: 4 };
        assert!(!goal.judge(&table(5, &mut rng)).converged, "five windows show no inflation");
        let nothing = goal.judge(&table(0, &mut rng));
        assert_eq!(nothing, Precision { ratio: 1.0, converged: false, cpu_s_to_converge: None });
    }

    proptest! {
        #[test]
        fn it_judges_whatever_comes(relative: f64, top: usize, samples in 1u64..1 << 60, weight in 1.0..1e18f64) {
            let all = WindowSums { weight_ns: weight, samples, ..WindowSums::default() };
            let half = (0..9).map(|window| Part {
                window,
                weight_ns: weight / 2.0,
                samples: samples / 2,
                ..Part::default()
            });
            let table = IntervalTable::new(&[all; 9], &[half.collect::<Vec<_>>()], Confidence::default());
            let precision = Goal { relative, top }.judge(&table);
            prop_assert!((0.0..=1.0).contains(&precision.ratio), "{precision:?}");
            prop_assert!(precision.cpu_s_to_converge.is_none_or(|s| s.is_finite() && s >= 0.0), "{precision:?}");
        }
    }
}
