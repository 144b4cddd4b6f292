//! A straight line through measurements, and a ratio with its error.

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

    /// The difference, for independent errors.
    pub fn minus(self, other: Figure) -> Figure {
        Figure { mean: self.mean - other.mean, se: self.se.hypot(other.se) }
    }

    /// Multiplied by a factor.
    pub fn scaled(self, factor: f64) -> Figure {
        Figure { mean: self.mean * factor, se: self.se * factor.abs() }
    }

    /// The ratio, for independent errors.
    pub fn over(self, other: Figure) -> Figure {
        let mean = self.mean / other.mean;
        Figure { mean, se: mean.abs() * (self.se / self.mean).hypot(other.se / other.mean) }
    }
}

/// The mean of equally good figures, with its error from theirs.
pub fn mean_of(figures: &[Figure]) -> Figure {
    let n = figures.len() as f64;
    let squares: f64 = figures.iter().map(|figure| figure.se.powi(2)).sum();
    Figure { mean: figures.iter().map(|figure| figure.mean).sum::<f64>() / n, se: squares.sqrt() / n }
}

/// The slope of y over x through the origin, each y weighed by its error. `None` if there is nothing to fit.
///
/// Where the points lie further from the line than their errors say, the slope is as much less sure.
pub fn through_origin(points: &[(f64, Figure)]) -> Option<Figure> {
    let sum = |of: &dyn Fn(f64, Figure) -> f64| points.iter().map(|&(x, y)| of(x, y)).sum::<f64>();
    let xx = sum(&|x, y| (x / y.se).powi(2));
    let free = points.len().checked_sub(1).filter(|free| *free > 0 && xx > 0.0 && xx.is_finite())?;
    let mean = sum(&|x, y| x * y.mean / y.se.powi(2)) / xx;
    let scatter = sum(&|x, y| ((y.mean - mean * x) / y.se).powi(2)) / free as f64;
    Some(Figure { mean, se: scatter.max(1.0).sqrt() / xx.sqrt() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(x: f64, mean: f64, se: f64) -> (f64, Figure) {
        (x, Figure { mean, se })
    }

    #[test]
    fn the_slope_through_the_origin_weighs_its_points() {
        let found =
            through_origin(&[point(1.0, 2.0, 0.1), point(2.0, 4.0, 0.1), point(1.0, 9.0, 1e9)]).unwrap();
        assert!((found.mean - 2.0).abs() < 1e-6, "{found:?}");
        assert!((found.se - 0.1 / 5f64.sqrt()).abs() < 1e-6, "{found:?}");
        assert_eq!(through_origin(&[point(1.0, 1.0, 1.0)]), None);
        assert_eq!(through_origin(&[point(0.0, 1.0, 1.0), point(0.0, 2.0, 1.0)]), None);
    }

    #[test]
    fn points_off_the_line_make_it_less_sure() {
        let found = through_origin(&[point(1.0, 1.0, 0.01), point(1.0, 3.0, 0.01)]).unwrap();
        assert!((found.mean - 2.0).abs() < 1e-9 && (found.se - 1.0).abs() < 0.01, "{found:?}");
    }

    #[test]
    fn a_mean_carries_the_errors_of_its_parts() {
        let found = mean_of(&[Figure { mean: 1.0, se: 0.3 }, Figure { mean: 3.0, se: 0.4 }]);
        assert!((found.mean - 2.0).abs() < 1e-12 && (found.se - 0.25).abs() < 1e-12);
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
