//! A small profile with everything in it: inlining, recursion, the kernel, an unknown address, no stack.

use std::ops::Range;

use profiler_core::profile::{
    CostFigures, CpuTimes, Function, FunctionIndex, HowSampled, Line, Location, LocationIndex, ModuleIndex,
    ModuleInfo, Outcome, OverheadFigures, OverheadParts, PredictedFigures, ProcessIndex, ProcessInfo,
    RateChange, RateFigures, Run, SampleCounts, StackWindow, SymbolizedProfile, TruncatedBy, Unknown,
    WeightedStack, Window,
};
use profiler_core::rate::CostMode;

const HALF_A_SECOND_NS: u64 = 500_000_000;

/// Ten seconds of a server in twenty windows; one more window saw nothing.
pub fn profile() -> SymbolizedProfile {
    SymbolizedProfile {
        processes: vec![ProcessInfo { pid: 4711, comm: "server".to_owned() }],
        modules: vec![
            module("server", "/opt/server", Some("0011aabb")),
            module("libc.so.6", "/usr/lib/libc.so.6", Some("ccdd")),
            module("[kernel]", "", None),
        ],
        functions: vec![
            function("_start", 0, None),
            function("main", 0, Some("/src/main.c")),
            function("serve", 0, Some("/src/serve.c")),
            function("parse", 0, Some("/src/parse.c")),
            function("memcpy", 1, None),
            function("walk", 0, Some("/src/walk.c")),
            function("clear_page", 2, None),
            function("server+0x9999", 0, None),
        ],
        locations: vec![
            location(0, 0x1000, &[(0, 0)]),
            location(0, 0x1100, &[(1, 12)]),
            location(0, 0x1200, &[(3, 40), (2, 20)]), // parse, inlined into serve
            location(1, 0x8000, &[(4, 0)]),
            location(0, 0x1300, &[(5, 7)]),
            location(2, 0xffff_ffff_8100_0000, &[(6, 0)]),
            Location { unknown: Some(unknown()), ..location(0, 0x9999, &[(7, 0)]) },
        ],
        stacks: vec![
            stack(&[3, 2, 1, 0], Outcome::Complete, 0..20, 241, 4_000_000_000),
            stack(&[2, 1, 0], Outcome::Complete, 0..20, 180, 3_000_000_000),
            stack(&[4, 4, 4, 1, 0], Outcome::Complete, 0..20, 120, 2_000_000_000),
            stack(&[5], Outcome::NoUserStack, 10..20, 48, 800_000_000),
            stack(&[6, 1], Outcome::Broken, 10..20, 12, 200_000_000),
            stack(&[], Outcome::NoUserStack, 19..20, 1, 10_000_000),
        ],
        windows: (0..21)
            .map(|at| Window { start_ns: at * HALF_A_SECOND_NS, end_ns: (at + 1) * HALF_A_SECOND_NS })
            .collect(),
        run: run(),
    }
}

/// A minute of this program with a hundred samples in each second, which fall into `memcpy`, `main`, `walk` and `clear_page` in these shares.
/// `random` gives numbers from 0 to 1.
pub fn minute(shares: [f64; 4], mut random: impl FnMut() -> f64) -> SymbolizedProfile {
    const SECOND_NS: u64 = 2 * HALF_A_SECOND_NS;
    const SAMPLE_NS: u64 = SECOND_NS / 100;
    let mut profile = profile();
    profile.windows =
        (0..60).map(|at| Window { start_ns: at * SECOND_NS, end_ns: (at + 1) * SECOND_NS }).collect();
    let mut stacks = [3, 1, 4, 5].map(|leaf| stack(&[leaf, 0], Outcome::Complete, 0..0, 0, 0));
    for window in 0..60 {
        let mut counts = [0; 4];
        for _ in 0..100 {
            let mut left = random();
            let hit = shares.iter().position(|share| {
                left -= share;
                left < 0.0
            });
            counts[hit.unwrap_or(3)] += 1;
        }
        for (stack, samples) in stacks.iter_mut().zip(counts).filter(|(_, samples)| *samples > 0) {
            let cpu_ns = samples * SAMPLE_NS;
            stack.windows.push(StackWindow { window, cpu_ns, samples });
            (stack.cpu_ns, stack.samples) = (stack.cpu_ns + cpu_ns, stack.samples + samples);
        }
    }
    profile.stacks = stacks.to_vec();
    (profile.run.counts.samples, profile.run.cpu.target_cpu_s, profile.run.duration_s) = (6_000, 60.0, 60.0);
    profile
}

fn run() -> Run {
    Run {
        target: "./server --port 80".to_owned(),
        start_unix_ns: 1_760_000_000_000_000_000,
        duration_s: 12.25,
        counts: SampleCounts {
            samples: 602,
            lost: 3,
            truncated: 61,
            truncated_by: TruncatedBy { broken: 12, no_user_stack: 49, ..TruncatedBy::default() },
            complete_ratio: 541.0 / 602.0,
            ..SampleCounts::default()
        },
        cpu: CpuTimes {
            target_cpu_s: 10.05,
            sampling_cpu_s: 0.04,
            sampling_cpu_se_s: 0.001,
            weight_s: 10.04,
            self_cpu_s: 0.03,
            setup_cpu_s: 0.011,
            ..CpuTimes::default()
        },
        cost: cost(),
        overhead: overhead(),
        rate: rate(),
        predicted: PredictedFigures {
            overhead_us: 71.25,
            overhead_se_us: 6.5,
            overhead_ratio: 0.0081,
            overhead_se_ratio: 0.0012,
            rate_hz: 63.0,
            rate_se_hz: 9.0,
        },
        how: HowSampled {
            attach_mode: "task".to_owned(),
            event: "cpu-clock".to_owned(),
            unwind: "fp".to_owned(),
            stopped: "duration".to_owned(),
            confidence: 0.95,
            precision_goal_ratio: 0.05,
            seed: 42,
            ..HowSampled::default()
        },
        rate_history: vec![RateChange { at_s: 0.5, rate_hz: 60.0, reason: "budget".to_owned() }],
        notes: vec!["12 samples hit code without symbols in server; install its debug package".to_owned()],
        ..Run::default()
    }
}

fn cost() -> CostFigures {
    CostFigures {
        overhead_us: 73.125,
        overhead_se_us: 1.5,
        handler_time: "measured".to_owned(),
        handler_us: Some(2.5),
        handler_se_us: Some(0.25),
        handler_samples: 120,
        overhead_modes: vec![
            CostMode { overhead_us: 70.5, share: 0.75 },
            CostMode { overhead_us: 81.0, share: 0.25 },
        ],
        self_us: 49.8,
        interrupt_ratio: 1.0,
    }
}

fn overhead() -> OverheadFigures {
    OverheadFigures {
        overhead_ratio: 0.0074,
        overhead_parts: OverheadParts { base_ratio: 0.004, self_ratio: 0.003, ..OverheadParts::default() },
        overhead_worst_1s_ratio: 0.0091,
        overhead_worst_10s_ratio: 0.0074,
        budget_ratio: 0.01,
        slowdown_ratio: 0.0044,
        slowdown_budget_ratio: 0.01,
        slowdown_worst_10s_ratio: 0.0049,
        own_cpu_ratio: 0.0024,
        own_cpu_worst_10s_ratio: 0.0031,
        own_cpu_budget_ratio: 0.05,
    }
}

fn rate() -> RateFigures {
    RateFigures {
        rate_hz: 60.0,
        optimum_rate_hz: 60.0,
        unbounded_rate_hz: 83.5,
        bound_by: "budget".to_owned(),
        law: "horizon".to_owned(),
        law_samples: 839.2,
        variance_ratio: 0.75,
        replicas: 1.0,
        retunes: 2,
    }
}

fn unknown() -> Unknown {
    let remedy = "put its debug file at /usr/lib/debug/.build-id/00/11aabb.debug";
    Unknown { reason: "stripped: no symbol table".to_owned(), remedy: remedy.to_owned() }
}

fn module(name: &str, path: &str, build_id: Option<&str>) -> ModuleInfo {
    ModuleInfo { name: name.to_owned(), path: path.to_owned(), build_id: build_id.map(str::to_owned), end: 0 }
}

fn function(name: &str, module: u32, file: Option<&str>) -> Function {
    Function {
        name: name.to_owned(),
        system_name: name.to_owned(),
        module: ModuleIndex(module),
        file: file.map(str::to_owned),
    }
}

fn location(module: u32, address: u64, lines: &[(u32, u32)]) -> Location {
    let line = |(function, line): &(u32, u32)| Line { function: FunctionIndex(*function), line: *line };
    Location { module: ModuleIndex(module), address, lines: lines.iter().map(line).collect(), unknown: None }
}

/// A stack that was seen evenly in these windows.
pub fn stack(
    frames: &[u32],
    outcome: Outcome,
    windows: Range<u32>,
    samples: u64,
    cpu_ns: u64,
) -> WeightedStack {
    let count = windows.len() as u64;
    let part = |all: u64, at: u64| all * (at + 1) / count - all * at / count;
    let window = |(window, at)| StackWindow { window, cpu_ns: part(cpu_ns, at), samples: part(samples, at) };
    WeightedStack {
        process: ProcessIndex(0),
        frames: frames.iter().copied().map(LocationIndex).collect(),
        outcome,
        samples,
        cpu_ns,
        windows: windows.zip(0..).map(window).collect(),
    }
}
