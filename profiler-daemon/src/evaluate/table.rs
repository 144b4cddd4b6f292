//! The evaluation for a person.

use std::fmt::Write;

use super::design::{Arm, RATES_HZ, SHAPES};
use super::fit::{Observation, median};
use super::verdict::{Claim, ClaimOutcome, Figures, cmape, mean, of_arm};
use crate::plot::grouped;

/// The errors by rate, the rates by program, and what follows.
pub(super) fn render(runs: &[Observation], figures: &Figures, claims: &[Claim]) -> String {
    let runs: Vec<&Observation> = runs.iter().collect();
    let mut out = String::from(
        "cMAPE, the sum of the four largest functions' mean absolute errors in CPU seconds, relative to the\n\
         truth; mean over the programs\n\n",
    );
    out += &by_rate(&runs, figures);
    out += "\n";
    out += &by_program(figures);
    out += "\n";
    out += &costs(figures);
    out += "\n";
    claims.iter().for_each(|claim| out += &claim_line(claim));
    out
}

fn by_rate(runs: &[&Observation], figures: &Figures) -> String {
    let mut out = format!(
        "{:<12}{:>9}{:>11}{:>11}{:>11}{:>11}{:>13}\n",
        "rate", "samples", "CPU time", "a sample", "measured", "expected", "compensated"
    );
    for arm in RATES_HZ.map(Arm::Fixed).into_iter().chain([Arm::Adaptive, Arm::Default]) {
        let measured = |compensated| percent(over_shapes(runs, figures, arm, compensated));
        let samples = median(of_arm(runs, None, arm).map(|run| run.samples as f64));
        let Some(samples) = samples else { continue };
        let dilation =
            of_arm(runs, None, arm).map(|run| run.cpu_s / figures.shapes[run.shape].true_cpu_s - 1.0);
        let dilation = mean(dilation).map_or("-".to_owned(), |added| format!("{:+.2}%", added * 100.0));
        let _ = writeln!(
            out,
            "{:<12}{:>9}{dilation:>11}{:>11}{:>11}{:>11}{:>13}",
            arm.name(),
            grouped(samples),
            cost(runs, figures, arm),
            measured(false),
            percent(expected(figures, arm)),
            measured(true)
        );
    }
    out
}

/// What a sample of an arm costs by the CPU times: more at low rates, where the kernel's code has left the caches.
fn cost(runs: &[&Observation], figures: &Figures, arm: Arm) -> String {
    let added_s = of_arm(runs, None, arm).map(|run| run.cpu_s - figures.shapes[run.shape].true_cpu_s);
    let samples: u64 = of_arm(runs, None, arm).map(|run| run.samples).sum();
    if samples == 0 {
        "-".to_owned()
    } else {
        format!("{:.1} µs", added_s.sum::<f64>() * 1e6 / samples as f64)
    }
}

/// The mean over the shapes of an arm's measured error.
fn over_shapes(runs: &[&Observation], figures: &Figures, arm: Arm, compensated: bool) -> Option<f64> {
    let of_shape =
        |shape: usize| cmape(of_arm(runs, Some(shape), arm), figures.shapes[shape].true_cpu_s, compensated);
    let errors: Option<Vec<f64>> = (0..SHAPES.len()).map(of_shape).collect();
    mean(errors?.into_iter())
}

/// What the model expects of a rate, or of the rates that were taken.
fn expected(figures: &Figures, arm: Arm) -> Option<f64> {
    let errors: Option<Vec<f64>> = figures
        .shapes
        .iter()
        .zip(&SHAPES)
        .map(|(of_shape, shape)| {
            let rate_hz = match arm {
                Arm::Fixed(rate_hz) => rate_hz,
                Arm::Adaptive => return Some(of_shape.adaptive_expected_cmape_ratio),
                Arm::Unsampled | Arm::Default => return None,
            };
            figures.model.cmape(shape, of_shape.true_cpu_s, rate_hz)
        })
        .collect();
    mean(errors?.into_iter())
}

fn by_program(figures: &Figures) -> String {
    let mut out = format!(
        "{:<12}{:>9}{:>11}{:>11}{:>11}{:>13}{:>11}\n",
        "program", "chosen/s", "λ*/s", "best/s", "error", "of the best", "default"
    );
    for shape in &figures.shapes {
        let _ = writeln!(
            out,
            "{:<12}{:>9}{:>11}{:>11}{:>11}{:>13}{:>11}",
            shape.name,
            grouped(shape.chosen_rate_hz),
            grouped(shape.law_rate_hz),
            grouped(shape.best_rate_hz),
            percent(Some(shape.adaptive_cmape_ratio)),
            percent(Some(shape.best_cmape_ratio)),
            percent(Some(shape.default_cmape_ratio)),
        );
    }
    out
}

fn costs(figures: &Figures) -> String {
    let (cost, model) = (&figures.cost, &figures.model);
    format!(
        "a sample costs {:.2} µs at the rates chosen, by the stopwatch, and {:.2} ± {:.2} µs as reported\n\
         at 1,000/s {:.2} ± {:.2} µs by the CPU times of all runs, {:.2} µs by their errors; with each doubling\n\
         of the rate {:.1}% less\n\
         variance of a share {:.2} times the binomial one; CPU time of a run varies by {:.2}%\n",
        figures.chosen_overhead_us,
        figures.told_overhead_us,
        figures.told_overhead_se_us,
        cost.curve.overhead_us,
        cost.overhead_se_us,
        model.curve.overhead_us,
        cost.curve.less_at_double() * 100.0,
        model.variance,
        cost.noise_ratio * 100.0
    )
}

fn claim_line(claim: &Claim) -> String {
    let outcome = match claim.outcome {
        ClaimOutcome::Holds => "holds",
        ClaimOutcome::Unsure => "unsure",
        ClaimOutcome::Fails => "fails",
    };
    let limits = match claim.least_ratio {
        0.0 => format!("≤ {:.2}", claim.most_ratio),
        least => format!("{least:.2} to {:.2}", claim.most_ratio),
    };
    format!(
        "{outcome:<7} {}: {:.3} (95%: {:.3} to {:.3}), {limits} wanted\n",
        claim.claim, claim.value_ratio, claim.low_ratio, claim.high_ratio
    )
}

fn percent(ratio: Option<f64>) -> String {
    ratio.map_or("-".to_owned(), |ratio| format!("{:.2}%", ratio * 100.0))
}
