//! Names of the code that the target's processes generate.
//!
//! A process writes them to a list (a perf map) or a journal (a jitdump) while it runs, and neither may
//! outlive it. So both are opened while it lives and kept. Journals are read as they grow, a little at each
//! look. The rest of them, and perf maps, are read when names are needed: when a cut is named, on the thread that
//! does it, or when there are too many programs that have ended. An address may hold other code later, and
//! only the journal's times tell which; of a perf map, the last line counts at that moment.
//!
//! Code in no file belongs to its process (`ObjectId::generated_by`). A frame in code that a journal describes
//! holds the code's number in place of its address, because the address may hold other code later. A drain
//! reads 1 MiB of journals; addresses wait until the rest was read. A code for which there is no room still
//! hides what was at its place before.

mod home;
mod limits;
mod perf_map;
mod program;
mod symbol_source;

use std::path::Path;

use profiler_core::process::AddressSpace;
use profiler_core::profile::ProcessIndex;
use profiler_core::record::Mapped;
use profiler_core::stack::Frame;
use rustc_hash::{FxHashMap, FxHashSet};

use self::limits::ReadLimits;
use self::program::JitProgram;
use self::symbol_source::JitSymbolSource;
pub(crate) use self::symbol_source::JitSymbols;
use crate::objects::is_code_without_file;
use crate::objects::memory::SymbolMemory;
use crate::objects::names::{NameRoom, Naming};
use crate::roots::Roots;

/// Programs that are followed at once; each takes two descriptors, and with a journal some memory.
const MOST_PROGRAMS: usize = 256;
/// Programs that are remembered because there was no room to follow them.
const MOST_REFUSED: usize = 1 << 16;
/// Programs that have ended, and whose perf maps are yet to be read.
const MOST_ENDED: usize = 64;
/// The same of those with a journal, which takes memory.
const MOST_ENDED_JOURNALS: usize = 8;
/// Of all journals, read at each look (bytes).
const READ_AT_ONCE: u64 = 1 << 20;
/// Looks for a perf map that is not there get rarer, up to so many readings apart.
const LONGEST_PAUSE: u32 = 64;

/// Why code has no name, to begin with.
pub(crate) const NO_FILE: &str = "the code lies in no file";

/// Where code lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MappedAs {
    /// Among the code of an object, which has its names.
    Object,
    /// Among the data of one: it was put there at run time.
    Data,
    /// In a file that is no object, or in none.
    NoObject,
}

/// What generates code, by its entry in the profile.
#[derive(Default)]
pub(crate) struct JitStore {
    programs: FxHashMap<ProcessIndex, JitProgram>,
    symbols: FxHashMap<ProcessIndex, JitSymbols>,
    /// Those that could not be followed, because there were too many others.
    refused: FxHashSet<ProcessIndex>,
}

impl JitStore {
    /// Code was mapped, or a journal was. What is an object's code is of no interest.
    pub(crate) fn mapped(
        &mut self,
        process: ProcessIndex,
        mapped: &Mapped,
        place: MappedAs,
        roots: &Roots,
        memory: &SymbolMemory,
    ) {
        let is_journal = is_journal(&mapped.path);
        if !is_journal && place == MappedAs::Object {
            return;
        }
        let Some(program) = self.program(process) else { return };
        program.look_up(mapped.pid, roots);
        if is_journal {
            program.open_journal(mapped, roots, memory);
        } else if place == MappedAs::NoObject && !is_code_without_file(&mapped.path) {
            program.note_file(mapped);
        }
    }

    fn program(&mut self, process: ProcessIndex) -> Option<&mut JitProgram> {
        // An entry that no sample referred to may be another program's by now.
        self.programs.retain(|&index, program| index != process || !program.has_ended());
        if self.programs.len() >= MOST_PROGRAMS && !self.programs.contains_key(&process) {
            if self.refused.len() < MOST_REFUSED {
                self.refused.insert(process);
            }
            return None;
        }
        self.refused.remove(&process);
        Some(self.programs.entry(process).or_default())
    }

    /// A process has its parent's code, until it executes another program.
    pub(crate) fn forked(&mut self, parent: ProcessIndex, child: ProcessIndex) {
        let Some(inherited) = self.programs.get(&parent).map(JitProgram::fork) else {
            // What a process was that had the entry before does not count.
            self.programs.remove(&child);
            self.refused.remove(&child);
            if self.refused.contains(&parent) && self.refused.len() < MOST_REFUSED {
                self.refused.insert(child);
            }
            return;
        };
        if let Some(program) = self.program(child) {
            *program = inherited;
        }
    }

    /// A process was sampled: its code is of interest. Asked for every sample.
    pub(crate) fn sampled(&mut self, process: ProcessIndex, pid: u32, roots: &Roots) {
        if self.programs.is_empty() {
            return;
        }
        if let Some(program) = self.programs.get_mut(&process) {
            program.look_up(pid, roots);
        }
    }

    /// Puts the pseudo-addresses of code that is known by its number in the place of actual ones.
    pub(crate) fn translate(
        &mut self,
        process: ProcessIndex,
        time_ns: u64,
        space: &AddressSpace,
        addresses: &mut [u64],
    ) {
        if let Some(program) = self.programs.get_mut(&process).filter(|program| program.has_journal()) {
            let generated = addresses.iter_mut().filter(|address| !space.is_in_file(**address));
            generated.for_each(|address| program.translate(address, time_ns));
        }
    }

    /// Looks for perf maps and for what is new in journals.
    pub(crate) fn refresh(&mut self, roots: &Roots) {
        let mut left = READ_AT_ONCE;
        for program in self.programs.values_mut().filter(|program| !program.has_ended()) {
            left = left.saturating_sub(program.refresh(roots, left));
        }
    }

    /// A process has ended, or will be another program. `frames`: those of all stacks since the last cuts, of every target.
    pub(crate) fn ended(
        &mut self,
        process: ProcessIndex,
        frames: impl FnOnce() -> Vec<Frame>,
        roots: &Roots,
        room: &NameRoom,
    ) {
        let Some(program) = self.programs.get_mut(&process) else { return };
        program.end(roots);
        program.finish();
        let ended = self.programs.values().filter(|program| program.has_ended());
        let (ended, with_journal) = ended.fold((0, 0), |(ended, with_journal), program| {
            (ended + 1, with_journal + usize::from(program.has_journal()))
        });
        if with_journal > MOST_ENDED_JOURNALS || ended > MOST_ENDED {
            self.read_ended(&frames(), roots, room);
        }
    }

    /// Names what the programs that have ended generated, and forgets them.
    fn read_ended(&mut self, frames: &[Frame], roots: &Roots, room: &NameRoom) {
        let (mut addresses, mut limits) = (by_process(frames), ReadLimits::of_sampling());
        let Self { programs, symbols, .. } = self;
        programs.retain(|process, program| {
            if program.has_ended() {
                let asked = addresses.remove(process);
                symbols.extend(asked.map(|asked| {
                    let source = program.symbol_source();
                    (*process, source.symbols(&asked, roots, room, Naming::default(), &mut limits))
                }));
            }
            !program.has_ended()
        });
    }

    /// The symbols of the code of these processes that was sampled since the last cut, to be read elsewhere. Programs that have
    /// ended, those whose process is not among the `live` ones, are forgotten.
    pub(crate) fn cut(
        &mut self,
        live: &FxHashSet<ProcessIndex>,
        is_cut: impl Fn(ProcessIndex) -> bool,
    ) -> Generated {
        let cut = self.programs.iter_mut().filter(|(process, _)| is_cut(**process));
        let sources = cut.map(|(&process, program)| (process, program.symbol_source())).collect();
        self.programs
            .retain(|process, program| !is_cut(*process) || live.contains(process) && !program.has_ended());
        let symbols = std::mem::take(&mut self.symbols);
        let (symbols, others) = symbols.into_iter().partition(|(process, _)| is_cut(*process));
        self.symbols = others;
        let refused = self.refused.iter().copied().filter(|&process| is_cut(process)).collect();
        self.refused.retain(|process| !is_cut(*process) || live.contains(process));
        Generated { sources, symbols, refused, left: FxHashSet::default() }
    }

    /// Programs that are followed.
    #[cfg(test)]
    pub(crate) fn programs(&self) -> usize {
        self.programs.len()
    }

    /// Every program has ended, as far as anybody cares: the last chance to find what they wrote.
    pub(crate) fn end(&mut self, roots: &Roots) {
        self.programs.values_mut().for_each(|program| program.end(roots));
    }
}

/// The addresses of generated code, by the process that made it.
fn by_process(frames: &[Frame]) -> FxHashMap<ProcessIndex, Vec<u64>> {
    let mut addresses: FxHashMap<ProcessIndex, Vec<u64>> = FxHashMap::default();
    for frame in frames {
        if let Some(process) = frame.object.generator() {
            addresses.entry(process).or_default().push(frame.address);
        }
    }
    addresses
}

/// Names of generated code, by the process that made it: read, or to be read.
#[derive(Default)]
pub(crate) struct Generated {
    sources: FxHashMap<ProcessIndex, JitSymbolSource>,
    symbols: FxHashMap<ProcessIndex, JitSymbols>,
    /// Those that could not be followed.
    refused: FxHashSet<ProcessIndex>,
    /// Those that there was no time to read.
    left: FxHashSet<ProcessIndex>,
}

impl Generated {
    /// Reads the names of these frames, in the naming `now`, process by process while there is time. Then what was read before is
    /// all that has a name.
    pub(crate) fn read(
        &mut self,
        frames: &[Frame],
        roots: &Roots,
        room: &NameRoom,
        now: Naming,
        is_there_time: &mut dyn FnMut() -> bool,
    ) {
        let mut limits = ReadLimits::of_naming();
        for (process, addresses) in by_process(frames) {
            let Some(source) = self.sources.remove(&process) else { continue };
            if !is_there_time() {
                self.left.insert(process);
                limits = ReadLimits::of_known();
            }
            self.symbols.insert(process, source.symbols(&addresses, roots, room, now, &mut limits));
        }
        self.sources.clear();
    }

    /// Whether there was no time to read all that a process named.
    pub(crate) fn is_left(&self, process: ProcessIndex) -> bool {
        self.left.contains(&process)
    }

    /// What a process named.
    pub(crate) fn of(&self, process: ProcessIndex) -> Option<&JitSymbols> {
        self.symbols.get(&process)
    }

    /// Why a process that is not among these named nothing.
    pub(crate) fn missing(&self, process: ProcessIndex) -> &'static str {
        match self.refused.contains(&process) {
            false => NO_FILE,
            true => "the code lies in no file, and too many programs generated code at once",
        }
    }
}

/// Programs map their journal as if it were code, to say where it is.
fn is_journal(path: &str) -> bool {
    // Asked of every mapping.
    if !path.strip_suffix(" (deleted)").unwrap_or(path).ends_with(".dump") {
        return false;
    }
    let name = Path::new(path).file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let name = name.trim_end_matches(" (deleted)");
    let number = name.strip_prefix("jit-").and_then(|name| name.strip_suffix(".dump"));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process maps memory for code.
    fn generate(store: &mut JitStore, process: u32) {
        let mapped = Mapped {
            pid: u32::MAX, // of no process
            start: 0x1000,
            len: 0x1000,
            file_offset: 0,
            file: profiler_core::record::FileId { major: 0, minor: 0, inode: 0, generation: 0 },
            path: "//anon".to_owned(),
        };
        let (roots, memory) = (Roots::default(), SymbolMemory::new(1 << 20));
        store.mapped(ProcessIndex(process), &mapped, MappedAs::NoObject, &roots, &memory);
    }

    #[test]
    fn too_many_programs_are_a_reason_for_those_that_were_not_followed_alone() {
        const MOST: u32 = MOST_PROGRAMS as u32;
        let mut store = JitStore::default();
        (0..MOST + 2).for_each(|process| generate(&mut store, process));
        store.forked(ProcessIndex(MOST), ProcessIndex(MOST + 2));
        let live = |processes: &[u32]| processes.iter().map(|&process| ProcessIndex(process)).collect();
        let is_refused = |generated: &Generated, process| {
            generated.missing(ProcessIndex(process)).contains("too many programs")
        };
        // One of another target is cut later.
        let during = store.cut(&live(&[1, MOST, MOST + 2]), |process| process != ProcessIndex(MOST + 1));
        let named = |process| is_refused(&during, process);
        assert_eq!([1, MOST, MOST + 1, MOST + 2].map(named), [false, true, false, true]);
        let later = store.cut(&live(&[1, MOST, MOST + 2]), |_| true);
        assert!(is_refused(&later, MOST + 1) && is_refused(&later, MOST), "those are still not followed");
        assert_eq!(store.programs(), 1);
        // After the peak there is room for them.
        generate(&mut store, MOST);
        store.forked(ProcessIndex(7), ProcessIndex(MOST + 2));
        let after = store.cut(&live(&[1, MOST, MOST + 2]), |_| true);
        assert!((0..MOST + 3).all(|process| !is_refused(&after, process)));
    }

    #[test]
    fn journals_and_nameless_code_are_told_by_their_names() {
        for path in ["/tmp/jit-7.dump", "/home/a/.debug/jit/x/jit-12.dump", "/a/jit-7.dump (deleted)"] {
            assert!(is_journal(path), "{path}");
        }
        for path in
            ["/tmp/jit-.dump", "/tmp/jit-7.dump.gz", "/tmp/jit-7x.dump", "//anon", "/jit-7.dump/lib.so"]
        {
            assert!(!is_journal(path), "{path}");
        }
        for path in [
            "//anon",
            "",
            "[heap]",
            "/memfd:doublemapper (deleted)",
            "/dev/zero (deleted)",
            "/dev/shm/x (deleted)",
        ] {
            assert!(is_code_without_file(path), "{path}");
        }
        for path in ["/lib/x.so", "[vdso]", "/dev/shm/x.so", "/tmp/x.so (deleted)"] {
            assert!(!is_code_without_file(path), "{path}");
        }
    }
}
