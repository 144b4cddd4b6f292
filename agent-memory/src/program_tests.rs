use super::*;

fn read(file: &[u8]) -> Program {
    Program::read(|at, into| {
        let rest = usize::try_from(at).ok().and_then(|at| file.get(at..)).unwrap_or_default();
        let count = rest.len().min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        count
    })
}

/// Where the addresses of the fixture begin.
const BASE: u64 = 0x40_0000;

/// A program with this dynamic linker that needs these libraries.
fn program(linker: Option<&str>, needed: &[&str]) -> Vec<u8> {
    let mut strings = vec![0];
    let mut entries: Vec<(u64, u64)> = Vec::new();
    for name in needed {
        entries.push((DT_NEEDED, strings.len() as u64));
        strings.extend(name.bytes().chain([0]));
    }
    let linker_bytes: Vec<u8> = linker.unwrap_or_default().bytes().chain([0]).collect();
    let linker_at = HEADER_BYTES as u64 + 3 * SEGMENT_BYTES;
    let strings_at = linker_at + linker_bytes.len() as u64;
    let dynamic_at = strings_at + strings.len() as u64;
    entries.extend([(DT_STRTAB, BASE + strings_at), (DT_NULL, 0)]);
    let dynamic_bytes = entries.len() as u64 * ENTRY_BYTES;
    let kinds = [
        (if linker.is_some() { INTERPRETER } else { 0 }, linker_at, linker_bytes.len() as u64),
        (LOAD, 0, dynamic_at + dynamic_bytes),
        (DYNAMIC, dynamic_at, dynamic_bytes),
    ];
    let mut file = vec![0; HEADER_BYTES];
    file[..6].copy_from_slice(b"\x7fELF\x02\x01");
    file[18..20].copy_from_slice(&MACHINE.to_le_bytes());
    file[32..40].copy_from_slice(&(HEADER_BYTES as u64).to_le_bytes());
    file[54..56].copy_from_slice(&(SEGMENT_BYTES as u16).to_le_bytes());
    file[56..58].copy_from_slice(&3_u16.to_le_bytes());
    for (kind, offset, length) in kinds {
        file.extend(kind.to_le_bytes());
        file.extend(0_u32.to_le_bytes());
        for word in [offset, BASE + offset, BASE + offset, length, length, 1] {
            file.extend(word.to_le_bytes());
        }
    }
    file.extend(linker_bytes);
    file.extend(strings);
    for (tag, value) in entries {
        file.extend(tag.to_le_bytes());
        file.extend(value.to_le_bytes());
    }
    file
}

const GLIBC: Option<&str> = Some("/lib64/ld-linux-x86-64.so.2");

fn first(needed: &[&str]) -> Option<String> {
    match read(&program(GLIBC, needed)) {
        Program::Dynamic { linker, first } => {
            assert_eq!(linker.bytes(), GLIBC.unwrap().as_bytes());
            Some(String::from_utf8_lossy(first.bytes()).into_owned())
        }
        _ => None,
    }
}

#[test]
fn a_sanitizers_runtime_stays_in_front_with_what_is_loaded_before_it() {
    assert_eq!(first(&["libm.so.6", "libc.so.6"]).as_deref(), Some(""));
    assert_eq!(first(&["libasan.so.8", "libc.so.6"]).as_deref(), Some("libasan.so.8"));
    assert_eq!(first(&["libm.so.6", "libtsan.so.2", "libc.so.6"]).as_deref(), Some("libm.so.6:libtsan.so.2"));
    assert_eq!(first(&["libclang_rt.asan-x86_64.so"]).as_deref(), Some("libclang_rt.asan-x86_64.so"));
    assert_eq!(first(&["lib not.so", "libasan.so.8"]), None, "a list cannot hold it");
    let many: Vec<String> = (0..40).map(|index| format!("libnumber{index}.so.1")).collect();
    let mut many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_eq!(first(&many).as_deref(), Some(""));
    many.push("libasan.so.8");
    assert_eq!(first(&many), None, "the list would be too long");
}

#[test]
fn programs_that_nothing_can_be_preloaded_into_are_told_apart() {
    let refused = |file: &[u8]| match read(file) {
        Program::Refused(obstacle) => Some(obstacle),
        _ => None,
    };
    assert_eq!(refused(&program(None, &[])), Some(Obstacle::Static));
    assert_eq!(refused(&program(Some("/lib/ld-musl-x86_64.so.1"), &["libc.so"])), Some(Obstacle::Musl));
    assert_eq!(refused(&program(Some("/system/bin/linker64"), &[])), Some(Obstacle::OtherLinker));
    let changed = |at: usize, to: u8| {
        let mut file = program(GLIBC, &[]);
        file[at] = to;
        refused(&file)
    };
    assert_eq!(changed(18, 0xf3), Some(Obstacle::OtherProcessor));
    assert_eq!(changed(4, 1), Some(Obstacle::OtherProcessor));
    assert_eq!(refused(b"\x7fELF"), Some(Obstacle::OtherProcessor));
}

#[test]
fn a_script_names_its_interpreter() {
    let named = |file: &[u8]| match read(file) {
        Program::Script(name) => Some(name.bytes().to_vec()),
        _ => None,
    };
    assert_eq!(named(b"#! /bin/sh -e\nexit 0\n").unwrap(), b"/bin/sh");
    assert_eq!(named(b"#!/usr/bin/env python3").unwrap(), b"/usr/bin/env");
    assert_eq!(named(b"#!\n/bin/sh\n"), None);
    assert_eq!(named(b"exit 0\n"), None);
}

/// Whatever is cut off or overwritten, something is said.
#[test]
fn files_that_make_no_sense_do_no_harm() {
    let whole = program(GLIBC, &["libasan.so.8", "libc.so.6"]);
    for length in 0..whole.len() {
        read(&whole[..length]);
    }
    for at in 0..whole.len() {
        for value in [0x00, 0x7f, 0xff] {
            let mut file = whole.clone();
            file[at] = value;
            read(&file);
            file[at..].iter_mut().take(8).for_each(|byte| *byte = value);
            read(&file);
        }
    }
}
