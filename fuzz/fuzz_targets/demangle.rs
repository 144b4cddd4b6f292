#![no_main]

#[path = "../src/demangle.rs"]
mod demangle;

libfuzzer_sys::fuzz_target!(|data: &[u8]| demangle::run(data));
