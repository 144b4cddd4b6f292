//! The thorough calibration: a process does fixed work sampled and unsampled in turns (A B B A), sampled as a run
//! samples it, drained by the profiler on another CPU.

use std::time::{Duration, Instant};

use anyhow::Result;
use profiler_core::rate::calibration::{FitError, Trial, fit};
use profiler_core::rate::{Cost, CostModel};
use profiler_core::unwind::method::Method;
use serde::Serialize;

use super::bench::{Bench, Shape};
use super::place::Place;
use super::spin::Kind;
use crate::sampler::access::Access;

/// CPU time of one unsampled slice of work (ns).
const SLICE_NS: u64 = 40_000_000;
/// Rounds: in each, every shape once, A B B A.
const ROUNDS: usize = 12;
/// A busy machine gets fewer rounds, and wider errors, once this much time has passed.
const PATIENCE: Duration = Duration::from_secs(45);
const LEAST_ROUNDS: usize = 2;
/// Depths of stacks walked by frame pointers. The kernel follows 127 entries unless told otherwise.
const DEPTHS: [u64; 5] = [5, 20, 50, 100, 300];
/// Bytes of stack copied.
const COPIES: [u32; 3] = [1 << 10, 8 << 10, 24 << 10];
/// Frames in a stack that is copied.
const COPIED_DEPTH: u64 = 20;
/// Repetitions, A B B A each, of what happens without a sample.
const EVENT_ROUNDS: usize = 10;
/// Rounds in which the kernel's handler is timed: in each, every shape once.
const HANDLER_ROUNDS: usize = 2;
/// Steps of the whole, for whoever shows the progress.
pub(super) const STEPS: u64 =
    ((ROUNDS + HANDLER_ROUNDS) * 2 * (DEPTHS.len() + COPIES.len()) + 3 * EVENT_ROUNDS) as u64;

/// What a sample costs, by what it is made of.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct SampleCosts {
    pub(super) per_sample_ns: Cost,
    pub(super) per_frame_ns: Cost,
    pub(super) per_byte_ns: Cost,
}

/// Everything that was found out.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Characterised {
    /// For the meter.
    pub(super) model: CostModel,
    /// What samples cost a program that computes.
    pub(super) compute: SampleCosts,
    /// What samples cost a program that waits for memory.
    pub(super) memory: SampleCosts,
    /// What samples cost the profiler itself.
    pub(super) own: SampleCosts,
    /// How busy the machine was otherwise.
    pub(super) load_ratio: f64,
}

/// Measures; `step` is called after each of [`STEPS`].
pub(super) fn characterise(access: Access, place: Place, step: impl Fn()) -> Result<Characterised> {
    let mut bench = Bench::start(access, place)?;
    let slices =
        [bench.iterations_for(Kind::Compute, SLICE_NS)?, bench.iterations_for(Kind::Memory, SLICE_NS)?];
    let (mut compute, mut memory, mut own) = (Vec::new(), Vec::new(), Vec::new());
    let began = Instant::now();
    let rounds = (0..ROUNDS).take_while(|round| *round < LEAST_ROUNDS || began.elapsed() < PATIENCE);
    for shape in rounds.flat_map(|_| shapes()) {
        let (iterations, trials) = match shape.kind {
            Kind::Compute => (slices[0], &mut compute),
            Kind::Memory => (slices[1], &mut memory),
        };
        let (target_trial, own_trial) = bench.samples(shape, iterations)?;
        trials.push(target_trial);
        own.push(own_trial);
        step();
    }
    let (mut computing, mut waiting) = (Vec::new(), Vec::new());
    for shape in (0..HANDLER_ROUNDS).flat_map(|_| shapes()) {
        match shape.kind {
            Kind::Compute => computing.extend(bench.handler(shape, slices[0])?),
            Kind::Memory => waiting.extend(bench.handler(shape, slices[1])?),
        }
        step();
    }
    let mut repeated = |measure: fn(&mut Bench) -> Result<Trial<1>>| {
        let trials = (0..EVENT_ROUNDS).map(|_| measure(&mut bench).inspect(|_| step()));
        let [cost] = fit(&trials.collect::<Result<Vec<_>>>()?).map_err(too_unsteady)?;
        anyhow::Ok(cost)
    };
    let per_switch_ns = repeated(Bench::switches)?;
    let per_side_record_ns = repeated(Bench::side_records)?;
    let per_fork_ns = repeated(Bench::tasks)?;
    let (compute, memory, own) = (sample_costs(&compute)?, sample_costs(&memory)?, sample_costs(&own)?);
    let model = CostModel {
        per_sample_ns: compute.per_sample_ns.pooled(memory.per_sample_ns),
        per_frame_ns: compute.per_frame_ns.pooled(memory.per_frame_ns),
        per_byte_ns: compute.per_byte_ns.pooled(memory.per_byte_ns),
        per_switch_ns,
        per_side_record_ns,
        per_fork_ns,
        per_handler_ns: handler(&computing, &waiting),
        ..CostModel::default()
    };
    Ok(Characterised { model, compute, memory, own, load_ratio: bench.load_ratio() })
}

/// Both kinds of work, by every depth and copy.
fn shapes() -> impl Iterator<Item = Shape> {
    [Kind::Compute, Kind::Memory].into_iter().flat_map(|kind| {
        let walked =
            DEPTHS.map(|frames| Shape { kind, method: Method::Fp, frames, copied_bytes: 0 }).into_iter();
        let copied = COPIES.map(|copied_bytes| Shape {
            kind,
            method: Method::Dwarf,
            frames: COPIED_DEPTH,
            copied_bytes,
        });
        walked.chain(copied)
    })
}

fn sample_costs(trials: &[Trial<3>]) -> Result<SampleCosts> {
    let [per_sample_ns, per_frame_ns, per_byte_ns] = fit(trials).map_err(too_unsteady)?;
    Ok(SampleCosts { per_sample_ns, per_frame_ns, per_byte_ns })
}

/// The handler for a sample without its stack; `None` where it could not be timed.
fn handler(computing: &[Trial<3>], waiting: &[Trial<3>]) -> Option<Cost> {
    let [computing, ..] = fit(computing).ok()?;
    let [waiting, ..] = fit(waiting).ok()?;
    Some(computing.pooled(waiting))
}

fn too_unsteady(error: FitError) -> anyhow::Error {
    anyhow::anyhow!(
        "the costs could not be measured ({error}); run `sweetspot calibrate` again on a quieter machine"
    )
}
