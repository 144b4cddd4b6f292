//! Names in programs whose truth is known, because they are compiled here.
mod build;

use std::path::{Path, PathBuf};
use std::process::Command;

use build::{Program, run};
use symbolizer::{DebugFiles, NamedFrame, NoDebugFiles, Object, ReadAt, Reason, Symbolized};

const C: &str = "\
volatile int sink;
static inline __attribute__((always_inline)) int innermost(int x) {
    sink += x;
    return sink * 3;
}
static inline __attribute__((always_inline)) int middle(int x) {
    return innermost(x) + 1;
}
__attribute__((noinline)) int outer(int x) {
    return middle(x) ^ 7;
}
__attribute__((noinline)) static int hidden(int x) {
    sink -= x;
    return sink;
}
int main(int argc, char **argv) {
    (void)argv;
    return outer(argc) + hidden(argc);
}
";

const CPP: &str = "\
volatile int sink;
namespace space {
template <typename T> struct Box {
    __attribute__((noinline)) T put(T x);
    inline __attribute__((always_inline)) T twice(T x) {
        sink += x;
        return x * 2;
    }
};
template <typename T> T Box<T>::put(T x) {
    return twice(x) + 1;
}
__attribute__((noinline)) int overloaded(int x) { sink += x; return x; }
__attribute__((noinline)) double overloaded(double x) { sink += 1; return x; }
}
int main(int argc, char **) {
    space::Box<int> box;
    return box.put(argc) + space::overloaded(argc) + static_cast<int>(space::overloaded(1.5));
}
";

/// Enough of the standard library that two programs have something to share.
const SHARED: &str = "\
#include <map>
#include <string>
#include <vector>
int main(int argc, char **argv) {
    std::map<std::string, std::vector<int>> all;
    for (int i = 0; i < argc; i++) all[argv[i]].push_back(i);
    return all.size();
}
";

const RUST: &str = "\
mod inner {
    #[inline(always)]
    pub fn within(x: u64) -> u64 {
        std::hint::black_box(x) * 3
    }
    #[inline(never)]
    pub fn around(x: u64) -> u64 {
        within(x) + 1
    }
}
fn main() {
    std::hint::black_box(inner::around(std::hint::black_box(5)));
}
";

/// All frames of the function with this linkage name, address by address.
fn frames_of(object: &Object<'_>, program: &Program, is_it: impl Fn(&str) -> bool) -> Vec<Vec<NamedFrame>> {
    let (start, size) = program.symbol(is_it);
    let known = (start..start + size).filter_map(|address| match object.symbolize(address) {
        Symbolized::Known(frames) => Some(frames),
        Symbolized::Unknown(_) => None,
    });
    let frames: Vec<_> = known.collect();
    assert_eq!(frames.len() as u64, size, "every address of a function has a name");
    frames
}

fn names(frames: &[NamedFrame]) -> Vec<&str> {
    frames.iter().map(|frame| &*frame.name).collect()
}

fn lines(frames: &[NamedFrame]) -> Vec<Option<u32>> {
    frames.iter().map(|frame| frame.line).collect()
}

fn load(path: &Path) -> Object<'static> {
    let file = Box::leak(Box::new(std::fs::File::open(path).expect("a compiled program")));
    Object::load(file, path, &NoDebugFiles).expect("a good object")
}

#[test]
fn c_with_inlined_calls() {
    for options in [["-gdwarf-4", "-O2"], ["-gdwarf-5", "-O2"]] {
        let Some(program) = Program::c(C, &options) else { return };
        let object = load(program.path());
        let frames = frames_of(&object, &program, |name| name == "outer");
        let chain = ["innermost", "middle", "outer"];
        let inner = frames.iter().find(|frames| names(frames) == chain).expect("the inlined chain");
        assert!(matches!(lines(inner)[..], [Some(3 | 4), Some(7), Some(10)]), "{:?}", lines(inner));
        assert!(
            inner.iter().all(|frame| frame.file.as_deref().is_some_and(|file| file.ends_with("/program.c")))
        );
        assert!(frames.iter().all(|frames| frames.last().is_some_and(|frame| &*frame.name == "outer")));
        assert_eq!(
            frames[0].last().and_then(|frame| frame.line).map(|line| (9..=10).contains(&line)),
            Some(true)
        );
    }
}

/// A compiler makes two of a function that often returns at once, and puts the second back where it is called once.
const SPLIT: &str = "\
volatile int sink;
__attribute__((noinline)) void work(int x) { sink += x; }
int split(int *p, int n) {
    if (!p)
        return 0;
    for (int i = 0; i < n; i++) {
        sink += p[i];
        work(i);
        sink ^= n;
        work(sink);
    }
    sink -= *p;
    return sink;
}
int again(int n) {
    if (n < 2)
        return n;
    return again(n - 1) + again(n - 2);
}
int main(int argc, char **argv) {
    int (*volatile f)(int *, int) = split;
    (void)argv;
    return f(&argc, argc) + again(argc);
}
";

#[test]
fn a_part_of_a_function_is_not_called_by_it_and_recursion_is() {
    let Some(program) = Program::c(SPLIT, &["-g", "-O2"]) else { return };
    let object = load(program.path());
    let frames = frames_of(&object, &program, |name| name == "split");
    assert!(frames.iter().all(|frames| names(frames) == ["split"]), "{frames:?}");
    let of_lines = frames.iter().filter(|frames| lines(frames)[0].is_some_and(|line| line > 5)).count();
    assert!(of_lines > 8, "{of_lines} addresses have lines of the part");
    let frames = frames_of(&object, &program, |name| name == "again");
    let is_inlined = frames.iter().any(|frames| names(frames).starts_with(&["again", "again"]));
    // Not every compiler inlines it.
    assert!(is_inlined || frames.iter().all(|frames| frames.len() == 1));
}

#[test]
fn compressed_debug_sections() {
    for option in ["-gz=zlib", "-gz=zstd"] {
        let Some(program) = Program::c(C, &["-g", "-O2", option]) else { continue };
        let object = load(program.path());
        assert_eq!(object.warnings(), []);
        let frames = frames_of(&object, &program, |name| name == "outer");
        assert!(frames.iter().any(|frames| names(frames) == ["innermost", "middle", "outer"]), "{option}");
    }
}

#[test]
fn line_tables_alone_take_names_from_the_symbols() {
    let Some(program) = Program::c(C, &["-g1", "-O0"]) else { return };
    let object = load(program.path());
    let frames = frames_of(&object, &program, |name| name == "hidden");
    assert!(frames.iter().all(|frames| names(frames) == ["hidden"]));
    assert!(frames.iter().any(|frames| lines(frames) == [Some(13)]));
}

#[test]
fn assembly_has_lines_and_a_symbol() {
    let text =
        ".text\n.globl by_hand\n.type by_hand,@function\nby_hand:\n  nop\n  ret\n.size by_hand,.-by_hand\n";
    let Some(program) = Program::assembly(text, &["-g", "-shared", "-nostdlib"]) else { return };
    let object = load(program.path());
    let frames = frames_of(&object, &program, |name| name == "by_hand");
    assert_eq!(frames.iter().map(|frames| lines(frames)).collect::<Vec<_>>(), [[Some(5)], [Some(6)]]);
    assert!(frames.iter().all(|frames| names(frames) == ["by_hand"]));
}

#[test]
fn symbols_alone() {
    let Some(program) = Program::c(C, &["-O2"]) else { return };
    let object = load(program.path());
    assert!(!object.has_debug_info());
    let frames = frames_of(&object, &program, |name| name == "outer");
    assert!(frames.iter().all(|frames| names(frames) == ["outer"] && lines(frames) == [None]));
}

#[test]
fn a_gap_after_a_function_is_not_the_function() {
    let function = |name: &str| {
        format!(".globl {name}\n.type {name},@function\n{name}: ret\n.size {name},.-{name}\n.skip 16,0x90\n")
    };
    let text = format!(".text\n{}{}", function("first"), function("second"));
    let Some(program) = Program::assembly(&text, &["-shared", "-nostdlib"]) else { return };
    let object = load(program.path());
    let (start, size) = program.symbol(|name| name == "first");
    assert!(matches!(object.symbolize(start), Symbolized::Known(_)));
    for address in start + size..start + size + 16 {
        assert_eq!(object.symbolize(address), Symbolized::Unknown(Reason::NoSymbol));
    }
}

#[test]
fn a_stripped_program_says_so() {
    let Some(program) = Program::c(C, &["-O2"]) else { return };
    let (start, _) = program.symbol(|name| name == "outer");
    let Some(stripped) = program.stripped() else { return };
    assert_eq!(load(&stripped).symbolize(start), Symbolized::Unknown(Reason::Stripped));
}

#[test]
fn a_stripped_library_has_its_exports() {
    let Some(program) = Program::c(C, &["-O2", "-shared", "-fPIC"]) else { return };
    let (outer, _) = program.symbol(|name| name == "outer");
    let (hidden, _) = program.symbol(|name| name.starts_with("hidden"));
    let Some(stripped) = program.stripped() else { return };
    let object = load(&stripped);
    let Symbolized::Known(frames) = object.symbolize(outer) else { panic!("an export has a name") };
    assert_eq!(names(&frames), ["outer"]);
    assert_eq!(object.symbolize(hidden), Symbolized::Unknown(Reason::Stripped));
}

#[test]
fn calls_into_libraries_are_named_after_their_goal() {
    let text = "int puts(const char *); int main(void) { return puts(\"\"); }";
    for options in [["-fcf-protection=full", "-O2"], ["-fcf-protection=none", "-O2"]] {
        let Some(program) = Program::c(text, &options) else { return };
        let object = load(program.path());
        let found = program.stubs().any(|address| match object.symbolize(address) {
            Symbolized::Known(frames) => names(&frames) == ["puts@plt"],
            Symbolized::Unknown(_) => false,
        });
        assert!(found, "{options:?}");
    }
}

/// What is called at each stub of a program.
fn stub_names(path: &Path, program: &Program) -> Vec<String> {
    let object = load(path);
    let names = program.stubs().filter_map(|address| match object.symbolize(address) {
        Symbolized::Known(frames) => Some(frames[0].name.to_string()),
        Symbolized::Unknown(_) => None,
    });
    names.collect()
}

#[test]
fn a_static_program_calls_what_it_chooses_through_named_stubs() {
    let text = "\
static int chosen(int x) { return x + 1; }
static int (*choose_work(void))(int) { return chosen; }
int work(int) __attribute__((ifunc(\"choose_work\")));
int main(int argc, char **argv) { (void)argv; return work(argc); }
";
    for linker in ["bfd", "gold", "lld"] {
        let linker = format!("-fuse-ld={linker}");
        let Some(program) = Program::c(text, &["-static", "-no-pie", "-O1", &linker]) else { continue };
        let names = stub_names(program.path(), &program);
        let is_named = |name: &String| ["work@plt", "choose_work@plt", "work"].contains(&name.as_str());
        assert!(names.iter().any(is_named), "{linker}: {names:?}");
        assert!(names.len() as u64 * 10 >= program.stubs().count() as u64 * 9, "{linker}: {names:?}");
    }
}

#[test]
fn stubs_without_indirect_jumps_are_named_whole() {
    let text = "int puts(const char *); int main(void) { return puts(\"\"); }";
    let options = ["-fcf-protection=none", "-O2", "-fuse-ld=lld", "-Wl,-z,retpolineplt", "-Wl,-z,lazy"];
    let Some(program) = Program::c(text, &options) else { return };
    let names = stub_names(program.path(), &program);
    assert!(names.iter().filter(|name| *name == "puts@plt").count() >= 26, "{names:?}");
}

/// Assembly without a size, before functions that have unwind information and no symbols.
#[test]
fn a_label_ends_where_the_unwind_information_has_another_function() {
    let text = "\
.text
.globl label
label:
  nop
  ret
.type hidden,@function
hidden:
  .cfi_startproc
  nop
  ret
  .cfi_endproc
.size hidden,.-hidden
.globl last
last:
  ret
";
    let Some(program) = Program::assembly(text, &["-shared", "-nostdlib", "-Wl,--eh-frame-hdr"]) else {
        return;
    };
    let (hidden, size) = program.symbol(|name| name == "hidden");
    let Some(stripped) = program.stripped() else { return };
    let object = load(&stripped);
    let name = |address| match object.symbolize(address) {
        Symbolized::Known(frames) => frames[0].name.to_string(),
        Symbolized::Unknown(_) => String::new(),
    };
    assert_eq!([hidden - 2, hidden - 1].map(name), ["label", "label"]);
    assert_eq!((hidden..hidden + size).map(name).collect::<Vec<_>>(), [""; 2]);
    assert_eq!(name(hidden + size), "last");
}

#[test]
fn what_assembly_calls_data_among_code_is_not_the_label_before_it() {
    let text = "\
.text
.globl label
label:
  ret
.globl table
.type table,@object
table:
  ret
  ret
.size table,.-table
  ret
";
    let Some(program) = Program::assembly(text, &["-shared", "-nostdlib"]) else { return };
    let listed = run(Command::new("nm").arg(program.path())).expect("nm comes with the compiler");
    let start = listed.lines().find_map(|line| line.strip_suffix(" T label")).expect("the label");
    let start = u64::from_str_radix(start, 16).expect("a hexadecimal number");
    let object = load(program.path());
    let names: Vec<_> = (start..start + 4)
        .map(|address| match object.symbolize(address) {
            Symbolized::Known(frames) => frames[0].name.to_string(),
            Symbolized::Unknown(_) => String::new(),
        })
        .collect();
    assert_eq!(names, ["label", "table", "table", ""]);
}

#[test]
fn symbols_of_sections_beyond_65279_are_read() {
    const SECTIONS: usize = 65_300;
    let sections: String = (0..SECTIONS)
        .map(|i| format!(".section .t{i},\"ax\",@progbits\n.globl f{i}\n.type f{i},@function\nf{i}: ret\n.size f{i},1\n"))
        .collect();
    // In a file that is not linked all sections begin at 0.
    let last = "\n.section .u,\"ax\",@progbits\n.skip 64\n.globl beyond\n.type beyond,@function\nbeyond: ret\n.size beyond,1\n";
    let Some(program) = Program::assembly(&(sections + last), &["-c"]) else { return };
    let Symbolized::Known(frames) = load(program.path()).symbolize(64) else { panic!("a symbol") };
    assert_eq!(names(&frames), ["beyond"]);
}

#[test]
fn an_old_version_of_a_function_is_another_function() {
    let text = "\
volatile int sink;
__asm__(\".symver solve_old,solve@V_1\");
__asm__(\".symver solve_new,solve@@V_2\");
void solve_old(void) { sink += 1; }
void solve_new(void) { sink += 2; }
";
    let directory = tempfile::tempdir().expect("a temporary directory");
    let map = directory.path().join("versions");
    std::fs::write(&map, "V_1 { global: solve; local: *; }; V_2 { global: solve; } V_1;").expect("a file");
    let script = format!("-Wl,--version-script={}", map.display());
    let Some(program) = Program::c(text, &["-shared", "-fPIC", "-O1", &script]) else { return };
    let listed = run(Command::new("nm").arg("-D").arg(program.path())).expect("nm comes with the compiler");
    let address = |suffix: &str| {
        let line = listed.lines().find(|line| line.ends_with(suffix)).expect("an export");
        u64::from_str_radix(&line[..16], 16).expect("a hexadecimal number")
    };
    let (old, new) = (address(" solve@V_1"), address(" solve@@V_2"));
    let Some(stripped) = program.stripped() else { return };
    for path in [program.path(), &stripped] {
        let object = load(path);
        let found = [old, new].map(|address| match object.symbolize(address) {
            Symbolized::Known(frames) => names(&frames)[0].to_owned(),
            Symbolized::Unknown(_) => String::new(),
        });
        assert_eq!(found, ["solve@V_1", "solve"], "{}", path.display());
    }
}

#[test]
fn cpp_with_templates_and_overloads() {
    let Some(program) = Program::cpp(CPP, &["-g", "-O2"]) else { return };
    let object = load(program.path());
    let put = frames_of(&object, &program, |name| name.starts_with("_ZN5space3BoxIiE3putEi"));
    let chain = ["space::Box<int>::twice(int)", "space::Box<int>::put(int)"];
    let inlined = put.iter().find(|frames| names(frames) == chain).expect("the inlined method");
    assert!(matches!(lines(inlined)[..], [Some(6 | 7), Some(11)]), "{:?}", lines(inlined));
    assert_eq!(&*inlined[1].linkage_name, "_ZN5space3BoxIiE3putEi");
    for (linkage, name) in [
        ("_ZN5space10overloadedEi", "space::overloaded(int)"),
        ("_ZN5space10overloadedEd", "space::overloaded(double)"),
    ] {
        let frames = frames_of(&object, &program, |each| each.starts_with(linkage));
        assert!(frames.iter().all(|frames| names(frames) == [name]));
    }
}

/// Functions that the linker has no names for: all are inlined, or C++ would not export them.
const INTERNAL: &str = "\
volatile int sink;
#define INLINED inline __attribute__((always_inline))
namespace {
namespace a { static INLINED void solve() { sink += 1; } }
namespace b { static INLINED void solve() { sink += 2; } }
static INLINED void go(int) { sink += 3; }
static INLINED void go(const double *const) { sink += 4; }
struct P { INLINED void run() { sink += 5; } };
template <typename T> struct Q { INLINED void run(T) const { sink += 6; } };
}
int main() {
    a::solve(); b::solve(); go(1); go(nullptr); P().run(); Q<int>().run(1);
    auto first = []() __attribute__((always_inline)) { sink += 7; };
    auto second = []() __attribute__((always_inline)) { sink += 8; };
    first(); second();
    struct Local { INLINED void run() { sink += 9; } };
    Local().run();
}
";

#[test]
fn inlined_functions_without_linkage_names_are_told_apart() {
    let Some(program) = Program::cpp(INTERNAL, &["-g", "-O2"]) else { return };
    let frames = frames_of(&load(program.path()), &program, |name| name == "main");
    assert!(frames.iter().all(|frames| &*frames[frames.len() - 1].name == "main"));
    // Not every compiler counts columns alike.
    let without_column = |name: &str| match name.split_once("program.cc:") {
        Some((before, at)) => {
            let line = at.split(':').next().unwrap_or_default();
            format!("{before}program.cc:{line}{}", at.find('}').map_or("", |end| &at[end..]))
        }
        None => name.to_owned(),
    };
    let mut found: Vec<String> = frames.iter().flatten().map(|frame| without_column(&frame.name)).collect();
    found.sort_unstable();
    found.dedup();
    let expected = [
        "(anonymous namespace)::P::run()",
        "(anonymous namespace)::Q<int>::run(int) const",
        "(anonymous namespace)::a::solve()",
        "(anonymous namespace)::b::solve()",
        "(anonymous namespace)::go(double const*)",
        "(anonymous namespace)::go(int)",
        "main",
        "main::Local::run()",
        "main::{lambda at program.cc:13}::operator()() const",
        "main::{lambda at program.cc:14}::operator()() const",
    ];
    assert_eq!(found, expected);
}

/// Two functions of one name within others.
const NESTED: &str = "\
volatile int sink;
int one(int n) {
    __attribute__((noinline)) int solve(int x) { sink += x; return n + sink; }
    return solve(n);
}
int two(int n) {
    __attribute__((noinline)) int solve(int x) { sink -= x; return n - sink; }
    return solve(n);
}
int main(int argc, char **argv) {
    (void)argv;
    return one(argc) + two(argc);
}
";

#[test]
fn functions_within_functions_are_told_apart() {
    let Some(program) = Program::c(NESTED, &["-g", "-O1", "-fno-inline"]) else { return };
    let object = load(program.path());
    let name = |symbol: &str| frames_of(&object, &program, |name| name == symbol)[0][0].name.to_string();
    let mut found = [name("solve.0"), name("solve.1")];
    found.sort_unstable();
    assert_eq!(found, ["one::solve", "two::solve"]);
}

const FORTRAN: &str = "\
module a
contains
  subroutine go(n)
    integer :: n
    call solve(n)
  contains
    subroutine solve(n)
      integer :: n
      n = n + 1
    end subroutine
  end subroutine
end module
module b
contains
  subroutine go(n)
    integer :: n
    call solve(n)
  contains
    subroutine solve(n)
      integer :: n
      n = n - 1
    end subroutine
  end subroutine
end module
program heat
  use a, only: first => go
  use b, only: second => go
  integer :: n
  n = 1
  call first(n)
  call second(n)
  print *, n
end program
";

#[test]
fn fortran_procedures_within_procedures_are_told_apart() {
    let options = ["-g", "-O1", "-fno-inline"];
    let Some(program) = Program::fortran(FORTRAN, &options) else { return };
    let object = load(program.path());
    let name = |symbol: &str| frames_of(&object, &program, |name| name == symbol)[0][0].name.to_string();
    let mut found = [name("solve.0"), name("solve.1")];
    found.sort_unstable();
    assert_eq!(found, ["a::go::solve", "b::go::solve"]);
    assert_eq!(name("__a_MOD_go"), "a::go");
}

const GENERIC_RUST: &str = "\
use std::hint::black_box;
#[inline(never)]
fn solve<T: Copy + Into<f64>>(x: T) -> f64 {
    black_box(x).into() + 1.0
}
#[inline(never)]
fn run(f: &dyn Fn(f64) -> f64) -> f64 {
    f(black_box(2.0))
}
fn main() {
    black_box(solve(1u8) + solve(1f32));
    black_box(run(&|x| x + black_box(1.0)) + run(&|x| x * black_box(3.0)));
}
";

#[test]
fn instances_and_closures_of_the_old_rust_mangling_are_told_apart() {
    // Compilers that have left it take it from nightly builds alone.
    let Some(program) = Program::rust(
        GENERIC_RUST,
        &["-g", "-Copt-level=1", "-Csymbol-mangling-version=legacy", "-Zunstable-options"],
    )
    .or_else(|| Program::rust(GENERIC_RUST, &["-g", "-Copt-level=1"])) else {
        return;
    };
    let object = load(program.path());
    let listed = run(Command::new("nm").arg("-S").arg(program.path())).expect("nm comes with the compiler");
    let own = listed
        .lines()
        .filter(|line| line.contains("program") && (line.contains("solve") || line.contains("closure")));
    let mut found: Vec<String> = own
        .filter_map(|line| u64::from_str_radix(line.split_whitespace().next()?, 16).ok())
        .filter_map(|address| match object.symbolize(address) {
            Symbolized::Known(frames) => Some(frames.last()?.name.to_string()),
            Symbolized::Unknown(_) => None,
        })
        .collect();
    found.sort_unstable();
    let expected = [
        "program::main::{closure#0}",
        "program::main::{closure#1}",
        "program::solve::<f32>",
        "program::solve::<u8>",
    ];
    assert!(found == expected || !listed.contains("_ZN7program"), "{found:?}");
}

#[test]
fn rust_of_both_manglings() {
    for mangling in ["-Csymbol-mangling-version=v0", "-Cdebuginfo=2"] {
        let Some(program) = Program::rust(RUST, &["-g", "-Copt-level=2", mangling]) else { return };
        let object = load(program.path());
        let frames = frames_of(&object, &program, |name| name.contains("inner") && name.contains("around"));
        let chain = ["program::inner::within", "program::inner::around"];
        let inlined =
            frames.iter().find(|frames| names(frames).ends_with(&chain)).expect("the inlined function");
        assert_eq!(lines(inlined).last(), Some(&Some(8)));
    }
}

/// Debug files below a directory of this test.
struct Root(PathBuf);

impl DebugFiles for Root {
    fn open(&self, path: &Path) -> Option<Box<dyn ReadAt>> {
        let path = if path.starts_with(&self.0) {
            path.to_owned()
        } else {
            self.0.join(path.strip_prefix("/").ok()?)
        };
        Some(Box::new(std::fs::File::open(path).ok()?))
    }
}

#[test]
fn a_separate_debug_file_by_link() {
    let Some(program) = Program::c(C, &["-g", "-O2", "-Wl,--build-id=none"]) else { return };
    let (outer, size) = program.symbol(|name| name == "outer");
    let Some((stripped, debug)) = program.split() else { return };
    let file = std::fs::File::open(&stripped).expect("the stripped program");
    let root = Root(stripped.parent().expect("a directory").to_owned());
    let object = Object::load(&file, &stripped, &root).expect("a good object");
    let chains = (outer..outer + size).filter_map(|address| match object.symbolize(address) {
        Symbolized::Known(frames) => Some(names(&frames).join(" ")),
        Symbolized::Unknown(_) => None,
    });
    assert!(chains.collect::<Vec<_>>().contains(&"innermost middle outer".to_owned()));

    let mut bytes = std::fs::read(&debug).expect("the debug file");
    *bytes.last_mut().expect("not empty") ^= 1;
    std::fs::write(&debug, bytes).expect("a changed debug file");
    let object = Object::load(&file, &stripped, &root).expect("a good object");
    assert_eq!(object.symbolize(outer), Symbolized::Unknown(Reason::Stripped));
    assert!(matches!(object.warnings(), [Reason::OtherBuild(_)]));
}

#[test]
fn a_separate_debug_file_by_build_id() {
    let Some(program) = Program::c(C, &["-g", "-O2", "-Wl,--build-id=0xabcdef0123"]) else { return };
    let (outer, _) = program.symbol(|name| name == "outer");
    let Some((stripped, debug)) = program.split() else { return };
    let root = stripped.parent().expect("a directory").join("root");
    let directory = root.join("usr/lib/debug/.build-id/ab");
    std::fs::create_dir_all(&directory).expect("a directory");
    std::fs::rename(debug, directory.join("cdef0123.debug")).expect("the debug file");
    let file = std::fs::File::open(&stripped).expect("the stripped program");
    let object = Object::load(&file, Path::new("/usr/bin/program"), &Root(root)).expect("a good object");
    assert_eq!(object.build_id(), Some("abcdef0123"));
    assert!(object.has_debug_info());
    assert!(matches!(object.symbolize(outer), Symbolized::Known(_)));
}

#[test]
fn debug_information_shared_between_programs() {
    let (Some(one), Some(two)) = (Program::cpp(SHARED, &["-g", "-O2"]), Program::cpp(SHARED, &["-g", "-O2"]))
    else {
        return;
    };
    let common = one.path().with_file_name("common.debug");
    let (start, size) = one.symbol(|name| name == "main");
    let before = load(one.path());
    let mut dwz = Command::new("dwz");
    if run(dwz.arg("-m").arg(&common).args([one.path(), two.path()])).is_none() || !common.exists() {
        return;
    }
    let file = std::fs::File::open(one.path()).expect("the program");
    let root = Root(one.path().parent().expect("a directory").to_owned());
    let after = Object::load(&file, one.path(), &root).expect("a good object");
    assert_eq!(after.warnings(), []);
    for address in start..start + size {
        assert_eq!(before.symbolize(address), after.symbolize(address));
    }
}

#[test]
fn other_files_say_what_they_are() {
    let load = |bytes: &[u8]| Object::load(&bytes, Path::new("/x"), &NoDebugFiles).err();
    assert_eq!(load(b""), Some(Reason::NotElf));
    assert_eq!(load(b"#!/bin/sh\n"), Some(Reason::NotElf));
    assert!(matches!(load(b"\x7fELF\x02\x01"), Some(Reason::CorruptElf(_))));
    let mut other = vec![0; 64];
    other[..6].copy_from_slice(b"\x7fELF\x01\x01");
    assert_eq!(load(&other), Some(Reason::OtherElf));
}

#[test]
fn of_two_copies_the_one_the_linker_kept() {
    // The linker keeps the first copy, and lets the debug information of the other one, which is as long, speak of it too.
    let directory = tempfile::tempdir().expect("a temporary directory");
    let first = directory.path().join("first.cc");
    let copy = "inline __attribute__((noinline)) int copied(int x) { return x * 3; }\n";
    std::fs::write(&first, format!("{copy}int other(int x) {{ return copied(x); }}\n"))
        .expect("a source file");
    let second = format!(
        "\n\n{copy}int other(int);\nint main(int argc, char **) {{ return copied(argc) + other(argc); }}\n"
    );
    let first = first.to_str().expect("a plain path");
    let Some(program) = Program::cpp(&second, &["-g", "-O1", first]) else { return };
    for frames in frames_of(&load(program.path()), &program, |name| name == "_Z6copiedi") {
        assert_eq!((frames[0].file.as_deref(), frames[0].line), (Some(first), Some(1)));
    }
}
