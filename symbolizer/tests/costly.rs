//! Small files that ask for much: the answer comes soon, and may be that it is too much.
//!
//! There are others, which end their reader: whoever reads files of others does so in a process that may end.

mod build;

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use build::Program;
use symbolizer::{Limits, NoDebugFiles, Object, ReadAt, Symbolized};

/// Far more than a debug build on a busy machine takes, far less than what the files ask for.
const SOON: Duration = Duration::from_secs(60);

const AS_A_LIBRARY: [&str; 3] = ["-shared", "-nostdlib", "-Wl,-z,notext"];

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

fn one_long_line_program() -> String {
    // 30,000 units without ranges, and the same 30,000,000 bytes for the lines of each, of no version that there is.
    let unit = ".uleb128 2; .uleb128 0x11; .byte 0; .uleb128 0x10; .uleb128 0x17; .byte 0,0";
    let more = ".section .debug_info,\"\",@progbits
        .rept 30000; .long 12; .short 4; .long 0; .byte 8; .uleb128 2; .long 0; .endr
        .section .debug_line,\"\",@progbits
        .long 30000000; .short 99; .skip 29999998";
    unit_with(["", ""], unit, "", more)
}

/// Counts what is read of a file.
struct Counted {
    file: File,
    bytes: AtomicU64,
}

impl ReadAt for Counted {
    fn len(&self) -> io::Result<u64> {
        ReadAt::len(&self.file)
    }

    fn read_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        self.bytes.fetch_add(len as u64, Ordering::Relaxed);
        ReadAt::read_at(&self.file, offset, len)
    }
}

/// A unit that takes more memory than the readers of a small limit usually keep is read once all the same, and not for each address.
#[test]
fn a_large_unit_is_read_once_for_all_of_its_addresses() {
    let function = ".uleb128 2; .uleb128 0x2e; .byte 0; .uleb128 3; .uleb128 8; .uleb128 0x11; .uleb128 1; .uleb128 0x12; .uleb128 7; .byte 0,0";
    let functions = ".set at, 0
        .rept 60000; .uleb128 2; .asciz \"a_function_of_a_large_unit\"; .quad code + at % 64; .quad 1; .set at, at + 1; .endr";
    let Some(program) = Program::assembly(&unit(function, functions, ""), &AS_A_LIBRARY) else { return };
    let (code, _) = program.symbol(|name| name == "code");
    let read_for = |addresses: &[u64]| {
        let file = File::open(program.path()).expect("a program");
        let counted = Counted { file, bytes: AtomicU64::new(0) };
        let limits = Limits::of_all(64 << 20);
        let object = Object::load_within(limits, &counted, program.path(), &NoDebugFiles);
        let mut object = object.expect("a good object");
        let named = object.symbolize_more(addresses);
        assert!(object.memory_bytes() < 64 << 20, "{} bytes", object.memory_bytes());
        assert!(object.held_bytes() < 16 << 20, "{} bytes are kept", object.held_bytes());
        let by_entry = |symbolized: &Symbolized| matches!(symbolized, Symbolized::Known(frames) if &*frames[0].name == "a_function_of_a_large_unit");
        assert!(named.iter().all(by_entry), "{named:?}");
        counted.bytes.load(Ordering::Relaxed)
    };
    let (one, all) = (read_for(&[code]), read_for(&(code..code + 64).collect::<Vec<u64>>()));
    assert!(all < 2 * one, "{all} bytes for 64 addresses, {one} for one");
}

#[test]
fn units_that_share_one_long_line_program() {
    is_named_soon(&one_long_line_program());
}

#[test]
fn functions_that_are_their_own_origin() {
    // DW_AT_abstract_origin, DW_FORM_ref4 to itself: offset 28 in the unit.
    let abbreviations = ".uleb128 2; .uleb128 0x2e; .byte 0; .uleb128 0x11; .uleb128 1; .uleb128 0x12; .uleb128 7; .uleb128 0x31; .uleb128 0x13; .byte 0,0";
    let entries = ".uleb128 2; .quad code; .quad 64; .long 28";
    is_named_soon(&unit(abbreviations, entries, ""));
}

/// Where the sum of a start and a length has no room in 64 bits.
#[test]
fn a_function_that_ends_beyond_the_last_address() {
    let function = ".uleb128 2; .uleb128 0x2e; .byte 0; .uleb128 3; .uleb128 8; .uleb128 0x11; .uleb128 1; .uleb128 0x12; .uleb128 7; .byte 0,0";
    let entries = ".uleb128 2; .asciz \"code\"; .quad code; .quad 0xffffffffffffffff";
    is_named_soon(&unit(function, entries, ""));
    // The same length of the whole unit, and of a range.
    let whole = unit("", "", "").replace(".quad 64", ".quad 0xffffffffffffffff");
    is_named_soon(&whole);
    let ranges = "
        .section .debug_aranges,\"\",@progbits
        .long 44; .short 2; .long 0; .byte 8,0; .long 0
        .quad code; .quad 0xffffffffffffffff; .quad 0; .quad 0";
    is_named_soon(&unit(function, entries, ranges));
}

#[test]
fn a_function_that_the_linker_dropped_hides_none_at_a_low_address() {
    // DW_AT_name, low_pc and high_pc: one from zero to beyond `code`, of which a part is described.
    let function = ".uleb128 2; .uleb128 0x2e; .byte 0; .uleb128 3; .uleb128 8; .uleb128 0x11; .uleb128 1; .uleb128 0x12; .uleb128 7; .byte 0,0";
    let entries = ".uleb128 2; .asciz \"dropped\"; .quad 0; .quad 0x1000000
        .uleb128 2; .asciz \"code\"; .quad code+48; .quad 16";
    is_named_soon(&unit(function, entries, ""));
}

/// A C++ function without a linkage name is named from what it is declared in, and from its parameters. Here the class is declared
/// by itself, the parameters point to pointers without end, or are of classes within functions with such parameters.
fn declarations_in_circles(class_of: &str) -> String {
    let abbreviations = "\
.uleb128 2; .uleb128 0x2e; .byte 1; .uleb128 3; .uleb128 8; .uleb128 0x11; .uleb128 1; .uleb128 0x12; .uleb128 7; .byte 0,0
.uleb128 3; .uleb128 5; .byte 0; .uleb128 0x49; .uleb128 0x13; .byte 0,0
.uleb128 4; .uleb128 0xf; .byte 0; .uleb128 0x49; .uleb128 0x13; .byte 0,0
.uleb128 5; .uleb128 2; .byte 1; .uleb128 0x47; .uleb128 0x13; .byte 0,0
.uleb128 6; .uleb128 0x2e; .byte 1; .uleb128 3; .uleb128 8; .byte 0,0
.uleb128 7; .uleb128 0x1d; .byte 0; .uleb128 0x31; .uleb128 0x13; .uleb128 0x11; .uleb128 1; .uleb128 0x12; .uleb128 7; .byte 0,0
.uleb128 8; .uleb128 2; .byte 1; .uleb128 3; .uleb128 8; .byte 0,0";
    let entries = format!(
        "\
{class_of}
11: .uleb128 6; .asciz \"inner\"
.rept 2000; .uleb128 3; .long 13f-1b+4; .uleb128 3; .long 12f-1b+4; .endr
13: .uleb128 8; .asciz \"T\"; .uleb128 6; .asciz \"f\"; .byte 0; .byte 0
.byte 0
.byte 0
12: .uleb128 4; .long 12b-1b+4
.uleb128 2; .asciz \"code\"; .quad code; .quad 64
.uleb128 7; .long 11b-1b+4; .quad code; .quad 32
.byte 0"
    );
    unit_with([".uleb128 0x13; .uleb128 0xb;", ".byte 4"], abbreviations, &entries, "")
}

#[test]
fn a_name_from_declarations_in_circles_ends_soon() {
    is_named_soon(&declarations_in_circles("10: .uleb128 5; .long 10b-1b+4"));
    is_named_soon(&declarations_in_circles("10: .uleb128 8; .asciz \"Box\""));
}
