//! From counted stacks to a profile with names.
//!
//! Objects are loaded one after another, the heaviest first, and dropped at once, so that the debug information of one is
//! the most that is in memory, beside the names that were found. Both together stay within the memory for symbols.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::sync::Arc;

use profiler_core::aggregate::Tally;
use profiler_core::profile::{
    Function, FunctionIndex, Line, Location, LocationIndex, ModuleIndex, ModuleInfo, Run, StackWindow,
    SymbolizedProfile, Unknown, WeightedStack,
};
use profiler_core::stack::{Frame, FrameId, ObjectId};
use rustc_hash::FxHashMap;
use symbolizer::{DebugFiles, KernelSymbols, Limits, ReadAt, Reason, Symbolized};

use super::remedy;
use crate::debuginfod::{self, Debuginfod};
use crate::jit::Told;
use crate::objects::memory::SymbolMemory;
use crate::objects::{Content, Object, ObjectStore};
use crate::roots::{Roots, View};
use crate::sampler::session::Collected;

/// Puts names to everything that was collected. `scale` takes the weights to CPU time of the target.
pub(crate) fn symbolize(
    collected: &Collected,
    scale: f64,
    run: Run,
    debuginfod: Option<&debuginfod::Settings>,
) -> SymbolizedProfile {
    let mut profile = SymbolizedProfile {
        processes: collected.processes.clone(),
        windows: collected.aggregate.windows.clone(),
        run,
        ..SymbolizedProfile::default()
    };
    let debuginfod = debuginfod.map(|settings| Arc::new(Debuginfod::new(settings.clone())));
    let mut names = Names::new(collected.objects.memory.clone(), debuginfod);
    let locations = names.locate(collected, &mut profile);
    note_memory(&names, collected, &mut profile.run);
    profile.run.notes.extend(names.debuginfod.iter().flat_map(|debuginfod| debuginfod.notes()));
    for (stack, tallies) in collected.aggregate.stacks.iter().zip(&collected.aggregate.tallies) {
        let in_window = |&(window, tally): &(u32, Tally)| {
            let cpu_ns = (tally.weight_ns * scale).round() as u64;
            StackWindow { window, cpu_ns, samples: tally.samples }
        };
        let windows: Vec<StackWindow> = tallies.iter().map(in_window).collect();
        let frames = stack.frames.iter().map(|frame| locations[frame.0 as usize]).collect();
        profile.stacks.push(WeightedStack {
            process: stack.process,
            frames,
            outcome: stack.outcome,
            samples: windows.iter().map(|window| window.samples).sum(),
            // Of the rounded parts, so that the file's reader finds that they add up.
            cpu_ns: windows.iter().map(|window| window.cpu_ns).sum(),
            windows,
        });
    }
    profile
}

/// Readable name, linkage name, module and file.
type FunctionKey = (Arc<str>, Arc<str>, ModuleIndex, Option<Arc<str>>);

struct Names {
    memory: SymbolMemory,
    /// Objects whose debug information there was no room for, with the reason.
    symbols_only: Vec<(String, Reason)>,
    functions: FxHashMap<FunctionKey, FunctionIndex>,
    debuginfod: Option<Arc<Debuginfod>>,
    /// Those of no file: all processes share them.
    nameless: Option<ModuleIndex>,
    generated: Option<ModuleIndex>,
}

impl Names {
    fn new(memory: SymbolMemory, debuginfod: Option<Arc<Debuginfod>>) -> Self {
        Self {
            memory,
            symbols_only: Vec::new(),
            functions: FxHashMap::default(),
            debuginfod,
            nameless: None,
            generated: None,
        }
    }

    /// The location of every frame, by [`FrameId`].
    fn locate(&mut self, collected: &Collected, profile: &mut SymbolizedProfile) -> Vec<LocationIndex> {
        let frames = collected.aggregate.frames.frames();
        let mut by_object: FxHashMap<ObjectId, Vec<FrameId>> = FxHashMap::default();
        for (i, frame) in frames.iter().enumerate() {
            by_object.entry(frame.object).or_default().push(FrameId(i as u32));
        }
        let mut objects: Vec<_> = by_object.into_iter().collect();
        let weights = collected.aggregate.object_weights();
        let weight = |object: &ObjectId| weights.get(object).copied().unwrap_or(0.0);
        objects.sort_by(|(one, _), (other, _)| weight(other).total_cmp(&weight(one)).then(one.cmp(other)));
        let mut locations = vec![LocationIndex(0); frames.len()];
        for (id, ids) in objects {
            if id.is_in_no_file() {
                for frame in ids {
                    let at = collected.aggregate.frames.get(frame);
                    locations[frame.0 as usize] = self.generated_location(at, collected, profile);
                }
                continue;
            }
            let object = collected.objects.object(id);
            let addresses: Vec<u64> =
                ids.iter().map(|&frame| collected.aggregate.frames.get(frame).address).collect();
            let source = match id {
                ObjectId::KERNEL => Source::kernel(&addresses),
                _ => Source::open(object, &collected.objects, self.debuginfod.as_ref()),
            };
            self.note_use(&source, object);
            let module = ModuleIndex(profile.modules.len() as u32);
            profile.modules.push(source.module(id, object));
            let path = object.map_or("", |object| &object.path);
            let found = source.look_up(&addresses, path, self.debuginfod.is_some());
            for ((frame, address), found) in ids.into_iter().zip(&addresses).zip(found) {
                locations[frame.0 as usize] = self.location(*address, module, object, found, profile);
            }
        }
        locations
    }

    fn location(
        &mut self,
        address: u64,
        module: ModuleIndex,
        object: Option<&Object>,
        found: Result<Vec<Named>, Unknown>,
        profile: &mut SymbolizedProfile,
    ) -> LocationIndex {
        let (lines, unknown) = match found.and_then(|named| self.keep(named, module)) {
            Ok(named) => (named.into_iter().map(|n| self.line(n, module, profile)).collect(), None),
            Err(reason) => {
                // Addresses of one function belong together even if nothing tells its name.
                let start = object.and_then(|object| object.function_start(address));
                let offset = start.unwrap_or(address);
                let name = format!("{}+{offset:#x}", profile.modules[module.0 as usize].name);
                (vec![self.line(nameless(name), module, profile)], Some(reason))
            }
        };
        profile.locations.push(Location { module, address, lines, unknown });
        LocationIndex(profile.locations.len() as u32 - 1)
    }

    /// The location of code in no file, which its process may have told of.
    fn generated_location(
        &mut self,
        frame: Frame,
        collected: &Collected,
        profile: &mut SymbolizedProfile,
    ) -> LocationIndex {
        let told = frame.object.generator().and_then(|process| collected.generated.of(process));
        let (address, named, unknown) = match told.and_then(|told| told.frame(frame.address)) {
            Some((address, named)) => (*address, Some(named.clone()), None),
            None => {
                let missing = told.map_or(collected.generated.missing(), |told: &Told| &told.missing);
                let generator = frame.object.generator();
                let program = generator.map(|process| collected.processes[process.0 as usize].comm.as_str());
                (frame.address, None, Some(remedy::generated(missing, program)))
            }
        };
        let (module, name) = match named {
            Some(_) => (&mut self.generated, "[jit]"),
            None => (&mut self.nameless, "[unknown]"),
        };
        let module = *module.get_or_insert_with(|| {
            profile.modules.push(ModuleInfo { name: name.to_owned(), path: String::new(), build_id: None });
            ModuleIndex(profile.modules.len() as u32 - 1)
        });
        let (named, unknown) = match named.map(|named| self.keep(vec![named], module)) {
            Some(Ok(mut named)) => (named.pop(), unknown),
            Some(Err(reason)) => (None, Some(reason)),
            None => (None, unknown),
        };
        let named = named.unwrap_or_else(|| nameless(format!("{name}+{address:#x}")));
        let lines = vec![self.line(named, module, profile)];
        profile.locations.push(Location { module, address, lines, unknown });
        LocationIndex(profile.locations.len() as u32 - 1)
    }

    /// Notes what an object's names take while it is loaded, and what it had to do without.
    fn note_use(&mut self, source: &Source<'_>, object: Option<&Object>) {
        let Source::Object(loaded) = source else { return };
        self.memory.note_use(loaded.memory_bytes());
        let too_large = |reason: &&Reason| matches!(reason, Reason::TooLarge { .. });
        let path = object.map_or("", |object| &object.path);
        let reason = loaded.warnings().iter().find(too_large);
        self.symbols_only.extend(reason.map(|reason| (path.to_owned(), reason.clone())));
    }

    /// The same names, if there is room for those that are new.
    fn keep(&self, named: Vec<Named>, module: ModuleIndex) -> Result<Vec<Named>, Unknown> {
        let is_new = |named: &&Named| {
            let (name, linkage_name) = (Arc::clone(&named.name), Arc::clone(&named.linkage_name));
            !self.functions.contains_key(&(name, linkage_name, module, named.file.clone()))
        };
        let bytes: usize = named.iter().filter(is_new).map(name_bytes).sum();
        if bytes == 0 || self.memory.take(bytes as u64) { Ok(named) } else { Err(remedy::no_room()) }
    }

    fn line(&mut self, named: Named, module: ModuleIndex, profile: &mut SymbolizedProfile) -> Line {
        let line = named.line.unwrap_or(0);
        let next = FunctionIndex(profile.functions.len() as u32);
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
        Line { function, line }
    }
}

type Named = symbolizer::Frame;

/// What a function's names take of memory: as they were found, and in the profile.
fn name_bytes(named: &Named) -> usize {
    let texts =
        named.name.len() + named.linkage_name.len() + named.file.as_ref().map_or(0, |file| file.len());
    2 * texts + size_of::<Function>() + size_of::<(FunctionKey, FunctionIndex)>()
}

/// What the memory for symbols did.
fn note_memory(names: &Names, collected: &Collected, run: &mut Run) {
    let ObjectStore { files, memory, .. } = &collected.objects;
    run.objects = collected.objects.met();
    run.files_lost = files.lost();
    run.symbol_bytes_peak = memory.peak();
    run.symbol_evictions = memory.evictions();
    run.symbol_rereads = memory.rereads();
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

const NO_FILE: &str = "the code lies in no file";

/// What stands for a name where there is no better one.
fn nameless(name: String) -> Named {
    let name: Arc<str> = name.into();
    Named { linkage_name: Arc::clone(&name), name, file: None, line: None }
}

/// Where the names of one object come from.
enum Source<'a> {
    Object(Box<symbolizer::Object<'a>>),
    Kernel(KernelSymbols),
    /// Nowhere; the reason.
    None(Unknown),
}

impl<'a> Source<'a> {
    fn open(object: Option<&'a Object>, objects: &ObjectStore, debuginfod: Option<&Arc<Debuginfod>>) -> Self {
        let Some(object) = object else { return Self::None(remedy::generated(NO_FILE, None)) };
        let load = |bytes: &'a dyn ReadAt| {
            let (view, roots) = (object.view, objects.roots.clone());
            let files = DebugFilesOf { view, roots, debuginfod: debuginfod.cloned() };
            let limits = Limits::of_all(objects.memory.left());
            symbolizer::Object::load_within(limits, bytes, Path::new(&object.path), &files)
        };
        if let Some(missing) = object.missing() {
            return Self::None(remedy::missing(&missing));
        }
        let loaded = match &object.content {
            Content::File(file) => load(file),
            Content::Image(image) => load(image),
            Content::Missing(missing) => return Self::None(remedy::missing(missing)),
        };
        loaded.map_or_else(
            |reason| Self::None(remedy::unreadable(&reason)),
            |object| Self::Object(Box::new(object)),
        )
    }

    fn kernel(addresses: &[u64]) -> Self {
        let list = File::open("/proc/kallsyms").map_err(Reason::from);
        let parsed = list
            .and_then(|list| KernelSymbols::of_addresses(BufReader::with_capacity(1 << 16, list), addresses));
        parsed.map_or_else(|reason| Self::None(remedy::kernel(&reason)), Self::Kernel)
    }

    fn module(&self, id: ObjectId, object: Option<&Object>) -> ModuleInfo {
        let path = object.map_or("", |object| &object.path);
        let file_name = path.rsplit('/').next().unwrap_or_default();
        let name = match id {
            ObjectId::KERNEL => "[kernel]",
            _ if file_name.is_empty() => "[unknown]",
            _ => file_name,
        };
        let build_id = match self {
            Self::Object(object) => object.build_id().map(str::to_owned),
            _ => None,
        };
        ModuleInfo { name: name.to_owned(), path: path.to_owned(), build_id }
    }

    /// The functions at each of these addresses of the object at `path`, or why they are not known.
    fn look_up(&self, addresses: &[u64], path: &str, asks_servers: bool) -> Vec<Result<Vec<Named>, Unknown>> {
        match self {
            Self::Object(object) => {
                let known = |symbolized| match symbolized {
                    Symbolized::Known(frames) => Ok(frames),
                    Symbolized::Unknown(reason) => Err(remedy::nameless(&reason, object, path, asks_servers)),
                };
                object.symbolize_all(addresses).into_iter().map(known).collect()
            }
            Self::Kernel(symbols) => addresses.iter().map(|&address| in_kernel(symbols, address)).collect(),
            Self::None(reason) => addresses.iter().map(|_| Err(reason.clone())).collect(),
        }
    }
}

fn in_kernel(symbols: &KernelSymbols, address: u64) -> Result<Vec<Named>, Unknown> {
    let symbol = symbols.symbolize(address).ok_or_else(remedy::unlisted)?;
    Ok(vec![nameless(match symbol.module {
        Some(module) => format!("{} [{module}]", symbol.name),
        None => symbol.name,
    })])
}

/// Separate debug files, as the process that mapped the object sees them; and at last on servers.
#[derive(Clone)]
struct DebugFilesOf {
    view: View,
    roots: Roots,
    debuginfod: Option<Arc<Debuginfod>>,
}

impl DebugFiles for DebugFilesOf {
    fn open(&self, path: &Path) -> Option<Box<dyn ReadAt>> {
        let file = self.roots.open_debug_file(self.view, path).ok()?;
        Some(Box::new(file))
    }

    fn fetch(&self, build_id: &str) -> Option<Box<dyn ReadAt>> {
        Some(Box::new(self.debuginfod.as_ref()?.debug_file(build_id)?))
    }

    fn share(&self) -> Option<Box<dyn DebugFiles + Send + Sync>> {
        Some(Box::new(self.clone()))
    }
}

#[cfg(test)]
mod tests;
