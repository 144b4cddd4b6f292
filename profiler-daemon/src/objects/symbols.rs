//! What the sessions of one process share of symbols: memory for them, names that are kept, the kernel's functions.

use std::sync::Arc;

use super::kernel::KernelNames;
use super::memory::SymbolMemory;
use super::names::NameRoom;
use crate::opener::Opener;
use crate::symbol_process::{CpuAllowance, ProcessStatus, SymbolProcess};

/// Symbols, shared by all sessions. Clones are the same.
#[derive(Clone)]
pub(crate) struct Symbols {
    pub(super) memory: SymbolMemory,
    pub(super) names: NameRoom,
    pub(super) kernel: Arc<KernelNames>,
    pub(super) process: SymbolProcess,
    pub(super) opener: Opener,
}

impl Symbols {
    /// Nothing yet; unwind tables and names of all sessions may take so many bytes.
    pub(crate) fn new(bytes: u64) -> Self {
        let memory = SymbolMemory::new(bytes);
        Self {
            names: NameRoom::new(memory.clone()),
            memory,
            kernel: Arc::default(),
            process: SymbolProcess::default(),
            opener: Opener::default(),
        }
    }

    /// The same, where no process can be had that reads symbols.
    #[cfg(test)]
    pub(crate) fn without_process(bytes: u64) -> Self {
        Self { process: SymbolProcess::impossible(), ..Self::new(bytes) }
    }

    /// They may take so many bytes from now on.
    pub(crate) fn set_cap(&self, bytes: u64) {
        self.memory.set_cap(bytes);
    }

    /// What they take (bytes).
    pub(crate) fn held_bytes(&self) -> u64 {
        self.memory.held()
    }

    /// Gives up the objects that stay loaded.
    pub(crate) fn give_up_loaded(&self) {
        self.names.give_up_all_loaded();
        self.process.drop_forgotten();
    }

    /// The process that reads symbols may only take what there is CPU time for from now on.
    pub(crate) fn pace_reading(&self, allowance: CpuAllowance) {
        self.process.pace(allowance);
    }

    /// Whether that process could go on reading now.
    #[cfg(test)]
    pub(crate) fn may_read_on(&self) -> bool {
        self.process.may_go_on()
    }

    /// Has the process that reads symbols drop objects that are no longer used, and ends it if it has had no request for long.
    pub(crate) fn end_idle_process(&self, now_ns: u64) {
        self.process.drop_forgotten();
        if self.process.is_idle(now_ns) {
            self.give_up_loaded();
            self.process.rest();
        }
    }

    /// Whether that process runs, and how.
    pub(crate) fn process_status(&self) -> ProcessStatus {
        self.process.status()
    }

    /// The same for another session, whose unwind tables are counted apart.
    pub(super) fn for_another(&self) -> Self {
        Self { memory: self.memory.for_another(), opener: self.opener.for_another(), ..self.clone() }
    }
}
