//! Builds the programs of known truth from `tests/programs` when they are first asked for.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, Result, bail, ensure};

/// Copies a program to where it is going to be run from.
///
/// Another process writes it. A file that this process has open for writing would be inherited by processes that other tests start
/// meanwhile, and a file that is open for writing anywhere cannot be executed.
pub fn copy_program(from: &Path, to: &Path) -> Result<()> {
    let status = Command::new("cp").arg("--").args([from, to]).status().context("there is no cp")?;
    ensure!(status.success(), "cannot copy {} to {}", from.display(), to.display());
    Ok(())
}

/// The build id that two different programs share.
const FORGED: &str = "-Wl,--build-id=0x5ee75ee7c0ffee00112233445566778899aabbcc";

/// How a program is compiled.
#[derive(Clone, Copy, Debug, Hash)]
struct Recipe {
    name: &'static str,
    source: &'static str,
    compiler: &'static str,
    flags: &'static [&'static str],
}

/// Flags that keep all calls in the stacks.
const WHOLE: &str = "-fno-optimize-sibling-calls";

const fn recipe(
    name: &'static str,
    source: &'static str,
    compiler: &'static str,
    flags: &'static [&'static str],
) -> Recipe {
    Recipe { name, source, compiler, flags }
}

/// Flags that keep calls of library functions.
const NO_BUILTIN: &str = "-fno-builtin";
const FRAMES: [&str; 2] = ["-fno-omit-frame-pointer", "-mno-omit-leaf-frame-pointer"];
const DEBUG_FRAME: [&str; 5] =
    ["-O2", "-fomit-frame-pointer", "-g", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables"];
const DEBUG_FRAME_Z: [&str; 6] =
    [DEBUG_FRAME[0], DEBUG_FRAME[1], DEBUG_FRAME[2], DEBUG_FRAME[3], DEBUG_FRAME[4], "-gz=zlib"];

const RECIPES: &[Recipe] = &[
    recipe("mix_nofp", "mix.c", "cc", &["-O2", WHOLE, "-fomit-frame-pointer"]),
    recipe(
        "mix_fp",
        "mix.c",
        "cc",
        &["-O2", WHOLE, "-fno-omit-frame-pointer", "-mno-omit-leaf-frame-pointer"],
    ),
    recipe("mix_stripped", "mix.c", "cc", &["-O2", WHOLE, "-s"]),
    // The same code as `mix_stripped`, with the symbols that tell where each function is.
    recipe("mix_unstripped", "mix.c", "cc", &["-O2", WHOLE]),
    recipe("mix_static_pie", "mix.c", "cc", &["-O2", WHOLE, "-static-pie"]),
    recipe("mix_musl", "mix.c", "musl-gcc", &["-O2", WHOLE, "-static"]),
    recipe("inlined", "inlined.cpp", "c++", &["-O2", WHOLE, "-g", "-falign-loops=64"]),
    recipe(
        "threads",
        "threads.rs",
        "rustc",
        &["--edition=2021", "-O", "-Cdebuginfo=line-tables-only", "-Coverflow-checks=off"],
    ),
    recipe("pingpong", "pingpong.c", "cc", &["-O2", WHOLE, "-pthread"]),
    recipe("idler", "idler.c", "cc", &["-O2", WHOLE]),
    recipe("sleepers", "sleepers.c", "cc", &["-O2", WHOLE, "-pthread"]),
    recipe(
        "twins",
        "twins.c",
        "cc",
        &["-O2", WHOLE, "-fno-omit-frame-pointer", "-mno-omit-leaf-frame-pointer", "-pthread"],
    ),
    recipe("twins_nofp", "twins.c", "cc", &["-O2", WHOLE, "-fomit-frame-pointer", "-pthread"]),
    recipe("host", "host.c", "cc", &["-O2", WHOLE, "-ldl"]),
    recipe("libplugin.so", "plugin.c", "cc", &["-O2", WHOLE, "-shared", "-fPIC"]),
    recipe("stacks", "stacks.c", "cc", &["-O2", "-fomit-frame-pointer", "-pthread", NO_BUILTIN]),
    recipe("stacks_no_index", "stacks.c", "cc", &["-O2", "-fomit-frame-pointer", "-Wl,--no-eh-frame-hdr"]),
    recipe("stacks_debug_frame", "stacks.c", "cc", &DEBUG_FRAME),
    recipe("stacks_debug_frame_z", "stacks.c", "cc", &DEBUG_FRAME_Z),
    recipe("stacks_o0", "stacks.c", "cc", &["-O0", "-pthread"]),
    recipe("stacks_fp", "stacks.c", "cc", &["-O2", FRAMES[0], FRAMES[1], "-pthread", NO_BUILTIN]),
    recipe(
        "stacks_fp_only",
        "stacks.c",
        "cc",
        &["-O2", FRAMES[0], FRAMES[1], "-fno-asynchronous-unwind-tables", "-fno-unwind-tables"],
    ),
    recipe("stacks_stripped", "stacks.c", "cc", &["-O2", "-fomit-frame-pointer", "-s"]),
    recipe("stacks_static", "stacks.c", "cc", &["-O2", "-fomit-frame-pointer", "-static", "-w"]),
    recipe("stacks_static_pie", "stacks.c", "cc", &["-O2", "-fomit-frame-pointer", "-static-pie", "-w"]),
    recipe("stacks_split", "stacks.c", "cc", &["-O2", "-fsplit-stack", "-pthread"]),
    recipe("stacks_musl", "stacks.c", "musl-gcc", &["-O2", "-static", "-DWITHOUT_CONTEXTS", "-w"]),
    recipe("stacks_musl_dynamic", "stacks.c", "musl-gcc", &["-O2", "-DWITHOUT_CONTEXTS", "-w"]),
    recipe(
        "libswapped_a.so",
        "swapped.c",
        "cc",
        &["-O2", "-fomit-frame-pointer", "-shared", "-fPIC", "-DFRAME=64"],
    ),
    recipe(
        "libswapped_b.so",
        "swapped.c",
        "cc",
        &["-O2", "-fomit-frame-pointer", "-shared", "-fPIC", "-DFRAME=4000"],
    ),
    recipe("unwinding", "unwinding.cpp", "c++", &["-O2", "-std=c++20", "-fomit-frame-pointer"]),
    recipe("chain_rust", "chain.rs", "rustc", &["--edition=2021", "-O"]),
    recipe("chain_go", "chain.go", "go", &[]),
    recipe("chain_go_stripped", "chain.go", "go", &["-ldflags=-s -w"]),
    // Whole in itself: it runs where there is no other file, and all that it calls has a name.
    recipe("jit", "jit.c", "cc", &["-O2", WHOLE, "-fno-omit-frame-pointer", "-static", "-Wl,--build-id"]),
    recipe("brood", "brood.c", "cc", &["-O2", WHOLE]),
    recipe("brief_a", "brief.c", "cc", &["-O2", WHOLE, "-DNAME=brief_a"]),
    recipe("brief_b", "brief.c", "cc", &["-O2", WHOLE, FRAMES[0], FRAMES[1], "-DNAME=brief_b"]),
    recipe("brief_c", "brief.c", "cc", &["-O2", WHOLE, "-static", "-DNAME=brief_c"]),
    recipe("brief_d", "brief.c", "cc", &["-O2", WHOLE, "-static-pie", "-g", "-DNAME=brief_d"]),
    // Alike to the byte but for the names of their functions.
    recipe("namesake_a", "brief.c", "cc", &["-O2", WHOLE, FRAMES[0], FRAMES[1], FORGED, "-DNAME=namesake_a"]),
    recipe("namesake_b", "brief.c", "cc", &["-O2", WHOLE, FRAMES[0], FRAMES[1], FORGED, "-DNAME=namesake_b"]),
    recipe("load", "load.c", "cc", &["-O2", WHOLE, "-fomit-frame-pointer", "-pthread"]),
    recipe("neighbour", "neighbour.c", "cc", &["-O2", WHOLE, "-pthread"]),
    recipe("undisturbed", "undisturbed.c", "cc", &["-O2", WHOLE, "-pthread", "-ldl"]),
    recipe("latecomers", "latecomers.c", "cc", &["-O2", WHOLE, "-pthread"]),
    recipe("mix_musl_dynamic", "mix.c", "musl-gcc", &["-O2", WHOLE]),
    recipe("ticked", "ticked.c", "cc", &["-O2", WHOLE, "-fno-omit-frame-pointer"]),
    recipe("scribble", "scribble.c", "cc", &["-O2", WHOLE, "-pthread"]),
    recipe("starts", "starts.c", "cc", &["-O2", WHOLE, "-pthread"]),
    recipe("starts_static", "starts.c", "cc", &["-O2", WHOLE, "-static", "-pthread"]),
    recipe("starts_musl", "starts.c", "musl-gcc", &["-O2", WHOLE, "-pthread"]),
    recipe("starts_asan", "starts.c", "gcc", &["-O1", WHOLE, "-fsanitize=address", "-pthread"]),
    recipe("starts_tsan", "starts.c", "gcc", &["-O1", WHOLE, "-fsanitize=thread", "-pthread"]),
    recipe("deny_perf", "deny_perf.c", "cc", &["-O2"]),
    recipe("perf_allowed", "perf_allowed.c", "cc", &["-O2"]),
    recipe("record_rings", "record_rings.c", "cc", &["-O2"]),
];

/// The path of a program, built if it or its source is new.
pub fn program(name: &str) -> Result<PathBuf> {
    let recipe = RECIPES.iter().find(|recipe| recipe.name == name);
    let recipe = recipe.with_context(|| format!("no recipe for a program `{name}`"))?;
    let folder = target_folder().join("programs").join(fingerprint(recipe)?);
    let path = folder.join(name);
    if !path.exists() {
        build(recipe, &folder, &path)?;
    }
    Ok(path)
}

/// Whether the compiler of a program is installed.
pub fn can_build(name: &str) -> bool {
    RECIPES.iter().any(|recipe| recipe.name == name && find_in_path(recipe.compiler).is_some())
}

/// Why a program cannot be built, if it cannot.
pub fn why_not(name: &str) -> Option<String> {
    let recipe = RECIPES.iter().find(|recipe| recipe.name == name)?;
    let missing = find_in_path(recipe.compiler).is_none();
    missing.then(|| format!("there is no {} ({})", recipe.compiler, how_to_get(recipe.compiler)))
}

/// An executable of this name in `PATH`.
pub fn find_in_path(name: &str) -> Option<PathBuf> {
    let folders = env::var_os("PATH")?;
    env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// Where cargo builds this workspace.
pub fn target_folder() -> PathBuf {
    match env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => PathBuf::from(folder),
        None => workspace_folder().join("target"),
    }
}

/// The root of the workspace.
pub fn workspace_folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests are a member of the workspace")
}

/// A file of `tests/programs`.
pub fn source(name: &str) -> PathBuf {
    source_folder().join(name)
}

fn source_folder() -> PathBuf {
    workspace_folder().join("tests/programs")
}

/// Changes with the recipe, the source and the header.
fn fingerprint(recipe: &Recipe) -> Result<String> {
    let mut hasher = DefaultHasher::new();
    recipe.hash(&mut hasher);
    for file in [recipe.source, "clock.h"] {
        fs::read(source_folder().join(file))
            .with_context(|| format!("cannot read {file}"))?
            .hash(&mut hasher);
    }
    Ok(format!("{:016x}", hasher.finish()))
}

/// Compiles to a temporary file and renames it, since several tests may request one program at once.
fn build(recipe: &Recipe, folder: &Path, path: &Path) -> Result<()> {
    let Some(compiler) = find_in_path(recipe.compiler) else {
        bail!("building {} needs `{}`: {}", recipe.name, recipe.compiler, how_to_get(recipe.compiler));
    };
    fs::create_dir_all(folder)?;
    let aside = tempfile::Builder::new().prefix("build").tempdir_in(folder)?;
    let built = aside.path().join(recipe.name);
    let (source, mut command) = (source_folder().join(recipe.source), Command::new(compiler));
    if recipe.compiler == "go" {
        command.arg("build").args(recipe.flags).arg("-o").arg(&built).arg(source);
        command.env("GOCACHE", aside.path().join("cache")).env("GO111MODULE", "off");
    } else {
        command.arg(source).args(recipe.flags).arg("-o").arg(&built);
    }
    let output = command.output().with_context(|| format!("cannot run {}", recipe.compiler))?;
    if !output.status.success() {
        bail!("building {} failed:\n{}", recipe.name, String::from_utf8_lossy(&output.stderr));
    }
    fs::rename(&built, path).with_context(|| format!("cannot move {} into place", recipe.name))
}

fn how_to_get(compiler: &str) -> &'static str {
    match compiler {
        "cc" | "gcc" => "apt-get install gcc libc6-dev",
        "c++" => "apt-get install g++",
        "musl-gcc" => "apt-get install musl-tools",
        "go" => "apt-get install golang-go",
        _ => "install Rust from https://rustup.rs",
    }
}
