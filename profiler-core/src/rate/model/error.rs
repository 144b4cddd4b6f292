//! Why the law has no answer.

/// Why the law has no answer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A quantity is not a finite number above zero, or so extreme that the answer is none.
    #[error("{name} must be a finite number above zero, not {value}")]
    NotPositive {
        /// The quantity.
        name: &'static str,
        /// What it was.
        value: f64,
    },
    /// A share is not in (0, 1].
    #[error("a share must be above 0 and at most 1, not {0}")]
    NotAShare(f64),
}

/// `value`, if it is a finite number above zero.
pub(super) fn positive(name: &'static str, value: f64) -> Result<f64, ModelError> {
    if value.is_finite() && value > 0.0 { Ok(value) } else { Err(ModelError::NotPositive { name, value }) }
}
