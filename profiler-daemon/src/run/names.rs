//! From counted stacks to a profile with names.
//!
//! Objects are loaded one after another, the heaviest first. If the session goes on, names are kept for its next cut,
//! and objects stay loaded for new addresses as long as there is room. Otherwise each object is dropped at once, so
//! that the debug information of only one is in memory. All of it stays within the memory for symbols.

mod source;
mod unnamed;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use profiler_core::aggregate::{Aggregate, Tally};
use profiler_core::process::page_start;
use profiler_core::profile::{
    Function, FunctionIndex, Line, Location, LocationIndex, ModuleIndex, ModuleInfo, ProcessIndex,
    ProcessInfo, Run, StackWindow, SymbolizedProfile, Unknown, WeightedStack,
};
use profiler_core::stack::{Frame, FrameId, ObjectId};
use rustc_hash::FxHashMap;
use symbolizer::Reason;

use self::source::{NameSource, names_of};
use super::remedy;
use crate::debuginfod::{self, Debuginfod};
use crate::jit::{Generated, JitSymbols, NO_FILE};
use crate::objects::memory::SymbolMemory;
use crate::objects::names::{About, Equal, FoundFunctions, Naming};
use crate::objects::{DELETED, KernelName, ObjectSnapshot, Objects};
use crate::sampler::session::Collected;

/// Share of the memory for symbols that is freed before an object is read: one in this many.
const TO_READ_AN_OBJECT: u64 = 4;

/// A cut, taken apart for naming.
pub(crate) struct Cut {
    aggregate: Aggregate,
    processes: Arc<[ProcessInfo]>,
    objects: Objects,
    generated: Generated,
    /// Whether names are kept for this session's next cut.
    keep_for_next: bool,
    naming: Naming,
}

/// Set once there is no time left to look for names that are not known yet. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct CancelFlag(Arc<AtomicBool>);

impl CancelFlag {
    /// Cancels from now on.
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// The flag, for a signal's handler.
    pub(crate) fn shared(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }

    /// Whether it was set.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Names everything that was collected, on any thread. `scale` converts the weights to CPU time of the target.
pub(crate) fn symbolize(
    collected: Collected,
    scale: f64,
    run: Run,
    debuginfod: Option<&debuginfod::Servers>,
    cancel: &CancelFlag,
    pause: &mut dyn FnMut(),
) -> SymbolizedProfile {
    symbolize_cut(Cut::new(collected), scale, run, debuginfod, cancel, pause)
}

/// [`symbolize`] for a cut that is already taken apart. `pause` is called before each object and each program's list is
/// read, and may block.
pub(crate) fn symbolize_cut(
    cut: Cut,
    scale: f64,
    run: Run,
    debuginfod: Option<&debuginfod::Servers>,
    cancel: &CancelFlag,
    pause: &mut dyn FnMut(),
) -> SymbolizedProfile {
    let cut = cut.begin(cancel, pause);
    let mut profile =
        SymbolizedProfile { windows: cut.aggregate.windows.clone(), run, ..SymbolizedProfile::default() };
    let debuginfod = debuginfod.map(|servers| Arc::new(Debuginfod::new(servers)));
    let mut names = Names::new(cut.objects.memory.clone(), debuginfod, cancel.clone(), pause);
    let locations = names.locate(&cut, &mut profile);
    note_memory(&names, &cut.objects, &mut profile.run);
    profile.run.notes.extend(cut.objects.process.take_notes());
    profile.run.notes.extend(names.debuginfod.iter().flat_map(|debuginfod| debuginfod.notes()));
    drop(names);
    cut.add_stacks(scale, &locations, &mut profile);
    profile
}

impl Cut {
    /// Takes a cut apart; nothing is read for it.
    pub(crate) fn new(collected: Collected) -> Self {
        let Collected { counted, processes, mut objects, generated, span, is_last, .. } = collected;
        let aggregate = counted.finish(span.end.saturating_sub(span.start));
        objects.keep_only(&aggregate.frames.frames().iter().map(|frame| frame.object).collect());
        let naming = Naming::default();
        Self { aggregate, processes, objects, generated, keep_for_next: !is_last, naming }
    }

    /// Begins the naming of this cut, and reads the names of generated code.
    fn begin(mut self, cancel: &CancelFlag, pause: &mut dyn FnMut()) -> Self {
        self.naming = self.objects.names.begin();
        let Objects { roots, names, .. } = &self.objects;
        let mut is_there_time = || {
            let is_cancelled = cancel.is_set();
            if !is_cancelled {
                pause();
            }
            !is_cancelled
        };
        self.generated.read(self.aggregate.frames.frames(), roots, names, self.naming, &mut is_there_time);
        self
    }

    /// The stacks and their processes, by the location of every frame.
    fn add_stacks(&self, scale: f64, locations: &[LocationIndex], profile: &mut SymbolizedProfile) {
        let mut processes = UsedProcesses::new(&self.processes);
        for (stack, tallies) in self.aggregate.stacks.iter().zip(&self.aggregate.tallies) {
            let in_window = |&(window, tally): &(u32, Tally)| {
                let cpu_ns = (tally.weight_ns * scale).round() as u64;
                StackWindow { window, cpu_ns, samples: tally.samples }
            };
            let windows: Vec<StackWindow> = tallies.iter().map(in_window).collect();
            profile.stacks.push(WeightedStack {
                process: processes.index(stack.process),
                frames: stack.frames.iter().map(|frame| locations[frame.0 as usize]).collect(),
                outcome: stack.outcome,
                samples: windows.iter().map(|window| window.samples).sum(),
                // The sum of the rounded parts: in the file they add up.
                cpu_ns: windows.iter().map(|window| window.cpu_ns).sum(),
                windows,
            });
        }
        profile.processes = processes.used;
    }

    /// The share of the time that was spent under each of these kernel frames.
    fn kernel_shares(&self, frames: &[FrameId]) -> Vec<f64> {
        let mut under: FxHashMap<FrameId, f64> = frames.iter().map(|&frame| (frame, 0.0)).collect();
        let mut whole = 0.0;
        for (stack, tallies) in self.aggregate.stacks.iter().zip(&self.aggregate.tallies) {
            let weight: f64 = tallies.iter().map(|(_, tally)| tally.weight_ns).sum();
            whole += weight;
            for frame in &stack.frames {
                let Some(under) = under.get_mut(frame) else { break }; // the kernel's frames come first
                *under += weight;
            }
        }
        frames.iter().map(|frame| if whole > 0.0 { under[frame] / whole } else { 0.0 }).collect()
    }
}

/// The processes that stacks refer to.
struct UsedProcesses<'a> {
    all: &'a [ProcessInfo],
    used: Vec<ProcessInfo>,
    places: FxHashMap<ProcessIndex, ProcessIndex>,
}

impl<'a> UsedProcesses<'a> {
    fn new(all: &'a [ProcessInfo]) -> Self {
        Self { all, used: Vec::new(), places: FxHashMap::default() }
    }

    fn index(&mut self, process: ProcessIndex) -> ProcessIndex {
        *self.places.entry(process).or_insert_with(|| {
            self.used.push(self.all[process.0 as usize].clone());
            ProcessIndex(self.used.len() as u32 - 1)
        })
    }
}

/// Where the texts of a function are stored: kept names store each text once.
type Texts = (*const u8, *const u8, ModuleIndex, Option<*const u8>);

fn texts(named: &Named, module: ModuleIndex) -> Texts {
    let file = named.file.as_ref().map(|file| file.as_ptr());
    (named.name.as_ptr(), named.linkage_name.as_ptr(), module, file)
}

/// Readable name, linkage name, module and file.
type FunctionKey = (Arc<str>, Arc<str>, ModuleIndex, Option<Arc<str>>);

struct Names<'a> {
    pause: &'a mut dyn FnMut(),
    memory: SymbolMemory,
    /// Memory that the names in the profile take (bytes).
    taken: Cell<u64>,
    /// Objects whose debug information did not fit into memory, with the reason.
    symbols_only: Vec<(String, Reason)>,
    functions: FxHashMap<FunctionKey, FunctionIndex>,
    /// Functions by the addresses of their texts, which are kept so that no other text gets the same address.
    by_texts: FxHashMap<Texts, (FunctionIndex, Named)>,
    debuginfod: Option<Arc<Debuginfod>>,
    cancel: CancelFlag,
    /// Modules without an object, by their path or what stands for it: all processes share them.
    without_object: FxHashMap<Arc<str>, ModuleIndex>,
}

impl<'a> Names<'a> {
    fn new(
        memory: SymbolMemory,
        debuginfod: Option<Arc<Debuginfod>>,
        cancel: CancelFlag,
        pause: &'a mut dyn FnMut(),
    ) -> Self {
        Self {
            pause,
            memory,
            taken: Cell::new(0),
            symbols_only: Vec::new(),
            functions: FxHashMap::default(),
            by_texts: FxHashMap::default(),
            debuginfod,
            cancel,
            without_object: FxHashMap::default(),
        }
    }

    /// The location of every frame, by [`FrameId`].
    fn locate(&mut self, cut: &Cut, profile: &mut SymbolizedProfile) -> Vec<LocationIndex> {
        let frames = &cut.aggregate.frames;
        let mut by_object: FxHashMap<ObjectId, Vec<FrameId>> = FxHashMap::default();
        for (frame, id) in frames.frames().iter().zip(0..) {
            by_object.entry(frame.object).or_default().push(FrameId(id));
        }
        let mut objects: Vec<_> = by_object.into_iter().collect();
        let weights = cut.aggregate.object_weights();
        let weight = |object: &ObjectId| weights.get(object).copied().unwrap_or(0.0);
        objects.sort_by(|(one, _), (other, _)| weight(other).total_cmp(&weight(one)).then(one.cmp(other)));
        let mut locations = vec![LocationIndex(0); frames.frames().len()];
        for (id, ids) in objects {
            if id.is_in_no_file() {
                for frame in ids {
                    locations[frame.0 as usize] = self.generated_location(frames.get(frame), cut, profile);
                }
                continue;
            }
            let object = cut.objects.get(id);
            let addresses: Vec<u64> = ids.iter().map(|&frame| frames.get(frame).address).collect();
            let (about, found) = match (id, object) {
                (ObjectId::KERNEL, _) => (About::default(), in_kernel(cut, &ids, &addresses, self.pause)),
                (_, Some(object)) => self.in_object(cut, object, &addresses),
                (_, None) => {
                    let unknown = remedy::generated(NO_FILE, None);
                    (About::default(), addresses.iter().map(|_| Err(unknown.clone())).collect())
                }
            };
            let module = ModuleIndex(profile.modules.len() as u32);
            profile.modules.push(module_info(id, object, about));
            for ((frame, address), found) in ids.into_iter().zip(&addresses).zip(found) {
                locations[frame.0 as usize] = self.location(*address, module, object, found, profile);
            }
        }
        locations
    }

    /// What is known of these addresses of an object; new ones are looked up in the object.
    fn in_object(
        &mut self,
        cut: &Cut,
        object: &ObjectSnapshot,
        addresses: &[u64],
    ) -> (About, Vec<FoundFunctions>) {
        if object.names.is_claimed() && cut.keep_for_next && !self.cancel.is_set() {
            (self.pause)();
            cut.objects.names.compare(object);
        }
        let of_equal = object.names.equal().and_then(|equal| {
            let named = self.read_names(cut, object, Some(&*equal), addresses);
            if named.is_none() {
                object.names.leave();
            }
            named
        });
        let (about, found) =
            of_equal.or_else(|| self.read_names(cut, object, None, addresses)).unwrap_or_default();
        self.symbols_only.extend(about.too_large.clone().map(|reason| (object.path.clone(), reason)));
        (about, found)
    }

    /// [`Self::in_object`] with the names of `equal`, if given, else with the object's own. `None` if the object cannot
    /// share the names of `equal`.
    fn read_names(
        &mut self,
        cut: &Cut,
        object: &ObjectSnapshot,
        equal: Option<&Equal>,
        addresses: &[u64],
    ) -> Option<(About, Vec<FoundFunctions>)> {
        let suits = || equal.is_none_or(|equal| equal.debug_files.suits(object.view, &cut.objects.roots));
        if !suits() {
            return None;
        }
        let names = names_of(object, equal);
        let mut found = names.known(addresses, cut.naming);
        let new: Vec<usize> = (0..found.len()).filter(|&at| found[at].is_none()).collect();
        let about = match names.about().filter(|_| new.is_empty()) {
            Some(about) => about,
            None if self.cancel.is_set() => {
                new.into_iter().for_each(|at| found[at] = Some(Err(remedy::no_time())));
                names.about().unwrap_or_default()
            }
            None => {
                (self.pause)();
                self.make_room(cut);
                let asked: Vec<u64> = new.iter().map(|&at| addresses[at]).collect();
                let (source, named) =
                    NameSource::read(object, &cut.objects, self.debuginfod.as_ref(), equal, &asked);
                self.memory.note_use(source.bytes_in_use());
                if equal.is_some() && (source.is_doubtful() || !suits()) {
                    return None;
                }
                let about = source.about();
                let named: Vec<(u64, FoundFunctions)> = asked.into_iter().zip(named).collect();
                if cut.keep_for_next {
                    source.keep(names, cut, about.clone(), &named);
                }
                new.into_iter().zip(named).for_each(|(at, (_, named))| found[at] = Some(named));
                about
            }
        };
        Some((about, found.into_iter().flatten().collect()))
    }

    /// Frees memory to read an object: other loaded objects, or names that are not needed now.
    fn make_room(&self, cut: &Cut) {
        cut.objects.names.make_room(self.memory.cap() / TO_READ_AN_OBJECT, cut.naming);
    }

    fn location(
        &mut self,
        address: u64,
        module: ModuleIndex,
        object: Option<&ObjectSnapshot>,
        found: FoundFunctions,
        profile: &mut SymbolizedProfile,
    ) -> LocationIndex {
        let (lines, unknown) = match found.and_then(|named| self.keep(named, module)) {
            Ok(named) => (named.into_iter().map(|n| self.line(n, module, profile)).collect(), None),
            Err(reason) => {
                // Addresses of one function belong together even without a name.
                let start = object.and_then(|object| object.place_start(address));
                let offset = start.unwrap_or(page_start(address));
                let name = format!("{}+{offset:#x}", profile.modules[module.0 as usize].name);
                (vec![self.line(nameless(name), module, profile)], Some(reason))
            }
        };
        profile.locations.push(Location { module, address, lines, unknown });
        LocationIndex(profile.locations.len() as u32 - 1)
    }

    /// The location of code that is in no object; its process may have named it.
    fn generated_location(
        &mut self,
        frame: Frame,
        cut: &Cut,
        profile: &mut SymbolizedProfile,
    ) -> LocationIndex {
        let symbols = frame.object.generator().and_then(|process| cut.generated.of(process));
        let file = symbols.and_then(|symbols| symbols.file(frame.address));
        let (place, address, found) = match (symbols.and_then(|symbols| symbols.frame(frame.address)), file) {
            (Some((address, named)), _) => ("[jit]", *address, Ok(vec![named.clone()])),
            (None, Some((path, offset))) => (&**path, offset, Err(not_named(frame, cut, IN_OTHER_FILE))),
            (None, None) => ("[unknown]", frame.address, Err(not_named(frame, cut, NO_FILE))),
        };
        let module = *self.without_object.entry(Arc::from(place)).or_insert_with(|| {
            profile.modules.push(module_without_object(place));
            ModuleIndex(profile.modules.len() as u32 - 1)
        });
        self.location(address, module, None, found, profile)
    }

    /// Memory that a function needs if it is new (bytes).
    fn new_bytes(&self, named: &Named, module: ModuleIndex) -> usize {
        if self.by_texts.contains_key(&texts(named, module)) {
            return 0;
        }
        let (name, linkage_name) = (Arc::clone(&named.name), Arc::clone(&named.linkage_name));
        let is_known = self.functions.contains_key(&(name, linkage_name, module, named.file.clone()));
        text_bytes(named) + if is_known { 0 } else { function_bytes(named) }
    }

    /// Keeps these names if there is room for the new ones.
    fn keep(&self, named: Vec<Named>, module: ModuleIndex) -> Result<Vec<Named>, Unknown> {
        let bytes: usize = named.iter().map(|named| self.new_bytes(named, module)).sum();
        let bytes = bytes as u64;
        if !self.memory.take(bytes) {
            return Err(remedy::no_room());
        }
        self.taken.set(self.taken.get() + bytes);
        Ok(named)
    }

    fn line(&mut self, named: Named, module: ModuleIndex, profile: &mut SymbolizedProfile) -> Line {
        let line = named.line.unwrap_or(0);
        if let Some(&(function, _)) = self.by_texts.get(&texts(&named, module)) {
            return Line { function, line };
        }
        let next = FunctionIndex(profile.functions.len() as u32);
        let held = named.clone();
        let key = (named.name, named.linkage_name, module, named.file);
        let function = *self.functions.entry(key).or_insert_with_key(|(name, linkage_name, _, file)| {
            let (name, system_name) = (name.to_string(), linkage_name.to_string());
            profile.functions.push(Function {
                name,
                system_name,
                module,
                file: file.as_deref().map(String::from),
            });
            next
        });
        self.by_texts.insert(texts(&held, module), (function, held));
        Line { function, line }
    }
}

type Named = symbolizer::NamedFrame;

/// Memory that a function's names take as they were found (bytes).
fn text_bytes(named: &Named) -> usize {
    let file = named.file.as_ref().map_or(0, |file| file.len());
    named.name.len() + named.linkage_name.len() + file + size_of::<(Texts, (FunctionIndex, Named))>()
}

/// Memory that a function takes in the profile (bytes).
fn function_bytes(named: &Named) -> usize {
    text_bytes(named) + size_of::<Function>() + size_of::<(FunctionKey, FunctionIndex)>()
}

impl Drop for Names<'_> {
    fn drop(&mut self) {
        self.memory.give_back(self.taken.get());
    }
}

fn in_kernel(
    cut: &Cut,
    frames: &[FrameId],
    addresses: &[u64],
    pause: &mut dyn FnMut(),
) -> Vec<FoundFunctions> {
    let shares = cut.kernel_shares(frames);
    let asked: Vec<(u64, f64)> = addresses.iter().copied().zip(shares).collect();
    let named = |name| match name {
        KernelName::Function(name) => {
            Ok(vec![Named { linkage_name: Arc::clone(&name), name, file: None, line: None }])
        }
        KernelName::Unlisted => Err(remedy::unlisted()),
        KernelName::Hidden(reason) => Err(remedy::kernel(&reason)),
        KernelName::Later => Err(remedy::later()),
    };
    cut.objects.kernel.names(&asked, &cut.objects.names, pause).into_iter().map(named).collect()
}

fn module_info(id: ObjectId, object: Option<&ObjectSnapshot>, about: About) -> ModuleInfo {
    let path = object.map_or("", |object| &object.path);
    let file_name = path.rsplit('/').next().unwrap_or_default();
    let name = match id {
        ObjectId::KERNEL => "[kernel]",
        _ if file_name.is_empty() => "[unknown]",
        _ => file_name,
    };
    let end = object.map_or(0, ObjectSnapshot::end);
    ModuleInfo { name: name.to_owned(), path: path.to_owned(), build_id: about.build_id, end }
}

/// A module for code that its process named, or in a file that is not an object.
fn module_without_object(place: &str) -> ModuleInfo {
    let is_file = place.starts_with('/');
    let path = if is_file { place.trim_end_matches(DELETED) } else { "" };
    let name = if is_file { path.rsplit('/').next().unwrap_or_default() } else { place };
    ModuleInfo { name: name.to_owned(), path: path.to_owned(), build_id: None, end: 0 }
}

/// Why code that is in no object has no name; `place` says where it lies.
fn not_named(frame: Frame, cut: &Cut, place: &str) -> Unknown {
    let generator = frame.object.generator();
    if generator.is_some_and(|process| cut.generated.is_left(process)) {
        return remedy::no_time();
    }
    let symbols = generator.and_then(|process| cut.generated.of(process));
    let unread = || generator.map_or(NO_FILE, |process| cut.generated.missing(process));
    let missing = symbols.map_or_else(unread, |symbols: &JitSymbols| &symbols.missing);
    let program = generator.map(|process| cut.processes[process.0 as usize].comm.as_str());
    match missing.strip_prefix(NO_FILE) {
        Some(rest) => remedy::generated(&format!("{place}{rest}"), program),
        None => remedy::generated(missing, program),
    }
}

/// Adds notes about the memory for symbols.
fn note_memory(names: &Names<'_>, objects: &Objects, run: &mut Run) {
    let memory = &objects.memory;
    run.files.objects = objects.objects_seen;
    run.files.files_lost = objects.files_lost();
    run.files.symbol_bytes_peak = memory.peak();
    run.files.symbol_evictions = memory.evictions();
    run.files.symbol_rereads = memory.rereads();
    if let Some((path, reason)) = names.symbols_only.first() {
        let others = match names.symbols_only.len() - 1 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        run.notes.push(format!(
            "{path}{others}: named from the symbol table alone, {reason}; raise --symbol-memory ({} now)",
            config::Bytes::new(memory.cap()),
        ));
    }
}

const IN_OTHER_FILE: &str = "the code lies in a file that is not ELF";

/// A stand-in for a missing name.
fn nameless(name: String) -> Named {
    let name: Arc<str> = name.into();
    Named { linkage_name: Arc::clone(&name), name, file: None, line: None }
}

#[cfg(test)]
mod tests;
