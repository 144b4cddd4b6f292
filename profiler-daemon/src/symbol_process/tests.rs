use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use symbolizer::{NoDebugFiles, Object};

use super::message::MOST_ADDRESSES;
use super::*;
use crate::sys::confine::confine;
use crate::sys::{family, procfs};

mod mutations;

/// What [`PROGRAM`] runs.
#[test]
#[ignore = "the symbolizer process of the other tests"]
fn serve() {
    let _ = run();
}

struct NoFiles;

impl OpenDebugFiles for NoFiles {
    fn open(&self, _: &Path) -> Option<File> {
        None
    }

    fn fetch(&self, _: &str) -> Option<File> {
        None
    }
}

/// The C library that this test runs with, which every process has mapped.
fn library() -> PathBuf {
    let maps = procfs::executable_maps(std::process::id()).unwrap();
    let path = maps.into_iter().map(|mapped| mapped.path).find(|path| path.contains("libc.so"));
    path.expect("linked with the C library").into()
}

fn load_from(
    process: &SymbolProcess,
    path: &Path,
    files: Arc<dyn OpenDebugFiles>,
) -> Result<There, ObjectNotRead> {
    load_within(1 << 28, process, path, files)
}

fn load_within(
    most_bytes: u64,
    process: &SymbolProcess,
    path: &Path,
    files: Arc<dyn OpenDebugFiles>,
) -> Result<There, ObjectNotRead> {
    let file = File::open(path).unwrap();
    let path = path.to_str().unwrap();
    let wanted =
        WantedObject { file: &file, path, identity: None, limits: Limits::default(), print: None, files };
    process.load(wanted, most_bytes)
}

fn load(process: &SymbolProcess, path: &Path) -> Result<There, ObjectNotRead> {
    load_from(process, path, Arc::new(NoFiles))
}

fn addresses() -> Vec<u64> {
    (0x28000..0x160000_u32).step_by(0x20).rev().map(u64::from).collect()
}

fn signal(process: &SymbolProcess, signal: Signal) -> u32 {
    let pid = process.status().pid.expect("it runs");
    kill(Pid::from_raw(pid as i32), signal).unwrap();
    pid
}

fn wait_for_end(pid: u32) {
    let until = Instant::now() + Duration::from_secs(20);
    while !procfs::has_ended(pid) {
        assert!(Instant::now() < until, "{pid} lives on");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn impatient() -> SymbolProcess {
    SymbolProcess::with(PROGRAM, Patience { still: Duration::from_secs(10), ..Patience::default() })
}

fn is_named(found: &Result<Vec<Symbolized>, Gone>) -> bool {
    found.as_ref().is_ok_and(|found| found.iter().any(|found| matches!(found, Symbolized::Known(_))))
}

#[test]
fn names_from_the_process_are_those_that_we_would_have_read() {
    let (process, path) = (SymbolProcess::default(), library());
    let file = File::open(&path).unwrap();
    let here = Object::load(&file, &path, &NoDebugFiles).unwrap();
    let mut there = load(&process, &path).unwrap();
    assert_eq!(there.facts.build_id.as_deref(), here.build_id());
    assert!(there.facts.held_bytes > 0 && !there.is_partial);
    let addresses = addresses();
    assert!(addresses.len() > MOST_ADDRESSES, "more than one request");
    let found = there.look_up(&addresses).unwrap();
    assert!(found == here.symbolize_all(&addresses));
    assert!(found.iter().any(|found| matches!(found, Symbolized::Known(_))));
    assert_eq!(process.status().started, 1);
}

/// Its own address space, so that what is dropped is no stranger's.
#[test]
fn its_memory_is_ours_while_it_runs_and_its_time_for_ever() {
    let process = SymbolProcess::default();
    let before_ns = family::readers_cpu_ns();
    let mut there = load(&process, &library()).unwrap();
    there.look_up(&addresses()).unwrap();
    let pid = process.status().pid.unwrap();
    assert!(family::is_ours(pid));
    let used_ns = clock::process_cpu_ns(pid).unwrap();
    assert!(used_ns > 0 && family::readers_cpu_ns() >= before_ns + used_ns);
    process.rest();
    assert!(!family::is_ours(pid));
    wait_for_end(pid);
    assert!(family::readers_cpu_ns() >= before_ns + used_ns);
}

#[test]
fn a_process_that_has_used_up_what_it_may_is_stopped_until_there_is_more() {
    let process = impatient();
    let states = Arc::new(Mutex::new(Vec::new()));
    let (seen, of) = (Arc::clone(&states), process.clone());
    process.pace(Arc::new(move |_| {
        let pid = of.status().pid.expect("it runs");
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let mut seen = lock(&seen);
        seen.push(stat.rsplit(") ").next().and_then(|state| state.chars().next()).unwrap());
        seen.len() % 4 == 0
    }));
    let large = load(&process, &std::env::current_exe().unwrap());
    assert!(large.is_ok_and(|large| large.facts.has_debug_info));
    assert!(lock(&states).contains(&'T'), "{:?}", lock(&states));
    process.pace(Arc::new(|_| true));
    assert!(is_named(&load(&process, &library()).unwrap().look_up(&addresses())));
    assert_eq!((process.status().started, process.status().broken), (1, 0));
}

#[test]
fn a_file_that_the_process_stands_still_for_is_read_less_and_less() {
    let (process, path, other) = (impatient(), library(), std::env::current_exe().unwrap());
    let mut of_other = load(&process, &other).unwrap();
    let mut there = load(&process, &path).unwrap();
    let stopped = signal(&process, Signal::SIGSTOP);
    assert_eq!(there.look_up(&addresses()), Err(Gone));
    wait_for_end(stopped);
    let status = process.status();
    assert_eq!((status.broken, status.pid), (1, None));
    let problem = status.problems().concat();
    assert!(problem.contains("made no progress") && problem.contains("symbol table alone"), "{problem}");
    assert_eq!(process.take_notes().len(), 1);

    // The others are read again, and wholly.
    assert_eq!(of_other.look_up(&[0x1234]), Err(Gone), "it was in the process that ended");
    assert!(!load(&process, &other).unwrap().is_partial);
    let mut partial = load(&process, &path).unwrap();
    assert!(partial.is_partial && is_named(&partial.look_up(&addresses())));

    signal(&process, Signal::SIGSTOP);
    assert_eq!(partial.look_up(&addresses()), Err(Gone));
    let given_up = load(&process, &path).map(|_| ()).unwrap_err();
    assert!(
        matches!(&given_up, ObjectNotRead::GivenUp(how) if how.contains("made no progress")),
        "{given_up:?}"
    );
    assert!(load(&process, &other).is_ok());
    assert_eq!(process.status().broken, 2);
}

#[test]
fn a_process_that_is_killed_between_two_requests_is_no_files_fault() {
    let (process, path) = (SymbolProcess::default(), library());
    let mut there = load(&process, &path).unwrap();
    wait_for_end(signal(&process, Signal::SIGKILL));
    assert_eq!(there.look_up(&addresses()), Err(Gone));
    let mut again = load(&process, &path).unwrap();
    assert!(!again.is_partial && is_named(&again.look_up(&addresses())));
    let status = process.status();
    assert_eq!((status.broken, status.started), (0, 2));
    assert!(status.problems().is_empty());
}

/// An ELF file that has a symbol table and names of this length, none of which takes room on the disk.
fn of_symbols(bytes: u64) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let mut header = b"\x7fELF\x02\x01\x01".to_vec();
    header.resize(16, 0);
    let machine = if cfg!(target_arch = "x86_64") { 62_u16 } else { 183 };
    header.extend([3_u16.to_le_bytes(), machine.to_le_bytes()].concat());
    header.extend(1_u32.to_le_bytes());
    header.extend([0_u64, 0, 64].map(u64::to_le_bytes).concat());
    header.extend(0_u32.to_le_bytes());
    header.extend([64_u16, 56, 0, 64, 3, 0].map(u16::to_le_bytes).concat());
    let section = |kind: u32, link: u32, offset: u64, size: u64, entry: u64| {
        let mut section = [0, kind].map(u32::to_le_bytes).concat();
        section.extend([0, 0, offset, size].map(u64::to_le_bytes).concat());
        section.extend([link, 0].map(u32::to_le_bytes).concat());
        section.extend([8, entry].map(u64::to_le_bytes).concat());
        section
    };
    header.extend(section(0, 0, 0, 0, 0));
    header.extend(section(2, 2, 4096, bytes, 24));
    header.extend(section(3, 0, 4096, bytes, 0));
    file.write_all(&header).unwrap();
    file.as_file().set_len(4096 + bytes).unwrap();
    file
}

#[test]
fn a_file_that_takes_more_memory_than_there_is_ends_its_own_reading_alone() {
    let process = SymbolProcess::default();
    let large = of_symbols(24 << 23);
    let load_large = || load_within(0, &process, large.path(), Arc::new(NoFiles)).map(|_| ());
    assert_eq!(load_large(), Err(ObjectNotRead::Gone));
    assert_eq!(load_large(), Err(ObjectNotRead::Gone));
    let given_up = load_large().unwrap_err();
    assert!(matches!(&given_up, ObjectNotRead::GivenUp(how) if how.contains("SIGABRT")), "{given_up:?}");
    assert!(is_named(&load(&process, &library()).unwrap().look_up(&addresses())));
    assert_eq!(process.status().broken, 2);
}

/// A library of one function, and DWARF 4 of one unit for it: further attributes of the unit (forms and values),
/// abbreviations, entries, and further sections.
fn unit([forms, values]: [&str; 2], abbreviations: &str, entries: &str, more: &str) -> String {
    format!(
        "
.text
.globl code
.type code,@function
code: .skip 64,0x90
.size code,.-code
.section .debug_abbrev,\"\",@progbits
.uleb128 1; .uleb128 0x11; .byte 1; .uleb128 0x11; .uleb128 1; .uleb128 0x12; .uleb128 7; {forms} .byte 0,0
{abbreviations}
.byte 0
.section .debug_info,\"\",@progbits
.long 2f-1f
1: .short 4
.long 0
.byte 8
.uleb128 1
.quad code
.quad 64
{values}
{entries}
.byte 0
2:
{more}
"
    )
}

/// So many inlined calls, each in the one before.
fn nested(calls: usize) -> String {
    let abbreviations =
        ".uleb128 2; .uleb128 0x2e; .byte 1; .uleb128 0x11; .uleb128 1; .uleb128 0x12; .uleb128 7; .byte 0,0
        .uleb128 3; .uleb128 0x1d; .byte 1; .byte 0,0";
    let entries = format!(".uleb128 2; .quad code; .quad 64; .skip {calls},3; .skip {calls}+1,0");
    unit(["", ""], abbreviations, &entries, "")
}

/// 20,000 functions that share a list of 20,000 ranges.
fn one_list_of_ranges() -> String {
    let function = ".uleb128 2; .uleb128 0x2e; .byte 0; .uleb128 0x55; .uleb128 0x17; .byte 0,0";
    let ranges = ".section .debug_ranges,\"\",@progbits
        .rept 20000; .quad 1, 2; .endr
        .quad 0, 0";
    unit(["", ""], function, ".rept 20000; .uleb128 2; .long 0; .endr", ranges)
}

/// A directory with a name of 1,000,000 bytes, and 100,000 files in it.
fn one_long_directory() -> String {
    let forms = ".uleb128 0x10; .uleb128 0x17; .uleb128 0x1b; .uleb128 8;";
    let lines = ".section .debug_line,\"\",@progbits
        .long 12f-11f
        11: .short 4
        .long 14f-13f
        13: .byte 1,1,1, 0xfb,14,13, 0,1,1,1,1,0,0,0,1,0,0,1
        .byte 0
        .rept 100000; .asciz \"a\"; .byte 0,0,0; .endr
        .byte 0
        14: .byte 0,9,2; .quad code
        .byte 0x20, 0,1,1
        12:";
    unit([forms, ".long 0; .skip 1000000,0x61; .byte 0"], "", "", lines)
}

/// A library of this source, where there is a compiler, and the address of its function.
fn library_of(source: &str) -> Option<(tempfile::TempDir, PathBuf, u64)> {
    let folder = tempfile::tempdir().unwrap();
    let (text, library) = (folder.path().join("made.s"), folder.path().join("made.so"));
    std::fs::write(&text, source).unwrap();
    let mut compile = Command::new("cc");
    compile.args(["-shared", "-nostdlib", "-Wl,-z,notext", "-o"]).args([&library, &text]);
    let compiled = compile.stderr(Stdio::null()).status();
    compiled.is_ok_and(|status| status.success()).then_some(())?;
    let bytes = std::fs::read(&library).unwrap();
    let elf = object::File::parse(&*bytes).unwrap();
    let code = object::Object::symbol_by_name(&elf, "code").map(|code| object::ObjectSymbol::address(&code));
    Some((folder, library, code.unwrap()))
}

fn is_code(found: &[Symbolized]) -> bool {
    matches!(found, [Symbolized::Known(frames)] if frames.last().is_some_and(|frame| &*frame.name == "code"))
}

#[test]
fn debug_information_that_ends_its_reader_costs_its_file_all_but_the_symbols_and_others_nothing() {
    for source in [nested(1_000_000), one_list_of_ranges(), one_long_directory()] {
        let Some((_folder, path, code)) = library_of(&source) else { return };
        let process = SymbolProcess::default();
        let read = load(&process, &path).map_err(|_| Gone).and_then(|mut there| there.look_up(&[code + 1]));
        assert_eq!(read, Err(Gone));
        let mut partial = load(&process, &path).unwrap();
        assert!(partial.is_partial && is_code(&partial.look_up(&[code + 1]).unwrap()));
        assert!(is_named(&load(&process, &library()).unwrap().look_up(&addresses())));
        let status = process.status();
        assert_eq!((status.broken, status.started), (1, 2), "{:?}", status.problems());
    }
}

#[test]
fn deep_debug_information_is_read_whole() {
    let Some((_folder, path, code)) = library_of(&nested(1_000)) else { return };
    let process = SymbolProcess::default();
    let mut there = load(&process, &path).unwrap();
    assert!(there.facts.has_debug_info && is_code(&there.look_up(&[code + 1]).unwrap()));
    assert_eq!(process.status().broken, 0);
}

/// Separate debug files: the paths that were asked for, and what they lead to.
struct Beside(Mutex<Vec<PathBuf>>, PathBuf);

impl OpenDebugFiles for Beside {
    fn open(&self, path: &Path) -> Option<File> {
        lock(&self.0).push(path.to_owned());
        File::open(&self.1).ok()
    }

    fn fetch(&self, _: &str) -> Option<File> {
        None
    }
}

#[test]
fn the_process_is_handed_the_debug_files_that_it_asks_for_and_only_elf_files() {
    let (process, path) = (SymbolProcess::default(), library());
    let file = File::open(&path).unwrap();
    if Object::load(&file, &path, &NoDebugFiles).unwrap().has_debug_info() {
        return; // it asks for none
    }
    for (leads_to, is_given) in [(path.clone(), true), ("/etc/passwd".into(), false)] {
        let files = Arc::new(Beside(Mutex::default(), leads_to));
        let there = load_from(&process, &path, Arc::clone(&files) as Arc<dyn OpenDebugFiles>).unwrap();
        let asked = lock(&files.0).clone();
        assert!(!asked.is_empty(), "{:?}", there.facts);
        let question = Question::Open(asked[0].to_str().unwrap().as_bytes().to_vec());
        assert_eq!(open(&*files, question).is_some(), is_given);
    }
}

#[test]
fn where_no_process_can_be_had_it_is_said_once_and_symbol_tables_are_read_here() {
    for path in ["/nowhere", "/bin/true"] {
        let process = SymbolProcess::with(SymbolizerProgram { path, arguments: &[] }, Patience::default());
        for _ in 0..2 {
            assert_eq!(load(&process, &library()).map(|_| ()), Err(ObjectNotRead::Here), "{path}");
        }
        assert_eq!(process.take_notes().len(), 1);
        let status = process.status();
        assert!(status.obstacle.is_some() && status.problems()[0].contains("symbol tables only"));
        assert_eq!((status.started, status.broken), (0, 0));
    }
}

/// A test of this program, in a process of its own.
fn start(test: &str) -> Child {
    let mut command = Command::new("/proc/self/exe");
    command.args(["--exact", "--ignored", "--nocapture", "--test-threads=1"]);
    command.arg(format!("symbol_process::tests::{test}"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    command.spawn().unwrap()
}

fn how_it_ends(test: &str) -> Option<Signal> {
    use std::os::unix::process::ExitStatusExt;
    let status = start(test).wait_with_output().unwrap().status;
    status.signal().map(|number| Signal::try_from(number).unwrap())
}

fn shut_in() {
    confine(&bounds(1 << 28)).expect("this machine permits it");
}

#[test]
#[ignore = "is killed; run by another test"]
fn opens_a_socket() {
    shut_in();
    let _ = std::os::unix::net::UnixDatagram::unbound();
}

#[test]
#[ignore = "is killed; run by another test"]
fn starts_a_program() {
    shut_in();
    let _ = Command::new("true").status();
}

#[test]
#[ignore = "is killed; run by another test"]
fn asks_for_code() {
    shut_in();
    let _ = memmap2::MmapOptions::new().len(4096).map_anon().and_then(memmap2::MmapMut::make_exec);
}

#[test]
#[ignore = "is killed; run by another test"]
fn kills_another() {
    shut_in();
    let _ = kill(nix::unistd::getppid(), None);
}

#[test]
#[ignore = "is run by another test"]
fn opens_a_file() {
    shut_in();
    // Without a word to libtest, which would ask for more than is permitted.
    let refused = File::open("/proc/self/exe").is_err() && File::open("/etc/passwd").is_err();
    let signal = if refused { Signal::SIGABRT } else { Signal::SIGSEGV };
    if signal == Signal::SIGABRT {
        std::process::abort()
    }
}

#[test]
fn whoever_reads_symbols_can_do_nothing_else() {
    for forbidden in ["opens_a_socket", "starts_a_program", "asks_for_code", "kills_another"] {
        assert_eq!(how_it_ends(forbidden), Some(Signal::SIGSYS), "{forbidden}");
    }
    assert_eq!(how_it_ends("opens_a_file"), Some(Signal::SIGABRT));
}

#[test]
#[ignore = "is killed; run by another test"]
fn has_a_process() {
    let process = SymbolProcess::default();
    let _held = load(&process, &library()).unwrap();
    println_raw(&format!("reader {}", process.status().pid.unwrap()));
    std::thread::sleep(Duration::from_secs(60));
}

fn println_raw(line: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{line}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

#[test]
fn the_process_ends_with_its_parent() {
    let mut parent = start("has_a_process");
    let lines = BufReader::new(parent.stdout.take().unwrap()).lines();
    let said = lines
        .map_while(Result::ok)
        .find_map(|line| line.split_once("reader ").map(|(_, pid)| pid.to_owned()));
    let pid: u32 = said.expect("it has one").trim().parse().unwrap();
    assert!(!procfs::has_ended(pid));
    // Under test its first thread is libtest's, which waits for the others.
    let read = |tid| std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/status")).unwrap();
    let threads: Vec<String> = procfs::threads(pid).into_iter().filter(|tid| *tid != pid).map(read).collect();
    assert!(!threads.is_empty());
    for status in threads {
        let line = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
        assert_eq!((line("CapPrm:"), line("CapEff:")), (Some("0000000000000000"), Some("0000000000000000")));
        assert_eq!((line("Seccomp:"), line("NoNewPrivs:")), (Some("2"), Some("1")));
    }
    parent.kill().unwrap();
    parent.wait().unwrap();
    wait_for_end(pid);
}

#[test]
#[ignore = "counts its descriptors; run by another test"]
fn leaves_nothing() {
    let path = library();
    let open_files = || procfs::own_open_files();
    let process = SymbolProcess::default();
    drop(load(&process, &path).unwrap());
    process.rest();
    let before = open_files();
    for round in 0..8 {
        let mut there = load(&process, &path).unwrap();
        if round % 2 == 0 {
            wait_for_end(signal(&process, Signal::SIGKILL));
        }
        let _ = there.look_up(&[0x28000]);
        drop(there);
        process.rest();
    }
    let children = std::fs::read_to_string(format!("/proc/self/task/{}/children", nix::unistd::gettid()));
    let is_clean = open_files() == before && children.is_ok_and(|children| children.trim().is_empty());
    println_raw(if is_clean { "clean" } else { "not clean" });
}

#[test]
fn no_zombie_and_no_descriptor_stays() {
    let output = start("leaves_nothing").wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("clean") && !said.contains("not clean"), "{said}");
}

/// How often the process has this file open.
fn held(process: &SymbolProcess, path: &Path) -> usize {
    let folder = format!("/proc/{}/fd", process.status().pid.unwrap());
    let inode = |path: &Path| Some(fs::metadata(path).ok()?.ino());
    let files = fs::read_dir(folder).unwrap().filter_map(|file| inode(&file.ok()?.path()));
    files.filter(|file| Some(*file) == inode(path)).count()
}

fn wait_until_closed(process: &SymbolProcess, path: &Path) {
    let until = Instant::now() + Duration::from_secs(20);
    while held(process, path) > 0 {
        assert!(Instant::now() < until, "{} are open", held(process, path));
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Objects that nobody needs are dropped in the process, with their files.
#[test]
fn what_is_dropped_here_is_closed_there() {
    let Some((_folder, path, _)) = library_of(&nested(10)) else { return };
    let Some((_other_folder, other, _)) = library_of(&nested(11)) else { return };
    if !nix::unistd::geteuid().is_root() {
        return; // it is closed to others, and so to us
    }
    let process = SymbolProcess::default();
    let objects: Vec<There> = (0..3).map(|_| load(&process, &path).unwrap()).collect();
    assert_eq!(held(&process, &path), 3);
    drop(objects);
    drop(load(&process, &other).unwrap());
    wait_until_closed(&process, &path);
    assert_eq!(held(&process, &other), 1, "nothing was asked since");
    process.drop_forgotten();
    wait_until_closed(&process, &other);
}

/// The thread that samples drops them, hundreds at a time.
#[test]
fn dropping_objects_sends_nothing_to_a_process_that_does_not_read() {
    const OBJECTS: usize = 200;
    let Some((_folder, path, _)) = library_of(&nested(10)) else { return };
    let process = SymbolProcess::default();
    let objects: Vec<There> = (0..OBJECTS).map(|_| load(&process, &path).unwrap()).collect();
    let queued = || lock(&process.0.forgotten).len();
    signal(&process, Signal::SIGSTOP);
    drop(objects);
    assert_eq!(queued(), OBJECTS);
    process.drop_forgotten();
    assert_eq!(queued(), 0, "the socket has room for a few messages");
    lock(&process.0.forgotten).extend(std::iter::repeat_n((1, 0), 1 << 20)); // more than it has room for
    process.drop_forgotten();
    assert!((1..1 << 20).contains(&queued()), "{}", queued());
    lock(&process.0.forgotten).clear();
    signal(&process, Signal::SIGCONT);
    assert!(load(&process, &path).is_ok(), "all of its messages are whole");
}
