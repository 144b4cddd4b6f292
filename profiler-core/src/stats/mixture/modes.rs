//! The values that a mixture gathers around: the measure I₄ of Worms and Touati 2016, section III.D.

use super::{Component, Mixture};

/// The slope is looked at every tenth of a deviation, up to five from each mean.
const REACH_TENTHS: i32 = 50;
/// Halvings after which a mode's place is as precise as numbers are.
const HALVINGS: usize = 60;

impl Mixture {
    /// The local maxima of the density, in order; their number is I₄. One at least, and one a component at most.
    pub fn modes(&self) -> Vec<f64> {
        let mut places: Vec<f64> = self.components.iter().flat_map(places_around).collect();
        places.sort_by(f64::total_cmp);
        let sloped: Vec<(f64, f64)> =
            places.into_iter().map(|x| (x, self.slope(x))).filter(|(_, slope)| *slope != 0.0).collect();
        let summits = sloped.windows(2).filter(|pair| pair[0].1 > 0.0 && pair[1].1 < 0.0);
        summits.map(|pair| self.summit(pair[0].0, pair[1].0)).collect()
    }

    /// The sign of the density's derivative at `x`, with some magnitude. Relative to the largest term, so that it does
    /// not vanish between components far apart.
    fn slope(&self, x: f64) -> f64 {
        let logarithm = |component: &Component| {
            let (score, deviation) = (component.score(x), component.deviation);
            component.weight.ln() - 2.0 * deviation.ln() + score.abs().ln() - 0.5 * score * score
        };
        let terms: Vec<f64> = self.components.iter().map(logarithm).collect();
        let largest = terms.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if largest == f64::NEG_INFINITY {
            return 0.0; // every mean is here, or out of sight
        }
        let signed =
            |(term, component): (&f64, &Component)| (term - largest).exp().copysign(component.mean - x);
        terms.iter().zip(&self.components).map(signed).sum()
    }

    /// Where between `low`, which rises, and `high`, which falls, the density is largest.
    fn summit(&self, mut low: f64, mut high: f64) -> f64 {
        for _ in 0..HALVINGS {
            let middle = low + 0.5 * (high - low);
            if self.slope(middle) > 0.0 { low = middle } else { high = middle }
        }
        low + 0.5 * (high - low)
    }
}

fn places_around(component: &Component) -> impl Iterator<Item = f64> {
    let (mean, deviation) = (component.mean, component.deviation);
    (-REACH_TENTHS..=REACH_TENTHS).map(move |tenth| mean + 0.1 * deviation * f64::from(tenth))
}
