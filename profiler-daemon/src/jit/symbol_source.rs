//! What a program has written about its generated code, for the samples between two cuts.

use std::sync::Arc;

use profiler_core::stack::GeneratedCode;
use rustc_hash::FxHashMap;
use symbolizer::{CodePlace, JitDump, NamedFrame};

use super::NO_FILE;
use super::home::{FoundPerfMap, Home, OwnPerfMap};
use super::limits::ReadLimits;
use super::perf_map::PerfMapFile;
use super::program::{Awaited, CodeFile, JitJournal};
use crate::objects::names::{NameRoom, Naming};
use crate::opener::Mount;
use crate::roots::Roots;

/// Why code has no name if the perf map of its program was not read.
const TOO_MANY_ENDED: &str =
    "too many programs that generate code ended at once, and not all of their perf maps were read";

/// A program's perf maps and journals. They go on growing while it lives.
pub(super) struct JitSymbolSource {
    pub(super) home: Option<Arc<Home>>,
    /// Lists of the processes that it was forked from.
    pub(super) inherited: Vec<Arc<PerfMapFile>>,
    /// Its own.
    pub(super) own: Arc<OwnPerfMap>,
    /// Whether the program has ended: a file where its perf map was may be another program's by now.
    pub(super) has_ended: bool,
    pub(super) journals: Vec<Arc<JitJournal>>,
    pub(super) files: Arc<Vec<CodeFile>>,
    pub(super) awaited: Awaited,
}

/// The functions that a program named in the code that it generated.
pub(crate) struct JitSymbols {
    /// By address or pseudo-address: the address, and the function there.
    frames: FxHashMap<u64, (u64, NamedFrame)>,
    files: Arc<Vec<CodeFile>>,
    /// Why the others have no name.
    pub(crate) missing: String,
}

impl JitSymbols {
    /// The actual address behind a frame's, and the function there.
    pub(crate) fn frame(&self, address: u64) -> Option<&(u64, NamedFrame)> {
        self.frames.get(&address)
    }

    /// The file that is no object, and the offset in it, where an address without a name lies.
    pub(crate) fn file(&self, address: u64) -> Option<(&Arc<str>, u64)> {
        self.files.iter().rev().find_map(|file| file.place(address))
    }
}

/// What the last journal says that says anything, with its place in the row.
pub(super) fn newest_first<T>(
    journals: &[Arc<JitJournal>],
    ask: impl Fn(&JitDump) -> Option<T>,
) -> Option<(u32, T)> {
    let mut newest_first = journals.iter().enumerate().rev();
    newest_first.find_map(|(row, journal)| Some((row as u32, ask(&journal.dump())?)))
}

impl JitSymbolSource {
    /// The names of these addresses, in the naming `now`.
    pub(super) fn symbols(
        self,
        addresses: &[u64],
        roots: &Roots,
        room: &NameRoom,
        now: Naming,
        limits: &mut ReadLimits,
    ) -> JitSymbols {
        let (files, wait) = (Arc::clone(&self.files), limits.wait());
        let unanswered = |path: &str| JitSymbols {
            frames: FxHashMap::default(),
            files: Arc::clone(&files),
            missing: format!("the file system of {path} does not answer: mount it again or unmount it"),
        };
        let is_settled = self.has_ended && self.own.get().is_some();
        if let Some(home) = &self.home
            && !is_settled
            && !home.look_for_perf_map(&self.own, roots, wait)
            && self.own.get().is_none()
            && self.journals.is_empty()
            && self.inherited.is_empty()
        {
            return unanswered(&home.perf_map.to_string_lossy());
        }
        let Some((mount, path)) = self.not_local() else { return self.read(addresses, room, now, limits) };
        let (addresses, room, mut taken) = (addresses.to_vec(), room.clone(), limits.clone());
        let read = move || {
            let symbols = self.read(&addresses, &room, now, &mut taken);
            (symbols, taken)
        };
        match roots.opener().call(&mount, wait, read) {
            Ok((symbols, left)) => {
                *limits = left;
                symbols
            }
            Err(_) => unanswered(&path),
        }
    }

    /// A file that may not answer when it is read, and what answers for it.
    fn not_local(&self) -> Option<(Mount, String)> {
        let own = self.own.get();
        let perf_maps = own.iter().chain(&self.inherited);
        let perf_maps = perf_maps.map(|perf_map| (perf_map.file(), perf_map.path.clone()));
        let journals = self.journals.iter().map(|journal| (journal.file(), "its jitdump".to_owned()));
        let mut remote = perf_maps.chain(journals).filter(|(file, _)| !file.is_local());
        remote.next().map(|(file, path)| (file.mount(), path))
    }

    fn read(&self, addresses: &[u64], room: &NameRoom, now: Naming, limits: &mut ReadLimits) -> JitSymbols {
        self.journals.iter().for_each(|journal| journal.read_on(limits.journal_bytes));
        let known = addresses.iter().filter_map(|&address| Some((address, self.frame_in_journal(address)?)));
        let mut frames: FxHashMap<u64, (u64, NamedFrame)> = known.collect();
        for perf_map in self.own.get().iter().chain(self.inherited.iter().rev()) {
            let open = addresses.iter().copied().filter(|address| !frames.contains_key(address));
            let open: Vec<u64> = open.collect();
            let named = perf_map.names(&open, room, now, limits);
            let named = open.into_iter().zip(named);
            frames.extend(named.filter_map(|(address, frame)| Some((address, (address, frame?)))));
        }
        let missing = if limits.take_exceeded() { TOO_MANY_ENDED.to_owned() } else { self.missing() };
        JitSymbols { frames, files: Arc::clone(&self.files), missing }
    }

    /// The actual address behind one, and the function there.
    fn frame_in_journal(&self, address: u64) -> Option<(u64, NamedFrame)> {
        let frame = |dump: &JitDump, place| Some((dump.address(place)?, dump.frame(place)?));
        if let Some(GeneratedCode { number, offset }) = GeneratedCode::from_address(address) {
            let journal = self.journals.get((number >> CodePlace::NUMBER_BITS) as usize)?;
            let number = number & ((1 << CodePlace::NUMBER_BITS) - 1);
            return frame(&journal.dump(), CodePlace { number, offset });
        }
        let &(first_ns, last_ns) = self.awaited.get(&address)?;
        let found =
            newest_first(&self.journals, |dump| frame(dump, dump.during(address, first_ns, last_ns)?));
        found.map(|(_, found)| found)
    }

    fn missing(&self) -> String {
        if let Some(journal) = self.journals.last() {
            return journal.missing();
        }
        let Some(home) = &self.home else {
            return self.inherited.last().map_or_else(|| NO_FILE.to_owned(), |perf_map| perf_map.missing());
        };
        let path = home.perf_map.display();
        match (self.own.found(), self.inherited.last()) {
            (FoundPerfMap::Open(perf_map), _) => perf_map.missing(),
            (FoundPerfMap::OfAnother { user }, _) => format!(
                "{NO_FILE}, and the perf map {path} belongs to another user (uid {user}), and is not believed"
            ),
            (FoundPerfMap::Absent, Some(inherited)) => inherited.missing(),
            (FoundPerfMap::Absent, None) => format!("{NO_FILE}, and the program wrote no perf map ({path})"),
        }
    }
}
