#![no_main]

#[allow(dead_code)]
#[path = "../../tests/src/replay/pipeline.rs"]
mod pipeline;

#[path = "../src/replay.rs"]
mod replay;

libfuzzer_sys::fuzz_target!(|data: &[u8]| replay::run(data));
