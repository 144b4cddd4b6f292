//! The cost of a scenario, as measured and as the daemon reports, for each target and for the host.

use anyhow::{Context, Result};
use serde::Serialize;

use super::play::{Poll, Said, Show};
use crate::slope::Figure;
use crate::twins::{TURN_S, Turn, calm, excess};

/// CPUs that a target is taken to use at least where its slowdown is set against its CPU time. As the daemon counts.
const TARGET_FLOOR_CPUS: f64 = 0.01;
const TEN_S: f64 = 10.0;
/// Time between the beginnings of two windows (s).
const GRAIN_S: f64 = 0.25;
/// Part of a phase after which its rate counts as settled.
const SETTLED: f64 = 0.75;
/// How far the largest of some figures with an error may lie above the true ones (standard errors).
const MOST_SE: f64 = 2.5;

/// The largest overhead of any ten seconds, and by how much noise can have raised it.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Worst {
    /// Overhead (ratio).
    pub ratio: f64,
    /// Noise (ratio).
    pub noise: f64,
}

/// A target in a phase. Ratios are to its CPU time.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct TargetFigures {
    /// Which one.
    pub number: usize,
    /// CPUs that it kept busy.
    pub busy_cpus: f64,
    /// Extra time over its twin.
    pub slowdown: Figure,
    /// The same as the daemon says.
    pub said_ratio: f64,
    /// The daemon's time in its turns.
    pub own_ratio: f64,
    /// What all sampling of it may cost at the end, under the host's budget.
    pub granted_ratio: f64,
    /// Samples per CPU-second towards the end of the phase.
    pub rate_hz: f64,
    /// What switches and records that are no samples cost then.
    pub events_ratio: f64,
}

/// All targets and the daemon in a phase. Ratios are to the CPU time of all CPUs.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct HostFigures {
    /// Extra time of targets over their twins, plus all of the daemon's CPU time by the kernel.
    pub overhead: Figure,
    /// The latter part of it.
    pub own_ratio: f64,
    /// The same as the daemon says.
    pub said_ratio: f64,
    /// The part that no target causes.
    pub housekeeping_ratio: f64,
}

/// The observations, to be queried.
pub struct Figures<'s> {
    show: &'s Show,
    /// Extra time of a process over its twin when neither is sampled, with its error.
    usual: Vec<Figure>,
    calm: Vec<Vec<Turn>>,
}

fn within(turns: &[Turn], (from_s, to_s): (f64, f64)) -> Vec<Turn> {
    let is_within = |turn: &&Turn| turn.over_s - TURN_S > from_s && turn.over_s < to_s;
    turns.iter().filter(is_within).copied().collect()
}

impl<'s> Figures<'s> {
    /// Computes how much the twins differ unsampled.
    pub fn new(show: &'s Show) -> Result<Figures<'s>> {
        let usual = |turns: &Vec<Turn>| {
            let quiet = show.quiet_s.map(|span_s| within(turns, span_s)).concat();
            excess(&quiet).context("too few unsampled turns")
        };
        let usual = show.turns.iter().map(usual).collect::<Result<_>>()?;
        Ok(Figures { show, usual, calm: show.turns.iter().map(|turns| calm(turns)).collect() })
    }

    /// A target in a phase.
    pub fn target(&self, phase: usize, number: usize) -> Result<TargetFigures> {
        let span_s = self.show.phases[phase].span_s;
        let seconds = span_s.1 - span_s.0;
        let turns = within(&self.show.turns[number], span_s);
        let found = excess(&turns).context("too few sampled turns")?;
        let busy_s: f64 = turns.iter().map(|turn| turn.process_s).sum();
        let of_target = |spent_s: f64| spent_s / busy_s.max(TARGET_FLOOR_CPUS * seconds);
        let own_s = self.since(span_s, number, |said| said.own_s + said.foreign_s);
        let charged_s = self.since(span_s, number, |said| said.charged_s);
        let settled = (span_s.0 + SETTLED * seconds, span_s.1);
        let rate = |of: fn(&Said) -> f64| self.since(settled, number, of);
        let last = self.show.polls.iter().rev().find(|poll| poll.at_s <= span_s.1).context("no poll")?;
        let usual = self.usual[number];
        Ok(TargetFigures {
            number,
            busy_cpus: busy_s / seconds,
            slowdown: Figure { mean: found.mean - usual.mean, se: found.se.hypot(usual.se) },
            said_ratio: of_target(charged_s),
            own_ratio: of_target(own_s),
            granted_ratio: last.targets.get(&number).context("it was no target")?.granted_ratio,
            rate_hz: rate(|said| said.samples) / rate(|said| said.cpu_s).max(1e-9),
            events_ratio: rate(|said| said.events_s) / rate(|said| said.cpu_s).max(1e-9),
        })
    }

    /// All of a phase.
    pub fn host(&self, phase: usize) -> Result<HostFigures> {
        let span_s = self.show.phases[phase].span_s;
        let all_s = (span_s.1 - span_s.0) * self.show.cpus;
        let (mut extra_s, mut variance) = (0.0, 0.0);
        for (number, turns) in self.show.turns.iter().enumerate() {
            let turns = within(turns, span_s);
            // Who is none of the targets does nothing.
            let Some(found) = excess(&turns) else { continue };
            let twin_s: f64 = turns.iter().map(|turn| turn.twin_s).sum();
            extra_s += (found.mean - self.usual[number].mean) * twin_s;
            variance += (found.se.hypot(self.usual[number].se) * twin_s).powi(2);
        }
        let of_host = |of: fn(&Poll) -> f64| self.between(span_s, of) / all_s;
        let own_ratio = of_host(|poll| poll.kernel_own_s);
        Ok(HostFigures {
            overhead: Figure { mean: extra_s / all_s + own_ratio, se: variance.sqrt() / all_s },
            own_ratio,
            said_ratio: of_host(|poll| poll.own_s + poll.charged_s),
            housekeeping_ratio: of_host(|poll| poll.housekeeping_s),
        })
    }

    /// The largest slowdown of a target in ten seconds of a phase, or of several in a row; `None` where they are shorter.
    pub fn worst(&self, span_s: (f64, f64), number: usize) -> Option<Worst> {
        let usual = self.usual[number];
        let (ratio, turns) = self.largest(span_s, |window_s| {
            let turns = within(&self.calm[number], window_s);
            let busy_s: f64 = turns.iter().map(|turn| turn.process_s).sum();
            let twin_s: f64 = turns.iter().map(|turn| turn.twin_s).sum();
            let extra_s = busy_s - (1.0 + usual.mean) * twin_s;
            (extra_s / busy_s.max(TARGET_FLOOR_CPUS * TEN_S), turns)
        })?;
        let se = excess(&turns).map_or(f64::INFINITY, |found| found.se);
        Some(Worst { ratio, noise: MOST_SE * se.hypot(usual.se) })
    }

    /// The same as the daemon says.
    pub fn said_worst(&self, span_s: (f64, f64), number: usize) -> Option<f64> {
        let found = self.largest(span_s, |window_s| {
            let cpu_s = self.since(window_s, number, |said| said.cpu_s);
            let charged_s = self.since(window_s, number, |said| said.charged_s);
            (charged_s / cpu_s.max(TARGET_FLOOR_CPUS * TEN_S), ())
        });
        found.map(|(ratio, ())| ratio)
    }

    /// The host's worst ten seconds, by the stopwatch, less what the daemon spent on set-up in them: that is done once, and the budget counts
    /// it over minutes.
    pub fn host_worst(&self, span_s: (f64, f64)) -> Option<Worst> {
        let all_s = TEN_S * self.show.cpus;
        let (ratio, noise) = self.largest(span_s, |window_s| {
            let (mut extra_s, mut variance) = (0.0, 0.0);
            for (calm, usual) in self.calm.iter().zip(&self.usual) {
                let turns = within(calm, window_s);
                let twin_s: f64 = turns.iter().map(|turn| turn.twin_s).sum();
                let busy_s: f64 = turns.iter().map(|turn| turn.process_s).sum();
                let se = excess(&turns).map_or(0.0, |found| found.se);
                extra_s += busy_s - (1.0 + usual.mean) * twin_s;
                variance += (se.hypot(usual.se) * twin_s).powi(2);
            }
            let used_at = |at_s| interpolated(&self.show.own, at_s);
            let set_up_s = self.between(window_s, |poll| poll.set_up_s);
            (
                (extra_s + used_at(window_s.1) - used_at(window_s.0) - set_up_s) / all_s,
                MOST_SE * variance.sqrt() / all_s,
            )
        })?;
        Some(Worst { ratio, noise })
    }

    /// The daemon's CPU time as it says, over the kernel's figure.
    pub fn own_of_kernel(&self) -> Option<f64> {
        let (first, last) = (self.show.polls.first()?, self.show.polls.last()?);
        Some((last.own_s - first.own_s) / (last.kernel_own_s - first.kernel_own_s))
    }

    fn largest<T>(
        &self,
        (from_s, to_s): (f64, f64),
        of: impl Fn((f64, f64)) -> (f64, T),
    ) -> Option<(f64, T)> {
        let windows = ((to_s - from_s - TEN_S) / GRAIN_S).floor();
        let begins = (0..=windows as i64).map(|number| from_s + number as f64 * GRAIN_S);
        let found = begins.filter(|_| windows >= 0.0).map(|begin_s| of((begin_s, begin_s + TEN_S)));
        found.max_by(|a, b| a.0.total_cmp(&b.0))
    }

    /// By how much a figure of a target grew while it was sampled.
    fn since(&self, (from_s, to_s): (f64, f64), number: usize, of: impl Fn(&Said) -> f64) -> f64 {
        let looks = self.show.polls.iter();
        let looks: Vec<(f64, f64)> =
            looks.filter_map(|poll| Some((poll.at_s, of(poll.targets.get(&number)?)))).collect();
        interpolated(&looks, to_s) - interpolated(&looks, from_s)
    }

    fn between(&self, (from_s, to_s): (f64, f64), of: impl Fn(&Poll) -> f64) -> f64 {
        let looks: Vec<(f64, f64)> = self.show.polls.iter().map(|poll| (poll.at_s, of(poll))).collect();
        interpolated(&looks, to_s) - interpolated(&looks, from_s)
    }
}

/// A figure at a moment, interpolated between the two readings around it; before the first and after the last, theirs.
fn interpolated(looks: &[(f64, f64)], at_s: f64) -> f64 {
    let after = looks.partition_point(|(look_s, _)| *look_s <= at_s);
    match (after.checked_sub(1).map(|before| looks[before]), looks.get(after)) {
        (Some((t0, c0)), Some((t1, c1))) => c0 + (c1 - c0) * (at_s - t0) / (t1 - t0),
        (Some((_, value)), None) | (None, Some(&(_, value))) => value,
        (None, None) => 0.0,
    }
}
