//! Works a plan out, by the core's mathematics.

use anyhow::Result;
use profiler_core::rate::anytime;
use profiler_core::rate::model::Caps;
use profiler_core::rate::{BoundBy, Criterion, Experiment, RateSettings};

use super::PlanJob;
use super::{Anytime, FleetPlan, Moment, Plan, Point};

/// Points of a curve.
const POINTS: usize = 241;
/// The curve reaches from this part of the best number of samples to so many times it, …
const AROUND: (f64, f64) = (1.0 / 16.0, 8.0);
/// … and on to the caps where they are within this factor of the best.
const CAP_IN_SIGHT: f64 = 16.0;
/// Moments of a run, at equal ratios, from a thousandth of it on: a multiple of three, and one more.
const MOMENTS: usize = 61;
/// Space beyond a cap at the edge.
const BEYOND: f64 = 1.3;

/// The best rate for a function of known share, under the budget alone.
pub(super) fn plan(job: &PlanJob) -> Result<Plan> {
    let tick_hz = job.clock_tick_ns.map_or(f64::INFINITY, |tick_ns| 1e9 / tick_ns as f64);
    let caps = Caps {
        budget_hz: job.budget.get() / job.overhead.seconds(),
        own_hz: f64::INFINITY,
        kernel_hz: RateSettings::default().ceiling_hz().min(tick_hz),
        bytes_hz: f64::INFINITY, // nothing is known of the stacks
    };
    plan_under(job, caps)
}

/// The same under these caps.
pub(super) fn plan_under(job: &PlanJob, caps: Caps) -> Result<Plan> {
    let (run_s, overhead_s) = (job.horizon.seconds(), job.overhead.seconds());
    let criterion = job.criterion;
    // The law depends on the criterion by r alone, and r is z/2 for the upper curve.
    let z = 2.0 * criterion.r();
    // Samples of another variance are worth as much as independent ones judged by an interval wider by its root.
    let experiment = Experiment::new(z * job.variance_ratio.sqrt(), run_s, job.share.get(), overhead_s)?;
    let planned = experiment.plan();
    let within = |rate_hz: f64| match caps.bound(rate_hz) {
        (rate_hz, BoundBy::Kernel) if job.clock_tick_ns.is_some() => (rate_hz, BoundBy::Tick),
        bound => bound,
    };
    let (rate_hz, bound_by) = within(planned.rate_hz);
    let at = |samples: f64| point(&experiment, criterion, z, samples);
    let best = at(planned.optimum_samples);
    let loss = |samples: f64| at(samples).error_s / best.error_s;
    // Replicas are one program that runs for as long as all of them.
    let fleet_s = run_s * f64::from(job.replicas);
    let of_all = Experiment::new(z * job.variance_ratio.sqrt(), fleet_s, job.share.get(), overhead_s)?;
    let (replica_hz, replica_bound_by) = within(of_all.plan().rate_hz);
    let error_ratio = |experiment: &Experiment, run_s: f64, rate_hz: f64| {
        point(experiment, criterion, z, rate_hz * run_s).error_s / (run_s * job.share.get())
    };
    let fleet = FleetPlan {
        rate_hz: replica_hz,
        bound_by: replica_bound_by,
        samples: replica_hz * run_s,
        error_ratio: error_ratio(&of_all, fleet_s, replica_hz),
        alone_error_ratio: error_ratio(&experiment, run_s, rate_hz),
    };
    Ok(Plan {
        best,
        fleet,
        optimum_rate_hz: planned.rate_hz,
        crossing_samples: planned.crossing_samples,
        overhead_ratio: planned.overhead_ratio,
        loss_at_half: loss(best.samples / 2.0),
        loss_at_double: loss(best.samples * 2.0),
        budget_hz: caps.budget_hz,
        kernel_hz: caps.kernel_hz,
        rate_hz,
        bound_by,
        loss_when_bound: loss(rate_hz * run_s),
        anytime: anytime_law(planned.rate_hz, run_s),
        moments: moments(criterion, planned.rate_hz, run_s, caps.bound(f64::MAX).0),
        curve: curve(best.samples, [caps.budget_hz * run_s, caps.kernel_hz * run_s]).map(at).collect(),
    })
}

/// What the anytime law does in a run whose best rate is `best_hz`.
fn anytime_law(best_hz: f64, run_s: f64) -> Anytime {
    let for_one_s_hz = best_hz * run_s.cbrt();
    let samples = anytime::samples(for_one_s_hz, run_s);
    // n(W) is 3/2 of what the last rate takes in W; both errors are n(W)/n* times those of the best rate.
    Anytime { samples, rate_hz: samples / (1.5 * run_s), loss: samples / (best_hz * run_s) }
}

/// Both laws over a run whose best rate is `best_hz`, where at most `most_hz` are allowed.
fn moments(criterion: Criterion, best_hz: f64, run_s: f64, most_hz: f64) -> Vec<Moment> {
    let moment = |index: usize| {
        let part = 10f64.powf(3.0 * (index as f64 / (MOMENTS - 1) as f64 - 1.0));
        let cpu_s = part * run_s;
        // The best rate for a run that ends here.
        let best_here_hz = best_hz / part.cbrt();
        let anytime = anytime_law(best_here_hz, cpu_s);
        Moment {
            cpu_s,
            anytime_rate_hz: anytime.rate_hz,
            anytime_samples: anytime.samples,
            anytime_error_ratio: anytime.loss,
            horizon_rate_hz: best_hz,
            horizon_samples: best_hz * cpu_s,
            horizon_error_ratio: loss(criterion, best_hz / best_here_hz),
            most_samples: most_hz * cpu_s,
        }
    };
    (0..MOMENTS).map(moment).collect()
}

/// The error at `part` of the best rate, as a multiple of the error at that.
fn loss(criterion: Criterion, part: f64) -> f64 {
    criterion.error(part * criterion.r(), part.sqrt().recip()) / criterion.error(criterion.r(), 1.0)
}

fn point(experiment: &Experiment, criterion: Criterion, z: f64, samples: f64) -> Point {
    let time = experiment.time_s(samples);
    let true_s = experiment.time_s(0.0).mean;
    let error_s = criterion.error(time.mean - true_s, (time.high - time.mean) / z);
    Point { samples, low_s: time.low, mean_s: time.mean, high_s: time.high, error_s }
}

/// Numbers of samples around the best one, at equal ratios.
fn curve(best: f64, caps: [f64; 2]) -> impl Iterator<Item = f64> {
    let in_sight = |cap: &f64| (best / CAP_IN_SIGHT..=best * CAP_IN_SIGHT).contains(cap);
    let (low, high) =
        caps.into_iter().filter(in_sight).fold((best * AROUND.0, best * AROUND.1), |(low, high), cap| {
            (low.min(cap / BEYOND), high.max(cap * BEYOND))
        });
    (0..POINTS).map(move |index| low * (high / low).powf(index as f64 / (POINTS - 1) as f64))
}
