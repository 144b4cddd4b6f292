#![no_main]

#[path = "../src/asked.rs"]
mod asked;
#[path = "../src/made.rs"]
mod made;

#[path = "../src/dwarf.rs"]
mod dwarf;

libfuzzer_sys::fuzz_target!(|data: &[u8]| dwarf::run(data));
