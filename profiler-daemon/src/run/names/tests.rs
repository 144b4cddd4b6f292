use profile_files::functions::functions;
use profile_files::pprof;
use profiler_core::aggregate::{Aggregator, Chain};
use profiler_core::process::ProcessTable;
use profiler_core::profile::{HowSampled, Outcome, SampleCounts};

use super::*;
use crate::objects::{ObjectStore, Symbols};

/// Ten stacks in twenty windows, of weights that no factor leaves whole.
fn collected() -> Collected {
    let mut processes = ProcessTable::default();
    processes.adopt(1, "a");
    let mut aggregator = Aggregator::default();
    for window in 1..=20 {
        for address in 1..=10 {
            let chain = Chain { kernel: &[], user: &[address], outcome: Outcome::Complete };
            aggregator.add(processes.get(1).unwrap(), chain, 1_000_003 * address + window);
        }
        aggregator.close_window(window * 500_000_000, 1.07);
    }
    Collected {
        charged_ns: 0.0,
        counted: aggregator,
        processes: processes.infos().into(),
        objects: ObjectStore::new(&Symbols::new(1 << 28)).snapshot(),
        generated: Generated::default(),
        span: 0..10_000_000_000,
        is_last: true,
    }
}

#[test]
fn the_windows_of_a_run_survive_its_file() {
    let run = Run {
        counts: SampleCounts { samples: 200, ..SampleCounts::default() },
        how: HowSampled { confidence: 0.95, ..HowSampled::default() },
        ..Run::default()
    };
    let profile = symbolize(collected(), 0.987_654_321, run, None, &CancelFlag::default(), &mut || ());
    let mut file = Vec::new();
    pprof::write(&profile, &mut file).unwrap();
    let read = pprof::read(file.as_slice()).unwrap();
    assert_eq!(read.windows.len(), 20);
    assert_eq!(read.stacks, profile.stacks);
    let sum_ns: u64 = profile.stacks.iter().map(|stack| stack.cpu_ns).sum();
    assert!((sum_ns as f64 / (collected().weight_ns() * 0.987_654_321) - 1.0).abs() < 1e-6);
    assert_eq!(functions(&read), functions(&profile));
}

/// Files that are mapped at one path, one after another, as processes of different file systems have them at the same time.
struct Copies {
    folder: tempfile::TempDir,
    store: ObjectStore,
    objects: Vec<ObjectSnapshot>,
}

impl Copies {
    fn new() -> Self {
        Self::with(&Symbols::new(1 << 28))
    }

    fn with(symbols: &Symbols) -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { folder, store: ObjectStore::new(symbols), objects: Vec::new() }
    }

    /// The C library that this test runs with; forged, one of its functions has another name.
    fn library(is_forged: bool) -> Vec<u8> {
        let maps = crate::sys::procfs::executable_maps(std::process::id()).unwrap();
        let path = maps.into_iter().map(|mapped| mapped.path).find(|path| path.contains("libc.so"));
        let mut bytes = std::fs::read(path.expect("linked with the C library")).unwrap();
        // Of a build of which this machine has no debug file.
        let file = object::File::parse(&*bytes).unwrap();
        let build_id = object::Object::build_id(&file).unwrap().unwrap().to_vec();
        let at = bytes.windows(build_id.len()).position(|part| part == build_id).unwrap();
        bytes[at..at + build_id.len()].iter_mut().for_each(|byte| *byte ^= 0xff);
        if is_forged {
            let name = b"\0qsort_r\0";
            let at = bytes.windows(name.len()).position(|text| text == name).unwrap();
            bytes[at + 1] = b'Q';
        }
        bytes
    }

    fn path(&self) -> std::path::PathBuf {
        self.folder.path().join("lib.so")
    }

    /// Maps a new file with these bytes, and returns its number.
    fn map(&mut self, bytes: &[u8]) -> usize {
        let number = self.objects.len();
        if number > 0 {
            std::fs::rename(self.path(), self.nth(number - 1)).unwrap();
        }
        std::fs::write(self.path(), bytes).unwrap();
        let inode = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(self.path()).unwrap());
        let file = profiler_core::record::FileId { major: 0, minor: 0, inode, generation: 0 };
        let path = self.path().to_string_lossy().into_owned();
        let pid = std::process::id();
        let mapped =
            profiler_core::record::Mapped { pid, start: 0x1000, len: 0x1000, file_offset: 0, file, path };
        let loaded = self.store.load(&mapped);
        self.objects.push(self.store.object(loaded.id).unwrap().clone());
        number
    }

    /// Where a file lies once another has its place.
    fn nth(&self, number: usize) -> std::path::PathBuf {
        self.folder.path().join(number.to_string())
    }

    fn cut(&self) -> Cut {
        let objects = self.store.snapshot();
        let naming = objects.names.begin();
        let aggregate = Aggregator::default().finish(1);
        Cut {
            aggregate,
            processes: Arc::default(),
            objects,
            generated: Generated::default(),
            keep_for_next: true,
            naming,
        }
    }

    fn compare(&self, number: usize) {
        self.cut().objects.names.compare(&self.objects[number]);
    }

    /// The functions in a stretch of the file.
    fn names(&self, number: usize) -> Vec<Option<String>> {
        let cut = self.cut();
        let (mut pause, cancel) = (|| (), CancelFlag::default());
        let mut names = Names::new(cut.objects.memory.clone(), None, cancel, &mut pause);
        let addresses: Vec<u64> = (0x28000..0x60000).step_by(0x40).collect();
        let (_, found) = names.in_object(&cut, &self.objects[number], &addresses);
        assert_eq!(found.len(), addresses.len());
        found.into_iter().map(|found| Some(found.ok()?[0].name.to_string())).collect()
    }

    fn is_shared(&self, number: usize) -> bool {
        self.objects[number].names.equal().is_some()
    }

    fn sources(&self) -> u64 {
        self.cut().objects.names.counts().sources
    }
}

fn has(names: &[Option<String>], name: &str) -> bool {
    names.iter().flatten().any(|found| found == name)
}

#[test]
fn files_that_hold_the_same_are_read_once() {
    let mut copies = Copies::new();
    let bytes = Copies::library(false);
    let first = copies.map(&bytes);
    let own = copies.names(first);
    assert!(has(&own, "qsort_r"), "{own:?}");
    for _ in 0..4 {
        let copy = copies.map(&bytes);
        assert_eq!(copies.names(copy), own);
        assert!(copies.is_shared(copy) && !copies.is_shared(first));
    }
    assert_eq!(copies.sources(), 2, "once for the first, and once for all that were compared");
}

#[test]
fn where_there_is_no_symbolizer_process_files_have_the_same_names() {
    let bytes = Copies::library(false);
    let of = |symbols: &Symbols| {
        let mut copies = Copies::with(symbols);
        let (first, copy) = (copies.map(&bytes), copies.map(&bytes));
        (copies.names(first), copies.names(copy))
    };
    let (apart, here) = (Symbols::new(1 << 28), Symbols::without_process(1 << 28));
    let names = of(&apart);
    assert!(has(&names.0, "qsort_r") && names.0 == names.1, "{names:?}");
    assert_eq!(of(&here), names);
    assert_eq!((apart.process_status().started, here.process_status().started), (1, 0));
    assert!(apart.process_status().obstacle.is_none() && here.process_status().obstacle.is_some());
}

#[test]
fn a_file_that_says_it_is_another_tells_its_own_names_and_no_others() {
    let mut copies = Copies::new();
    let (genuine, forged) = (Copies::library(false), Copies::library(true));
    let of = |bytes: &[u8], copies: &mut Copies| {
        let copy = copies.map(bytes);
        copies.names(copy)
    };
    for _ in 0..3 {
        let (own, lie) = (of(&genuine, &mut copies), of(&forged, &mut copies));
        assert!(has(&own, "qsort_r") && !has(&own, "Qsort_r"), "{own:?}");
        assert!(has(&lie, "Qsort_r") && !has(&lie, "qsort_r"), "{lie:?}");
    }
}

#[test]
fn a_file_that_changes_once_it_was_compared_lends_nobody_its_names() {
    let mut copies = Copies::new();
    let (genuine, forged) = (Copies::library(false), Copies::library(true));
    let own = copies.map(&genuine);
    let own = copies.names(own);
    let (changed, other) = (copies.map(&genuine), copies.map(&genuine));
    copies.compare(changed);
    copies.compare(other);
    assert!(copies.is_shared(changed) && copies.is_shared(other));
    // As through a mapping: no time tells.
    let file = std::fs::OpenOptions::new().write(true).open(copies.nth(changed)).unwrap();
    let modified = file.metadata().unwrap().modified().unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &forged, 0).unwrap();
    file.set_modified(modified).unwrap();
    assert!(has(&copies.names(changed), "Qsort_r"), "they are its own");
    assert!(!copies.is_shared(changed) && copies.is_shared(other));
    assert_eq!(copies.names(other), own);
    assert!(copies.is_shared(other));
}

#[test]
#[allow(clippy::print_stderr, reason = "it says why it skips")]
fn who_has_a_debug_file_of_his_own_is_named_on_his_own() {
    let mut copies = Copies::new();
    let bytes = Copies::library(false);
    let Some(link) = debug_link(&bytes) else {
        return eprintln!("skipped: the C library names no debug file");
    };
    let own = copies.map(&bytes);
    let own = copies.names(own);
    let copy = copies.map(&bytes);
    assert_eq!(copies.names(copy), own);
    assert!(copies.is_shared(copy));
    std::fs::write(copies.folder.path().join(link), "anything").unwrap();
    assert_eq!(copies.names(copy), own, "what it holds is not of this build");
    assert!(!copies.is_shared(copy));
}

/// The name of the debug file that a library states.
fn debug_link(bytes: &[u8]) -> Option<String> {
    let file = object::File::parse(bytes).ok()?;
    let (name, _) = object::Object::gnu_debuglink(&file).ok()??;
    String::from_utf8(name.to_vec()).ok()
}

/// A cut of the last file that was mapped: a stack for each stretch of it, innermost first with a frame of the kernel.
fn cut_of(copies: &Copies, addresses: &[u64]) -> Cut {
    use profiler_core::aggregate::Stack;
    let mut frames = profiler_core::stack::FrameTable::default();
    let object = ObjectId(ObjectId::FIRST_FILE + copies.objects.len() as u32 - 1);
    let kernel = frames.intern(Frame { object: ObjectId::KERNEL, address: 0xffff_ffff_0000_0001 });
    let generated = ObjectId::generated_by(ProcessIndex(1));
    let generated = frames.intern(Frame { object: generated, address: 0x7000 });
    let mut stacks = Vec::new();
    for (&address, at) in addresses.iter().zip(0..) {
        let own = frames.intern(Frame { object, address });
        let frames = if at % 2 == 0 { Box::from([kernel, own]) } else { Box::from([own, generated]) };
        let outcome = if at % 3 == 0 { Outcome::Complete } else { Outcome::Broken };
        stacks.push(Stack { process: ProcessIndex(at % 2), outcome, frames });
    }
    let tally = |at: usize| Tally { samples: at as u64 + 1, weight_ns: 1e6 * (at as f64 + 1.0) };
    let tallies = (0..stacks.len()).map(|at| vec![(at as u32 % 2, tally(at))]).collect();
    let window = |at: u64| profiler_core::profile::Window { start_ns: at * 500, end_ns: (at + 1) * 500 };
    let aggregate = Aggregate { frames, stacks, windows: vec![window(0), window(1)], tallies };
    let process = |pid| ProcessInfo { pid, comm: format!("p{pid}") };
    let processes = vec![process(std::process::id()), process(7)].into();
    Cut { aggregate, processes, ..copies.cut() }
}

/// Written without names, and named again by a process that knows nothing of it.
fn named_later(cut: &Cut, run: &Run) -> SymbolizedProfile {
    let mut file = Vec::new();
    pprof::write(&cut.unnamed(1.0, run), &mut file).unwrap();
    let read = pprof::read(file.as_slice()).unwrap();
    let (cut, run) = Cut::of_unnamed(read, true, &Symbols::new(1 << 28));
    symbolize_cut(cut, 1.0, run, None, &CancelFlag::default(), &mut || ())
}

#[test]
fn a_window_that_was_written_without_names_is_named_later_as_it_would_have_been() {
    let mut copies = Copies::new();
    copies.map(&Copies::library(false));
    let addresses: Vec<u64> = (0x28000..0x60000).step_by(0x400).collect();
    let (cut, again) = (cut_of(&copies, &addresses), cut_of(&copies, &addresses));
    let run = Run {
        counts: SampleCounts { samples: 200, ..SampleCounts::default() },
        how: HowSampled { confidence: 0.95, ..HowSampled::default() },
        duration_s: 1.0,
        ..Run::default()
    };
    let later = named_later(&again, &run);
    let now = symbolize_cut(cut, 1.0, run, None, &CancelFlag::default(), &mut || ());
    let named = functions(&later).functions.iter().filter(|f| !f.name.contains("+0x")).count();
    assert!(named > 10, "{named} functions have names");
    let lines = |profile: &SymbolizedProfile| -> Vec<_> {
        let name = |line: &Line| (profile.functions[line.function.0 as usize].name.clone(), line.line);
        let frame = |frame: &LocationIndex| {
            let location = &profile.locations[frame.0 as usize];
            let module = profile.modules[location.module.0 as usize].clone();
            (location.address, module, location.lines.iter().map(name).collect::<Vec<_>>())
        };
        let stack = |stack: &WeightedStack| {
            let process = profile.processes[stack.process.0 as usize].clone();
            let frames: Vec<_> = stack.frames.iter().map(frame).collect();
            (process, frames, stack.outcome, stack.cpu_ns, stack.samples, stack.windows.clone())
        };
        profile.stacks.iter().map(stack).collect()
    };
    assert_eq!(lines(&later), lines(&now));
    assert_eq!((later.windows, later.run.how.confidence), (now.windows, 0.95));
}

#[test]
fn a_module_is_as_long_as_its_file_says_whatever_was_sampled() {
    let mut copies = Copies::new();
    copies.map(&Copies::library(false));
    let image = profiler_core::elf::ElfImage::parse_bytes(&std::fs::read(copies.path()).unwrap()).unwrap();
    for address in [0x28000, 0x60000] {
        let cut = cut_of(&copies, &[address]);
        let profile = symbolize_cut(cut, 1.0, Run::default(), None, &CancelFlag::default(), &mut || ());
        let ends: Vec<(&str, u64)> =
            profile.modules.iter().map(|module| (module.name.as_str(), module.end)).collect();
        assert!(ends.contains(&("lib.so", image.end_svma())), "{ends:?}");
        assert!(ends.iter().all(|(name, end)| *name == "lib.so" || *end == 0), "{ends:?}");
    }
    assert!(image.end_svma() > 0x60000);
}

#[test]
fn a_file_that_is_another_by_then_lends_no_names() {
    let mut copies = Copies::new();
    copies.map(&Copies::library(false));
    let addresses: Vec<u64> = (0x28000..0x30000).step_by(0x400).collect();
    let reason = |copies: &Copies| {
        let profile = named_later(&cut_of(copies, &addresses), &Run::default());
        let of_file = |location: &&Location| profile.modules[location.module.0 as usize].name == "lib.so";
        let mut reasons: Vec<_> = profile.locations.iter().filter(of_file).collect();
        reasons.dedup_by_key(|location| location.unknown.clone());
        assert_eq!(reasons.len(), 1, "{reasons:?}");
        reasons[0].unknown.clone().unwrap().reason
    };
    // The same bytes in another file, as after an upgrade.
    let bytes = std::fs::read(copies.path()).unwrap();
    std::fs::rename(copies.path(), copies.nth(9)).unwrap();
    std::fs::write(copies.path(), bytes).unwrap();
    assert!(reason(&copies).contains("replaced"));
    std::fs::remove_file(copies.path()).unwrap();
    assert!(reason(&copies).contains("deleted"));
}

#[test]
fn addresses_of_a_kernel_that_runs_no_more_are_not_looked_up_in_this_one() {
    let mut copies = Copies::new();
    copies.map(b"\x7fELF, but no program");
    let unnamed = cut_of(&copies, &[0x1000]).unnamed(1.0, &Run::default());
    let (cut, run) = Cut::of_unnamed(unnamed, false, &Symbols::new(1 << 28));
    let profile = symbolize_cut(cut, 1.0, run, None, &CancelFlag::default(), &mut || ());
    let kernel = profile.modules.iter().position(|module| module.name == "[kernel]").unwrap();
    let of_kernel = |location: &&Location| location.module.0 as usize == kernel;
    let location = profile.locations.iter().find(of_kernel).unwrap();
    assert!(location.unknown.as_ref().unwrap().reason.contains("was restarted"), "{location:?}");
}
