//! Where the program asks the core's mathematics.

use anyhow::Result;
use profiler_core::rate::Experiment;
use profiler_core::stats::interval::{self, Interval};

use crate::export::functions::{Ends, Weights};
use crate::plan::Plan;
use crate::settings::PlanJob;

/// The interval of a function's share at this confidence: [`crate::export::functions::ShareInterval`].
pub(crate) fn share_interval(confidence: f64) -> impl Fn(&[Weights], u64) -> Option<Ends> {
    move |windows, samples| {
        let interval = interval::share_interval(windows, samples, confidence);
        (interval != Interval::UNKNOWN).then_some((interval.low, interval.high))
    }
}

/// The best rate for a function of known share.
pub(crate) fn plan(job: &PlanJob) -> Result<Plan> {
    let run_s = job.horizon.seconds();
    let experiment = Experiment::new(job.z, run_s, job.share.get(), job.overhead.seconds())?;
    let plan = experiment.plan();
    Ok(Plan {
        samples: plan.optimum_samples,
        rate_hz: plan.rate_hz,
        upper_s: plan.time_at_optimum_s.high,
        crossing_samples: plan.crossing_samples,
        overhead_ratio: plan.overhead_ratio,
        loss_at_half: plan.loss_at_half,
        loss_at_double: plan.loss_at_double,
    })
}
