//! The eight functions of mix.c in Rust, on four threads.
//!
//!     threads [--cpu SECONDS | --calls N] [--depth D] [--seed S] [--threads T]
//!             [--time-each ROUNDS] [--out FILE]

use std::arch::asm;
use std::hint::black_box;

const RATIO: [f64; 8] = [0.40, 0.25, 0.15, 0.08, 0.05, 0.04, 0.02, 0.01];

macro_rules! work {
    ($($name:ident $constant:literal),*) => {
        $(
            /// Latency-bound: each multiplication waits for the one before.
            #[inline(never)]
            fn $name(mut x: u64) -> u64 {
                let mut left = 20_000;
                while left > 0 {
                    // Plain operators (unchecked at -O): a method would be inlined and take the time to its name.
                    x = x * 6_364_136_223_846_793_005 + $constant;
                    left -= 1;
                    // SAFETY: no instruction; it keeps the compiler from merging iterations.
                    unsafe { asm!("/* {0} */", inout(reg) x, options(pure, nomem, nostack)) };
                }
                x
            }
        )*
    };
}
work!(work_a 11, work_b 13, work_c 17, work_d 19, work_e 23, work_f 29, work_g 31, work_h 37);

const WORK: [fn(u64) -> u64; 8] = [work_a, work_b, work_c, work_d, work_e, work_f, work_g, work_h];

#[derive(Default)]
struct Done {
    calls: [u64; 8],
    work_ns: u64,
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[repr(C)]
struct Timespec {
    seconds: i64,
    nanoseconds: i64,
}

extern "C" {
    fn clock_gettime(clock: i32, time: *mut Timespec) -> i32;
}

const PROCESS: i32 = 2;
const THREAD: i32 = 3;

/// CPU time of the process or of the thread (ns).
fn cpu_ns(clock: i32) -> u64 {
    let mut time = Timespec { seconds: 0, nanoseconds: 0 };
    // SAFETY: `time` is a valid `struct timespec` of this platform (x86_64 Linux).
    unsafe { clock_gettime(clock, &mut time) };
    time.seconds as u64 * 1_000_000_000 + time.nanoseconds as u64
}

fn shuffled_order(calls: u64, random: &mut Random) -> Vec<u8> {
    let mut order = Vec::new();
    for (function, ratio) in RATIO.iter().enumerate() {
        order.extend(std::iter::repeat(function as u8).take((ratio * calls as f64).round() as usize));
    }
    for i in (1..order.len()).rev() {
        order.swap(i, (random.next() % (i as u64 + 1)) as usize);
    }
    order
}

#[inline(never)]
fn run_calls(order: &[u8], done: &mut Done) {
    let start = cpu_ns(THREAD);
    let mut x = 1;
    for &function in order {
        x = WORK[function as usize](x);
        done.calls[function as usize] += 1;
    }
    black_box(x);
    done.work_ns += cpu_ns(THREAD) - start;
}

#[inline(never)]
fn bottom(arguments: &Arguments, random: &mut Random, done: &mut Done) {
    let mut calls = arguments.calls / arguments.threads;
    if calls == 0 {
        run_calls(&shuffled_order(500, random), done);
        let each = arguments.cpu_s * 1e9 / arguments.threads as f64;
        calls = (each / (done.work_ns as f64 / 500.0) / 100.0) as u64 * 100;
    }
    run_calls(&shuffled_order(calls, random), done);
}

#[inline(never)]
fn descend(left: u64, arguments: &Arguments, random: &mut Random, done: &mut Done) -> u64 {
    if left == 0 {
        bottom(arguments, random, done);
        return 0;
    }
    black_box(descend(left - 1, arguments, random, done)) + 1 // neither a tail call nor a loop
}

#[derive(Clone)]
struct Arguments {
    calls: u64,
    cpu_s: f64,
    depth: u64,
    seed: u64,
    threads: u64,
    rounds: u64,
    out: Option<String>,
}

fn arguments() -> Arguments {
    let mut found = Arguments { calls: 0, cpu_s: 1.0, depth: 5, seed: 1, threads: 4, rounds: 0, out: None };
    let mut given = std::env::args().skip(1);
    while let (Some(key), Some(value)) = (given.next(), given.next()) {
        match key.as_str() {
            "--calls" => found.calls = value.parse().unwrap(),
            "--cpu" => found.cpu_s = value.parse().unwrap(),
            "--depth" => found.depth = value.parse().unwrap(),
            "--seed" => found.seed = value.parse().unwrap(),
            "--threads" => found.threads = value.parse().unwrap(),
            "--time-each" => found.rounds = value.parse().unwrap(),
            "--out" => found.out = Some(value),
            _ => panic!("unknown argument {key}"),
        }
    }
    found
}

/// Median ns per call of each function: rounds of ten calls each, in turn.
fn time_each(rounds: u64) {
    let mut ns = vec![Vec::new(); 8];
    for _ in 0..rounds {
        for function in 0..8u8 {
            let mut ten = Done::default();
            run_calls(&[function; 10], &mut ten);
            ns[usize::from(function)].push(ten.work_ns);
        }
    }
    ns.iter_mut().for_each(|ns| ns.sort());
    let medians: Vec<_> = ns.iter().map(|ns| format!("{:.1}", ns[ns.len() / 2] as f64 / 10.0)).collect();
    println!("{{\"median_ns_per_call\":[{}]}}", medians.join(","));
}

fn main() {
    let started = std::time::Instant::now();
    let arguments = arguments();
    if arguments.rounds > 0 {
        return time_each(arguments.rounds);
    }
    let threads: Vec<_> = (0..arguments.threads)
        .map(|thread| {
            let arguments = arguments.clone();
            std::thread::spawn(move || {
                let mut done = Done::default();
                let mut random = Random(arguments.seed.wrapping_mul(1_000).wrapping_add(thread));
                descend(arguments.depth, &arguments, &mut random, &mut done);
                done
            })
        })
        .collect();
    let mut all = Done::default();
    for thread in threads {
        let done = thread.join().unwrap();
        all.work_ns += done.work_ns;
        (0..8).for_each(|f| all.calls[f] += done.calls[f]);
    }
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let calls: Vec<_> = (0..8).map(|f| format!("\"threads::work_{}\":{}", names[f], all.calls[f])).collect();
    let line = format!(
        "{{\"calls\":{{{}}},\"work_cpu_s\":{:.9},\"cpu_s\":{:.6},\"wall_s\":{:.6},\"pid\":{}}}\n",
        calls.join(","),
        all.work_ns as f64 * 1e-9,
        cpu_ns(PROCESS) as f64 * 1e-9,
        started.elapsed().as_secs_f64(),
        std::process::id()
    );
    match arguments.out {
        Some(file) => std::fs::write(file, line).unwrap(),
        None => print!("{line}"),
    }
}
