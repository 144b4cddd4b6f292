#![no_main]

#[path = "../src/handler_trace.rs"]
mod handler_trace;

libfuzzer_sys::fuzz_target!(|data: &[u8]| handler_trace::run(data));
