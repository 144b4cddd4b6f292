//! Stacks with frames that `framehop` has no rule for. They are followed here with all registers.
//!
//! - `framehop` follows three registers, reads no memory for an expression, and falls back to the frame pointer
//!   silently. So it is used only where the rule at an address is one that it supports. A stack with any other
//!   frame (signal trampolines, realigned frames, lazy binding, `.debug_frame`) is followed from its start with
//!   all registers.
//! - A signal interrupts an instruction; a call returns behind one. So the caller of a signal trampoline is
//!   looked up at its exact address.
//! - A return address that is a function's first instruction was written explicitly: for a signal trampoline, or
//!   the end of a fiber. No call precedes it, so the frame is looked up at that address and not at the one before.
//!   If it is not a trampoline, it has no caller.
//! - A signal frame of the kernel is recognised by its contents, on both processors, where the trampoline has
//!   no table.

use std::sync::Arc;

use framehop::FrameAddress;
use rustc_hash::FxHashMap;

use super::ends::{
    end, has_caller_beyond, is_absent, is_called_from_entry, is_cut_off, is_elsewhere, is_return_address,
    lost,
};
use super::untabled::{self, Caller, above_saved_registers, by_frame_pointer, interrupted, of_innermost};
use super::{MAX_FRAMES, STACK_ADDRESSES, stub, word_at};
use crate::elf::FoundRule;
use crate::elf::rules::{NoCaller, Registers, Rule};
use crate::process::{AddressSpace, Process};
use crate::profile::Outcome;
use crate::record::StackCopy;

/// Most rules that are remembered.
const MAX_RULES: usize = 1 << 13;

/// How far below the stack pointer a function may keep words.
const RED_ZONE_BYTES: u64 = 128;
/// Words of a frame that are searched for a saved frame address.
const SEARCHED_WORDS: u64 = 512;

/// What is known of an address.
#[derive(Clone)]
enum At {
    Nothing,
    Unsafe,
    /// A program begins here, whatever the rule says.
    Entry,
    Rule(Arc<Rule>),
}

/// Rules by the generation of the process and the address they were met at.
#[derive(Default)]
pub(super) struct RuleCache(FxHashMap<(u64, u64), At>);

impl RuleCache {
    fn at(&mut self, process: &Process, address: u64) -> At {
        if self.0.len() > MAX_RULES {
            self.0.clear();
        }
        let ask = || match process.space.find_rule(address) {
            FoundRule::Nothing => At::Nothing,
            FoundRule::Unsafe => At::Unsafe,
            FoundRule::Rule { .. } if process.space.is_entry_function(address) => At::Entry,
            FoundRule::Rule { rule, .. } => At::Rule(Arc::from(rule)),
        };
        self.0.entry((process.generation, address)).or_insert_with(ask).clone()
    }
}

/// Appends the lookup addresses of all frames and the stack pointer in each, and says where it was cut. Gives the outcome and the last stack pointer.
pub(super) fn unwind(
    rules: &mut RuleCache,
    process: &Process,
    (ip, general): (u64, &[Option<u64>; 16]),
    stack: StackCopy<'_>,
    (frames, places, cut_at): (&mut Vec<u64>, &mut Vec<u64>, &mut Option<u64>),
) -> (Outcome, u64) {
    let space = &process.space;
    let first = frames.len();
    let mut registers = Registers::new(ip, general);
    let base = registers.sp();
    let read = |address: u64| word_at(base, stack, address);
    let mut at = FrameAddress::from_instruction_pointer(ip);
    let outcome = loop {
        let (address, sp) = (at.address_for_lookup(), registers.sp());
        frames.push(address);
        places.push(sp);
        if frames.len() - first >= MAX_FRAMES {
            break Outcome::TooManyFrames;
        }
        if !STACK_ADDRESSES.contains(&sp) {
            break Outcome::Broken;
        }
        let known = rules.at(process, address);
        let (caller, is_interrupted) = match &known {
            At::Unsafe => break Outcome::Broken,
            At::Entry => break Outcome::Complete,
            At::Rule(rule) => (by_rule(space, rule, &registers, read), rule.is_trampoline()),
            At::Nothing => without_table(space, at, &registers, read),
        };
        // The frame belongs to the function that begins at the return address, not to the one before it.
        let is_at_beginning = match &known {
            At::Rule(rule) => is_interrupted || rule.is_at_beginning(),
            _ => is_interrupted,
        };
        if is_at_beginning && let Some(frame) = frames.last_mut() {
            *frame = at.address();
        }
        let unread = match caller {
            Ok(caller) => {
                registers = caller;
                match address_of(registers.ip(), is_interrupted) {
                    Some(next) => at = next,
                    None => break end(space, at),
                }
                continue;
            }
            Err(NoCaller::Outermost)
                if matches!(known, At::Nothing) && has_caller_beyond(space, base, sp, stack) =>
            {
                break lost(space, address, true);
            }
            Err(NoCaller::Outermost) => break end(space, at),
            Err(NoCaller::Unread(address)) => {
                *cut_at = Some(address);
                Some(address)
            }
            Err(NoCaller::Unknown) => None,
        };
        break if unread.is_some_and(|address| is_cut_off(address, base, stack)) {
            Outcome::CopyTooShort
        } else if is_called_from_entry(space, base, sp, stack) {
            end(space, at)
        } else if is_elsewhere(sp, base, stack) {
            Outcome::OtherStack
        } else if unread.is_some_and(|address| is_absent(address, base, stack)) {
            Outcome::StackAbsent
        } else {
            lost(space, address, matches!(known, At::Nothing))
        };
    };
    (outcome, registers.sp())
}

/// The caller by a rule. Some code (OpenSSL's for AVX2) keeps the address of its frame right below the stack pointer,
/// where nothing is copied, and also where it first put it: in the frame. A word there counts if it leads up to a
/// return address into code that has tables.
fn by_rule(
    space: &AddressSpace,
    rule: &Rule,
    registers: &Registers,
    read: impl Fn(u64) -> Option<u64>,
) -> Result<Registers, NoCaller> {
    let caller = rule.caller(registers, &read);
    let Err(NoCaller::Unread(missing)) = caller else { return caller };
    let sp = registers.sp();
    if !(sp.saturating_sub(RED_ZONE_BYTES)..sp).contains(&missing) {
        return caller;
    }
    let by_word_at = |address: u64| {
        let frame = read(address).filter(|&frame| frame > address)?;
        let read = |word: u64| if word == missing { Some(frame) } else { read(word) };
        let outer = rule.caller(registers, read).ok()?;
        let returned = outer.ip().wrapping_sub(1);
        (outer.sp() > frame && space.is_executable(returned) && space.has_tables(returned)).then_some(outer)
    };
    (0..SEARCHED_WORDS).find_map(|word| by_word_at(sp.checked_add(8 * word)?)).ok_or(NoCaller::Unknown)
}

/// The caller of code that no table knows, and whether a signal hit it.
fn without_table(
    space: &AddressSpace,
    at: FrameAddress,
    registers: &Registers,
    read: impl Fn(u64) -> Option<u64>,
) -> (Result<Registers, NoCaller>, bool) {
    let is_code = |address| space.is_executable(address);
    let (address, sp) = (at.address_for_lookup(), registers.sp());
    let bp = registers.bp().unwrap_or(1); // an invalid address
    let is_generated = space.is_generated(address);
    let is_return = |word| is_return_address(space, word);
    let caller = if !at.is_return_address() && is_code(address) {
        of_innermost(sp, bp, !is_generated, is_code, is_return, &read)
    } else if let Some((ip, general)) = interrupted(sp, is_code, &read) {
        return (Ok(Registers::new(ip, &general.map(Some))), true);
    } else if is_generated && let Some(stub) = stub::caller(space, sp, bp, &read) {
        Ok(Caller { ip: stub.return_address, sp: stub.sp, bp })
    } else {
        by_frame_pointer(sp, bp, &read)
    };
    // A word of the frame that is no caller shall not be shown as one.
    let is_caller =
        |caller: &Caller| !is_code(address) || caller.ip == 0 || is_code(caller.ip.wrapping_sub(1));
    let caller = caller.and_then(|caller| Some(caller).filter(is_caller).ok_or(untabled::NotACaller::Wild));
    let caller = caller.or_else(|error| {
        let may_save = !at.is_return_address() && !is_generated;
        may_save.then(|| above_saved_registers(sp, bp, is_return, read)).flatten().ok_or(error)
    });
    (caller.map(|to| registers.moved_to(to.ip, to.sp, to.bp)).map_err(NoCaller::from), false)
}

/// A signal hits an instruction; a call returns behind one.
fn address_of(ip: u64, is_interrupted: bool) -> Option<FrameAddress> {
    if is_interrupted {
        Some(FrameAddress::from_instruction_pointer(ip)).filter(|_| ip != 0)
    } else {
        FrameAddress::from_return_address(ip)
    }
}

impl From<untabled::NotACaller> for NoCaller {
    fn from(error: untabled::NotACaller) -> Self {
        match error {
            untabled::NotACaller::Unread(address) => Self::Unread(address),
            untabled::NotACaller::Outermost => Self::Outermost,
            untabled::NotACaller::Wild => Self::Unknown,
        }
    }
}
