//! One comparison at a time: the same work unsampled and sampled, A B B A, by the sampler and the session of a run.

use std::time::Duration;

use anyhow::{Context, Result};
use config::SamplingSettings;
use profiler_core::rate::calibration::Trial;
use profiler_core::rate::{Dither, HandlerTime};
use profiler_core::unwind::method::{Method, MethodChoice};

use super::child::WorkerProcess;
use super::load::{OtherLoad, waiting};
use super::place::CpuPair;
use super::spin::{LINES, SpinKind, SpinWork};
use super::workload::{Done, Work};
use crate::explain;
use crate::objects::Symbols;
use crate::sampler::access::Access;
use crate::sampler::handler_tracer::HandlerTracer;
use crate::sampler::perf::PerfSampler;
use crate::sampler::session::{Counts, Session};
use crate::sampler::source::{Attachment, ClockSettings, Source};
use crate::sys::affinity::stay_on;
use crate::sys::{clock, procfs};

/// Mean period of the samples (ns): about as short as a big budget allows, so that they show above the noise.
pub(super) const PERIOD_NS: u64 = 250_000;
/// Mean period where the clocks shall be attached and not fire (ns).
const SILENT_PERIOD_NS: u64 = 60_000_000_000;
/// Work that tells how much of it makes a slice.
const TRIAL_ITERATIONS: u64 = 200_000;
/// Stack above work whose stack is copied: more than any copy.
const STACK_ABOVE: usize = 64 << 10;
/// What happens in a slice without a sample: turns of two threads, records, threads created.
const TURNS: u64 = 3_000;
const SIDE_RECORDS: u64 = 4_000;
const TASKS: u64 = 300;
/// How often the rings are looked at, as in a run.
const LOOK: Duration = Duration::from_millis(25);
/// Records younger than this may still be preceded by records on their way to another ring (ns).
const SETTLING_NS: u64 = 2_000_000;

/// Work that is sampled, and how.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorkShape {
    /// What the work waits for.
    pub(super) kind: SpinKind,
    /// How its stacks are found.
    pub(super) method: Method,
    /// How deep they are.
    pub(super) frames: u64,
    /// How much of them is copied (bytes).
    pub(super) copied_bytes: u32,
    /// Mean time between samples (ns).
    pub(super) period_ns: u64,
}

impl WorkShape {
    /// The work, and how its samples are taken.
    fn sampled(&self, iterations: u64) -> (Work, ClockSettings) {
        let stack_bytes = if self.method.copies_stack() { STACK_ABOVE } else { 0 };
        let work = SpinWork { kind: self.kind, frames: self.frames, stack_bytes, iterations };
        let settings = ClockSettings {
            period_ns: self.period_ns,
            method: self.method,
            stack_bytes: self.copied_bytes,
            mappings: true,
        };
        (Work::Spin(work), settings)
    }
}

/// The work, and what samples it.
pub(super) struct Bench {
    access: Access,
    workload: WorkerProcess,
    by_frame_pointers: Session,
    by_tables: Session,
    seed: u64,
    load: OtherLoad,
    /// None where the kernel's handler cannot be timed.
    tracer: Option<HandlerTracer>,
    cpu: u32,
    /// Work that never sleeps, unsampled, so far.
    spun: Done,
}

/// What sampled work took, and what happened meanwhile.
#[derive(Default)]
struct SampledWork {
    cpu_ns: f64,
    own_ns: f64,
    samples: f64,
    frames: f64,
    stack_bytes: f64,
    switches: f64,
    side_records: f64,
    forks: f64,
}

impl Bench {
    /// Starts the work's process on its CPU, and keeps this thread on its own.
    pub(super) fn start(access: Access, place: CpuPair) -> Result<Self> {
        if let Some(cpu) = place.profiler {
            stay_on(cpu).context("the profiler could not be kept on one CPU")?;
        }
        let mut workload = WorkerProcess::start(place.work)?;
        let load = OtherLoad::watch();
        // Its first answer says that the program has come up: only then is its code mapped.
        workload.begin(Work::Turns(1))?;
        workload.done()?;
        let session = |method| {
            let mut session = Session::new(
                MethodChoice::fixed(method),
                &Symbols::new(SamplingSettings::default().symbol_memory.get()),
            );
            let adopted = session.adopt(workload.pid());
            adopted.context("the code of the process to be sampled could not be read")?;
            anyhow::Ok(session)
        };
        let (by_frame_pointers, by_tables) = (session(Method::Fp)?, session(Method::Dwarf)?);
        let (seed, spun) = (clock::monotonic_ns(), Done::default());
        let (tracer, cpu) = (HandlerTracer::find().ok(), place.work);
        Ok(Self { access, workload, by_frame_pointers, by_tables, seed, load, tracer, cpu, spun })
    }

    /// Iterations of this kind of work that take so much CPU time.
    pub(super) fn iterations_for(&mut self, kind: SpinKind, cpu_ns: u64) -> Result<u64> {
        let trial = Work::Spin(SpinWork { kind, frames: 0, stack_bytes: 0, iterations: TRIAL_ITERATIONS });
        let fastest = self.unsampled(trial)?.cpu_ns.min(self.unsampled(trial)?.cpu_ns).max(1);
        Ok((u128::from(TRIAL_ITERATIONS) * u128::from(cpu_ns) / u128::from(fastest)) as u64)
    }

    /// What samples of this shape cost the work, and what they cost us.
    pub(super) fn samples(&mut self, shape: WorkShape, iterations: u64) -> Result<(Trial<3>, Trial<3>)> {
        let (work, settings) = shape.sampled(iterations);
        let (extra_ns, sampled) = self.compare(work, settings)?;
        let counts = [sampled.samples, sampled.frames, sampled.stack_bytes];
        Ok((Trial { extra_ns, counts }, Trial { extra_ns: sampled.own_ns, counts }))
    }

    /// How long the kernel's handler took for each of some samples of this shape; none where it cannot be timed.
    pub(super) fn handler(&mut self, shape: WorkShape, iterations: u64) -> Result<Vec<HandlerTime>> {
        let Some(mut tracer) = self.tracer.take_if(|tracer| tracer.start(&[self.cpu]).is_ok()) else {
            return Ok(Vec::new());
        };
        let (work, settings) = shape.sampled(iterations);
        self.session(settings.method).recent.keep();
        self.sampled(work, settings)?;
        tracer.stop();
        let samples = self.session(settings.method).recent.take();
        let traced = tracer.collect(&samples);
        self.tracer = Some(tracer);
        Ok(traced.times)
    }

    fn session(&mut self, method: Method) -> &mut Session {
        match method {
            Method::Dwarf => &mut self.by_tables,
            _ => &mut self.by_frame_pointers,
        }
    }

    /// What context switches cost that find events.
    pub(super) fn switches(&mut self) -> Result<Trial<1>> {
        let (extra_ns, sampled) = self.compare_silently(Work::Turns(TURNS))?;
        Ok(Trial { extra_ns, counts: [sampled.switches] })
    }

    /// What records cost that are no samples.
    pub(super) fn side_records(&mut self) -> Result<Trial<1>> {
        let (extra_ns, sampled) = self.compare_silently(Work::SideRecords(SIDE_RECORDS))?;
        Ok(Trial { extra_ns, counts: [sampled.side_records] })
    }

    /// What tasks cost that inherit events.
    pub(super) fn tasks(&mut self) -> Result<Trial<1>> {
        let (extra_ns, sampled) = self.compare_silently(Work::Tasks(TASKS))?;
        Ok(Trial { extra_ns, counts: [sampled.forks] })
    }

    /// How busy the machine was with something else, or how long the work had to wait: the larger share.
    pub(super) fn load_ratio(&self) -> f64 {
        let work_ns = clock::process_cpu_ns(self.workload.pid()).unwrap_or(self.spun.cpu_ns);
        self.load.of_others(work_ns).max(waiting(self.spun.cpu_ns, self.spun.wall_ns))
    }

    fn compare_silently(&mut self, work: Work) -> Result<(f64, SampledWork)> {
        let settings =
            ClockSettings { period_ns: SILENT_PERIOD_NS, method: Method::Fp, stack_bytes: 0, mappings: true };
        self.compare(work, settings)
    }

    /// A B B A: what the sampled halves took more of, and what happened in them.
    fn compare(&mut self, work: Work, settings: ClockSettings) -> Result<(f64, SampledWork)> {
        let before = self.unsampled(work)?;
        let mut sampled = self.sampled(work, settings)?;
        sampled.add(&self.sampled(work, settings)?);
        let after = self.unsampled(work)?;
        if matches!(work, Work::Spin(_)) {
            self.spun.cpu_ns += before.cpu_ns + after.cpu_ns;
            self.spun.wall_ns += before.wall_ns + after.wall_ns;
        }
        Ok((sampled.cpu_ns - (before.cpu_ns + after.cpu_ns) as f64, sampled))
    }

    fn unsampled(&mut self, work: Work) -> Result<Done> {
        self.warm_up(work)?;
        self.workload.begin(work)?;
        self.workload.done()
    }

    /// Brings back the memory that the work reads: what we do between two slices, and the rings that are opened for one,
    /// drive it out of the caches that we share, and a slice would pay for that as if its samples had.
    fn warm_up(&mut self, work: Work) -> Result<()> {
        if let Work::Spin(SpinWork { kind: SpinKind::Memory, .. }) = work {
            let once = SpinWork { kind: SpinKind::Memory, frames: 0, stack_bytes: 0, iterations: LINES };
            self.workload.begin(Work::Spin(once))?;
            self.workload.done()?;
        }
        Ok(())
    }

    /// The work, sampled from before its beginning until after its end, the rings drained meanwhile. The periods stay: a
    /// redraw interrupts the work too, and it has no period of its own that they could lock onto.
    fn sampled(&mut self, work: Work, settings: ClockSettings) -> Result<SampledWork> {
        let threads = self.workload.threads();
        self.seed = self.seed.wrapping_add(1);
        let attachment = Attachment::Tasks(threads.clone());
        let mut sampler = PerfSampler::open(self.access, attachment, settings, Dither::new(self.seed))
            .map_err(|error| explain::open(error, None))?;
        self.warm_up(work)?;
        sampler.start()?;
        let session = match settings.method {
            Method::Dwarf => &mut self.by_tables,
            _ => &mut self.by_frame_pointers,
        };
        session.begin();
        let (counts, switches) = (session.counts, procfs::context_switches_of(&threads));
        self.workload.begin(work)?;
        let own_ns = clock::self_cpu_ns();
        let done = loop {
            let pause = LOOK.min(Duration::from_nanos(sampler.time_to_fill_ns()));
            let done = self.workload.done_within(pause)?;
            let until_ns = clock::monotonic_ns().saturating_sub(SETTLING_NS);
            sampler.drain(until_ns, &mut |drained| session.handle(drained));
            if let Some(done) = done {
                break done;
            }
        };
        let switches = procfs::context_switches_of(&threads).saturating_sub(switches);
        sampler.stop();
        sampler.drain(u64::MAX, &mut |drained| session.handle(drained));
        session.take_shares();
        let own_ns = clock::self_cpu_ns() - own_ns;
        Ok(SampledWork::new(&done, own_ns, switches, &counts, &session.counts))
    }
}

impl SampledWork {
    fn new(done: &Done, own_ns: u64, switches: u64, before: &Counts, after: &Counts) -> Self {
        let arrived = (after.samples - before.samples) as f64;
        // A lost sample interrupted the work all the same, and looked like the others.
        let hits = arrived + (after.lost - before.lost) as f64;
        let of_hits = |arrived_sum: u64| arrived_sum as f64 * hits / arrived.max(1.0);
        Self {
            cpu_ns: done.cpu_ns as f64,
            own_ns: own_ns as f64,
            samples: hits,
            frames: of_hits(after.frames - before.frames),
            stack_bytes: of_hits(after.stack_bytes - before.stack_bytes),
            switches: switches as f64,
            side_records: (after.side_records.own - before.side_records.own) as f64,
            forks: (after.side_records.forks - before.side_records.forks) as f64,
        }
    }

    fn add(&mut self, other: &Self) {
        self.cpu_ns += other.cpu_ns;
        self.own_ns += other.own_ns;
        self.samples += other.samples;
        self.frames += other.frames;
        self.stack_bytes += other.stack_bytes;
        self.switches += other.switches;
        self.side_records += other.side_records;
        self.forks += other.forks;
    }
}
