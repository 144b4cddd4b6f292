//! Objects whose symbol tables and debug information stay in memory after they were asked for names: the next cut has a few
//! addresses that are new, and reading all of it anew takes a hundred times as long as they do.
//!
//! Where there is no room for all, those go first that were asked least often, counted from what was evicted last, so that
//! what was of use once does not stay for ever (greedy dual size with frequency, at equal cost of a byte: Cherkasova 1998).

use std::sync::{Arc, Weak};

use super::memory::SymbolMemory;
use super::object::MappedObject;
use crate::symbol_process::ReadObject;
use crate::symbol_process::print::Proof;

/// An object that was read. Its room is given back with it.
pub(crate) struct Loaded {
    /// What was read.
    pub(crate) object: ReadObject,
    /// Whose file it is. It is not read for others after that one is gone: files, and the file systems that they are in,
    /// are held for no longer than their targets.
    owner: Weak<MappedObject>,
    /// Of one that tells names for others too.
    proof: Option<Proof>,
    room: Option<(SymbolMemory, u64)>,
    uses: u64,
    rank: u64,
}

impl Loaded {
    /// What was read of this object's file.
    pub(crate) fn new(
        object: impl Into<ReadObject>,
        owner: &Arc<MappedObject>,
        proof: Option<Proof>,
    ) -> Self {
        Self { object: object.into(), owner: Arc::downgrade(owner), proof, room: None, uses: 0, rank: 0 }
    }

    /// Whether the file is there, and what it was, and so is what was read of it.
    pub(crate) fn is_as_it_was(&self) -> bool {
        self.object.is_there() && self.owner.upgrade().is_some_and(|owner| owner.missing().is_none())
    }

    /// Whether all that was read for others was what it was when it was compared.
    pub(crate) fn is_proven(&self) -> bool {
        self.proof.as_ref().is_none_or(Proof::holds)
    }

    /// Whether there is room for what reading units takes beside what is held.
    pub(crate) fn has_room_to_read(&self, memory: &SymbolMemory) -> bool {
        self.object.facts().unit_bytes <= memory.left()
    }

    /// What it takes beside the room that it has (bytes).
    pub(crate) fn bytes_in_use(&self) -> u64 {
        self.object.facts().memory_bytes.saturating_sub(self.room.as_ref().map_or(0, |(_, bytes)| *bytes))
    }

    /// Whether nobody has dropped the file.
    pub(super) fn can_be_read(&self) -> bool {
        self.owner.strong_count() > 0
    }

    /// Takes room for what it holds now.
    pub(super) fn take_room(&mut self, memory: &SymbolMemory) -> bool {
        self.give_room_back();
        let bytes = self.object.facts().held_bytes;
        let is_taken = memory.take_loaded(bytes);
        self.room = is_taken.then(|| (memory.clone(), bytes));
        is_taken
    }

    fn give_room_back(&mut self) {
        if let Some((memory, bytes)) = self.room.take() {
            memory.give_back_loaded(bytes);
        }
    }

    /// Notes that it was of use; `floor` is the rank of what was evicted last.
    pub(super) fn note_use(&mut self, floor: u64) {
        self.uses += 1;
        self.rank = floor + self.uses;
    }

    pub(super) fn rank(&self) -> u64 {
        self.rank
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        self.give_room_back();
    }
}
