//! A C++ program with much debug information: many units of templates and standard containers, inlined into each other.
//!
//! It is written from a seed, so that everyone measures the same program, as far as the compilers agree.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context, Result, ensure};
use fastrand::Rng;

/// Functions in a unit.
const FUNCTIONS: usize = 110;
/// Statements in a function.
const STATEMENTS: std::ops::Range<usize> = 4..10;

/// What all units share: templates that are small enough to be inlined, some of them into each other.
const HEADER: &str = r"#pragma once
#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <vector>

namespace generated {
using Word = unsigned long;

template <int N> struct Mixer {
    static inline Word step(Word x) { return (Mixer<N - 1>::step(x) ^ (x << (N % 7 + 1))) * (2 * N + 1); }
};
template <> struct Mixer<0> {
    static inline Word step(Word x) { return x + 1; }
};

template <class T, int N> class Ring {
    T items[N] = {};
    size_t at = 0;

public:
    inline void put(T item) { items[at++ % N] = item; }
    inline const T &get(size_t back) const { return items[(at - back) % N]; }
    template <class F> inline T fold(F f, T sum) const {
        for (const T &item : items)
            sum = f(sum, item);
        return sum;
    }
};

template <class K, class V> struct Counter {
    std::map<K, V> counts;
    inline V count(const K &key) { return ++counts[key]; }
};

template <class T> inline T clamp_to(T x, T low, T high) { return std::max(low, std::min(high, x)); }
}
";

/// The program with so many units in `folder`, compiled if it is not there.
pub fn program(folder: &Path, units: usize, seed: u64) -> Result<PathBuf> {
    let folder = folder.join(format!("{units}-{seed}"));
    let path = folder.join("generated");
    if path.exists() {
        return Ok(path);
    }
    fs::create_dir_all(&folder)?;
    fs::write(folder.join("shared.h"), HEADER)?;
    let mut rng = Rng::with_seed(seed);
    for unit in 0..units {
        fs::write(folder.join(format!("unit{unit}.cpp")), source_of(unit, &mut rng))?;
    }
    fs::write(folder.join(format!("unit{units}.cpp")), main_source(units))?;
    compile_all(&folder, units + 1)?;
    let objects = (0..=units).map(|unit| format!("unit{unit}.o"));
    run(Command::new("c++").args(objects).args(["-o", "linking"]).current_dir(&folder))?;
    fs::rename(folder.join("linking"), &path)?;
    Ok(path)
}

/// The same program with its symbols alone, beside it.
pub fn without_debug_info(program: &Path) -> Result<PathBuf> {
    let path = program.with_extension("symbols");
    if !path.exists() {
        run(Command::new("objcopy").arg("--strip-debug").args([program, &path]))?;
    }
    Ok(path)
}

fn compile_all(folder: &Path, units: usize) -> Result<()> {
    let next = AtomicUsize::new(0);
    let compile = || -> Result<()> {
        loop {
            let unit = next.fetch_add(1, Ordering::Relaxed);
            if unit >= units {
                return Ok(());
            }
            let source = format!("unit{unit}.cpp");
            run(Command::new("c++").args(["-O2", "-g", "-c", &source]).current_dir(folder))?;
        }
    };
    let workers = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(compile)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("a worker does not panic"))
    })
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().context("cannot run c++ and objcopy (apt-get install g++ binutils)")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

fn source_of(unit: usize, rng: &mut Rng) -> String {
    let mut text = format!("#include \"shared.h\"\nusing namespace generated;\nnamespace unit{unit} {{\n");
    text += "struct State {\n    Ring<Word, 16> ring;\n    std::vector<Word> words;\n    std::string text;\n";
    text += "    Counter<Word, int> numbers;\n    Counter<std::string, Word> names;\n};\n";
    for function in 0..FUNCTIONS {
        let _ = writeln!(text, "__attribute__((noinline)) Word work{function}(State &state, Word x) {{");
        for _ in 0..rng.usize(STATEMENTS) {
            text += &statement(rng);
        }
        text += "    return x;\n}\n";
    }
    let _ = writeln!(text, "}}\nWord run{unit}(Word x) {{\n    unit{unit}::State state;");
    for function in 0..FUNCTIONS {
        let _ = writeln!(text, "    x = unit{unit}::work{function}(state, x);");
    }
    text + "    return x;\n}\n"
}

/// A statement that changes `x` and `state`, cheap to execute.
fn statement(rng: &mut Rng) -> String {
    let (a, b) = (rng.u32(1..100), rng.u32(1..9));
    let text = match rng.u32(0..9) {
        0 => format!("x += Mixer<{b}>::step(x);"),
        1 => format!("state.ring.put(x ^ {a}); x += state.ring.get({b});"),
        2 => {
            format!("x = state.ring.fold([x](Word sum, Word item) {{ return sum * {a} + (item ^ x); }}, x);")
        }
        3 => format!("state.words.push_back(x); if (state.words.size() > {a}) state.words.clear();"),
        4 => format!("state.words.resize({b}); std::sort(state.words.begin(), state.words.end());"),
        5 => {
            format!("if (state.text.size() < {a}) state.text += char('a' + x % 26); else state.text.clear();")
        }
        6 => format!("x += state.numbers.count(x % {b});"),
        7 => format!("x += state.names.count(state.text.substr(0, {b} % (state.text.size() + 1)));"),
        _ => format!(
            "x = clamp_to<Word>(x, {b}, x + {a}) + std::accumulate(state.words.begin(), state.words.end(), x);"
        ),
    };
    format!("    {text}\n")
}

/// Calls all units for so many seconds.
fn main_source(units: usize) -> String {
    let mut text = "#include <cstdlib>\n#include <ctime>\n".to_string();
    for unit in 0..units {
        let _ = writeln!(text, "unsigned long run{unit}(unsigned long);");
    }
    text += "int main(int argc, char **argv) {\n    time_t end = time(nullptr) + (argc > 1 ? atoi(argv[1]) : 1);\n";
    text += "    unsigned long x = 1;\n    while (time(nullptr) < end) {\n";
    for unit in 0..units {
        let _ = writeln!(text, "        x = run{unit}(x);");
    }
    text + "    }\n    return x == 0;\n}\n"
}
