//! What the name of a frame tells.

use crate::folded::{Folded, Stack};
use crate::truth::is_named;

/// Functions that nobody calls: where a program, a thread or a fiber begins.
const ROOTS: &[&str] = &[
    "_start",
    "_start_c",
    "__libc_start_main",
    "_dl_start_user",
    "_dl_start",
    "__clone",
    "clone",
    "clone3",
    "__clone3",
    "start_thread",
    "__start_context",
    "runtime.goexit",
    "runtime.goexit.abi0",
    "runtime.rt0_go",
    "runtime.rt0_go.abi0",
    "runtime.mstart",
    "runtime.mstart.abi0",
];

/// Whether a frame has one of these names, which `|` separates: some code has several.
pub(super) fn has_name(frame: &str, names: &str) -> bool {
    names.split('|').any(|name| is_named(frame, name))
}

/// A name's version (`@@GLIBC_2.34`) and the parts that compilers split off (`.isra.0`) do not matter.
pub(super) fn is_root(frame: &str) -> bool {
    let name = frame.split('@').next().unwrap_or_default();
    ROOTS.contains(&name) || name.starts_with("__libc_start_main")
}

/// What no profiler could name, as each of them writes it.
pub(super) fn is_named_frame(frame: &str) -> bool {
    // What samply makes of a stripped function's address.
    let is_made_up = || {
        let digits = frame.strip_prefix("fun_").filter(|digits| !digits.is_empty());
        digits.is_some_and(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
    };
    let is_address = frame.contains("[unknown]") || frame.contains("+0x") || frame.starts_with("0x");
    !frame.is_empty() && !is_address && !is_made_up()
}

pub(super) fn frames_of(stack: &Stack) -> f64 {
    stack.weight * stack.frames.len() as f64
}

/// The frames that have a name, by weight.
pub(super) fn named(stacks: &Folded) -> f64 {
    let names = |stack: &Stack| stack.frames.iter().filter(|frame| is_named_frame(frame)).count();
    stacks.0.iter().map(|stack| stack.weight * names(stack) as f64).sum()
}
