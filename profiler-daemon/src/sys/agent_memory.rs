//! The memory that the profiler shares with processes in which an agent runs.
//!
//! It is a file without a name (`memfd`, its length sealed, found through `/proc/PID/fd`). Nobody can kill its
//! reader by truncating it, it ends with the last process that has it, and a profiler that was killed leaves no
//! way into it. The opener holds a lock on it, so that files of killed profilers can be told from those in use;
//! the next profiler closes them.
//!
//! A file that a running process was made to open is only written to if it is in memory, empty and without
//! seals: other threads of that process may have put any file in its place, including one that they may not
//! write to and we may.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use agent_memory::MEMORY_WORDS;
use memmap2::{MmapOptions, MmapRaw};
use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::ftruncate;

/// A file in memory that may not be executed has this seal from the beginning where the machine is set so.
const F_SEAL_EXEC: i32 = 0x20;

/// Opens for writing an empty file in memory that another process has just made, and has open at `path`.
///
/// Other threads of it may have put any file in its place meanwhile, also one that they may only read and we may write. So it is
/// looked at first, and then that very file is opened, not whatever is at the path by then.
///
/// # Errors
///
/// If it is anything but an empty file in memory that can be sealed.
pub(crate) fn open_made(path: &str) -> io::Result<File> {
    let foreign = || io::Error::other("another file has taken its place");
    let named = name(path)?;
    let metadata = named.metadata()?;
    if !metadata.is_file() || metadata.len() != 0 {
        return Err(foreign());
    }
    let readable = reopen(&named, false)?;
    // Only files in memory have seals, and those of a file system are sealed against any other.
    let seals = fcntl(&readable, FcntlArg::F_GET_SEALS).map_err(|_| foreign())?;
    match seals & !F_SEAL_EXEC {
        0 => reopen(&readable, true).inspect(hold),
        _ => Err(foreign()),
    }
}

/// The file at a path, not opened yet: with some devices that alone does something.
fn name(path: &str) -> io::Result<File> {
    File::options().read(true).custom_flags(libc::O_PATH).open(path)
}

/// Opens the very file that was named, and waits for nobody.
fn reopen(file: &File, writes: bool) -> io::Result<File> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    File::options().read(true).write(writes).custom_flags(flags).open(path)
}

/// Nobody who is about to open a file in memory is this slow.
const TO_HOLD: Duration = Duration::from_secs(15);

/// While it is open here, others see that somebody uses it ([`is_left`]); the kernel forgets it with us.
fn hold(file: &File) {
    let _ = file.try_lock(); // a process that holds it has its own file taken for one in use
}

/// Whether a file in memory that another process has open at `path` was made some time ago and is held by nobody.
pub(crate) fn is_left(path: &str) -> bool {
    is_left_for(path, TO_HOLD)
}

fn is_left_for(path: &str, time: Duration) -> bool {
    let Ok(named) = name(path) else { return false };
    let is_old = made_at(&named).is_some_and(|at| at.elapsed().is_ok_and(|age| age > time));
    is_old
        && reopen(&named, false)
            .is_ok_and(|file| fcntl(&file, FcntlArg::F_GET_SEALS).is_ok() && file.try_lock().is_ok())
}

/// When a file in memory was made. It is changed whenever an agent writes to a new page, which an agent does for some time after its profiler
/// was killed; kernels before 5.18 only know that time.
fn made_at(named: &File) -> Option<SystemTime> {
    let made = named.metadata().ok().filter(Metadata::is_file)?;
    let changed = || UNIX_EPOCH + Duration::from_secs(made.ctime().max(0) as u64);
    Some(made.created().unwrap_or_else(|_| changed()))
}

/// A file in no folder, mapped: it is gone with the last process that has it, also if we are killed.
pub(crate) struct AgentMemory {
    file: File,
    map: MmapRaw,
}

impl AgentMemory {
    /// An empty one. Its length is sealed: a process that cut it short would kill whoever reads it.
    pub(crate) fn new() -> io::Result<Self> {
        let file = memfd_create(c"sweetspot", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?.into();
        hold(&file);
        Self::over(file)
    }

    /// That of a process which has it open: an empty file that can be sealed.
    pub(crate) fn of(path: &str) -> io::Result<Self> {
        Self::over(open_made(path)?)
    }

    fn over(file: File) -> io::Result<Self> {
        ftruncate(&file, (MEMORY_WORDS * 8) as i64)?;
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
        let map = MmapOptions::new().len(MEMORY_WORDS * 8).map_raw(&file)?;
        Ok(Self { file, map })
    }

    /// Has the kernel find the memory for its first words now, for us: who shares them need not, and would be ended where
    /// there is none left.
    ///
    /// # Errors
    ///
    /// If there is none left.
    pub(crate) fn reserve(&self, words: usize) -> io::Result<()> {
        let bytes = words.min(MEMORY_WORDS) * 8;
        Ok(fallocate(&self.file, FallocateFlags::empty(), 0, bytes as i64)?)
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
    use agent_memory::words_for;
    use std::sync::atomic::Ordering;
    use std::time::Instant;

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

    /// Whether it holds within 20 s. A child that another test starts has a copy of this process' files until it runs its program.
    fn soon(holds: impl Fn() -> bool) -> bool {
        let until = Instant::now() + Duration::from_secs(20);
        while !holds() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        holds()
    }

    /// One that somebody has open, one that is new, and what is no file in memory, are not.
    #[test]
    fn a_file_is_left_if_nobody_holds_it() {
        let path = |file: &File| format!("/proc/self/fd/{}", file.as_raw_fd());
        let made = || {
            File::from(memfd_create(c"made", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING).unwrap())
        };
        let (file, other) = (made(), tempfile::tempfile().unwrap());
        let memory = AgentMemory::of(&path(&file)).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        let is_left = |file: &File| is_left_for(&path(file), Duration::ZERO);
        assert!(!is_left(&file), "it is in use");
        drop(memory);
        assert!(soon(|| is_left(&file)) && !super::is_left(&path(&file)), "it is new");
        assert!(!is_left(&other) && !is_left_for("/dev/null", Duration::ZERO));
        let library = made();
        let writer = open_made(&path(&library)).unwrap();
        assert!(!is_left(&library));
        drop(writer);
        assert!(soon(|| is_left(&library)));
    }

    /// The agent of a profiler that was killed goes on for some time.
    #[test]
    fn a_file_is_as_old_as_when_it_was_made_and_not_as_when_it_was_written() {
        let file: File =
            memfd_create(c"made", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING).unwrap().into();
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let memory = AgentMemory::of(&path).unwrap();
        let made_at = || made_at(&name(&path).unwrap());
        let made = made_at();
        std::thread::sleep(Duration::from_millis(1_100)); // the time of a change is given in whole seconds
        memory.words()[MEMORY_WORDS - 1].store(7, Ordering::Relaxed);
        assert!(made.is_some() && made_at() == made);
    }

    #[test]
    fn what_is_reserved_is_there_and_the_rest_is_not() {
        let memory = AgentMemory::new().unwrap();
        let there = || memory.file.metadata().unwrap().blocks() * 512;
        assert_eq!(there(), 0);
        memory.reserve(words_for(3)).unwrap();
        let reserved = there();
        assert!((words_for(3) as u64 * 8..words_for(4) as u64 * 8).contains(&reserved), "{reserved}");
        memory.words()[words_for(2)].store(7, Ordering::Relaxed);
        memory.reserve(words_for(3)).unwrap();
        assert_eq!((there(), memory.words()[words_for(2)].load(Ordering::Relaxed)), (reserved, 7));
    }

    /// Whoever is at the path in the place of what was made comes to no harm.
    #[test]
    fn nothing_but_an_empty_file_in_memory_is_opened_for_writing() {
        let path = |file: &dyn AsRawFd| format!("/proc/self/fd/{}", file.as_raw_fd());
        let made = |flags| memfd_create(c"made", flags).unwrap();
        let sealable = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let folder = tempfile::tempdir().unwrap();
        for place in [folder.path(), std::path::Path::new("/dev/shm")] {
            let Ok(file) = tempfile::NamedTempFile::new_in(place) else { continue };
            for content in ["", "theirs"] {
                std::fs::write(file.path(), content).unwrap();
                let readable = File::open(file.path()).unwrap();
                assert!(AgentMemory::of(&path(&readable)).is_err(), "{}", place.display());
                assert_eq!(std::fs::read_to_string(file.path()).unwrap(), content);
            }
        }
        assert!(open_made(&path(&File::open("/dev/null").unwrap())).is_err());
        assert!(open_made(&path(&made(MFdFlags::MFD_CLOEXEC))).is_err(), "one that nobody can seal");
        let full = File::from(made(sealable));
        full.set_len(1).unwrap();
        assert!(open_made(&path(&full)).is_err());
        let readable = File::open(path(&made(sealable)));
        let empty = made(sealable);
        assert!(readable.is_ok_and(|file| open_made(&path(&file)).is_ok()));
        assert!(AgentMemory::of(&path(&empty)).is_ok_and(|memory| memory.words().len() == MEMORY_WORDS));
        assert!(open_made(&path(&empty)).is_err(), "it has its length by now");
    }
}
