//! What a sample by a timer's signal costs: the part that its handler cannot see, measured here; what the handler takes, it tells
//! with each sample.

use std::thread;

use profiler_core::rate::{AtTick, Cost, CostModel};

use super::cache::{self, Thoroughness};
use super::load::{self, Load};
use super::place::{Place, stay_on};
use super::spin::{Kind, SpinWork, Spinner};
use super::{Calibration, keep, kept};
use crate::sampler::access::Access;
use crate::sys::signal_cost::{self, Interruption};

/// For how long each kind of work is interrupted (ns): a hundred and fifty ticks with a signal, as many without.
const WORK_NS: u64 = 1_200_000_000;
/// Steps of some hundred nanoseconds, of each kind.
const COMPUTATIONS: u64 = 200;
const READS: u64 = 5;
/// Samples put more out of the caches than the handler here: programs were found to pay .9 to 1.0 times what is measured here if they
/// compute, and 1.1 to 1.25 times if they live in the second cache (`tests/src/bin/signals.rs`).
const AFTERWARDS: f64 = 1.07;
const AFTERWARDS_SE: f64 = 0.12;
/// Where in the tick's period an interruption begins that is one by a tick (ns around the usual place).
const NEAR_NS: u64 = 5_000;
/// Fewer ticks of a kind say nothing.
const FEWEST: usize = 30;
/// Where it is kept, beside that of perf events.
const FILE: &str = "signals.json";
/// The way to measure. To be raised with every change of it.
const METHOD: u32 = 2;
/// Signals need no right that would change what they cost.
const ACCESS: Access = Access { cpu_wide: false, kernel: false, targets: 1 };
/// What the handler takes before the first one has told (ns), and how far that may be off.
const HANDLER: Cost = Cost::new(1_500.0, 1_000.0);
/// A byte of stack that it copies (ns).
const BYTE: Cost = Cost::new(0.15, 0.1);

/// As kept from before, else measured on the calling thread. What was kept from a busy hour is measured again in a quiet one.
pub(crate) fn prepare() -> Calibration {
    // Where in its period the tick comes is another matter after each boot.
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let machine = format!("{} · {} · timer signals {METHOD}", cache::machine(ACCESS), boot.trim());
    let path = cache::cache_path().map(|path| path.with_file_name(FILE));
    let found = path.as_deref().and_then(|path| cache::read(path, &machine));
    if let Some(found) = found.as_ref().filter(|found| !found.is_loaded() || !load::machine_is_quiet()) {
        return Calibration { model: found.model, note: None };
    }
    let load = Load::watch();
    match measure() {
        Some(measured) => {
            let measured = kept(machine, Thoroughness::Quick, load.of_others(0), model(measured));
            keep(path.as_deref(), &measured);
            Calibration { model: measured.model, note: None }
        }
        None => {
            let note = "the cost of a signal could not be measured; a cautious guess is used".to_owned();
            let guess = Outside { cost: Cost::new(9_000.0, 4_000.0), ticks: None };
            Calibration { model: model(guess), note: Some(note) }
        }
    }
}

/// What signals cost outside of their handlers.
#[derive(Clone, Copy, Debug)]
struct Outside {
    cost: Cost,
    ticks: Option<AtTick>,
}

/// Of a handler that takes as usual. Where each sample tells what it cost, that and the handler are one figure, and what is left to
/// doubt is the share.
fn model(outside: Outside) -> CostModel {
    let mean_ns = outside.cost.mean_ns + HANDLER.mean_ns;
    let (sample_se_ns, handler) = match outside.ticks {
        Some(ticks) => {
            (ticks.share_se / ticks.share * outside.cost.mean_ns, Cost::new(mean_ns, outside.cost.se_ns))
        }
        None => (outside.cost.se_ns, HANDLER),
    };
    CostModel {
        per_sample_ns: Cost::new(mean_ns, sample_se_ns),
        per_frame_ns: Cost::default(),
        per_byte_ns: BYTE,
        per_switch_ns: Cost::default(),
        per_handler_ns: Some(handler),
        at_tick: outside.ticks,
        ..CostModel::default()
    }
}

/// Works at two kinds of things in a thread of its own, which stays on one CPU.
fn measure() -> Option<Outside> {
    let worker = thread::Builder::new().name("calibrate".to_owned());
    worker.spawn(measure_here).ok()?.join().ok()?
}

fn measure_here() -> Option<Outside> {
    stay_on(Place::choose().ok()?.work).ok()?;
    let mut spinner = Spinner::default();
    let tick_ns = signal_cost::tick_ns();
    let mut of = |kind, iterations| {
        spinner.prepare(kind);
        let work = SpinWork { kind, frames: 0, stack_bytes: 0, iterations };
        let found = signal_cost::interruptions(2 * tick_ns, WORK_NS, || spinner.spin(work)).ok()?;
        found_at(&found, tick_ns)
    };
    let (computing, waiting) = (of(Kind::Compute, COMPUTATIONS)?, of(Kind::Memory, READS)?);
    let share = afterwards(middle(computing.share(), waiting.share()));
    let ticks = AtTick {
        period_ns: tick_ns,
        place_ns: computing.place_ns,
        share: share.mean_ns,
        share_se: share.se_ns,
    };
    Some(Outside { cost: afterwards(middle(computing.cost, waiting.cost)), ticks: Some(ticks) })
}

/// With what a program has to get back into its caches.
fn afterwards(cost: Cost) -> Cost {
    let mean_ns = AFTERWARDS * cost.mean_ns;
    Cost::new(mean_ns, (AFTERWARDS * cost.se_ns).hypot(AFTERWARDS_SE * cost.mean_ns))
}

/// Of a program that nothing is known of: between the two, and as unsure as they differ.
fn middle(computing: Cost, waiting: Cost) -> Cost {
    let spread_ns = (waiting.mean_ns - computing.mean_ns).abs() / 12_f64.sqrt();
    let noise_ns = computing.se_ns.hypot(waiting.se_ns) / 2.0;
    Cost::new((computing.mean_ns + waiting.mean_ns) / 2.0, spread_ns.hypot(noise_ns))
}

/// Signals while one kind of work was done.
#[derive(Clone, Copy, Debug)]
struct Signals {
    /// What one costs outside of its handler.
    cost: Cost,
    /// When its handler begins, usually (ns since the tick).
    late_ns: f64,
    /// Where in its period the tick comes (ns).
    place_ns: u64,
}

impl Signals {
    /// The one for each ns of the other.
    fn share(&self) -> Cost {
        Cost::new(self.cost.mean_ns / self.late_ns, self.cost.se_ns / self.late_ns)
    }
}

/// By how much longer a thread stands still for a tick with a signal than for the two beside it that have none, its handler not
/// counted: medians, since a neighbour that takes the CPU is no cost of ours, and neighbours in time, since the host changes. `None`
/// where that is not clear.
fn found_at(found: &[Interruption], tick_ns: u64) -> Option<Signals> {
    let place_ns = place_of_ticks(found, tick_ns)?;
    let ticks: Vec<Interruption> =
        found.iter().copied().filter(|one| apart_ns(one.at_ns, place_ns, tick_ns) < NEAR_NS).collect();
    let longer = ticks.windows(3).filter_map(|three| {
        let &[before, one, after] = three else { return None };
        let is_whole = before.handler.is_none()
            && after.handler.is_none()
            && after.at_ns.saturating_sub(before.at_ns) < 2 * tick_ns + NEAR_NS;
        let took_ns = one.handler?.took_ns as f64;
        is_whole.then(|| one.stood_ns as f64 - took_ns - (before.stood_ns + after.stood_ns) as f64 / 2.0)
    });
    let late = ticks.iter().filter_map(|one| Some(one.handler?.begun_ns.saturating_sub(one.at_ns) as f64));
    let (longer, late) = (Sorted::new(longer)?, Sorted::new(late)?);
    let cost = Cost::new(longer.median(), longer.median_se());
    let late_ns = late.median();
    (cost.mean_ns > 2.0 * cost.se_ns && late_ns > 0.0).then_some(Signals { cost, late_ns, place_ns })
}

/// Where in their period ticks come (ns): where most signals do, which come at ticks alone, but for the few that are found late.
fn place_of_ticks(found: &[Interruption], tick_ns: u64) -> Option<u64> {
    let places: Vec<u64> =
        found.iter().filter(|one| one.handler.is_some()).map(|one| one.at_ns % tick_ns).collect();
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
    use crate::sys::signal_cost::Handled;

    const TICK_NS: u64 = 4_000_000;

    /// At a tick, with a handler that begins 20 µs after it and takes .5 µs.
    fn interruption(number: u64, stood_ns: u64, has_signal: bool) -> Interruption {
        let at_ns = 7 * TICK_NS - 300 + number * TICK_NS + number % 600;
        let handler = has_signal.then(|| Handled { begun_ns: at_ns + 20_000 + number % 3, took_ns: 500 });
        Interruption { at_ns, stood_ns, handler }
    }

    fn ticks() -> Vec<Interruption> {
        let stood_ns = |number| if number % 2 == 0 { 25_000 } else { 18_000 } + number % 7 * 100;
        (0..200).map(|number| interruption(number, stood_ns(number), number % 2 == 0)).collect()
    }

    #[test]
    fn a_signal_costs_what_its_tick_takes_longer_than_those_beside_it_less_its_handler() {
        let signals = found_at(&ticks(), TICK_NS).unwrap();
        assert!((signals.cost.mean_ns - 6_500.0).abs() < 101.0 && signals.cost.se_ns < 100.0, "{signals:?}");
        assert!((signals.share().mean_ns - 6_500.0 / 20_000.0).abs() < 0.01, "{signals:?}");
        assert!(apart_ns(signals.place_ns, TICK_NS - 200, TICK_NS) < 300, "{signals:?}");
        let outside = Outside { cost: signals.cost, ticks: None };
        assert!(model(outside).is_plausible());
    }

    #[test]
    fn neighbours_and_other_interrupts_change_nothing() {
        let mut found = ticks();
        found[8].stood_ns = 9_000_000;
        found[11].stood_ns = 4_000_000;
        // Others, and signals that were found where they did not come.
        let others = (0..500).map(|number| Interruption {
            at_ns: number * 799_999 + 1_000_000 + number % 3 * 77_000,
            stood_ns: 2_000,
            handler: (number % 5 == 0).then_some(Handled { begun_ns: 0, took_ns: 100 }),
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
    fn the_measured_cost_is_plausible_here() {
        assert!(prepare().model.is_plausible());
    }
}
