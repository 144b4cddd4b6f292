//! What a sample by a timer's signal costs: the part that its handler cannot see, measured here; what the handler takes, it tells
//! with each sample.

use profiler_core::rate::{AtTick, Cost, CostModel};

use super::cache::{self, Thoroughness};
use super::gaps::{self, middle};
use super::load::{self, OtherLoad};
use super::{Calibration, keep, kept};
use crate::sampler::access::Access;
use crate::sys::signal_cost::tick_ns;

/// Samples put more out of the caches than the handler here: programs were found to pay .9 to 1.0 times what is measured here if they
/// compute, and 1.1 to 1.25 times if they live in the second cache (`tests/experiments/src/bin/signals.rs`).
const AFTERWARDS: f64 = 1.07;
const AFTERWARDS_SE: f64 = 0.12;
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
    if let Some(model) = kept_or_measured().filter(CostModel::is_plausible) {
        return Calibration { model, note: None };
    }
    let note = "the cost of a signal could not be measured; a cautious guess is used".to_owned();
    let guess = Outside { cost: Cost::new(9_000.0, 4_000.0), ticks: None };
    Calibration { model: model(guess), note: Some(note) }
}

fn kept_or_measured() -> Option<CostModel> {
    // Where in its period the tick comes is another matter after each boot.
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let machine = format!("{} · {} · {FILE} {METHOD}", cache::machine(ACCESS), boot.trim());
    let path = cache::cache_path().map(|path| path.with_file_name(FILE));
    let found = path.as_deref().and_then(|path| cache::read(path, &machine));
    if let Some(found) = found.filter(|found| !found.is_loaded() || !load::machine_is_quiet()) {
        return Some(found.model);
    }
    let load = OtherLoad::watch();
    let model = model(measure()?);
    keep(path.as_deref(), &kept(machine, Thoroughness::Quick, load.of_others(0), model));
    Some(model)
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

fn measure() -> Option<Outside> {
    let [computing, waiting] = gaps::measure()?;
    let share = afterwards(middle(computing.share(), waiting.share()));
    let ticks = AtTick {
        period_ns: tick_ns(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_guessed_and_what_is_measured_is_plausible() {
        let outside = Outside { cost: Cost::new(9_000.0, 900.0), ticks: None };
        assert!(model(outside).is_plausible());
        let prepared = prepare(); // on a busy machine a guess, which says so
        assert!(prepared.model.is_plausible() || prepared.note.is_some(), "{:?}", prepared.model);
    }
}
