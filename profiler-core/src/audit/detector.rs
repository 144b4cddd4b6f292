//! Evidence that begins anew all the time, so that it also shows what begins late.
//!
//! For each of some alternatives, M ← (M + m)·L (Shiryaev and Roberts), where L is the evidence of a block, on average 1
//! or less if nothing is wrong, and m the time that the block took. Then M is on average at most the time since the
//! beginning, at any moment that one may choose to stop at, so that within a time t it exceeds c with probability t/c at
//! most: c is one over the false alarms per time. Several tests may share the time, each with a part of m.

/// The evidence for `N` alternatives, as logarithms.
#[derive(Clone, Copy, Debug)]
pub(super) struct Detector<const N: usize> {
    log_m: [f64; N],
}

impl<const N: usize> Default for Detector<N> {
    fn default() -> Self {
        Detector { log_m: [f64::NEG_INFINITY; N] }
    }
}

impl<const N: usize> Detector<N> {
    /// Takes in a block of `days` with this evidence (the logarithm of L) for each alternative. Returns the logarithm of what
    /// there is together, in days.
    pub(super) fn observe(&mut self, days: f64, log_l: [f64; N]) -> f64 {
        let fresh = (days / N as f64).ln();
        for (log_m, log_l) in self.log_m.iter_mut().zip(log_l) {
            *log_m = log_sum(*log_m, fresh) + log_l;
        }
        self.log_m.iter().copied().fold(f64::NEG_INFINITY, log_sum)
    }
}

/// ln(eᵃ + eᵇ).
pub(super) fn log_sum(a: f64, b: f64) -> f64 {
    let (low, high) = if a < b { (a, b) } else { (b, a) };
    if low == f64::NEG_INFINITY { high } else { high + (low - high).exp().ln_1p() }
}
