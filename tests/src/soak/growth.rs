//! Whether a figure grows: the slope of a line through it, with an interval that allows for correlated neighbours.

use crate::figures::median;

/// Per hour.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Growth {
    /// Slope.
    pub(super) slope: f64,
    /// Half of its 95% interval; infinite where there are too few values.
    pub(super) half: f64,
    /// Largest value.
    pub(super) most: f64,
}

const HOUR_MS: f64 = 3_600_000.0;
const MINUTE_MS: u64 = 60_000;
/// Fewest minutes for a slope.
const FEWEST: usize = 5;

/// The growth of values at moments (ms), averaged by the minute so that each minute counts the same.
pub(super) fn growth(values: &[(u64, f64)]) -> Growth {
    let most = values.iter().map(|value| value.1).fold(0.0, f64::max);
    let minutes = by_minute(values);
    if minutes.len() < FEWEST {
        return Growth { slope: 0.0, half: f64::INFINITY, most };
    }
    let n = minutes.len() as f64;
    let mean_x = minutes.iter().map(|point| point.0).sum::<f64>() / n;
    let mean_y = minutes.iter().map(|point| point.1).sum::<f64>() / n;
    let xx: f64 = minutes.iter().map(|point| (point.0 - mean_x).powi(2)).sum();
    let slope = minutes.iter().map(|point| (point.0 - mean_x) * (point.1 - mean_y)).sum::<f64>() / xx;
    let rest: Vec<f64> = minutes.iter().map(|point| point.1 - mean_y - slope * (point.0 - mean_x)).collect();
    let squares: f64 = rest.iter().map(|rest| rest * rest).sum();
    // What follows a high value is high: as many values tell less.
    let alike = rest.windows(2).map(|pair| pair[0] * pair[1]).sum::<f64>() / squares.max(f64::MIN_POSITIVE);
    let alike = alike.clamp(0.0, 0.9);
    let error = (squares / (n - 2.0) / xx * (1.0 + alike) / (1.0 - alike)).sqrt();
    Growth { slope, half: 2.2 * error, most }
}

fn by_minute(values: &[(u64, f64)]) -> Vec<(f64, f64)> {
    let same_minute = |a: &(u64, f64), b: &(u64, f64)| a.0 / MINUTE_MS == b.0 / MINUTE_MS;
    let point = |minute: &[(u64, f64)]| {
        let values: Vec<f64> = minute.iter().map(|value| value.1).collect();
        (minute[0].0 as f64 / HOUR_MS, median(&values))
    };
    values.chunk_by(same_minute).map(point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(of: impl Fn(f64) -> f64) -> Vec<(u64, f64)> {
        (0..900).map(|i| (i * 2_000, of(i as f64 * 2_000.0 / HOUR_MS))).collect()
    }

    #[test]
    fn a_leak_is_seen_and_a_wave_is_none() {
        let leak = growth(&values(|hours| 50.0 + 30.0 * hours + (hours * 700.0).sin()));
        assert!((leak.slope - 30.0).abs() < leak.half && leak.half < 10.0, "{leak:?}");
        let wave = growth(&values(|hours| 50.0 + 5.0 * (hours * 60.0).sin()));
        assert!(wave.slope.abs() < wave.half && wave.most < 55.1, "{wave:?}");
    }

    #[test]
    fn too_little_tells_nothing() {
        assert_eq!(growth(&values(|_| 1.0)[..60]).half, f64::INFINITY);
    }
}
