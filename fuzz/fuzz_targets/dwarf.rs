#![no_main]

#[path = "../src/lookups.rs"]
mod lookups;
#[path = "../src/made.rs"]
mod made;

#[path = "../src/dwarf.rs"]
mod dwarf;

libfuzzer_sys::fuzz_target!(|data: &[u8]| dwarf::run(data));
