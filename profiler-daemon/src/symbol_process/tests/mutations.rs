//! An experiment, run by `just mutations`: a million broken files are read through the symbolizer process, and
//! other files lose nothing by it.
#![allow(clippy::print_stderr, reason = "an experiment prints what it found")]

mod samples;

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

use nix::sys::memfd::{MFdFlags, memfd_create};
use rustc_hash::{FxHashSet, FxHasher};

use self::samples::{Sample, Target};
use super::*;

/// What symbols may take, as is the default (bytes).
const MOST_BYTES: u64 = 256 << 20;
/// Mutations between two looks at the file that is not mutated.
const CONTROL_EVERY: u64 = 50;
/// Mutations between two files that are known to end their reader.
const BREAKER_EVERY: u64 = 10_000;
/// Times that the service reads an object.
const TRIES: usize = 4;
/// Addresses in the code of each file, and others.
const IN_CODE: usize = 16;
const ELSEWHERE: usize = 4;
/// Resident memory of a process that holds one small file (bytes). The rest was given back.
const MOST_AT_REST: u64 = 128 << 20;
/// CPU time that a request may take beyond its patience, which is checked a few times in a second.
const LATE: Duration = Duration::from_secs(1);

/// The separate debug file, wherever it is looked for.
struct Separate(Option<Vec<u8>>);

impl OpenDebugFiles for Separate {
    fn open(&self, _: &Path) -> Option<File> {
        self.0.as_deref().map(in_memory)
    }

    fn fetch(&self, _: &str) -> Option<File> {
        None
    }
}

fn in_memory(bytes: &[u8]) -> File {
    let mut file = File::from(memfd_create("mutated", MFdFlags::MFD_CLOEXEC).unwrap());
    file.write_all(bytes).unwrap();
    file
}

/// How far a file could be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    DebugInfo,
    SymbolsOnly,
    NoNames,
    Refused,
    /// Read as far as its symbol table, since reading more has ended the process.
    Reduced,
    /// Not read at all, since reading its symbol table has ended the process too.
    GivenUp,
}

/// What came of a file.
struct Answer {
    outcome: Outcome,
    /// Empty if it could not be read.
    found: Vec<Symbolized>,
    /// Times that it has ended the process.
    ends: u64,
}

/// Reads a file as the service does: again, and less of it, where it has ended the process.
fn read(process: &SymbolProcess, name: &str, file: &File, separate: Separate, addresses: &[u64]) -> Answer {
    let files: Arc<dyn OpenDebugFiles> = Arc::new(separate);
    let before = process.status().broken;
    for _ in 0..TRIES {
        let before_ns = family::readers_cpu_ns();
        let answer = read_once(process, name, file, Arc::clone(&files), addresses);
        let used = Duration::from_nanos(family::readers_cpu_ns() - before_ns);
        assert!(used <= 2 * (Patience::default().cpu + LATE), "{name} took {used:?} of CPU time");
        let Some((outcome, found)) = answer else { continue };
        let ends = process.status().broken - before;
        let is_fair = match outcome {
            Outcome::DebugInfo | Outcome::SymbolsOnly | Outcome::NoNames => ends == 0,
            Outcome::Reduced => ends == 1,
            Outcome::Refused => ends < 2,
            Outcome::GivenUp => ends == 2,
        };
        assert!(is_fair, "{name}: {outcome:?} after {ends} ends");
        return Answer { outcome, found, ends };
    }
    panic!("{name} was never answered");
}

/// None where the process has ended.
fn read_once(
    process: &SymbolProcess,
    name: &str,
    file: &File,
    files: Arc<dyn OpenDebugFiles>,
    addresses: &[u64],
) -> Option<(Outcome, Vec<Symbolized>)> {
    let mut there = match load_file(process, name, file, files) {
        Ok(there) => there,
        Err(ObjectNotRead::Gone) => return None,
        Err(ObjectNotRead::Reason(_)) => return Some((Outcome::Refused, Vec::new())),
        Err(ObjectNotRead::GivenUp(_)) => return Some((Outcome::GivenUp, Vec::new())),
        Err(why @ (ObjectNotRead::NoProcess(_) | ObjectNotRead::Here)) => panic!("{name}: {why:?}"),
    };
    let found = there.look_up(addresses).ok()?;
    assert_eq!(found.len(), addresses.len(), "{name}");
    let is_known = |found: &Symbolized| matches!(found, Symbolized::Known(_));
    let outcome = match (there.is_partial, there.facts.has_debug_info) {
        (true, _) => Outcome::Reduced,
        (false, _) if !found.iter().any(is_known) => Outcome::NoNames,
        (false, true) => Outcome::DebugInfo,
        (false, false) => Outcome::SymbolsOnly,
    };
    Some((outcome, found))
}

fn load_file(
    process: &SymbolProcess,
    path: &str,
    file: &File,
    files: Arc<dyn OpenDebugFiles>,
) -> Result<There, ObjectNotRead> {
    let limits = Limits::of_all(MOST_BYTES);
    process.load(WantedObject { file, path, identity: None, limits, print: None, files }, MOST_BYTES)
}

/// A file that is not mutated, and is asked for all the time.
struct Control<'a> {
    sample: &'a Sample,
    file: File,
    names: Vec<Symbolized>,
    held: There,
    /// The process that holds it.
    pid: u32,
    /// Descriptors of this process, and of the other (0 where these are not ours to see).
    files: (u64, usize),
    most: Memory,
}

/// The most that a process has used (bytes).
#[derive(Default)]
struct Memory {
    addresses: u64,
    resident: u64,
    at_rest: u64,
}

impl<'a> Control<'a> {
    fn new(process: &SymbolProcess, sample: &'a Sample) -> Self {
        let file = in_memory(&sample.main.bytes);
        let mut held = load_file(process, "/control", &file, Arc::new(NoFiles)).unwrap();
        let names = held.look_up(&sample.addresses).unwrap();
        let pid = process.status().pid.unwrap();
        let mut control = Self { sample, file, names, held, pid, files: (0, 0), most: Memory::default() };
        assert!(is_named(&Ok(control.names.clone())));
        control.check(process, 0);
        control
    }

    /// That it has its names, from what was read long ago and anew, and that nothing has piled up.
    fn check(&mut self, process: &SymbolProcess, number: u64) {
        let broken = process.status().broken;
        match self.held.look_up(&self.sample.addresses) {
            Ok(names) => assert!(names == self.names, "other names after {number}"),
            Err(Gone) => {
                assert_ne!(
                    process.status().pid,
                    Some(self.pid),
                    "it is gone at {number}, its process is not"
                );
                wait_for_end(self.pid);
                self.held = self.load(process, number);
                self.pid = process.status().pid.unwrap();
            }
        }
        let _fresh = self.load(process, number);
        let status = process.status();
        assert_eq!((status.broken, status.pid), (broken, Some(self.pid)), "reading it at {number}");
        self.look(number);
    }

    fn load(&self, process: &SymbolProcess, number: u64) -> There {
        let loaded = load_file(process, "/control", &self.file, Arc::new(NoFiles));
        let mut there = loaded.map_err(|why| format!("{why:?} at {number}")).unwrap();
        assert!(!there.is_partial && there.look_up(&self.sample.addresses).as_ref() == Ok(&self.names));
        there
    }

    fn look(&mut self, number: u64) {
        let theirs = std::fs::read_dir(format!("/proc/{}/fd", self.pid)).map_or(0, |folder| folder.count());
        let files = (procfs::own_open_files(), theirs);
        assert!(self.files == (0, 0) || self.files == files, "{:?}, {files:?} at {number}", self.files);
        self.files = files;
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap();
        let bytes = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
            line.trim_end_matches("kB").trim().parse::<u64>().unwrap() << 10
        };
        let most = &mut self.most;
        most.addresses = most.addresses.max(bytes("VmPeak:"));
        most.resident = most.resident.max(bytes("VmHWM:"));
        most.at_rest = most.at_rest.max(bytes("VmRSS:"));
        assert!(most.addresses <= bounds(MOST_BYTES).address_bytes, "{} at {number}", most.addresses);
        assert!(most.at_rest <= MOST_AT_REST, "{} at {number}", most.at_rest);
    }
}

/// What came of all files.
#[derive(Default)]
struct Tally {
    outcomes: BTreeMap<Outcome, u64>,
    /// Mutations of each kind, and those with other names.
    kinds: BTreeMap<&'static str, (u64, u64)>,
    answers: FxHashSet<u64>,
    ends: u64,
    breakers: u64,
    /// The slowest, and its number.
    slowest: (Duration, u64),
}

impl Tally {
    fn add(&mut self, number: u64, answer: &Answer, plain: &Plain<'_>, took: Duration) {
        *self.outcomes.entry(answer.outcome).or_default() += 1;
        let differs = !answer.found.starts_with(&plain.names);
        let (all, changed) = self.kinds.entry(plain.sample.kind).or_default();
        (*all, *changed) = (*all + 1, *changed + u64::from(differs));
        let mut hash = FxHasher::default();
        format!("{:?}{:?}", answer.outcome, answer.found).hash(&mut hash);
        self.answers.insert(hash.finish());
        self.ends += answer.ends;
        self.slowest = self.slowest.max((took, number));
    }

    fn print(&self) {
        let (all, changed) = self.kinds.values().fold((0, 0), |sum, kind| (sum.0 + kind.0, sum.1 + kind.1));
        let share = |part: u64, all: u64| part as f64 / all.max(1) as f64 * 100.0;
        eprintln!("{all} mutations, other names or lines after {:.1} % of them:", share(changed, all));
        for (kind, (all, changed)) in &self.kinds {
            eprintln!("  {kind}: {all}, {:.1} %", share(*changed, *all));
        }
        for (outcome, times) in &self.outcomes {
            eprintln!("{outcome:?}: {times}");
        }
        eprintln!("distinct answers: {}", self.answers.len());
        let (took, number) = self.slowest;
        eprintln!("process ends: {}; slowest: number {number}, {took:.1?}", self.ends);
    }
}

/// A file, and the names that it has unless it is changed.
struct Plain<'a> {
    sample: &'a Sample,
    names: Vec<Symbolized>,
}

impl<'a> Plain<'a> {
    fn new(process: &SymbolProcess, sample: &'a Sample) -> Self {
        let separate = Separate(sample.separate.as_ref().map(|target| target.bytes.clone()));
        let file = in_memory(&sample.main.bytes);
        let answer = read(process, sample.kind, &file, separate, &sample.addresses);
        let bytes = sample.main.bytes.len() + sample.separate.as_ref().map_or(0, |file| file.bytes.len());
        let mut hash = FxHasher::default();
        sample.main.bytes.hash(&mut hash);
        sample.separate.as_ref().map(|file| &file.bytes).hash(&mut hash);
        let named = answer.found.iter().filter(|found| matches!(found, Symbolized::Known(_))).count();
        eprintln!(
            "{}: {} KiB ({:016x}), {named} of {IN_CODE} addresses named, {:?}",
            sample.kind,
            bytes >> 10,
            hash.finish(),
            answer.outcome
        );
        assert!(named > 0);
        Self { sample, names: answer.found }
    }

    /// One mutation, which the seed and its number repeat.
    fn mutate(&self, process: &SymbolProcess, number: u64, rng: &mut fastrand::Rng) -> Answer {
        let Sample { main, separate, addresses, .. } = self.sample;
        let keep = |target: &Target| target.bytes.clone();
        let (main, separate) = match separate {
            Some(separate) if rng.bool() => (keep(main), Some(separate.changed(rng))),
            separate => (main.changed(rng), separate.as_ref().map(keep)),
        };
        let elsewhere = (0..ELSEWHERE).map(|at| match at {
            0 => [0, u64::MAX, 1 << 63, 1][rng.usize(..4)],
            1 => rng.u64(..),
            _ => addresses[0].wrapping_add(rng.u64(..0x4000)).wrapping_sub(0x1000),
        });
        let addresses: Vec<u64> = addresses.iter().copied().chain(elsewhere).collect();
        read(process, &format!("/mutated/{number}"), &in_memory(&main), Separate(separate), &addresses)
    }
}

/// A file that ends its reader, so that what comes after that is tried too.
fn read_breaker(process: &SymbolProcess, number: u64, bytes: &[u8], code: u64) {
    let name = format!("/breaker/{number}");
    let answer = read(process, &name, &in_memory(bytes), Separate(None), &[code + 1]);
    assert_eq!((answer.outcome, answer.ends), (Outcome::Reduced, 1));
    assert!(is_code(&answer.found));
}

fn number_from(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap())
}

#[test]
#[ignore = "an experiment of ten minutes: `just mutations`"]
fn a_million_broken_files_cost_others_nothing() {
    let count = number_from("SWEETSPOT_MUTATIONS", 1_000_000);
    let (seed, first) = (number_from("SWEETSPOT_SEED", 1), number_from("SWEETSPOT_FIRST", 0));
    let (samples, missing) = samples::make(IN_CODE);
    missing.iter().for_each(|kind| eprintln!("{kind}: left out, it cannot be made here"));
    assert!(samples.len() >= 3, "too few kinds of files");
    let breaker = library_of(&nested(1_000_000));
    let breaker = breaker.map(|(_folder, path, code)| (std::fs::read(path).unwrap(), code));
    let process = SymbolProcess::default();
    let plain: Vec<Plain<'_>> = samples.iter().map(|sample| Plain::new(&process, sample)).collect();
    let mut control = Control::new(&process, &samples[0]);
    let (began, mut tally) = (Instant::now(), Tally::default());
    for number in first..first + count {
        let mut rng = fastrand::Rng::with_seed(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let plain = &plain[rng.usize(..plain.len())];
        let asked = Instant::now();
        let answer = plain.mutate(&process, number, &mut rng);
        tally.add(number, &answer, plain, asked.elapsed());
        if answer.ends > 0 {
            let problems = process.status().problems().concat();
            eprintln!(
                "seed {seed}, number {number} ({}): {} ends; {problems}",
                plain.sample.kind, answer.ends
            );
        }
        if answer.ends > 0 || number % CONTROL_EVERY == 0 {
            control.check(&process, number);
        }
        if let Some((bytes, code)) = breaker.as_ref().filter(|_| (number + 1) % BREAKER_EVERY == 0) {
            read_breaker(&process, number, bytes, *code);
            tally.breakers += 1;
            control.check(&process, number);
            eprintln!("number {number} after {:.0?}", began.elapsed());
        }
    }
    control.check(&process, first + count);
    eprintln!("seed {seed}, numbers {first} to {}, {:.0?}", first + count - 1, began.elapsed());
    tally.print();
    let Memory { addresses, resident, at_rest } = control.most;
    let [addresses, resident, at_rest] = [addresses, resident, at_rest].map(|bytes| bytes >> 20);
    eprintln!("files made to end it: {}", tally.breakers);
    eprintln!("memory: {addresses} MiB of addresses, {resident} MiB resident, {at_rest} MiB at rest");
    drop(control);
    check_ends(&process, &tally);
}

/// Each end of the process is one that a file was blamed for, and no process stays.
fn check_ends(process: &SymbolProcess, tally: &Tally) {
    let status = process.status();
    assert_eq!(status.broken, tally.ends + tally.breakers);
    // It is also replaced once it has used much CPU time.
    let replaced = family::readers_cpu_ns() / 1_000_000_000 / (MOST_CPU_S / 2);
    assert!(status.started <= 1 + status.broken + replaced, "{} were started", status.started);
    process.rest();
    status.pid.into_iter().for_each(wait_for_end);
    let children = format!("/proc/self/task/{}/children", nix::unistd::gettid());
    assert_eq!(std::fs::read_to_string(children).unwrap().trim(), "");
}
