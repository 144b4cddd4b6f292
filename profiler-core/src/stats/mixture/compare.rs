//! How versions of a program compare: the measures I₁ to I₃ of Worms and Touati 2016, section III.

use super::{Component, Mixture, phi};

/// Half-widths of the panels that I₃ is integrated over reach this many deviations from a mean, in steps of
/// half a deviation.
const REACH_HALVES: i32 = 18;
/// Gauss's five nodes and weights on −1 … 1.
const NODES: [(f64, f64); 5] = [
    (-0.906_179_845_938_664, 0.236_926_885_056_189_1),
    (-0.538_469_310_105_683_1, 0.478_628_670_499_366_5),
    (0.0, 0.568_888_888_888_888_9),
    (0.538_469_310_105_683_1, 0.478_628_670_499_366_5),
    (0.906_179_845_938_664, 0.236_926_885_056_189_1),
];

impl Mixture {
    /// I₁ = E|X − Y|: by how much a value of this mixture and one of `other` differ on average.
    pub fn mean_difference(&self, other: &Mixture) -> f64 {
        self.over_pairs(other, |x, y| {
            let (d, s) = difference(x, y);
            let score = d / s;
            d * (phi(score) - phi(-score))
                + s * (2.0 / std::f64::consts::PI).sqrt() * (-0.5 * score * score).exp()
        })
    }

    /// I₂ = P(X < Y + `shift`): how often a value of this mixture is below one of `other` shifted. A shift that
    /// is NaN is none.
    pub fn probability_below(&self, other: &Mixture, shift: f64) -> f64 {
        let shift = if shift.is_nan() { 0.0 } else { shift };
        self.over_pairs(other, |x, y| {
            let (d, s) = difference(x, y);
            phi((shift - d) / s)
        })
    }

    fn over_pairs(&self, other: &Mixture, measure: impl Fn(&Component, &Component) -> f64) -> f64 {
        let pairs = self.components.iter().flat_map(|x| other.components.iter().map(move |y| (x, y)));
        pairs.map(|(x, y)| x.weight * y.weight * measure(x, y)).sum()
    }
}

/// μ − μ′ and √(σ² + σ′²): what X − Y is distributed by.
fn difference(x: &Component, y: &Component) -> (f64, f64) {
    (x.mean - y.mean, x.deviation.hypot(y.deviation))
}

/// I₃ for each version: how often a value of it is below one value of every other, ∫Π(1 − Fⱼ)·f. They sum to 1.
pub fn probability_smallest(versions: &[Mixture]) -> Vec<f64> {
    let mut sums = vec![0.0; versions.len()];
    let edges = panels(versions);
    for panel in edges.windows(2) {
        let (middle, half) = (panel[0] + 0.5 * (panel[1] - panel[0]), 0.5 * (panel[1] - panel[0]));
        for (node, weight) in NODES {
            add_at(versions, middle + half * node, weight * half, &mut sums);
        }
    }
    sums
}

/// Panels in which every density and every cdf is smooth, wherever a density is not zero.
fn panels(versions: &[Mixture]) -> Vec<f64> {
    let components = versions.iter().flat_map(|version| &version.components);
    let steps = |component: &Component| {
        let (mean, deviation) = (component.mean, component.deviation);
        (-REACH_HALVES..=REACH_HALVES).map(move |half| mean + 0.5 * deviation * f64::from(half))
    };
    let mut edges: Vec<f64> = components.flat_map(steps).collect();
    edges.sort_by(f64::total_cmp);
    edges.dedup();
    edges
}

/// Adds the integrand of each version at `x`, which stands for `width`.
fn add_at(versions: &[Mixture], x: f64, width: f64, sums: &mut [f64]) {
    let above: Vec<f64> = versions.iter().map(|version| version.survival(x)).collect();
    for (index, version) in versions.iter().enumerate() {
        let density = version.density(x);
        if density > 0.0 {
            let others = above.iter().enumerate().filter(|(other, _)| *other != index);
            sums[index] += width * density * others.map(|(_, above)| above).product::<f64>();
        }
    }
}
