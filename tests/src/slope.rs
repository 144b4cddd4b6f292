//! A straight line through rounds of measurements, and a ratio with its error.

/// A figure and its standard error.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Figure {
    /// Mean.
    pub mean: f64,
    /// Standard error of the mean.
    pub se: f64,
}

impl Figure {
    /// Mean and standard error of repetitions; of fewer than two, an infinite error.
    pub fn of(values: &[f64]) -> Figure {
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n.max(1.0);
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let se = if values.len() < 2 { f64::INFINITY } else { (squares / (n - 1.0) / n).sqrt() };
        Figure { mean, se }
    }

    /// One over the other, errors being independent.
    pub fn over(self, other: Figure) -> Figure {
        let mean = self.mean / other.mean;
        Figure { mean, se: mean.abs() * (self.se / self.mean).hypot(other.se / other.mean) }
    }
}

/// The slope of y over x by least squares. Each round is a list of (x, y) and has a level of its own, which takes the
/// machine's slow drift out. `None` if that leaves nothing to fit.
pub fn slope(rounds: &[Vec<(f64, f64)>]) -> Option<Figure> {
    let centred: Vec<(f64, f64)> = rounds.iter().flat_map(|round| centre(round)).collect();
    let xx: f64 = centred.iter().map(|(x, _)| x * x).sum();
    let xy: f64 = centred.iter().map(|(x, y)| x * y).sum();
    let free = centred.len().checked_sub(rounds.len() + 1).filter(|free| *free > 0 && xx > 0.0)?;
    let mean = xy / xx;
    let residual: f64 = centred.iter().map(|(x, y)| (y - mean * x).powi(2)).sum();
    Some(Figure { mean, se: (residual / free as f64 / xx).sqrt() })
}

fn centre(round: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let n = round.len().max(1) as f64;
    let (x, y) = round.iter().fold((0.0, 0.0), |sum, point| (sum.0 + point.0 / n, sum.1 + point.1 / n));
    round.iter().map(|point| (point.0 - x, point.1 - y)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slope_is_found_beneath_a_drift() {
        let round = |level: f64| [0.0, 1.0, 4.0, 9.0].map(|x| (x, level + 2.5 * x)).to_vec();
        let found = slope(&[round(10.0), round(-3.0), round(70.0)]).unwrap();
        assert!((found.mean - 2.5).abs() < 1e-12 && found.se < 1e-9, "{found:?}");
        assert_eq!(slope(&[vec![(1.0, 1.0), (1.0, 2.0), (1.0, 3.0)]]), None);
        assert_eq!(slope(&[]), None);
    }

    #[test]
    fn the_error_of_the_slope_is_that_of_its_residuals() {
        // Residuals ±1 around a flat line: s² = 4/2, Σx² = 4.
        let found = slope(&[vec![(-1.0, 1.0), (-1.0, -1.0), (1.0, 1.0), (1.0, -1.0)]]).unwrap();
        assert_eq!((found.mean, found.se), (0.0, (2.0f64 / 4.0).sqrt()));
    }

    #[test]
    fn a_ratio_carries_both_errors() {
        let ratio = Figure { mean: 6.0, se: 0.3 }.over(Figure { mean: 3.0, se: 0.2 });
        assert!(
            (ratio.mean - 2.0).abs() < 1e-12 && (ratio.se - 2.0 * 0.05f64.hypot(0.2 / 3.0)).abs() < 1e-12
        );
        assert_eq!(Figure::of(&[1.0, 3.0]), Figure { mean: 2.0, se: 1.0 });
        assert_eq!(Figure::of(&[1.0]).se, f64::INFINITY);
    }
}
