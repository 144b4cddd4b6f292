//! What was lost when a ring was full: the kernel counts records, and does not say of which kind.

use super::Session;

/// Clocks that are renewed take samples twice for a moment, and periods are random.
const MARGIN: u64 = 2;
/// So many samples are always thought possible.
const FEW: u64 = 16;

impl Session {
    /// Of the records that were lost since the last call, at most so many were samples, with some margin; the others told of
    /// mappings and tasks. A lost sample interrupted the target, and is made up for by its neighbours; of a lost mapping, neither
    /// is true.
    pub(crate) fn judge_lost(&mut self, samples: u64) {
        let lost = self.counts.lost.saturating_sub(self.judged_lost);
        let others = lost.saturating_sub(MARGIN * samples + FEW);
        self.counts.lost -= others;
        self.counts.lost_others += others;
        self.judged_lost = self.counts.lost;
    }
}

#[cfg(test)]
mod tests {
    use profiler_core::record::Record;
    use profiler_core::unwind::method::{Method, MethodChoice};

    use super::*;
    use crate::objects::Symbols;
    use crate::sampler::perf::Drained;

    fn lose(session: &mut Session, count: u64) {
        session.handle(Drained::Record(Record::Lost { count }, 0));
    }

    #[test]
    fn no_more_samples_were_lost_than_there_can_have_been() {
        let mut session = Session::new(MethodChoice::fixed(Method::Fp), &Symbols::new(1 << 20));
        lose(&mut session, 100);
        session.judge_lost(50);
        assert_eq!((session.counts.lost, session.counts.lost_others), (100, 0));
        lose(&mut session, 30_000);
        session.judge_lost(50);
        assert_eq!((session.counts.lost, session.counts.lost_others), (216, 29_884));
        session.judge_lost(0);
        assert_eq!(session.counts.lost, 216, "what was judged is judged");
    }
}
