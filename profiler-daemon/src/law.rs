//! Where the program asks the core's mathematics.

use anyhow::Result;
use profiler_core::rate::Experiment;

use crate::plan::Plan;
use crate::settings::PlanJob;

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
