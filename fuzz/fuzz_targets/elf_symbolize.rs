#![no_main]

#[path = "../src/lookups.rs"]
mod lookups;

#[path = "../src/elf_symbolize.rs"]
mod elf_symbolize;

libfuzzer_sys::fuzz_target!(|data: &[u8]| elf_symbolize::run(data));
