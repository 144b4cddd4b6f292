//! A chain of calls that is known beforehand: `chain main|thread CPU_SECONDS`.

use std::hint::black_box;
use std::time::{Duration, Instant};

#[inline(never)]
fn leaf(mut x: u64) -> u64 {
    for _ in 0..400_000 {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        x ^= x >> 29;
    }
    x
}

#[inline(never)]
fn level2(x: u64) -> u64 {
    black_box(leaf(black_box(x)) ^ 5)
}

#[inline(never)]
fn level1(x: u64) -> u64 {
    // What may unwind has a landing pad.
    let kept = vec![x; 3];
    black_box(level2(black_box(x)) + kept[black_box(1)])
}

#[inline(never)]
fn work(seconds: f64) {
    let (start, mut x) = (Instant::now(), 1);
    while start.elapsed() < Duration::from_secs_f64(seconds) {
        x = black_box(level1(x % 1000));
    }
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let seconds = words[2].parse().expect("seconds");
    match words[1].as_str() {
        "main" => work(seconds),
        _ => std::thread::spawn(move || work(seconds)).join().expect("the thread ends"),
    }
}
