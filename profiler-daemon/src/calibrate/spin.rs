//! Fixed work at the bottom of a stack of known depth.

use std::hint::black_box;

use serde::{Deserialize, Serialize};

use crate::sys::clock;
use crate::sys::frames::with_frames;

/// Bytes of memory that the memory-bound work reads all over: more than the caches of a core hold.
const MEMORY_BYTES: usize = 16 << 20;
/// Bytes between the places that it reads: a cache line.
const LINE_BYTES: usize = 64;
/// Reads that come to each of them once.
pub(super) const LINES: u64 = (MEMORY_BYTES / LINE_BYTES) as u64;
/// Iterations that tell how long one takes.
const TRIAL_ITERATIONS: u64 = 200_000;

/// What the work waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SpinKind {
    /// The result of the multiplication before.
    Compute,
    /// The next address, from memory.
    Memory,
}

/// How much of which work, and where on the stack.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct SpinWork {
    /// What it waits for.
    pub(super) kind: SpinKind,
    /// Frames with frame pointers above it.
    pub(super) frames: u64,
    /// Bytes of stack above those.
    pub(super) stack_bytes: usize,
    /// How much.
    pub(super) iterations: u64,
}

/// Does the work.
#[derive(Default)]
pub(super) struct Spinner {
    /// For each line of the memory, the line to read next: one circle through all of them. Empty before it is needed.
    circle: Vec<[u32; LINE_BYTES / 4]>,
}

impl Spinner {
    /// Makes ready for this kind of work, so that it takes no time later.
    pub(super) fn prepare(&mut self, kind: SpinKind) {
        if kind == SpinKind::Memory && self.circle.is_empty() {
            self.circle = circle(MEMORY_BYTES / LINE_BYTES);
        }
    }

    /// Does the work; the memory-bound one where it was prepared.
    pub(super) fn spin(&self, work: SpinWork) {
        with_stack_above(work.stack_bytes, &mut || {
            with_frames(work.frames, &mut || match work.kind {
                SpinKind::Compute => compute(work.iterations),
                SpinKind::Memory => read(&self.circle, work.iterations),
            });
        });
    }
}

/// Iterations of the computation that take so much CPU time of the calling thread.
pub(super) fn iterations_for(cpu_ns: u64) -> u64 {
    let trial_ns = || {
        let before = clock::thread_cpu_ns();
        compute(TRIAL_ITERATIONS);
        clock::thread_cpu_ns() - before
    };
    let ns = trial_ns().min(trial_ns()).max(1);
    (u128::from(TRIAL_ITERATIONS) * u128::from(cpu_ns) / u128::from(ns)) as u64
}

/// Calls `work` with at least `bytes` of used stack above it.
#[inline(never)]
pub(super) fn with_stack_above(bytes: usize, work: &mut dyn FnMut()) {
    let frame = black_box([0u8; 1024]);
    if bytes > frame.len() {
        with_stack_above(bytes - frame.len(), work)
    } else {
        work()
    }
    black_box(&frame);
}

/// Each multiplication waits for the one before. Not inlined: the frames above must be the caller's.
#[inline(never)]
pub(super) fn compute(iterations: u64) {
    let mut x = black_box(1u64);
    for _ in 0..iterations {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    }
    black_box(x);
}

/// Each read waits for the one before, which says where to read.
#[inline(never)]
fn read(circle: &[[u32; LINE_BYTES / 4]], iterations: u64) {
    let mut at = 0;
    for _ in 0..iterations {
        at = circle.get(at as usize).map_or(0, |line| line[0]);
    }
    black_box(at);
}

/// One circle in random order (Sattolo's shuffle), the same each time.
fn circle(lines: usize) -> Vec<[u32; LINE_BYTES / 4]> {
    let mut order: Vec<u32> = (0..lines as u32).collect();
    let mut rng = fastrand::Rng::with_seed(1);
    for i in (1..lines).rev() {
        order.swap(i, rng.usize(..i));
    }
    order.into_iter().map(|next| [next; LINE_BYTES / 4]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_circle_comes_to_every_line_before_it_closes() {
        let circle = circle(1000);
        let mut at = 0;
        let steps = (1..=1000).find(|_| {
            at = circle[at as usize][0];
            at == 0
        });
        assert_eq!(steps, Some(1000));
    }

    #[test]
    fn more_time_is_more_iterations() {
        assert!(iterations_for(1_000_000_000) > iterations_for(1_000));
    }
}
