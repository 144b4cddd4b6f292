//! Small files that ask for much: the answer comes soon, and may be that it is too much.
//!
//! They are why this crate reads DWARF with gimli itself. Release build, 64 addresses each, a stack of 8 MiB, 8 GB of
//! address space; what this crate took, and what the crate `addr2line` 0.27.1 did:
//!
//! | file | bytes | this crate | `addr2line` |
//! |---|---|---|---|
//! | 50,000 inlined calls, nested (10,000 pass) | 113,512 | 0.00 s, 2 MB | stack overflow |
//! | 1,000,000 inlined calls, nested | 2,013,512 | 0.06 s, 6 MB | stack overflow |
//! | 300,000 inlined calls with ranges, nested | 3,013,512 | 0.01 s, 8 MB | stack overflow |
//! | 20,000 functions that share 20,000 ranges | 433,584 | 0.14 s, 65 MB | out of memory, asking for 12.9 GB |
//! | 100,000 files in a directory of a long name | 1,513,504 | 0.07 s, 20 MB | out of memory |
//! | 1,000,000 entries of 100,000 empty attributes | 1,213,488 | 0.38 s, 6 MB | not done after 60 s |
//!
//! `cargo test --release -p symbolizer --test costly -- --ignored` repeats the right column, and fails once it is no
//! longer true.

mod build;

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use build::Program;
use symbolizer::{NoDebugFiles, Object, ReadAt, Symbolized};

/// Far more than a debug build on a busy machine takes, far less than what the files ask for.
const SOON: Duration = Duration::from_secs(60);

const AS_A_LIBRARY: [&str; 3] = ["-shared", "-nostdlib", "-Wl,-z,notext"];

/// Attributes of a function: low_pc and high_pc.
const FUNCTION: &str =
    ".uleb128 2; .uleb128 0x2e; .byte 1; .uleb128 0x11; .uleb128 1; .uleb128 0x12; .uleb128 7; .byte 0,0";

/// A library of one function, and DWARF 4 of one unit for it that holds what a test makes up.
fn unit(abbreviations: &str, entries: &str, more: &str) -> String {
    unit_with(["", ""], abbreviations, entries, more)
}

/// The same with further attributes of the unit itself: their names and forms, and their values.
fn unit_with([forms, values]: [&str; 2], abbreviations: &str, entries: &str, more: &str) -> String {
    format!(
        "\
.text
.globl code
.type code,@function
code: .skip 64,0x90
.size code,.-code
.section .debug_abbrev,\"\",@progbits
.uleb128 1; .uleb128 0x11; .byte 1; .uleb128 0x11; .uleb128 1; .uleb128 0x12; .uleb128 7; {forms} .byte 0,0
{abbreviations}
.byte 0
.section .debug_info,\"\",@progbits
.long 2f-1f
1: .short 4
.long 0
.byte 8
.uleb128 1
.quad code
.quad 64
{values}
{entries}
.byte 0
2:
{more}
"
    )
}

/// Whether `code` is named soon, from the symbol table if need be, of bytes in memory and of a file.
fn is_named_soon(text: &str) {
    let Some(program) = Program::assembly(text, &AS_A_LIBRARY) else { return };
    is_named_soon_in(&program, &std::fs::read(program.path()).expect("a program"));
    is_named_soon_in(&program, &File::open(program.path()).expect("a program"));
}

fn is_named_soon_in(program: &Program, source: &dyn ReadAt) {
    let (code, _) = program.symbol(|name| name == "code");
    let started = Instant::now();
    let object = Object::load(source, program.path(), &NoDebugFiles).expect("a good object");
    let addresses: Vec<u64> = (code..code + 64).collect();
    let together = object.symbolize_all(&addresses);
    let one_by_one = addresses.iter().map(|&address| object.symbolize(address));
    for symbolized in one_by_one.chain(together) {
        let Symbolized::Known(frames) = symbolized else { panic!("there is a symbol") };
        assert_eq!(frames.last().map(|frame| &*frame.name), Some("code"));
    }
    assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
}

fn inlined_calls_with_ranges() -> String {
    // An inlined call with low_pc, high_pc and children; none of them is ever closed.
    let call = ".uleb128 3; .uleb128 0x1d; .byte 1; .uleb128 0x11; .uleb128 1; .uleb128 0x12; .uleb128 0xb; .byte 0,0";
    let entries = ".uleb128 2; .quad code; .quad 64
        .rept 300000; .uleb128 3; .quad code; .byte 64; .endr";
    unit(&format!("{FUNCTION}\n{call}"), entries, "")
}

fn inlined_calls(depth: usize) -> String {
    // An inlined call without attributes takes one byte, and one to close it.
    let call = ".uleb128 3; .uleb128 0x1d; .byte 1; .byte 0,0";
    let entries = format!(".uleb128 2; .quad code; .quad 64; .skip {depth},3; .skip {depth}+1,0");
    unit(&format!("{FUNCTION}\n{call}"), &entries, "")
}

fn one_list_of_ranges() -> String {
    // 20,000 functions of 20,000 ranges each.
    let function = ".uleb128 2; .uleb128 0x2e; .byte 0; .uleb128 0x55; .uleb128 0x17; .byte 0,0";
    let entries = ".rept 20000; .uleb128 2; .long 0; .endr";
    let ranges = ".section .debug_ranges,\"\",@progbits
        .rept 20000; .quad 1, 2; .endr
        .quad 0, 0";
    unit(function, entries, ranges)
}

fn one_long_directory() -> String {
    // A name of 1,000,000 bytes for the directory that all 100,000 files lie in.
    let forms = ".uleb128 0x10; .uleb128 0x17; .uleb128 0x1b; .uleb128 8;";
    let values = ".long 0; .skip 1000000,0x61; .byte 0";
    let lines = ".section .debug_line,\"\",@progbits
        .long 12f-11f
        11: .short 4
        .long 14f-13f
        13: .byte 1,1,1, 0xfb,14,13, 0,1,1,1,1,0,0,0,1,0,0,1
        .byte 0
        .rept 100000; .asciz \"a\"; .byte 0,0,0; .endr
        .byte 0
        14: .byte 0,9,2; .quad code
        .byte 0x20, 0,1,1
        12:";
    unit_with([forms, values], "", "", lines)
}

fn one_long_line_program() -> String {
    // 30,000 units without ranges, and the same 30,000,000 bytes for the lines of each, of no version that there is.
    let unit = ".uleb128 2; .uleb128 0x11; .byte 0; .uleb128 0x10; .uleb128 0x17; .byte 0,0";
    let more = ".section .debug_info,\"\",@progbits
        .rept 30000; .long 12; .short 4; .long 0; .byte 8; .uleb128 2; .long 0; .endr
        .section .debug_line,\"\",@progbits
        .long 30000000; .short 99; .skip 29999998";
    unit_with(["", ""], unit, "", more)
}

fn empty_attributes() -> String {
    // Flags that are present take no bytes: each entry is one byte and 100,000 attributes.
    let variable = ".uleb128 2; .uleb128 0x34; .byte 0
        .rept 100000; .uleb128 0x3f; .uleb128 0x19; .endr
        .byte 0,0";
    unit(variable, ".skip 1000000,2", "")
}

#[test]
fn inlining_without_end() {
    is_named_soon(&inlined_calls_with_ranges());
}

#[test]
fn entries_a_million_deep() {
    is_named_soon(&inlined_calls(1_000_000));
}

#[test]
fn functions_that_share_one_long_list_of_ranges() {
    is_named_soon(&one_list_of_ranges());
}

#[test]
fn files_that_share_one_long_directory() {
    is_named_soon(&one_long_directory());
}

#[test]
fn units_that_share_one_long_line_program() {
    is_named_soon(&one_long_line_program());
}

#[test]
fn entries_of_a_hundred_thousand_empty_attributes() {
    is_named_soon(&empty_attributes());
}

#[test]
fn functions_that_are_their_own_origin() {
    // DW_AT_abstract_origin, DW_FORM_ref4 to itself: offset 28 in the unit.
    let abbreviations = ".uleb128 2; .uleb128 0x2e; .byte 0; .uleb128 0x11; .uleb128 1; .uleb128 0x12; .uleb128 7; .uleb128 0x31; .uleb128 0x13; .byte 0,0";
    let entries = ".uleb128 2; .quad code; .quad 64; .long 28";
    is_named_soon(&unit(abbreviations, entries, ""));
}

/// The object that [`addr2line_reads_one`] is to read.
const FILE: &str = "SYMBOLIZER_COSTLY_FILE";

#[test]
#[ignore = "two minutes long, and about the crate addr2line: it still does what the table above says"]
fn addr2line_reads_none_of_them() {
    let files = [
        inlined_calls(50_000),
        inlined_calls_with_ranges(),
        one_list_of_ranges(),
        one_long_directory(),
        empty_attributes(),
    ];
    for (index, text) in files.iter().enumerate() {
        let Some(program) = Program::assembly(text, &AS_A_LIBRARY) else { return };
        assert!(!is_read_by_addr2line(program.path()), "file {index} is read");
    }
    let Some(shallow) = Program::assembly(&inlined_calls(100), &AS_A_LIBRARY) else { return };
    assert!(is_read_by_addr2line(shallow.path()));
}

/// Asks in another process, since most of these files end it.
fn is_read_by_addr2line(path: &Path) -> bool {
    let test = std::env::current_exe().expect("this test");
    let status = Command::new("sh")
        .args(["-c", "ulimit -c 0; ulimit -v 8000000; exec timeout 60 \"$@\"", "sh"])
        .arg(test)
        .args(["--ignored", "--exact", "--nocapture", "addr2line_reads_one"])
        .env(FILE, path)
        .status();
    status.expect("a shell").success()
}

#[test]
#[ignore = "run by addr2line_reads_none_of_them"]
fn addr2line_reads_one() {
    let Some(path) = std::env::var_os(FILE) else { return };
    let reader = std::thread::Builder::new().stack_size(8 << 20);
    let reader = reader.spawn(move || read_with_addr2line(Path::new(&path))).expect("a thread");
    reader.join().expect("an answer");
}

fn read_with_addr2line(path: &Path) {
    use addr2line::gimli::{Dwarf, EndianSlice, Error, LittleEndian, SectionId};
    use object::{Object as _, ObjectSection as _, ObjectSymbol as _};

    let bytes = std::fs::read(path).expect("a program");
    let elf = object::read::elf::ElfFile64::<object::LittleEndian>::parse(&*bytes).expect("a good object");
    let code = elf.symbols().find(|symbol| symbol.name() == Ok("code")).expect("the function").address();
    let section = |id: SectionId| {
        let data = elf.section_by_name(id.name()).and_then(|section| section.data().ok()).unwrap_or_default();
        Ok::<_, Error>(EndianSlice::new(data, LittleEndian))
    };
    let dwarf = Dwarf::load(section).expect("sections");
    // Refusing a file would be an answer too.
    let Ok(context) = addr2line::Context::from_dwarf(dwarf) else { return };
    for address in code..code + 64 {
        let Ok(mut frames) = context.find_frames(address).skip_all_loads() else { continue };
        while let Ok(Some(_)) = frames.next() {}
    }
}
