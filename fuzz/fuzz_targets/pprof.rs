#![no_main]

#[path = "../src/pprof.rs"]
mod pprof;

libfuzzer_sys::fuzz_target!(|data: &[u8]| pprof::run(data));
