//! The calibration program: functions of equal cost, called in a shuffled order, so that the true share of each
//! is known: its calls over all calls.

use std::hint::black_box;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::design::{FUNCTIONS, Shape};
use super::turns::{self, Role};
use crate::sys::affinity;

/// Be a program of known shares.
#[derive(Debug)]
pub(crate) struct WorkloadJob {
    /// The shares.
    pub(crate) shape: Shape,
    /// How many calls of all functions.
    pub(crate) calls: u64,
    /// Seed of their order.
    pub(crate) seed: u64,
    /// The CPU to stay on.
    pub(crate) cpu: Option<usize>,
    /// Where its twin is met, and which of the two it is.
    pub(crate) turns: Option<(PathBuf, Role)>,
}

/// Steps of a call: about 7 µs, well below the shortest sampling period.
const STEPS: u32 = 2_500;
/// Calls of a turn: about 2 ms, short against what disturbs, long against what it costs to hand over.
const TURN_CALLS: usize = 300;

/// A function whose every step waits for the one before. The constants differ, so that the functions are not
/// made one, and there are no calls or checks in the loop that a profile would show under another name.
macro_rules! work {
    ($($name:ident $constant:literal),*) => {
        $(#[inline(never)]
        fn $name(start: f64) -> f64 {
            let (mut x, mut left) = (start, STEPS);
            while left > 0 {
                x = x * 0.75 + $constant;
                left -= 1;
            }
            x
        })*

        const WORK: [fn(f64) -> f64; FUNCTIONS] = [$($name),*];

        /// The names of the functions, as a profile ends them.
        pub(super) const NAMES: [&str; FUNCTIONS] = [$(stringify!($name)),*];
    };
}
work!(work_a 11.0, work_b 13.0, work_c 17.0, work_d 19.0, work_e 23.0, work_f 29.0, work_g 31.0, work_h 37.0);

/// Does the work and prints nothing.
pub(crate) fn run(job: &WorkloadJob) -> Result<()> {
    if let Some(cpu) = job.cpu {
        let refused = || format!("CPU {cpu} cannot be used; name one that `taskset -pc $$` lists");
        affinity::stay_on(cpu as u32).with_context(refused)?;
    }
    let order = shuffled(&job.shape, job.calls, job.seed);
    let mut x = 1.0;
    let mut call = |calls: &[u8]| x = calls.iter().fold(x, |x, function| WORK[usize::from(*function)](x));
    match &job.turns {
        Some((folder, role)) => turns::take(folder, *role, order.chunks(TURN_CALLS), call)?,
        None => call(&order),
    }
    black_box(x);
    Ok(())
}

/// Calls of each function in proportion to its weight, in random order.
fn shuffled(shape: &Shape, calls: u64, seed: u64) -> Vec<u8> {
    let all: u64 = shape.weights.iter().copied().map(u64::from).sum();
    let each = shape.weights.iter().map(|weight| calls * u64::from(*weight) / all);
    let mut order: Vec<u8> =
        (0u8..).zip(each).flat_map(|(function, calls)| (0..calls).map(move |_| function)).collect();
    fastrand::Rng::with_seed(seed).shuffle(&mut order);
    order
}

#[cfg(test)]
mod tests {
    use super::super::design::{CALLS_UNIT, SHAPES};
    use super::*;

    #[test]
    fn calls_are_in_the_proportion_of_the_shares() {
        for shape in SHAPES {
            let order = shuffled(&shape, 3 * CALLS_UNIT, 7);
            assert_eq!(order.len() as u64, 3 * CALLS_UNIT);
            for (function, share) in (0u8..).zip(shape.shares()) {
                let calls = order.iter().filter(|called| **called == function).count();
                assert_eq!(calls as f64, share * order.len() as f64, "{} {function}", shape.name);
            }
        }
    }

    #[test]
    fn the_order_follows_from_the_seed() {
        let order = |seed| shuffled(&SHAPES[0], CALLS_UNIT, seed);
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
    }
}
