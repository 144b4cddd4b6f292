//! Scales and round ticks.

use super::number::tick_label;

/// The largest magnitude that an axis shows: differences of two such numbers are finite.
const LARGEST: f64 = 1e100;
/// The smallest number that a logarithmic axis shows.
const SMALLEST: f64 = 1e-100;
/// How far outside of the chart a point may be drawn, in widths of the chart: what is clipped there needs
/// finite coordinates only.
const OUTSIDE: f64 = 3.0;
/// Free space above and below the values that an axis is fitted to, as a share of their range.
const PADDING: f64 = 0.06;
/// Ticks that an axis has at most.
const MOST_TICKS: usize = 12;
/// Ticks on a linear axis, about.
const TICKS: f64 = 6.0;

/// How numbers become distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    /// Equal differences are equally far.
    Linear,
    /// Equal ratios are equally far.
    Log,
}

/// An axis: what it shows, and from where to where.
#[derive(Clone, Debug)]
pub(crate) struct Axis {
    /// The quantity and its unit.
    pub(crate) label: String,
    scale: Scale,
    low: f64,
    high: f64,
}

/// A round number on an axis.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tick {
    /// Its place, 0 to 1.
    pub(super) place: f64,
    /// The number as text.
    pub(super) label: String,
}

impl Axis {
    /// An axis from `low` to `high`. Ends that are no range (no numbers, equal, or below 0 on a logarithmic
    /// scale) are moved until they are.
    pub(crate) fn new(label: impl Into<String>, scale: Scale, low: f64, high: f64) -> Self {
        let least = if scale == Scale::Log { SMALLEST } else { -LARGEST };
        let sane = |end: f64, or: f64| if end.is_nan() { or } else { end.clamp(least, LARGEST) };
        let low = sane(low, 0.1).min(0.1 * LARGEST);
        let high = sane(high, 1.0);
        let is_range = high - low > 1e-9 * low.abs();
        let high = if is_range { high } else { low + low.abs().max(SMALLEST.sqrt()) };
        Self { label: label.into(), scale, low, high }
    }

    /// An axis that shows all of these values, with some space around them.
    pub(crate) fn fitted(
        label: impl Into<String>,
        scale: Scale,
        values: impl IntoIterator<Item = f64>,
    ) -> Self {
        let shown = |value: &f64| value.is_finite() && (scale == Scale::Linear || *value > 0.0);
        let ends = values.into_iter().filter(shown).fold(None, |ends: Option<(f64, f64)>, value| {
            Some(ends.map_or((value, value), |(low, high)| (low.min(value), high.max(value))))
        });
        let (low, high) = ends.unwrap_or((0.1, 1.0));
        let tight = Self::new(label, scale, low, high);
        let (low, high) = (tight.value(-PADDING), tight.value(1.0 + PADDING));
        Self::new(tight.label, scale, low, high)
    }

    /// Where a value is: 0 at the low end, 1 at the high one, at most [`OUTSIDE`] beyond. `None` for what the
    /// scale cannot show.
    pub(super) fn place(&self, value: f64) -> Option<f64> {
        if value.is_nan() || (self.scale == Scale::Log && value <= 0.0) {
            return None;
        }
        let (at, low, high) = (self.distance(value), self.distance(self.low), self.distance(self.high));
        Some(((at - low) / (high - low)).clamp(-OUTSIDE, 1.0 + OUTSIDE))
    }

    /// [`Self::place`] of a value that the axis shows.
    pub(super) fn inside(&self, value: f64) -> Option<f64> {
        self.place(value).filter(|place| (-1e-9..=1.0 + 1e-9).contains(place))
    }

    /// The value at a place.
    fn value(&self, place: f64) -> f64 {
        let (low, high) = (self.distance(self.low), self.distance(self.high));
        let at = low + place * (high - low);
        if self.scale == Scale::Log { 10f64.powf(at) } else { at }
    }

    fn distance(&self, value: f64) -> f64 {
        if self.scale == Scale::Log { value.log10() } else { value }
    }

    /// The round numbers on the axis, the smallest first.
    pub(super) fn ticks(&self) -> Vec<Tick> {
        let decades = (self.high / self.low.max(SMALLEST)).log10();
        if self.scale == Scale::Log && decades > 0.7 { self.log_ticks(decades) } else { self.linear_ticks() }
    }

    fn linear_ticks(&self) -> Vec<Tick> {
        let step = round_up((self.high - self.low) / TICKS);
        let first = (self.low / step).ceil();
        (0..MOST_TICKS).filter_map(|index| self.tick((first + index as f64) * step, step)).collect()
    }

    /// 1, 2 and 5 in each decade, or whole decades where there are many.
    fn log_ticks(&self, decades: f64) -> Vec<Tick> {
        let (first, last) = (self.low.log10().floor() as i32, self.high.log10().ceil() as i32);
        let digits: &[f64] = if decades < 3.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let every = ((last - first) as usize).div_ceil(MOST_TICKS).max(1);
        let powers = (first..=last).step_by(every).map(|power| 10f64.powi(power));
        powers
            .flat_map(|power| digits.iter().filter_map(move |digit| self.tick(digit * power, power)))
            .collect()
    }

    fn tick(&self, value: f64, step: f64) -> Option<Tick> {
        Some(Tick { place: self.inside(value)?, label: tick_label(value, step) })
    }
}

/// The least of 1, 2, 5, 10, … times a power of ten that is no less than `step`.
fn round_up(step: f64) -> f64 {
    let power = 10f64.powf(step.log10().floor());
    let digit = step / power;
    let round = [1.0, 2.0, 5.0].into_iter().find(|round| digit <= *round * (1.0 + 1e-9)).unwrap_or(10.0);
    round * power
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn labels(axis: &Axis) -> Vec<String> {
        axis.ticks().into_iter().map(|tick| tick.label).collect()
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(
            labels(&Axis::new("", Scale::Linear, 0.0, 1.0)),
            ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]
        );
        assert_eq!(labels(&Axis::new("", Scale::Linear, 61.0, 68.0)), ["62", "64", "66", "68"]);
        assert_eq!(
            labels(&Axis::new("", Scale::Log, 30.0, 3000.0)),
            ["50", "100", "200", "500", "1,000", "2,000"]
        );
        assert_eq!(
            labels(&Axis::new("", Scale::Log, 1.0, 1e5)),
            ["1", "10", "100", "1,000", "10,000", "100,000"]
        );
    }

    #[test]
    fn equal_ratios_are_equally_far_on_a_logarithmic_axis() {
        let axis = Axis::new("", Scale::Log, 10.0, 1000.0);
        assert!((axis.place(100.0).unwrap() - 0.5).abs() < 1e-12);
        assert_eq!(axis.place(0.0), None);
        assert_eq!(axis.inside(9.0), None);
    }

    #[test]
    fn a_fitted_axis_shows_its_values() {
        for scale in [Scale::Linear, Scale::Log] {
            let axis = Axis::fitted("", scale, [3.0, f64::NAN, 40.0, f64::INFINITY]);
            let (low, high) = (axis.place(3.0).unwrap(), axis.place(40.0).unwrap());
            assert!(0.0 < low && low < 0.1 && 0.9 < high && high < 1.0, "{low} {high}");
        }
    }

    proptest! {
        #[test]
        fn any_range_is_an_axis(low in any::<f64>(), high in any::<f64>(), value in any::<f64>(), log: bool) {
            let scale = if log { Scale::Log } else { Scale::Linear };
            for axis in [Axis::new("", scale, low, high), Axis::fitted("", scale, [low, high, value])] {
                prop_assert!(axis.place(value).is_none_or(f64::is_finite));
                let ticks = axis.ticks();
                prop_assert!(ticks.len() <= 3 * MOST_TICKS);
                prop_assert!(ticks.iter().all(|tick| (-1e-6..=1.000001).contains(&tick.place)));
                prop_assert!(ticks.is_sorted_by(|a, b| a.place <= b.place));
            }
        }
    }
}
