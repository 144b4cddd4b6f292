#![no_main]

#[path = "../src/perf_map.rs"]
mod perf_map;

libfuzzer_sys::fuzz_target!(|data: &[u8]| perf_map::run(data));
