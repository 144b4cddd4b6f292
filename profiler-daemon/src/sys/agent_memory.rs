//! Memory that processes in which an agent runs share with us.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::AtomicU64;

use agent_memory::MEMORY_WORDS;
use memmap2::{MmapOptions, MmapRaw};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::ftruncate;

/// A file in no folder, mapped: it is gone with the last process that has it, also if we are killed.
pub(crate) struct AgentMemory {
    file: OwnedFd,
    map: MmapRaw,
}

impl AgentMemory {
    /// An empty one. Its length is sealed: a process that cut it short would kill whoever reads it.
    pub(crate) fn new() -> io::Result<Self> {
        Self::over(memfd_create(c"sweetspot", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?)
    }

    /// That of a process which has it open: an empty file that can be sealed.
    pub(crate) fn of(path: &str) -> io::Result<Self> {
        Self::over(File::options().read(true).write(true).open(path)?.into())
    }

    fn over(file: OwnedFd) -> io::Result<Self> {
        ftruncate(&file, (MEMORY_WORDS * 8) as i64)?;
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
        let map = MmapOptions::new().len(MEMORY_WORDS * 8).map_raw(&file)?;
        Ok(Self { file, map })
    }

    /// Its words.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: so many words are mapped, at the beginning of a page, for as long as `self` lives, and the file keeps its length.
        // ATOMICS: other processes write to them, as atomics or not: each is a value, which nothing relies on.
        unsafe { std::slice::from_raw_parts(self.map.as_mut_ptr().cast::<AtomicU64>(), MEMORY_WORDS) }
    }

    /// Where other processes find it while we live: those that may look into ours.
    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn whoever_opens_its_path_shares_it_and_cannot_cut_it_short() {
        let memory = AgentMemory::new().unwrap();
        let again = std::fs::File::options().read(true).write(true).open(memory.path()).unwrap();
        memory.words()[7].store(77, Ordering::Relaxed);
        let mut word = [0; 8];
        std::os::unix::fs::FileExt::read_exact_at(&again, &mut word, 7 * 8).unwrap();
        assert_eq!(u64::from_ne_bytes(word), 77);
        assert!(again.set_len(0).is_err() && again.set_len(1 << 40).is_err());
    }
}
