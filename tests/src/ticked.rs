//! What a busy thread sees of what interrupts it, as `programs/ticked.c` prints it.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use crate::slope::Figure;

/// Where in the tick's period an interruption begins that is one by a tick (ns around the usual place).
const NEAR_NS: f64 = 5_000.0;
/// Share of all interruptions that makes a place a usual one.
const OFTEN: f64 = 0.01;
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

/// What the program printed.
#[derive(Clone, Debug, Default)]
pub struct Pieces {
    /// In the order of time.
    pub interrupted: Vec<Piece>,
    /// What a piece takes that is not interrupted (ns).
    pub usual_ns: f64,
}

impl Pieces {
    /// Reads it; lines of another kind are left out.
    pub fn parse(said: &str) -> Self {
        let mut pieces = Pieces::default();
        for line in said.lines() {
            let mut words = line.split(' ');
            let kind = words.next().unwrap_or_default();
            let numbers: Vec<f64> = words.filter_map(|word| word.parse().ok()).collect();
            match (kind, &numbers[..]) {
                ("usual", &[.., took_ns]) => pieces.usual_ns = took_ns,
                ("signal" | "plain", &[at_ns, _, took_ns]) => {
                    pieces.interrupted.push(Piece { at_ns, took_ns, has_signal: kind == "signal" });
                }
                _ => {}
            }
        }
        pieces
    }
}

/// From one tick to the next (ns), as the kernel says.
pub fn tick_ns() -> Result<f64> {
    let tick = nix::time::clock_getres(nix::time::ClockId::CLOCK_MONOTONIC_COARSE)?;
    Ok(tick.tv_nsec() as f64)
}

/// Whether an interruption that began at such a time (ns) was one by a tick, which come at one place of their period: that of most of
/// these.
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

/// Whether an interruption began where some of these often do, in the tick's period: a machine has other timers that keep step with its
/// ticks, and a clock whose period is drawn at random seldom meets them.
pub fn at_usual_places(known_ns: impl Iterator<Item = f64>, tick_ns: f64) -> impl Fn(f64) -> bool {
    let place = move |at: f64| (at.rem_euclid(tick_ns) / NEAR_NS) as u64;
    let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
    known_ns.for_each(|at| *counts.entry(place(at)).or_default() += 1);
    let many = counts.values().sum::<usize>() as f64 * OFTEN;
    counts.retain(|_, count| *count as f64 > many);
    let last = place(tick_ns - 1.0);
    move |at| {
        let here = place(at);
        let neighbours = [here.checked_sub(1).unwrap_or(last), here, if here == last { 0 } else { here + 1 }];
        neighbours.iter().any(|place| counts.contains_key(place))
    }
}

/// The median of what pieces took (ns): neighbours on the machine hit some of them, and not all. Its error is by the quartiles, as
/// if the times were normal.
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
        let pieces = Pieces::parse("plain 10 5 900\nsignal 20 7 950\nnonsense\nusual 0 0 800\n");
        assert_eq!((pieces.interrupted.len(), pieces.usual_ns), (2, 800.0));
        assert!(pieces.interrupted[1].has_signal && pieces.interrupted[1].took_ns == 950.0);
    }

    #[test]
    fn ticks_are_told_by_their_place() {
        let ticks = (0..100).map(|tick| f64::from(tick) * 4e6 + 3_999_000.0);
        let is_tick = at_the_tick(ticks, 4e6);
        assert!(is_tick(4e9 - 500.0) && is_tick(1_500.0) && !is_tick(2e6));
    }

    #[test]
    fn usual_places_are_those_of_many() {
        let timers =
            (0..100).flat_map(|tick| [f64::from(tick) * 4e6 + 1_100_000.0, f64::from(tick) * 4e6 + 1_000.0]);
        let at_random = (0..50).map(|i| 4e6 * f64::from(i) + 70_000.0 * f64::from(i));
        let is_usual = at_usual_places(timers.chain(at_random), 4e6);
        assert!(is_usual(1_102_000.0) && is_usual(3_999_000.0) && is_usual(8e9 + 2_000.0));
        assert!(!is_usual(700_000.0) && !is_usual(2e6));
    }

    #[test]
    fn the_middle_is_the_median() {
        let piece = |took_ns| Piece { at_ns: 0.0, took_ns, has_signal: false };
        let pieces: Vec<Piece> = (0..101).map(|i| piece(if i == 0 { 1e9 } else { f64::from(i) })).collect();
        assert_eq!(middle(pieces.iter()).unwrap().mean, 51.0);
        assert!(middle(pieces[..9].iter()).is_err());
    }
}
