//! A program's profiles: thousands of functions, of which a few take most of the time.

use fastrand::Rng;
use profiler_core::profile::{
    CpuTimes, Function, FunctionIndex, HowSampled, Line, Location, LocationIndex, ModuleIndex, ModuleInfo,
    Outcome, ProcessIndex, ProcessInfo, RateFigures, Run, SampleCounts, StackWindow, SymbolizedProfile,
    WeightedStack, Window,
};

const FUNCTIONS: usize = 3000;
const LOCATIONS: usize = 9000;
const STACKS: usize = 6000;
/// Windows of time in a profile of a minute. Longer ones have one for each minute, which is what merged files keep.
const WINDOWS: u64 = 60;

/// A program and all the stacks that it can have.
pub(crate) struct Program {
    number: u64,
    whole: SymbolizedProfile,
}

impl Program {
    pub(crate) fn new(number: u64) -> Self {
        let mut random = Rng::with_seed(number);
        let modules = ["server", "libssl.so.3", "libstdc++.so.6", "libc.so.6", "[kernel]"];
        let module = |name: &&str| ModuleInfo {
            name: (*name).to_owned(),
            path: format!("/opt/service-{number}/lib/{name}"),
            build_id: Some(format!("{:040x}", random.u128(..))),
            end: 0,
        };
        let modules: Vec<ModuleInfo> = modules.iter().map(module).collect();
        let functions = (0..FUNCTIONS).map(|at| function(&mut random, at, modules.len())).collect();
        let locations = (0..LOCATIONS).map(|at| location(&mut random, at, modules.len())).collect();
        let stacks = (0..STACKS).map(|_| stack(&mut random)).collect();
        let processes = vec![ProcessInfo { pid: 1000 + number as u32, comm: format!("service-{number}") }];
        let whole = SymbolizedProfile {
            processes,
            modules,
            functions,
            locations,
            stacks,
            ..SymbolizedProfile::default()
        };
        Self { number, whole }
    }

    pub(crate) fn name(&self) -> String {
        format!("service-{}", self.number)
    }

    /// A window: the program is busy on one CPU all the time.
    pub(crate) fn profile(&self, start_unix_ns: u64, length_ns: u64, rate_hz: u64) -> SymbolizedProfile {
        let mut random = Rng::with_seed(start_unix_ns ^ self.number);
        let seconds = length_ns / 1_000_000_000;
        let windows = if seconds == 60 { WINDOWS } else { seconds / 60 };
        let samples = seconds * rate_hz;
        let mut counts = vec![vec![0_u64; windows as usize]; STACKS];
        for sample in 0..samples {
            // Zipf's law, or near it.
            let stack = ((STACKS as f64).powf(random.f64()) as usize - 1).min(STACKS - 1);
            counts[stack][(sample * windows / samples) as usize] += 1;
        }
        let seen: Vec<usize> =
            (0..STACKS).filter(|stack| counts[*stack].iter().any(|had| *had > 0)).collect();
        let span =
            |at: u64| Window { start_ns: at * length_ns / windows, end_ns: (at + 1) * length_ns / windows };
        let run = Run {
            target: self.name(),
            start_unix_ns,
            duration_s: length_ns as f64 * 1e-9,
            counts: SampleCounts { samples, ..SampleCounts::default() },
            cpu: CpuTimes { target_cpu_s: length_ns as f64 * 1e-9, ..CpuTimes::default() },
            rate: RateFigures { rate_hz: rate_hz as f64, ..RateFigures::default() },
            how: HowSampled { confidence: 0.95, ..HowSampled::default() },
            ..Run::default()
        };
        let mut profile =
            SymbolizedProfile { windows: (0..windows).map(span).collect(), run, ..self.used(&seen) };
        for (stack, at) in profile.stacks.iter_mut().zip(seen) {
            // Periods are drawn anew all the time: no two samples stand for the same time.
            let mut cpu_ns = |samples: u64| samples * (750_000_000 + random.u64(..500_000_000)) / rate_hz;
            let mut had =
                |(window, samples): (u32, u64)| StackWindow { window, samples, cpu_ns: cpu_ns(samples) };
            let by_window = (0..).zip(counts[at].iter().copied());
            stack.windows = by_window.filter(|(_, samples)| *samples > 0).map(&mut had).collect();
            stack.samples = stack.windows.iter().map(|had| had.samples).sum();
            stack.cpu_ns = stack.windows.iter().map(|had| had.cpu_ns).sum();
        }
        profile
    }

    /// The stacks that were seen, and nothing but what they refer to.
    fn used(&self, seen: &[usize]) -> SymbolizedProfile {
        let whole = &self.whole;
        let mut used = SymbolizedProfile {
            processes: whole.processes.clone(),
            modules: whole.modules.clone(),
            ..SymbolizedProfile::default()
        };
        let (mut locations, mut functions) = (vec![None; LOCATIONS], vec![None; FUNCTIONS]);
        for at in seen {
            let mut stack = whole.stacks[*at].clone();
            for frame in &mut stack.frames {
                let known: &mut Option<LocationIndex> = &mut locations[frame.0 as usize];
                *frame = *known.get_or_insert_with(|| {
                    let mut location = whole.locations[frame.0 as usize].clone();
                    for line in &mut location.lines {
                        let function = line.function.0 as usize;
                        let known: &mut Option<FunctionIndex> = &mut functions[function];
                        line.function = *known.get_or_insert_with(|| {
                            used.functions.push(whole.functions[function].clone());
                            FunctionIndex(used.functions.len() as u32 - 1)
                        });
                    }
                    used.locations.push(location);
                    LocationIndex(used.locations.len() as u32 - 1)
                });
            }
            used.stacks.push(stack);
        }
        used
    }
}

fn word(random: &mut Rng) -> String {
    let syllables = [
        "ser", "ver", "con", "text", "par", "se", "que", "ry", "in", "dex", "flu", "sh", "al", "loc", "it",
        "er",
    ];
    (0..random.usize(2..5)).map(|_| syllables[random.usize(..syllables.len())]).collect()
}

fn function(random: &mut Rng, at: usize, modules: usize) -> Function {
    let parts: Vec<String> = (0..random.usize(1..5)).map(|_| word(random)).collect();
    let name = format!("{}::{at}", parts.join("::"));
    Function {
        system_name: format!("_ZN{}{}17h{:016x}E", name.len(), name.replace("::", "_"), random.u64(..)),
        name,
        module: ModuleIndex((at % modules) as u32),
        file: random.bool().then(|| format!("/build/src/{}/{}.rs", word(random), word(random))),
    }
}

fn location(random: &mut Rng, at: usize, modules: usize) -> Location {
    let module = at % modules;
    let inlined = if random.u8(..4) == 0 { 2 } else { 1 };
    let line = |_| Line {
        function: FunctionIndex((random.usize(..FUNCTIONS / modules) * modules + module) as u32),
        line: random.u32(1..3000),
    };
    let lines = (0..inlined).map(line).collect();
    Location { module: ModuleIndex(module as u32), address: 0x1000 + at as u64 * 37, lines, unknown: None }
}

/// Some thirty frames; the outermost ones are common to many.
fn stack(random: &mut Rng) -> WeightedStack {
    let depth = random.usize(8..50);
    let frame = |at: usize| {
        let choice = 3 + at * at; // the deeper, the more there are
        LocationIndex(((at * 131) % LOCATIONS + random.usize(..choice)) as u32 % LOCATIONS as u32)
    };
    WeightedStack {
        process: ProcessIndex(0),
        frames: (0..depth).rev().map(frame).collect(),
        outcome: Outcome::Complete,
        samples: 0,
        cpu_ns: 0,
        windows: Vec::new(),
    }
}
