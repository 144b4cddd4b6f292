//! What cuts cost: information for a person (`just naming`).

use std::path::{Path, PathBuf};

use object::read::elf::{ElfFile64, ProgramHeader};
use object::{Endianness, ReadCache};

use super::*;

/// Where the objects of the measurement are mapped, one after the other.
const MAPPED: u64 = 0x10_0000_0000;
/// Programs to name addresses of, unless `SWEETSPOT_OBJECTS` names others, with colons between them.
const OBJECTS: &str = "/lib/x86_64-linux-gnu/libc.so.6:/usr/bin/python3:/usr/bin/redis-server:/usr/bin/node";

/// What a cut takes of the thread that samples: information for a person (`--ignored --nocapture`).
#[test]
#[ignore = "a measurement"]
#[allow(clippy::print_stderr, reason = "it says what it measured")]
fn the_cost_of_a_cut() {
    let target = Target::idle();
    let mut session = session(&target, MEMORY);
    for round in 0..5 {
        for stack in 0..50_000u64 {
            let user: Vec<u64> = (0..20).map(|depth| GENERATED + (stack * 31 + depth * 7) % 20_000).collect();
            add(&mut session, target.pid(), &[], &[&[GENERATED + stack][..], &user].concat(), 1_000);
            if stack % 5_000 == 0 {
                session.end_window(clock::monotonic_ns());
            }
        }
        let before_ns = clock::thread_cpu_ns();
        let cut = session.cut(clock::monotonic_ns());
        let cut_ns = clock::thread_cpu_ns() - before_ns;
        let profile = name(cut);
        let named_ns = clock::thread_cpu_ns() - before_ns - cut_ns;
        eprintln!(
            "round {round}: {} stacks, cut {} us, naming {} us",
            profile.stacks.len(),
            cut_ns / 1000,
            named_ns / 1000
        );
    }
}

/// A stretch of code that is mapped, and random places in it.
struct Code {
    start: u64,
    len: u64,
    random: u64,
}

impl Code {
    /// Maps the code of `path` into the target.
    fn map(session: &mut Session, pid: u32, path: &Path, at: u64) -> Option<Self> {
        let path = path.canonicalize().ok()?;
        let file = ReadCache::new(std::fs::File::open(&path).ok()?);
        let elf = ElfFile64::<Endianness, _>::parse(&file).ok()?;
        let is_code = |header: &&object::elf::ProgramHeader64<Endianness>| {
            header.p_type(Endianness::Little) == object::elf::PT_LOAD
                && header.p_flags(Endianness::Little).contains(object::elf::PF_X)
        };
        let code = elf.elf_program_headers().iter().find(is_code)?;
        let (offset, len) = (code.p_offset(Endianness::Little), code.p_filesz(Endianness::Little));
        session.mapped(&Mapped {
            pid,
            start: MAPPED * at + offset % 4096,
            len,
            file_offset: offset,
            file: FileId::default(),
            path: path.to_str()?.to_owned(),
        });
        Some(Self { start: MAPPED * at + offset % 4096, len, random: 88_172_645_463_325_252 })
    }

    /// Places as a program's samples have them: many in a few stretches of code.
    fn hot(&mut self) -> Vec<u64> {
        let stretches: Vec<u64> = (0..40).map(|_| self.next()).collect();
        let around = |start: u64| (0..10).map(move |step| start + step * 37);
        stretches.into_iter().flat_map(around).collect()
    }

    /// Any place.
    fn next(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.start + self.random % self.len
    }
}

/// Own CPU time of naming a cut of these addresses (ns).
fn naming_ns(session: &mut Session, pid: u32, addresses: &[u64]) -> u64 {
    addresses.iter().for_each(|&address| add(session, pid, &[], &[address], 1_000));
    let cut = session.cut(clock::monotonic_ns());
    let before_ns = clock::self_cpu_ns();
    name(cut);
    clock::self_cpu_ns() - before_ns
}

fn middle_and_most(mut ns: Vec<u64>) -> String {
    ns.sort_unstable();
    format!("{:8.2} {:8.2}", ns[ns.len() / 2] as f64 * 1e-6, ns[ns.len() - 1] as f64 * 1e-6)
}

/// What naming takes where a cut has a few addresses that are new, and where it has none.
#[test]
#[ignore = "a measurement"]
#[allow(clippy::print_stderr, reason = "it says what it measured")]
fn the_cost_of_naming() {
    const CUTS: usize = 30;
    const NEW: usize = 5;
    let objects = std::env::var("SWEETSPOT_OBJECTS").unwrap_or_else(|_| OBJECTS.to_owned());
    let target = Target::idle();
    eprintln!(
        "CPU ms of naming a cut: of 400 addresses; with {NEW} more, near and anywhere (middle, most of {CUTS}); with none"
    );
    for path in objects.split(':').map(PathBuf::from) {
        let mut session = session(&target, 256 << 20);
        let Some(mut code) = Code::map(&mut session, target.pid(), &path, 1) else { continue };
        let mut seen = code.hot();
        let hot = seen.len();
        let first_ns = naming_ns(&mut session, target.pid(), &seen);
        let before = counts(&session);
        let mut cuts = |is_near: bool, new: usize| {
            let cut = |cut: usize| {
                let new = (0..new).map(|each| match is_near {
                    true => seen[(cut * NEW + each) * 13 % hot] + 1 + cut as u64 % 7,
                    false => code.next(),
                });
                let new: Vec<u64> = new.collect();
                seen.extend(new);
                naming_ns(&mut session, target.pid(), &seen)
            };
            middle_and_most((0..CUTS).map(cut).collect())
        };
        let (near, anywhere, none) = (cuts(true, NEW), cuts(false, NEW), cuts(true, 0));
        let counts = counts(&session);
        let memory = &session.code.objects.memory;
        eprintln!(
            "{:40} {:8.2} {near} {anywhere} {none}  read {} times after the first, {} KiB held, {} KiB at most",
            path.display(),
            first_ns as f64 * 1e-6,
            counts.sources - before.sources,
            (memory.cap() - memory.left()) >> 10,
            memory.peak() >> 10,
        );
    }
}
