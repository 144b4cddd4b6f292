//! Characterise a machine, analyse a program, predict its run time (Saavedra-Barrera 1988).
//!
//! The model is linear: a program that runs operation i Cᵢ times takes T = Σ Cᵢ·Pᵢ (3.5). Experiments of known
//! counts give the parameters Pᵢ and their errors; with these, counts alone predict a time and its error. For
//! a profiler the operations are samples, frames, bytes copied and switches.
//!
//! Parameters that were fitted together have errors that go together. So the covariance is carried along, and
//! σ²_T = Σ Cᵢ²·σ²ᵢ (section 6.1) is its case for parameters that were measured one by one.

use thiserror::Error;

use super::cholesky::{Cholesky, dot};

/// Weighted entries above this overflow when squared and summed.
const LARGEST_ENTRY: f64 = 1e100;

/// A run of known counts.
#[derive(Clone, Debug, PartialEq)]
pub struct CountedRun {
    /// Cᵢ: how often each operation ran.
    pub counts: Vec<f64>,
    /// How long it took: the mean over the repetitions (4.2).
    pub time: f64,
    /// Standard error of `time`, in its unit; above zero.
    pub standard_error: f64,
}

/// Why there are no parameters, or no prediction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CharacteriseError {
    /// Fewer experiments than parameters, or none.
    #[error("{experiments} experiments cannot tell {parameters} parameters apart")]
    TooFew {
        /// Experiments given.
        experiments: usize,
        /// Parameters asked for.
        parameters: usize,
    },
    /// The counts are not one for each parameter.
    #[error("{counts} counts for {parameters} parameters")]
    Uneven {
        /// Counts given.
        counts: usize,
        /// Parameters.
        parameters: usize,
    },
    /// A count or a time that is not finite or too large, or an error that is not above zero.
    #[error("experiment {0} holds a figure that cannot be calculated with")]
    Invalid(usize),
    /// A parameter whose counts are zero, or go along with other parameters' in all experiments.
    #[error("the experiments cannot tell parameter {0} from the others")]
    Inseparable(usize),
    /// Figures that are not finite, or so large that what follows from them is not.
    #[error("these figures give no finite time")]
    Unpredictable,
}

/// What operations cost, and how sure that is.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameters {
    values: Vec<f64>,
    covariance: Vec<Vec<f64>>,
}

/// A predicted time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PredictedTime {
    /// T = Σ Cᵢ·Pᵢ.
    pub time: f64,
    /// Standard deviation of `time`.
    pub standard_deviation: f64,
}

impl Parameters {
    /// Parameters that were measured one by one: each its value and its standard deviation.
    pub fn independent(parameters: &[(f64, f64)]) -> Parameters {
        let row = |i: usize| {
            (0..parameters.len()).map(|j| if i == j { parameters[i].1.powi(2) } else { 0.0 }).collect()
        };
        Parameters {
            values: parameters.iter().map(|(value, _)| *value).collect(),
            covariance: (0..parameters.len()).map(row).collect(),
        }
    }

    /// From values and their covariance, as a fit found them.
    pub(super) fn new(values: Vec<f64>, covariance: Vec<Vec<f64>>) -> Parameters {
        Parameters { values, covariance }
    }

    /// The least-squares fit of P to experiments, weighted by their standard errors.
    ///
    /// Direct, composite and indirect tests (4.7, 4.8) are all experiments; a difference of two is taken by the
    /// fit. Where the times scatter more around the model than their errors say, the parameters' errors are
    /// widened by as much. An operation too cheap to be detected may come out negative, within its error.
    ///
    /// # Errors
    ///
    /// [`CharacteriseError`], whose numbers count from 0.
    pub fn fit(experiments: &[CountedRun]) -> Result<Parameters, CharacteriseError> {
        let parameters = experiments.first().map_or(0, |first| first.counts.len());
        if parameters == 0 || experiments.len() < parameters {
            return Err(CharacteriseError::TooFew { experiments: experiments.len(), parameters });
        }
        let mut rows = Vec::with_capacity(experiments.len());
        for (index, experiment) in experiments.iter().enumerate() {
            rows.push(weighted(experiment, index, parameters)?);
        }
        let scales = column_norms(&rows, parameters);
        let normal = normal_matrix(&rows, &scales);
        let factor = Cholesky::new(&normal).map_err(CharacteriseError::Inseparable)?;
        let right: Vec<f64> =
            (0..parameters).map(|i| rows.iter().map(|(row, time)| row[i] / scales[i] * time).sum()).collect();
        let values: Vec<f64> = factor.solve(&right).iter().zip(&scales).map(|(x, scale)| x / scale).collect();
        let widening = scatter(&rows, &values).max(1.0);
        let mut covariance = factor.inverse();
        for (i, row) in covariance.iter_mut().enumerate() {
            row.iter_mut().zip(&scales).for_each(|(value, scale)| *value *= widening / scales[i] / scale);
        }
        let finite = values.iter().chain(covariance.iter().flatten()).all(|value| value.is_finite());
        if finite { Ok(Parameters { values, covariance }) } else { Err(CharacteriseError::Unpredictable) }
    }

    /// The parameters P, in the order of the counts.
    pub fn values(&self) -> &[f64] {
        &self.values
    }

    /// The standard error of each parameter.
    pub fn standard_errors(&self) -> Vec<f64> {
        self.covariance.iter().enumerate().map(|(i, row)| row[i].max(0.0).sqrt()).collect()
    }

    /// What a program of these counts takes: T = Σ Cᵢ·Pᵢ and σ_T (3.5, section 6.1).
    ///
    /// # Errors
    ///
    /// [`CharacteriseError::Uneven`], [`CharacteriseError::Unpredictable`].
    pub fn predict(&self, counts: &[f64]) -> Result<PredictedTime, CharacteriseError> {
        let parameters = self.values.len();
        if counts.len() != parameters {
            return Err(CharacteriseError::Uneven { counts: counts.len(), parameters });
        }
        let time = dot(counts, &self.values);
        let variance: f64 =
            self.covariance.iter().zip(counts).map(|(row, count)| count * dot(row, counts)).sum();
        if !time.is_finite() || !variance.is_finite() {
            return Err(CharacteriseError::Unpredictable);
        }
        Ok(PredictedTime { time, standard_deviation: variance.max(0.0).sqrt() })
    }
}

/// Counts and time in standard errors.
fn weighted(
    experiment: &CountedRun,
    index: usize,
    parameters: usize,
) -> Result<(Vec<f64>, f64), CharacteriseError> {
    let counts = experiment.counts.len();
    if counts != parameters {
        return Err(CharacteriseError::Uneven { counts, parameters });
    }
    let error = experiment.standard_error;
    let row: Vec<f64> = experiment.counts.iter().map(|count| count / error).collect();
    let time = experiment.time / error;
    let sound = |x: &f64| x.abs() <= LARGEST_ENTRY;
    let valid = error > 0.0 && error.is_finite() && row.iter().all(sound) && sound(&time);
    if valid { Ok((row, time)) } else { Err(CharacteriseError::Invalid(index)) }
}

/// Counts differ by orders of magnitude (samples, bytes): columns of norm 1 keep the fit precise.
fn column_norms(rows: &[(Vec<f64>, f64)], parameters: usize) -> Vec<f64> {
    let norm = |i: usize| rows.iter().map(|(row, _)| row[i] * row[i]).sum::<f64>().sqrt();
    (0..parameters).map(norm).collect()
}

fn normal_matrix(rows: &[(Vec<f64>, f64)], scales: &[f64]) -> Vec<Vec<f64>> {
    let entry =
        |i: usize, j: usize| rows.iter().map(|(row, _)| row[i] / scales[i] * (row[j] / scales[j])).sum();
    (0..scales.len()).map(|i| (0..scales.len()).map(|j| entry(i, j)).collect()).collect()
}

/// χ² of the residuals over its degrees of freedom; 1 where none are left.
fn scatter(rows: &[(Vec<f64>, f64)], values: &[f64]) -> f64 {
    let freedom = rows.len() - values.len();
    if freedom == 0 {
        return 1.0;
    }
    rows.iter().map(|(row, time)| (time - dot(row, values)).powi(2)).sum::<f64>() / freedom as f64
}

/// How well predictions agree with what was measured (Tables 6.1, 6.2 and 7.2).
#[derive(Clone, Debug, PartialEq)]
pub struct Accuracy {
    /// predicted/measured − 1, in the order given.
    errors: Vec<f64>,
}

impl Accuracy {
    /// Of pairs of a measured and a predicted time; pairs without a time (not finite, the measured one not above zero)
    /// are left out.
    pub fn of(pairs: &[(f64, f64)]) -> Accuracy {
        let error = |(measured, predicted): &(f64, f64)| {
            (*measured > 0.0).then_some(predicted / measured - 1.0).filter(|error| error.is_finite())
        };
        Accuracy { errors: pairs.iter().filter_map(error).collect() }
    }

    /// Pairs that were counted.
    pub fn predictions(&self) -> usize {
        self.errors.len()
    }

    /// Predictions that are off by less than `bound` (.05).
    pub fn within(&self, bound: f64) -> usize {
        self.errors.iter().filter(|error| error.abs() < bound).count()
    }

    /// Mean of the absolute errors; `None` without a prediction.
    pub fn mean_absolute_error(&self) -> Option<f64> {
        let count = self.errors.len() as f64;
        (!self.errors.is_empty()).then(|| self.errors.iter().map(|error| error.abs() / count).sum())
    }

    /// Root of the mean square error; `None` without a prediction.
    pub fn root_mean_square(&self) -> Option<f64> {
        let count = (self.errors.len() as f64).sqrt();
        (!self.errors.is_empty())
            .then(|| self.errors.iter().fold(0.0, |norm: f64, error| norm.hypot(error / count)))
    }
}

#[cfg(test)]
mod tables;
#[cfg(test)]
mod tests;
