//! Which targets are left out if there are too many, by their recent activity.

/// A left-out target has to be this many times as active as the least active sampled one to replace it.
const CLEARLY_MORE: u64 = 2;

/// The candidates.
#[derive(Debug)]
pub(super) struct Standing<T> {
    /// Sampled targets, with the CPU time that each used recently (ns).
    pub(super) sampled: Vec<(T, u64)>,
    /// Left-out targets that have processes.
    pub(super) left_out: Vec<(T, u64)>,
    /// How many others are about to be sampled.
    pub(super) coming: usize,
}

/// The decision.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ranking<T> {
    pub(super) leave_out: Vec<T>,
    pub(super) let_in: Vec<T>,
}

impl<T: Copy> Standing<T> {
    /// Decides which targets are sampled, of which there may be `most`. The least active leave while there are too
    /// many; others enter if there is room, `at_once` at most; and one that is clearly more active than a sampled one
    /// takes its place.
    pub(super) fn rank(mut self, most: usize, at_once: usize) -> Ranking<T> {
        self.sampled.sort_by_key(|(_, activity_ns)| *activity_ns);
        self.left_out.sort_by_key(|(_, activity_ns)| std::cmp::Reverse(*activity_ns));
        let too_many = self.sampled.len().saturating_sub(most);
        if too_many > 0 {
            let leave_out = self.sampled.iter().take(too_many).map(|(id, _)| *id).collect();
            return Ranking { leave_out, let_in: Vec::new() };
        }
        let room = most.saturating_sub(self.sampled.len() + self.coming).min(at_once);
        let mut ranking = Ranking {
            leave_out: Vec::new(),
            let_in: self.left_out.iter().take(room).map(|(id, _)| *id).collect(),
        };
        if let (0, Some(least), Some(best)) = (room, self.sampled.first(), self.left_out.first())
            && at_once > 0
            && best.1 > CLEARLY_MORE * least.1
        {
            ranking.leave_out.push(least.0);
            ranking.let_in.push(best.0);
        }
        ranking
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing(sampled: &[(u32, u64)], left_out: &[(u32, u64)]) -> Standing<u32> {
        Standing { sampled: sampled.to_vec(), left_out: left_out.to_vec(), coming: 0 }
    }

    fn ranking(leave_out: &[u32], let_in: &[u32]) -> Ranking<u32> {
        Ranking { leave_out: leave_out.to_vec(), let_in: let_in.to_vec() }
    }

    #[test]
    fn the_least_active_gives_way_to_one_that_is_clearly_more_active() {
        let three = [(1, 500), (2, 40), (3, 300)];
        let rank = |activity_ns| standing(&three, &[(9, activity_ns), (8, 1)]).rank(3, 9);
        assert_eq!(rank(81), ranking(&[2], &[9]));
        assert_eq!(rank(80), ranking(&[], &[]));
    }

    #[test]
    fn a_limit_that_was_lowered_or_raised_is_carried_out_whole() {
        let sampled = [(1, 500), (2, 40), (3, 300), (4, 10)];
        assert_eq!(standing(&sampled, &[(9, 1_000)]).rank(1, 9), ranking(&[4, 2, 3], &[]));
        assert_eq!(standing(&sampled, &[(9, 1), (8, 7), (7, 3)]).rank(6, 9), ranking(&[], &[8, 7]));
        let coming = Standing { coming: 1, ..standing(&sampled, &[(9, 1), (8, 7)]) };
        assert_eq!(coming.rank(6, 9), ranking(&[], &[8]));
        assert_eq!(standing(&[], &[]).rank(0, 9), ranking(&[], &[]));
    }

    /// Memory that was short may be so again.
    #[test]
    fn no_more_come_at_once_than_are_wanted() {
        let left_out = [(9, 5), (8, 7), (7, 3)];
        assert_eq!(standing(&[(1, 0)], &left_out).rank(10, 1), ranking(&[], &[8]));
        assert_eq!(standing(&[(1, 0)], &left_out).rank(1, 0), ranking(&[], &[]));
    }
}
