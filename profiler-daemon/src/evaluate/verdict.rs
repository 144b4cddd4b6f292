//! What the runs add up to, and how sure that is.

use std::collections::BTreeMap;

use profiler_core::rate::Criterion;
use profiler_core::rate::model::{optimum_rate_hz, spread};
use serde::Serialize;

use super::cost::{Curve, FittedCost, STATED_HZ, cost, cost_us};
use super::design::{Arm, SHAPES, TOP, USUAL_HZ};
use super::fit::{Model, Observation, model, truth};

/// Resamples of the bootstrap.
const RESAMPLES: usize = 400;
/// What the intervals leave out at either end.
const TAIL: f64 = 0.025;
/// Steps to the law's rate; a dozen leave less than a thousandth.
const LAW_STEPS: usize = 12;
/// The adaptive runs' error may be this multiple of the best fixed rate's.
const MOST_LOSS: f64 = 1.15;
/// The chosen rate may be off by this share of λ*.
const RATE_BAND: f64 = 0.25;
/// The cost of a sample by the profiler's own account may be off by this share of what the stopwatch says at the same rate.
const COST_BAND: f64 = 0.10;

/// The figures of one set of runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Figures {
    /// Cost of a sample from the CPU times, over the rate.
    pub(super) cost: FittedCost,
    /// Model of the errors.
    pub(super) model: Model,
    /// For each shape.
    pub(super) shapes: Vec<ShapeFigures>,
    /// Cost of a sample in the adaptive runs, by their twins (µs).
    pub(super) chosen_overhead_us: f64,
    /// The same by the profiler's account, the mean (µs).
    pub(super) told_overhead_us: f64,
    /// Its standard error, as the profiler states it, the mean (µs).
    pub(super) told_overhead_se_us: f64,
}

/// The figures of one shape.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct ShapeFigures {
    /// Its name.
    pub(super) name: &'static str,
    /// CPU time without sampling (s).
    pub(super) true_cpu_s: f64,
    /// λ* of the law: the rate that it asks for at the cost that a sample has at that rate (samples per CPU-second).
    pub(super) law_rate_hz: f64,
    /// The rate with the least error by the model.
    pub(super) best_rate_hz: f64,
    /// That error: a sum over functions of mean absolute errors relative to the truth.
    pub(super) best_cmape_ratio: f64,
    /// Geometric mean of the rates that the adaptive runs ended with.
    pub(super) chosen_rate_hz: f64,
    /// Error of the adaptive runs.
    pub(super) adaptive_cmape_ratio: f64,
    /// Error to be expected, by the model, at the rates that the adaptive runs took.
    pub(super) adaptive_expected_cmape_ratio: f64,
    /// Error of the adaptive runs with the cost of the samples taken off.
    pub(super) adaptive_compensated_cmape_ratio: f64,
    /// Error of runs with the default settings.
    pub(super) default_cmape_ratio: f64,
    /// Error at each of the usual rates, by the model.
    pub(super) usual_cmape_ratio: [f64; USUAL_HZ.len()],
}

/// Why there are no figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoFigures {
    /// The runs that did not fail are too few.
    #[error("too few runs succeeded to say anything; run again on a quieter machine")]
    TooFew,
    /// Sampling has no visible cost.
    #[error(
        "the cost of a sample drowned in the noise of this machine; run again without --quick, or on a quieter machine"
    )]
    NoCost,
}

/// Whether a claim holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ClaimOutcome {
    /// The whole interval is within the limits.
    Holds,
    /// The interval reaches beyond a limit.
    Unsure,
    /// The whole interval is beyond a limit.
    Fails,
}

/// A claim, the figure that bears it out, and what became of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Claim {
    /// What is claimed.
    pub(super) claim: String,
    /// The figure.
    pub(super) value_ratio: f64,
    /// Lower end of its 95% interval.
    pub(super) low_ratio: f64,
    /// Upper end.
    pub(super) high_ratio: f64,
    /// What the figure should be no less than.
    pub(super) least_ratio: f64,
    /// What the figure should be no more than.
    pub(super) most_ratio: f64,
    /// What became of it.
    pub(super) outcome: ClaimOutcome,
}

/// The figures of these runs.
///
/// # Errors
///
/// [`NoFigures`] where runs are missing or sampling has no cost above the noise.
pub(super) fn figures(runs: &[&Observation]) -> Result<Figures, NoFigures> {
    let truth = truth(runs).ok_or(NoFigures::TooFew)?;
    let cost = cost(runs, &truth).ok_or(NoFigures::TooFew)?;
    let model = model(runs, &truth, &cost).ok_or(NoFigures::TooFew)?;
    if !(cost.curve.overhead_us > 0.0 && model.curve.overhead_us > 0.0) {
        return Err(NoFigures::NoCost);
    }
    let shapes = (0..SHAPES.len()).map(|shape| shape_figures(runs, shape, truth[shape], cost.curve, &model));
    let of_adaptive = |figure: fn(&Observation) -> f64| {
        mean(of_arm(runs, None, Arm::Adaptive).map(figure)).ok_or(NoFigures::TooFew)
    };
    let chosen_us = cost_us(runs, &truth, Arm::Adaptive).ok_or(NoFigures::TooFew)?;
    if chosen_us <= 0.0 {
        return Err(NoFigures::NoCost);
    }
    Ok(Figures {
        cost,
        model,
        shapes: shapes.collect::<Option<_>>().ok_or(NoFigures::TooFew)?,
        chosen_overhead_us: chosen_us,
        told_overhead_us: of_adaptive(|run| run.overhead_us)?,
        told_overhead_se_us: of_adaptive(|run| run.overhead_se_us)?,
    })
}

fn shape_figures(
    runs: &[&Observation],
    index: usize,
    true_s: f64,
    curve: Curve,
    model: &Model,
) -> Option<ShapeFigures> {
    let shape = &SHAPES[index];
    let spread = spread(shape.top(), TOP)?;
    let law_rate_hz = law_rate_hz(spread, curve, true_s)?;
    let (best_rate_hz, best_cmape_ratio) = model.best(shape, true_s)?;
    let chosen = of_arm(runs, Some(index), Arm::Adaptive).map(|run| run.rate_hz.ln());
    let taken = of_arm(runs, Some(index), Arm::Adaptive).map(|run| run.samples as f64 / run.cpu_s);
    let expected: Option<Vec<f64>> = taken.map(|rate| model.cmape(shape, true_s, rate)).collect();
    let measured = |arm, compensated| cmape(of_arm(runs, Some(index), arm), true_s, compensated);
    Some(ShapeFigures {
        name: shape.name,
        true_cpu_s: true_s,
        law_rate_hz,
        best_rate_hz,
        best_cmape_ratio,
        chosen_rate_hz: mean(chosen).map(f64::exp)?,
        adaptive_cmape_ratio: measured(Arm::Adaptive, false)?,
        adaptive_expected_cmape_ratio: mean(expected?.into_iter())?,
        adaptive_compensated_cmape_ratio: measured(Arm::Adaptive, true)?,
        default_cmape_ratio: measured(Arm::Default, false)?,
        usual_cmape_ratio: USUAL_HZ.map(|rate| model.cmape(shape, true_s, rate).unwrap_or(f64::MAX)),
    })
}

/// λ* where the cost of a sample depends on the rate: each step asks the law at the cost of the rate before, and comes
/// closer by two thirds of the exponent.
fn law_rate_hz(spread: f64, curve: Curve, true_s: f64) -> Option<f64> {
    (0..LAW_STEPS).try_fold(STATED_HZ, |rate_hz, _| {
        optimum_rate_hz(Criterion::MeanAbsolute, spread, curve.at(rate_hz), true_s).ok()
    })
}

/// The runs of an arm, of one shape or of all.
pub(super) fn of_arm<'a>(
    runs: &'a [&'a Observation],
    shape: Option<usize>,
    arm: Arm,
) -> impl Iterator<Item = &'a Observation> + 'a {
    runs.iter().copied().filter(move |run| run.arm == arm && shape.is_none_or(|shape| run.shape == shape))
}

/// The measured cMAPE of runs of one shape: the sum over functions of the mean absolute error relative to the
/// truth. `None` without runs.
pub(super) fn cmape<'a>(
    runs: impl Iterator<Item = &'a Observation>,
    true_s: f64,
    compensated: bool,
) -> Option<f64> {
    mean(runs.map(|run| run.errors(true_s, compensated).iter().map(|error| error.abs()).sum()))
}

/// The mean, if there are numbers.
pub(super) fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (count, sum) = values.fold((0u32, 0.0), |(count, sum), value| (count + 1, sum + value));
    (count > 0).then(|| sum / f64::from(count))
}

impl Figures {
    /// The mean over the shapes of a ratio.
    pub(super) fn mean_ratio(&self, ratio: impl Fn(&ShapeFigures) -> f64) -> f64 {
        self.shapes.iter().map(ratio).sum::<f64>() / self.shapes.len() as f64
    }

    /// The figures that claims are about, each with the claim and its limits.
    fn claimed(&self) -> Vec<Claimed> {
        let over_best =
            |error: fn(&ShapeFigures) -> f64| self.mean_ratio(|shape| error(shape) / shape.best_cmape_ratio);
        let loss = (0.0, MOST_LOSS);
        let mut claimed = vec![
            Claimed::new(
                "error of the adaptive runs, over that of the best rate",
                loss,
                over_best(|shape| shape.adaptive_cmape_ratio),
            ),
            Claimed::new(
                "error expected at their rates, over that of the best rate",
                loss,
                over_best(|shape| shape.adaptive_expected_cmape_ratio),
            ),
        ];
        let of_default = over_best(|shape| shape.default_cmape_ratio);
        claimed.push(Claimed::new(
            "error of runs with the default settings, over that of the best rate",
            loss,
            of_default,
        ));
        claimed.extend(self.shapes.iter().map(|shape| {
            let claim = format!("chosen rate over λ*, {}", shape.name);
            Claimed::new(claim, around_one(RATE_BAND), shape.chosen_rate_hz / shape.law_rate_hz)
        }));
        let told = self.told_overhead_us / self.chosen_overhead_us;
        let claim = "cost of a sample as reported, over that by the stopwatch at the chosen rate";
        claimed.push(Claimed::new(claim, around_one(COST_BAND), told));
        claimed.extend(USUAL_HZ.into_iter().enumerate().map(|(usual, rate)| {
            let claim = format!("error of the adaptive runs, over that of {rate}/s");
            Claimed::new(claim, (0.0, 1.0), self.over_usual(usual))
        }));
        claimed
    }

    /// The geometric mean over the shapes of the adaptive runs' error over that of a usual rate.
    fn over_usual(&self, usual: usize) -> f64 {
        self.mean_ratio(|shape| (shape.adaptive_cmape_ratio / shape.usual_cmape_ratio[usual]).ln()).exp()
    }
}

/// A figure that a claim is about.
struct Claimed {
    claim: String,
    limits: (f64, f64),
    value: f64,
}

impl Claimed {
    fn new(claim: impl Into<String>, limits: (f64, f64), value: f64) -> Self {
        Self { claim: claim.into(), limits, value }
    }
}

fn around_one(band: f64) -> (f64, f64) {
    (1.0 - band, 1.0 + band)
}

/// The claims, each with the 95% interval of its figure: percentiles of a bootstrap that draws runs anew within
/// each shape and kind of run, and fits everything again. Two runs of a kind show less than their spread, so that
/// the intervals of a quick evaluation are a little too narrow.
pub(super) fn claims(runs: &[Observation], figures: &Figures, seed: u64) -> Vec<Claim> {
    let mut random = fastrand::Rng::with_seed(seed);
    let cells = cells(runs);
    let resampled = (0..RESAMPLES).filter_map(|_| self::figures(&resample(&cells, &mut random)).ok());
    let resampled: Vec<Vec<Claimed>> = resampled.map(|figures| figures.claimed()).collect();
    let claim = |(index, claimed): (usize, Claimed)| {
        let (low_ratio, high_ratio) = interval(resampled.iter().map(|all| all[index].value), claimed.value);
        Claim {
            claim: claimed.claim,
            value_ratio: claimed.value,
            low_ratio,
            high_ratio,
            least_ratio: claimed.limits.0,
            most_ratio: claimed.limits.1,
            outcome: judge((low_ratio, high_ratio), claimed.limits),
        }
    };
    figures.claimed().into_iter().enumerate().map(claim).collect()
}

/// What is drawn from by itself. All fixed rates of a shape are one cell, as pairs of a regression are: there may
/// be one run of each.
fn cells(runs: &[Observation]) -> Vec<Vec<&Observation>> {
    let mut cells: BTreeMap<(usize, String), Vec<&Observation>> = BTreeMap::new();
    for run in runs {
        let arm = if matches!(run.arm, Arm::Fixed(_)) { "fixed".to_owned() } else { run.arm.name() };
        cells.entry((run.shape, arm)).or_default().push(run);
    }
    cells.into_values().collect()
}

fn resample<'a>(cells: &[Vec<&'a Observation>], random: &mut fastrand::Rng) -> Vec<&'a Observation> {
    let mut drawn = Vec::new();
    for cell in cells {
        drawn.extend((0..cell.len()).map(|_| cell[random.usize(..cell.len())]));
    }
    drawn
}

/// The interval between the tails of resampled figures, around the figure itself in any case.
fn interval(values: impl Iterator<Item = f64>, value: f64) -> (f64, f64) {
    let mut sorted: Vec<f64> = values.collect();
    sorted.push(value);
    sorted.sort_by(f64::total_cmp);
    let cut = (TAIL * sorted.len() as f64) as usize;
    (sorted[cut].min(value), sorted[sorted.len() - 1 - cut].max(value))
}

fn judge((low, high): (f64, f64), (least, most): (f64, f64)) -> ClaimOutcome {
    if least <= low && high <= most {
        ClaimOutcome::Holds
    } else if high < least || low > most {
        ClaimOutcome::Fails
    } else {
        ClaimOutcome::Unsure
    }
}

#[cfg(test)]
#[path = "verdict_tests.rs"]
mod tests;
