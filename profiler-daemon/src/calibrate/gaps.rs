//! What a timer's signal at every second tick costs the thread that it interrupts: by how much longer the thread stands still than
//! at the ticks beside, told by its own clock.

use std::thread;

use profiler_core::rate::Cost;

use super::place::CpuPair;
use super::spin::{SpinKind, SpinWork, Spinner};
use crate::standstill::{self, interruptions};
use crate::sys::affinity::stay_on;
use crate::sys::signal_cost::{Handled, TimedSignal, tick_ns};

/// For how long each kind of work is interrupted (ns): a hundred and fifty ticks of each sort.
const WORK_NS: u64 = 1_200_000_000;
/// Steps of some hundred nanoseconds, of each kind.
const COMPUTATIONS: u64 = 200;
const READS: u64 = 5;
/// A step of work that takes so much longer than usual was interrupted (ns).
const LONGER_NS: u64 = 1_500;
/// Where in the tick's period an interruption begins that is one by a tick (ns around the usual place).
const NEAR_NS: u64 = 5_000;
/// Fewer ticks of a kind say nothing.
const FEWEST: usize = 30;

type HandledInterruption = standstill::Interruption<Handled>;

/// What happens at ticks, while one kind of work was done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gaps {
    /// What it costs outside of its handler.
    pub(super) cost: Cost,
    /// When its handler begins, usually (ns since the tick).
    pub(super) late_ns: f64,
    /// Where in its period the tick comes (ns).
    pub(super) place_ns: u64,
}

impl Gaps {
    /// The cost for each ns that the handler is late.
    pub(super) fn share(&self) -> Cost {
        Cost::new(self.cost.mean_ns / self.late_ns, self.cost.se_ns / self.late_ns)
    }
}

/// Works at two kinds of things, one that computes and one that waits for memory, in a thread of its own that stays on one CPU and has
/// a signal at every second tick. `None` where the cost is not clear.
pub(super) fn measure() -> Option<[Gaps; 2]> {
    let measure = || {
        stay_on(CpuPair::choose().ok()?.work).ok()?;
        let mut spinner = Spinner::default();
        let mut of = |kind, iterations| {
            spinner.prepare(kind);
            let work = SpinWork { kind, frames: 0, stack_bytes: 0, iterations };
            let mut signals = TimedSignal::each(2 * tick_ns()).ok()?;
            found_at(&interrupted(WORK_NS, || spinner.spin(work), &mut signals), tick_ns())
        };
        Some([of(SpinKind::Compute, COMPUTATIONS)?, of(SpinKind::Memory, READS)?])
    };
    thread::Builder::new().name("calibrate".to_owned()).spawn(measure).ok()?.join().ok()?
}

/// Works for so long (ns), and tells of each interruption, with the signal that was handled in it.
fn interrupted(for_ns: u64, step: impl Fn(), signals: &mut TimedSignal) -> Vec<HandledInterruption> {
    let mut found = interruptions(for_ns, LONGER_NS, step, || signals.last());
    for one in &mut found {
        // A signal may come after the step was timed, when it is asked for.
        let is_within = |handled: &Handled| one.at_ns <= handled.begun_ns && handled.took_ns <= one.stood_ns;
        one.handled = one.handled.filter(is_within);
    }
    found
}

/// Of a program that nothing is known of: between the two, and as unsure as they differ.
pub(super) fn middle(computing: Cost, waiting: Cost) -> Cost {
    let spread_ns = (waiting.mean_ns - computing.mean_ns).abs() / 12_f64.sqrt();
    let noise_ns = computing.se_ns.hypot(waiting.se_ns) / 2.0;
    Cost::new((computing.mean_ns + waiting.mean_ns) / 2.0, spread_ns.hypot(noise_ns))
}

/// By how much longer a thread stands still for a tick at which something happens than for the two beside it, its handler not
/// counted: medians, since a neighbour that takes the CPU is no cost of ours, and neighbours in time, since the host changes. `None`
/// where that is not clear.
fn found_at(found: &[HandledInterruption], tick_ns: u64) -> Option<Gaps> {
    let place_ns = place_of_ticks(found, tick_ns)?;
    let ticks: Vec<HandledInterruption> =
        found.iter().copied().filter(|one| apart_ns(one.at_ns, place_ns, tick_ns) < NEAR_NS).collect();
    let longer = ticks.windows(3).filter_map(|three| {
        let &[before, one, after] = three else { return None };
        let is_whole = before.handled.is_none()
            && after.handled.is_none()
            && after.at_ns.saturating_sub(before.at_ns) < 2 * tick_ns + NEAR_NS;
        let took_ns = one.handled?.took_ns as f64;
        is_whole.then(|| one.stood_ns as f64 - took_ns - (before.stood_ns + after.stood_ns) as f64 / 2.0)
    });
    let late = ticks.iter().filter_map(|one| Some(one.handled?.begun_ns.saturating_sub(one.at_ns) as f64));
    let (longer, late) = (Sorted::new(longer)?, Sorted::new(late)?);
    let cost = Cost::new(longer.median(), longer.median_se());
    let late_ns = late.median();
    (cost.mean_ns > 2.0 * cost.se_ns && late_ns > 0.0).then_some(Gaps { cost, late_ns, place_ns })
}

/// Where in their period ticks come (ns): where most of what happens does, which is at ticks alone, but for the few that are found late.
fn place_of_ticks(found: &[HandledInterruption], tick_ns: u64) -> Option<u64> {
    let places: Vec<u64> =
        found.iter().filter(|one| one.handled.is_some()).map(|one| one.at_ns % tick_ns).collect();
    let near = |place| places.iter().filter(|other| apart_ns(**other, place, tick_ns) < NEAR_NS).count();
    let place = places.iter().copied().max_by_key(|place| near(*place))?;
    // The middle of those.
    let behind = |at: u64| (at + tick_ns + NEAR_NS - place) % tick_ns;
    let mut around: Vec<u64> =
        places.iter().map(|at| behind(*at)).filter(|behind| *behind < 2 * NEAR_NS).collect();
    around.sort_unstable();
    let middle = around.get(around.len() / 2)?;
    Some((place + middle + tick_ns - NEAR_NS) % tick_ns)
}

/// How far a time lies from the nearest tick (ns).
fn apart_ns(at_ns: u64, place_ns: u64, tick_ns: u64) -> u64 {
    let after_ns = (at_ns % tick_ns + tick_ns - place_ns) % tick_ns;
    after_ns.min(tick_ns - after_ns)
}

struct Sorted(Vec<f64>);

impl Sorted {
    fn new(times: impl Iterator<Item = f64>) -> Option<Self> {
        let mut times: Vec<f64> = times.collect();
        times.sort_by(f64::total_cmp);
        (times.len() >= FEWEST).then_some(Self(times))
    }

    fn median(&self) -> f64 {
        self.0[self.0.len() / 2]
    }

    /// By the quartiles, as if the times were normal.
    fn median_se(&self) -> f64 {
        let (n, quarter) = (self.0.len(), self.0.len() / 4);
        0.93 * (self.0[n - 1 - quarter] - self.0[quarter]) / (n as f64).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK_NS: u64 = 4_000_000;

    /// At a tick, with a handler that begins 20 µs after it and takes .5 µs.
    fn interruption(number: u64, stood_ns: u64, has_signal: bool) -> HandledInterruption {
        let at_ns = 7 * TICK_NS - 300 + number * TICK_NS + number % 600;
        let handled = has_signal.then(|| Handled { begun_ns: at_ns + 20_000 + number % 3, took_ns: 500 });
        HandledInterruption { at_ns, stood_ns, handled }
    }

    fn ticks() -> Vec<HandledInterruption> {
        let stood_ns = |number| if number % 2 == 0 { 25_000 } else { 18_000 } + number % 7 * 100;
        (0..200).map(|number| interruption(number, stood_ns(number), number % 2 == 0)).collect()
    }

    #[test]
    fn a_signal_costs_what_its_tick_takes_longer_than_those_beside_it_less_its_handler() {
        let signals = found_at(&ticks(), TICK_NS).unwrap();
        assert!((signals.cost.mean_ns - 6_500.0).abs() < 101.0 && signals.cost.se_ns < 100.0, "{signals:?}");
        assert!((signals.share().mean_ns - 6_500.0 / 20_000.0).abs() < 0.01, "{signals:?}");
        assert!(apart_ns(signals.place_ns, TICK_NS - 200, TICK_NS) < 300, "{signals:?}");
    }

    #[test]
    fn neighbours_and_other_interrupts_change_nothing() {
        let mut found = ticks();
        found[8].stood_ns = 9_000_000;
        found[11].stood_ns = 4_000_000;
        // Others, and signals that were found where they did not come.
        let others = (0..500).map(|number| HandledInterruption {
            at_ns: number * 799_999 + 1_000_000 + number % 3 * 77_000,
            stood_ns: 2_000,
            handled: (number % 5 == 0).then_some(Handled { begun_ns: 0, took_ns: 100 }),
        });
        found.extend(others);
        found.sort_by_key(|one| one.at_ns);
        let cost = found_at(&found, TICK_NS).unwrap().cost;
        assert!((cost.mean_ns - 6_500.0).abs() < 200.0, "{cost:?}");
    }

    #[test]
    fn what_is_not_clear_is_no_cost() {
        assert!(found_at(&[], TICK_NS).is_none());
        let alike = |number| interruption(number, 18_000 + number % 7 * 1_000, number % 2 == 0);
        assert!(found_at(&(0..200).map(alike).collect::<Vec<_>>(), TICK_NS).is_none());
        let middle = middle(Cost::new(6_000.0, 300.0), Cost::new(12_000.0, 400.0));
        assert!(
            (middle.mean_ns - 9_000.0).abs() < 1.0 && (1_700.0..1_800.0).contains(&middle.se_ns),
            "{middle:?}"
        );
    }

    #[test]
    fn a_thread_that_works_is_interrupted_with_signals_and_without() {
        let mut signals = TimedSignal::each(2 * tick_ns()).unwrap();
        let work = || {
            std::hint::black_box((0..100_u64).fold(1_u64, |x, y| std::hint::black_box(x ^ y)));
        };
        let found = interrupted(400_000_000, work, &mut signals);
        let handled = found.iter().filter(|one| one.handled.is_some()).count();
        assert!(handled >= 10 && handled < found.len(), "{handled} of {found:?}"); // fifty where the CPU is ours alone
    }
}
