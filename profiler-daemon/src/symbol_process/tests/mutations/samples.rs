//! Small files of real compilers, each with another kind of names, and random changes to them.

use std::ops::Range;
use std::path::Path;
use std::process::{Command, Stdio};

use object::{Object as _, ObjectSection as _, SectionKind};

/// What each kind is made with, in a folder with [`SOURCES`]: the commands, and the separate file with the debug
/// information if there is one. The result is `made`.
const KINDS: &[(&str, &[&str], Option<&str>)] = &[
    ("C, DWARF 5, static", &["gcc -gdwarf-5 -O2 -nostdlib -static {here} -o made one.c"], None),
    ("C, DWARF 4, shared", &["gcc -gdwarf-4 -O2 {shared} -o made one.c two.c"], None),
    ("C, 64-bit DWARF", &["gcc -gdwarf-5 -gdwarf64 -O1 {shared} -o made one.c two.c"], None),
    ("C, lines only", &["gcc -g1 -O1 {shared} -o made one.c two.c"], None),
    ("C, link-time optimization", &["gcc -gdwarf-5 -flto -O2 {shared} -o made one.c two.c"], None),
    ("C++, DWARF 5", &["g++ -gdwarf-5 -O2 {shared} -o made templates.cc"], None),
    (
        "C++, DWARF 4, type units",
        &["g++ -gdwarf-4 -fdebug-types-section -O1 {shared} -o made templates.cc"],
        None,
    ),
    ("C++, compressed", &["g++ -gdwarf-5 -gz=zlib -O2 {shared} -o made templates.cc"], None),
    ("C, compressed GNU sections", &["gcc -gdwarf-4 -gz=zlib-gnu -O2 {shared} -o made one.c two.c"], None),
    (
        "Rust",
        &["rustc -g -O --crate-type cdylib -C panic=abort -C link-arg=-nostdlib {remap} -o made lib.rs"],
        None,
    ),
    (
        "split DWARF 5",
        &["gcc -gdwarf-5 -gsplit-dwarf -O2 -fPIC {here} -c one.c -o made.o", "gcc {shared} -o made made.o"],
        Some("made.dwo"),
    ),
    (
        "split DWARF 4",
        &["gcc -gdwarf-4 -gsplit-dwarf -O2 -fPIC {here} -c one.c -o made.o", "gcc {shared} -o made made.o"],
        Some("made.dwo"),
    ),
    (
        "separate debug file",
        &[
            "g++ -gdwarf-5 -O2 -Wl,--build-id {shared} -o full templates.cc",
            "objcopy --only-keep-debug full made.debug",
            "objcopy --strip-all --add-gnu-debuglink=made.debug full made",
        ],
        Some("made.debug"),
    ),
    (
        "compressed symbols",
        &[
            "gcc -O1 {shared} -o full one.c two.c",
            "objcopy --only-keep-debug full mini",
            "xz --force mini",
            "strip -o made full",
            "objcopy --add-section .gnu_debugdata=mini.xz made",
        ],
        None,
    ),
    ("stripped", &["gcc -O1 -s {shared} -o made one.c two.c"], None),
    ("dwz", &["gcc -gdwarf-4 -O2 {shared} -o made one.c two.c", "dwz made"], None),
];

const SOURCES: &[(&str, &str)] = &[
    (
        "one.c",
        "struct point { int x, y; };
static inline __attribute__((always_inline)) int third(int x) { return x * 3; }
static inline __attribute__((always_inline)) int twice(int x) { return third(x) + third(x + 1); }
static __attribute__((noinline)) int local(int x) { return x ^ 5; }
int outer(int x) { return twice(x) + local(x); }
int sum(struct point *at, int n)
{
    int s = 0;
    for (int i = 0; i < n; i++) {
        if (at[i].x) { int inner = twice(at[i].x); s += inner; }
        s -= local(at[i].y);
    }
    return s;
}
void _start(void) { outer(1); }
",
    ),
    (
        "two.c",
        "enum kind { SMALL, LARGE };
int choose(enum kind kind, int x)
{
    switch (kind) {
    case SMALL: return x / 7;
    case LARGE: return x * 11;
    default: return 0;
    }
}
long power(long x, unsigned n) { long r = 1; while (n--) r *= x; return r; }
",
    ),
    (
        "templates.cc",
        "namespace shapes {
template <class T> struct Pair { T a, b; T sum() const { return a + b; } };
template <class T> __attribute__((noinline)) T area(Pair<T> p) { return p.a * p.b + p.sum(); }
class Box { int side; public: explicit Box(int s) : side(s) {} int volume() const { return side * side * side; } };
}
int boxes(int n) { int s = 0; for (int i = 0; i < n; i++) s += shapes::Box(i).volume(); return s; }
double both(int x) { return shapes::area<int>({x, 2}) + shapes::area<double>({1.5, 2.5 * x}); }
extern \"C\" void _start() { boxes(3); }
",
    ),
    (
        "lib.rs",
        "#![no_std]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! { loop {} }
mod inner {
    pub trait Shape { fn area(&self) -> u64; }
    pub struct Square(pub u64);
    impl Shape for Square { fn area(&self) -> u64 { self.0.wrapping_mul(self.0) } }
    #[inline(never)]
    pub fn total<S: Shape>(shapes: &[S]) -> u64 { shapes.iter().fold(0, |sum, shape| sum ^ shape.area()) }
}
#[no_mangle]
pub extern \"C\" fn squares(x: u64) -> u64 {
    inner::total(&[inner::Square(x), inner::Square(x ^ 3), inner::Square(!x)])
}
",
    ),
];

/// A file, and the parts that its readers parse.
pub(super) struct Target {
    pub(super) bytes: Vec<u8>,
    parts: Vec<Range<usize>>,
}

/// A file with its separate debug file.
pub(super) struct Sample {
    pub(super) kind: &'static str,
    pub(super) main: Target,
    pub(super) separate: Option<Target>,
    /// In its code.
    pub(super) addresses: Vec<u64>,
}

/// All kinds that the compilers of this machine can make, and those that they cannot.
pub(super) fn make(code_addresses: usize) -> (Vec<Sample>, Vec<&'static str>) {
    let (mut samples, mut missing) = (Vec::new(), Vec::new());
    for (kind, commands, separate) in KINDS {
        match make_one(kind, commands, *separate, code_addresses) {
            Some(sample) => samples.push(sample),
            None => missing.push(*kind),
        }
    }
    (samples, missing)
}

fn make_one(
    kind: &'static str,
    commands: &[&str],
    separate: Option<&str>,
    code_addresses: usize,
) -> Option<Sample> {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    SOURCES.iter().for_each(|(name, text)| std::fs::write(folder.join(name), text).unwrap());
    commands.iter().all(|command| run(command, folder)).then_some(())?;
    let read = |name: &str| std::fs::read(folder.join(name)).ok();
    let main = Target::of(read("made")?);
    let separate = match separate {
        Some(name) => Some(Target::of(read(name)?)),
        None => None,
    };
    let addresses = code_of(&main.bytes, code_addresses);
    Some(Sample { kind, main, separate, addresses })
}

/// The paths in the files are those of no folder, so that files made later are the same.
fn run(command: &str, folder: &Path) -> bool {
    let from = folder.display();
    let here = format!("-ffile-prefix-map={from}=/src");
    let command = command.replace("{shared}", "-shared -fPIC -nostdlib {here}").replace("{here}", &here);
    let command = command.replace("{remap}", &format!("--remap-path-prefix={from}=/src"));
    let mut words = command.split_whitespace();
    let mut started = Command::new(words.next().unwrap());
    started.args(words).current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    started.status().is_ok_and(|status| status.success())
}

/// So many addresses, evenly over the code.
fn code_of(bytes: &[u8], count: usize) -> Vec<u64> {
    let file = object::File::parse(bytes).unwrap();
    let text = file.sections().find(|section| section.name() == Ok(".text")).unwrap();
    (0..count as u64).map(|at| text.address() + at * text.size() / count as u64).collect()
}

impl Target {
    fn of(bytes: Vec<u8>) -> Self {
        let file = object::File::parse(&*bytes).unwrap();
        let is_read = |name: &str| {
            let read = [".debug", ".zdebug", ".sym", ".str", ".dyn", ".gnu", ".note", ".shstr"];
            read.iter().any(|start| name.starts_with(start))
        };
        let wanted = file.sections().filter(|section| {
            section.kind() != SectionKind::UninitializedData && section.name().is_ok_and(is_read)
        });
        let mut parts: Vec<Range<usize>> = wanted
            .filter_map(|section| section.file_range())
            .map(|(start, len)| start as usize..(start + len) as usize)
            .filter(|part| !part.is_empty())
            .collect();
        let number = |at: usize, len: usize| {
            bytes[at..at + len].iter().rev().fold(0, |number, &byte| number << 8 | usize::from(byte))
        };
        let (segments, sections) = (number(32, 8), number(40, 8));
        parts.push(0..64);
        parts.push(sections..sections + 64 * number(60, 2));
        parts.extend((segments > 0).then(|| segments..segments + 56 * number(56, 2)));
        Self { bytes, parts }
    }

    /// The file with one to eight random changes, about half of them where its readers parse.
    pub(super) fn changed(&self, rng: &mut fastrand::Rng) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        for _ in 0..rng.usize(1..=8) {
            let at = self.place(rng);
            change(&mut bytes, at, rng);
        }
        bytes
    }

    fn place(&self, rng: &mut fastrand::Rng) -> usize {
        if rng.bool() {
            return rng.usize(..self.bytes.len());
        }
        let part = &self.parts[rng.usize(..self.parts.len())];
        // Each section begins with headers.
        let len = if rng.bool() { part.len().min(64) } else { part.len() };
        part.start + rng.usize(..len)
    }
}

fn change(bytes: &mut Vec<u8>, at: usize, rng: &mut fastrand::Rng) {
    if at >= bytes.len() {
        return; // truncated by now
    }
    match rng.u8(..64) {
        0..20 => bytes[at] ^= 1 << rng.u8(..8),
        20..32 => bytes[at] = [0, 255, 0x7f, 0x80][rng.usize(..4)],
        32..40 => bytes[at] = rng.u8(..),
        40..52 => overwrite_word(bytes, at, rng),
        52..62 => {
            let len = rng.usize(1..=64).min(bytes.len() - at);
            let to = rng.usize(..=bytes.len() - len);
            bytes.copy_within(at..at + len, to);
        }
        _ => bytes.truncate(at),
    }
}

fn overwrite_word(bytes: &mut [u8], at: usize, rng: &mut fastrand::Rng) {
    let len = bytes.len() as u64;
    let at = if rng.bool() { at & !7 } else { at };
    let Some(word) = bytes.get_mut(at..at + 8) else { return };
    let old = u64::from_le_bytes(word.try_into().unwrap());
    let power = 1_u64 << rng.u32(..64);
    let values = [
        u64::MAX,
        1 << 63,
        i64::MAX as u64,
        u32::MAX.into(),
        power,
        power - 1,
        len,
        len.wrapping_sub(1),
        len.wrapping_sub(at as u64),
        old.wrapping_add(rng.u64(1..16)),
        old.wrapping_sub(rng.u64(1..16)),
        rng.u64(..),
    ];
    word.copy_from_slice(&values[rng.usize(..values.len())].to_le_bytes());
}
