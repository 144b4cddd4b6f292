#![no_main]

#[path = "../src/kallsyms.rs"]
mod kallsyms;

libfuzzer_sys::fuzz_target!(|data: &[u8]| kallsyms::run(data));
