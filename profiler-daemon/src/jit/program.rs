//! One program that generates code, from its `execve` to its end.

use std::cell::RefCell;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use profiler_core::record::Mapped;
use profiler_core::stack::GeneratedCode;
use rustc_hash::FxHashMap;
use symbolizer::{CodePlace, Frame, JitDump, PerfMap};

use super::LONGEST_PAUSE;
use crate::objects;
use crate::roots::{Roots, View};
use crate::sys::procfs::{self, Identity};
use crate::sys::root::Link;

/// Of a longer list, the end is read: later lines count.
const LONGEST_LIST: u64 = 64 << 20;
/// Of a journal, read at each refresh, and in all.
const JOURNAL_AT_ONCE: u64 = 16 << 20;
const LONGEST_JOURNAL: u64 = 1 << 30;
/// Lists, and journals, that are kept for a process: its own, and those of the processes that it was forked from.
const MOST_KEPT: usize = 4;
/// Addresses that are remembered until the journal tells of them.
const MOST_AWAITED: usize = 1 << 16;

/// What is known of a program.
#[derive(Default)]
pub(super) struct Program {
    home: Option<Home>,
    /// Its own list, and before it those of the processes that it was forked from.
    lists: Vec<Rc<List>>,
    has_own_list: bool,
    /// As the lists; the place in this row is part of a code's number.
    journals: Vec<Rc<RefCell<Journal>>>,
    /// Addresses that the journal did not know when they were met: from when, until when (ns).
    awaited: FxHashMap<u64, (u64, u64)>,
    pause: u32,
    refreshes: u32,
    has_ended: bool,
}

/// Where a program's list would be, and whose.
struct Home {
    view: View,
    list: PathBuf,
    owner: Owner,
}

/// Only what the target's user wrote is believed, or the system's: anybody can put a file into `/tmp`.
#[derive(Clone, Copy)]
struct Owner(u32);

struct List {
    file: File,
    path: String,
}

struct Journal {
    file: File,
    dump: JitDump,
}

impl Owner {
    fn owns(self, file: &File) -> bool {
        file.metadata().is_ok_and(|meta| meta.uid() == self.0 || meta.uid() == 0)
    }
}

impl Home {
    fn of(pid: u32, roots: &Roots) -> Self {
        // Of a process that is gone already, we know its number and may hope that it was like us.
        let ours = || Identity { pid, user: nix::unistd::geteuid().as_raw() };
        let Identity { pid: inner_pid, user } = procfs::identity(pid).unwrap_or_else(ours);
        let list = PathBuf::from(format!("/tmp/perf-{inner_pid}.map"));
        Self { view: roots.of(pid), list, owner: Owner(user) }
    }
}

impl Program {
    /// The same program in a child.
    pub(super) fn fork(&self) -> Self {
        let oldest = self.lists.len().saturating_sub(MOST_KEPT - 1);
        Self { lists: self.lists[oldest..].to_vec(), journals: self.journals.clone(), ..Self::default() }
    }

    /// Learns where the program is, and opens its list if there is one. Only the first call does anything.
    pub(super) fn look_up(&mut self, pid: u32, roots: &Roots) {
        if self.home.is_none() {
            self.home = Some(Home::of(pid, roots));
            self.find_list(roots);
        }
    }

    /// Opens the journal that the program has mapped.
    pub(super) fn open_journal(&mut self, mapped: &Mapped, roots: &Roots) {
        let Some(home) = &self.home else { return };
        let Ok(file) = objects::open_mapped(mapped, home.view, roots) else { return };
        let is_known = self.journals.iter().any(|journal| is_same(&journal.borrow().file, &file));
        if home.owner.owns(&file) && !is_known && self.journals.len() < MOST_KEPT {
            self.journals.push(Rc::new(RefCell::new(Journal { file, dump: JitDump::default() })));
        }
    }

    fn find_list(&mut self, roots: &Roots) {
        let Some(home) = self.home.as_ref().filter(|_| !self.has_own_list) else { return };
        let found = roots.open(home.view, &home.list, Link::Refuse).ok().filter(|file| home.owner.owns(file));
        if let Some(file) = found {
            self.has_own_list = true;
            self.lists.push(Rc::new(List { file, path: home.list.to_string_lossy().into_owned() }));
        }
    }

    /// Looks now and then for a list, and reads on in the journal.
    pub(super) fn refresh(&mut self, roots: &Roots) {
        self.refreshes += 1;
        if !self.has_own_list && self.refreshes > self.pause {
            (self.refreshes, self.pause) = (0, (2 * self.pause + 1).min(LONGEST_PAUSE));
            self.find_list(roots);
        }
        self.read_journals(JOURNAL_AT_ONCE);
    }

    fn read_journals(&self, most_bytes: u64) {
        for journal in &self.journals {
            let Journal { file, dump } = &mut *journal.borrow_mut();
            // What was read before an error stays; names that are missing say so themselves.
            let _ = dump.read(file, most_bytes);
        }
    }

    pub(super) fn has_journal(&self) -> bool {
        !self.journals.is_empty()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// The last chance to find what the program wrote.
    pub(super) fn end(&mut self, roots: &Roots) {
        if !self.has_ended {
            self.find_list(roots);
            self.read_journals(LONGEST_JOURNAL);
            self.has_ended = true;
        }
    }

    /// Takes an address to the pseudo-address of the code that it belonged to at a time.
    pub(super) fn translate(&mut self, address: &mut u64, time_ns: u64) {
        let known = self.newest_first(|dump| dump.at(*address, time_ns));
        match known {
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

    /// What the last journal says that says anything, with its place in the row.
    fn newest_first<T>(&self, ask: impl Fn(&JitDump) -> Option<T>) -> Option<(u32, T)> {
        let mut newest_first = self.journals.iter().enumerate().rev();
        newest_first.find_map(|(row, journal)| Some((row as u32, ask(&journal.borrow().dump)?)))
    }

    /// The names of these addresses.
    pub(super) fn tell(&self, addresses: &[u64]) -> Told {
        let mut told = Told { frames: FxHashMap::default(), missing: self.missing() };
        let known = addresses.iter().filter_map(|&address| Some((address, self.told_by_journal(address)?)));
        told.frames.extend(known);
        for list in self.lists.iter().rev() {
            let open = addresses.iter().copied().filter(|address| !told.frames.contains_key(address));
            let open: Vec<u64> = open.collect();
            let text = list.text();
            let names = PerfMap::new(&text).names(&open);
            let named = open.into_iter().zip(names);
            told.frames.extend(named.filter_map(|(address, name)| {
                let name: Arc<str> = name?.to_string().into();
                Some((
                    address,
                    (address, Frame { linkage_name: Arc::clone(&name), name, file: None, line: None }),
                ))
            }));
        }
        told
    }

    /// The actual address behind one, and the function there.
    fn told_by_journal(&self, address: u64) -> Option<(u64, Frame)> {
        let frame = |dump: &JitDump, place| Some((dump.address(place)?, dump.frame(place)?));
        if let Some(GeneratedCode { number, offset }) = GeneratedCode::from_address(address) {
            let journal = self.journals.get((number >> CodePlace::NUMBER_BITS) as usize)?;
            let number = number & ((1 << CodePlace::NUMBER_BITS) - 1);
            return frame(&journal.borrow().dump, CodePlace { number, offset });
        }
        let &(first_ns, last_ns) = self.awaited.get(&address)?;
        let told = self.newest_first(|dump| frame(dump, dump.during(address, first_ns, last_ns)?));
        told.map(|(_, told)| told)
    }

    fn missing(&self) -> String {
        match (self.lists.last(), self.journals.last(), &self.home) {
            (_, Some(journal), _) => match journal.borrow().dump.left_out() {
                0 => "the program's journal of generated code does not tell of it".to_owned(),
                left_out => {
                    format!("the program's journal of generated code was not read whole: {left_out} left out")
                }
            },
            (Some(list), ..) => format!("the program's list of generated code ({}) lacks it", list.path),
            (None, None, Some(home)) => {
                format!(
                    "the code lies in no file, and the program kept no list of it ({})",
                    home.list.display()
                )
            }
            (None, None, None) => "the code lies in no file".to_owned(),
        }
    }
}

fn is_same(one: &File, other: &File) -> bool {
    let identity = |file: &File| file.metadata().map(|meta| (meta.dev(), meta.ino())).ok();
    identity(one) == identity(other)
}

impl List {
    /// The text, or its last part; empty if it cannot be read.
    fn text(&self) -> Vec<u8> {
        let len = self.file.metadata().map_or(0, |meta| meta.len());
        let skipped = len.saturating_sub(LONGEST_LIST);
        let mut text = vec![0; (len - skipped) as usize];
        if self.file.read_exact_at(&mut text, skipped).is_err() {
            return Vec::new(); // cut short in this very moment
        }
        if skipped > 0 {
            let cut = text.iter().position(|&byte| byte == b'\n').unwrap_or(text.len());
            text.drain(..cut);
        }
        text
    }
}

/// What a program told of the code that it generated.
pub(crate) struct Told {
    /// By address or pseudo-address: the address, and the function there.
    frames: FxHashMap<u64, (u64, Frame)>,
    /// Why the others have no name.
    pub(crate) missing: String,
}

impl Told {
    /// The actual address behind a frame's, and the function there.
    pub(crate) fn frame(&self, address: u64) -> Option<&(u64, Frame)> {
        self.frames.get(&address)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::chown;

    use super::*;

    /// A list at this place, and the program whose it would be.
    fn program(list: PathBuf, user: u32) -> Program {
        let home = Home { view: View::Ours, list, owner: Owner(user) };
        Program { home: Some(home), ..Program::default() }
    }

    fn names(program: &Program, addresses: &[u64]) -> Vec<Option<String>> {
        let told = program.tell(addresses);
        addresses.iter().map(|&address| Some(told.frame(address)?.1.name.to_string())).collect()
    }

    #[test]
    fn a_list_is_read_when_the_program_ends_even_if_it_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let list = folder.path().join("perf-7.map");
        let roots = Roots::default();
        let mut program = program(list.clone(), nix::unistd::geteuid().as_raw());
        program.refresh(&roots);
        assert_eq!(names(&program, &[0x1000]), [None]);
        std::fs::write(&list, "1000 10 early\n").unwrap();
        program.refresh(&roots);
        program.refresh(&roots);
        std::fs::write(&list, "1000 10 early\n2000 10 late\n").unwrap();
        std::fs::remove_file(&list).unwrap();
        program.end(&roots);
        assert_eq!(
            names(&program, &[0x2000, 0x1000, 0x3000]),
            [Some("late".into()), Some("early".into()), None]
        );
        let child = program.fork();
        assert_eq!(names(&child, &[0x1000]), [Some("early".into())]);
        assert!(program.tell(&[]).missing.contains("perf-7.map"), "{}", program.tell(&[]).missing);
    }

    #[test]
    fn what_belongs_to_another_user_is_not_believed() {
        const STRANGER: u32 = 54_321;
        let folder = tempfile::tempdir().unwrap();
        let list = folder.path().join("perf-7.map");
        std::fs::write(&list, "1000 10 forged\n").unwrap();
        let own = nix::unistd::geteuid().as_raw();
        // Who may not give the file away is a stranger to it in another way.
        let user = if chown(&list, Some(STRANGER), None).is_ok() { own } else { own + 1 };
        let mut program = program(list.clone(), user);
        program.end(&Roots::default());
        assert_eq!(names(&program, &[0x1000]), [None]);
        let _ = chown(&list, Some(own), None);
    }
}
