#![no_main]

#[path = "../src/elf_image.rs"]
mod elf_image;

libfuzzer_sys::fuzz_target!(|data: &[u8]| elf_image::run(data));
