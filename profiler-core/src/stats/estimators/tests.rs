use proptest::prelude::*;

use super::*;

#[test]
fn indices_are_the_seeds_and_stay_within_the_runs() {
    let of = |runs: &[f64]| {
        let estimate = RunTime::of(runs).unwrap();
        (estimate.average, estimate.median, estimate.lower_quartile, estimate.minimum)
    };
    assert_eq!(of(&[5.0]), (5.0, 5.0, 5.0, 5.0));
    assert_eq!(of(&[4.0, 2.0]), (3.0, 3.0, 2.0, 2.0));
    assert_eq!(of(&[9.0, 1.0, 2.0]), (4.0, 2.0, 1.0, 1.0));
    assert_eq!(of(&[4.0, 1.0, 3.0, 2.0]), (2.5, 2.5, 1.5, 1.0));
    assert_eq!(of(&[16.0, 8.0, 4.0, 2.0, 1.0]), (6.2, 4.0, 1.5, 1.0));
    assert_eq!(of(&[64.0, 32.0, 16.0, 8.0, 4.0, 2.0, 1.0]), (127.0 / 7.0, 8.0, 2.0, 1.0));
}

/// Odd sizes of a group of runs in Table 1.
const SIZES: [usize; 10] = [1, 3, 5, 7, 9, 11, 13, 15, 17, 19];

/// Haveraaen and Hundvebakke 2001, Table 1: a row of averages (s) and relative standard deviations (%), for k
/// of [`SIZES`].
struct Row {
    pick: fn(&RunTime) -> f64,
    /// How far off the surrogates may be: the average (%), the deviation (percentage points). The runs behind
    /// the table are 87 and 338, so it varies itself, the medians most of all.
    tolerance: (f64, f64),
    low: [(f64, f64); 10],
    high: [(f64, f64); 10],
}

#[rustfmt::skip]
const TABLE_1: [Row; 4] = [
    Row {
        pick: |estimate| estimate.average,
        tolerance: (0.4, 0.8),
        low: [(344., 16.), (344., 9.5), (344., 7.0), (344., 5.6), (344., 5.0), (344., 4.5), (344., 4.0), (344., 3.5), (344., 3.2), (344., 2.9)],
        high: [(387., 19.), (387., 11.), (387., 8.9), (387., 7.8), (387., 6.9), (387., 6.4), (387., 5.9), (387., 5.6), (387., 5.3), (387., 5.1)],
    },
    Row {
        pick: |estimate| estimate.median,
        tolerance: (1.4, 2.8),
        low: [(344., 16.), (332., 10.), (328., 9.0), (321., 6.1), (319., 4.6), (318., 2.9), (318., 3.0), (317., 2.9), (316., 1.4), (316., 1.2)],
        high: [(387., 19.), (377., 15.), (374., 13.), (373., 11.), (372., 11.), (370., 9.5), (370., 8.4), (369., 8.0), (369., 7.8), (369., 7.6)],
    },
    Row {
        pick: |estimate| estimate.lower_quartile,
        tolerance: (0.5, 1.2),
        low: [(344., 16.), (315., 4.4), (313., 1.2), (313., 0.88), (313., 0.67), (312., 0.56), (312., 0.36), (312., 0.19), (312., 0.096), (312., 0.071)],
        high: [(387., 19.), (332., 9.9), (332., 7.6), (329., 7.6), (328., 6.6), (326., 6.6), (326., 5.8), (325., 5.7), (325., 5.3), (324., 5.3)],
    },
    Row {
        pick: |estimate| estimate.minimum,
        tolerance: (0.5, 1.2),
        low: [(344., 16.), (315., 4.4), (312., 0.64), (312., 0.14), (312., 0.095), (312., 0.089), (312., 0.083), (312., 0.080), (312., 0.076), (311., 0.072)],
        high: [(387., 19.), (332., 9.9), (321., 6.0), (317., 4.3), (315., 2.7), (314., 2.0), (313., 0.67), (313., 0.52), (313., 0.44), (312., 0.41)],
    },
];

fn exponential(rng: &mut fastrand::Rng, mean: f64) -> f64 {
    -mean * (1.0 - rng.f64()).ln()
}

/// Draws the time of a run (s).
type Load = fn(&mut fastrand::Rng) -> f64;

/// A run (s) on a machine of little load: 311.6 s, and half of the runs have an exponential tail.
fn run_at_low_load(rng: &mut fastrand::Rng) -> f64 {
    311.6 + if rng.f64() < 0.52 { exponential(rng, 61.6) } else { 0.0 }
}

/// A run (s) on a loaded machine: 311.8 s, and three quarters have a tail of Gamma(2, 50).
fn run_at_high_load(rng: &mut fastrand::Rng) -> f64 {
    311.8 + if rng.f64() < 0.75 { exponential(rng, 50.0) + exponential(rng, 50.0) } else { 0.0 }
}

/// The mean (s) and the relative standard deviation (%) of an estimate over many groups of `k` runs.
fn spread(k: usize, pick: fn(&RunTime) -> f64, run: Load) -> (f64, f64) {
    const GROUPS: usize = 4_000;
    let mut rng = fastrand::Rng::with_seed(k as u64);
    let mut estimate = || {
        let group: Vec<f64> = std::iter::repeat_with(|| run(&mut rng)).take(k).collect();
        pick(&RunTime::of(&group).unwrap())
    };
    let estimates: Vec<f64> = std::iter::repeat_with(&mut estimate).take(GROUPS).collect();
    let mean = estimates.iter().sum::<f64>() / GROUPS as f64;
    let variance = estimates.iter().map(|estimate| (estimate - mean).powi(2)).sum::<f64>() / GROUPS as f64;
    (mean, 100.0 * variance.sqrt() / mean)
}

#[test]
fn table_1_is_what_the_surrogates_give() {
    let mut off = Vec::new();
    for (index, row) in TABLE_1.iter().enumerate() {
        for (column, &k) in SIZES.iter().enumerate() {
            for (printed, run) in
                [(row.low[column], run_at_low_load as Load), (row.high[column], run_at_high_load)]
            {
                let seen = spread(k, row.pick, run);
                let error = (100.0 * (seen.0 / printed.0 - 1.0), seen.1 - printed.1);
                if error.0.abs() > row.tolerance.0 || error.1.abs() > row.tolerance.1 {
                    off.push(format!("row {index}, k = {k}: {seen:?}, printed {printed:?}"));
                }
            }
        }
    }
    assert!(off.is_empty(), "{}", off.join("\n"));
}

#[test]
fn the_minimum_is_the_steadiest_estimate_of_what_a_program_needs() {
    let deviation = |pick| spread(11, pick, run_at_high_load).1;
    let [average, median, quartile, minimum] = TABLE_1.map(|row| deviation(row.pick));
    assert!(minimum < average.min(median).min(quartile) / 2.0, "{average} {median} {quartile} {minimum}");
}

proptest! {
    #[test]
    fn estimates_are_ordered_whatever_comes(runs in prop::collection::vec(any::<f64>(), 0..60)) {
        let valid = runs.iter().filter(|run| run.is_finite() && **run >= 0.0).count();
        match RunTime::of(&runs) {
            None => prop_assert_eq!(valid, 0),
            Some(it) => {
                prop_assert_eq!(it.runs, valid);
                prop_assert!(it.minimum <= it.lower_quartile && it.lower_quartile <= it.median, "{:?}", it);
                prop_assert!(it.average >= it.minimum * (1.0 - 1e-12) && it.average.is_finite() && it.median.is_finite());
            }
        }
    }
}

/// Lilja 2000, pages on the mean and the median: one outlier moves the mean to 46.5, and the median to 17.
#[test]
fn an_outlier_leaves_the_median_where_it_was() {
    let run_time = RunTime::of(&[10.0, 20.0, 15.0, 18.0, 16.0, 200.0]).unwrap();
    assert_eq!((run_time.average, run_time.median), (46.5, 17.0));
}
