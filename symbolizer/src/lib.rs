//! Names for addresses: ELF symbol tables, DWARF lines and inlined frames, the kernel's symbol list, and what run-time
//! compilers write down of the code they make.
//!
//! What it does: given the bytes of a loaded object, it answers which function an address of that object lies in, which
//! functions were inlined there, and from which source lines. It finds separate debug files by build id and by debug
//! link, follows the shared debug information that `dwz` splits off and the other halves of split DWARF (`.dwo`, `.dwp`),
//! unpacks `.gnu_debugdata`, demangles C++ and Rust, and says why when it has no answer: a missing name is data
//! ([`Symbolized::Unknown`]), not an error.
//!
//! What it does not do: it knows no process, maps nothing, and opens nothing by itself. Objects are read through
//! [`ReadAt`], separate debug files through [`DebugFiles`]. It speaks stated virtual memory addresses (the ones written
//! in the object, before relocation). It does not read 32-bit or big-endian objects.
//!
//! Every byte of an object may be hostile. Of a symbol table, each allocation is bounded by the file's length and a cap
//! ([`Limits::of_symbols`] reads nothing else). Debug information is read by `addr2line`, which crafted files can make
//! overflow its stack, ask for gigabytes or not end: read files of others in a process that may end.
//!
//! ```
//! use std::path::Path;
//! use symbolizer::{NoDebugFiles, Object, Symbolized};
//!
//! # fn look_up() -> Option<()> {
//! let file = std::fs::File::open("/proc/self/exe").ok()?;
//! let object = Object::load(&file, Path::new("/proc/self/exe"), &NoDebugFiles).ok()?;
//! for symbolized in object.symbolize_all(&[0x1234, 0x5678]) {
//!     match symbolized {
//!         Symbolized::Known(frames) => assert!(!frames.is_empty()),
//!         Symbolized::Unknown(reason) => assert!(!reason.to_string().is_empty()),
//!     }
//! }
//! # Some(())
//! # }
//! # look_up();
//! ```

mod batch;
mod debug_file;
mod demangle;
mod dlang;
mod dwarf;
mod elf;
mod jit;
mod kernel;
mod naming;
mod object;
mod qualified;
mod reason;
mod source;

pub use crate::debug_file::{DebugFiles, NoDebugFiles};
pub use crate::demangle::demangle;
pub use crate::jit::{CodePlace, JitDump, PerfMap};
pub use crate::kernel::{KernelSymbol, KernelSymbols};
pub use crate::object::{Limits, NamedFrame, Object, Symbolized, build_id};
pub use crate::reason::Reason;
pub use crate::source::ReadAt;
