#![no_main]

#[allow(dead_code)]
#[path = "../../profiler-daemon/src/sys/maps.rs"]
mod proc_maps;

#[path = "../src/maps.rs"]
mod maps;

libfuzzer_sys::fuzz_target!(|data: &[u8]| maps::run(data));
