//! Time ranges, and how far others cover them (ms).

/// A span; its end is outside.
pub(super) type Span = (u64, u64);

/// Disjoint time ranges, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Spans(Vec<Span>);

impl Spans {
    /// The union of these; gaps of at most `tolerance_ms` are closed.
    pub(super) fn of(mut spans: Vec<Span>, tolerance_ms: u64) -> Spans {
        spans.retain(|(from, to)| from < to);
        spans.sort_unstable();
        let mut joined: Vec<Span> = Vec::new();
        for (from, to) in spans {
            match joined.last_mut() {
                Some(last) if from <= last.1 + tolerance_ms => last.1 = last.1.max(to),
                _ => joined.push((from, to)),
            }
        }
        Spans(joined)
    }

    /// The part of these that none of the others covers.
    pub(super) fn without(&self, others: &Spans) -> Spans {
        let mut left = Vec::new();
        for &(start, to) in &self.0 {
            let mut from = start;
            for &(begin, end) in others.0.iter().filter(|(begin, end)| *begin < to && *end > start) {
                if begin > from {
                    left.push((from, begin));
                }
                from = end;
            }
            if from < to {
                left.push((from, to));
            }
        }
        Spans(left)
    }

    /// The ranges, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = Span> {
        self.0.iter().copied()
    }

    /// Their total length.
    pub(super) fn length_ms(&self) -> u64 {
        self.iter().map(|(from, to)| to - from).sum()
    }
}

/// Time that is in more than one of these, except where neighbours overlap by rounding.
pub(super) fn shared_ms(mut spans: Vec<Span>, tolerance_ms: u64) -> u64 {
    spans.sort_unstable();
    let (mut shared, mut reached) = (0, 0);
    for (from, to) in spans {
        let both = to.min(reached).saturating_sub(from);
        shared += if both > tolerance_ms { both } else { 0 };
        reached = reached.max(to);
    }
    shared
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_what_no_other_covers() {
        let all = Spans::of(vec![(0, 10), (20, 30), (10, 12)], 0);
        assert_eq!(all.iter().collect::<Vec<_>>(), [(0, 12), (20, 30)]);
        let others = Spans::of(vec![(3, 5), (8, 22), (29, 40)], 0);
        assert_eq!(all.without(&others).iter().collect::<Vec<_>>(), [(0, 3), (5, 8), (22, 29)]);
        assert_eq!(all.without(&Spans::default()), all);
        assert_eq!(all.without(&all).length_ms(), 0);
    }

    #[test]
    fn small_gaps_are_none_where_clocks_are_rounded() {
        let windows = Spans::of(vec![(0, 100), (103, 200), (210, 300)], 5);
        assert_eq!(windows.iter().collect::<Vec<_>>(), [(0, 200), (210, 300)]);
    }

    #[test]
    fn time_that_is_counted_twice_is_found() {
        assert_eq!(shared_ms(vec![(0, 10), (9, 20), (20, 30)], 2), 0);
        assert_eq!(shared_ms(vec![(0, 100), (10, 20), (90, 120)], 2), 20);
    }
}
