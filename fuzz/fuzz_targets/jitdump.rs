#![no_main]

#[path = "../src/jitdump.rs"]
mod jitdump;

libfuzzer_sys::fuzz_target!(|data: &[u8]| jitdump::run(data));
