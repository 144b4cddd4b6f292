//! Batch means: how much more shares vary in the long run than with independent samples (Conway 1963).
//!
//! A program stays in a function for a while, so neighbouring samples agree, and n of them know as little as n/VIF
//! independent ones. The variance inflation VIF is read off how the share differs between batches of the run, each
//! long enough to forget the one before. Batches of several lengths are tried: a bout that is longer than a batch
//! makes neighbours alike, and only longer batches show it.
//!
//! Limits: less than [`MIN_BATCHES`] windows show no inflation at all, and nothing is said of other runs then. Bouts, or phases,
//! longer than about a tenth of the run cannot be seen from within it; where batches show that there are such, nothing is said of other
//! runs either.

use super::table::WindowSums;

/// Batches below which a variance between them means little.
pub const MIN_BATCHES: usize = 6;
/// The longest window and the shortest (ns).
const WINDOWS_NS: (u64, u64) = (500_000_000, 20_000_000);
/// Twice as long batches that vary so much more have not forgotten the ones before, unless all of it is chance.
const GROWING: f64 = 1.5;
const INFLATED: f64 = 2.0;
/// Windows that make a batch; each length is also there twice as long.
const LENGTHS: [usize; 12] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64];

/// The windows of a run, cut into batches of several lengths.
#[derive(Clone, Debug)]
pub struct Batches {
    lengths: Vec<Length>,
}

#[derive(Clone, Debug)]
struct Length {
    windows: usize,
    totals: Vec<f64>,
    sum: f64,
    squares: f64,
}

/// The largest inflation that batches show, and how many they were.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Inflation {
    /// Variance over that of independent samples (VIF); at least 1.
    pub factor: f64,
    /// Batches it was seen in; 0 where there were too few windows.
    pub batches: usize,
}

/// How long the next window of a run should be (ns) that has lasted for `elapsed_ns`: a twelfth of that, as far as it is neither too
/// short to hold samples nor too long. How much the shares vary is seen between windows, of a short run as of a long one.
pub fn window_ns(elapsed_ns: u64) -> u64 {
    (elapsed_ns / 12).clamp(WINDOWS_NS.1, WINDOWS_NS.0)
}

impl Batches {
    /// Cuts windows, all with a weight above zero, into batches. What is left over at the end is left out.
    pub fn new(windows: &[WindowSums]) -> Self {
        let enough = LENGTHS.into_iter().take_while(|length| windows.len() / length >= MIN_BATCHES);
        Batches { lengths: enough.map(|length| Length::new(windows, length)).collect() }
    }

    /// Whether the variances of the longest batches are still above those of batches half as long: bouts, or phases, are longer than
    /// batches of this run can be, and the run does not show how much longer. `variances` and `binomial` are of all functions together.
    pub fn still_grow(&self, variances: &[f64], binomial: f64) -> bool {
        let Some((longest, variance)) = self.lengths.iter().zip(variances).next_back() else { return false };
        let half =
            self.lengths.iter().zip(variances).find(|(length, _)| 2 * length.windows == longest.windows);
        half.is_some_and(|(_, half)| *variance > GROWING * half && *variance > INFLATED * binomial)
    }

    /// Batches of the shortest length: how many differences there are to learn from.
    pub fn most(&self) -> usize {
        self.lengths.first().map_or(0, |length| length.totals.len())
    }

    /// The variance of a function's share, by length of the batches. `parts` are the windows in which it was seen
    /// and its weights (ns), in the order of time.
    pub fn variances(&self, parts: &[(usize, f64)]) -> Vec<f64> {
        self.lengths.iter().map(|length| length.variance(parts)).collect()
    }

    /// The largest inflation of one function: `variances` over `binomial`, that of independent samples.
    pub fn inflation(&self, variances: &[f64], binomial: f64) -> Inflation {
        let none = Inflation { factor: 1.0, batches: self.most() };
        let seen = self.lengths.iter().zip(variances).map(|(length, variance)| Inflation {
            factor: variance / binomial,
            batches: length.totals.len(),
        });
        seen.filter(|seen| seen.factor.is_finite())
            .fold(none, |most, seen| if seen.factor > most.factor { seen } else { most })
    }

    /// The inflation of all functions together, from the sums of their variances.
    ///
    /// Batches of length B miss a part τ/B of the variance; twice what is seen at 2B less what is seen at B misses
    /// none of it (the "lugsail" of batch means). One function alone is too noisy for that.
    pub fn pooled(&self, variances: &[f64], binomial: f64) -> f64 {
        let at = |windows: usize| {
            self.lengths
                .iter()
                .zip(variances)
                .find(|(length, _)| length.windows == windows)
                .map(|(_, v)| v / binomial)
        };
        let extrapolated =
            self.lengths.iter().filter_map(|short| Some(2.0 * at(2 * short.windows)? - at(short.windows)?));
        let plain = self.lengths.iter().filter_map(|length| at(length.windows));
        plain.chain(extrapolated).filter(|factor| factor.is_finite()).fold(1.0, f64::max)
    }
}

impl Length {
    fn new(windows: &[WindowSums], length: usize) -> Self {
        let batches = windows.chunks_exact(length);
        let totals: Vec<f64> =
            batches.map(|batch| batch.iter().map(|window| window.weight_ns).sum()).collect();
        Length {
            windows: length,
            sum: totals.iter().sum(),
            squares: totals.iter().map(|total| total * total).sum(),
            totals,
        }
    }

    /// m/(m−1)·Σ(x−p·t)²/(Σt)², the ratio estimator's variance, where most x are 0.
    fn variance(&self, parts: &[(usize, f64)]) -> f64 {
        let (mut x, mut xx, mut xt) = (0.0, 0.0, 0.0);
        for batch in parts.chunk_by(|a, b| a.0 / self.windows == b.0 / self.windows) {
            let Some(total) = self.totals.get(batch[0].0 / self.windows) else { break };
            let own: f64 = batch.iter().map(|(_, weight_ns)| weight_ns).sum();
            (x, xx, xt) = (x + own, xx + own * own, xt + own * total);
        }
        let (p, m) = (x / self.sum, self.totals.len() as f64);
        let squares = (xx - 2.0 * p * xt + p * p * self.squares).max(0.0);
        m / (m - 1.0) * squares / (self.sum * self.sum)
    }
}

/// n/VIF: how many independent samples would know as much.
pub fn effective_samples(samples: f64, inflation: f64) -> f64 {
    samples / inflation.max(1.0)
}
