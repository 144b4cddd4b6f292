//! Which runs the experiment has, and in which order.

use std::time::Duration;

use serde::{Serialize, Serializer};

/// Functions of a calibration program.
pub(crate) const FUNCTIONS: usize = 8;
/// The largest of them are judged.
pub(super) const TOP: usize = 4;
/// A number of calls that every shape divides without a remainder.
pub(super) const CALLS_UNIT: u64 = 3_200;
/// Fixed rates (samples per CPU-second), three or so in a decade.
pub(super) const RATES_HZ: [f64; 10] =
    [49.0, 99.0, 199.0, 499.0, 999.0, 1_999.0, 4_999.0, 9_999.0, 19_999.0, 39_999.0];
/// Rates that a person might have fixed instead (samples per CPU-second).
pub(super) const USUAL_HZ: [f64; 3] = [99.0, 999.0, 4_999.0];
/// A budget that does not bind, so that the law is what is judged.
pub(super) const FREE_BUDGET: f64 = 0.2;
/// In each round, for each shape: runs that are not sampled, and runs that choose their rate.
const UNSAMPLED: usize = 3;
const ADAPTIVE: usize = 5;
/// The same of runs with the default settings.
const DEFAULT: usize = 5;

/// How the CPU time of a program is shared by its functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// What it is called.
    pub(crate) name: &'static str,
    /// Calls of each function, in proportion, the largest first.
    pub(crate) weights: [u32; FUNCTIONS],
}

/// The shapes of the experiment.
pub(crate) const SHAPES: [Shape; 3] = [
    Shape { name: "big", weights: [40, 25, 15, 8, 5, 4, 2, 1] },
    Shape { name: "halves", weights: [64, 32, 16, 8, 4, 2, 1, 1] },
    Shape { name: "even", weights: [1; FUNCTIONS] },
];

impl Shape {
    /// The shape of this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        SHAPES.into_iter().find(|shape| shape.name == name)
    }

    /// True shares.
    pub(super) fn shares(&self) -> [f64; FUNCTIONS] {
        let all: u32 = self.weights.iter().sum();
        self.weights.map(|weight| f64::from(weight) / f64::from(all))
    }

    /// True shares of the functions that are judged.
    pub(super) fn top(&self) -> [f64; TOP] {
        let shares = self.shares();
        std::array::from_fn(|index| shares[index])
    }
}

/// How a run is sampled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Arm {
    /// Not at all: its CPU time is the truth.
    Unsampled,
    /// At a fixed rate (samples per CPU-second).
    Fixed(f64),
    /// At the rate that the controller chooses when it knows how long the run is, within [`FREE_BUDGET`].
    Adaptive,
    /// As a user gets it who sets nothing: by the anytime law within the default budgets.
    Default,
}

impl Arm {
    /// What tables and files call it.
    pub(super) fn name(self) -> String {
        match self {
            Self::Unsampled => "unsampled".to_owned(),
            Self::Fixed(hertz) => format!("{hertz}/s"),
            Self::Adaptive => "adaptive".to_owned(),
            Self::Default => "default".to_owned(),
        }
    }
}

impl Serialize for Arm {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.name())
    }
}

/// One run to be done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Planned {
    /// Index into [`SHAPES`].
    pub(super) shape: usize,
    /// How it is sampled.
    pub(super) arm: Arm,
    /// Seed of its calls and of its periods.
    pub(super) seed: u64,
}

/// The size of the experiment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Design {
    /// Repetitions of everything.
    pub(crate) rounds: u32,
    /// CPU time of an unsampled run.
    pub(crate) cpu: Duration,
    /// Seed of the order, the programs and the periods.
    pub(crate) seed: u64,
}

impl Design {
    /// About fifteen minutes.
    pub(crate) fn full(seed: u64) -> Self {
        Self { rounds: 3, cpu: Duration::from_millis(2_500), seed }
    }

    /// About two minutes.
    pub(crate) fn quick(seed: u64) -> Self {
        Self { rounds: 1, cpu: Duration::from_millis(1_000), seed }
    }

    /// The runs in their order: random within a round, so that a machine that changes does not favour any.
    pub(super) fn runs(&self) -> Vec<Planned> {
        let mut random = fastrand::Rng::with_seed(self.seed);
        let rounds = (0..self.rounds).flat_map(|_| {
            let mut round = one_round();
            random.shuffle(&mut round);
            round
        });
        let seeded = |(index, (shape, arm)): (u64, (usize, Arm))| Planned {
            shape,
            arm,
            seed: self.seed.wrapping_mul(1_000_003).wrapping_add(index),
        };
        (1..).zip(rounds).map(seeded).collect()
    }

    /// CPU time of an unsampled run (s).
    pub(super) fn cpu_s(&self) -> f64 {
        self.cpu.as_secs_f64()
    }
}

fn one_round() -> Vec<(usize, Arm)> {
    let arms = RATES_HZ.map(Arm::Fixed).into_iter();
    let arms = arms
        .chain([Arm::Unsampled; UNSAMPLED])
        .chain([Arm::Adaptive; ADAPTIVE])
        .chain([Arm::Default; DEFAULT]);
    arms.flat_map(|arm| (0..SHAPES.len()).map(move |shape| (shape, arm))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn design(seed: u64) -> Design {
        Design { rounds: 2, cpu: Duration::from_secs(1), seed }
    }

    #[test]
    fn shares_are_shares() {
        for shape in SHAPES {
            assert!((shape.shares().iter().sum::<f64>() - 1.0).abs() < 1e-12);
            assert!(shape.shares().is_sorted_by(|a, b| a >= b));
            let all: u32 = shape.weights.iter().sum();
            assert_eq!(CALLS_UNIT % u64::from(all), 0);
        }
    }

    #[test]
    fn every_round_has_every_run_in_an_order_of_its_own() {
        let runs = design(1).runs();
        let (first, second) = runs.split_at(runs.len() / 2);
        let count = |round: &[Planned], shape, arm| {
            round.iter().filter(|run| run.shape == shape && run.arm == arm).count()
        };
        for round in [first, second] {
            for shape in 0..SHAPES.len() {
                assert!(RATES_HZ.iter().all(|rate| count(round, shape, Arm::Fixed(*rate)) == 1));
                assert_eq!(count(round, shape, Arm::Unsampled), UNSAMPLED);
                assert_eq!(count(round, shape, Arm::Adaptive), ADAPTIVE);
            }
        }
        let order =
            |round: &[Planned]| round.iter().map(|run| (run.shape, run.arm.name())).collect::<Vec<_>>();
        assert_ne!(order(first), order(second));
        assert_eq!(runs, design(1).runs());
        assert_ne!(runs, design(2).runs());
    }
}
