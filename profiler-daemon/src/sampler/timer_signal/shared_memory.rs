//! The memory that the profiler shares with agents: their settings, signs of life for them, and rings for their samples.

use std::io;
use std::sync::Arc;

use agent_memory::{AgentSettings, Memory, words_for};

use crate::sys::agent_memory::AgentMemory;
use crate::sys::clock;

/// Memory that agents find by its path.
pub(super) struct SharedMemory {
    pub(super) memory: Arc<AgentMemory>,
    /// The settings in it, as long as no other process overwrites them.
    settings: AgentSettings,
    /// How often they were overwritten.
    overwritten: u64,
    /// The longest time without a sign of life for the agents (ns).
    longest_silence_ns: u64,
    /// Rings with reserved memory.
    reserved: usize,
    /// Whether memory for more was refused.
    is_short: bool,
}

impl SharedMemory {
    /// New memory with these settings.
    pub(super) fn new(settings: AgentSettings) -> io::Result<Self> {
        let memory = Arc::new(AgentMemory::new()?);
        Memory::prepare(memory.words(), &settings)
            .ok_or_else(|| io::Error::other("the memory is too small"))?;
        Ok(Self { memory, settings, overwritten: 0, longest_silence_ns: 0, reserved: 0, is_short: false })
    }

    pub(super) fn view(&self) -> Option<Memory<'_>> {
        Memory::of_own(self.memory.words())
    }

    pub(super) fn settings(&self) -> &AgentSettings {
        &self.settings
    }

    /// Changes the settings.
    pub(super) fn publish(&mut self, change: impl FnOnce(&mut AgentSettings)) {
        change(&mut self.settings);
        let _ = Memory::prepare(self.memory.words(), &self.settings); // the size was sufficient before
    }

    /// The memory that an agent has attached to, with the same settings and this many rings.
    pub(super) fn replace(&mut self, memory: Arc<AgentMemory>, rings: usize) {
        (self.memory, self.reserved) = (memory, rings);
        self.settings.now_ns = clock::monotonic_ns(); // no agent has waited for a sign of life until now
    }

    /// Reserves memory for this many rings.
    pub(super) fn reserve(&mut self, rings: usize) -> io::Result<()> {
        self.reserved = rings;
        self.memory.reserve(words_for(rings))
    }

    /// [`Self::reserve`] for more rings than before, until that is refused.
    pub(super) fn reserve_more(&mut self, rings: usize) {
        if rings > self.reserved && !self.is_short {
            self.is_short = self.reserve(rings).is_err();
        }
    }

    /// Gives a sign of life: without it, agents sample less and stop. Restores settings that were overwritten; those of
    /// memory that `is_stopped` are no longer looked at.
    pub(super) fn beat(&mut self, is_stopped: bool) {
        let now_ns = clock::monotonic_ns();
        let silence_ns = now_ns.saturating_sub(self.settings.now_ns);
        let is_intact = is_stopped || self.view().is_some_and(|memory| memory.has_settings(&self.settings));
        self.longest_silence_ns = self.longest_silence_ns.max(silence_ns);
        self.overwritten += u64::from(!is_intact);
        self.publish(|settings| settings.now_ns = now_ns);
    }

    /// What was wrong with it.
    pub(super) fn shortfalls(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.overwritten > 0 {
            let times = self.overwritten;
            lines.push(format!(
                "the memory shared with the library was overwritten {times} times: the profile may be wrong"
            ));
        }
        if self.is_short {
            lines.push("there was no memory left to keep ready for the samples of more threads".to_owned());
        }
        if self.longest_silence_ns > self.settings.patience_ns {
            let silence_s = self.longest_silence_ns / 1_000_000_000;
            lines.push(format!(
                "the profiler did not run for {silence_s} s: threads that were busy meanwhile were no \
                 longer sampled"
            ));
        }
        lines
    }
}

/// Initialises empty memory for the agent, with the present time: without a recent sign of life, agents sample less.
pub(super) fn begin_memory(memory: &AgentMemory, settings: AgentSettings) {
    let _ = Memory::prepare(memory.words(), &AgentSettings { now_ns: clock::monotonic_ns(), ..settings }); // the size fits
}
