//! Outer frames that a sample lacks, from an earlier stack of the same thread.
//!
//! A copy ends after some bytes and a chain after some frames, while the outermost functions of a thread stay for long.
//! So the last whole stacks of each thread are kept, and a stack that was cut goes on where one of them agrees
//! with its outermost frames: two return addresses that lie at the same places of the stack; one function at the same place whose
//! return address, which was not copied, would lie at the same place too; or, where places are not known, a run of return
//! addresses that occurs once in the earlier stack.

use rustc_hash::FxHashMap;

use crate::outcome::Outcome;

/// Threads whose stacks are kept; beyond these, the one that was sampled longest ago is forgotten.
const MAX_THREADS: usize = 128;
/// Whole stacks that are kept for a thread.
const STACKS: usize = 8;
/// Frames that are kept of a stack: the outermost ones.
const MAX_FRAMES: usize = 1024;
/// Consecutive frames that must agree in their stack address and their code address.
const PLACED_RUN: usize = 2;
/// Distance from the saved words of a function to its caller's frame (bytes): the return address lies in between.
const SAVED_BYTES: std::ops::RangeInclusive<u64> = 8..=64;
/// Consecutive frames that must agree in their code address, if stack addresses are unknown.
const ADDRESS_RUN: usize = 16;

/// A frame and where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Placed {
    /// Lookup address.
    address: u64,
    /// The stack pointer after its callee has returned; zero if unknown.
    place: u64,
}

/// A stack that was followed, as [`EarlierStacks`] takes it.
#[derive(Debug)]
pub struct Followed<'a> {
    /// Lookup addresses, innermost first.
    pub frames: &'a mut Vec<u64>,
    /// The stack pointer in each frame; empty if unknown.
    pub places: &'a mut Vec<u64>,
    /// Where it was cut: the address of a word that its outermost frame has saved.
    pub unread: Option<u64>,
}

/// A stack as it was found.
#[derive(Clone, Copy, Debug)]
struct UnwoundStack<'a> {
    /// Lookup addresses, innermost first.
    frames: &'a [u64],
    /// The stack pointer in each frame, as far as it is known: of the first ones, or of none.
    places: &'a [u64],
}

impl UnwoundStack<'_> {
    fn placed(&self, at: usize) -> Placed {
        Placed { address: self.frames[at], place: self.places.get(at).copied().unwrap_or(0) }
    }
}

#[derive(Debug, Default)]
struct Thread {
    pid: u32,
    /// The latest last, each with its innermost frame first.
    stacks: Vec<Vec<Placed>>,
    /// When it was sampled last, in samples of all.
    turn: u64,
}

/// The last whole stacks of each thread.
#[derive(Debug, Default)]
pub struct EarlierStacks {
    threads: FxHashMap<u32, Thread>,
    turn: u64,
}

impl EarlierStacks {
    /// Keeps a complete stack; completes one that was cut with the outer frames of an earlier one that agrees with it.
    /// Returns whether it did so: the stack is then complete. `same_function` says whether two lookup addresses lie in
    /// one function.
    pub fn take(
        &mut self,
        (pid, tid): (u32, u32),
        outcome: Outcome,
        stack: Followed<'_>,
        same_function: impl Fn(u64, u64) -> bool,
    ) -> bool {
        let Followed { frames, places, unread } = stack;
        match outcome {
            Outcome::Complete => {
                self.keep(pid, tid, UnwoundStack { frames, places });
                false
            }
            Outcome::CopyTooShort | Outcome::StackAbsent | Outcome::ChainTooLong => {
                let by_slot =
                    |kept: &[Placed], found: UnwoundStack<'_>| by_slot(kept, found, unread?, &same_function);
                let is_whole = self.complete((pid, tid), frames, places, by_slot);
                if is_whole {
                    self.keep(pid, tid, UnwoundStack { frames, places });
                }
                is_whole
            }
            _ => false, // its outermost frame is not reliable
        }
    }

    /// Keeps a whole stack of a thread.
    fn keep(&mut self, pid: u32, tid: u32, found: UnwoundStack<'_>) {
        self.turn += 1;
        if !self.threads.contains_key(&tid) && self.threads.len() >= MAX_THREADS {
            let oldest = self.threads.iter().min_by_key(|(_, thread)| thread.turn).map(|(&tid, _)| tid);
            oldest.map(|tid| self.threads.remove(&tid));
        }
        let thread = self.threads.entry(tid).or_default();
        if thread.pid != pid {
            *thread = Thread { pid, ..Thread::default() };
        }
        thread.turn = self.turn;
        // The vector of the stack that is forgotten is used again.
        let mut stack = if thread.stacks.len() >= STACKS { thread.stacks.remove(0) } else { Vec::new() };
        stack.clear();
        let first = found.frames.len().saturating_sub(MAX_FRAMES);
        stack.extend((first..found.frames.len()).map(|at| found.placed(at)));
        thread.stacks.push(stack);
    }

    /// Completes a stack that was cut with the outer frames of an earlier one, and with their stack addresses if all
    /// are known. Returns whether an earlier stack agrees with it.
    fn complete(
        &self,
        (pid, tid): (u32, u32),
        frames: &mut Vec<u64>,
        places: &mut Vec<u64>,
        by_slot: impl Fn(&[Placed], UnwoundStack<'_>) -> Option<usize>,
    ) -> bool {
        let Some(thread) = self.threads.get(&tid).filter(|thread| thread.pid == pid) else { return false };
        let found = UnwoundStack { frames, places };
        let (stack, from) = {
            let stacks = || thread.stacks.iter().rev();
            let by_place = || stacks().find_map(|stack| Some((stack, by_place(stack, found)?)));
            let by_address = || stacks().find_map(|stack| Some((stack, by_address(stack, found)?)));
            let by_slot = || stacks().find_map(|stack| Some((stack, by_slot(stack, found)?)));
            match by_place().or_else(by_slot).or_else(by_address) {
                Some(outer) => outer,
                None => return false,
            }
        };
        let outer = &stack[from..];
        if places.len() == frames.len() {
            places.extend(outer.iter().map(|frame| frame.place).take_while(|&place| place != 0));
        }
        frames.extend(outer.iter().map(|frame| frame.address));
        true
    }

    /// A thread has ended.
    pub fn forget_thread(&mut self, tid: u32) {
        self.threads.remove(&tid);
    }

    /// A process has ended, or runs another program.
    pub fn forget_process(&mut self, pid: u32) {
        self.threads.retain(|_, thread| thread.pid != pid);
    }
}

/// The outermost `count` frames of a stack, if all are return addresses: the innermost frame is not.
fn outermost(found: UnwoundStack<'_>, count: usize) -> Option<impl Iterator<Item = Placed> + Clone> {
    let first = found.frames.len().checked_sub(count).filter(|&first| first > 0)?;
    Some((first..found.frames.len()).map(move |at| found.placed(at)))
}

/// The index at which a kept stack continues after the outermost frames of another, by stack addresses.
fn by_place(stack: &[Placed], found: UnwoundStack<'_>) -> Option<usize> {
    let run = outermost(found, PLACED_RUN)?;
    if run.clone().any(|frame| frame.place == 0) {
        return None;
    }
    let at = stack.get(1..)?.windows(PLACED_RUN).position(|kept| kept.iter().copied().eq(run.clone()))?;
    goes_on(stack, 1 + at + PLACED_RUN)
}

/// [`by_place`] with only the outermost frame: the same function at the same stack address, perhaps in another call by
/// now. The word that it has saved and the copy lacks shows where its caller's frame begins.
fn by_slot(
    stack: &[Placed],
    found: UnwoundStack<'_>,
    unread: u64,
    same_function: impl Fn(u64, u64) -> bool,
) -> Option<usize> {
    let last = found.placed(found.frames.len().checked_sub(1)?);
    let goes_on = |pair: &[Placed]| {
        let [callee, caller] = *pair else { return false };
        let saved = caller.place.checked_sub(unread);
        last.place != 0
            && callee.place == last.place
            && saved.is_some_and(|bytes| SAVED_BYTES.contains(&bytes))
            && same_function(callee.address, last.address)
    };
    stack.windows(2).position(goes_on).map(|at| at + 1)
}

/// [`by_place`] if only code addresses are known: the run must occur once.
fn by_address(stack: &[Placed], found: UnwoundStack<'_>) -> Option<usize> {
    let run = outermost(found, ADDRESS_RUN)?.map(|frame| frame.address);
    let last = *found.frames.last()?;
    let agrees = |end: usize| {
        let first = end.checked_sub(ADDRESS_RUN).filter(|&first| first > 0);
        first.is_some_and(|first| stack[first..end].iter().map(|frame| frame.address).eq(run.clone()))
    };
    let mut ends =
        (0..stack.len()).filter(|&at| stack[at].address == last).map(|at| at + 1).filter(|&end| agrees(end));
    let end = ends.next().filter(|_| ends.next().is_none())?;
    goes_on(stack, end)
}

/// Nothing is gained from a stack that ends at the same frame.
fn goes_on(stack: &[Placed], from: usize) -> Option<usize> {
    (from < stack.len()).then_some(from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PID: u32 = 7;
    const TID: u32 = 8;

    fn keep(kept: &mut EarlierStacks, frames: &[u64], places: &[u64]) {
        kept.keep(PID, TID, UnwoundStack { frames, places });
    }

    fn complete(kept: &EarlierStacks, frames: &[u64], places: &[u64]) -> Option<Vec<u64>> {
        let (mut frames, mut places) = (frames.to_vec(), places.to_vec());
        kept.complete((PID, TID), &mut frames, &mut places, |_, _| None).then_some(frames)
    }

    fn places(from: u64, count: u64) -> Vec<u64> {
        (from..from + count).map(|n| 0x7000_0000 + 16 * n).collect()
    }

    #[test]
    fn a_cut_stack_goes_on_where_two_frames_lie_at_the_same_places() {
        let mut kept = EarlierStacks::default();
        keep(&mut kept, &[1, 20, 30, 40, 50], &places(10, 5));
        assert_eq!(complete(&kept, &[9, 8, 20, 30], &places(9, 4)), Some(vec![9, 8, 20, 30, 40, 50]));
        assert_eq!(complete(&kept, &[9, 8, 20, 30], &places(8, 4)), None, "elsewhere");
        assert_eq!(complete(&kept, &[9, 8, 21, 30], &places(9, 4)), None, "one agrees");
        assert_eq!(complete(&kept, &[20, 30], &places(11, 2)), None, "an instruction is no return address");
    }

    /// The same function over and over, at other places.
    #[test]
    fn recursion_does_not_confuse_places() {
        let mut kept = EarlierStacks::default();
        keep(&mut kept, &[1, 5, 5, 5, 5, 6], &places(10, 6));
        assert_eq!(complete(&kept, &[2, 5, 5, 5], &places(10, 4)), Some(vec![2, 5, 5, 5, 5, 6]));
        assert_eq!(complete(&kept, &[2, 5, 5], &places(10, 3)), Some(vec![2, 5, 5, 5, 5, 6]));
    }

    #[test]
    fn addresses_alone_must_be_many_and_occur_once() {
        let mut kept = EarlierStacks::default();
        let whole: Vec<u64> = (100..160).collect();
        keep(&mut kept, &whole, &[]);
        let cut: Vec<u64> = (90..130).collect();
        assert_eq!(complete(&kept, &cut, &[]), Some((90..160).collect()));
        assert_eq!(complete(&kept, &whole[20..35], &[]), None, "too few");
        let mut again = EarlierStacks::default();
        let twice: Vec<u64> = (100..130).chain(100..130).chain([7]).collect();
        keep(&mut again, &twice, &[]);
        assert_eq!(complete(&again, &cut, &[]), None, "nobody knows which of them");
    }

    #[test]
    fn a_program_that_has_ended_leaves_nothing() {
        let mut kept = EarlierStacks::default();
        let cut = (&[9, 20, 30][..], places(10, 3));
        let begin = |kept: &mut EarlierStacks| keep(kept, &[1, 20, 30, 40], &places(10, 4));
        begin(&mut kept);
        assert!(complete(&kept, cut.0, &cut.1).is_some());
        kept.forget_process(PID);
        assert!(complete(&kept, cut.0, &cut.1).is_none());
        begin(&mut kept);
        kept.forget_thread(TID);
        assert!(complete(&kept, cut.0, &cut.1).is_none());
        kept.keep(PID + 1, TID, UnwoundStack { frames: &[1, 20, 30, 40], places: &places(10, 4) });
        assert!(complete(&kept, cut.0, &cut.1).is_none(), "another process has the thread's number");
    }

    /// The outermost function that was copied is about another call than before, and its frame is large.
    #[test]
    fn one_function_is_enough_where_its_return_address_would_lie_at_the_same_place() {
        let take = |outcome, frames: &[u64], of: &[u64], unread, kept: &mut EarlierStacks| {
            let (mut frames, mut places) = (frames.to_vec(), of.to_vec());
            let stack = Followed { frames: &mut frames, places: &mut places, unread };
            kept.take((PID, TID), outcome, stack, |a, b| a / 10 == b / 10).then_some(frames)
        };
        let found = |frames: &[u64; 2], at: &[u64; 2], unread| {
            let mut kept = EarlierStacks::default();
            take(Outcome::Complete, &[7, 21, 33, 44], &[0x900, 0x1000, 0x9000, 0x9100], None, &mut kept);
            take(Outcome::CopyTooShort, frames, at, Some(unread), &mut kept)
        };
        let (cut, at) = ([5, 25], [0x800, 0x1000]);
        assert_eq!(found(&cut, &at, 0x9000 - 16), Some(vec![5, 25, 33, 44]));
        assert_eq!(found(&cut, &at, 0x9000), None, "its caller begins elsewhere");
        assert_eq!(found(&[5, 35], &at, 0x9000 - 8), None, "another function");
        assert_eq!(found(&cut, &[0x800, 0x1010], 0x9000 - 8), None, "another place");
    }

    #[test]
    fn a_stack_that_was_cut_and_completed_completes_the_next() {
        let mut kept = EarlierStacks::default();
        let mut take = |outcome, frames: &[u64], from| {
            let (mut frames, mut places) = (frames.to_vec(), places(from, frames.len() as u64));
            let stack = Followed { frames: &mut frames, places: &mut places, unread: None };
            let is_whole = kept.take((PID, TID), outcome, stack, |_, _| false);
            assert!(!is_whole || places.len() == frames.len());
            is_whole.then_some(frames)
        };
        assert_eq!(take(Outcome::Complete, &[1, 40, 50, 60], 15), None);
        let cut = [2, 10, 20, 30, 40, 50];
        assert_eq!(take(Outcome::Broken, &cut, 12), None, "its outermost frame may be wrong");
        assert_eq!(take(Outcome::CopyTooShort, &cut, 12), Some(vec![2, 10, 20, 30, 40, 50, 60]));
        assert_eq!(take(Outcome::StackAbsent, &[3, 4, 10, 20], 11), Some(vec![3, 4, 10, 20, 30, 40, 50, 60]));
    }

    #[test]
    fn memory_is_bounded() {
        let mut kept = EarlierStacks::default();
        let deep: Vec<u64> = (0..5000).collect();
        for tid in 0..1000 {
            for _ in 0..20 {
                kept.keep(PID, tid, UnwoundStack { frames: &deep, places: &[] });
            }
        }
        assert_eq!(kept.threads.len(), MAX_THREADS);
        let largest = |thread: &Thread| thread.stacks.iter().map(Vec::len).sum::<usize>();
        assert!(kept.threads.values().all(|thread| largest(thread) <= STACKS * MAX_FRAMES));
        assert!(kept.threads.contains_key(&999) && !kept.threads.contains_key(&0));
    }

    proptest! {
        /// Wherever a stack is cut, its own outer frames come back.
        #[test]
        fn a_stack_completes_its_own_cut(
            frames in prop::collection::vec(1u64..6, 3..300),
            at in 3usize..300,
        ) {
            let places = places(0, frames.len() as u64);
            let mut kept = EarlierStacks::default();
            keep(&mut kept, &frames, &places);
            let at = at.min(frames.len());
            if let Some(completed) = complete(&kept, &frames[..at], &places[..at]) {
                prop_assert_eq!(&completed, &frames);
            } else {
                prop_assert_eq!(at, frames.len());
            }
            if let Some(completed) = complete(&kept, &frames[..at], &[]) {
                prop_assert_eq!(&completed, &frames);
            }
        }
    }
}
