//! One-time costs, like reading an object's unwind tables, that are charged over the following minutes.

/// Time constant over which they are charged (ns).
const MINUTE_NS: f64 = 60e9;

/// CPU time that was spent at once and is charged to a budget bit by bit.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SetUp {
    owed_ns: f64,
}

impl SetUp {
    /// The rate at which it is charged now (CPUs).
    pub(super) fn due_cpus(&self) -> f64 {
        self.owed_ns / MINUTE_NS
    }

    /// Takes in `spent_ns` of set-up in the last `wall_ns`. Returns how much of it is not charged now (ns); negative if
    /// more of earlier set-up is due now than was newly spent.
    pub(super) fn put_off_ns(&mut self, wall_ns: f64, spent_ns: f64) -> f64 {
        let due_ns = self.owed_ns * (wall_ns / MINUTE_NS).clamp(0.0, 1.0);
        self.owed_ns += spent_ns - due_ns;
        spent_ns - due_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_up_is_charged_over_minutes_and_all_of_it() {
        let mut set_up = SetUp::default();
        let step = |set_up: &mut SetUp, spent_ns: f64| spent_ns - set_up.put_off_ns(0.1e9, spent_ns);
        assert_eq!(step(&mut set_up, 60e6), 0.0);
        let minute: f64 = (0..600).map(|_| step(&mut set_up, 0.0)).sum();
        assert!((37e6..39e6).contains(&minute), "{minute}");
        let rest: f64 = (0..6_000).map(|_| step(&mut set_up, 0.0)).sum();
        assert!((minute + rest - 60e6).abs() < 1e4);
        // After a pause of hours all of it is due, once.
        set_up.put_off_ns(0.1e9, 5e6);
        assert!(
            (set_up.put_off_ns(1e13, 0.0) + 5e6).abs() < 1e4 && set_up.put_off_ns(1e13, 0.0).abs() < 1e-6
        );
    }
}
