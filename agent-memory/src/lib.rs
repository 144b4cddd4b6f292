//! The memory that the profiler shares with its agents, which sample processes from inside.
//!
//! It is one file of words: a header that the profiler writes, a table of slots, and a ring for each slot. A
//! slot belongs to one thread at a time, which writes records into its ring; the profiler reads them and
//! gives the slot back. Both sides see words through atomics alone, so this crate needs no `unsafe`, no
//! allocation and no system call, and serves in a signal handler.
//!
//! An agent is part of a process that may do anything with this memory. So the reader keeps its own positions
//! and trusts nothing: everything it finds becomes a record, or is counted as damaged.
//!
//! Agents without a sign of life from the profiler for a second sample once per CPU-second, and continue at
//! their rate when there is one; after fifteen seconds they stop their timers. A header that the process
//! overwrote is repaired at the next drain and reported.
//!
//! ```
//! use std::sync::atomic::AtomicU64;
//! use agent_memory::{AgentSettings, Memory, words_for};
//!
//! let words: Vec<AtomicU64> = (0..words_for(4)).map(|_| AtomicU64::new(0)).collect();
//! let memory = Memory::prepare(&words, &AgentSettings::default()).unwrap();
//! let agent = Memory::open(&words).unwrap();
//! let slot = agent.claim(4711, 4711).unwrap();
//! assert_eq!(memory.slot(slot).unwrap().owner(), Some((4711, 4711)));
//! ```

mod control;
mod layout;
mod program;
mod record;
mod ring;
mod slot;
mod word;

pub use control::{AgentCommand, AgentReply, CONTROL, Request, UsableSignals, enter, is_enter};
pub use layout::{
    AgentSettings, MEMORY_WORDS, Memory, MemoryOpenError, RING_WORDS, SLOTS, SPARING_NS, ring_words,
    words_for,
};
pub use program::{Obstacle, Program, Text};
pub use record::{
    Begun, Damaged, FoundRecord, REGISTERS, RecordKind, SAMPLE_HEAD_WORDS, SampleHead, decode, length,
};
pub use ring::{Entry, Ring, RingReader};
pub use slot::{Slot, SlotState};
pub use word::Word;

/// The environment variable that names the libraries which the dynamic linker loads into a program before its own. Ours comes last,
/// behind a [`SEPARATOR`] where others were named before.
pub const PRELOAD: &str = "LD_PRELOAD";
/// What stands between others' libraries and what we have added. The dynamic linker passes over the empty name in it.
pub const SEPARATOR: &str = "::";
/// The name of the agent's file.
pub const LIBRARY: &str = "libsweetspot_agent.so";
/// The environment variable that tells an agent where the memory is: a path.
pub const PLACE: &str = "SWEETSPOT_AGENT";
