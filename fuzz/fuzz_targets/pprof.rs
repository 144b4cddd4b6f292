#![no_main]

#[allow(dead_code)]
#[path = "../../profiler-daemon/src/export/mod.rs"]
mod export;

#[path = "../src/pprof.rs"]
mod pprof;

libfuzzer_sys::fuzz_target!(|data: &[u8]| pprof::run(data));
