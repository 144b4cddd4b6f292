#![no_main]

#[path = "../src/lookups.rs"]
mod lookups;
#[path = "../src/made.rs"]
mod made;

#[path = "../src/elf_packed.rs"]
mod elf_packed;

libfuzzer_sys::fuzz_target!(|data: &[u8]| elf_packed::run(data));
