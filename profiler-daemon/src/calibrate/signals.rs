//! What a sample by a timer's signal costs: the part that its handler cannot see, measured here; what the handler takes, it tells
//! with each sample.

use profiler_core::rate::{Cost, CostModel};

use std::f64::consts::{PI, TAU};
use std::thread;

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
/// Where in the tick's period an interruption begins that is one by a tick (ns around the usual place).
const NEAR_NS: f64 = 5_000.0;
/// Fewer ticks of a kind say nothing.
const FEWEST: usize = 30;
/// Where it is kept, beside that of perf events.
const FILE: &str = "signals.json";
/// The way to measure. To be raised with every change of it.
const METHOD: u32 = 1;
/// Signals need no right that would change what they cost.
const ACCESS: Access = Access { cpu_wide: false, kernel: false, targets: 1 };
/// What the handler takes before the first one has told (ns), and how far that may be off.
const HANDLER: Cost = Cost::new(1_500.0, 1_000.0);
/// A byte of stack that it copies (ns).
const BYTE: Cost = Cost::new(0.15, 0.1);

/// As kept from before, else measured on the calling thread. What was kept from a busy hour is measured again in a quiet one.
pub(crate) fn prepare() -> Calibration {
    let machine = format!("{} · timer signals {METHOD}", cache::machine(ACCESS));
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
            Calibration { model: model(Cost::new(9_000.0, 4_000.0)), note: Some(note) }
        }
    }
}

/// Of a handler that takes as usual.
fn model(outside: Cost) -> CostModel {
    CostModel {
        per_sample_ns: Cost::new(outside.mean_ns + HANDLER.mean_ns, outside.se_ns),
        per_frame_ns: Cost::default(),
        per_byte_ns: BYTE,
        per_switch_ns: Cost::default(),
        per_handler_ns: Some(HANDLER),
        ..CostModel::default()
    }
}

/// Works at two kinds of things in a thread of its own, which stays on one CPU.
fn measure() -> Option<Cost> {
    let worker = thread::Builder::new().name("calibrate".to_owned());
    worker.spawn(measure_here).ok()?.join().ok()?
}

fn measure_here() -> Option<Cost> {
    stay_on(Place::choose().ok()?.work).ok()?;
    let mut spinner = Spinner::default();
    let mut of = |kind, iterations| {
        spinner.prepare(kind);
        let work = SpinWork { kind, frames: 0, stack_bytes: 0, iterations };
        let tick_ns = signal_cost::tick_ns();
        let found = signal_cost::interruptions(2 * tick_ns, WORK_NS, || spinner.spin(work)).ok()?;
        outside(&found, tick_ns)
    };
    let (computing, waiting) = (of(Kind::Compute, COMPUTATIONS)?, of(Kind::Memory, READS)?);
    Some(middle(computing, waiting))
}

/// Of a program that nothing is known of: between the two, and as unsure as they differ.
fn middle(computing: Cost, waiting: Cost) -> Cost {
    let spread_ns = (waiting.mean_ns - computing.mean_ns).abs() / 12_f64.sqrt();
    let noise_ns = computing.se_ns.hypot(waiting.se_ns) / 2.0;
    Cost::new((computing.mean_ns + waiting.mean_ns) / 2.0, spread_ns.hypot(noise_ns))
}

/// By how much longer a thread stands still for a tick with a signal than for one without, its handler not counted: medians, since
/// a neighbour that takes the CPU is no cost of ours. `None` where that is not clear.
fn outside(found: &[Interruption], tick_ns: u64) -> Option<Cost> {
    let at_tick = at_the_tick(found, tick_ns as f64);
    let ticks = || found.iter().filter(|one| at_tick(one));
    let with = ticks().filter_map(|one| Some(one.stood_ns.saturating_sub(one.inside_ns?) as f64));
    let without = ticks().filter(|one| one.inside_ns.is_none()).map(|one| one.stood_ns as f64);
    let (with, without) = (Sorted::new(with)?, Sorted::new(without)?);
    let mean_ns = with.median() - without.median();
    let noise_ns = with.median_se().hypot(without.median_se());
    (mean_ns > 2.0 * noise_ns).then(|| Cost::new(mean_ns, noise_ns))
}

/// Whether an interruption is one by a tick: these come at one place of their period, and signals at ticks alone.
fn at_the_tick(found: &[Interruption], tick_ns: f64) -> impl Fn(&Interruption) -> bool {
    let angle = move |one: &Interruption| one.at_ns as f64 % tick_ns / tick_ns * TAU;
    let signals = || found.iter().filter(|one| one.inside_ns.is_some());
    let (sines, cosines): (f64, f64) =
        signals().map(|one| angle(one).sin_cos()).fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    let place = sines.atan2(cosines);
    move |one| ((angle(one) - place + PI).rem_euclid(TAU) - PI).abs() / TAU * tick_ns < NEAR_NS
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

    fn interruption(number: u64, stood_ns: u64, inside_ns: Option<u64>) -> Interruption {
        Interruption { at_ns: 7 * TICK_NS - 300 + number * TICK_NS + number % 600, stood_ns, inside_ns }
    }

    fn ticks() -> Vec<Interruption> {
        let with = |number| interruption(number, 25_000 + number % 7 * 100, Some(500));
        let without = |number| interruption(number, 18_000 + number % 7 * 100, None);
        (0..200).map(|number| if number % 2 == 0 { with(number) } else { without(number) }).collect()
    }

    #[test]
    fn a_signal_costs_what_its_tick_takes_longer_than_others_less_its_handler() {
        let cost = outside(&ticks(), TICK_NS).unwrap();
        assert!((cost.mean_ns - 6_500.0).abs() < 101.0 && cost.se_ns < 100.0, "{cost:?}");
    }

    #[test]
    fn neighbours_and_other_interrupts_change_nothing() {
        let mut found = ticks();
        found[8].stood_ns = 9_000_000;
        found[11].stood_ns = 4_000_000;
        let others = (0..500).map(|number| Interruption {
            at_ns: number * 799_999 + 1_000_000 + number % 3 * 77_000,
            stood_ns: 2_000,
            inside_ns: None,
        });
        found.extend(others);
        let cost = outside(&found, TICK_NS).unwrap();
        assert!((cost.mean_ns - 6_500.0).abs() < 200.0, "{cost:?}");
    }

    #[test]
    fn what_is_not_clear_is_no_cost() {
        assert_eq!(outside(&[], TICK_NS), None);
        let alike =
            |number| interruption(number, 18_000 + number % 7 * 1_000, (number % 2 == 0).then_some(0));
        assert_eq!(outside(&(0..200).map(alike).collect::<Vec<_>>(), TICK_NS), None);
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
