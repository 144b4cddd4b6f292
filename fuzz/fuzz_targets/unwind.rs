#![no_main]

#[path = "../src/unwind.rs"]
mod unwind;

libfuzzer_sys::fuzz_target!(|data: &[u8]| unwind::run(data));
