//! `plan`: the best rate for a function of known share, in words.

use std::fmt::Write;

use crate::settings::PlanJob;

/// What the law says of a [`PlanJob`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Plan {
    /// n*: samples at which the upper bound of the function's measured time is lowest.
    pub(crate) samples: f64,
    /// n*/T (samples per CPU-second).
    pub(crate) rate_hz: f64,
    /// The upper bound of the measured time at n* (s).
    pub(crate) upper_s: f64,
    /// n×: samples at which the lower bound of the measured time crosses the true one.
    pub(crate) crossing_samples: f64,
    /// CPU time spent on sampling at n*, as a share of the horizon.
    pub(crate) overhead_ratio: f64,
    /// Error at half the rate, as a multiple of the error at n*.
    pub(crate) loss_at_half: f64,
    /// Error at twice the rate, as a multiple of the error at n*.
    pub(crate) loss_at_double: f64,
}

/// The plan for a person.
pub(crate) fn render(job: &PlanJob, plan: &Plan) -> String {
    let true_s = job.horizon.seconds() * job.share.get();
    let mut out = String::new();
    let mut line = |label: &str, text: String| {
        let _ = writeln!(out, "{label:<18}{text}");
    };
    line("function", format!("{} of {}: {true_s:.3} s", job.share, job.horizon));
    line("best rate", format!("{} samples/s of CPU time", rate(plan.rate_hz)));
    line("samples", format!("{} (n*)", grouped(plan.samples)));
    line(
        "measured time",
        format!("at most {:.3} s at z = {} ({})", plan.upper_s, job.z, excess(plan, true_s)),
    );
    line("overhead", format!("{:.3}% at {} a sample", plan.overhead_ratio * 100.0, job.overhead));
    line(
        "too many from",
        format!("{} samples (n×): overhead hides the true time", grouped(plan.crossing_samples)),
    );
    line("error at rate / 2", format!("{:.2} times the best", plan.loss_at_half));
    line("error at rate × 2", format!("{:.2} times the best", plan.loss_at_double));
    out
}

fn excess(plan: &Plan, true_s: f64) -> String {
    format!("+{:.2}%", (plan.upper_s / true_s - 1.0) * 100.0)
}

/// Whole from 10 up, three digits below.
fn rate(hertz: f64) -> String {
    if hertz >= 10.0 { grouped(hertz) } else { format!("{hertz:.3}") }
}

/// A number rounded to the whole, in groups of three digits.
fn grouped(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plan_of_the_published_example() {
        let job = PlanJob {
            horizon: "300s".parse().unwrap(),
            share: "0.2".parse().unwrap(),
            overhead: "250us".parse().unwrap(),
            z: 1.96,
        };
        let plan = Plan {
            samples: 17_685.8,
            rate_hz: 58.95,
            upper_s: 62.653,
            crossing_samples: 28_074.4,
            overhead_ratio: 0.014738,
            loss_at_half: 1.1095,
            loss_at_double: 1.1381,
        };
        insta::assert_snapshot!(render(&job, &plan));
    }

    #[test]
    fn numbers_are_grouped() {
        assert_eq!(grouped(999.4), "999");
        assert_eq!(grouped(1_234_567.0), "1,234,567");
        assert_eq!(rate(0.12345), "0.123");
    }
}
