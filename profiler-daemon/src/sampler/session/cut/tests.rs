//! Sessions that are cut: of a real process, whose stacks are sampled or made up.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use profiler_core::aggregate::Chain;
use profiler_core::profile::{Outcome, Run, SymbolizedProfile};
use profiler_core::rate::Dither;
use profiler_core::record::{FileId, Mapped, Record, Task};
use profiler_core::unwind::method::{Method, MethodChoice};

use super::*;
use crate::objects::Symbols;
use crate::objects::names::NameCounts;
use crate::run::names::{CancelFlag, symbolize};
use crate::sampler::access::probe_access;
use crate::sampler::perf::PerfSampler;
use crate::sampler::source::{Attachment, ClockSettings, Drained, Source};
use crate::sys::procfs;

mod cost;
mod shares;

const MEMORY: u64 = 64 << 20;
/// No process has such a number.
const NOBODY: u32 = 5_000_000;
/// Where the code lies that a process generates.
const GENERATED: u64 = 0x7000_0000;

/// A process that is killed when dropped.
struct Target(Child);

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        let _ = std::fs::remove_file(format!("/tmp/perf-{}.map", self.0.id()));
    }
}

impl Target {
    fn start(command: &str) -> Self {
        Self(Command::new("sh").args(["-c", command]).spawn().unwrap())
    }

    fn idle() -> Self {
        let target = Self::start("exec sleep 1000");
        // Until the shell has become it, and its libraries are mapped: which nothing tells.
        while procfs::comm(target.pid()).as_deref() != Some("sleep") || target.libc().is_empty() {
            std::thread::sleep(Duration::from_millis(1));
        }
        target
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Addresses in the code of its C library.
    fn libc(&self) -> Vec<u64> {
        let maps = procfs::executable_maps(self.pid()).unwrap_or_default();
        let libc =
            maps.iter().find(|mapped| mapped.path.contains("libc.so") || mapped.path.contains("libc-"));
        libc.map_or(Vec::new(), |libc| (libc.start..libc.start + libc.len).step_by(64).collect())
    }
}

/// A session that follows a target, and its stacks are made up.
fn session(target: &Target, memory: u64) -> Session {
    sharing(target, &Symbols::new(memory))
}

/// The same beside others.
fn sharing(target: &Target, symbols: &Symbols) -> Session {
    let mut session = Session::new(MethodChoice::fixed(Method::Fp), symbols);
    session.adopt(target.pid()).unwrap();
    map_generated(&mut session, target.pid());
    session.times.start_ns = clock::monotonic_ns();
    session.times.range_start_ns = session.times.start_ns;
    session
}

/// A process generates code.
fn map_generated(session: &mut Session, pid: u32) {
    let (file, path) = (FileId::default(), "//anon".to_owned());
    session.mapped(&Mapped { pid, start: GENERATED, len: 1 << 24, file_offset: 0, file, path });
}

/// A process says what it generated.
fn write_perf_map(target: &Target, name: &str) {
    let path = format!("/tmp/perf-{}.map", target.pid());
    std::fs::write(path, format!("{GENERATED:x} 100 {name}\n")).unwrap();
}

fn add(session: &mut Session, pid: u32, kernel: &[u64], user: &[u64], weight_ns: u64) {
    let process = session.processes.get(pid).unwrap();
    session.code.jit.sampled(process.index, pid, &session.code.objects.roots);
    session.counted.aggregator.add(process, Chain { kernel, user, outcome: Outcome::Complete }, weight_ns);
}

fn name(collected: Collected) -> SymbolizedProfile {
    symbolize(collected, 1.0, Run::default(), None, &CancelFlag::default(), &mut || ())
}

/// What each stack had, by the names of its functions.
fn by_names(profile: &SymbolizedProfile) -> BTreeMap<(u32, Vec<String>), (u64, u64)> {
    let mut sums: BTreeMap<(u32, Vec<String>), (u64, u64)> = BTreeMap::new();
    for stack in &profile.stacks {
        let lines = stack.frames.iter().flat_map(|frame| &profile.locations[frame.0 as usize].lines);
        let names = lines.map(|line| profile.functions[line.function.0 as usize].name.clone()).collect();
        let pid = profile.processes[stack.process.0 as usize].pid;
        let sum = sums.entry((pid, names)).or_default();
        *sum = (sum.0 + stack.samples, sum.1 + stack.cpu_ns);
    }
    sums
}

fn counts(session: &Session) -> NameCounts {
    session.code.objects.names.counts()
}

/// Gives both sessions what the rings hold.
fn drain(sampler: &mut PerfSampler, until_ns: u64, sessions: &mut [Session; 2]) {
    sampler.drain(until_ns, &mut |drained| {
        let again = match &drained {
            Drained::Record(record, weight_ns) => Drained::Record(Record::clone(record), *weight_ns),
            Drained::Double => Drained::Double,
            Drained::Undecodable => Drained::Undecodable,
            Drained::Report(record, claim) => Drained::Report(record.clone(), claim),
            Drained::Owed(count) => Drained::Owed(*count),
            Drained::LostReports(count) => Drained::LostReports(*count),
        };
        sessions[0].handle(drained);
        sessions[1].handle(again);
    });
}

/// Samples are read many at a time: windows end where they were taken all the same.
#[test]
fn windows_end_by_the_time_of_samples_and_not_of_their_reading() {
    const MS: u64 = 1_000_000;
    let target = Target::idle();
    let mut session = session(&target, MEMORY);
    session.times.window_end_ns = session.times.start_ns + stats::window_ns(0);
    let start_ns = session.times.start_ns;
    for at_ms in (1..=1_200).chain([9_000]) {
        session.end_windows_until(start_ns + at_ms * MS);
        add(&mut session, target.pid(), &[], &[GENERATED], MS);
    }
    let (windows, _) = session.function_parts(|frame| frame);
    let samples: Vec<u64> = windows.iter().map(|window| window.samples).collect();
    assert!(samples.len() >= 25, "{samples:?}");
    assert!(samples.iter().all(|samples| (1..=101).contains(samples)), "none is empty: {samples:?}");
    assert_eq!(samples.iter().sum::<u64>(), 1_200, "the last one is still open");
}

#[test]
#[allow(clippy::print_stderr, reason = "it says why it skips")]
fn several_cuts_of_a_live_session_are_one_run() {
    let Ok(access) = probe_access() else {
        eprintln!("skipped: not permitted to sample");
        return;
    };
    let target = Target::start("while :; do :; done");
    let mut sessions = [(); 2].map(|()| Session::new(MethodChoice::fixed(Method::Fp), &Symbols::new(MEMORY)));
    let settings = ClockSettings { period_ns: 1_000_000, method: Method::Fp, stack_bytes: 0, mappings: true };
    let attachment = Attachment::Tasks(vec![target.pid()]);
    let mut sampler = PerfSampler::open(access, attachment, settings, Dither::new(1)).unwrap();
    sampler.start().unwrap();
    for session in &mut sessions {
        session.adopt(target.pid()).unwrap();
        session.begin();
    }
    sessions[0].times.start_ns = sessions[1].times.start_ns; // both count the same samples
    let mut parts = Vec::new();
    let began = Instant::now();
    for part in 1..=5 {
        while sessions[1].counts.samples < part * 60 && began.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(5));
            drain(&mut sampler, clock::monotonic_ns() - 2_000_000, &mut sessions);
        }
        parts.push(sessions[1].cut(clock::monotonic_ns()));
    }
    sampler.stop();
    drain(&mut sampler, u64::MAX, &mut sessions);
    let [whole, last] = sessions;
    let (samples, lost) = (whole.counts.samples, whole.counts.lost);
    drop(target); // names are found without it
    parts.push(last.finish());
    assert!(parts.windows(2).all(|pair| pair[0].span.end == pair[1].span.start));
    let weight_ns: f64 = parts.iter().map(Collected::weight_ns).sum();
    let whole = whole.finish();
    if lost == 0 {
        assert_eq!(weight_ns, whole.weight_ns());
    }
    let mut sums: BTreeMap<_, (u64, u64)> = BTreeMap::new();
    for (stack, (samples, cpu_ns)) in parts.into_iter().flat_map(|part| by_names(&name(part))) {
        let sum = sums.entry(stack).or_default();
        *sum = (sum.0 + samples, sum.1 + cpu_ns);
    }
    assert_eq!(sums.values().map(|(samples, _)| samples).sum::<u64>(), samples);
    assert!(samples >= 300, "{samples}");
    let whole = by_names(&name(whole));
    let kernel_apart = |sums: &BTreeMap<(u32, Vec<String>), (u64, u64)>| {
        let of_user =
            sums.iter().filter(|((_, names), _)| !names.iter().any(|name| name.contains("[kernel]")));
        of_user
            .map(|(stack, sum)| (stack.clone(), (sum.0, if lost == 0 { sum.1 } else { 0 })))
            .collect::<Vec<_>>()
    };
    assert_eq!(kernel_apart(&sums), kernel_apart(&whole));
}

/// A perf map may have hundreds of megabytes.
#[test]
fn perf_maps_are_read_at_the_pace_of_all_naming_and_not_once_it_is_cancelled() {
    let target = Target::idle();
    let mut session = session(&target, MEMORY);
    write_perf_map(&target, "made");
    let mut cut = || {
        add(&mut session, target.pid(), &[], &[GENERATED], 1_000);
        session.cut(clock::monotonic_ns())
    };
    let (cancelled, pauses) = (CancelFlag::default(), std::cell::Cell::new(0));
    let named = |cut, cancel: &CancelFlag| {
        symbolize(cut, 1.0, Run::default(), None, cancel, &mut || pauses.set(pauses.get() + 1))
    };
    cancelled.set();
    let left = named(cut(), &cancelled);
    assert!(left.locations[0].unknown.as_ref().unwrap().reason.contains("before its name was looked for"));
    assert_eq!(pauses.get(), 0);
    let read = named(cut(), &CancelFlag::default());
    assert_eq!((read.functions[0].name.as_str(), pauses.get()), ("made", 1));
    let known = named(cut(), &cancelled);
    assert_eq!(known.functions[0].name, "made", "nothing has to be read for it");
}

#[test]
fn what_was_named_once_is_named_again_for_nothing() {
    let target = Target::idle();
    let mut session = session(&target, MEMORY);
    write_perf_map(&target, "made");
    let libc = target.libc();
    let sample = |session: &mut Session| {
        for &address in &libc[..200] {
            add(session, target.pid(), &[u64::MAX - 0x1000], &[address, libc[300], GENERATED], 1_000);
        }
    };
    sample(&mut session);
    let first = name(session.cut(clock::monotonic_ns()));
    let after_first = counts(&session);
    assert!(after_first.sources >= 1 && after_first.lists == 1, "{after_first:?}");
    assert!(first.functions.iter().any(|function| function.name == "made"));
    let opened = session.code.objects.once_ns();
    for _ in 0..5 {
        sample(&mut session);
        let again = name(session.cut(clock::monotonic_ns()));
        assert_eq!(by_names(&again), by_names(&first));
        assert_eq!(again.modules, first.modules);
    }
    let NameCounts { namings, sources, lists, list_bytes, .. } = counts(&session);
    assert_eq!((namings, sources), (6, after_first.sources), "nothing was opened");
    assert_eq!((lists, list_bytes), (1, after_first.list_bytes), "nor read");
    assert_eq!(session.code.objects.once_ns(), opened);
    for &new in &libc[400..410] {
        add(&mut session, target.pid(), &[], &[new], 1_000);
        name(session.cut(clock::monotonic_ns()));
    }
    let NameCounts { sources, reused, loaded_bytes, .. } = counts(&session);
    assert_eq!((sources, reused), (after_first.sources, 10), "they are new, and the tables are there");
    let memory = &session.code.objects.memory;
    assert!(loaded_bytes > 0 && loaded_bytes < memory.held() && memory.peak() <= MEMORY);
}

#[test]
fn targets_that_run_the_same_code_read_and_name_it_once() {
    let targets = [Target::idle(), Target::idle()];
    let symbols = Symbols::new(MEMORY);
    let [mut one, mut other] = targets.each_ref().map(|target| sharing(target, &symbols));
    let libc = targets.each_ref().map(Target::libc);
    let sample = |session: &mut Session, at: usize, addresses: std::ops::Range<usize>| {
        libc[at][addresses].iter().for_each(|&address| add(session, targets[at].pid(), &[], &[address], 7));
        by_names(&name(session.cut(clock::monotonic_ns())))
            .into_keys()
            .map(|(_, names)| names)
            .collect::<Vec<_>>()
    };
    let first = sample(&mut one, 0, 0..200);
    let read = counts(&one);
    assert_eq!(sample(&mut other, 1, 0..200), first);
    assert_eq!((counts(&other).sources, counts(&other).reused), (read.sources, 0), "all of it is known");
    sample(&mut other, 1, 300..310);
    assert_eq!((counts(&one).sources, counts(&one).reused), (read.sources, 1), "of the other's file");
    drop(one); // whose file it is
    assert!(counts(&other).loaded_bytes == 0 && counts(&other).kept_bytes >= read.kept_bytes);
    sample(&mut other, 1, 0..200);
    assert_eq!(counts(&other).sources, read.sources);
    sample(&mut other, 1, 400..410);
    assert_eq!((counts(&other).sources, counts(&other).reused), (read.sources + 1, 1), "its own");
    drop((other, targets));
    assert_eq!(symbols.held_bytes(), 0);
}

#[test]
fn a_cut_is_named_elsewhere_after_its_session_and_its_process() {
    let target = Target::idle();
    let pid = target.pid();
    let mut session = session(&target, MEMORY);
    write_perf_map(&target, "made");
    let libc = target.libc();
    let sample = |session: &mut Session| {
        libc.iter().step_by(50).for_each(|&address| add(session, pid, &[], &[address, GENERATED], 7));
    };
    sample(&mut session);
    let cut = session.cut(clock::monotonic_ns());
    sample(&mut session);
    session.refresh_code();
    (0..200).for_each(|_| session.refresh_code()); // until the list was found
    drop(target);
    session.program_ended(pid);
    session.processes.forget(pid);
    let after_the_end = session.cut(clock::monotonic_ns());
    drop(session);
    let elsewhere = std::thread::spawn(move || [by_names(&name(after_the_end)), by_names(&name(cut))]);
    let [after_the_end, cut] = elsewhere.join().unwrap();
    let names = |sums: &BTreeMap<(u32, Vec<String>), (u64, u64)>| sums.keys().cloned().collect::<Vec<_>>();
    assert!(names(&after_the_end).iter().all(|(of, names)| *of == pid && names.last().unwrap() == "made"));
    let inner = |sums: &BTreeMap<(u32, Vec<String>), (u64, u64)>| -> Vec<String> {
        names(sums).into_iter().map(|(_, names)| names[0].clone()).collect()
    };
    assert_eq!(inner(&cut), inner(&after_the_end));
    assert!(inner(&cut).iter().any(|name| !name.contains('+')), "{cut:?}");
}

#[test]
fn names_that_gave_way_are_read_again() {
    let target = Target::idle();
    let memory = 4 << 20; // the library, and names of a part of it
    let mut session = session(&target, memory);
    let libc: Vec<u64> = target.libc().into_iter().step_by(2).collect();
    let half = libc.len() / 2;
    let mut first = Vec::new();
    for round in 0..3 {
        for (part, addresses) in libc.chunks(half).take(2).enumerate() {
            addresses.iter().for_each(|&address| add(&mut session, target.pid(), &[], &[address], 1));
            let named = by_names(&name(session.cut(clock::monotonic_ns())));
            match round {
                0 => first.push(named),
                _ => assert_eq!(named, first[part], "round {round}"),
            }
            assert!(counts(&session).kept_bytes <= memory / 4);
        }
    }
    let counts = counts(&session);
    assert!(counts.given_up > 0 && counts.read_again > 0, "{counts:?}");
    assert!(session.code.objects.memory.peak() <= memory && session.code.objects.memory.left() >= memory / 4);
}

#[test]
fn a_thousand_cuts_of_code_that_changes_take_no_more_than_a_few() {
    const CROWD: u32 = 1_200;
    let target = Target::idle();
    let mut session = session(&target, 2 << 20);
    let path = format!("/tmp/perf-{}.map", target.pid());
    let mut list = std::fs::File::create(&path).unwrap();
    let libc = target.libc();
    let mut parts = libc.chunks(libc.len() / 40).cycle();
    let mut kept = Vec::new();
    for cut in 0..1_000u32 {
        let processes = NOBODY..NOBODY + if cut % 10 == 0 { CROWD } else { 3 };
        for pid in processes.clone() {
            let task = Task { pid, parent_pid: target.pid(), tid: pid, time_ns: 0 };
            session.processes.forked(task);
            session.code_inherited(task);
            add(&mut session, pid, &[], &[GENERATED + u64::from(pid - NOBODY)], 1);
        }
        // The code of this minute lies where that of some minute before did.
        let code = GENERATED + u64::from(cut % 50) * 0x100;
        writeln!(list, "{code:x} 100 made in {cut}").unwrap();
        add(&mut session, target.pid(), &[], &[code], 1_000);
        if cut % 20 == 0 {
            let part = parts.next().unwrap_or_default();
            part.iter().for_each(|&address| add(&mut session, target.pid(), &[], &[address], 1_000));
        }
        for pid in processes {
            session.program_ended(pid);
            session.processes.forget(pid);
        }
        let profile = name(session.cut(clock::monotonic_ns()));
        assert!(profile.functions.iter().any(|function| function.name == format!("made in {cut}")));
        assert!(session.processes.infos().len() <= 1_002, "{}", session.processes.infos().len());
        assert_eq!((session.counted.aggregator.frames().frames().len(), session.code.jit.programs()), (0, 1));
        kept.push(counts(&session).kept_bytes);
    }
    let memory = &session.code.objects.memory;
    assert!(kept.iter().all(|&kept| kept <= memory.cap() / 4), "{kept:?}");
    assert!(memory.peak() <= memory.cap() && counts(&session).given_up > 0, "{:?}", counts(&session));
    assert!(memory.held() <= memory.cap() / 2, "nothing but what is kept");
}

/// A prefork server's children end many at a time, on the thread that samples.
#[test]
fn of_the_perf_maps_of_many_programs_that_end_a_bounded_part_is_read_at_once() {
    const CHILDREN: u32 = 70;
    let target = Target::idle();
    let mut session = session(&target, MEMORY);
    let mut list: String = (0..100_000u64).map(|at| format!("{:x} 10 old code {at}\n", at * 16)).collect();
    for child in 0..CHILDREN {
        writeln!(&mut list, "{:x} 10 made for {child}", GENERATED + u64::from(child) * 16).unwrap();
    }
    assert!(list.len() > 2 << 20, "{}", list.len());
    std::fs::write(format!("/tmp/perf-{}.map", target.pid()), &list).unwrap();
    session.code.jit.sampled(
        session.processes.get(target.pid()).unwrap().index,
        target.pid(),
        &session.code.objects.roots,
    );
    (0..200).for_each(|_| session.refresh_code()); // until the list was found
    for child in 0..CHILDREN {
        let pid = NOBODY + child;
        let task = Task { pid, parent_pid: target.pid(), tid: pid, time_ns: 0 };
        session.processes.forked(task);
        session.code_inherited(task);
        add(&mut session, pid, &[], &[GENERATED + u64::from(child) * 16], 1);
    }
    for pid in NOBODY..NOBODY + CHILDREN {
        session.program_ended(pid);
        session.processes.forget(pid);
    }
    let NameCounts { lists, list_bytes, .. } = counts(&session);
    assert!(lists > 0 && list_bytes <= 8 << 20, "{list_bytes} bytes");
    let profile = name(session.cut(clock::monotonic_ns()));
    let named = profile.functions.iter().filter(|function| function.name.starts_with("made for ")).count();
    assert!((2..CHILDREN as usize).contains(&named), "{named}");
    let reasons: Vec<&str> =
        profile.locations.iter().filter_map(|location| Some(&*location.unknown.as_ref()?.reason)).collect();
    assert!(reasons.iter().any(|reason| reason.contains("too many programs")), "{reasons:?}");
}
