//! The costs that samples gather around: with cold caches and with warm ones, for instance (Worms and Touati 2016).

use serde::{Deserialize, Serialize};

use crate::stats::mixture::{self, Component, Mixture};

/// Components of the mixture: two modes, and disturbances.
const COMPONENTS: usize = 4;
/// Least share of the samples for a mode; with less, it is a disturbance.
const MODE_SHARE: f64 = 0.1;
/// Between two clear modes the density falls below this part of the lower one.
const VALLEY: f64 = 0.5;
/// Costs that differ by a smaller share are not worth telling apart.
const APART: f64 = 0.05;
/// Points between two modes at which the density is computed.
const VALLEY_PLACES: u32 = 32;

/// A cost that samples gather around, for instance with cold caches or with warm ones.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CostMode {
    /// o in this mode (µs).
    pub overhead_us: f64,
    /// Share of the samples.
    pub share: f64,
}

/// The costs (ns) that samples cluster around: at least two, or none.
pub(super) fn clear_modes(costs_ns: &[f64]) -> Vec<CostMode> {
    let Some(fit) = mixture::fit(costs_ns, COMPONENTS) else { return Vec::new() };
    let common = fit.mixture.components().iter().filter(|component| component.weight >= MODE_SHARE);
    let Some(mixture) = Mixture::new(common.copied().collect()) else { return Vec::new() };
    let summits = clear_summits(&mixture);
    if summits.len() < 2 {
        return Vec::new();
    }
    let mut sums = vec![(0.0, 0.0); summits.len()];
    for Component { weight, mean, .. } in mixture.components() {
        let (share, sum) = &mut sums[nearest(&summits, *mean)];
        (*share, *sum) = (*share + weight, *sum + weight * mean);
    }
    let met = sums.into_iter().filter(|(share, _)| *share > 0.0);
    met.map(|(share, sum)| CostMode { overhead_us: sum / share * 1e-3, share }).collect()
}

/// The modes, in order, each worth telling from the next; of two that are not the higher stands for both.
fn clear_summits(mixture: &Mixture) -> Vec<f64> {
    let mut clear: Vec<f64> = Vec::new();
    for summit in mixture.modes() {
        match clear.last_mut() {
            Some(last) if !are_apart(mixture, *last, summit) => {
                *last = if mixture.density(summit) > mixture.density(*last) { summit } else { *last };
            }
            _ => clear.push(summit),
        }
    }
    clear
}

fn are_apart(mixture: &Mixture, low: f64, high: f64) -> bool {
    let place = |i: u32| low + (high - low) * f64::from(i) / f64::from(VALLEY_PLACES);
    let least = (1..VALLEY_PLACES).map(|i| mixture.density(place(i))).fold(f64::INFINITY, f64::min);
    high - low >= APART * low && least < VALLEY * mixture.density(low).min(mixture.density(high))
}

fn nearest(summits: &[f64], mean: f64) -> usize {
    let distance = |i: &usize| (summits[*i] - mean).abs();
    (0..summits.len()).min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap_or(0)
}
