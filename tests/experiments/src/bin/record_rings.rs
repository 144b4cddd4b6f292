//! Records the rings that the replay tests replay: `tests/fixtures/rings`, from the programs of `tests/programs`.
//!
//! Run it as root, and again only when the layout of records changes: the stacks and addresses change with it, and so
//! do the snapshots (`INSTA_UPDATE=always cargo test -p tests --test replay`).

#![allow(clippy::print_stdout, reason = "it says what it recorded")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use profiler_core::record::{Record, RecordFormat};
use profiler_core::sorter::RecordQueue;
use tests::guards::Sysctl;
use tests::programs::{copy_program, program};
use tests::replay::{Header, RecordedRing, Recording, cut_down, folder, pack};

/// A recording to be made.
struct Case {
    name: &'static str,
    method: &'static str,
    /// Copied stack (bytes); 0 for none.
    stack_bytes: u32,
    period_ns: u64,
    /// Pages of a ring and milliseconds between drains.
    ring: (u32, u32),
    /// The command; words that name a test program become its path.
    command: &'static [&'static str],
}

const fn case(
    name: &'static str,
    method: &'static str,
    stack_bytes: u32,
    period_ns: u64,
    command: &'static [&'static str],
) -> Case {
    Case { name, method, stack_bytes, period_ns, ring: (128, 5), command }
}

const MS: u64 = 1_000_000;
const QUIET: &str = "/dev/null";

const CASES: &[Case] = &[
    case("frame_pointers", "fp", 0, 2 * MS, &["mix_fp", "--cpu", "0.1", "--depth", "20", "--out", QUIET]),
    case("trial", "auto", 4096, 2 * MS, &["mix_fp", "--cpu", "0.1", "--depth", "20", "--out", QUIET]),
    case("copies_20", "dwarf", 4096, 2 * MS, &["mix_nofp", "--cpu", "0.1", "--depth", "20", "--out", QUIET]),
    case(
        "copies_300",
        "dwarf",
        32 << 10,
        4 * MS,
        &["mix_nofp", "--cpu", "0.1", "--depth", "300", "--frame-bytes", "16", "--out", QUIET],
    ),
    case(
        "copies_too_short",
        "dwarf",
        2048,
        4 * MS,
        &["mix_nofp", "--cpu", "0.1", "--depth", "300", "--frame-bytes", "16", "--out", QUIET],
    ),
    case(
        "static_musl",
        "dwarf",
        4096,
        4 * MS,
        &["mix_musl", "--cpu", "0.1", "--depth", "20", "--out", QUIET],
    ),
    case(
        "threads",
        "dwarf",
        4096,
        2 * MS,
        &["threads", "--cpu", "0.1", "--depth", "20", "--threads", "8", "--out", QUIET],
    ),
    case("children", "dwarf", 4096, 2 * MS, &["mix_nofp", "--cpu", "0.2", "--children", "3", "--out", QUIET]),
    case("library", "dwarf", 4096, 2 * MS, &["host", "libplugin.so", "0.05", "0.05"]),
    case(
        "programs",
        "dwarf",
        4096,
        MS,
        &[
            "/bin/sh",
            "-c",
            "$0 $1 .02 .02 & $2 --cpu .05 --out /dev/null; wait",
            "host",
            "libplugin.so",
            "mix_fp",
        ],
    ),
    Case {
        ring: (1, 60),
        ..case("lost", "dwarf", 1024, MS / 4, &["mix_nofp", "--cpu", "0.2", "--depth", "5", "--out", QUIET])
    },
    case("throttled", "fp", 0, MS / 10, &["mix_fp", "--cpu", "0.1", "--out", QUIET]),
];

fn main() -> Result<()> {
    fs::create_dir_all(folder().join("objects"))?;
    let mut objects = Objects::default();
    for case in CASES {
        record(case, &mut objects)?;
    }
    Ok(())
}

fn record(case: &Case, objects: &mut Objects) -> Result<()> {
    // A fixed place, so that the paths in the records say nothing of this machine.
    let place = Path::new("/tmp/sweetspot-rings");
    fs::create_dir_all(place)?;
    let command = case.command.iter().map(|word| put(word, place)).collect::<Result<Vec<_>>>()?;
    let _limit = match case.name {
        "throttled" => Some(Sysctl::kernel("perf_event_max_sample_rate", "1000")?),
        _ => None,
    };
    let raw = tempfile::tempdir()?;
    let format = RecordFormat::new(case.stack_bytes > 0);
    let user_chain = case.method != "dwarf";
    let ended = Command::new(program("record_rings")?)
        .arg(raw.path())
        .args([format.sample_type(), format.sample_regs_user()].map(|number| number.to_string()))
        .args([case.stack_bytes.to_string(), u8::from(user_chain).to_string(), case.period_ns.to_string()])
        .args([case.ring.0.to_string(), case.ring.1.to_string(), "--".to_owned()])
        .args(&command)
        .env_clear() // the copies hold the environment
        .output()?;
    ensure!(ended.status.success(), "{}: {}", case.name, String::from_utf8_lossy(&ended.stderr));
    let said = String::from_utf8_lossy(&ended.stdout);
    let pid = said.lines().last().context("no process id")?.trim().parse()?;
    let mut rings = Vec::new();
    for cpu in 0..64 {
        match fs::read(raw.path().join(format!("ring.{cpu}"))) {
            Ok(bytes) => rings.push(bytes),
            Err(_) => break,
        }
    }
    let header = Header {
        copies_stack: case.stack_bytes > 0,
        method: case.method.to_owned(),
        pid,
        rings_bytes: rings.iter().map(Vec::len).collect(),
        objects: objects.mapped_in(&rings, &format)?,
    };
    Recording::write(case.name, &header, &rings)?;
    let counts = Recording::read(case.name)?.replay(&rings, usize::MAX).counts;
    println!("{}: {counts:?}", case.name);
    fs::remove_dir_all(place)?;
    Ok(())
}

/// A word of the command; a test program is copied to `place`.
fn put(word: &str, place: &Path) -> Result<String> {
    let Ok(built) = program(word) else { return Ok(word.to_owned()) };
    let copy = place.join(word);
    copy_program(&built, &copy)?;
    Ok(copy.to_string_lossy().into_owned())
}

/// Objects that were cut down, by path.
#[derive(Default)]
struct Objects(BTreeMap<String, String>);

impl Objects {
    /// The objects that the rings say were mapped.
    fn mapped_in(&mut self, rings: &[Vec<u8>], format: &RecordFormat) -> Result<Vec<(String, String)>> {
        let mut found = BTreeMap::new();
        for bytes in rings {
            let mut ring = RecordedRing::new(bytes, usize::MAX);
            while let Some(raw) = ring.front() {
                if let Ok(Record::Mmap(mapped)) = raw.decode(format)
                    && let Some(file) = self.file(&mapped.path)?
                {
                    found.insert(mapped.path, file);
                }
                ring.pop();
            }
        }
        Ok(found.into_iter().collect())
    }

    fn file(&mut self, path: &str) -> Result<Option<String>> {
        if let Some(file) = self.0.get(path) {
            return Ok(Some(file.clone()));
        }
        let bytes = match path {
            "[vdso]" => vdso()?,
            _ if path.starts_with('/') && !path.starts_with("//") => fs::read(path)?,
            _ => return Ok(None),
        };
        let name = path.rsplit('/').next().unwrap_or_default().trim_matches(['[', ']']);
        let file = format!("{name}.gz");
        pack(&folder().join("objects").join(&file), &cut_down(&bytes)?)?;
        self.0.insert(path.to_owned(), file.clone());
        Ok(Some(file))
    }
}

/// The image of the vDSO, the same in every process.
fn vdso() -> Result<Vec<u8>> {
    let maps = fs::read_to_string("/proc/self/maps")?;
    let line = maps.lines().find(|line| line.ends_with("[vdso]")).context("there is no vDSO")?;
    let (start, rest) = line.split_once('-').context("a range")?;
    let end = rest.split(' ').next().context("a range")?;
    let (start, end) = (u64::from_str_radix(start, 16)?, u64::from_str_radix(end, 16)?);
    let mut image = vec![0; (end - start) as usize];
    File::open("/proc/self/mem")?.read_exact_at(&mut image, start)?;
    Ok(image)
}
