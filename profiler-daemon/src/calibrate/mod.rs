//! What sampling costs on this machine: measured quickly before a run, or thoroughly by `sweetspot calibrate`,
//! and kept between runs. The method is that of Saavedra-Barrera 1988 (docs/references.md): costs of operations
//! from runs with known counts.
//!
//! - The thorough one samples as a run does, with the same sampler and session, on another CPU than the work.
//!   What a run infers from handler times is measured in turns with them, in [`delays`].
//! - A sample costs a program that waits for memory a tenth more than one that computes, by the stopwatch.
//!   Until the handler was timed, the model uses the middle of the two, and the difference is part of its
//!   error.
//! - A slice begins with a round through that memory: the rings opened for a slice push it out of the shared
//!   cache, and 3 to 6 µs per sample of that were once taken for the sample's cost.
//! - Samples cost half as much again at 100/s as at 5,000/s, because the kernel's code leaves the caches in
//!   between. So the calibration samples at 10,000/s, 4,000/s and 1,000/s.
//! - A new task with inherited events costs about ten times a mapping.

mod bench;
mod cache;
mod child;
mod delays;
mod full;
mod gaps;
mod load;
mod place;
mod progress;
mod quick;
mod report;
mod signals;
mod spin;
mod workload;

use std::io;
use std::path::Path;

use anyhow::Result;
use profiler_core::rate::CostModel;

pub(crate) use self::cache::cache_path;
use self::cache::{StoredCalibration, Thoroughness};
use self::load::LOADED_FROM;
use self::place::CpuPair;
use self::progress::CalibrationProgress;
use self::report::{Keeping, Report};
pub(crate) use self::signals::prepare as prepare_signals;
pub(crate) use self::workload::serve;
use crate::explain;
use crate::sampler::access::{Access, probe_access};
use crate::sys::clock;
use crate::terminal::Terminal;

/// Measure what sampling costs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CalibrateJob {
    /// In less than a second.
    pub(crate) quick: bool,
    /// Print JSON.
    pub(crate) json: bool,
}

/// The cost of a sample, for a run that is about to begin.
#[derive(Clone)]
pub(crate) struct Calibration {
    pub(crate) model: CostModel,
    /// For the person, if the measurement failed and a cautious guess stands in for it, or is doubtful.
    pub(crate) note: Option<String>,
}

/// The cost of a sample: as kept from before, else measured now. What was kept from a busy hour, or from few quick
/// measurements, is measured again in a quiet one.
pub(crate) fn prepare(access: Access) -> Calibration {
    let machine = cache::machine(access);
    let path = cache_path();
    let kept = path.as_deref().and_then(|path| cache::read(path, &machine));
    if let Some(kept) = kept.as_ref().filter(|kept| kept.is_settled() || !load::machine_is_quiet()) {
        return kept.into();
    }
    match (measure_quickly(access, machine), kept) {
        (Ok(measured), kept) => {
            let measured = measured.after(kept);
            keep(path.as_deref(), &measured);
            (&measured).into()
        }
        (Err(_), Some(kept)) => (&kept).into(),
        (Err(error), None) => {
            let note =
                format!("the cost of a sample could not be measured ({error}); a cautious guess is used");
            Calibration { model: CostModel::default(), note: Some(note) }
        }
    }
}

impl From<&StoredCalibration> for Calibration {
    fn from(kept: &StoredCalibration) -> Self {
        let doubtful = "the cost of a sample was measured while the machine was busy; `sweetspot calibrate` measures \
                        it again";
        Self { model: kept.model, note: kept.is_loaded().then(|| doubtful.to_owned()) }
    }
}

/// `sweetspot calibrate`.
pub(crate) fn run(job: CalibrateJob, terminal: Terminal) -> Result<()> {
    let access = probe_access().map_err(|error| explain::open(error, None))?;
    let place = CpuPair::choose()?;
    let machine = cache::machine(access);
    let (kept, parts) = if job.quick {
        let quick = quick::measure(access).map_err(too_unsteady)?;
        let before = cache_path().and_then(|path| cache::read(&path, &machine));
        let measured = kept(machine, Thoroughness::Quick, quick.load_ratio, quick.model);
        // What is not kept is shown as it was measured.
        let counts =
            measured.model.is_plausible() && before.as_ref().is_none_or(|old| measured.supersedes(old));
        (if counts { measured.after(before) } else { measured }, None)
    } else {
        let progress = CalibrationProgress::new(terminal, full::STEPS);
        let found = full::characterise(access, place, || progress.step())?;
        (kept(machine, Thoroughness::Full, found.load_ratio, found.model), Some(found))
    };
    let path = cache_path();
    let keeping = keep(path.as_deref(), &kept);
    let report = Report { kept: &kept, parts: parts.as_ref(), access, place, keeping };
    terminal.print(&if job.json { report.json()? } else { report.text() })
}

fn measure_quickly(access: Access, machine: String) -> io::Result<StoredCalibration> {
    let quick = quick::measure(access)?;
    if !quick.model.is_plausible() {
        return Err(io::Error::other("the machine is too unsteady"));
    }
    Ok(kept(machine, Thoroughness::Quick, quick.load_ratio, quick.model))
}

fn kept(machine: String, thoroughness: Thoroughness, load_ratio: f64, model: CostModel) -> StoredCalibration {
    let quick = Vec::new();
    StoredCalibration { machine, taken_unix_ns: clock::unix_ns(), thoroughness, load_ratio, model, quick }
}

/// Keeps a calibration that is worth it. A cache that cannot be written costs the next run a fraction of a second, so that is not an error.
fn keep(path: Option<&Path>, kept: &StoredCalibration) -> Keeping {
    let Some(path) = path else { return Keeping::Nowhere };
    if !kept.model.is_plausible() {
        return Keeping::TooUnsure;
    }
    match cache::write(path, kept) {
        Ok(true) => Keeping::Kept(path.to_owned()),
        Ok(false) => Keeping::BetterThere(path.to_owned()),
        Err(error) => {
            tracing::debug!(%error, path = %path.display(), "calibration not kept");
            Keeping::Failed(path.to_owned(), error)
        }
    }
}

fn too_unsteady(error: io::Error) -> anyhow::Error {
    anyhow::anyhow!(
        "the cost of a sample could not be measured ({error}); run `sweetspot calibrate` again on a quieter machine"
    )
}
