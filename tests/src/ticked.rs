//! What a busy thread sees of what interrupts it, as `programs/ticked.c` prints it.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use crate::slope::Figure;

/// An interruption is a tick's if it begins within this of the usual place in the tick's period (ns).
const NEAR_NS: f64 = 5_000.0;
/// Fewer pieces have no middle.
const LEAST_PIECES: usize = 30;

/// A piece of work that was interrupted once.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// When (ns of the monotonic clock).
    pub at_ns: f64,
    /// How long the whole piece took (ns).
    pub took_ns: f64,
    /// Whether a signal's handler ran.
    pub has_signal: bool,
}

impl Piece {
    /// Reads what the program printed, in the order of time; lines of another kind are left out.
    pub fn parse_all(said: &str) -> Vec<Piece> {
        let parse = |line: &str| {
            let mut words = line.split(' ');
            let kind = words.next().filter(|kind| ["signal", "plain"].contains(kind))?;
            let numbers: Vec<f64> = words.filter_map(|word| word.parse().ok()).collect();
            let &[at_ns, _, took_ns] = &numbers[..] else { return None };
            Some(Piece { at_ns, took_ns, has_signal: kind == "signal" })
        };
        said.lines().filter_map(parse).collect()
    }
}

/// From one tick to the next (ns), as the kernel says.
pub fn tick_ns() -> Result<f64> {
    let tick = nix::time::clock_getres(nix::time::ClockId::CLOCK_MONOTONIC_COARSE)?;
    Ok(tick.tv_nsec() as f64)
}

/// Whether an interruption that began at a given time (ns) was a tick's. Ticks come at a fixed place of their period, where most of
/// these interruptions are.
pub fn at_the_tick(known_ns: impl Iterator<Item = f64>, tick_ns: f64) -> impl Fn(f64) -> bool {
    let from = move |at: f64, place: f64| (at - place + tick_ns / 2.0).rem_euclid(tick_ns) - tick_ns / 2.0;
    let known: Vec<f64> = known_ns.map(|at| at.rem_euclid(tick_ns)).collect();
    let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
    known.iter().for_each(|at| *counts.entry((at / NEAR_NS) as u64).or_default() += 1);
    let fullest = counts.iter().max_by_key(|(_, count)| **count).map_or(0, |(bin, _)| *bin);
    let middle = (fullest as f64 + 0.5) * NEAR_NS;
    let offs: Vec<f64> = known.iter().map(|at| from(*at, middle)).filter(|off| off.abs() < NEAR_NS).collect();
    let place = middle + offs.iter().sum::<f64>() / offs.len().max(1) as f64;
    move |at| from(at, place).abs() < NEAR_NS
}

/// The median length of pieces of work (ns): other load on the machine disturbs only some of them. Its error is computed from the
/// quartiles, assuming a normal distribution.
///
/// # Errors
/// There are too few.
pub fn middle<'a>(pieces: impl Iterator<Item = &'a Piece>) -> Result<Figure> {
    let mut took: Vec<f64> = pieces.map(|piece| piece.took_ns).collect();
    took.sort_by(f64::total_cmp);
    let (n, quarter) = (took.len(), took.len() / 4);
    let figure = |se| Figure { mean: took[n / 2], se };
    let found = (n > LEAST_PIECES)
        .then(|| figure(0.93 * (took[n - 1 - quarter] - took[quarter]) / (n as f64).sqrt()));
    found.with_context(|| format!("{n} pieces that were interrupted so are too few"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_program_prints_is_read() {
        let pieces = Piece::parse_all("plain 10 5 900\nsignal 20 7 950\nnonsense\n");
        assert!(pieces.len() == 2 && pieces[1].has_signal && pieces[1].took_ns == 950.0, "{pieces:?}");
    }

    #[test]
    fn ticks_are_told_by_their_place() {
        let ticks = (0..100).map(|tick| f64::from(tick) * 4e6 + 3_999_000.0);
        let is_tick = at_the_tick(ticks, 4e6);
        assert!(is_tick(4e9 - 500.0) && is_tick(1_500.0) && !is_tick(2e6));
    }

    #[test]
    fn the_middle_is_the_median() {
        let piece = |took_ns| Piece { at_ns: 0.0, took_ns, has_signal: false };
        let pieces: Vec<Piece> = (0..101).map(|i| piece(if i == 0 { 1e9 } else { f64::from(i) })).collect();
        assert_eq!(middle(pieces.iter()).unwrap().mean, 51.0);
        assert!(middle(pieces[..9].iter()).is_err());
    }
}
