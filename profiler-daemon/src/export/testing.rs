//! A small profile with everything in it: inlining, recursion, the kernel, an unknown address, no stack.

use profiler_core::profile::{
    Function, FunctionIndex, Line, Location, LocationIndex, ModuleIndex, ModuleInfo, Outcome, OverheadParts,
    ProcessIndex, ProcessInfo, RateChange, Run, SymbolizedProfile, WeightedStack, Window,
};

/// Ten seconds of a server in two windows; a third window saw nothing.
pub(crate) fn profile() -> SymbolizedProfile {
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
            Location { unknown: Some("no symbols".to_owned()), ..location(0, 0x9999, &[(7, 0)]) },
        ],
        stacks: vec![
            stack(&[3, 2, 1, 0], Outcome::Complete, 241, &[(0, 1_500_000_000), (1, 2_500_000_000)]),
            stack(&[2, 1, 0], Outcome::Complete, 180, &[(0, 2_000_000_000), (1, 1_000_000_000)]),
            stack(&[4, 4, 4, 1, 0], Outcome::Complete, 120, &[(0, 1_000_000_000), (1, 1_000_000_000)]),
            stack(&[5], Outcome::NoUserStack, 48, &[(1, 800_000_000)]),
            stack(&[6, 1], Outcome::Broken, 12, &[(1, 200_000_000)]),
            stack(&[], Outcome::NoUserStack, 1, &[(1, 10_000_000)]),
        ],
        windows: [0, 5_000_000_000, 10_000_000_000]
            .map(|start_ns| Window { start_ns, end_ns: start_ns + 5_000_000_000 })
            .to_vec(),
        run: run(),
    }
}

fn run() -> Run {
    Run {
        target: "./server --port 80".to_owned(),
        start_unix_ns: 1_760_000_000_000_000_000,
        duration_s: 12.25,
        samples: 602,
        lost: 3,
        truncated: 61,
        target_cpu_s: 10.01,
        weight_s: 10.04,
        self_cpu_s: 0.03,
        overhead_us: 73.125,
        overhead_se_us: 1.5,
        self_us: 49.8,
        overhead_ratio: 0.0074,
        overhead_parts: OverheadParts { base_ratio: 0.004, self_ratio: 0.003, ..OverheadParts::default() },
        overhead_worst_1s_ratio: 0.0091,
        overhead_worst_10s_ratio: 0.0074,
        budget_ratio: 0.01,
        rate_hz: 60.0,
        optimum_rate_hz: 60.0,
        unbounded_rate_hz: 83.5,
        bound_by: "budget".to_owned(),
        retunes: 2,
        attach_mode: "task".to_owned(),
        event: "cpu-clock".to_owned(),
        unwind: "fp".to_owned(),
        confidence: 0.95,
        seed: 42,
        rate_history: vec![RateChange { at_s: 0.5, rate_hz: 60.0, reason: "budget".to_owned() }],
        notes: vec!["12 samples hit code without symbols in server; install its debug package".to_owned()],
        ..Run::default()
    }
}

fn module(name: &str, path: &str, build_id: Option<&str>) -> ModuleInfo {
    ModuleInfo { name: name.to_owned(), path: path.to_owned(), build_id: build_id.map(str::to_owned) }
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

fn stack(frames: &[u32], outcome: Outcome, samples: u64, windows: &[(u32, u64)]) -> WeightedStack {
    WeightedStack {
        process: ProcessIndex(0),
        frames: frames.iter().copied().map(LocationIndex).collect(),
        outcome,
        samples,
        cpu_ns: windows.iter().map(|(_, ns)| ns).sum(),
        windows: windows.to_vec(),
    }
}
