//! The evaluation as a chart: the error over the rate, for each program.

use super::design::{Arm, RATES_HZ, SHAPES};
use super::fit::{Observation, rates};
use super::verdict::{Figures, ShapeFigures, cmape, of_arm};
use crate::plot::{Axis, Chart, Look, Mark, Scale, Series, VerticalLine, grouped};

/// Rates that the chart shows (samples per CPU-second).
const SHOWN: (f64, f64) = (25.0, 60_000.0);

/// The chart: expected and measured errors, and where the controller's runs ended.
pub(super) fn chart(runs: &[Observation], figures: &Figures) -> Chart {
    let runs: Vec<&Observation> = runs.iter().collect();
    let series: Vec<Series> = figures
        .shapes
        .iter()
        .enumerate()
        .flat_map(|(index, shape)| [expected(figures, index, shape), measured(&runs, index, shape)])
        .collect();
    let heights = series.iter().flat_map(|series| series.points.iter().map(|point| point.1));
    Chart {
        title: "Error of a profile over its sampling rate".to_owned(),
        subtitle: format!(
            "programs of {:.1} s; a sample costs {:.2} ± {:.2} µs at 1,000/s; cMAPE of the four largest functions",
            figures.mean_ratio(|shape| shape.true_cpu_s),
            figures.cost.curve.overhead_us,
            figures.cost.overhead_se_us
        ),
        x: Axis::new("samples per CPU-second", Scale::Log, SHOWN.0, SHOWN.1),
        y: Axis::fitted("sum of the relative errors in CPU seconds (%)", Scale::Log, heights),
        rules: figures.shapes.iter().map(chosen_rule).collect(),
        marks: figures.shapes.iter().map(chosen_mark).collect(),
        series,
    }
}

fn expected(figures: &Figures, index: usize, shape: &ShapeFigures) -> Series {
    let at = |rate: f64| {
        let error = figures.model.cmape(&SHAPES[index], shape.true_cpu_s, rate)?;
        (SHOWN.0..=SHOWN.1).contains(&rate).then_some((rate, error * 100.0))
    };
    let points = rates().filter_map(at).collect();
    Series { name: format!("{}, expected", shape.name), points, look: Look::Line, tone: index }
}

fn measured(runs: &[&Observation], index: usize, shape: &ShapeFigures) -> Series {
    let at = |rate: f64| {
        let error = cmape(of_arm(runs, Some(index), Arm::Fixed(rate)), shape.true_cpu_s, false)?;
        Some((rate, error * 100.0))
    };
    let points = RATES_HZ.into_iter().filter_map(at).collect();
    Series { name: format!("{}, measured", shape.name), points, look: Look::Dots, tone: index }
}

fn chosen_rule(shape: &ShapeFigures) -> VerticalLine {
    let label = format!("{}, chosen: {}/s", shape.name, grouped(shape.chosen_rate_hz));
    VerticalLine { x: shape.chosen_rate_hz, label }
}

fn chosen_mark(shape: &ShapeFigures) -> Mark {
    let error = shape.adaptive_cmape_ratio * 100.0;
    Mark { at: (shape.chosen_rate_hz, error), label: format!("{} {error:.1}%", shape.name) }
}
