//! Where the program asks the core's mathematics.

use anyhow::{Result, bail};

use crate::export::functions::{Ends, Weights};
use crate::plan::Plan;
use crate::settings::PlanJob;

/// The interval of a function's share at this confidence: [`crate::export::functions::ShareInterval`].
pub(crate) fn share_interval(confidence: f64) -> impl Fn(&[Weights], u64) -> Option<Ends> {
    move |_windows, _samples| {
        let _ = confidence;
        None
    }
}

/// The best rate for a function of known share.
pub(crate) fn plan(_job: &PlanJob) -> Result<Plan> {
    bail!("not built in this branch")
}
