//! Prints the names at addresses of an object, or with `--sample N` how fast it names N addresses of its symbols.
//!
//! `cargo run --release -p symbolizer --example names -- /usr/bin/node --sample 5000`
#![allow(clippy::print_stdout, reason = "this is what the example is for")]

use std::fs::File;
use std::path::Path;
use std::time::Instant;

use symbolizer::{DebugFiles, Object, ReadAt, Symbolized};

/// Opens debug files of the host.
struct Host;

impl DebugFiles for Host {
    fn open(&self, path: &Path) -> Option<Box<dyn ReadAt>> {
        Some(Box::new(File::open(path).ok()?))
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: names FILE ADDRESS… | names FILE --sample N START END")?;
    let file = File::open(&path)?;
    let started = Instant::now();
    let object = Object::load(&file, Path::new(&path), &Host)?;
    let loaded = started.elapsed();
    let rest: Vec<String> = arguments.collect();
    if rest.first().map(String::as_str) == Some("--sample") {
        let [_, count, start, end] = rest.as_slice() else { return Err("--sample N START END".into()) };
        let (count, start, end) = (count.parse::<u64>()?, address(start)?, address(end)?);
        let step = (end - start) / count;
        let (mut known, mut frames) = (0, 0);
        for index in 0..count {
            if let Symbolized::Known(found) = object.symbolize(start + index * step) {
                known += 1;
                frames += found.len();
            }
        }
        let total = started.elapsed();
        println!("load {loaded:?}, {count} addresses {:?}: {known} known, {frames} frames", total - loaded);
        let status = std::fs::read_to_string("/proc/self/status")?;
        println!("{}", status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default());
    } else {
        for each in &rest {
            println!("{each}");
            match object.symbolize(address(each)?) {
                Symbolized::Known(frames) => frames.iter().for_each(|frame| {
                    let line = frame.line.map_or("?".into(), |line| line.to_string());
                    println!("  {}\n    {}:{line}", frame.name, frame.file.as_deref().unwrap_or("??"));
                }),
                Symbolized::Unknown(reason) => println!("  ({reason})"),
            }
        }
    }
    println!("build id {:?}, warnings {:?}", object.build_id(), object.warnings());
    Ok(())
}

fn address(text: &str) -> Result<u64, std::num::ParseIntError> {
    u64::from_str_radix(text.trim_start_matches("0x"), 16)
}
