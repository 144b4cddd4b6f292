//! Which program a profile is of: pprof's tools take the first mapping for it.

use profiler_core::profile::{ModuleIndex, ModuleInfo, SymbolizedProfile};

/// Characters of a program's name that the kernel keeps.
const COMM: usize = 15;

/// All modules, the program of the process that used the most CPU time first, where one is known.
pub(super) fn first(profile: &SymbolizedProfile) -> Vec<ModuleIndex> {
    let mut modules: Vec<ModuleIndex> = (0..profile.modules.len() as u32).map(ModuleIndex).collect();
    if let Some(program) = program(profile) {
        modules[..=program.0 as usize].rotate_right(1);
    }
    modules
}

/// The module that is called like the process, else the one with the most CPU time below any of its functions, shared libraries
/// left out.
fn program(profile: &SymbolizedProfile) -> Option<ModuleIndex> {
    let mut by_process = vec![0_u64; profile.processes.len()];
    for stack in &profile.stacks {
        let cpu_ns = &mut by_process[stack.process.0 as usize];
        *cpu_ns = cpu_ns.saturating_add(stack.cpu_ns);
    }
    let heaviest = (0..by_process.len()).rev().max_by_key(|at| by_process[*at])?;
    let comm = profile.processes[heaviest].comm.as_str();
    let mut below = vec![0_u64; profile.modules.len()];
    for stack in profile.stacks.iter().filter(|stack| stack.process.0 as usize == heaviest) {
        let mut seen: Vec<ModuleIndex> =
            stack.frames.iter().map(|frame| profile.locations[frame.0 as usize].module).collect();
        seen.sort_unstable_by_key(|module| module.0);
        seen.dedup();
        for ModuleIndex(at) in seen {
            below[at as usize] = below[at as usize].saturating_add(stack.cpu_ns);
        }
    }
    let rank = |at: usize| (is_called(&profile.modules[at], comm), below[at]);
    // What is called so is its program even where no stack reaches it, as in the file of another tool.
    let is_one = |at: &usize| {
        let module = &profile.modules[*at];
        is_program(module) && (below[*at] > 0 || is_called(module, comm))
    };
    (0..below.len()).rev().filter(is_one).max_by_key(|at| rank(*at)).map(|at| ModuleIndex(at as u32))
}

/// Whether it is a file, and no shared library by its name.
fn is_program(module: &ModuleInfo) -> bool {
    let file = file_name(module);
    !module.path.is_empty() && !file.contains(".so.") && !file.ends_with(".so")
}

fn is_called(module: &ModuleInfo, comm: &str) -> bool {
    let (file, comm) = (file_name(module).as_bytes(), comm.as_bytes());
    !file.is_empty() && (file == comm || file[..file.len().min(COMM)] == *comm)
}

fn file_name(module: &ModuleInfo) -> &str {
    module.path.rsplit('/').next().unwrap_or_default()
}
