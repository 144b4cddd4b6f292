//! Profiles real programs under real load with the default settings. Prints for each: the samples beside what the law asks for and the
//! budget allows, and beside the defaults of `perf record -g` and samply; the shares of complete and named stacks; how far the samples'
//! weights are from the scheduler's CPU time; and the top functions. Other programs read the files. Ends with an error where samples,
//! stacks or weights fall short.
//!
//! Options: `--seconds 8`, `--only NAME`. Programs that are not installed are skipped with a line.

use std::path::Path;
use std::process::{Command, Stdio};
use std::{fs, thread, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Serialize;
use tests::experiment::{option, percent, print, progress, row};
use tests::folded::Folded;
use tests::guards::{Running, Sysctl, is_root, open_to_all};
use tests::peers::Profiler;
use tests::programs::{find_in_path, workspace_folder};
use tests::run::{NOBODY, Sweetspot, finish, run, start, wait_until};
use tests::stats::Stats;
use tests::verdict::{Verdict, ensure_none_fails};

/// Share of the samples that the law asks for (or the budget allows, if fewer) that must be taken.
const LEAST_TAKEN: f64 = 0.7;
const LEAST_COMPLETE: f64 = 0.99;
const MOST_WEIGHTS_OFF: f64 = 0.02;

#[derive(Serialize)]
struct Found {
    program: &'static str,
    cpu_s: f64,
    samples: u64,
    /// What the law asks for at this CPU time, or the budget of the slowdown allows where that is less.
    wanted: f64,
    /// Samples that other profilers took with their defaults.
    peers: Vec<(&'static str, u64)>,
    /// By how much the samples' weights miss the scheduler's CPU time, while it was sampled.
    weights_off_ratio: f64,
    /// CPU time of the target in which nothing could sample it.
    not_sampled_ratio: f64,
    lost: u64,
    complete_ratio: f64,
    named_ratio: f64,
    rate_hz: f64,
    overhead_ratio: f64,
    unwind: String,
    top: Vec<String>,
    notes: Vec<String>,
}

struct Real {
    name: &'static str,
    needs: &'static [&'static str],
    package: &'static str,
    profile: fn(&Path, f64) -> Result<Found>,
}

const PROGRAMS: &[Real] = &[
    Real { name: "rustc", needs: &["rustc"], package: "rustc", profile: rustc },
    Real { name: "rustc, short", needs: &["rustc"], package: "rustc", profile: rustc_short },
    Real {
        name: "redis",
        needs: &["redis-server", "redis-benchmark"],
        package: "redis-server",
        profile: redis,
    },
    Real {
        name: "postgres",
        needs: &["postgres", "pgbench", "initdb"],
        package: "postgresql",
        profile: postgres,
    },
    Real { name: "python", needs: &["python3"], package: "python3", profile: python },
    Real { name: "xz", needs: &["xz"], package: "xz-utils", profile: xz },
    Real { name: "node", needs: &["node"], package: "nodejs", profile: node },
];

fn main() -> Result<()> {
    let (seconds, only) = (option("--seconds", 8.0)?, option("--only", String::new())?);
    let (mut found, mut remarks) = (Vec::new(), Vec::new());
    for real in PROGRAMS.iter().filter(|real| only.is_empty() || only == real.name) {
        if let Some(missing) = real.needs.iter().find(|name| find_in_path(name).is_none()) {
            remarks.push(format!("{}: no {missing} (apt-get install {})", real.name, real.package));
            continue;
        }
        progress(real.name);
        let folder = tempfile::tempdir()?;
        open_to_all(folder.path())?;
        found.push((real.profile)(folder.path(), seconds).with_context(|| real.name)?);
    }
    let heads = [
        "program",
        "CPU s",
        "samples",
        "of wanted",
        "peers",
        "lost",
        "complete",
        "weights",
        "not sampled",
        "named",
        "rate",
        "overhead",
        "unwind",
        "top functions",
    ];
    let mut rows = vec![heads.map(str::to_string).to_vec()];
    rows.extend(found.iter().flat_map(to_rows));
    remarks
        .extend(found.iter().flat_map(|f| f.notes.iter().map(move |note| format!("{}: {note}", f.program))));
    let verdicts: Vec<Verdict> = found.iter().flat_map(judge).collect();
    remarks.extend(verdicts.iter().map(|verdict| verdict.line().to_string()));
    print(&rows, &remarks, &found)?;
    ensure_none_fails(&verdicts)
}

fn judge(found: &Found) -> [Verdict; 3] {
    let what = |figure: &str| format!("{}: {figure}", found.program);
    let missing = |ratio: f64| (1.0 - ratio).max(0.0);
    [
        Verdict::exact(
            &what("samples that are wanted and were not taken"),
            missing(found.samples as f64 / found.wanted),
            1.0 - LEAST_TAKEN,
            percent,
        ),
        Verdict::exact(
            &what("incomplete stacks"),
            missing(found.complete_ratio),
            1.0 - LEAST_COMPLETE,
            percent,
        ),
        Verdict::exact(&what("weights off"), found.weights_off_ratio.abs(), MOST_WEIGHTS_OFF, percent),
    ]
}

fn to_rows(found: &Found) -> Vec<Vec<String>> {
    let first = row([
        &found.program,
        &format!("{:.2}", found.cpu_s),
        &found.samples,
        &percent(found.samples as f64 / found.wanted),
        &found.peers.iter().map(|(name, samples)| format!("{name} {samples}")).collect::<Vec<_>>().join(", "),
        &found.lost,
        &percent(found.complete_ratio),
        &percent(found.weights_off_ratio),
        &percent(found.not_sampled_ratio),
        &percent(found.named_ratio),
        &format!("{:.0}/s", found.rate_hz),
        &percent(found.overhead_ratio),
        &found.unwind,
    ]);
    let first_len = first.len();
    let mut rows = vec![first];
    for (at, function) in found.top.iter().enumerate() {
        if at > 0 {
            rows.push(vec![String::new(); first_len]);
        }
        if let Some(last) = rows.last_mut() {
            last.push(function.clone());
        }
    }
    rows
}

/// Profiles running processes.
fn attach(program: &'static str, pids: &[u32], seconds: f64) -> Result<Found> {
    let mut words = vec!["--duration".to_string(), format!("{seconds}s")];
    words.extend(pids.iter().map(ToString::to_string));
    let found = profile(program, "attach", &words)?;
    let pids: Vec<String> = pids.iter().map(ToString::to_string).collect();
    beside(found, &["-p", &pids.join(",")], Some(seconds))
}

/// Profiles a command.
fn record(program: &'static str, command: &[&str]) -> Result<Found> {
    let words: Vec<String> = ["--"].iter().chain(command).map(ToString::to_string).collect();
    let found = profile(program, "record", &words)?;
    beside(found, &[&["--"], command].concat(), None)
}

/// Samples that other profilers take with their defaults: of a command or, for this many seconds, of running processes.
fn beside(mut found: Found, whom: &[&str], seconds: Option<f64>) -> Result<Found> {
    const PERF: &[&str] = &["perf", "record", "-q", "-e", "cpu-clock", "-g", "-o", "perf.data"];
    const SAMPLY: &[&str] = &["samply", "record", "--save-only", "-o", "profile.json.gz"];
    // samply refuses to run at more than 1, even as root.
    let _paranoid = is_root().then(|| Sysctl::kernel("perf_event_paranoid", "1")).transpose()?;
    let has_many_processes = whom.iter().any(|word| word.contains(','));
    for (profiler, words) in [(Profiler::Bare, PERF), (Profiler::Samply, SAMPLY)] {
        if has_many_processes && matches!(profiler, Profiler::Samply) {
            continue; // it attaches to one process
        }
        let folder = tempfile::tempdir()?;
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).args(whom).current_dir(folder.path());
        let Ok(running) = start(&mut command) else { continue }; // not installed
        if let Some(seconds) = seconds {
            thread::sleep(Duration::from_secs_f64(seconds));
            kill(Pid::from_raw(running.id() as i32), Signal::SIGINT)?;
        }
        let ended = finish(running)?;
        match profiler.read(folder.path(), &ended.stderr) {
            Ok(recording) => found.peers.push((words[0], recording.samples)),
            Err(_) => progress(&format!("{} left nothing: {}", words[0], ended.stderr)),
        }
    }
    Ok(found)
}

fn profile(program: &'static str, verb: &str, words: &[String]) -> Result<Found> {
    let sweetspot = Sweetspot::new();
    let mut all = sweetspot.outputs();
    all.extend(
        ["-o", &sweetspot.file("profile.pb.gz"), "-o", &sweetspot.file("profile.svg")].map(str::to_string),
    );
    all.extend_from_slice(words);
    run(&mut sweetspot.command(verb, &all))?.expect_status(0)?;
    check_pprof(&sweetspot.path().join("profile.pb.gz"))?;
    check_svg(&sweetspot.path().join("profile.svg"))?;
    let summary = Stats::parse(&fs::read_to_string(sweetspot.file("stats.jsonl"))?)?.summary;
    let folded = Folded::parse(&fs::read_to_string(sweetspot.file("profile.folded"))?)?;
    let all = folded.weight_of(|_| true);
    let named = folded.weight_of(|stack| stack.frames.last().is_some_and(|leaf| !is_unnamed(leaf)));
    let line = |function: &tests::stats::Function| format!("{} {}", percent(function.share), function.name);
    let allowed = summary.slowdown_budget_ratio * summary.target_cpu_s * 1e6 / summary.overhead_us;
    Ok(Found {
        program,
        cpu_s: summary.target_cpu_s,
        samples: summary.samples,
        wanted: summary.law_samples.min(allowed),
        peers: Vec::new(),
        weights_off_ratio: summary.weight_s / (summary.target_cpu_s - summary.not_sampled_cpu_s) - 1.0,
        not_sampled_ratio: summary.not_sampled_cpu_s / summary.target_cpu_s,
        lost: summary.lost,
        complete_ratio: 1.0 - summary.truncated as f64 / summary.samples as f64,
        named_ratio: named / all,
        rate_hz: summary.rate_hz,
        overhead_ratio: summary.overhead_ratio,
        unwind: summary.unwind,
        top: summary.functions.iter().take(5).map(line).collect(),
        notes: summary.notes,
    })
}

/// `module+0x1234`, or a bracketed word for what lies in no file.
fn is_unnamed(name: &str) -> bool {
    name.contains("+0x") || name.starts_with('[') || name.starts_with("0x")
}

/// Go's pprof reads it and finds functions in it.
fn check_pprof(file: &Path) -> Result<()> {
    if find_in_path("go").is_none() {
        progress("the pprof file is not checked: no go (apt-get install golang)");
        return Ok(());
    }
    let ended = run(Command::new("go").args(["tool", "pprof", "-top"]).arg(file))?.expect_status(0)?;
    let rows = ended.stdout.lines().skip_while(|line| !line.contains("flat%")).skip(1).count();
    ensure!(rows > 0, "go tool pprof finds no functions:\n{}", ended.stdout);
    Ok(())
}

/// It is well-formed XML with an `svg` element.
fn check_svg(file: &Path) -> Result<()> {
    let text = fs::read_to_string(file)?;
    let mut reader = quick_xml::Reader::from_str(&text);
    reader.config_mut().check_end_names = true;
    let mut has_svg = false;
    loop {
        match reader.read_event().with_context(|| format!("{} is no XML", file.display()))? {
            quick_xml::events::Event::Start(element) => has_svg |= element.name().as_ref() == b"svg",
            quick_xml::events::Event::Eof => break,
            _ => {}
        }
    }
    ensure!(has_svg, "{} has no svg element", file.display());
    Ok(())
}

fn quiet(command: &mut Command) -> &mut Command {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null())
}

fn rustc(folder: &Path, _: f64) -> Result<Found> {
    let source = workspace_folder().join("tests/programs/threads.rs");
    let (folder, source) = (folder.to_string_lossy(), source.to_string_lossy());
    record("rustc", &["rustc", "--edition", "2021", "-O", "--out-dir", &folder, &source])
}

/// A program that ends before most profilers have started.
fn rustc_short(folder: &Path, _: f64) -> Result<Found> {
    let source = folder.join("short.rs");
    fs::write(&source, "fn main() { println!(\"{:?}\", std::env::args().collect::<Vec<_>>()); }")?;
    let (folder, source) = (folder.to_string_lossy(), source.to_string_lossy());
    record("rustc, short", &["rustc", "--out-dir", &folder, &source])
}

fn redis(folder: &Path, seconds: f64) -> Result<Found> {
    const PORT: &str = "26379";
    let mut server = Command::new("redis-server");
    server
        .args(["--port", PORT, "--save", "", "--appendonly", "no", "--bind", "127.0.0.1"])
        .current_dir(folder);
    let server = Running::start(quiet(&mut server))?;
    wait_until("redis", || std::net::TcpStream::connect(("127.0.0.1", 26379)).is_ok())?;
    let mut load = Command::new("redis-benchmark");
    load.args(["-p", PORT, "-l", "-q", "-n", "1000000", "-P", "8", "-t", "set,get,lpush,lrange_100,zadd"]);
    let _load = Running::start(quiet(&mut load))?;
    thread::sleep(Duration::from_millis(500));
    attach("redis", &[server.id()], seconds)
}

/// A command as `nobody`, in a folder: PostgreSQL refuses to run as root.
fn as_nobody(folder: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(NOBODY[0]);
    command.args(&NOBODY[1..]).args(words).current_dir(folder).env("LC_ALL", "C");
    command
}

fn postgres(folder: &Path, seconds: f64) -> Result<Found> {
    let data = folder.join("data");
    let (data, socket) = (data.to_string_lossy(), folder.to_string_lossy());
    let initdb = ["initdb", "-D", &data, "-U", "bench", "--no-sync", "-A", "trust"];
    run(&mut as_nobody(folder, &initdb))?.expect_status(0)?;
    let server = ["postgres", "-D", &data, "-k", &socket, "-c", "listen_addresses=", "-c", "fsync=off"];
    let server = Running::start(quiet(&mut as_nobody(folder, &server)))?;
    let client = ["pgbench", "-h", &socket, "-U", "bench", "postgres"];
    let prepare = [&client[..], &["-i", "-q", "-s", "5"]].concat();
    wait_until("postgres", || folder.join(".s.PGSQL.5432").exists())?;
    run(&mut as_nobody(folder, &prepare))?.expect_status(0)?;
    let duration = format!("{}", seconds as u64 + 5);
    let load = [&client[..], &["-c", "4", "-T", &duration]].concat();
    let _load = Running::start(quiet(&mut as_nobody(folder, &load)))?;
    thread::sleep(Duration::from_millis(1000));
    let pids = with_children(server.id())?;
    ensure!(pids.len() > 4, "no backends: {pids:?}");
    let found = attach("postgres", &pids, seconds);
    // Its children end with it; a kill would leave them.
    kill(Pid::from_raw(server.id() as i32), Signal::SIGINT)?;
    let mut server = server;
    server.wait()?;
    found
}

fn with_children(pid: u32) -> Result<Vec<u32>> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    let children = children.split_whitespace().map(str::parse);
    Ok(std::iter::once(Ok(pid)).chain(children).collect::<Result<_, _>>()?)
}

const PYTHON: &str = "
import json, re, sys, time
def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
def texts(): return len(re.findall(r'(\\w+) (\\w+)', json.dumps([{'a b': i} for i in range(2000)])))
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end: fib(18); texts()
";

fn python(_: &Path, seconds: f64) -> Result<Found> {
    record("python", &["python3", "-c", PYTHON, &seconds.to_string()])
}

fn xz(folder: &Path, seconds: f64) -> Result<Found> {
    let input = folder.join("input");
    // Text that compresses to about a third: digits of a generator.
    let mut state = 1u64;
    let words = (0..(seconds * 150_000.0) as u64).map(|_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        format!("{} ", (state >> 33) % 5000)
    });
    fs::write(&input, words.collect::<String>().repeat(4))?;
    record("xz", &["xz", "-T2", "-kf", "-6", &input.to_string_lossy()])
}

const NODE: &str = "
const end = Date.now() + 1000 * Number(process.argv[1]);
function fib(n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
function sortSome() { return Array.from({length: 5000}, (_, i) => (i * 7919) % 5003).sort((a, b) => a - b); }
while (Date.now() < end) { fib(22); sortSome(); JSON.parse(JSON.stringify(sortSome())); }
";

fn node(_: &Path, seconds: f64) -> Result<Found> {
    if run(Command::new("node").arg("--version"))?.status != 0 {
        bail!("node does not run");
    }
    record("node", &["node", "-e", NODE, &seconds.to_string()])
}
