//! What the fuzz targets once choked on, and the seeds they begin with: `fuzz/regressions/TARGET/*`.
//!
//! A new finding is a file more in the folder of its target.

#![allow(clippy::print_stdout, reason = "this is no test harness: it says itself what passed")]

use std::path::Path;
use std::{fs, io};

// The daemon is a program and no library; what its targets need of it is taken in here. Its tests run elsewhere.
#[allow(dead_code, unused_imports)]
#[path = "../../profiler-daemon/src/cgroup/text.rs"]
mod cgroup_text;
#[allow(dead_code, unused_imports)]
#[path = "../../profiler-daemon/src/sys/maps.rs"]
mod proc_maps;
#[allow(dead_code, unused_imports)]
#[path = "../../profiler-daemon/src/sys/proc_text.rs"]
mod proc_text_of_daemon;

// What several targets share.
#[path = "../../fuzz/src/lookups.rs"]
mod lookups;
#[path = "../../fuzz/src/made.rs"]
mod made;

use tests::replay as pipeline;

macro_rules! targets {
    ($($name:ident: $path:literal),* $(,)?) => {
        $(#[path = $path] mod $name;)*
        const TARGETS: &[(&str, fn(&[u8]))] = &[$((stringify!($name), $name::run)),*];
    };
}

targets! {
    calibration: "../../fuzz/src/calibration.rs",
    config: "../../fuzz/src/config.rs",
    demangle: "../../fuzz/src/demangle.rs",
    dwarf: "../../fuzz/src/dwarf.rs",
    elf_image: "../../fuzz/src/elf_image.rs",
    elf_packed: "../../fuzz/src/elf_packed.rs",
    elf_split: "../../fuzz/src/elf_split.rs",
    elf_symbolize: "../../fuzz/src/elf_symbolize.rs",
    handler_trace: "../../fuzz/src/handler_trace.rs",
    jitdump: "../../fuzz/src/jitdump.rs",
    kallsyms: "../../fuzz/src/kallsyms.rs",
    maps: "../../fuzz/src/maps.rs",
    perf_map: "../../fuzz/src/perf_map.rs",
    pprof: "../../fuzz/src/pprof.rs",
    proc_text: "../../fuzz/src/proc_text.rs",
    records: "../../fuzz/src/records.rs",
    replay: "../../fuzz/src/replay.rs",
    unwind: "../../fuzz/src/unwind.rs",
}

fn main() -> io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/regressions");
    for entry in fs::read_dir(&folder)? {
        let name = entry?.file_name();
        assert!(TARGETS.iter().any(|(target, _)| name == *target), "{name:?} is no target");
    }
    for (target, run) in TARGETS {
        let mut files = Vec::new();
        if let Ok(entries) = fs::read_dir(folder.join(target)) {
            for entry in entries {
                files.push(entry?.path());
            }
        }
        files.sort();
        run(&[]);
        for file in &files {
            println!("{target}: {}", file.display());
            run(&fs::read(file)?);
        }
        println!("{target}: {} cases, no harm", files.len() + 1);
    }
    Ok(())
}
