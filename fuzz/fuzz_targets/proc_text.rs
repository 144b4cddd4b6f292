#![no_main]

#[allow(dead_code)]
#[path = "../../profiler-daemon/src/cgroup/text.rs"]
mod cgroup_text;
#[allow(dead_code)]
#[path = "../../profiler-daemon/src/sys/proc_text.rs"]
mod proc_text_of_daemon;

#[path = "../src/proc_text.rs"]
mod proc_text;

libfuzzer_sys::fuzz_target!(|data: &[u8]| proc_text::run(data));
