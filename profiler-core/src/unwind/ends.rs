//! How a stack ends: at its outermost frame, or why not there.
//!
//! How a code path ends is remembered by code, not by address, so it also holds for the next process of the
//! same program.

use framehop::FrameAddress;

use super::word_at;
use crate::elf::{Callers, FoundRule};
use crate::process::AddressSpace;
use crate::profile::Outcome;
use crate::record::StackCopy;

/// Most words of stack that start-up code uses.
const START_UP_WORDS: u64 = 64;
/// A caller this far behind the end of the copy may exist (bytes); further away the address is wild.
const REACH_BYTES: u64 = 1 << 20;
/// The smallest page of any machine; the others are multiples of it.
const LEAST_PAGE_BYTES: u64 = 4096;

/// The outcome of a stack that ends at `at`. The outermost function is always in a file; elsewhere the end is a wrong
/// guess. So it is if the innermost function has no tables: a frame pointer of zero may then be any value that the
/// function computes with.
pub(super) fn end(space: &AddressSpace, at: FrameAddress) -> Outcome {
    let address = at.address_for_lookup();
    let is_trusted = at.is_return_address() || space.has_tables(address);
    if is_trusted && space.is_in_file(address) { Outcome::Complete } else { lost(space, address, true) }
}

/// What it means if a stack ends at a return address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StackEnd {
    /// It is whole: that function has no caller.
    Outermost,
    /// The function has no caller either, and the stack returns to its first instruction, one byte after the lookup
    /// address.
    OutermostBeginning,
    /// Nothing is known of that code.
    Unknown,
    /// Callers are missing, or the code lies in no file.
    Inner,
    /// As [`Self::Inner`], and the word in the caller's place leads to memory that is not executable.
    NoCode,
}

impl StackEnd {
    /// Whether the stack is whole.
    pub fn is_outermost(self) -> bool {
        matches!(self, Self::Outermost | Self::OutermostBeginning)
    }
}

/// The meaning of a stack that ends at a lookup address.
pub(super) fn stack_end(space: &AddressSpace, address: u64) -> StackEnd {
    match space.callers(address) {
        _ if !space.is_in_file(address) => StackEnd::Inner,
        _ if space.is_entry_function(address) => StackEnd::Outermost,
        Callers::None => StackEnd::Outermost,
        Callers::NoneAtBeginning => StackEnd::OutermostBeginning,
        Callers::Some => StackEnd::Inner,
        Callers::Unknown if space.begins_program(address) => StackEnd::Outermost,
        Callers::Unknown => StackEnd::Unknown,
    }
}

/// Why no caller was found at an address: there is code without tables (`is_unknown`), or the tables do not fit. Where
/// a program begins, there is no caller.
pub(super) fn lost(space: &AddressSpace, address: u64, is_unknown: bool) -> Outcome {
    if is_unknown && space.begins_program(address) {
        return Outcome::Complete;
    }
    if is_unknown && space.is_executable(address) { Outcome::NoTables } else { Outcome::Broken }
}

/// What the stack words above a frame without a caller lead to.
enum Beyond {
    /// The program's entry point.
    Entry,
    /// A function with unwind information.
    Function,
    /// Nothing known.
    Nothing,
}

fn beyond(space: &AddressSpace, base: u64, sp: u64, stack: StackCopy<'_>) -> Beyond {
    let words = (0..START_UP_WORDS).filter_map(|i| word_at(base, stack, sp.checked_add(8 * i)?));
    let leads_to = |word: u64| match space.is_at_entry(word) {
        true => Some(Beyond::Entry),
        false => is_return_address(space, word).then_some(Beyond::Function),
    };
    words.into_iter().find_map(leads_to).unwrap_or(Beyond::Nothing)
}

/// Whether a word may be the return address of a call in a function with unwind information. A function pointer is not.
pub(super) fn is_return_address(space: &AddressSpace, word: u64) -> bool {
    let has_rule = |address| matches!(space.find_rule(address), FoundRule::Rule { .. });
    let Some(call) = word.checked_sub(1).filter(|&call| space.is_executable(call)) else { return false };
    has_rule(call) && has_rule(word) && space.function(call) == space.function(word)
}

/// Whether the return address into the program's entry point lies right above `sp`. The start-up code of some C
/// libraries (musl) has no tables, and nothing else says that a stack which ends in it is complete. A function of the program
/// in between is no start-up code's: one of such a library called back, and its own caller is lost.
pub(super) fn is_called_from_entry(space: &AddressSpace, base: u64, sp: u64, stack: StackCopy<'_>) -> bool {
    matches!(beyond(space, base, sp, stack), Beyond::Entry)
}

/// Whether code without tables at `sp` was called by a function with them: a frame pointer of zero then is a number that it
/// computes with.
pub(super) fn has_caller_beyond(space: &AddressSpace, base: u64, sp: u64, stack: StackCopy<'_>) -> bool {
    matches!(beyond(space, base, sp, stack), Beyond::Function)
}

/// Whether the word at `address` is missing only because the copy ended too early: more bytes would have helped. At
/// a wild address they would not.
pub(super) fn is_cut_off(address: u64, sp: u64, stack: StackCopy<'_>) -> bool {
    let end = sp.saturating_add(stack.len() as u64);
    stack.is_full() && (end.saturating_sub(7)..end.saturating_add(REACH_BYTES)).contains(&address)
}

/// Whether the word at `address` is missing because a page was not in memory: the kernel copies up to the beginning of
/// that page.
pub(super) fn is_absent(address: u64, sp: u64, stack: StackCopy<'_>) -> bool {
    let end = sp.saturating_add(stack.len() as u64);
    !stack.is_full()
        && end.is_multiple_of(LEAST_PAGE_BYTES)
        && (end.saturating_sub(7)..end.saturating_add(REACH_BYTES)).contains(&address)
}

/// Whether `address` is on another stack than the one that was copied.
pub(super) fn is_elsewhere(address: u64, sp: u64, stack: StackCopy<'_>) -> bool {
    let end = sp.saturating_add(stack.len() as u64);
    !(sp..end.saturating_add(REACH_BYTES)).contains(&address)
}
