//! What a sample costs on this machine, measured in a fraction of a second: a thread of ours does the same
//! work with and without being sampled, in turns, and the difference in its CPU time is divided by the
//! samples.

use std::hint::black_box;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::{Pid, gettid};
use profiler_core::rate::{Cost, CostModel};
use profiler_core::record::RecordFormat;
use profiler_core::sorter::RecordQueue;
use serde::{Deserialize, Serialize};

use crate::sampler::access::Access;
use crate::sys::clock;
use crate::sys::perf_event::{ClockEvent, Event, Scope};
use crate::sys::ring::Ring;

/// Period of the samples that are measured (ns): about fifty in a slice.
const PERIOD_NS: u64 = 100_000;
/// CPU time of one slice without samples (ns).
const SLICE_NS: u64 = 5_000_000;
/// Rounds, each with every configuration twice, in opposite orders.
const ROUNDS: usize = 8;
/// Stack copied in the configuration that tells what a byte costs.
const COPIED_BYTES: u32 = 8 << 10;
/// The smallest copy: what every sample with registers has.
const LEAST_BYTES: u32 = 64;
/// Bytes of stack above the work: more than are copied.
const STACK_ABOVE: usize = 12 << 10;
/// Holds the records of a slice.
const RING_BYTES: usize = 512 << 10;

/// A cached calibration and what it is valid for.
#[derive(Serialize, Deserialize)]
struct Cached {
    machine: String,
    model: CostModel,
}

/// The cost of a sample, and whether it was measured just now.
pub(crate) struct Calibration {
    pub(crate) model: CostModel,
    /// For the person, if the measurement failed and a cautious guess stands in for it.
    pub(crate) note: Option<String>,
}

/// The cost of a sample: from the cache if it was measured on this machine before, else measured now.
pub(crate) fn calibrate(access: Access) -> Calibration {
    let machine = machine(access);
    if let Some(model) = read_cache(&machine) {
        return Calibration { model, note: None };
    }
    match measure(access) {
        Ok(model) => {
            write_cache(&Cached { machine, model });
            Calibration { model, note: None }
        }
        Err(error) => {
            let note =
                format!("the cost of a sample could not be measured ({error}); a cautious guess is used");
            Calibration { model: CostModel::default(), note: Some(note) }
        }
    }
}

/// Where the calibration is cached.
pub(crate) fn cache_path() -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(folder.join("sweetspot").join("calibration.json"))
}

/// Everything that changes what a sample costs.
fn machine(access: Access) -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus.lines().find(|line| line.starts_with("model name")).unwrap_or_default();
    let kernel = if access.kernel { "kernel" } else { "user" };
    let prior = CostModel::default().per_switch_ns.mean_ns; // the part that is not measured
    format!("{} · {} · {kernel} · {} · {prior}", release.trim(), model, env!("CARGO_PKG_VERSION"))
}

fn read_cache(machine: &str) -> Option<CostModel> {
    let text = std::fs::read(cache_path()?).ok()?;
    let cached: Cached = serde_json::from_slice(&text).ok()?;
    (cached.machine == machine && is_plausible(&cached.model)).then_some(cached.model)
}

/// A cache that cannot be written costs the next run a fraction of a second, so that is not an error.
fn write_cache(cached: &Cached) {
    let Some(path) = cache_path() else { return };
    let Some(folder) = path.parent() else { return };
    let write = || -> io::Result<()> {
        std::fs::create_dir_all(folder)?;
        let aside = folder.join(format!("calibration.{}.tmp", std::process::id()));
        std::fs::write(&aside, serde_json::to_vec(cached)?)?;
        std::fs::rename(aside, &path)
    };
    if let Err(error) = write() {
        tracing::debug!(%error, path = %path.display(), "calibration not cached");
    }
}

fn measure(access: Access) -> io::Result<CostModel> {
    let worker = std::thread::Builder::new().name("calibrate".to_owned());
    let measured = worker.spawn(move || with_stack_above(STACK_ABOVE, &mut || measure_here(access)))?;
    measured.join().map_err(|_| io::Error::other("the measuring thread failed"))?
}

/// Calls `work` with at least `bytes` of used stack above it.
#[inline(never)]
fn with_stack_above<T>(bytes: usize, work: &mut dyn FnMut() -> T) -> T {
    let frame = black_box([0u8; 1024]);
    let result = if bytes > frame.len() { with_stack_above(bytes - frame.len(), work) } else { work() };
    black_box(&frame);
    result
}

fn measure_here(access: Access) -> io::Result<CostModel> {
    let cpu = stay_on_one_cpu()?;
    let mut bare = Probe::open(access, cpu, LEAST_BYTES)?;
    let mut copying = Probe::open(access, cpu, COPIED_BYTES)?;
    let iterations = iterations_for(Duration::from_nanos(SLICE_NS));
    let (mut bare_ns, mut copying_ns) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let plain = spin(iterations);
        let (bare_1, n_1) = bare.run(iterations)?;
        let (copying_1, m_1) = copying.run(iterations)?;
        let (copying_2, m_2) = copying.run(iterations)?;
        let (bare_2, n_2) = bare.run(iterations)?;
        let plain = plain + spin(iterations);
        bare_ns.push(per_sample(bare_1 + bare_2, plain, n_1 + n_2)?);
        copying_ns.push(per_sample(copying_1 + copying_2, plain, m_1 + m_2)?);
    }
    let (bare, copying) = (cost(bare_ns), cost(copying_ns));
    let bytes = f64::from(COPIED_BYTES - LEAST_BYTES);
    let byte_ns = ((copying.mean_ns - bare.mean_ns) / bytes).max(0.0);
    let byte_se_ns = copying.se_ns.hypot(bare.se_ns) / bytes;
    let model = CostModel {
        per_sample_ns: bare,
        per_byte_ns: Cost::new(byte_ns, byte_se_ns),
        ..CostModel::default()
    };
    if is_plausible(&model) { Ok(model) } else { Err(io::Error::other("the machine is too unsteady")) }
}

fn per_sample(sampled_ns: u64, plain_ns: u64, samples: u64) -> io::Result<f64> {
    if samples == 0 {
        return Err(io::Error::other("no samples arrived"));
    }
    Ok((sampled_ns as f64 - plain_ns as f64) / samples as f64)
}

/// Mean and standard error without the smallest and the largest: one disturbance by a neighbour must not
/// decide.
fn cost(mut rounds_ns: Vec<f64>) -> Cost {
    rounds_ns.sort_by(f64::total_cmp);
    let kept = &rounds_ns[1..rounds_ns.len() - 1];
    let n = kept.len() as f64;
    let mean_ns = kept.iter().sum::<f64>() / n;
    let variance = kept.iter().map(|ns| (ns - mean_ns).powi(2)).sum::<f64>() / (n - 1.0);
    Cost::new(mean_ns, (variance / n).sqrt())
}

/// An interrupt takes more than a tenth of a microsecond and less than a millisecond, and is known to a third.
fn is_plausible(model: &CostModel) -> bool {
    let bare = model.per_sample_ns;
    (100.0..1_000_000.0).contains(&bare.mean_ns) && bare.se_ns * 3.0 < bare.mean_ns
}

fn stay_on_one_cpu() -> io::Result<u32> {
    let own = Pid::from_raw(0);
    let allowed = sched_getaffinity(own)?;
    let cpu = (0..CpuSet::count()).rev().find(|&cpu| allowed.is_set(cpu).unwrap_or(false)).unwrap_or(0);
    let mut one = CpuSet::new();
    one.set(cpu)?;
    sched_setaffinity(own, &one)?;
    Ok(cpu as u32)
}

/// A clock on the calling thread with a ring of its own.
struct Probe {
    event: Event,
    ring: Ring,
}

impl Probe {
    fn open(access: Access, cpu: u32, stack_bytes: u32) -> io::Result<Self> {
        let clock = ClockEvent {
            period_ns: PERIOD_NS,
            format: RecordFormat::new(true),
            stack_bytes,
            user_chain: false,
            kernel: access.kernel,
            side_records: false,
        };
        let event = Event::clock(Scope::Task { tid: gettid().as_raw() as u32, cpu }, &clock)?;
        let ring = Ring::map(event.fd(), RING_BYTES).or_else(|_| Ring::map(event.fd(), RING_BYTES / 2))?;
        Ok(Self { event, ring })
    }

    /// CPU time of the work while sampled, and the samples.
    fn run(&mut self, iterations: u64) -> io::Result<(u64, u64)> {
        self.event.enable()?;
        let cpu_ns = spin(iterations);
        self.event.disable()?;
        let mut samples = 0;
        while self.ring.front().is_some() {
            self.ring.pop();
            samples += 1;
        }
        Ok((cpu_ns, samples))
    }
}

/// Does the work; returns its CPU time (ns).
fn spin(iterations: u64) -> u64 {
    let before = clock::thread_cpu_ns();
    let mut x = black_box(1u64);
    for _ in 0..iterations {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    }
    black_box(x);
    clock::thread_cpu_ns() - before
}

fn iterations_for(cpu_time: Duration) -> u64 {
    let trial = 200_000;
    let ns = spin(trial).min(spin(trial)).max(1);
    (trial as u128 * cpu_time.as_nanos() / u128::from(ns)) as u64
}
