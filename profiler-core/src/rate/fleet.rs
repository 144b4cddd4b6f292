//! One optimum for a fleet: replicas of one service are one program, on however many hosts they run.
//!
//! R is the CPU time that a service uses on all hosts over what it uses in the replica here. The profile of all of them sums up R·W
//! CPU-seconds while this replica's sums up W. At the same rate everywhere it is off by
//!
//! ```text
//! bias = λ·o        deviation = S / √(λ·R·W)        λ* = ( r·S / (o·√(R·W)) )^(2/3)
//! ```
//!
//! so each replica samples R^(−1/3) times as often as one alone, and the error of the sum is R^(−1/3) times that of one.
//!
//! **Beside other targets.** Where a host's budget is short, what counts is how much a sample here takes off the error of the
//! sum. The error is scored in CPU-seconds, so a service of R replicas matters R times as much as one of them; but one
//! replica's rate changes only an R-th part of it. The derivative of R·w·(o·mean(λ) + A·√(mean(1/λ)/R)) by one of the rates,
//! where all are equal, is w·(o − (A/√R)/(2·λ^(3/2))). That is the derivative of
//!
//! ```text
//! w·( o·λ + (A/√R)/√λ )
//! ```
//!
//! the loss of a target of the same weight w whose A is smaller by √R ([`super::budget_division`]).
//!
//! **Under one common rate.** Targets that share a sampler have one λ. Scored in CPU-seconds again, target i of c_i CPUs loses
//! c_i·(o·λ + A/√(R_i·λ)); the sum is that of one target of A·Σ(c_i/√R_i)/Σc_i, so that they follow the law for
//!
//! ```text
//! R = ( Σc_i / Σ(c_i/√R_i) )²
//! ```
//!
//! A small target of a large fleet then hardly lowers the rate of a large one that has no replica.

/// Upper limit for R: the rate is then a hundredth of that of a single instance.
const MOST: f64 = 1e6;
/// A replica that uses less than this (CPUs) is taken to use this: what it is a part of would follow its noise.
const LEAST_CPUS: f64 = 0.01;
/// Two measurements of the same CPU time, at different moments, agree within this factor.
const AGREES: f64 = 0.9;

/// R: the CPU time of a service over that of one replica of it; 1 to 1,000,000.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Replicas(f64);

/// Why a figure of a fleet's CPU time is not believed.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum NotBelieved {
    /// It is negative, infinite or no number.
    #[error("it is not an amount of CPU time")]
    NoAmount,
    /// It is less than the replica here uses alone.
    #[error("it is {fleet_cpus:.2} CPUs, less than the {here_cpus:.2} that are used here alone")]
    LessThanHere {
        /// What the fleet is said to use.
        fleet_cpus: f64,
        /// What is used here.
        here_cpus: f64,
    },
}

/// CPUs that a replica uses.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// CPU time over the time that the fleet's figure is of (s per s).
    pub counted_cpus: f64,
    /// Its CPU time since it began, if that was within that period (s per s): what it uses from now on.
    pub present_cpus: f64,
}

impl Default for Replicas {
    fn default() -> Self {
        Self::ONE
    }
}

impl Replicas {
    /// A fleet of one.
    pub const ONE: Self = Self(1.0);

    /// `replicas`, clamped; 1 for a value that is not a number.
    pub fn new(replicas: f64) -> Self {
        if replicas.is_nan() { Self::ONE } else { Self(replicas.clamp(1.0, MOST)) }
    }

    /// Those of a fleet that uses `fleet_cpus`, for the replica that uses `here` of it.
    ///
    /// # Errors
    /// Where the figure can't be right.
    pub fn of(fleet_cpus: f64, here: Usage) -> Result<Self, NotBelieved> {
        if !(fleet_cpus.is_finite() && fleet_cpus >= 0.0) {
            return Err(NotBelieved::NoAmount);
        }
        let [counted_cpus, present_cpus] = [here.counted_cpus, here.present_cpus].map(|cpus| cpus.max(0.0));
        if fleet_cpus < AGREES * counted_cpus {
            return Err(NotBelieved::LessThanHere { fleet_cpus, here_cpus: counted_cpus });
        }
        // A replica that has just begun is in the fleet's figure with a part of what it will be.
        let others_cpus = (fleet_cpus - counted_cpus).max(0.0);
        Ok(Self::new(1.0 + others_cpus / present_cpus.max(LEAST_CPUS)))
    }

    /// The replicas that targets with one common rate follow, from each target's use (CPUs) and replicas.
    pub fn common(targets: impl IntoIterator<Item = (f64, Self)>) -> Self {
        let used = targets.into_iter().filter(|(cpus, _)| cpus.is_finite() && *cpus > 0.0);
        let (all, left) =
            used.fold((0.0, 0.0), |(all, left), (cpus, of)| (all + cpus, left + cpus / of.0.sqrt()));
        if left > 0.0 { Self::new((all / left).powi(2)) } else { Self::ONE }
    }

    /// R.
    pub fn get(self) -> f64 {
        self.0
    }

    /// R^(−1/3): the rate of each replica over that of a single instance, and likewise the error of their common
    /// profile.
    pub fn rate_ratio(self) -> f64 {
        self.0.cbrt().recip()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn steady(cpus: f64) -> Usage {
        Usage { counted_cpus: cpus, present_cpus: cpus }
    }

    fn near(value: f64, expected: f64) {
        assert!((value / expected - 1.0).abs() < 1e-9, "{value} is not {expected}");
    }

    #[test]
    fn a_replica_is_one_of_as_many_as_use_as_much() {
        near(Replicas::of(12.0, steady(2.0)).unwrap().get(), 6.0);
        near(Replicas::of(10_000.0, steady(1.0)).unwrap().get(), 10_000.0);
        near(Replicas::new(1_000.0).rate_ratio(), 0.1);
        // One that uses half as much as the others is the smaller part of them.
        near(Replicas::of(11.0, steady(0.5)).unwrap().get(), 22.0);
    }

    #[test]
    fn what_cannot_be_is_not_believed() {
        for fleet_cpus in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0] {
            assert_eq!(Replicas::of(fleet_cpus, steady(1.0)), Err(NotBelieved::NoAmount), "{fleet_cpus}");
        }
        let less = Replicas::of(0.5, steady(1.0)).unwrap_err();
        assert_eq!(less, NotBelieved::LessThanHere { fleet_cpus: 0.5, here_cpus: 1.0 });
        // The two are measured at different moments.
        assert_eq!(Replicas::of(0.95, steady(1.0)), Ok(Replicas::ONE));
        assert_eq!([f64::NAN, 0.0, -7.0].map(Replicas::new), [Replicas::ONE; 3]);
    }

    #[test]
    fn a_replica_that_has_just_begun_counts_as_what_it_uses_now() {
        // A minute of the five that the figure is of, beside nine that ran all the time.
        let begun = Usage { counted_cpus: 0.2, present_cpus: 1.0 };
        near(Replicas::of(9.2, begun).unwrap().get(), 10.0);
    }

    #[test]
    fn an_idle_replica_does_not_divide_by_nothing() {
        near(Replicas::of(10.0, steady(0.0)).unwrap().get(), 1_001.0);
        near(Replicas::of(1e300, steady(0.0)).unwrap().get(), MOST);
        assert_eq!(Replicas::of(0.0, steady(0.0)), Ok(Replicas::ONE));
    }

    #[test]
    fn a_small_target_of_a_large_fleet_hardly_moves_the_common_rate() {
        assert_eq!(Replicas::common([]), Replicas::ONE);
        assert_eq!(
            Replicas::common([(0.0, Replicas::new(9.0)), (f64::NAN, Replicas::new(9.0))]),
            Replicas::ONE
        );
        near(Replicas::common([(1.0, Replicas::new(64.0)), (5.0, Replicas::new(64.0))]).get(), 64.0);
        let common = Replicas::common([(0.1, Replicas::new(10_000.0)), (3.9, Replicas::ONE)]);
        assert!(common.get() < 1.06, "{common:?}");
    }

    proptest! {
        /// The rate for the common number makes the sum of the losses least.
        #[test]
        fn the_common_rate_loses_least(targets in prop::collection::vec((0.01..8.0, 1.0..10_000.0), 1..6)) {
            let (o, a) = (15e-6, 0.4);
            let loss = |hz: f64| targets.iter().map(|(cpus, of): &(f64, f64)| cpus * (o * hz + a / (of * hz).sqrt())).sum::<f64>();
            let common = Replicas::common(targets.iter().map(|&(cpus, of)| (cpus, Replicas::new(of))));
            let best_hz = (a / (2.0 * o * common.get().sqrt())).powf(2.0 / 3.0);
            for factor in [0.5, 0.9, 0.99, 1.01, 1.1, 2.0] {
                prop_assert!(loss(best_hz) <= loss(best_hz * factor) * (1.0 + 1e-12));
            }
            let (least, most) = targets.iter().fold((f64::MAX, 0.0_f64), |(least, most), (_, of)| (least.min(*of), most.max(*of)));
            prop_assert!((0.999 * least..=1.001 * most).contains(&common.get()));
        }

        #[test]
        fn any_figure_gives_a_number_of_replicas_or_none(fleet: f64, counted: f64, present: f64) {
            if let Ok(replicas) = Replicas::of(fleet, Usage { counted_cpus: counted, present_cpus: present }) {
                prop_assert!((1.0..=MOST).contains(&replicas.get()), "{replicas:?}");
            }
        }
    }
}
