//! Writes what the fuzz targets begin with: `fuzz/corpus`, small files made from the programs of `tests/programs`, from
//! recorded rings and from this machine's own `/proc`.
//!
//!   cargo run -p tests --bin seeds

#![allow(clippy::print_stdout, reason = "it says what it wrote")]

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::ZlibEncoder;
use object::{Object, ObjectSection};
use profiler_core::sorter::RecordQueue;
use tests::programs::{program, workspace_folder};
use tests::replay::{RecordedRing, Recording, names};
use tests::run::sweetspot;

/// Sources so small that a changed byte hits something.
const C: &str = "static inline __attribute__((always_inline)) int in(int x) { return x * 3; }\n\
                 __attribute__((noinline)) int outer(int x) { return in(x) + in(x + 1); }\n\
                 void _start(void) { outer(1); }\n";
const CPP: &str = "namespace n { template <class T> T f(T x) { return x + 1; } struct S { int g(int); }; }\n\
                   int n::S::g(int x) { return n::f(x); }\n\
                   extern \"C\" void _start() { n::S().g(1); }\n";
/// Compiler, source and flags of the objects.
const OBJECTS: &[(&str, &str, &str, &[&str])] = &[
    ("dwarf5", "cc", C, &["-g", "-gdwarf-5", "-O2", "-static"]),
    ("dwarf4", "cc", C, &["-g", "-gdwarf-4", "-O2", "-shared", "-fPIC"]),
    ("ranges", "cc", C, &["-g", "-gdwarf-5", "-O2", "-static", "-ffunction-sections"]),
    ("compressed", "cc", C, &["-g", "-gz=zlib", "-O1", "-shared", "-fPIC"]),
    ("stripped", "cc", C, &["-O2", "-static", "-s"]),
    ("cpp", "c++", CPP, &["-g", "-gdwarf-5", "-O1", "-static"]),
];
/// As in the target `dwarf`, in its order.
const SECTIONS: [&str; 9] = [
    ".debug_abbrev",
    ".debug_str",
    ".debug_line_str",
    ".debug_str_offsets",
    ".debug_addr",
    ".debug_ranges",
    ".debug_rnglists",
    ".debug_line",
    ".debug_info",
];
const NAMES: &[&str] = &[
    "main",
    "_ZN9wikipedia7article6formatEv",
    "_ZNSt6vectorIiSaIiEE9push_backEOi",
    "_ZN5tokio7runtime4task7harness20Harness$LT$T$C$S$GT$4poll17h0123456789abcdefE",
    "_RNvMs0_NtNtCs1234_7mycrate3foo3barINtB5_3BazpE3qux",
    "_RINvNtC3std3mem8align_ofNtNtC3std3mem12DiscriminantE",
    "memcpy@@GLIBC_2.14",
    "operator new(unsigned long)",
];
const SETTINGS: &[&str] =
    &["1%", "0.01", "60s", "250us", "1.5h", "99Hz", "1.5kHz", "64KiB", "mae", "z=1.96", "auto", "dwarf"];

const PERF_MAP: &[u8] =
    b"10 30 old\n18 8 LazyCompile:*run /srv/app.js:3:1\n0x20 0x4 py::f:/a b.py\n2c 8 _ZN5space3fooEii\n";

fn main() -> Result<()> {
    let seeds = Seeds { folder: workspace_folder().join("fuzz/corpus") };
    objects(&seeds)?;
    split(&seeds)?;
    expressions(&seeds)?;
    seeds.write("elf_packed", "go", &go_table())?;
    rings(&seeds)?;
    profiles(&seeds)?;
    texts(&seeds)?;
    Ok(())
}

struct Seeds {
    folder: PathBuf,
}

impl Seeds {
    fn write(&self, target: &str, name: &str, bytes: &[u8]) -> Result<()> {
        let folder = self.folder.join(target);
        fs::create_dir_all(&folder)?;
        fs::write(folder.join(format!("seed_{name}")), bytes)?;
        println!("{target}/seed_{name}: {} bytes", bytes.len());
        Ok(())
    }
}

fn objects(seeds: &Seeds) -> Result<()> {
    let folder = tempfile::tempdir()?;
    for (name, compiler, source, flags) in OBJECTS {
        let ending = if *compiler == "c++" { "cc" } else { "c" };
        let (file, object) = (folder.path().join(format!("seed.{ending}")), folder.path().join(name));
        fs::write(&file, source)?;
        let built = Command::new(compiler)
            .args(*flags)
            .arg("-nostdlib")
            .arg("-o")
            .arg(&object)
            .arg(&file)
            .status()?;
        ensure!(built.success(), "{name} was not built");
        let bytes = fs::read(&object)?;
        seeds.write("elf_symbolize", name, &bytes)?;
        seeds.write("elf_image", name, &bytes)?;
        let debug = sections(&object, &SECTIONS)?;
        seeds.write("dwarf", name, &debug)?;
        packed(seeds, name, &object, &debug)?;
        let tables = sections(&object, &[".eh_frame", ".eh_frame_hdr", ".none"])?;
        // Flags: a bias of none, tables as they are, with their index.
        seeds.write("unwind", name, &[&[2 | 2 << 3], &tables[..], &[0; 64]].concat())?;
    }
    Ok(())
}

/// The ways in which the target `elf_packed` packs things, by the number that stands first.
fn packed(seeds: &Seeds, name: &str, object: &Path, debug: &[u8]) -> Result<()> {
    let symbols = sections(object, &[".symtab", ".strtab"])?;
    let sized = |bytes: &[u8]| -> Result<Vec<u8>> {
        Ok([&u16::try_from(bytes.len())?.to_le_bytes()[..], bytes].concat())
    };
    seeds.write("elf_packed", &format!("mini_{name}"), &[&[1], &fs::read(object)?[..]].concat())?;
    for (kind, how) in [(3, "deflated"), (4, "of_old"), (6, "by_id")] {
        seeds.write("elf_packed", &format!("{how}_{name}"), &[&[kind], debug].concat())?;
    }
    seeds.write("elf_packed", &format!("symbols_{name}"), &[&[5], &symbols[..]].concat())?;
    seeds.write("elf_packed", &format!("linked_{name}"), &[&[7], &sized(b"a.debug")?[..], debug].concat())?;
    // A symbol table and its names, each behind what says that it is compressed, and the header of that.
    let mut flagged = vec![2];
    for bytes in [&symbols[..], b"\0main\0"] {
        let header = [1, bytes.len() as u64, 1].map(u64::to_le_bytes).concat();
        let mut encoder = ZlibEncoder::new(header, Compression::fast());
        encoder.write_all(bytes)?;
        flagged.extend(sized(b"")?);
        flagged.extend(sized(&encoder.finish()?)?);
    }
    seeds.write("elf_packed", &format!("flagged_{name}"), &flagged)?;
    let alt = [&[9], &sized(debug)?[..], &sized(b"/alt")?[..], debug].concat();
    seeds.write("elf_packed", &format!("alt_{name}"), &alt)
}

/// Go's table of two functions at the beginning of the code.
fn go_table() -> Vec<u8> {
    let names = b"\0main.one\0main.two\0";
    let (names_at, index_at) = (72, 72 + names.len() as u64);
    let words = [2, 0, 0x1000, names_at, index_at, 0, 0, index_at].map(u64::to_le_bytes).concat();
    let index = [0_u32, 20, 16, 28, 64, 0, 1, 16, 10].map(u32::to_le_bytes).concat();
    [&[8], &0xffff_fff1_u32.to_le_bytes()[..], &[0, 0, 1, 8], &words, names, &index].concat()
}

/// Tables whose rules are expressions, with a jump back that is not taken.
fn expressions(seeds: &Seeds) -> Result<()> {
    // The CFA is rsp + 8; the return address lies below it.
    let common = [0x0c, 7, 8, 0x90, 1];
    let jump = [0x77, 8, 0x30, 0x28, 0xfc, 0xff]; // breg7 8, lit0, bra -4
    let sized = |bytes: &[u8]| [&(bytes.len() as u16).to_le_bytes()[..], bytes].concat();
    // In the code, then three times on the stack; and words of it.
    let addresses =
        [[0, 16, 0], [1, 0, 0], [1, 8, 0], [0, 32, 0], [0, 48, 0], [1, 16, 0], [0, 64, 0]].concat();
    for (name, head) in [("cfa", &[0x0f, 6][..]), ("register", &[0x10, 3, 6]), ("value", &[0x16, 16, 6])] {
        let function = [head, &jump].concat();
        for (flags, tables) in [(0x16_u8, "index"), (0x06, "debug_frame")] {
            let input = [&[flags], &sized(&common)[..], &sized(&function), &addresses].concat();
            seeds.write("unwind", &format!("{name}_{tables}"), &input)?;
        }
    }
    Ok(())
}

/// Objects with their split debug information, in a file for each unit and in a package.
fn split(seeds: &Seeds) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let run = |program: &str, arguments: &[&str]| -> Result<()> {
        let output = Command::new(program).args(arguments).current_dir(folder.path()).output()?;
        ensure!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    };
    fs::write(folder.path().join("s.c"), C)?;
    // Two units, whose abbreviations differ.
    fs::write(
        folder.path().join("t.c"),
        "long other(long *x) { for (long i = 0; i < *x; i++) x[i]++; return *x; }",
    )?;
    run("cc", &["-g", "-O2", "-nostdlib", "-static", "-o", "two", "s.c", "t.c"])?;
    seeds.write("dwarf", "two_units", &sections(&folder.path().join("two"), &SECTIONS)?)?;
    for version in ["4", "5"] {
        let dwarf = format!("-gdwarf-{version}");
        run("cc", &["-g", &dwarf, "-gsplit-dwarf", "-O2", "-c", "s.c", "-o", "s.o"])?;
        run("cc", &["-nostdlib", "-static", "-o", "s", "s.o"])?;
        // The one of binutils knows no version 5.
        run(if version == "4" { "dwp" } else { "llvm-dwp" }, &["-e", "s", "-o", "s.dwp"])?;
        let object = fs::read(folder.path().join("s"))?;
        let len = u16::try_from(object.len())?.to_le_bytes();
        for half in ["s.dwo", "s.dwp"] {
            let mut half_bytes = fs::read(folder.path().join(half))?;
            // The target takes an even number of bytes for a package.
            half_bytes.resize(half_bytes.len() / 2 * 2 + usize::from(half == "s.dwo"), 0);
            seeds.write(
                "elf_split",
                &format!("{version}_{half}"),
                &[&len[..], &object, &half_bytes].concat(),
            )?;
        }
    }
    Ok(())
}

/// Sections of an object, each but the last after its length.
fn sections(object: &Path, names: &[&str]) -> Result<Vec<u8>> {
    let bytes = fs::read(object)?;
    let object = object::File::parse(&bytes[..])?;
    let mut all = Vec::new();
    for (name, at) in names.iter().zip(1..) {
        let section = object.section_by_name(name);
        let bytes = section.map(|section| section.uncompressed_data()).transpose()?.unwrap_or_default();
        if at < names.len() {
            all.extend(u16::try_from(bytes.len())?.to_le_bytes());
        }
        all.extend_from_slice(&bytes);
    }
    Ok(all)
}

fn rings(seeds: &Seeds) -> Result<()> {
    for name in names()? {
        let recording = Recording::read(&name)?;
        // Some records of each kind; the big ones would be all that is changed.
        let (mut some, mut kinds) = (Vec::new(), Vec::new());
        for ring in &recording.rings {
            let mut ring = RecordedRing::new(ring, usize::MAX);
            while let Some(raw) = ring.front() {
                let body = raw.body.as_slice();
                let seen = kinds.iter().filter(|kind| **kind == raw.kind).count();
                if seen < 4 && body.len() < 6000 {
                    kinds.push(raw.kind);
                    some.extend(raw.kind.to_le_bytes());
                    some.extend(raw.misc.to_le_bytes());
                    some.extend((body.len() as u16 + 8).to_le_bytes());
                    some.extend_from_slice(&body);
                }
                ring.pop();
            }
        }
        seeds.write("records", &name, &[&[16, 0], &some[..]].concat())?;
        // Flags: the layout, and frame pointers or copies.
        let flags = if recording.header.copies_stack { 1 | 2 << 1 } else { 1 << 1 };
        let process = renumbered(&some, recording.header.pid);
        seeds.write("replay", &name, &[&[flags, 0, 255, 255], &process[..]].concat())?;
    }
    Ok(())
}

/// The records, with process 1 in place of another: the fuzz target follows process 1.
fn renumbered(records: &[u8], pid: u32) -> Vec<u8> {
    let mut records = records.to_vec();
    for word in records.chunks_exact_mut(4).filter(|word| **word == pid.to_le_bytes()) {
        word.copy_from_slice(&1_u32.to_le_bytes());
    }
    records
}

fn profiles(seeds: &Seeds) -> Result<()> {
    let folder = tempfile::tempdir()?;
    for (name, cpu) in [("short", "0.05"), ("longer", "0.4")] {
        let file = folder.path().join("p.pb.gz");
        let mix = program("mix_stripped")?;
        let ended = Command::new(sweetspot())
            .args(["record", "--rate", "500", "-o"])
            .arg(&file)
            .arg("--")
            .arg(mix)
            .args(["--cpu", cpu, "--out", "/dev/null"])
            .env("XDG_CACHE_HOME", folder.path())
            .output()?;
        ensure!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        let mut bytes = Vec::new();
        GzDecoder::new(File::open(&file)?).read_to_end(&mut bytes)?;
        seeds.write("pprof", name, &bytes)?;
        if name == "short" {
            seeds.write("pprof", "packed", &fs::read(&file)?)?;
        }
    }
    Ok(())
}

fn texts(seeds: &Seeds) -> Result<()> {
    let list = fs::read_to_string("/proc/kallsyms")?;
    let every = (list.lines().count() / 200).max(1);
    let some: Vec<&str> = list.lines().step_by(every).collect();
    seeds.write("kallsyms", "some", some.join("\n").as_bytes())?;
    for (name, at) in NAMES.iter().zip(0..) {
        seeds.write("demangle", &at.to_string(), name.as_bytes())?;
    }
    for (setting, at) in SETTINGS.iter().zip(0..) {
        seeds.write("config", &at.to_string(), setting.as_bytes())?;
    }
    let settings = fs::read_to_string(workspace_folder().join("systemd/sweetspot.toml"))?;
    let key = |line: &str| {
        line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')).unwrap_or(line).to_owned() + "\n"
    };
    let uncommented: String = settings.lines().map(key).collect();
    seeds.write("config", "commented_file", settings.as_bytes())?;
    seeds.write("config", "uncommented_file", uncommented.as_bytes())?;
    seeds.write("maps", "own", &fs::read("/proc/self/maps")?)?;
    seeds.write("perf_map", "some", PERF_MAP)?;
    seeds.write("jitdump", "some", &jitdump())?;
    for name in ["stat", "status", "cgroup", "mountinfo"] {
        seeds.write("proc_text", name, &fs::read(Path::new("/proc/self").join(name))?)?;
    }
    let costs = serde_json::to_string(&profiler_core::rate::CostModel::default())?;
    let readings: Vec<u8> = (0..64).map(|at| at * 3).collect();
    seeds.write("calibration", "prior", &[costs.as_bytes(), &[0], &readings].concat())?;
    let events = Path::new("/sys/kernel/tracing/events/timer");
    let format = |event: &str| fs::read(events.join(event).join("format"));
    if let (Ok(entry), Ok(exit)) = (format("hrtimer_expire_entry"), format("hrtimer_expire_exit")) {
        seeds.write("handler_trace", "entry", &entry)?;
        seeds.write("handler_trace", "exit", &exit)?;
    }
    Ok(())
}

/// A jitdump that reports a function with its lines, moves it, and puts another in its place.
fn jitdump() -> Vec<u8> {
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
    let halves = |halves: &[u32]| halves.iter().flat_map(|half| half.to_ne_bytes()).collect::<Vec<u8>>();
    let mut journal = [halves(&[0x4a69_5444, 1, 40, 62, 0, 7]), words(&[1, 0])].concat();
    let mut record = |kind: u32, time_ns: u64, body: Vec<u8>| {
        journal.extend([halves(&[kind, body.len() as u32 + 16]), words(&[time_ns]), body].concat());
    };
    let line = |address: u64, line: u32, file: &[u8]| {
        [words(&[address]), halves(&[line, 1]), file.to_vec()].concat()
    };
    record(2, 10, [words(&[16, 2]), line(16, 3, b"a.js\0"), line(20, 4, b"\xff\0")].concat());
    let load = |start: u64, size: u64, index: u64, name: &[u8]| {
        [halves(&[7, 7]), words(&[start, start, size, index]), name.to_vec(), vec![0x90; size as usize]]
            .concat()
    };
    record(0, 10, load(16, 32, 1, b"first\0"));
    record(1, 20, [halves(&[7, 7]), words(&[64, 16, 64, 32, 1])].concat());
    record(0, 30, load(24, 16, 2, b"second\0"));
    record(3, 40, Vec::new());
    journal
}
