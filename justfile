# What there is to do here. `just` alone lists it.

_list:
    @just --list --unsorted

# Format, lints, documentation and licences.
check:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets -- --deny warnings
    RUSTDOCFLAGS="--deny warnings" cargo doc --workspace --no-deps --document-private-items
    cargo deny check licenses bans sources

# All tests; those that profile live programs need root and say so where they skip.
test:
    cargo test --workspace

# The tests that profile live programs, alone.
test-live:
    cargo test -p tests --test live --test badday --test cli

# The control loop under a simulated host.
sim *arguments:
    cargo test --release -p tests --test control {{ arguments }}

# What a day of continuous operation costs on 64 CPUs, in simulated time.
day *arguments:
    cargo run --quiet --release -p tests --bin day -- {{ arguments }}

# Does a profile tell the truth? Twenty runs of each of five programs (ten minutes).
accuracy *arguments:
    cargo run --quiet --release -p tests --bin accuracy -- {{ arguments }}

# Does the profiler stay within its budget? By the stopwatch, on four programs (ten minutes).
budget *arguments:
    cargo run --quiet --release -p tests --bin budget -- {{ arguments }}

# Does the profiler lock onto periodic programs? In simulation (a minute).
aliasing *arguments:
    cargo run --quiet --release -p tests --bin aliasing -- {{ arguments }}

# Is the rate the right one for any program? 48 of them, in simulation (half a minute).
portfolio *arguments:
    cargo run --quiet --release -p tests --bin portfolio -- {{ arguments }}

# The experiments of Stoker's dissertation, run again beside what it printed (half a minute).
paper *arguments:
    cargo run --quiet --release -p tests --bin paper -- {{ arguments }}

# Does a sample cost what the calibration and the run say? By a program's own clock, beside its twin's (twelve minutes).
stopwatch *arguments:
    cargo run --quiet --release -p tests --bin stopwatch -- {{ arguments }}

# Are the intervals as sure as they say? A thousand simulated runs of each of thirty programs (twenty minutes).
coverage *arguments:
    cargo run --quiet --release -p tests --bin coverage -- {{ arguments }}

# What the statistics of a retune and of a profile's table cost.
bench-stats *arguments:
    cargo run --quiet --release -p tests --bin bench_stats -- {{ arguments }}

# What a sample and a context switch cost, beside other profilers (ten minutes).
bench *arguments:
    cargo run --quiet --release -p tests --bin peers -- {{ arguments }}

alias peers := bench

# Are the stacks whole? Every kind of unwind information and of stack, beside perf and samply (ten minutes).
cases *arguments:
    cargo run --quiet --release -p tests --bin cases -- {{ arguments }}

# Redis, PostgreSQL, Python, xz and Node under load.
real *arguments:
    cargo run --quiet --release -p tests --bin real -- {{ arguments }}

# Every fuzz target for so many seconds.
fuzz seconds="60":
    #!/usr/bin/env bash
    set -euo pipefail
    cd fuzz
    for target in fuzz_targets/*.rs; do
        RUSTC_BOOTSTRAP=1 cargo fuzz run "$(basename "$target" .rs)" -- -max_total_time={{ seconds }} -timeout=10
    done

# Takes what the snapshot tests print now as what they shall print.
bless:
    INSTA_UPDATE=always cargo test --workspace --exclude tests
