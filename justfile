# What there is to do here. `just` alone lists it.

_list:
    @just --list --unsorted

# Format, lints, documentation and licences.
check:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets -- --deny warnings
    RUSTDOCFLAGS="--deny warnings" cargo doc --workspace --no-deps --document-private-items
    cargo deny check licenses bans sources

# Types on aarch64; needs Rust's standard library for it (`rustup target add aarch64-unknown-linux-gnu`).
check-aarch64:
    cargo check --target aarch64-unknown-linux-gnu --workspace --exclude tests --exclude experiments

# All tests; those that profile live programs need root and say so where they skip.
test:
    cargo test --workspace

# Some of the suites that profile live programs; `cargo test -p tests` runs all.
test-live:
    cargo test -p tests --test live --test badday --test cli --test jit --test runtimes --test lives --test interface --test push --test exports --test fleet --test containers

# All tests of the suites with no second attempt: which of them fail now and then?
test-once *arguments:
    SWEETSPOT_ATTEMPTS=1 cargo test -p tests --no-fail-fast {{ arguments }}

# The control loop under a simulated host.
sim *arguments:
    cargo test --release -p tests --test control --test host_budget {{ arguments }}

# What a day of continuous operation costs on 64 CPUs, in simulated time.
day *arguments:
    cargo run --quiet --release -p experiments --bin day -- {{ arguments }}

# Does a profile tell the truth? Twenty runs of each of five programs (ten minutes).
accuracy *arguments:
    cargo run --quiet --release -p experiments --bin accuracy -- {{ arguments }}

# Is a profile worth having from the first second? In simulation, and beside samply and perf on runs of .1 to 60 s (half an hour; `--longest 3` is shorter, `--only simulated` takes seconds).
first-seconds *arguments:
    cargo run --quiet --release -p experiments --bin first_seconds -- {{ arguments }}

# Does the profiler stay within its two budgets? By the stopwatch, on five programs (twelve minutes).
budget *arguments:
    cargo run --quiet --release -p experiments --bin budget -- {{ arguments }}

# Does the daemon keep its budgets through steps of load, depth, threads, targets and budgets? By the stopwatch (five minutes, `--rounds 3` a quarter of an hour); needs root.
steps *arguments:
    cargo run --quiet --release -p experiments --bin steps -- {{ arguments }}

# Does the profiler lock onto periodic programs? In simulation (a minute).
aliasing *arguments:
    cargo run --quiet --release -p experiments --bin aliasing -- {{ arguments }}

# Is the rate the right one for any program? 320 of them, in simulation (a minute).
portfolio *arguments:
    cargo run --quiet --release -p experiments --bin portfolio -- {{ arguments }}

# The experiments of Stoker's dissertation, run again beside what it printed (half a minute).
paper *arguments:
    cargo run --quiet --release -p experiments --bin paper -- {{ arguments }}

# Does a sample cost what the calibration and the run say? By a program's own clock, beside its twin's (twelve minutes).
stopwatch *arguments:
    cargo run --quiet --release -p experiments --bin stopwatch -- {{ arguments }}

# The same for timer signals, tick by tick, and what is left of them when the profiler is killed (five minutes).
signals *arguments:
    cargo run --quiet --release -p experiments --bin signals -- {{ arguments }}

# Do other people's test suites pass while they are sampled by timer signals? (ten minutes; `--redis FOLDER` and `--bash FOLDER` where these were built).
suites *arguments:
    cargo run --quiet --release -p experiments --bin suites -- {{ arguments }}

# Are the intervals as sure as they say? A thousand simulated runs of each of 480 programs (`--runs 100` is shorter, `--longest 300` adds runs of five minutes).
coverage *arguments:
    cargo run --quiet --release -p experiments --bin coverage -- {{ arguments }}

# Are the names right? Ten thousand addresses of each of many programs, read by others as well (ten minutes).
symbols *arguments:
    cargo run --quiet --release -p experiments --bin symbols -- {{ arguments }}

# What the statistics of a retune and of a profile's table cost.
bench-stats *arguments:
    cargo run --quiet --release -p experiments --bin bench_stats -- {{ arguments }}

# What a sample and a context switch cost, beside other profilers (ten minutes).
bench *arguments:
    cargo run --quiet --release -p experiments --bin peers -- {{ arguments }}

alias peers := bench

# What naming a window costs the service, with a few new addresses and with none (`SWEETSPOT_OBJECTS` names other programs).
naming:
    cargo test --quiet --release -p profiler-daemon --bin sweetspot -- --ignored --nocapture the_cost_of_naming

# Are names quick? 50,000 addresses of 100 MiB of debug information, beside blazesym and samply (ten minutes, most of them to compile).
names *arguments:
    cargo run --quiet --release --manifest-path tests/naming/Cargo.toml --target-dir target/naming -- {{ arguments }}

# Are the stacks whole? Every kind of unwind information and of stack, beside perf and samply (ten minutes).
cases *arguments:
    cargo run --quiet --release -p experiments --bin cases -- {{ arguments }}

# A week of ten targets in the daemon's folder: its size, and how long a range takes to read (`--folder F` keeps it, `--days 2` is shorter).
store *arguments:
    cargo bench --quiet -p tests --bench store -- {{ arguments }}

# Are short-lived processes named, and without growth? 10,000 of 5 ms each (three minutes); needs root.
short-lived *arguments:
    cargo run --quiet --release -p experiments --bin short_lived -- {{ arguments }}

# Does the daemon lose windows? Killed 20 times and ended 5 times, under load with 20 targets (eight minutes); needs root.
ends *arguments:
    cargo run --quiet --release -p experiments --bin ends -- {{ arguments }}

# Do the daemons of a fleet sample as one? Six replicas of a service, and a real Prometheus (six minutes); needs root and prometheus.
fleet *arguments:
    cargo run --quiet --release -p experiments --bin fleet -- {{ arguments }}

# Does every window arrive once at a backend that fails in ten ways and is killed? An hour (`--minutes 10` is shorter); needs root.
faults *arguments:
    cargo run --quiet --release -p experiments --bin faults -- {{ arguments }}

# Does anybody notice that a profiler comes and goes? Redis, PostgreSQL, Python and Node, 1,000 times each under load (an hour); needs root.
injections *arguments:
    cargo run --quiet --release -p experiments --bin injections -- {{ arguments }}

# Does it matter how many targets a load is? 199 services as 1, 19 and 199 of them, there and back (nine minutes); needs root.
crowd *arguments:
    cargo run --quiet --release -p experiments --bin crowd -- {{ arguments }}

# Does the CPU time of all targets add up? Builds, jobs, forks and shells by process, user and control group (twelve minutes); needs root.
sums *arguments:
    cargo run --quiet --release -p experiments --bin sums -- {{ arguments }}

# What the daemon costs with twenty targets that sleep (two minutes); needs root.
idle *arguments:
    cargo run --quiet --release -p experiments --bin idle -- {{ arguments }}

# Does the daemon last? Two hours under churn, load and faults (`--minutes 40` is shorter, `--folder F` keeps what happened); needs root.
soak *arguments:
    cargo run --quiet --release -p experiments --bin soak -- {{ arguments }}

# Is a profile of real programs worth having? rustc, Redis, PostgreSQL, Python, xz and Node, beside perf and samply (five minutes).
real *arguments:
    cargo run --quiet --release -p experiments --bin real -- {{ arguments }}

# Does the daemon's interface do what its document says? Asked at random for so many seconds; needs root and schemathesis.
schemathesis seconds="600":
    cargo build --quiet --release -p profiler-daemon
    tests/schemathesis/run {{ seconds }}

# The properties that tests state, for so many cases of each that nothing has tried yet (a run of .ci/run tries the same 256).
properties cases="3000":
    PROPTEST_CASES={{ cases }} cargo test --release --workspace --exclude tests --exclude experiments --lib --bins

# Do broken files cost other files their names? A million mutations of real files are read as the service reads them (ten minutes); `just mutations 1 SEED NUMBER` repeats one.
mutations count="1000000" seed="1" first="0":
    SWEETSPOT_MUTATIONS={{ count }} SWEETSPOT_SEED={{ seed }} SWEETSPOT_FIRST={{ first }} cargo test --quiet --release -p profiler-daemon --bin sweetspot -- --ignored --nocapture a_million_broken_files

# Every fuzz target for so many seconds, or those that are named.
fuzz seconds="60" *targets="": seeds
    #!/usr/bin/env bash
    set -euo pipefail
    cd fuzz
    targets=({{ targets }})
    [[ ${#targets[@]} -gt 0 ]] || targets=($(basename --suffix .rs fuzz_targets/*.rs))
    for target in "${targets[@]}"; do
        mkdir --parents "corpus/$target" "regressions/$target"
        RUSTC_BOOTSTRAP=1 cargo fuzz run "$target" "corpus/$target" "regressions/$target" -- \
            -max_total_time={{ seconds }} -timeout=10 -malloc_limit_mb=320 -rss_limit_mb=1024
    done

# Records the stacks that the tests unwind anew (the script says what it needs).
fixtures-aarch64:
    tests/fixtures/stacks/make

# What the fuzz targets begin with, from the programs of the tests.
seeds:
    cargo run --quiet -p experiments --bin seeds

# Records the rings that the replay tests replay, anew; needs root.
record-rings:
    cargo run --quiet -p experiments --bin record_rings

# Takes what the snapshot tests print now as what they shall print.
bless:
    INSTA_UPDATE=always cargo test --workspace --exclude tests --exclude experiments
    INSTA_UPDATE=always cargo test -p tests --test replay

# The Debian package, and that of its debug symbols, in target/debian (the script says what it needs).
deb:
    packaging/deb/build

# Does the package do what it promises on a fresh Debian? Boots one in namespaces (three minutes); needs root.
clean-machine suite="bookworm": deb
    packaging/clean-machine target/debian/sweetspot_*.deb {{ suite }}

# The container image, in target/image (the script says what it needs).
image *tags:
    packaging/image/build {{ tags }}

# Manifests, chart and alert rules, held to the schemas of Kubernetes and to their tests (the script says what it needs).
check-packaging:
    cargo build --quiet --release -p profiler-daemon
    packaging/check
