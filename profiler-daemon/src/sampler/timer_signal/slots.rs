//! The slots that agents have taken, read in the order of time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use agent_memory::{Memory, RING_WORDS, RingReader, SLOTS, Slot, SlotState, length};
use profiler_core::record::Task;

use crate::sys::procfs;

/// A record is of no real time if it lies this far ahead (ns). While rings are read, others are still written.
const IMPOSSIBLE_NS: u64 = 1_000_000_000;
/// A process that is killed does not end its slots; dead processes are looked for this often (ns).
const LOOK_FOR_DEAD_NS: u64 = 1_000_000_000;

/// Most words that one drain reads from all rings together, whatever agents have written: the rest waits for the next
/// drain.
const MOST_WORDS: usize = 128 * RING_WORDS;

/// The thread that has a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotOwner {
    pub(super) pid: u32,
    pub(super) tid: u32,
}

impl SlotOwner {
    /// The thread as one that its own process created.
    pub(super) fn of_own_process(self) -> Task {
        Task { pid: self.pid, parent_pid: self.pid, tid: self.tid, time_ns: 0 } // a slot does not tell
    }
}

/// A slot as this side knows it.
#[derive(Default)]
struct KnownSlot {
    reader: RingReader,
    /// Words that this drain still reads: those that waited when it began. Who writes as fast as we read is left behind.
    left: usize,
    owner: Option<SlotOwner>,
    dropped: u64,
}

/// The slots of all agents.
pub(super) struct Slots {
    known: Vec<KnownSlot>,
    /// Slots with an owner; only these are examined.
    taken: Vec<usize>,
    /// Claims at the last look, and whether a claim was in progress then.
    claims: u64,
    unsettled: bool,
    damaged: u64,
    /// Dropped samples of slots that were given back.
    dropped: u64,
    dead_looked_for_ns: u64,
}

impl Default for Slots {
    fn default() -> Self {
        let known = (0..SLOTS).map(|_| KnownSlot::default()).collect();
        let (taken, claims, unsettled) = (Vec::new(), 0, false);
        Self { known, taken, claims, unsettled, damaged: 0, dropped: 0, dead_looked_for_ns: 0 }
    }
}

impl Slots {
    /// Those that were taken since the last look.
    pub(super) fn look(&mut self, memory: &Memory<'_>) -> Vec<SlotOwner> {
        let mut new = Vec::new();
        let claims = memory.claims();
        if !self.unsettled && claims == self.claims {
            return new;
        }
        (self.claims, self.unsettled) = (claims, false);
        let looked_at = self.known.iter_mut().take(memory.highest() + 1).enumerate();
        for (index, known) in looked_at.filter(|(_, known)| known.owner.is_none()) {
            let Some(slot) = memory.slot(index) else { continue };
            match slot.owner() {
                // The process was killed before the thread could say which one it is.
                Some((pid, 0)) if procfs::has_ended(pid) => slot.free(&mut known.reader),
                Some((_, 0)) => self.unsettled = true,
                Some((pid, tid)) => {
                    known.owner = Some(SlotOwner { pid, tid });
                    self.taken.push(index);
                    new.push(SlotOwner { pid, tid });
                }
                None => {}
            }
        }
        new
    }

    /// Ends the slots of threads that have ended without saying so.
    pub(super) fn end(&mut self, memory: &Memory<'_>, gone: &[u32]) {
        if gone.is_empty() {
            return;
        }
        for &index in &self.taken {
            let owner = self.known[index].owner.filter(|owner| gone.contains(&owner.tid));
            if let Some((owner, slot)) = owner.zip(memory.slot(index)) {
                slot.end_of(owner.pid, owner.tid);
            }
        }
    }

    /// The number of taken slots.
    pub(super) fn taken(&self) -> usize {
        self.taken.len()
    }

    /// The index of the last taken slot; 0 if none is taken.
    pub(super) fn highest_taken(&self) -> usize {
        self.taken.iter().copied().max().unwrap_or(0)
    }

    /// The owners of all taken slots.
    pub(super) fn owners(&self) -> impl Iterator<Item = SlotOwner> {
        self.taken.iter().filter_map(|&index| self.known[index].owner)
    }

    /// Whether a slot was ever taken.
    pub(super) fn ever_taken(&self) -> bool {
        self.claims > 0
    }

    /// Whether any ring holds a record.
    pub(super) fn have_records(&self, memory: &Memory<'_>) -> bool {
        let holds = |index: usize| {
            let ring = memory.slot(index).and_then(|slot| slot.ring());
            ring.is_some_and(|ring| self.known[index].reader.peek(&ring) > 0)
        };
        memory.claims() != self.claims || self.taken.iter().any(|&index| holds(index))
    }

    /// Hands over the words of every record made until `until_ns`, in time order, and also of records with a time that
    /// cannot be: they would block all records behind them.
    pub(super) fn drain(
        &mut self,
        memory: &Memory<'_>,
        (until_ns, now_ns): (u64, u64),
        words: &mut Vec<u64>,
        mut handle: impl FnMut(SlotOwner, &[u64]),
    ) {
        let mut next: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
        for at in 0..self.taken.len() {
            let index = self.taken[at];
            self.known[index].left = RING_WORDS;
            self.known[index].left = self.waiting(memory, index).unwrap_or(0);
            next.extend(self.peek(memory, index).map(|(time_ns, _)| Reverse((time_ns, index))));
        }
        let mut left = MOST_WORDS;
        while let Some(Reverse((time_ns, index))) = next.pop() {
            if time_ns > until_ns && time_ns <= now_ns.saturating_add(IMPOSSIBLE_NS) {
                continue;
            }
            let Some((_, length)) = self.peek(memory, index) else { continue };
            match left.checked_sub(length) {
                Some(rest) => left = rest,
                None => break,
            }
            let (Some(ring), Some(owner)) =
                (memory.slot(index).and_then(|slot| slot.ring()), self.known[index].owner)
            else {
                continue;
            };
            let reader = &mut self.known[index].reader;
            words.clear();
            words.extend((0..length).map(|at| reader.word(&ring, at)));
            reader.advance(&ring, length);
            self.known[index].left -= length;
            handle(owner, words);
            next.extend(self.peek(memory, index).map(|(time_ns, _)| Reverse((time_ns, index))));
        }
    }

    /// Time and length (in words) of a slot's next record. Something that is not a record is skipped, with everything
    /// behind it.
    fn peek(&mut self, memory: &Memory<'_>, index: usize) -> Option<(u64, usize)> {
        let waiting = self.waiting(memory, index)?;
        let known = &mut self.known[index];
        let ring = memory.slot(index)?.ring()?;
        let Some(length) = length(known.reader.word(&ring, 0), waiting) else {
            known.reader.advance(&ring, waiting);
            known.left = 0;
            self.damaged += 1;
            return None;
        };
        Some((known.reader.word(&ring, 1), length))
    }

    /// Words that are still to be read in this drain; `None` if there are none.
    fn waiting(&mut self, memory: &Memory<'_>, index: usize) -> Option<usize> {
        let known = &mut self.known[index];
        known.owner?;
        let ring = memory.slot(index)?.ring()?;
        let waiting = known.reader.waiting(&ring);
        self.damaged += u64::from(waiting.is_none());
        Some(waiting?.min(known.left)).filter(|&waiting| waiting > 0)
    }

    /// Times that a ring held something that is no record, since the last call.
    pub(super) fn take_damaged(&mut self) -> u64 {
        std::mem::take(&mut self.damaged)
    }

    /// Samples that found no room, since the last call.
    pub(super) fn take_dropped(&mut self, memory: &Memory<'_>) -> u64 {
        let mut sum = std::mem::take(&mut self.dropped);
        for &index in &self.taken {
            let known = &mut self.known[index];
            let now = memory.slot(index).map_or(0, |slot| slot.dropped());
            sum = sum.saturating_add(now.saturating_sub(std::mem::replace(&mut known.dropped, now)));
        }
        sum
    }

    /// Gives back the slots of threads that have ended, once everything is read; returns these threads.
    pub(super) fn free_ended(&mut self, memory: &Memory<'_>, now_ns: u64) -> Vec<SlotOwner> {
        let looks_for_dead = now_ns.saturating_sub(self.dead_looked_for_ns) >= LOOK_FOR_DEAD_NS;
        if looks_for_dead {
            self.dead_looked_for_ns = now_ns;
        }
        let mut ended = Vec::new();
        for at in (0..self.taken.len()).rev() {
            let index = self.taken[at];
            let known = &mut self.known[index];
            let (Some(owner), Some(slot)) = (known.owner, memory.slot(index)) else { continue };
            let is_over = match slot.state() {
                SlotState::Ended => true,
                SlotState::Taken => looks_for_dead && procfs::has_ended(owner.pid),
                SlotState::Free | SlotState::Unknown => true, // another process has overwritten it
            };
            if is_over && known.is_read(&slot) {
                self.dropped = self.dropped.saturating_add(slot.dropped().saturating_sub(known.dropped));
                slot.free(&mut known.reader);
                *known = KnownSlot::default();
                self.taken.swap_remove(at);
                self.unsettled = true; // a thread that claimed it in between has already raised the count
                ended.push(owner);
            }
        }
        ended
    }
}

impl KnownSlot {
    fn is_read(&self, slot: &Slot<'_>) -> bool {
        slot.ring().is_none_or(|ring| self.reader.peek(&ring) == 0)
    }
}
