//! When a runtime is queried again.

const SECOND_NS: u64 = 1_000_000_000;
/// Between two queries of a runtime, if nothing happens (ns).
const USUAL_NS: u64 = 30 * SECOND_NS;
/// The same where a container has no name yet (ns).
const URGENT_NS: u64 = 2 * SECOND_NS;
/// Pause after a failure; it doubles with each further one (ns).
const FIRST_REST_NS: u64 = 5 * SECOND_NS;
const LONGEST_REST_NS: u64 = 300 * SECOND_NS;

/// When a runtime is queried again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct QuerySchedule {
    /// When it was asked last (ns).
    asked_ns: Option<u64>,
    /// For how long it is left alone after that, since it failed (ns).
    rest_ns: u64,
}

impl QuerySchedule {
    /// When it is due (ns).
    pub(super) fn due_ns(&self, is_urgent: bool) -> u64 {
        let Some(asked_ns) = self.asked_ns else { return 0 };
        let pause_ns = match self.rest_ns {
            0 if is_urgent => URGENT_NS,
            0 => USUAL_NS,
            rest_ns => rest_ns,
        };
        asked_ns.saturating_add(pause_ns)
    }

    /// It was asked at this time, and answered or not.
    pub(super) fn asked(&mut self, now_ns: u64, has_answered: bool) {
        self.asked_ns = Some(now_ns);
        self.rest_ns = match self.rest_ns {
            _ if has_answered => 0,
            0 => FIRST_REST_NS,
            rest_ns => rest_ns.saturating_mul(2).min(LONGEST_REST_NS),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_answers_is_asked_every_half_minute_or_soon_if_names_are_missing() {
        let mut schedule = QuerySchedule::default();
        assert_eq!(schedule.due_ns(false), 0);
        schedule.asked(7 * SECOND_NS, true);
        assert_eq!((schedule.due_ns(false), schedule.due_ns(true)), (37 * SECOND_NS, 9 * SECOND_NS));
    }

    #[test]
    fn who_fails_is_left_alone_for_longer_and_longer_also_if_names_are_missing() {
        let mut schedule = QuerySchedule::default();
        let mut rests = Vec::new();
        for _ in 0..9 {
            schedule.asked(0, false);
            assert_eq!(schedule.due_ns(true), schedule.due_ns(false));
            rests.push(schedule.due_ns(true) / SECOND_NS);
        }
        assert_eq!(rests, [5, 10, 20, 40, 80, 160, 300, 300, 300]);
        schedule.asked(0, true);
        assert_eq!(schedule.due_ns(true), URGENT_NS);
        schedule.asked(0, false);
        assert_eq!(schedule.due_ns(true), FIRST_REST_NS);
    }
}
