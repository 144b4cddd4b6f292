//! Small symmetric systems of equations.
//!
//! Own code: the systems have a handful of unknowns, and `nalgebra` would bring a dozen crates for these lines.

/// A pivot below this part of its diagonal is rounding: the column depends on those before it.
const SMALLEST_PIVOT: f64 = 1e-12;

/// Cholesky's factor L of a symmetric positive definite matrix, L·Lᵀ.
pub(super) struct Cholesky {
    /// Row i holds the columns 0 … i.
    rows: Vec<Vec<f64>>,
}

impl Cholesky {
    /// Factors `matrix`, of which the lower triangle is read.
    ///
    /// # Errors
    ///
    /// The first column that depends on those before it, or is not finite.
    pub(super) fn new(matrix: &[Vec<f64>]) -> Result<Cholesky, usize> {
        let mut rows: Vec<Vec<f64>> = Vec::with_capacity(matrix.len());
        for (i, given) in matrix.iter().enumerate() {
            let mut row: Vec<f64> = Vec::with_capacity(i + 1);
            for (earlier, value) in rows.iter().zip(given) {
                let rest = value - dot(earlier, &row);
                row.push(rest / earlier[row.len()]);
            }
            let pivot = given[i] - dot(&row, &row);
            if pivot.is_nan() || pivot.is_infinite() || pivot <= SMALLEST_PIVOT * given[i] {
                return Err(i);
            }
            row.push(pivot.sqrt());
            rows.push(row);
        }
        Ok(Cholesky { rows })
    }

    /// x of `matrix`·x = `right`.
    pub(super) fn solve(&self, right: &[f64]) -> Vec<f64> {
        let mut x = right.to_vec();
        for (i, row) in self.rows.iter().enumerate() {
            x[i] = (x[i] - dot(row, &x[..i])) / row[i];
        }
        for i in (0..x.len()).rev() {
            let below: f64 = (i + 1..x.len()).map(|j| self.rows[j][i] * x[j]).sum();
            x[i] = (x[i] - below) / self.rows[i][i];
        }
        x
    }

    /// The inverse of the matrix.
    pub(super) fn inverse(&self) -> Vec<Vec<f64>> {
        let size = self.rows.len();
        let unit = |i: usize| (0..size).map(|j| if i == j { 1.0 } else { 0.0 }).collect::<Vec<f64>>();
        (0..size).map(|i| self.solve(&unit(i))).collect()
    }
}

/// Σ aᵢ·bᵢ over the shorter of the two.
pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_solves_and_inverts() {
        let matrix = vec![vec![4.0, 2.0, 0.6], vec![2.0, 5.0, 1.0], vec![0.6, 1.0, 3.0]];
        let factor = Cholesky::new(&matrix).unwrap_or_else(|column| panic!("column {column}"));
        let solved = factor.solve(&[1.0, -2.0, 3.0]);
        let inverse = factor.inverse();
        for (i, row) in matrix.iter().enumerate() {
            assert!((dot(row, &solved) - [1.0, -2.0, 3.0][i]).abs() < 1e-12);
            for (j, column) in inverse.iter().enumerate() {
                let unit = if i == j { 1.0 } else { 0.0 };
                assert!((dot(row, column) - unit).abs() < 1e-12);
            }
        }
    }

    #[test]
    fn a_column_that_depends_on_others_is_named() {
        let dependent = vec![vec![1.0, 2.0], vec![2.0, 4.0]];
        assert_eq!(Cholesky::new(&dependent).err(), Some(1));
        assert_eq!(Cholesky::new(&[vec![0.0]]).err(), Some(0));
        assert_eq!(Cholesky::new(&[vec![f64::NAN]]).err(), Some(0));
        assert_eq!(Cholesky::new(&[vec![f64::INFINITY]]).err(), Some(0));
    }
}
