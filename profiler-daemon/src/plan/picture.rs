//! The plan as a chart: the error over the number of samples, the best number and the caps.

use super::PlanJob;
use super::{Plan, Point, error_name, grouped, rate, seconds};
use crate::plot::{Axis, Chart, Look, Mark, Scale, Series, VerticalLine};

/// The chart. For an upper bound it is that of the measured time (Stoker, eq. 4.14), else of the error that
/// the criterion names.
pub(super) fn chart(job: &PlanJob, plan: &Plan) -> Chart {
    let series = if job.is_upper_bound() { times(job, plan) } else { errors(job, plan) };
    let ends = [plan.curve.first(), plan.curve.last()].map(|end| end.map_or(1.0, |point| point.samples));
    let heights = series.iter().flat_map(|series| series.points.iter().map(|point| point.1));
    let y_label =
        if job.is_upper_bound() { "measured CPU time (s)" } else { "error of the measured CPU time (s)" };
    let best_y = if job.is_upper_bound() { plan.best.high_s } else { plan.best.error_s };
    Chart {
        title: format!(
            "A function that takes {} of {}, at {} a sample",
            job.share, job.horizon, job.overhead
        ),
        subtitle: format!(
            "best rate {}/s of CPU time (n* = {} samples), judged by {}",
            rate(plan.optimum_rate_hz),
            grouped(plan.best.samples),
            job.criterion
        ),
        x: Axis::new(format!("samples in {} of CPU time", job.horizon), Scale::Log, ends[0], ends[1]),
        y: Axis::fitted(y_label, Scale::Linear, heights),
        rules: rules(job, plan),
        marks: vec![Mark { at: (plan.best.samples, best_y), label: seconds(best_y) }],
        series,
    }
}

fn times(job: &PlanJob, plan: &Plan) -> Vec<Series> {
    let true_s = job.true_s();
    let series = |name: &str, look, tone, y: fn(&Point) -> f64| Series {
        name: name.to_owned(),
        points: plan.curve.iter().map(|point| (point.samples, y(point))).collect(),
        look,
        tone,
    };
    let truth = plan.curve.iter().map(|point| (point.samples, true_s)).collect();
    vec![
        series(&format!("upper end ({})", job.criterion), Look::Line, 0, |point| point.high_s),
        series("expected", Look::Dashes, 1, |point| point.mean_s),
        series("lower end", Look::Line, 2, |point| point.low_s),
        Series {
            name: format!("without sampling: {}", seconds(true_s)),
            points: truth,
            look: Look::Dashes,
            tone: 4,
        },
    ]
}

fn errors(job: &PlanJob, plan: &Plan) -> Vec<Series> {
    let true_s = job.true_s();
    let of = |y: &dyn Fn(&Point) -> f64| plan.curve.iter().map(|point| (point.samples, y(point))).collect();
    vec![
        Series {
            name: error_name(job).to_owned(),
            points: of(&|point| point.error_s),
            look: Look::Line,
            tone: 0,
        },
        Series {
            name: "added by sampling".to_owned(),
            points: of(&|point| point.mean_s - true_s),
            look: Look::Dashes,
            tone: 1,
        },
    ]
}

fn rules(job: &PlanJob, plan: &Plan) -> Vec<VerticalLine> {
    let run_s = job.horizon.seconds();
    let at = |what: &str, hertz: f64| VerticalLine {
        x: hertz * run_s,
        label: format!("{what}: {}/s", rate(hertz)),
    };
    let mut rules = vec![
        at("best, n*", plan.optimum_rate_hz),
        at(&format!("budget of {}", job.budget), plan.budget_hz),
        at("shortest period", plan.kernel_hz),
    ];
    if job.is_upper_bound() {
        rules.push(at("lower end is true, n×", plan.crossing_samples / run_s));
    }
    rules
}
