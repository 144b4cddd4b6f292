//! Everything that repeats between profiles, once.

use std::hash::{BuildHasher, Hash};

use rustc_hash::{FxBuildHasher, FxHashMap};

use crate::profile::{
    Function, FunctionIndex, Line, Location, LocationIndex, ModuleIndex, ModuleInfo, Outcome, ProcessIndex,
    ProcessInfo, StackWindow, SymbolizedProfile, WeightedStack,
};

const NONE: u32 = u32::MAX;

/// Items by their hash; those that share one are chained.
#[derive(Default)]
struct HashIndex {
    newest: FxHashMap<u64, u32>,
    /// For each item, the one before it with the same hash.
    older: Vec<u32>,
}

impl HashIndex {
    /// The position of the item that `is_it` recognises.
    fn get(&self, hash: u64, is_it: impl Fn(usize) -> bool) -> Option<u32> {
        let mut at = self.newest.get(&hash).copied().unwrap_or(NONE);
        while at != NONE {
            if is_it(at as usize) {
                return Some(at);
            }
            at = self.older[at as usize];
        }
        None
    }

    /// The same, or the next position and that it is new.
    fn find(&mut self, hash: u64, is_it: impl Fn(usize) -> bool) -> (u32, bool) {
        if let Some(at) = self.get(hash, is_it) {
            return (at, false);
        }
        let next = self.older.len() as u32;
        let older = self.newest.insert(hash, next);
        self.older.push(older.unwrap_or(NONE));
        (next, true)
    }
}

/// Most stacks, their frames together, and the functions of these frames together, inlined ones included.
#[derive(Clone, Copy)]
pub(super) struct StackLimits {
    pub(super) stacks: usize,
    pub(super) frames: usize,
    pub(super) functions: usize,
    /// Stacks of one frame that may come on top, of those beyond the other limits.
    pub(super) leaves: usize,
}

impl Default for StackLimits {
    /// None.
    fn default() -> Self {
        const ANY: usize = usize::MAX;
        Self { stacks: ANY, frames: ANY, functions: ANY, leaves: 0 }
    }
}

/// Where the parts of one profile are in the sum; found when they are first asked for.
pub(super) struct PlacesInSum {
    processes: Vec<Option<ProcessIndex>>,
    modules: Vec<Option<ModuleIndex>>,
    functions: Vec<Option<FunctionIndex>>,
    locations: Vec<Option<LocationIndex>>,
}

impl PlacesInSum {
    pub(super) fn of(profile: &SymbolizedProfile) -> Self {
        Self {
            processes: vec![None; profile.processes.len()],
            modules: vec![None; profile.modules.len()],
            functions: vec![None; profile.functions.len()],
            locations: vec![None; profile.locations.len()],
        }
    }
}

/// The sum so far. The windows of its stacks are bins by their numbers, in the order in which they came.
#[derive(Default)]
pub(super) struct Interner {
    sum: SymbolizedProfile,
    processes: HashIndex,
    modules: HashIndex,
    functions: HashIndex,
    locations: HashIndex,
    stacks: HashIndex,
    frames: Vec<LocationIndex>,
    /// Windows of all stacks.
    entries: usize,
    limits: StackLimits,
    /// Frames of all stacks, and the functions of these frames.
    all_frames: usize,
    all_functions: usize,
    /// Samples with stacks for which there was no room.
    cut_samples: u64,
}

fn hash(value: impl Hash) -> u64 {
    FxBuildHasher.hash_one(value)
}

impl Interner {
    /// A sum that has no more than that.
    pub(super) fn within(limits: StackLimits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Samples of which the innermost frame at most is kept, because there was no room for their stacks.
    pub(super) fn cut_samples(&self) -> u64 {
        self.cut_samples
    }

    /// Adds what `stack` of `profile` had in some windows; returns their CPU time (ns). A stack that had nothing in them is
    /// not added.
    pub(super) fn add(
        &mut self,
        profile: &SymbolizedProfile,
        stack: &WeightedStack,
        windows: impl Iterator<Item = StackWindow>,
        places: &mut PlacesInSum,
    ) -> u64 {
        let mut windows = windows.peekable();
        if windows.peek().is_none() {
            return 0;
        }
        let at = self.stack(profile, stack, places);
        let sum = &mut self.sum.stacks[at];
        let (before_ns, samples_before) = (sum.cpu_ns, sum.samples);
        for had in windows {
            sum.cpu_ns = sum.cpu_ns.saturating_add(had.cpu_ns);
            sum.samples = sum.samples.saturating_add(had.samples);
            match sum.windows.last_mut().filter(|last| last.window == had.window) {
                Some(last) => join(last, had),
                None => {
                    sum.windows.push(had);
                    self.entries += 1;
                }
            }
        }
        if sum.outcome == Outcome::NotKept && stack.outcome != Outcome::NotKept {
            self.cut_samples = self.cut_samples.saturating_add(sum.samples - samples_before);
        }
        sum.cpu_ns - before_ns
    }

    /// Stacks times the windows that they were seen in, some of them perhaps more than once.
    pub(super) fn entries(&self) -> usize {
        self.entries
    }

    /// Calls windows by other numbers, and joins those that have the same one then.
    pub(super) fn rename_windows(&mut self, new_id: impl Fn(u32) -> u32) {
        self.entries = 0;
        for stack in &mut self.sum.stacks {
            stack.windows.iter_mut().for_each(|had| had.window = new_id(had.window));
            stack.windows.sort_by_key(|had| had.window); // stable, and mostly sorted already
            stack.windows.dedup_by(|later, earlier| {
                let same = later.window == earlier.window;
                if same {
                    join(earlier, *later);
                }
                same
            });
            self.entries += stack.windows.len();
        }
    }

    /// The sum, with each window called by the position that `place_of` says.
    pub(super) fn finish(mut self, place_of: impl Fn(u32) -> u32) -> SymbolizedProfile {
        self.rename_windows(place_of);
        self.sum.stacks.iter_mut().for_each(bounded);
        self.sum
    }

    fn stack(
        &mut self,
        profile: &SymbolizedProfile,
        stack: &WeightedStack,
        places: &mut PlacesInSum,
    ) -> usize {
        let process = self.process(profile, stack.process, places);
        let mut frames = std::mem::take(&mut self.frames);
        frames.clear();
        frames.extend(stack.frames.iter().map(|frame| self.location(profile, *frame, places)));
        let at = self.place(process, stack.outcome, &frames);
        self.frames = frames;
        at
    }

    /// The place of a stack. Where there is no room for a new one, its innermost frame is kept, and where there is none for
    /// that either, nothing but the process.
    fn place(&mut self, process: ProcessIndex, outcome: Outcome, frames: &[LocationIndex]) -> usize {
        if let Some(at) = self.known(process, outcome, frames) {
            return at;
        }
        let functions = self.functions_of(frames);
        let limits = self.limits;
        if self.sum.stacks.len() < limits.stacks
            && self.all_frames.saturating_add(frames.len()) <= limits.frames
            && self.all_functions.saturating_add(functions) <= limits.functions
        {
            return self.enter(process, outcome, frames);
        }
        let leaf = &frames[..frames.len().min(1)];
        let has_room = self.sum.stacks.len() < limits.stacks.saturating_add(limits.leaves)
            && self.all_frames < limits.frames.saturating_add(limits.leaves)
            && self.all_functions.saturating_add(self.functions_of(leaf))
                <= limits.functions.saturating_add(limits.leaves);
        match self.known(process, Outcome::NotKept, leaf) {
            Some(at) => at,
            None if has_room => self.enter(process, Outcome::NotKept, leaf),
            None => {
                let known = self.known(process, Outcome::NotKept, &[]);
                known.unwrap_or_else(|| self.enter(process, Outcome::NotKept, &[]))
            }
        }
    }

    fn functions_of(&self, frames: &[LocationIndex]) -> usize {
        frames.iter().map(|frame| self.sum.locations[frame.0 as usize].lines.len()).sum()
    }

    /// A stack that is there already.
    fn known(&self, process: ProcessIndex, outcome: Outcome, frames: &[LocationIndex]) -> Option<usize> {
        let same = |at: usize| {
            let known = &self.sum.stacks[at];
            known.process == process && known.outcome == outcome && known.frames == frames
        };
        self.stacks.get(hash((process, outcome, frames)), same).map(|at| at as usize)
    }

    /// Adds a stack that is not there yet.
    fn enter(&mut self, process: ProcessIndex, outcome: Outcome, frames: &[LocationIndex]) -> usize {
        let (at, _) = self.stacks.find(hash((process, outcome, frames)), |_| false);
        self.all_frames += frames.len();
        self.all_functions += self.functions_of(frames);
        let (samples, cpu_ns, windows, frames) = (0, 0, Vec::new(), frames.to_vec());
        self.sum.stacks.push(WeightedStack { process, frames, outcome, samples, cpu_ns, windows });
        at as usize
    }

    fn process(
        &mut self,
        profile: &SymbolizedProfile,
        at: ProcessIndex,
        places: &mut PlacesInSum,
    ) -> ProcessIndex {
        let place = at.0 as usize;
        if let Some(known) = places.processes[place] {
            return known;
        }
        let ProcessInfo { pid, comm } = &profile.processes[place];
        let known = &self.sum.processes;
        let (at, is_new) = self.processes.find(hash((pid, comm)), |at| known[at] == profile.processes[place]);
        if is_new {
            self.sum.processes.push(profile.processes[place].clone());
        }
        *places.processes[place].insert(ProcessIndex(at))
    }

    fn module(
        &mut self,
        profile: &SymbolizedProfile,
        at: ModuleIndex,
        places: &mut PlacesInSum,
    ) -> ModuleIndex {
        let place = at.0 as usize;
        if let Some(known) = places.modules[place] {
            return known;
        }
        let module: &ModuleInfo = &profile.modules[place];
        let known = &self.sum.modules;
        let key = hash((&module.path, &module.name, &module.build_id));
        let (at, is_new) = self.modules.find(key, |at| known[at].is_same(module));
        if is_new {
            self.sum.modules.push(module.clone());
        }
        // Files of earlier versions do not tell all of it.
        let end = &mut self.sum.modules[at as usize].end;
        *end = module.end.max(*end);
        *places.modules[place].insert(ModuleIndex(at))
    }

    fn function(
        &mut self,
        profile: &SymbolizedProfile,
        at: FunctionIndex,
        places: &mut PlacesInSum,
    ) -> FunctionIndex {
        let place = at.0 as usize;
        if let Some(known) = places.functions[place] {
            return known;
        }
        let function = &profile.functions[place];
        let module = self.module(profile, function.module, places);
        let known = &self.sum.functions;
        let same = |at: usize| {
            let Function { name, system_name, module: of, file } = &known[at];
            *of == module
                && *name == function.name
                && *system_name == function.system_name
                && *file == function.file
        };
        // The linkage name tells functions apart that are called the same.
        let (at, is_new) = self.functions.find(hash((&function.system_name, &function.name, module)), same);
        if is_new {
            self.sum.functions.push(Function { module, ..function.clone() });
        }
        *places.functions[place].insert(FunctionIndex(at))
    }

    fn location(
        &mut self,
        profile: &SymbolizedProfile,
        at: LocationIndex,
        places: &mut PlacesInSum,
    ) -> LocationIndex {
        let place = at.0 as usize;
        if let Some(known) = places.locations[place] {
            return known;
        }
        let location = &profile.locations[place];
        let module = self.module(profile, location.module, places);
        let line =
            |line: &Line| Line { function: self.function(profile, line.function, places), line: line.line };
        let lines: Vec<Line> = location.lines.iter().map(line).collect();
        let known = &self.sum.locations;
        let same = |at: usize| {
            let Location { module: of, address, lines: same, unknown } = &known[at];
            (*of, *address) == (module, location.address) && *same == lines && *unknown == location.unknown
        };
        let (at, is_new) = self.locations.find(hash((module, location.address, &lines)), same);
        if is_new {
            let (address, unknown) = (location.address, location.unknown.clone());
            self.sum.locations.push(Location { module, address, lines, unknown });
        }
        *places.locations[place].insert(LocationIndex(at))
    }
}

fn join(sum: &mut StackWindow, had: StackWindow) {
    sum.cpu_ns = sum.cpu_ns.saturating_add(had.cpu_ns);
    sum.samples = sum.samples.saturating_add(had.samples);
}

/// Figures that no run has may stop at the largest number; the stack is then still the sum of its windows.
fn bounded(stack: &mut WeightedStack) {
    let sum = |of: fn(&StackWindow) -> u64| {
        stack.windows.iter().try_fold(0_u64, |sum, had| sum.checked_add(of(had)))
    };
    if sum(|had| had.cpu_ns) != Some(stack.cpu_ns) || sum(|had| had.samples) != Some(stack.samples) {
        stack.windows.clear();
    }
}
