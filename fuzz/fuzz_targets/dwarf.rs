#![no_main]

#[path = "../src/dwarf.rs"]
mod dwarf;

libfuzzer_sys::fuzz_target!(|data: &[u8]| dwarf::run(data));
