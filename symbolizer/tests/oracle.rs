//! The same questions, asked of binutils' `addr2line`, together and one by one, and within limits.
#![allow(clippy::print_stderr, reason = "the agreement is worth reading")]

mod build;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::process::Command;

use build::run;
use symbolizer::{Limits, NamedFrame, NoDebugFiles, Object, Reason, Symbolized};

const ADDRESSES: u64 = 240;

/// Addresses spread over the functions of this very test.
fn addresses(path: &Path) -> Vec<u64> {
    let listed = run(Command::new("nm").arg("-S").arg(path)).unwrap_or_default();
    let functions = listed.lines().filter_map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let [start, size, "t" | "T", _] = words[..] else { return None };
        Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(size, 16).ok()?))
    });
    let functions: BTreeMap<u64, u64> = functions.collect();
    let step = (functions.len() as u64 / ADDRESSES).max(1) as usize;
    functions.iter().step_by(step).map(|(start, size)| start + size * 2 / 3).collect()
}

fn frames(object: &Object, address: u64) -> Vec<NamedFrame> {
    match object.symbolize(address) {
        Symbolized::Known(frames) => frames,
        Symbolized::Unknown(_) => Vec::new(),
    }
}

/// What `addr2line -a -i -f` prints: for each address itself, then a name and a place for each frame.
fn binutils(path: &Path, addresses: &[u64]) -> Option<Vec<Vec<(String, String)>>> {
    let addresses = addresses.iter().map(|address| format!("{address:#x}"));
    let text = run(Command::new("addr2line").args(["-a", "-i", "-f", "-e"]).arg(path).args(addresses))?;
    let mut all: Vec<Vec<(String, String)>> = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("0x") {
            all.push(Vec::new());
        } else if let (Some(last), Some(place)) = (all.last_mut(), lines.next()) {
            let place = place.split(" (discriminator").next().unwrap_or(place);
            let place = place.rsplit('/').next().unwrap_or(place);
            last.push((line.to_owned(), place.to_owned()));
        }
    }
    Some(all)
}

fn place(frame: &NamedFrame) -> String {
    let file = frame.file.as_deref().map_or("??", |file| file.rsplit('/').next().unwrap_or(file));
    format!("{file}:{}", frame.line.map_or("?".into(), |line| line.to_string()))
}

#[test]
fn agrees_with_binutils() {
    let path = std::env::current_exe().expect("this test");
    let file = File::open(&path).expect("this test");
    let object = Object::load(&file, &path, &NoDebugFiles).expect("a good object");
    let addresses = addresses(&path);
    let Some(theirs) = binutils(&path, &addresses) else { return };
    let (mut names, mut places) = (0, 0);
    for (address, theirs) in addresses.iter().zip(&theirs) {
        let ours = frames(&object, *address);
        let same_names =
            ours.iter().map(|frame| &*frame.linkage_name).eq(theirs.iter().map(|(name, _)| name));
        let same_places =
            ours.iter().map(place).eq(theirs.iter().map(|(_, place)| place.replace(":0", ":?")));
        names += usize::from(same_names);
        places += usize::from(same_places);
        if !same_names || !same_places {
            let ours: Vec<_> = ours.iter().map(|frame| (&frame.linkage_name, place(frame))).collect();
            eprintln!("{address:#x}:\n  ours   {ours:?}\n  theirs {theirs:?}");
        }
    }
    eprintln!("of {} addresses: {names} with the same names, {places} with the same places", addresses.len());
    assert!(names * 100 >= addresses.len() * 95, "{names} of {}", addresses.len());
    assert!(places * 100 >= addresses.len() * 95, "{places} of {}", addresses.len());
}

#[test]
fn together_as_one_by_one() {
    let path = std::env::current_exe().expect("this test");
    let file = File::open(&path).expect("this test");
    let object = Object::load(&file, &path, &NoDebugFiles).expect("a good object");
    // In no order, some twice, enough for several threads.
    let mut asked: Vec<u64> = addresses(&path).iter().flat_map(|at| at - 12..at + 12).collect();
    asked.sort_unstable_by_key(|address| address.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let together = object.symbolize_all(&asked);
    assert_eq!(together.len(), asked.len());
    for (address, together) in asked.iter().zip(together) {
        assert_eq!(together, object.symbolize(*address), "{address:#x}");
    }
}

/// The size of a section of this test.
fn section_bytes(path: &Path, name: &str) -> u64 {
    use object::{Object as _, ObjectSection as _};

    let bytes = std::fs::read(path).expect("this test");
    let elf = object::read::elf::ElfFile64::<object::LittleEndian>::parse(&*bytes).expect("a good object");
    elf.section_by_name(name).map_or(0, |section| section.size())
}

#[test]
fn the_same_whether_strings_are_held_or_not() {
    let path = std::env::current_exe().expect("this test");
    let file = File::open(&path).expect("this test");
    let holds_all = Object::load(&file, &path, &NoDebugFiles).expect("a good object");
    // A quarter of the limit is for strings: one byte too little for them.
    let limits = Limits { bytes: 4 * (section_bytes(&path, ".debug_str") - 1), ..Limits::default() };
    let holds_few = Object::load_within(limits, &file, &path, &NoDebugFiles).expect("a good object");
    assert_eq!(holds_few.warnings(), []);
    let addresses = addresses(&path);
    assert_eq!(holds_few.symbolize_all(&addresses), holds_all.symbolize_all(&addresses));
}

#[test]
fn of_symbols_alone_nothing_else_is_read() {
    let path = std::env::current_exe().expect("this test");
    let file = File::open(&path).expect("this test");
    let object = Object::load_within(Limits::of_symbols(1 << 30), &file, &path, &NoDebugFiles);
    let object = object.expect("a good object");
    assert!(!object.has_debug_info());
    assert_eq!(object.warnings(), []);
    let without_line = |symbolized: &Symbolized| match symbolized {
        Symbolized::Known(frames) => frames.len() == 1 && frames[0].line.is_none(),
        Symbolized::Unknown(_) => false,
    };
    assert!(object.symbolize_all(&addresses(&path)).iter().all(without_line));
}

#[test]
fn beyond_the_limit_symbols_are_left() {
    let path = std::env::current_exe().expect("this test");
    let file = File::open(&path).expect("this test");
    let limits = Limits { bytes: 1 << 10, ..Limits::default() };
    let object = Object::load_within(limits, &file, &path, &NoDebugFiles).expect("a good object");
    assert!(matches!(object.warnings(), [Reason::TooLarge { .. }]), "{:?}", object.warnings());
    assert!(!object.has_debug_info());
    let known = |symbolized: &Symbolized| matches!(symbolized, Symbolized::Known(_));
    assert!(object.symbolize_all(&addresses(&path)).iter().all(known));
}

#[test]
fn one_limit_for_everything_holds() {
    let path = std::env::current_exe().expect("this test");
    let file = File::open(&path).expect("this test");
    let load = |bytes| Object::load_within(Limits::of_all(bytes), &file, &path, &NoDebugFiles);
    let refused = load(1 << 10).err();
    assert!(matches!(refused, Some(Reason::TooLarge { .. })), "{refused:?}");
    let addresses = addresses(&path);
    let all = load(256 << 20).expect("a good object");
    let names = all.symbolize_all(&addresses);
    let mut used = Vec::new();
    for mib in [4, 16, 64, 256] {
        let Ok(object) = load(mib << 20) else { continue };
        let found = object.symbolize_all(&addresses);
        assert!(object.memory_bytes() <= mib << 20, "{} of {mib} MiB", object.memory_bytes());
        used.push(object.memory_bytes());
        if object.has_debug_info() && object.warnings().is_empty() {
            assert!(found == names, "{mib} MiB");
        }
    }
    assert!(used.len() > 1, "{used:?}");
}
