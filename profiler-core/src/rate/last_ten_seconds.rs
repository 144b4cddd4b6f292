//! Figures of the last ten seconds, over which budgets are kept: each time that ends now can be summed up.

use std::collections::VecDeque;

/// The longest window over which a budget is judged (ns).
pub(super) const TEN_SECONDS_NS: f64 = 10e9;
/// Spans shorter than this are merged with the next, which bounds the history (ns).
pub(super) const MERGE_NS: f64 = 50e6;

/// Figures of a span of time.
pub(super) trait SpanFigures: Copy + Default {
    /// Its length (ns).
    fn wall_ns(&self) -> f64;

    /// Adds the figures of another span.
    fn add(&mut self, other: Self);
}

/// The spans of the last ten seconds.
#[derive(Clone, Debug, Default)]
pub(super) struct LastTenSeconds<S> {
    /// Oldest first.
    spans: VecDeque<S>,
}

impl<S: SpanFigures> LastTenSeconds<S> {
    /// Takes in the time since the last call, and forgets what is older than ten seconds.
    pub(super) fn book(&mut self, span: S) {
        match self.spans.back_mut().filter(|last| last.wall_ns() < MERGE_NS) {
            Some(last) => last.add(span),
            None => self.spans.push_back(span),
        }
        let mut held_ns: f64 = self.spans.iter().map(S::wall_ns).sum();
        while let Some(first) = self.spans.front().filter(|first| held_ns - first.wall_ns() >= TEN_SECONDS_NS)
        {
            held_ns -= first.wall_ns();
            self.spans.pop_front();
        }
    }

    /// The spans, the latest first.
    pub(super) fn latest_first(&self) -> impl Iterator<Item = &S> {
        self.spans.iter().rev()
    }

    /// The sums of all windows that end now, the shortest first.
    pub(super) fn windows(&self) -> impl Iterator<Item = S> {
        self.latest_first().scan(S::default(), |window, span| {
            window.add(*span);
            Some(*window)
        })
    }

    /// The sum of everything that is remembered: ten seconds, or the run while it is shorter.
    pub(super) fn held(&self) -> S {
        self.windows().last().unwrap_or_default()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.spans.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Default)]
    struct Counted {
        wall_ns: f64,
        count: u32,
    }

    impl SpanFigures for Counted {
        fn wall_ns(&self) -> f64 {
            self.wall_ns
        }

        fn add(&mut self, other: Self) {
            self.wall_ns += other.wall_ns;
            self.count += other.count;
        }
    }

    #[test]
    fn ten_seconds_are_remembered_in_spans_of_a_twentieth_of_a_second_at_least() {
        let mut last = LastTenSeconds::default();
        for _ in 0..3_000 {
            last.book(Counted { wall_ns: 10e6, count: 1 });
        }
        assert!(last.len() <= 201, "{}", last.len());
        let held = last.held();
        assert!((10e9..10.1e9).contains(&held.wall_ns), "{}", held.wall_ns);
        assert_eq!(f64::from(held.count), held.wall_ns / 10e6);
        let windows: Vec<Counted> = last.windows().collect();
        assert!(windows.is_sorted_by(|a, b| a.wall_ns < b.wall_ns && a.count < b.count));
        assert_eq!(windows.len(), last.latest_first().count());
    }

    #[test]
    fn a_long_span_is_all_that_is_remembered() {
        let mut last = LastTenSeconds::default();
        last.book(Counted { wall_ns: 1e9, count: 1 });
        last.book(Counted { wall_ns: 60e9, count: 1 });
        assert_eq!((last.len(), last.held().count), (1, 1));
    }
}
