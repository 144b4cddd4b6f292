//! The two laws over a run: the constant rate of one whose length is known, and the falling one of any other.

use std::fmt::Write;
use std::time::Duration;

use config::Span;

use super::PlanJob;
use super::{Moment, Plan, grouped, rate, seconds};
use crate::plot::{Axis, Chart, Look, Scale, Series};

/// What is allowed is drawn where it is within this factor of what the laws ask for.
const IN_SIGHT: f64 = 4.0;
/// The moments of the table: every so many.
const TABLE_STEP: usize = 20;

/// The rates over the CPU time since the start.
pub(super) fn rates(job: &PlanJob, plan: &Plan) -> Chart {
    let title = format!("The rate over a run of {}, as each law asks for it", job.horizon);
    let at: [fn(&Moment) -> f64; 3] = [
        |moment| moment.anytime_rate_hz,
        |moment| moment.horizon_rate_hz,
        |moment| moment.most_samples / moment.cpu_s,
    ];
    chart(job, plan, title, "samples/s of CPU time", at)
}

/// The samples over the CPU time since the start.
pub(super) fn samples(job: &PlanJob, plan: &Plan) -> Chart {
    let title = format!("The samples over a run of {}, as each law asks for them", job.horizon);
    let at: [fn(&Moment) -> f64; 3] =
        [|moment| moment.anytime_samples, |moment| moment.horizon_samples, |moment| moment.most_samples];
    chart(job, plan, title, "samples since the start", at)
}

/// A chart of the anytime law, the law for the horizon and what is allowed.
fn chart(job: &PlanJob, plan: &Plan, title: String, y: &str, at: [fn(&Moment) -> f64; 3]) -> Chart {
    let series = |name: String, look, tone, of: fn(&Moment) -> f64| Series {
        name,
        points: plan.moments.iter().map(|moment| (moment.cpu_s, of(moment))).collect(),
        look,
        tone,
    };
    let [anytime, horizon, most] = at;
    let mut drawn = vec![
        series("without --horizon (anytime)".to_owned(), Look::Line, 0, anytime),
        series(format!("--horizon {}", job.horizon), Look::Line, 2, horizon),
    ];
    let heights = |drawn: &[Series]| -> Vec<f64> {
        drawn.iter().flat_map(|series| series.points.iter().map(|point| point.1)).collect()
    };
    let asked = heights(&drawn);
    let (low, high) =
        asked.iter().fold((f64::INFINITY, 0.0f64), |(low, high), y| (low.min(*y), high.max(*y)));
    let is_in_sight = |y: f64| (low / IN_SIGHT..=high * IN_SIGHT).contains(&y);
    if plan.moments.iter().any(|moment| is_in_sight(most(moment))) {
        drawn.push(series("the most that is allowed".to_owned(), Look::Dashes, 1, most));
    }
    let ends = [plan.moments.first(), plan.moments.last()].map(|end| end.map_or(1.0, |moment| moment.cpu_s));
    Chart {
        title,
        subtitle: "as the laws ask; no run takes more than is allowed".to_owned(),
        x: Axis::new("CPU time since the start (s)", Scale::Log, ends[0], ends[1]),
        y: Axis::fitted(y, Scale::Log, heights(&drawn).into_iter().filter(|y| is_in_sight(*y))),
        series: drawn,
        rules: Vec::new(),
        marks: Vec::new(),
    }
}

/// Both laws at a few moments, and what an end there would mean.
pub(super) fn table(job: &PlanJob, plan: &Plan) -> String {
    let heads = ["rate/s", "samples", "error"].map(|head| format!("{head:>9}")).concat();
    let laws = format!("{:>27}{:>27}", "without --horizon", format!("--horizon {}", job.horizon));
    let mut out = format!("{:12}{laws}\n{:<12}{heads}{heads}{:>10}\n", "", "ends after", "allowed");
    let law = |hertz: f64, samples: f64, error: f64| {
        format!("{:>9}{:>9}{error:>9.2}", rate(hertz), grouped(samples))
    };
    for moment in plan.moments.iter().step_by(TABLE_STEP) {
        let _ = writeln!(
            out,
            "{:<12}{}{}{:>10}",
            time(moment.cpu_s),
            law(moment.anytime_rate_hz, moment.anytime_samples, moment.anytime_error_ratio),
            law(moment.horizon_rate_hz, moment.horizon_samples, moment.horizon_error_ratio),
            grouped(moment.most_samples),
        );
    }
    out + "error: of the law alone, times that of the best rate for a run that ends there\n\
           allowed: samples within budget and caps\n"
}

/// As a person would write it.
fn time(cpu_s: f64) -> String {
    let span = Duration::try_from_secs_f64(cpu_s).ok().and_then(|time| Span::try_from(time).ok());
    span.map_or_else(|| seconds(cpu_s), |span| span.to_string())
}
