//! Are names quick? 50,000 addresses of a program with more than 100 MiB of debug information, named by this
//! workspace's reader, by blazesym and by samply's: time, CPU time and memory of each.
//!
//! Each reader runs in a process of its own, on files in the page cache, in the order A B C C B A. The addresses are
//! drawn from the program's functions with a seed. All readers are asked for functions, inlined functions, files and
//! lines, and demangle; blazesym and samply get the addresses in ascending order, since samply sorts before it asks,
//! and ours as a profile has them, in no order.
//!
//! Then the table: how long after `attach --duration 1s` to that program has ended its first line appears, with all its
//! debug information and with its symbols alone.
//!
//! Options: `--rounds 5`, `--addresses 50000`, `--seed 1`, `--units 120`, `--binary PATH` (another program, which is
//! not profiled).

mod first_table;
mod generate;
mod readers;

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::time::Instant;
use std::{env, fs};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use serde::{Deserialize, Serialize};

use crate::readers::{Found, READERS};

/// How many times as long as the quickest other reader ours may take.
const GOAL: f64 = 1.5;
/// What naming may take of memory (MiB).
const MOST_MIB: f64 = 256.0;
/// The longest wait for the table (s).
const LONGEST_WAIT_S: f64 = 1.0;
/// How often it is waited for, for each kind of program.
const WAITS: usize = 7;

/// One reader's run.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Run {
    wall_s: f64,
    cpu_s: f64,
    peak_mib: f64,
    found: Found,
}

/// What a reader took, by median.
#[derive(Serialize)]
struct Taken {
    reader: &'static str,
    runs: usize,
    wall_s: f64,
    cpu_s: f64,
    peak_mib: f64,
    /// Our time over this reader's, the median of the pairs that ran next to each other in a round.
    our_ratio: f64,
    /// The largest of these.
    our_worst_ratio: f64,
    found: Found,
}

fn main() -> Result<()> {
    let words: Vec<String> = env::args().collect();
    if let [_, mode, reader, path, addresses] = &words[..]
        && mode == "--as"
    {
        return run_here(reader, Path::new(path), Path::new(addresses));
    }
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
    let folder = workspace.join("target/naming/programs");
    let other: String = option("--binary", String::new())?;
    let path: PathBuf = match other.as_str() {
        "" => generate::program(&folder, option("--units", 120)?, option("--seed", 1)?)?,
        path => path.into(),
    };
    let addresses = addresses(&path, option("--addresses", 50_000)?, option("--seed", 1)?)?;
    let files = [folder.join("drawn"), folder.join("sorted")];
    fs::create_dir_all(&folder)?;
    fs::write(&files[0], text(&addresses))?;
    let mut sorted = addresses.clone();
    sorted.sort_unstable();
    fs::write(&files[1], text(&sorted))?;
    let taken = compare(&path, &files, option("--rounds", 5)?)?;
    report(&path, &addresses, &taken)?;
    if other.is_empty() {
        wait_for_tables(&workspace, &path, &folder)?;
    }
    judge(&taken)
}

/// Profiles the program for a second, several times, with its debug information and without.
fn wait_for_tables(workspace: &Path, program: &Path, folder: &Path) -> Result<()> {
    let sweetspot = first_table::sweetspot(workspace)?;
    let symbols_only = generate::without_debug_info(program)?;
    let mut longest_s: f64 = 0.0;
    for (what, program) in [("debug information", program), ("symbols alone", &symbols_only)] {
        let waited = (0..WAITS).map(|_| first_table::wait(&sweetspot, program, folder));
        let waited = waited.collect::<Result<Vec<_>>>()?;
        let waits_s: Vec<f64> = waited.iter().map(|waited| waited.wait_s).collect();
        let worst_s = waits_s.iter().copied().fold(0.0, f64::max);
        let (samples, lines) = (waited[0].samples, waited[0].lines);
        let median_s = median(waits_s);
        println!(
            "table of a program with {what} after {median_s:.3} s, at worst {worst_s:.3} s of {WAITS} ({samples} samples, {lines} lines)"
        );
        longest_s = longest_s.max(worst_s);
    }
    ensure!(
        longest_s <= LONGEST_WAIT_S,
        "a table came after {longest_s:.3} s, later than {LONGEST_WAIT_S} s"
    );
    Ok(())
}

/// The value after `--name` on the command line, or a default.
fn option<T: FromStr<Err: Display>>(name: &str, default: T) -> Result<T> {
    let mut words = env::args().skip_while(|word| word != name);
    if words.next().is_none() {
        return Ok(default);
    }
    let value = words.next().with_context(|| format!("{name} needs a value"))?;
    value.parse().map_err(|error| anyhow::anyhow!("{name} {value}: {error}"))
}

fn text(addresses: &[u64]) -> String {
    addresses.iter().map(|address| format!("{address:x}\n")).collect()
}

/// Distinct addresses in the program's functions, each function as likely as it is long.
fn addresses(path: &Path, count: usize, seed: u64) -> Result<Vec<u64>> {
    let listed = Command::new("nm")
        .arg("-S")
        .arg(path)
        .output()
        .context("cannot run nm (apt-get install binutils)")?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let function = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        let [start, size, "t" | "T" | "W" | "w", _] = words[..] else { return None };
        Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(size, 16).ok()?))
    };
    let mut code: Vec<u64> =
        listed.lines().filter_map(function).flat_map(|(start, size)| start..start + size).collect();
    code.sort_unstable();
    code.dedup();
    ensure!(code.len() >= count, "{} has but {} bytes of code", path.display(), code.len());
    let mut rng = fastrand::Rng::with_seed(seed);
    rng.shuffle(&mut code);
    code.truncate(count);
    Ok(code)
}

/// Runs one reader in this process, and prints what it took.
fn run_here(reader: &str, path: &Path, addresses: &Path) -> Result<()> {
    let text = fs::read_to_string(addresses)?;
    let addresses: Vec<u64> =
        text.lines().map(|line| u64::from_str_radix(line, 16)).collect::<Result<_, _>>()?;
    let (started, before_s) = (Instant::now(), cpu_s()?);
    let found = readers::read(reader, path, &addresses)?;
    let (wall_s, cpu_s) = (started.elapsed().as_secs_f64(), cpu_s()? - before_s);
    println!("{}", serde_json::to_string(&Run { wall_s, cpu_s, peak_mib: peak_mib()?, found })?);
    Ok(())
}

fn cpu_s() -> Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    Ok((usage.user_time().num_microseconds() + usage.system_time().num_microseconds()) as f64 * 1e-6)
}

/// The most memory this process had, pages of mapped files included.
fn peak_mib() -> Result<f64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    let kib: f64 = line.trim().trim_end_matches(" kB").trim().parse()?;
    Ok(kib / 1024.0)
}

fn compare(path: &Path, [drawn, sorted]: &[PathBuf; 2], rounds: usize) -> Result<Vec<Taken>> {
    let run = |reader: usize| -> Result<Run> {
        let addresses = if reader == 0 { drawn } else { sorted };
        let mut command = Command::new(env::current_exe()?);
        let output = command.args(["--as", READERS[reader]]).arg(path).arg(addresses).output()?;
        if !output.status.success() {
            bail!("{}: {}", READERS[reader], String::from_utf8_lossy(&output.stderr));
        }
        Ok(serde_json::from_slice(&output.stdout)?)
    };
    (0..READERS.len()).try_for_each(|reader| run(reader).map(drop))?; // the files are in the page cache from here on
    let mut halves: Vec<[Run; READERS.len()]> = Vec::new();
    for round in 1..=rounds {
        eprintln!("round {round} of {rounds}");
        halves.push([run(0)?, run(1)?, run(2)?]);
        let backward = [run(2)?, run(1)?, run(0)?];
        halves.push([backward[2], backward[1], backward[0]]);
    }
    let taken = (0..READERS.len()).map(|reader| {
        let ratios: Vec<f64> = halves.iter().map(|half| half[0].wall_s / half[reader].wall_s).collect();
        let median = |of: fn(&Run) -> f64| median(halves.iter().map(|half| of(&half[reader])).collect());
        Taken {
            reader: READERS[reader],
            runs: halves.len(),
            wall_s: median(|run| run.wall_s),
            cpu_s: median(|run| run.cpu_s),
            peak_mib: median(|run| run.peak_mib),
            our_worst_ratio: ratios.iter().copied().fold(0.0, f64::max),
            our_ratio: self::median(ratios),
            found: halves[0][reader].found,
        }
    });
    Ok(taken.collect())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 }
}

fn report(path: &Path, addresses: &[u64], taken: &[Taken]) -> Result<()> {
    let mib = fs::metadata(path)?.len() as f64 / f64::from(1 << 20);
    println!("{} addresses of {} ({mib:.0} MiB)", addresses.len(), path.display());
    println!(
        "reader      wall s   CPU s  peak MiB  ours/its  at worst   named   frames    lines  MB of names"
    );
    for each in taken {
        let Taken { reader, wall_s, cpu_s, peak_mib, our_ratio, our_worst_ratio, found, .. } = each;
        let Found { named, frames, lines, bytes } = found;
        let mb = *bytes as f64 * 1e-6;
        println!(
            "{reader:10} {wall_s:7.3} {cpu_s:7.3} {peak_mib:9.0} {our_ratio:9.2} {our_worst_ratio:9.2} {named:7} {frames:8} {lines:8} {mb:12.1}"
        );
    }
    println!("{}", serde_json::to_string(taken)?);
    Ok(())
}

fn judge(taken: &[Taken]) -> Result<()> {
    let ratio = taken[1..].iter().map(|each| each.our_ratio).fold(0.0, f64::max);
    ensure!(ratio <= GOAL, "ours takes {ratio:.2} times as long as the quickest, more than {GOAL}");
    ensure!(taken[0].peak_mib <= MOST_MIB, "ours takes {:.0} MiB, more than {MOST_MIB}", taken[0].peak_mib);
    Ok(())
}
