#![no_main]

#[path = "../src/calibration.rs"]
mod calibration;

libfuzzer_sys::fuzz_target!(|data: &[u8]| calibration::run(data));
