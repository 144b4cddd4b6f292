#![no_main]

#[path = "../src/lookups.rs"]
mod lookups;

#[path = "../src/elf_split.rs"]
mod elf_split;

libfuzzer_sys::fuzz_target!(|data: &[u8]| elf_split::run(data));
