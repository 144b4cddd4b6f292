//! What was lost because a ring was full. The kernel counts lost records but not their kind, so no more of them
//! are taken for samples than the clocks can have taken: charged as samples, the mapping records of a burst of
//! short processes would throttle everything.

use super::{Counts, Session};

/// Clocks sample twice for a moment when they are renewed, and periods are random.
const MARGIN: u64 = 2;
/// This many lost samples are always considered possible.
const FEW: u64 = 16;

/// CPU time of lost samples, estimated from the samples around them: the rate may have differed in the rest of the
/// window.
#[derive(Default)]
pub(super) struct Losses {
    /// Records that were lost since the last judgement. They are in no count before it.
    pub(super) unjudged: u64,
    /// Counts at the last judgement.
    judged: Counts,
    /// The interval between the last two steps, and the open one since. A ring tells what it lost when there is room again:
    /// in the interval after, as a rule.
    closed: Interval,
    open: Interval,
    /// The most samples per second that the clocks can take.
    most_hz: f64,
    /// What the samples since then stand for (ns).
    since_ns: f64,
    /// Lost samples without a received sample near them so far.
    unweighed: u64,
    /// What the samples of this window stand for (ns).
    taken_ns: f64,
    /// What those that it lost would have stood for (ns).
    lost_ns: f64,
}

/// Time between two steps.
#[derive(Clone, Copy, Default)]
struct Interval {
    start_ns: u64,
    /// Lost records that were taken for samples in it.
    lost: u64,
}

impl Losses {
    /// No losses yet; until the highest rate is set, any number is possible.
    pub(super) fn since(start_ns: u64) -> Self {
        let open = Interval { start_ns, lost: 0 };
        Self { closed: open, open, most_hz: f64::INFINITY, ..Self::default() }
    }

    /// How many more lost records may be samples: of the open interval up to `now_ns`, and of the one before.
    fn most_lost(&self, now_ns: u64) -> u64 {
        let elapsed_ns = now_ns.max(self.open.start_ns).saturating_sub(self.closed.start_ns);
        let samples = (elapsed_ns as f64 * 1e-9 * self.most_hz) as u64; // 0 if no time has passed
        let most = MARGIN.saturating_mul(samples).saturating_add(FEW);
        most.saturating_sub(self.closed.lost + self.open.lost)
    }

    /// A step ends the open interval.
    fn end_interval(&mut self, now_ns: u64) {
        let start_ns = now_ns.max(self.open.start_ns);
        self.closed = std::mem::replace(&mut self.open, Interval { start_ns, lost: 0 });
    }

    /// A sample was taken, of the target or of non-target processes.
    pub(super) fn took(&mut self, weight_ns: u64) {
        self.since_ns += weight_ns as f64;
    }

    /// Returns the factor that makes this window's samples stand for its lost ones too, as counted by `split_lost` so
    /// far, and starts the next window.
    pub(super) fn end_window(&mut self) -> f64 {
        let (taken_ns, lost_ns) = (std::mem::take(&mut self.taken_ns), std::mem::take(&mut self.lost_ns));
        if taken_ns > 0.0 { 1.0 + lost_ns / taken_ns } else { 1.0 }
    }

    fn weigh(&mut self, counts: &Counts, lost: u64) {
        let since = counts.since(&self.judged);
        let taken = since.samples + since.foreign;
        self.unweighed += lost;
        if taken > 0 {
            self.lost_ns += std::mem::take(&mut self.unweighed) as f64 * self.since_ns / taken as f64;
        }
        self.taken_ns += std::mem::take(&mut self.since_ns);
        self.judged = *counts;
    }
}

impl Session {
    /// Sets the most samples per second that the clocks can take, if every CPU is busy with the target.
    pub(crate) fn set_most_hz(&mut self, most_hz: f64) {
        self.losses.most_hz = most_hz;
    }

    /// A step: splits the records lost since the last call or the last window's end.
    pub(crate) fn judge_lost(&mut self, now_ns: u64) {
        self.split_lost(now_ns);
        self.losses.end_interval(now_ns);
    }

    /// Splits the records lost so far. Up to `MARGIN` times the samples that the clocks can have taken, plus `FEW`, count as
    /// samples, the rest as other records: mappings and tasks. A lost sample interrupted the target, and the samples around
    /// it stand for its time; neither is true of a lost mapping.
    ///
    /// While clocks are renewed, two of them sample the same time for a moment. Of the lost samples, the share that
    /// was doubled among the received ones counts as doubled: a cost without weight.
    pub(super) fn split_lost(&mut self, now_ns: u64) {
        let since = self.counts.since(&self.losses.judged);
        let unjudged = std::mem::take(&mut self.losses.unjudged);
        let lost = unjudged.min(self.losses.most_lost(now_ns));
        let others = unjudged - lost;
        let (taken, doubled) = (since.samples + since.foreign, since.doubled);
        let double = lost * doubled / (taken + doubled).max(1);
        self.losses.open.lost += lost;
        self.counts.lost += lost - double;
        self.counts.lost_others += others;
        self.counts.doubled += double;
        self.losses.weigh(&self.counts, lost - double);
    }
}

#[cfg(test)]
mod tests {
    use profiler_core::record::Record;
    use profiler_core::unwind::method::{Method, MethodChoice};

    use super::*;
    use crate::objects::Symbols;
    use crate::sampler::source::Drained;

    const SECOND_NS: u64 = 1_000_000_000;

    fn lose(session: &mut Session, count: u64) {
        session.handle(Drained::Record(Record::Lost { count }, 0));
    }

    /// A lost sample counts as those around it, and one that was taken twice for nothing.
    #[test]
    fn what_is_lost_counts_as_its_neighbours_do() {
        let mut counts = Counts { samples: 10, ..Counts::default() };
        let mut losses = Losses::default();
        (0..10).for_each(|_| losses.took(100));
        losses.weigh(&counts, 10);
        counts.samples += 10;
        (0..10).for_each(|_| losses.took(900));
        losses.weigh(&counts, 0);
        assert!((losses.end_window() - 1.1).abs() < 1e-12, "1,000 of 10,000 ns were lost");
        losses.weigh(&counts, 3); // with no sample beside them
        counts.samples += 1;
        losses.took(100);
        losses.weigh(&counts, 0);
        assert!((losses.end_window() - 4.0).abs() < 1e-12);
        assert!((losses.end_window() - 1.0).abs() < 1e-12);
    }

    #[test]
    fn of_what_is_lost_while_two_clocks_run_half_is_nothing_to_be_made_up_for() {
        let mut session = Session::new(MethodChoice::fixed(Method::Fp), &Symbols::new(1 << 20));
        (session.counts.samples, session.counts.doubled) = (20, 20);
        session.set_most_hz(50.0);
        lose(&mut session, 30);
        session.judge_lost(SECOND_NS);
        assert_eq!((session.counts.lost, session.counts.doubled), (15, 35));
        lose(&mut session, 30);
        session.judge_lost(2 * SECOND_NS);
        assert_eq!((session.counts.lost, session.counts.doubled), (45, 35), "they have been renewed");
    }

    /// Between two steps others look at the counts, and theirs do not go back.
    #[test]
    fn a_count_of_lost_samples_never_falls() {
        let mut session = Session::new(MethodChoice::fixed(Method::Fp), &Symbols::new(1 << 20));
        session.set_most_hz(50.0);
        let mut counts = Vec::new();
        for second in 1..4 {
            lose(&mut session, 30_000);
            counts.push(session.counts.lost);
            session.judge_lost(second * SECOND_NS);
            counts.push(session.counts.lost);
        }
        assert!(counts.is_sorted() && counts[0] == 0 && counts[5] < 1_000, "{counts:?}");
    }

    #[test]
    fn no_more_samples_were_lost_than_there_can_have_been() {
        let mut session = Session::new(MethodChoice::fixed(Method::Fp), &Symbols::new(1 << 20));
        session.set_most_hz(50.0);
        lose(&mut session, 100);
        session.judge_lost(SECOND_NS);
        assert_eq!((session.counts.lost, session.counts.lost_others), (100, 0));
        lose(&mut session, 30_000);
        session.judge_lost(2 * SECOND_NS);
        assert_eq!((session.counts.lost, session.counts.lost_others), (216, 29_884));
        session.judge_lost(SECOND_NS); // a clock that runs backwards
        assert_eq!(session.counts.lost, 216, "what was judged is judged");
    }

    /// The ring tells so after the step that could read it again, and the windows that end meanwhile lie in the past.
    #[test]
    fn what_was_lost_in_a_long_standstill_was_samples() {
        let mut session = Session::new(MethodChoice::fixed(Method::Fp), &Symbols::new(1 << 20));
        session.set_most_hz(50.0);
        session.judge_lost(SECOND_NS);
        session.judge_lost(13 * SECOND_NS);
        lose(&mut session, 600);
        session.split_lost(2 * SECOND_NS);
        session.split_lost(3 * SECOND_NS);
        session.judge_lost(13 * SECOND_NS + SECOND_NS / 10);
        assert_eq!((session.counts.lost, session.counts.lost_others), (600, 0));
        lose(&mut session, 30_000);
        session.judge_lost(14 * SECOND_NS);
        assert!(session.counts.lost <= 2 * 600 + 2 * 50 + 2 * 16, "{}", session.counts.lost);
    }
}
