//! One time order over the rings of all CPUs.

use crate::record::{RawRecord, RecordFormat};

/// A ring buffer seen as a queue of records, oldest first.
pub trait RecordQueue {
    /// The oldest record that is still in the queue.
    fn front(&mut self) -> Option<RawRecord<'_>>;
    /// Removes the oldest record.
    fn pop(&mut self);
}

/// Hands every record made until `until_ns` to `handle`, with the index of its queue, oldest first over all queues, without copying
/// one.
///
/// Records are merged where they lie. A record that is younger than `until_ns` stays in its ring for the next
/// round: by then, everything older on the other CPUs has been written as well. A record without a time
/// (damaged) is handed over at once.
pub fn drain_in_order<Q: RecordQueue>(
    queues: &mut [Q],
    format: &RecordFormat,
    until_ns: u64,
    mut handle: impl FnMut(usize, RawRecord<'_>),
) {
    let time = |queue: &mut Q| queue.front().map(|record| record.time_ns(format).unwrap_or(0));
    let mut fronts: Vec<Option<u64>> = queues.iter_mut().map(time).collect();
    while let Some((oldest, at)) = oldest(&fronts) {
        if at > until_ns {
            return;
        }
        if let Some(record) = queues[oldest].front() {
            handle(oldest, record);
        }
        queues[oldest].pop();
        fronts[oldest] = time(&mut queues[oldest]);
    }
}

fn oldest(fronts: &[Option<u64>]) -> Option<(usize, u64)> {
    let present = fronts.iter().enumerate().filter_map(|(i, time)| Some((i, (*time)?)));
    present.min_by_key(|&(_, time)| time)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::RawData;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    /// Records of an unknown type with nothing but the identity behind it.
    struct Times(VecDeque<Vec<u8>>);

    impl Times {
        fn new(times: &[u64]) -> Self {
            let body = |&time: &u64| [1, time, 2, 3, 4].iter().flat_map(|w: &u64| w.to_ne_bytes()).collect();
            Self(times.iter().map(body).collect())
        }
    }

    impl RecordQueue for Times {
        fn front(&mut self) -> Option<RawRecord<'_>> {
            let body = RawData::Single(self.0.front()?);
            Some(RawRecord { kind: 4, misc: 0, body })
        }
        fn pop(&mut self) {
            self.0.pop_front();
        }
    }

    proptest! {
        #[test]
        fn records_come_in_order_and_none_is_lost(
            mut cpus in prop::collection::vec(prop::collection::vec(1u64..10_000, 0..50), 0..6),
            until in 0u64..12_000,
        ) {
            cpus.iter_mut().for_each(|times| times.sort_unstable());
            let format = RecordFormat::new(false);
            let mut queues: Vec<Times> = cpus.iter().map(|times| Times::new(times)).collect();
            let mut seen = Vec::new();
            drain_in_order(&mut queues, &format, until, |_, r| seen.push(r.time_ns(&format).unwrap()));
            let mut expected: Vec<u64> = cpus.concat().into_iter().filter(|&t| t <= until).collect();
            expected.sort_unstable();
            prop_assert_eq!(&seen, &expected);
            let left: usize = queues.iter().map(|queue| queue.0.len()).sum();
            prop_assert_eq!(left, cpus.concat().len() - seen.len());
        }
    }
}
