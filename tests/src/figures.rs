//! Medians, their bootstrap intervals, and tables.

/// The median; 0 of nothing.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// The 95% percentile-bootstrap interval of the median; everything where there are too few values to tell.
pub fn median_interval(values: &[f64]) -> (f64, f64) {
    const RESAMPLES: usize = 4000;
    const FEWEST: usize = 3;
    if values.len() < FEWEST {
        return (f64::NEG_INFINITY, f64::INFINITY);
    }
    let mut random = Random(0x5eed);
    let mut medians: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            let resample: Vec<f64> = values.iter().map(|_| values[random.below(values.len())]).collect();
            median(&resample)
        })
        .collect();
    medians.sort_by(f64::total_cmp);
    (medians[RESAMPLES / 40], medians[RESAMPLES - RESAMPLES / 40 - 1])
}

/// A seeded generator (SplitMix64), so that an interval can be computed again.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }
}

/// Rows with their columns aligned, the first row being the heads.
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_string() + "\n"
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::{median, median_interval, table};

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    #[test]
    fn the_interval_of_the_median_holds_it_and_is_narrower_than_the_values() {
        let values: Vec<f64> = (0..101).map(f64::from).collect();
        let (low, high) = median_interval(&values);
        assert!(0.0 < low && low < 50.0 && 50.0 < high && high < 100.0);
        assert_eq!(median_interval(&values[..2]), (f64::NEG_INFINITY, f64::INFINITY));
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [vec!["a".to_string(), "b".to_string()], vec!["long".to_string(), "c".to_string()]];
        assert_eq!(table(&rows), "a     b\nlong  c\n");
    }
}
