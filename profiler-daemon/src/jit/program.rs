//! One program that generates code, from its `execve` to its end.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use profiler_core::record::Mapped;
use profiler_core::stack::GeneratedCode;
use rustc_hash::FxHashMap;
use symbolizer::{CodePlace, JitDump, ReadAt, Reason};

use super::LONGEST_PAUSE;
use super::home::{Home, OwnPerfMap};
use super::perf_map::PerfMapFile;
use super::symbol_source::JitSymbolSource;
use crate::objects;
use crate::objects::memory::SymbolMemory;
use crate::objects::target_file::TargetFile;
use crate::opener::{Mount, Opener, Wait};
use crate::roots::Roots;

/// Of a journal, read under one lock.
const JOURNAL_AT_ONCE: u64 = 1 << 20;
/// What a byte of a journal takes of memory at most.
const BYTES_PER_BYTE: u64 = 8;
/// Lists, and journals, that are kept for a process: its own, and those of the processes that it was forked from.
const MOST_KEPT: usize = 4;
/// Mapped files that are no objects, and are remembered.
const MOST_FILES: usize = 4_096;
/// Addresses that are remembered until the journal tells of them.
const MOST_AWAITED: usize = 1 << 16;

/// What is known of a program.
#[derive(Default)]
pub(super) struct JitProgram {
    home: Option<Arc<Home>>,
    /// Lists of the processes that it was forked from.
    inherited: Vec<Arc<PerfMapFile>>,
    /// Its own, as it was last found: here, or where it is named.
    own: Arc<OwnPerfMap>,
    /// The place in this row is part of a code's number.
    journals: Vec<Arc<JitJournal>>,
    files: Arc<Vec<CodeFile>>,
    /// Addresses that the journal did not know when they were met: from when, until when (ns).
    awaited: Awaited,
    /// Journals on file systems that have not answered yet.
    late_journals: Vec<Receiver<OpenedJournal>>,
    pause: u32,
    refreshes: u32,
    has_ended: bool,
}

/// A journal, if it is there and may be believed.
type OpenedJournal = Option<Arc<JitJournal>>;

/// Addresses, and from when until when they were met (ns).
pub(super) type Awaited = FxHashMap<u64, (u64, u64)>;

/// A file with code that is no object: a run-time compiler's memory, or a format of its own.
#[derive(Clone)]
pub(super) struct CodeFile {
    range: Range<u64>,
    file_offset: u64,
    path: Arc<str>,
}

impl CodeFile {
    /// The file, and the offset in it, where an address lies.
    pub(super) fn place(&self, address: u64) -> Option<(&Arc<str>, u64)> {
        let from_start = address.checked_sub(self.range.start).filter(|_| address < self.range.end)?;
        Some((&self.path, self.file_offset.saturating_add(from_start)))
    }
}

/// A journal that a program goes on writing.
pub(super) struct JitJournal {
    file: TargetFile,
    dump: Mutex<JitDump>,
    /// Room that is taken of this for what it told; given back at the end.
    memory: SymbolMemory,
    taken: AtomicU64,
}

impl Drop for JitJournal {
    fn drop(&mut self) {
        self.memory.give_back_journal(*self.taken.get_mut());
    }
}

impl JitJournal {
    /// One that is open. This asks its file system.
    fn new(file: File, memory: &SymbolMemory) -> io::Result<Self> {
        let file = TargetFile::new(file)?;
        Ok(Self { file, dump: Mutex::default(), memory: memory.clone(), taken: AtomicU64::new(0) })
    }

    /// The open file.
    pub(super) fn file(&self) -> &TargetFile {
        &self.file
    }

    /// What it has told so far.
    pub(super) fn dump(&self) -> MutexGuard<'_, JitDump> {
        self.dump.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why it lacks a code.
    pub(super) fn missing(&self) -> String {
        let dump = self.dump();
        let is_cut = dump.is_behind() || dump.has_given_up();
        match (dump.failure(), dump.left_out()) {
            (Some(Reason::CorruptJitDump), _) => {
                "the program's jitdump is corrupt: nothing behind the damage is known".to_owned()
            }
            (Some(reason), _) => format!("the program's jitdump was not read whole: {reason}"),
            (None, 0) if is_cut => "the program's jitdump was too long to be read whole".to_owned(),
            (None, 0) => "the program's jitdump does not contain it".to_owned(),
            (None, left_out) => format!("the program's jitdump was not read whole: {left_out} left out"),
        }
    }

    /// What it has told so far, if nobody else reads it at this moment, and if it was read to its end: what comes after says which code took
    /// the place of which.
    fn up_to_date(&self) -> Option<MutexGuard<'_, JitDump>> {
        self.at_hand().filter(|dump| !dump.is_behind())
    }

    fn at_hand(&self) -> Option<MutexGuard<'_, JitDump>> {
        match self.dump.try_lock() {
            Ok(dump) => Some(dump),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Reads on, on the thread that samples, unless another thread does at this moment. Returns how much that was, as far as it is
    /// known (bytes).
    fn read_to_sample(self: &Arc<Self>, most_bytes: u64, opener: &Opener) -> u64 {
        if self.file.is_local() {
            return self.read_some(most_bytes);
        }
        let mount = self.file.mount();
        if opener.is_stalled(&mount) {
            return 0;
        }
        let journal = Arc::clone(self);
        opener.call(&mount, Wait::Sampling, move || journal.read_some(most_bytes)).unwrap_or(0)
    }

    fn read_some(&self, most_bytes: u64) -> u64 {
        let Some(mut dump) = self.at_hand() else { return 0 };
        self.read_into(&mut dump, most_bytes)
    }

    /// Reads on to the end, or so much. Whoever samples gets hold of it in between.
    pub(super) fn read_on(&self, most_bytes: u64) {
        let mut left = most_bytes;
        while left > 0 {
            let mut dump = self.dump();
            let read = self.read_into(&mut dump, left.min(JOURNAL_AT_ONCE));
            if read == 0 || !dump.is_behind() {
                return;
            }
            left = left.saturating_sub(read);
        }
    }

    /// What was read before an error stays; names that are missing say so themselves. Where there may be no room for more, it is
    /// the end.
    fn read_into(&self, dump: &mut JitDump, most_bytes: u64) -> u64 {
        if dump.has_ended() {
            return 0;
        }
        let before = dump.bytes_read();
        let Ok(file) = self.file.readable() else { return 0 };
        let unread = ReadAt::len(&*file).unwrap_or(0).saturating_sub(before);
        let needed = unread.min(2 * JOURNAL_AT_ONCE) * BYTES_PER_BYTE;
        if !self.memory.take_journal(needed) {
            dump.give_up();
            return 0;
        }
        let _ = dump.read(&*file, most_bytes);
        let taken = self.taken.load(Ordering::Relaxed) + needed; // changed by who has the journal alone
        let held = dump.held_bytes();
        self.memory.give_back_journal(taken.saturating_sub(held));
        let more = held.saturating_sub(taken);
        let is_taken = self.memory.take_journal(more);
        self.taken.store(if is_taken { held } else { taken }, Ordering::Relaxed);
        if !is_taken {
            dump.give_up();
        }
        dump.bytes_read() - before
    }
}

impl JitProgram {
    /// The same program in a child.
    pub(super) fn fork(&self) -> Self {
        let lists: Vec<_> = self.inherited.iter().cloned().chain(self.own.get()).collect();
        let oldest = lists.len().saturating_sub(MOST_KEPT - 1);
        let inherited = lists[oldest..].to_vec();
        let (journals, files) = (self.journals.clone(), Arc::clone(&self.files));
        Self { inherited, journals, files, ..Self::default() }
    }

    /// The program has mapped a file with code that is no object.
    pub(super) fn note_file(&mut self, mapped: &Mapped) {
        let range = mapped.start..mapped.start.saturating_add(mapped.len);
        let files = Arc::make_mut(&mut self.files);
        files.retain(|known| known.range != range);
        if files.len() < MOST_FILES {
            let (file_offset, path) = (mapped.file_offset, Arc::from(mapped.path.as_str()));
            files.push(CodeFile { range, file_offset, path });
        }
    }

    /// Learns where the program is, and opens its perf map if there is one. Only the first call does anything.
    pub(super) fn look_up(&mut self, pid: u32, roots: &Roots) {
        if self.home.is_none() {
            self.home = Some(Arc::new(Home::of(pid, roots)));
            self.find_perf_map(roots);
        }
    }

    /// Opens the journal that the program has mapped.
    pub(super) fn open_journal(&mut self, mapped: &Mapped, roots: &Roots, memory: &SymbolMemory) {
        let Some(home) = self.home.clone() else { return };
        let mount = Mount::Device { major: mapped.file.major, minor: mapped.file.minor };
        let (mapped, opened, memory) = (mapped.clone(), roots.clone(), memory.clone());
        let open = move || {
            let file = objects::open_mapped(&mapped, home.view, &opened).ok()?;
            let is_believed = file.metadata().is_ok_and(|meta| home.believes(meta.uid()));
            is_believed.then(|| JitJournal::new(file, &memory).ok().map(Arc::new)).flatten()
        };
        match roots.opener().call(&mount, Wait::Sampling, open) {
            Ok(opened) => self.add_journal(opened),
            Err(later) if self.late_journals.len() < MOST_KEPT => self.late_journals.push(later),
            Err(_) => {}
        }
    }

    fn add_journal(&mut self, opened: OpenedJournal) {
        let is_known =
            |opened: &Arc<JitJournal>| self.journals.iter().any(|known| known.file.is_same(&opened.file));
        let new = opened.filter(|opened| !is_known(opened) && self.journals.len() < MOST_KEPT);
        self.journals.extend(new);
    }

    fn add_late_journals(&mut self) {
        for later in std::mem::take(&mut self.late_journals) {
            match later.try_recv() {
                Ok(opened) => self.add_journal(opened),
                Err(TryRecvError::Empty) => self.late_journals.push(later),
                Err(TryRecvError::Disconnected) => {}
            }
        }
    }

    fn find_perf_map(&self, roots: &Roots) {
        if let Some(home) = &self.home {
            home.look_for_perf_map(&self.own, roots, Wait::Sampling);
        }
    }

    /// Looks now and then for a perf map, and reads on in the journals, so much of them all. Returns how much that was (bytes).
    pub(super) fn refresh(&mut self, roots: &Roots, most_bytes: u64) -> u64 {
        self.refreshes += 1;
        if self.own.get().is_none() && self.refreshes > self.pause {
            (self.refreshes, self.pause) = (0, (2 * self.pause + 1).min(LONGEST_PAUSE));
            self.find_perf_map(roots);
        }
        self.add_late_journals();
        let mut left = most_bytes;
        for journal in &self.journals {
            left = left.saturating_sub(journal.read_to_sample(left, roots.opener()));
        }
        most_bytes - left
    }

    pub(super) fn has_journal(&self) -> bool {
        !self.journals.is_empty()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// The last chance to find what the program wrote; it is read by whoever asks for names.
    pub(super) fn end(&mut self, roots: &Roots) {
        if !self.has_ended {
            self.find_perf_map(roots);
            self.has_ended = true;
        }
    }

    /// Nothing of it runs any more: what is half written stays so.
    pub(super) fn finish(&self) {
        self.own.finish();
    }

    /// Takes an address to the pseudo-address of the code that it belonged to at a time.
    pub(super) fn translate(&mut self, address: &mut u64, time_ns: u64) {
        match self.known_at(*address, time_ns) {
            Some((row, CodePlace { number, offset })) => {
                let number = row << CodePlace::NUMBER_BITS | number;
                *address = GeneratedCode { number, offset }.to_address();
            }
            None if self.awaited.len() < MOST_AWAITED || self.awaited.contains_key(address) => {
                self.awaited.entry(*address).or_insert((time_ns, time_ns)).1 = time_ns;
            }
            None => {}
        }
    }

    /// The code at an address, by the newest journal that knows it. Nothing while a newer one may be yet to tell.
    fn known_at(&self, address: u64, time_ns: u64) -> Option<(u32, CodePlace)> {
        for (row, journal) in self.journals.iter().enumerate().rev() {
            if let Some(place) = journal.up_to_date()?.at(address, time_ns) {
                return Some((row as u32, place));
            }
        }
        None
    }

    /// Hands over what names the samples until now.
    pub(super) fn symbol_source(&mut self) -> JitSymbolSource {
        JitSymbolSource {
            home: self.home.clone(),
            inherited: self.inherited.clone(),
            own: Arc::clone(&self.own),
            has_ended: self.has_ended,
            journals: self.journals.clone(),
            files: Arc::clone(&self.files),
            awaited: std::mem::take(&mut self.awaited),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::chown;
    use std::os::unix::process::CommandExt;
    use std::path::{Path, PathBuf};
    use std::process::Command;

    use super::*;
    use crate::jit::JitSymbols;
    use crate::jit::limits::ReadLimits;
    use crate::objects::names::Naming;
    use crate::objects::{ObjectStore, Symbols};
    use crate::roots::RootView;
    use crate::sys::procfs;

    /// A perf map at this place, and the program whose it would be.
    fn program(perf_map: PathBuf, user: u32) -> JitProgram {
        let home = Home { view: RootView::Ours, perf_map, user, process: None };
        JitProgram { home: Some(Arc::new(home)), ..JitProgram::default() }
    }

    fn symbols(program: &mut JitProgram, addresses: &[u64]) -> JitSymbols {
        program.symbol_source().symbols(
            addresses,
            &Roots::default(),
            &ObjectStore::new(&Symbols::new(1 << 28)).snapshot().names,
            Naming::default(),
            &mut ReadLimits::of_naming(),
        )
    }

    fn names(program: &mut JitProgram, addresses: &[u64]) -> Vec<Option<String>> {
        let symbols = symbols(program, addresses);
        addresses.iter().map(|&address| Some(symbols.frame(address)?.1.name.to_string())).collect()
    }

    #[test]
    fn a_list_is_read_when_the_program_ends_even_if_it_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let perf_map = folder.path().join("perf-7.map");
        let roots = Roots::default();
        let mut program = program(perf_map.clone(), nix::unistd::geteuid().as_raw());
        program.refresh(&roots, 1 << 20);
        assert_eq!(names(&mut program, &[0x1000]), [None]);
        std::fs::write(&perf_map, "1000 10 early\n").unwrap();
        program.refresh(&roots, 1 << 20);
        program.refresh(&roots, 1 << 20);
        std::fs::write(&perf_map, "1000 10 early\n2000 10 late\n").unwrap();
        std::fs::remove_file(&perf_map).unwrap();
        program.end(&roots);
        assert_eq!(
            names(&mut program, &[0x2000, 0x1000, 0x3000]),
            [Some("late".into()), Some("early".into()), None]
        );
        let mut child = program.fork();
        assert_eq!(names(&mut child, &[0x1000]), [Some("early".into())]);
        let missing = symbols(&mut program, &[]).missing;
        assert!(missing.contains("perf-7.map"), "{missing}");
    }

    #[test]
    fn a_list_that_is_removed_and_written_again_is_opened_again() {
        let folder = tempfile::tempdir().unwrap();
        let perf_map = folder.path().join("perf-7.map");
        let rewrite = |text: &str| {
            let other = folder.path().join("other");
            std::fs::write(&other, text).unwrap();
            std::fs::rename(&other, &perf_map).unwrap();
        };
        let mut program = program(perf_map.clone(), nix::unistd::geteuid().as_raw());
        let first = || Some("first".to_owned());
        rewrite("1000 10 first\n");
        assert_eq!(names(&mut program, &[0x1000, 0x2000]), [first(), None]);
        std::fs::remove_file(&perf_map).unwrap();
        assert_eq!(names(&mut program, &[0x1000, 0x2000]), [first(), None], "it is still open");
        rewrite("2000 10 second\n");
        assert_eq!(names(&mut program, &[0x1000, 0x2000]), [None, Some("second".to_owned())]);
        rewrite("2000 10 third\n");
        program.end(&Roots::default());
        // After its end, what is there is another program's.
        rewrite("2000 10 of another\n");
        assert_eq!(names(&mut program, &[0x2000]), [Some("third".to_owned())]);
    }

    #[test]
    fn code_in_a_file_that_is_no_object_is_told_by_the_list_or_placed_in_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let perf_map = folder.path().join("perf-7.map");
        std::fs::write(&perf_map, "5000 10 listed\n").unwrap();
        let mut program = program(perf_map, nix::unistd::geteuid().as_raw());
        let map = |start, file_offset, path: &str| Mapped {
            pid: 7,
            start,
            len: 0x1000,
            file_offset,
            file: profiler_core::record::FileId { major: 0, minor: 0, inode: 5, generation: 0 },
            path: path.to_owned(),
        };
        program.note_file(&map(0x5000, 0x300, "/a/old.dll"));
        program.note_file(&map(0x5000, 0x400, "/a/lib.dll"));
        let mut child = program.fork();
        for program in [&mut program, &mut child] {
            let symbols = symbols(program, &[0x5008, 0x5108]);
            let place = |address| symbols.file(address).map(|(path, offset)| (path.to_string(), offset));
            assert_eq!(place(0x5108), Some(("/a/lib.dll".to_owned(), 0x508)));
            assert_eq!((place(0x4fff), place(0x6000)), (None, None));
        }
        assert_eq!(names(&mut program, &[0x5008, 0x5108]), [Some("listed".to_owned()), None]);
    }

    const STRANGER: u32 = 54_321;

    /// A perf map, the user that it belongs to, and another one. Where that is permitted, the file is given to a user of its own.
    fn perf_map_of_another(folder: &Path) -> (PathBuf, u32, u32) {
        let perf_map = folder.join("perf-7.map");
        std::fs::write(&perf_map, "1000 10 forged\n").unwrap();
        let own = nix::unistd::geteuid().as_raw();
        match chown(&perf_map, Some(STRANGER), None) {
            Ok(()) => (perf_map, STRANGER, own),
            Err(_) => (perf_map, own, own + 1),
        }
    }

    #[test]
    fn what_belongs_to_another_user_is_not_believed_and_the_reason_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let (perf_map, user, other) = perf_map_of_another(folder.path());
        let mut program = program(perf_map.clone(), other);
        program.end(&Roots::default());
        assert_eq!(names(&mut program, &[0x1000]), [None]);
        let missing = symbols(&mut program, &[]).missing;
        assert!(missing.contains(&format!("belongs to another user (uid {user})")), "{missing}");
        std::fs::remove_file(&perf_map).unwrap();
        let missing = symbols(&mut program, &[]).missing;
        assert!(missing.contains("wrote no perf map"), "{missing}");
    }

    #[test]
    fn a_process_that_has_changed_its_user_is_believed_as_the_other_one() {
        let folder = tempfile::tempdir().unwrap();
        let (perf_map, user, before) = perf_map_of_another(folder.path());
        let mut process = Command::new("sleep").arg("60").uid(user).spawn().unwrap();
        let began = procfs::start_ticks(process.id()).unwrap();
        let named = |began| {
            let home = Home {
                view: RootView::Ours,
                perf_map: perf_map.clone(),
                user: before,
                process: Some((process.id(), began)),
            };
            let mut program = JitProgram { home: Some(Arc::new(home)), ..JitProgram::default() };
            names(&mut program, &[0x1000])
        };
        let (of_this, of_its_number) = (named(began), named(began + 1));
        process.kill().and_then(|()| process.wait()).unwrap();
        assert_eq!((of_this, of_its_number), (vec![Some("forged".to_owned())], vec![None]));
    }

    /// A journal of this many codes of 16 bytes, one behind the other, each with its number as its name.
    fn journal(codes: u64) -> Vec<u8> {
        let word = |number: u32| number.to_ne_bytes().to_vec();
        let mut bytes = [0x4a69_5444, 1, 40, 62, 0, 7].map(word).concat();
        bytes.extend([0; 16]);
        for number in 0..codes {
            let name = format!("code {number}\0");
            bytes.extend([word(0), word(56 + name.len() as u32), vec![0; 24]].concat());
            bytes.extend([16 * number, 16, number].map(u64::to_ne_bytes).concat());
            bytes.extend(name.bytes());
        }
        bytes
    }

    #[test]
    fn of_a_long_journal_whoever_samples_reads_little_and_whoever_names_all() {
        const CODES: u64 = 50_000;
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&journal(CODES)).unwrap();
        let memory = SymbolMemory::new(1 << 28);
        let journal = Arc::new(JitJournal::new(file, &memory).unwrap());
        let mut program = JitProgram { journals: vec![journal], ..JitProgram::default() };
        let read = program.refresh(&Roots::default(), 1 << 20);
        assert!((1 << 19..2 << 20).contains(&read), "{read}");
        let mut address = 16 * 3;
        program.translate(&mut address, 1);
        assert_eq!(address, 16 * 3, "what was not read may say that other code took its place");
        program.translate(&mut (16 * (CODES - 1)), 1);
        let addresses = [address, 16 * (CODES - 1)];
        assert_eq!(
            names(&mut program, &addresses),
            [Some("code 3".to_owned()), Some(format!("code {}", CODES - 1))]
        );
        program.translate(&mut address, 1);
        assert!(GeneratedCode::from_address(address).is_some(), "it was read");
    }

    #[test]
    fn code_that_a_damaged_journal_lacks_is_said_to_be_lost_by_the_damage() {
        let mut bytes = journal(3);
        bytes.extend([9u32, 15, 0, 0].map(u32::to_ne_bytes).concat()); // a record shorter than its header
        bytes.extend(vec![0; 4 << 20]);
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        let journal = Arc::new(JitJournal::new(file, &SymbolMemory::new(1 << 28)).unwrap());
        let mut program = JitProgram { journals: vec![journal], ..JitProgram::default() };
        program.refresh(&Roots::default(), 1 << 20);
        program.translate(&mut 32, 9);
        let symbols = symbols(&mut program, &[32]);
        assert!(symbols.frame(32).is_none() && symbols.missing.contains("corrupt"), "{}", symbols.missing);
    }

    #[test]
    fn journals_take_no_more_memory_than_there_is_for_them() {
        const CODES: u64 = 250_000;
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&journal(CODES)).unwrap();
        let memory = SymbolMemory::new(128 << 20);
        let read = Arc::new(JitJournal::new(file.try_clone().unwrap(), &memory).unwrap());
        let mut program = JitProgram { journals: vec![Arc::clone(&read)], ..JitProgram::default() };
        program.translate(&mut 16, 1);
        assert_eq!(names(&mut program, &[16]), [None], "what was not read may be about it");
        let held = read.dump().held_bytes();
        assert!((8 << 20..=memory.cap() / 4).contains(&held) && memory.held() == held, "{held}");
        assert!(symbols(&mut program, &[]).missing.contains("too long"));
        drop((read, program));
        assert_eq!(memory.held(), 0);
        let memory = SymbolMemory::new(1 << 30);
        let journals = vec![Arc::new(JitJournal::new(file, &memory).unwrap())];
        let mut program = JitProgram { journals, ..JitProgram::default() };
        program.translate(&mut 16, 1);
        assert_eq!(names(&mut program, &[16]), [Some("code 1".to_owned())]);
        assert!(memory.held() > held, "{}", memory.held());
    }
}
