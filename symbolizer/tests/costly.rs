//! Small files that ask for much: the answer comes soon, and may be that it is too much.

mod build;

use std::time::{Duration, Instant};

use build::Program;
use symbolizer::{NoDebugFiles, Object, Symbolized};

/// Far more than a debug build on a busy machine takes, far less than what the files ask for.
const SOON: Duration = Duration::from_secs(60);

/// A library of one function, and DWARF 4 of one unit for it that holds what a test makes up.
fn unit(abbreviations: &str, entries: &str, more: &str) -> String {
    format!(
        "\
.text
.globl code
.type code,@function
code: .skip 64,0x90
.size code,.-code
.section .debug_abbrev,\"\",@progbits
.uleb128 1; .uleb128 0x11; .byte 1; .uleb128 0x11; .uleb128 1; .uleb128 0x12; .uleb128 7; .byte 0,0
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
{entries}
.byte 0
2:
{more}
"
    )
}

/// Whether `code` is named soon, from the symbol table if need be.
fn is_named_soon(text: &str) {
    let Some(program) = Program::assembly(text, &["-shared", "-nostdlib", "-Wl,-z,notext"]) else { return };
    let (code, _) = program.symbol(|name| name == "code");
    let bytes = std::fs::read(program.path()).expect("a program");
    let started = Instant::now();
    let object = Object::load(&bytes, program.path(), &NoDebugFiles).expect("a good object");
    for address in code..code + 64 {
        let Symbolized::Known(frames) = object.symbolize(address) else { panic!("there is a symbol") };
        assert_eq!(frames.last().map(|frame| frame.name.as_str()), Some("code"));
    }
    assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
}

#[test]
fn inlining_without_end() {
    // Function, and an inlined call, each with low_pc, high_pc and children; none of them is ever closed.
    let abbreviations = ".uleb128 2; .uleb128 0x2e; .byte 1; .uleb128 0x11; .uleb128 1; .uleb128 0x12; .uleb128 7; .byte 0,0
        .uleb128 3; .uleb128 0x1d; .byte 1; .uleb128 0x11; .uleb128 1; .uleb128 0x12; .uleb128 0xb; .byte 0,0";
    let entries = ".uleb128 2; .quad code; .quad 64
        .rept 300000; .uleb128 3; .quad code; .byte 64; .endr";
    is_named_soon(&unit(abbreviations, entries, ""));
}

#[test]
fn entries_a_million_deep() {
    let abbreviations =
        ".uleb128 2; .uleb128 0x2e; .byte 1; .uleb128 0x11; .uleb128 1; .uleb128 0x12; .uleb128 7; .byte 0,0
        .uleb128 3; .uleb128 0x1d; .byte 1; .byte 0,0";
    let entries = ".uleb128 2; .quad code; .quad 64; .skip 1000000,3";
    is_named_soon(&unit(abbreviations, entries, ""));
}

#[test]
fn functions_that_share_one_long_list_of_ranges() {
    // 20,000 functions of 20,000 ranges each.
    let abbreviations = ".uleb128 2; .uleb128 0x2e; .byte 0; .uleb128 0x55; .uleb128 0x17; .byte 0,0";
    let entries = ".rept 20000; .uleb128 2; .long 0; .endr";
    let ranges = ".section .debug_ranges,\"\",@progbits
        .rept 20000; .quad 1, 2; .endr
        .quad 0, 0";
    is_named_soon(&unit(abbreviations, entries, ranges));
}

#[test]
fn entries_of_a_hundred_thousand_empty_attributes() {
    // Flags that are present take no bytes: each entry is one byte and 100,000 attributes.
    let abbreviations = ".uleb128 2; .uleb128 0x34; .byte 0
        .rept 100000; .uleb128 0x3f; .uleb128 0x19; .endr
        .byte 0,0";
    is_named_soon(&unit(abbreviations, ".skip 1000000,2", ""));
}

#[test]
fn functions_that_are_their_own_origin() {
    // DW_AT_abstract_origin, DW_FORM_ref4 to itself: offset 28 in the unit.
    let abbreviations = ".uleb128 2; .uleb128 0x2e; .byte 0; .uleb128 0x11; .uleb128 1; .uleb128 0x12; .uleb128 7; .uleb128 0x31; .uleb128 0x13; .byte 0,0";
    let entries = ".uleb128 2; .quad code; .quad 64; .long 28";
    is_named_soon(&unit(abbreviations, entries, ""));
}
