//! Charts: one description, drawn as SVG for a browser or in characters for a terminal.
//!
//! Plotting crates write colours as attributes, so that a picture fits a light page or a dark one but not
//! both, and none draws in characters; the scales and the round ticks are most of what remains.

mod axis;
mod number;
mod svg;
mod text;

pub(crate) use axis::{Axis, Scale};
pub(crate) use number::grouped;

/// What is drawn.
#[derive(Clone, Debug)]
pub(crate) struct Chart {
    /// What the chart shows.
    pub(crate) title: String,
    /// Under what conditions.
    pub(crate) subtitle: String,
    /// From left to right.
    pub(crate) x: Axis,
    /// From the bottom up.
    pub(crate) y: Axis,
    /// Curves and measured points, in the order of the legend.
    pub(crate) series: Vec<Series>,
    /// Places on the x axis that matter.
    pub(crate) rules: Vec<VerticalLine>,
    /// Points that matter.
    pub(crate) marks: Vec<Mark>,
}

/// A curve or a set of points. Points that are no numbers, or that a logarithmic axis cannot show, are left
/// out.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    /// What the legend calls it.
    pub(crate) name: String,
    /// x and y, in the units of the axes; for a curve in the order of x.
    pub(crate) points: Vec<(f64, f64)>,
    /// How it is drawn.
    pub(crate) look: Look,
    /// Which colour of the palette it has: what belongs together shares one.
    pub(crate) tone: usize,
}

/// How a [`Series`] is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// A curve.
    Line,
    /// A curve of second rank.
    Dashes,
    /// Points by themselves.
    Dots,
}

/// A vertical line across the chart.
#[derive(Clone, Debug)]
pub(crate) struct VerticalLine {
    /// Where it stands.
    pub(crate) x: f64,
    /// What it means.
    pub(crate) label: String,
}

/// A point with a name.
#[derive(Clone, Debug)]
pub(crate) struct Mark {
    /// Where it is, in the units of the axes.
    pub(crate) at: (f64, f64),
    /// What it means.
    pub(crate) label: String,
}

/// Charts below each other as one SVG file that needs nothing else, for light pages and dark ones.
pub(crate) fn svg(charts: &[Chart]) -> String {
    svg::draw(charts)
}

impl Chart {
    /// The chart as an SVG file of its own.
    pub(crate) fn svg(&self) -> String {
        svg(std::slice::from_ref(self))
    }

    /// The chart in characters, no line wider than `columns` (at least 40).
    pub(crate) fn text(&self, columns: usize) -> String {
        text::draw(self, columns)
    }

    /// The rules that lie on the x axis, from left to right, each with its place from 0 to 1.
    fn rules_in_sight(&self) -> Vec<(f64, &VerticalLine)> {
        let mut rules: Vec<_> =
            self.rules.iter().filter_map(|rule| Some((self.x.inside(rule.x)?, rule))).collect();
        rules.sort_by(|a, b| a.0.total_cmp(&b.0));
        rules
    }

    /// Where a point is on both axes, 0 to 1 inside the chart; `None` where an axis cannot show it.
    fn place(&self, (x, y): (f64, f64)) -> Option<(f64, f64)> {
        Some((self.x.place(x)?, self.y.place(y)?))
    }

    /// The marks inside the chart with their places.
    fn marks_in_sight(&self) -> impl Iterator<Item = ((f64, f64), &Mark)> {
        self.marks
            .iter()
            .filter_map(|mark| Some(((self.x.inside(mark.at.0)?, self.y.inside(mark.at.1)?), mark)))
    }
}

/// What a rule is called where there is no room for its label.
fn letter(index: usize) -> char {
    (b'a' + (index % 26) as u8) as char
}

#[cfg(test)]
mod tests;
