//! Converts a cut into a profile without names, and back: it is written like this while it waits for names, so that a
//! later process can name it if this one is killed. In place of a build id, a module has what distinguishes its file
//! from all others.

use profiler_core::aggregate::{Aggregate, Stack, Tally};
use profiler_core::profile::{
    Function, FunctionIndex, Line, Location, LocationIndex, ModuleIndex, ModuleInfo, Run, SymbolizedProfile,
    WeightedStack, Window,
};
use profiler_core::stack::{Frame, FrameId, FrameTable, ObjectId};
use rustc_hash::FxHashMap;

use super::{Cut, Naming, module_info};
use crate::jit::Generated;
use crate::objects::names::About;
use crate::objects::{Missing, ObjectStore, Symbols};

const KERNEL: &str = "[kernel]";
const VDSO: &str = "[vdso]";
/// Most processes through which files are looked for that are not at their own path here.
const MOST_PIDS: usize = 64;

impl Cut {
    /// The cut without names. `scale` converts the weights to CPU time of the target.
    pub(crate) fn unnamed(&self, scale: f64, run: &Run) -> SymbolizedProfile {
        let mut profile = SymbolizedProfile {
            windows: self.aggregate.windows.clone(),
            run: run.clone(),
            ..SymbolizedProfile::default()
        };
        let mut modules: FxHashMap<ObjectId, ModuleIndex> = FxHashMap::default();
        for frame in self.aggregate.frames.frames() {
            let id = if frame.object.is_in_no_file() { ObjectId::UNKNOWN } else { frame.object };
            let module =
                *modules.entry(id).or_insert_with(|| add_module(self.module_to_find(id), &mut profile));
            let lines = vec![Line { function: FunctionIndex(module.0), line: 0 }];
            profile.locations.push(Location { module, address: frame.address, lines, unknown: None });
        }
        let locations: Vec<LocationIndex> = (0..profile.locations.len() as u32).map(LocationIndex).collect();
        self.add_stacks(scale, &locations, &mut profile);
        profile
    }

    fn module_to_find(&self, id: ObjectId) -> ModuleInfo {
        let object = self.objects.get(id);
        let identity = object.and_then(|object| object.identity());
        module_info(id, object, About { build_id: identity, ..About::default() })
    }

    /// The cut again, and its run. Objects are opened as they are now; those of the kernel only in the same boot.
    pub(crate) fn of_unnamed(
        profile: SymbolizedProfile,
        is_same_boot: bool,
        symbols: &Symbols,
    ) -> (Self, Run) {
        let mut store = ObjectStore::new(symbols);
        let SymbolizedProfile { processes, modules, locations, stacks, mut windows, run, .. } = profile;
        let pids: Vec<u32> = processes.iter().map(|process| process.pid).take(MOST_PIDS).collect();
        let objects: Vec<ObjectId> = modules
            .iter()
            .map(|module| match (module.name.as_str(), module.path.as_str()) {
                (KERNEL, "") if is_same_boot => ObjectId::KERNEL,
                (VDSO, "") if is_same_boot => store.vdso_again(),
                (name @ (KERNEL | VDSO), "") => store.enter_missing(name, Missing::Restarted),
                (name, "") if name.starts_with(VDSO) => store.enter_missing(name, Missing::NoVdso),
                (_, "") => ObjectId::UNKNOWN,
                (_, path) => store.find_again(path, module.build_id.as_deref(), &pids),
            })
            .collect();
        let mut frames = FrameTable::default();
        let frame = |location: &Location| Frame {
            object: objects[location.module.0 as usize],
            address: location.address,
        };
        let ids: Vec<FrameId> = locations.iter().map(|location| frames.intern(frame(location))).collect();
        if windows.is_empty() {
            // There were too many windows, so they were left out.
            windows.push(Window { start_ns: 0, end_ns: (run.duration_s * 1e9) as u64 });
        }
        let tallies = stacks.iter().map(tallies).collect();
        let stack = |stack: WeightedStack| Stack {
            process: stack.process,
            outcome: stack.outcome,
            frames: stack.frames.iter().map(|location| ids[location.0 as usize]).collect(),
        };
        let stacks = stacks.into_iter().map(stack).collect();
        let aggregate = Aggregate { frames, stacks, windows, tallies };
        let (objects, generated) = (store.snapshot(), Generated::default());
        let naming = Naming::default();
        let processes = processes.into();
        (Self { aggregate, processes, objects, generated, keep_for_next: true, naming }, run)
    }
}

/// Adds a module and a function that stands for all of its code.
fn add_module(module: ModuleInfo, profile: &mut SymbolizedProfile) -> ModuleIndex {
    let index = ModuleIndex(profile.modules.len() as u32);
    let (name, system_name) = (module.name.clone(), module.name.clone());
    profile.functions.push(Function { name, system_name, module: index, file: None });
    profile.modules.push(module);
    index
}

fn tallies(stack: &WeightedStack) -> Vec<(u32, Tally)> {
    let tally = |samples, cpu_ns: u64| Tally { samples, weight_ns: cpu_ns as f64 };
    match stack.windows.as_slice() {
        [] => vec![(0, tally(stack.samples, stack.cpu_ns))],
        windows => windows.iter().map(|part| (part.window, tally(part.samples, part.cpu_ns))).collect(),
    }
}
