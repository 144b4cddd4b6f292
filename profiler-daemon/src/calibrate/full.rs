//! The thorough calibration: a process does fixed work sampled and unsampled in turns (A B B A), sampled as a run
//! samples it, drained by the profiler on another CPU.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use profiler_core::rate::calibration::{FitError, Trial, fit};
use profiler_core::rate::{CacheSensitivity, Cost, CostModel, handler_costs};
use profiler_core::unwind::method::Method;
use serde::Serialize;

use super::bench::{Bench, PERIOD_NS, WorkShape};
use super::delays::{self, Delays, HandlerDelays};
use super::place::CpuPair;
use super::spin::SpinKind;
use crate::sampler::access::Access;
use crate::sys::affinity::stay_on;

/// CPU time of one unsampled slice of work (ns): long enough that the interrupts which start and stop the clocks do not count.
const SLICE_NS: u64 = 120_000_000;
/// Rounds: in each, every shape once, A B B A, and a shorter slice in which the kernel's handler is timed.
const ROUNDS: usize = 4;
const TIMED: u64 = 3;
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
/// Rounds of delays, in which the kernel's handler is timed and samples are rare, too.
const DELAY_ROUNDS: usize = 50;
/// Steps of the whole, for whoever shows the progress.
pub(super) const STEPS: u64 = (2 * ROUNDS * (DEPTHS.len() + COPIES.len()) + 1 + 3 * EVENT_ROUNDS) as u64;

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
    /// What rare ones, with their few frames, cost a program that computes.
    pub(super) rare: Cost,
    /// What samples cost the profiler itself.
    pub(super) own: SampleCosts,
    /// How busy the machine was otherwise.
    pub(super) load_ratio: f64,
}

/// Measures; `step` is called after each of [`STEPS`].
pub(super) fn characterise(access: Access, place: CpuPair, step: impl Fn() + Copy) -> Result<Characterised> {
    let mut bench = Bench::start(access, place)?;
    let slices = [
        bench.iterations_for(SpinKind::Compute, SLICE_NS)?,
        bench.iterations_for(SpinKind::Memory, SLICE_NS)?,
    ];
    let (mut compute, mut memory, mut own) = (Vec::new(), Vec::new(), Vec::new());
    let (mut computing, mut waiting) = (Vec::new(), Vec::new());
    let began = Instant::now();
    let rounds = (0..ROUNDS).take_while(|round| *round < LEAST_ROUNDS || began.elapsed() < PATIENCE);
    for shape in rounds.flat_map(|_| shapes()) {
        let (iterations, trials, times) = match shape.kind {
            SpinKind::Compute => (slices[0], &mut compute, &mut computing),
            SpinKind::Memory => (slices[1], &mut memory, &mut waiting),
        };
        let (target_trial, own_trial) = bench.samples(shape, iterations)?;
        trials.push(target_trial);
        own.push(own_trial);
        times.extend(bench.handler(shape, iterations / TIMED)?);
        step();
    }
    let delays = delays_on(place.work, access)?;
    step();
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
        per_interrupt_ns: delays.interrupt,
        ..CostModel::default()
    };
    let handlers = [handler_costs(&computing), handler_costs(&waiting)];
    let model = with_handler(model, handlers, delays.handler);
    let rare = delays.rare.context("no rare samples arrived")?;
    Ok(Characterised { model, compute, memory, rare, own, load_ratio: bench.load_ratio() })
}

/// The model with what the handler takes and what follows from that, where it could be timed. A frame and a byte are work of
/// the handler: its times measure these costs more precisely than slices do.
fn with_handler(
    model: CostModel,
    [computing, waiting]: [Option<[Cost; 3]>; 2],
    delays: Option<HandlerDelays>,
) -> CostModel {
    let Some((warm, cold)) = computing.zip(waiting) else { return model };
    CostModel {
        per_frame_ns: warm[1].pooled(cold[1]),
        per_byte_ns: warm[2].pooled(cold[2]),
        per_handler_ns: Some(warm[0].pooled(cold[0])),
        cache_sensitivity: delays.and_then(|found| CacheSensitivity::fit(&found.kinds, found.costs)),
        ..model
    }
}

/// By how much samples delay a thread of ours on the CPU of the work, while the work rests.
fn delays_on(cpu: u32, access: Access) -> Result<Delays> {
    let measure = move || stay_on(cpu).and_then(|()| delays::measure(access, cpu, DELAY_ROUNDS, true));
    let measured = thread::Builder::new().name("calibrate".to_owned()).spawn(measure)?.join();
    Ok(measured.map_err(|_| anyhow::anyhow!("the measuring thread failed"))??)
}

/// Both kinds of work, by every depth and copy.
fn shapes() -> impl Iterator<Item = WorkShape> {
    [SpinKind::Compute, SpinKind::Memory].into_iter().flat_map(|kind| {
        let walked = DEPTHS
            .map(|frames| WorkShape {
                kind,
                method: Method::Fp,
                frames,
                copied_bytes: 0,
                period_ns: PERIOD_NS,
            })
            .into_iter();
        let copied = COPIES.map(|copied_bytes| WorkShape {
            kind,
            method: Method::Dwarf,
            frames: COPIED_DEPTH,
            copied_bytes,
            period_ns: PERIOD_NS,
        });
        walked.chain(copied)
    })
}

fn sample_costs(trials: &[Trial<3>]) -> Result<SampleCosts> {
    let [per_sample_ns, per_frame_ns, per_byte_ns] = fit(trials).map_err(too_unsteady)?;
    Ok(SampleCosts { per_sample_ns, per_frame_ns, per_byte_ns })
}

fn too_unsteady(error: FitError) -> anyhow::Error {
    anyhow::anyhow!(
        "the costs could not be measured ({error}); run `sweetspot calibrate` again on a quieter machine"
    )
}
