//! Names that are kept in other files, or packed: each compared with the same program as compilers leave it.
mod build;

use std::path::{Path, PathBuf};
use std::process::Command;

use build::{Program, run};
use liblzma::bufread::XzEncoder;
use symbolizer::{DebugFiles, NoDebugFiles, Object, ReadAt, Reason, Symbolized};

const SOURCE: &str = "\
volatile int sink;
namespace space {
template <typename T> struct Box {
    __attribute__((noinline)) T put(T x);
    inline __attribute__((always_inline)) T once(T x) {
        sink += x;
        return x * 2;
    }
    inline __attribute__((always_inline)) T twice(T x) {
        return once(x) + once(x + 1);
    }
};
template <typename T> T Box<T>::put(T x) {
    return twice(x) + 1;
}
}
static __attribute__((noinline)) int hidden(int x) { sink -= x; return sink; }
int main(int argc, char **) {
    space::Box<int> box;
    return box.put(argc) + hidden(argc);
}
";

const FURTHER_FUNCTIONS: usize = 2000;

/// The file system as it is.
#[derive(Clone)]
struct Disk;

impl DebugFiles for Disk {
    fn open(&self, path: &Path) -> Option<Box<dyn ReadAt>> {
        Some(Box::new(std::fs::File::open(path).ok()?))
    }

    fn share(&self) -> Option<Box<dyn DebugFiles + Send + Sync>> {
        Some(Box::new(self.clone()))
    }
}

fn load(path: &Path, files: &dyn DebugFiles) -> Object<'static> {
    let file = Box::leak(Box::new(std::fs::File::open(path).expect("a compiled program")));
    Object::load(file, path, files).expect("a good object")
}

/// What is known of every address of the program's own functions.
fn answers(object: &Object<'_>, program: &Program) -> Vec<Symbolized> {
    let functions = ["_ZN5space3BoxIiE3putEi", "_ZL6hiddeni", "main"];
    let ranges = functions
        .map(|function| program.symbol(|name| name.starts_with(function) && !name.ends_with(".cold")));
    let addresses: Vec<u64> = ranges.into_iter().flat_map(|(start, size)| start..start + size).collect();
    let answers: Vec<_> = addresses.iter().map(|&address| object.symbolize(address)).collect();
    assert_eq!(object.symbolize_all(&addresses), answers);
    answers
}

/// The program with split DWARF, and what is known of one with the same code and everything in it.
fn split(options: &[&str]) -> Option<(Program, Vec<Symbolized>)> {
    // More lines than the rest of the unit takes bytes, as in any program of some size.
    let more =
        (0..FURTHER_FUNCTIONS).map(|i| format!("int further{i}(int x) {{\nsink += x;\nreturn {i};\n}}\n"));
    let source = SOURCE.to_owned() + &more.collect::<String>();
    let program =
        Program::in_steps("g++", "program.cc", &source, &[options, &["-O2", "-gsplit-dwarf"]].concat())?;
    let whole = program.build("g++", "program.cc", "whole", &[options, &["-O2"]].concat())?;
    let expected = answers(&load(&whole, &NoDebugFiles), &program);
    assert_eq!(deepest(&expected), 3, "something is inlined");
    Some((program, expected))
}

fn deepest(answers: &[Symbolized]) -> usize {
    let depth = |answer: &Symbolized| match answer {
        Symbolized::Known(frames) => frames.len(),
        Symbolized::Unknown(_) => 0,
    };
    answers.iter().map(depth).max().unwrap_or(0)
}

#[test]
fn split_dwarf_beside_the_object_files() {
    for version in ["-gdwarf-4", "-gdwarf-5"] {
        let Some((program, expected)) = split(&[version]) else { return };
        let object = load(program.path(), &Disk);
        assert_eq!(object.warnings(), []);
        assert_eq!(answers(&object, &program), expected, "{version}");
    }
}

#[test]
fn split_dwarf_in_a_package() {
    for (version, tool) in [("-gdwarf-4", "dwp"), ("-gdwarf-4", "llvm-dwp"), ("-gdwarf-5", "llvm-dwp")] {
        let Some((program, expected)) = split(&[version]) else { return };
        let package = program.path().with_extension("dwp");
        // LLVM 14's does not end on some small files of DWARF 5.
        let mut make = Command::new("timeout");
        make.args(["20", tool]).current_dir(program.path().parent().expect("a directory"));
        if run(make.arg("-e").arg(program.path()).arg("-o").arg(&package)).is_none() {
            continue;
        }
        std::fs::remove_file(program.path().with_extension("dwo")).expect("the unit's file");
        let object = load(program.path(), &Disk);
        assert_eq!(object.warnings(), []);
        assert_eq!(answers(&object, &program), expected, "{version}, {tool}");
    }
}

#[test]
fn split_dwarf_is_found_beside_a_program_that_was_moved() {
    let map = ["-fdebug-prefix-map=/tmp=/no/such/place", "-gdwarf-5"];
    let Some((program, expected)) = split(&map) else { return };
    assert_eq!(answers(&load(program.path(), &Disk), &program), expected);
}

#[test]
fn a_unit_without_its_other_half_has_its_lines() {
    let Some((program, expected)) = split(&["-gdwarf-5"]) else { return };
    let dwo = program.path().with_extension("dwo");
    let other = SOURCE.replace("x * 2", "x * 3");
    let Some(stranger) = Program::in_steps("g++", "program.cc", &other, &["-O2", "-gsplit-dwarf"]) else {
        return;
    };
    let line = |answer: &Symbolized| match answer {
        Symbolized::Known(frames) => (frames[0].file.clone(), frames[0].line),
        Symbolized::Unknown(reason) => panic!("{reason}"),
    };
    let check = |reason: fn(&Reason) -> bool| {
        let object = load(program.path(), &Disk);
        assert!(matches!(object.warnings(), [warning] if reason(warning)), "{:?}", object.warnings());
        let answers = answers(&object, &program);
        assert_eq!(deepest(&answers), 1);
        assert!(answers.iter().map(line).eq(expected.iter().map(line)));
    };
    std::fs::copy(stranger.path().with_extension("dwo"), &dwo).expect("another build's file");
    check(|reason| matches!(reason, Reason::OtherBuild(_)));
    std::fs::write(&dwo, b"\x7fELF").expect("a short file");
    check(|reason| matches!(reason, Reason::CorruptElf(_)));
    std::fs::remove_file(&dwo).expect("the unit's file");
    check(|reason| matches!(reason, Reason::NoSplitFile(_)));
}

#[test]
fn sections_compressed_as_older_tools_did() {
    let Some(program) = Program::cpp(SOURCE, &["-g", "-O2"]) else { return };
    let expected = answers(&load(program.path(), &NoDebugFiles), &program);
    let legacy = program.path().with_file_name("legacy");
    let mut objcopy = Command::new("objcopy");
    objcopy.arg("--compress-debug-sections=zlib-gnu").arg(program.path()).arg(&legacy);
    if run(&mut objcopy).is_none() {
        return;
    }
    let bytes = std::fs::read(&legacy).expect("a program");
    if !bytes.windows(12).any(|window| window == b".zdebug_info") {
        return; // these binutils no longer do
    }
    let object = load(&legacy, &NoDebugFiles);
    assert_eq!(object.warnings(), []);
    assert_eq!(answers(&object, &program), expected);
}

/// A stripped copy with packed symbols.
fn with_mini_debug_info(program: &Program, packed: &[u8]) -> Option<PathBuf> {
    let stripped = program.stripped()?;
    let file = stripped.with_file_name("mini.xz");
    std::fs::write(&file, packed).expect("a file");
    let add = format!(".gnu_debugdata={}", file.display());
    run(Command::new("objcopy").arg("--add-section").arg(add).arg(&stripped))?;
    Some(stripped)
}

fn pack(bytes: &[u8]) -> Vec<u8> {
    let mut packed = Vec::new();
    std::io::copy(&mut XzEncoder::new(bytes, 0), &mut packed).expect("memory");
    packed
}

#[test]
fn packed_symbols_of_a_stripped_program() {
    let Some(program) = Program::cpp(SOURCE, &["-O2"]) else { return };
    let expected = answers(&load(program.path(), &NoDebugFiles), &program);
    let mini = program.path().with_file_name("mini");
    let mut objcopy = Command::new("objcopy");
    objcopy.arg("--only-keep-debug").arg(program.path()).arg(&mini);
    if run(&mut objcopy).is_none() {
        return;
    }
    let packed = pack(&std::fs::read(&mini).expect("the symbols"));
    let Some(path) = with_mini_debug_info(&program, &packed) else { return };
    let object = load(&path, &NoDebugFiles);
    assert_eq!(object.warnings(), []);
    assert_eq!(answers(&object, &program), expected);

    let Some(path) = with_mini_debug_info(&program, &packed[..packed.len() / 2]) else { return };
    let object = load(&path, &NoDebugFiles);
    assert!(matches!(object.warnings(), [Reason::CorruptElf(_)]), "{:?}", object.warnings());
    assert!(answers(&object, &program).contains(&Symbolized::Unknown(Reason::Stripped)));

    let Some(path) = with_mini_debug_info(&program, &pack(&vec![0; 129 << 20])) else { return };
    assert!(matches!(load(&path, &NoDebugFiles).warnings(), [Reason::TooLarge { .. }]));
}

/// A program that was left some of its symbols has the others from the files that have them.
#[test]
fn some_symbols_of_a_program_do_not_hide_those_of_its_debug_file() {
    let Some(program) = Program::cpp(SOURCE, &["-O2", "-Wl,--build-id=none"]) else { return };
    let expected = answers(&load(program.path(), &NoDebugFiles), &program);
    let Some((stripped, debug)) = program.split() else { return };
    let packed = pack(&std::fs::read(&debug).expect("the symbols"));
    let partial = |more: &str| {
        let path = stripped.with_file_name("partial");
        let mut strip = Command::new("strip");
        run(strip.args(["-K", "main", "-o"]).arg(&path).arg(program.path()))?;
        run(Command::new("objcopy").arg(more).arg(&path))?;
        Some(path)
    };
    let Some(path) = partial(&format!("--add-gnu-debuglink={}", debug.display())) else { return };
    assert_eq!(answers(&load(&path, &Disk), &program), expected);
    let file = stripped.with_file_name("mini.xz");
    std::fs::write(&file, packed).expect("a file");
    let Some(path) = partial(&format!("--add-section=.gnu_debugdata={}", file.display())) else { return };
    assert_eq!(answers(&load(&path, &NoDebugFiles), &program), expected);
}

/// Debug files by build id from elsewhere.
struct Elsewhere(PathBuf);

impl DebugFiles for Elsewhere {
    fn open(&self, _: &Path) -> Option<Box<dyn ReadAt>> {
        None
    }

    fn fetch(&self, build_id: &str) -> Option<Box<dyn ReadAt>> {
        assert_eq!(build_id, "abcdef0123");
        Disk.open(&self.0)
    }
}

#[test]
fn a_debug_file_from_elsewhere_is_of_the_same_build() {
    let Some(program) = Program::cpp(SOURCE, &["-g", "-O2", "-Wl,--build-id=0xabcdef0123"]) else { return };
    let expected = answers(&load(program.path(), &NoDebugFiles), &program);
    let Some((stripped, debug)) = program.split() else { return };
    let object = load(&stripped, &Elsewhere(debug));
    assert_eq!(object.warnings(), []);
    assert_eq!(answers(&object, &program), expected);

    let Some(other) = Program::cpp(SOURCE, &["-g", "-O2", "-Wl,--build-id=0xabcdef0124"]) else { return };
    let object = load(&stripped, &Elsewhere(other.path().to_owned()));
    assert!(matches!(object.warnings(), [Reason::OtherBuild(_)]), "{:?}", object.warnings());
    assert!(!object.has_debug_info());
}

/// Every path leads to one file.
struct One(PathBuf);

impl DebugFiles for One {
    fn open(&self, _: &Path) -> Option<Box<dyn ReadAt>> {
        Disk.open(&self.0)
    }
}

#[test]
fn a_debug_file_in_the_build_id_folder_is_of_the_same_build() {
    let Some(program) = Program::cpp(SOURCE, &["-O2", "-Wl,--build-id=0xabcdef0123"]) else { return };
    let Some(other) = Program::cpp(SOURCE, &["-g", "-O2", "-Wl,--build-id=0xabcdef0124"]) else { return };
    let object = load(program.path(), &One(other.path().to_owned()));
    assert!(!object.has_debug_info());
    assert!(
        matches!(object.warnings(), [Reason::OtherBuild(path)] if path.ends_with("/.build-id/ab/cdef0123.debug")),
        "{:?}",
        object.warnings()
    );
}

/// Whoever can put a file beside an object can make it as long as a file can be.
struct Endless;

impl ReadAt for Endless {
    fn len(&self) -> std::io::Result<u64> {
        Ok(1 << 50)
    }

    fn read_at(&self, _: u64, _: usize) -> std::io::Result<Vec<u8>> {
        panic!("there is no end to it");
    }
}

impl DebugFiles for Endless {
    fn open(&self, _: &Path) -> Option<Box<dyn ReadAt>> {
        Some(Box::new(Endless))
    }
}

#[test]
fn a_debug_file_that_is_too_long_is_not_read_for_its_checksum() {
    let Some(program) = Program::cpp(SOURCE, &["-g", "-O2", "-Wl,--build-id=none"]) else { return };
    let Some((stripped, _)) = program.split() else { return };
    let object = load(&stripped, &Endless);
    assert!(!object.has_debug_info());
    let too_large = |reason: &Reason| matches!(reason, Reason::TooLarge { bytes: 0x4_0000_0000_0000, .. });
    assert!(
        !object.warnings().is_empty() && object.warnings().iter().all(too_large),
        "{:?}",
        object.warnings()
    );
}

/// The table that the run-time system walks stacks with is there in stripped programs too.
#[test]
fn a_stripped_go_program_has_its_functions() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let source = "package main\n\n//go:noinline\nfunc work(x int) int { return x * 3 }\n\nfunc main() { println(work(4)) }\n";
    std::fs::write(directory.path().join("program.go"), source).expect("a source file");
    let build = |out: &str, flags: &str| {
        let mut go = Command::new("go");
        go.current_dir(directory.path()).args(["build", flags, "-o", out, "program.go"]);
        go.env("GOCACHE", directory.path().join("cache")).env("GO111MODULE", "off");
        run(&mut go).map(|_| directory.path().join(out))
    };
    let (Some(whole), Some(stripped)) = (build("whole", "-trimpath"), build("stripped", "-ldflags=-s -w"))
    else {
        return;
    };
    let listed = run(Command::new("nm").arg(&whole)).expect("nm comes with the compiler");
    let functions: Vec<(u64, &str)> = listed
        .lines()
        .filter_map(|line| {
            let &[address, "T" | "t", name] = &line.split_whitespace().collect::<Vec<_>>()[..] else {
                return None;
            };
            Some((u64::from_str_radix(address, 16).ok()?, name))
        })
        .collect();
    let object = load(&stripped, &NoDebugFiles);
    let name = |address: u64| match object.symbolize(address) {
        Symbolized::Known(frames) => frames[0].linkage_name.to_string(),
        Symbolized::Unknown(_) => String::new(),
    };
    let main = functions.iter().find(|(_, name)| *name == "main.work").expect("the program's own");
    assert_eq!((name(main.0), name(main.0 + 1)), ("main.work".to_owned(), "main.work".to_owned()));
    // The table leaves out what names the ABI, and labels such as `runtime.text`.
    let plain = |name: &str| name.trim_end_matches(".abi0").trim_end_matches(".abiinternal").to_owned();
    let other = functions.iter().filter(|(address, listed)| plain(listed) != name(*address)).count();
    assert!(functions.len() > 1000 && other * 100 < functions.len(), "{other} of {}", functions.len());
}
