//! Bad days: whatever goes wrong, there is an exit status that says so and one line on standard error that
//! says what happened and what to do about it; no panic, no half-written file, and no harm to the target.

#![allow(clippy::print_stderr, reason = "a test that skips says why")]

use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{ChildStdout, Command};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tests::checks::within;
use tests::folded::Folded;
use tests::guards::{Running, SmallDisk, Sysctl, is_root};
use tests::programs::program;
use tests::run::{Ended, NOBODY, Sweetspot, finish, run, start, wait_until};
use tests::stats::Stats;

/// Tests that change a setting of the kernel hold this alone; those that depend on one share it.
static SETTINGS: RwLock<()> = RwLock::new(());

fn default_settings() -> RwLockReadGuard<'static, ()> {
    SETTINGS.read().unwrap_or_else(PoisonError::into_inner)
}

fn own_settings() -> RwLockWriteGuard<'static, ()> {
    SETTINGS.write().unwrap_or_else(PoisonError::into_inner)
}

macro_rules! needs_root {
    ($why:literal) => {
        if !is_root() {
            eprintln!("skipped: {} needs root", $why);
            return Ok(());
        }
    };
}

/// Words of which one must be in a line that says what to do.
const ADVICE: &[&str] = &[
    "check", "try", "use", "run", "give", "see", "set", "sudo", "--", "raise", "install", "free", "make",
    "ask",
];

/// The run failed with this status and one line, which has one of these words and some advice.
fn refused(ended: Ended, status: i32, words: &[&str]) -> Result<()> {
    let ended = ended.expect_status(status)?;
    let lines: Vec<&str> = ended.stderr.lines().filter(|line| !line.trim().is_empty()).collect();
    ensure!(lines.len() == 1, "{} lines instead of one: {ended:#?}", lines.len());
    let line = lines[0].to_lowercase();
    ensure!(!line.contains("panicked"), "{line}");
    ensure!(words.iter().any(|word| line.contains(word)), "none of {words:?} in: {line}");
    ensure!(ADVICE.iter().any(|word| line.contains(word)), "it does not say what to do: {line}");
    Ok(())
}

/// The run did its job, whatever it had to say about it.
fn fine(ended: Ended) -> Result<Ended> {
    let ended = ended.expect_status(0)?;
    ensure!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
    Ok(ended)
}

fn sweetspot(verb: &str, arguments: &[&str]) -> Result<Ended> {
    run(&mut Sweetspot::new().command(verb, arguments))
}

fn busy(seconds: &str) -> Result<Running> {
    start(Command::new(program("mix_nofp")?).args(["--cpu", seconds, "--depth", "20"]))
}

/// A process id that no process has: that of one that has ended.
fn free_pid() -> Result<String> {
    let mut child = start(&mut Command::new("true"))?;
    child.wait()?;
    Ok(child.id().to_string())
}

// --- targets that are not there, or not for long

#[test]
fn no_such_process() -> Result<()> {
    refused(sweetspot("attach", &[&free_pid()?])?, 1, &["no such process", "no process", "not running"])
}

#[test]
fn no_process_of_that_name() -> Result<()> {
    refused(
        sweetspot("attach", &["--name", "^no-such-thing-xyz$"])?,
        1,
        &["no process", "no running process"],
    )
}

#[test]
fn a_command_that_exits_at_once() -> Result<()> {
    fine(sweetspot("record", &["--", "true"])?).map(drop)
}

#[test]
fn a_target_that_exits_while_attached() -> Result<()> {
    needs_root!("attaching in every mode");
    let target = busy("0.5")?;
    fine(sweetspot("attach", &["--duration", "60s", &target.id().to_string()])?).map(drop)
}

/// Targets that live from 0 to some 40 ms: the end falls into every phase of the attach.
#[test]
fn a_target_that_exits_during_the_attach() -> Result<()> {
    needs_root!("attaching in every mode");
    for mode in ["task", "cpu"] {
        for tenths_of_ms in (0..400).step_by(20) {
            let life = format!("{:.4}", f64::from(tenths_of_ms) * 1e-4);
            let mut target = start(Command::new("sleep").arg(life))?;
            // Reaped beside the profiler, as any parent would: a zombie is another case.
            let pid = target.id().to_string();
            let profiler = start(
                &mut Sweetspot::new().command("attach", &["--attach-mode", mode, "--duration", "2s", &pid]),
            )?;
            target.wait()?;
            let ended = finish(profiler)?;
            if ended.status == 0 {
                fine(ended)?;
            } else {
                refused(ended, 1, &["no such process", "no process", "not running", "exited"])?;
            }
        }
    }
    Ok(())
}

#[test]
fn a_zombie() -> Result<()> {
    let zombie = start(&mut Command::new("true"))?;
    let stat = format!("/proc/{}/stat", zombie.id());
    wait_until("the zombie", || fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") Z ")))?;
    let ended = sweetspot("attach", &["--duration", "1s", &zombie.id().to_string()])?;
    refused(ended, 1, &["exited", "zombie", "ended", "not running", "no such process"])
}

#[test]
fn a_kernel_thread() -> Result<()> {
    needs_root!("attaching to a kernel thread");
    if fs::read_to_string("/proc/2/comm").is_ok_and(|comm| comm.trim() == "kthreadd") {
        return refused(sweetspot("attach", &["--duration", "1s", "2"])?, 1, &["kernel thread"]);
    }
    eprintln!("skipped: kernel threads are not visible here");
    Ok(())
}

// --- privilege

#[test]
fn a_process_of_another_user() -> Result<()> {
    needs_root!("becoming another user");
    let _settings = default_settings();
    let target = busy("60")?;
    let nobody = Sweetspot::new().unprivileged()?;
    refused(
        run(&mut nobody.command("attach", &[target.id().to_string()]))?,
        77,
        &["permi", "privilege", "allowed"],
    )
}

/// Kernels of some distributions know a level 3 that refuses everything; others treat it as 2.
#[test]
fn perf_event_paranoid_too_high() -> Result<()> {
    needs_root!("changing perf_event_paranoid");
    let _settings = own_settings();
    let _paranoid = Sysctl::kernel("perf_event_paranoid", "4")?;
    let nobody = Sweetspot::new().unprivileged()?;
    let probe = nobody.copy_for_all(&program("perf_allowed")?)?;
    let honoured = !Command::new(NOBODY[0]).args(&NOBODY[1..]).arg(probe).status()?.success();
    let ended = run(&mut nobody.command("record", &["--", "sleep", "0.1"]))?;
    if honoured {
        return refused(ended, 77, &["perf_event_paranoid"]);
    }
    eprintln!("this kernel treats perf_event_paranoid=4 as 2: only checked that the run works");
    fine(ended).map(drop)
}

/// As in a container whose seccomp profile forbids the call: so it is for root, too.
#[test]
fn perf_event_open_refused() -> Result<()> {
    let deny = program("deny_perf")?;
    let sweetspot = Sweetspot::new().through(&[&deny.to_string_lossy()]);
    let ended = run(&mut sweetspot.command("record", &["--", "sleep", "0.1"]))?;
    refused(ended, 77, &["perf_event_open", "not permitted", "permission"])
}

#[test]
fn ring_memory_refused() -> Result<()> {
    needs_root!("changing perf_event_mlock_kb");
    let _settings = own_settings();
    let _mlock = Sysctl::kernel("perf_event_mlock_kb", "0")?;
    let nobody = Sweetspot::new().through(&["prlimit", "--memlock=0:0"]).unprivileged()?;
    let ended = run(&mut nobody.command("record", &["--", "sleep", "0.1"]))?;
    refused(ended, 77, &["perf_event_mlock_kb", "memlock", "ulimit -l"])
}

// --- many threads, few files

fn sleepers(count: usize) -> Result<Running> {
    let target = start(Command::new(program("sleepers")?).args([&count.to_string(), "60"]))?;
    let threads = format!("/proc/{}/task", target.id());
    wait_until("the threads", || fs::read_dir(&threads).is_ok_and(|tasks| tasks.count() > count))?;
    Ok(target)
}

#[test]
fn two_thousand_threads_task_events() -> Result<()> {
    two_thousand_threads("task")
}

#[test]
fn two_thousand_threads_cpu_wide_events() -> Result<()> {
    two_thousand_threads("cpu")
}

fn two_thousand_threads(mode: &str) -> Result<()> {
    needs_root!("attaching in every mode");
    let target = sleepers(2000)?;
    let recorded =
        Sweetspot::new().options(&["--attach-mode", mode, "--rate", "500"]).attach(target.id(), 2.0)?;
    let busy = recorded.folded.weight_of(|stack| stack.has("busy"));
    within("weight of the busy thread", busy, recorded.folded.weight_of(|_| true), 0.05)
}

/// Task events need a file for each thread and CPU. With few, the profiler chooses the other way, or says so.
#[test]
fn too_few_files_for_the_threads() -> Result<()> {
    needs_root!("attaching in every mode");
    let target = sleepers(300)?;
    let pid = target.id().to_string();
    let few = || Sweetspot::new().through(&["prlimit", "--nofile=64:64"]);
    fine(run(&mut few().command("attach", &["--duration", "1s", &pid]))?)?;
    let forced = run(&mut few().command("attach", &["--attach-mode", "task", "--duration", "1s", &pid]))?;
    refused(forced, 1, &["open files", "file descriptors", "ulimit -n"])
}

// --- files that change under the profiler

struct Loaded {
    folder: tempfile::TempDir,
    target: Running,
    says: Lines<BufReader<ChildStdout>>,
}

impl Loaded {
    /// A process that works in a library for a second, then outside it for a minute.
    fn start() -> Result<Loaded> {
        let folder = tempfile::tempdir()?;
        let library = folder.path().join("libplugin.so");
        fs::copy(program("libplugin.so")?, &library)?;
        let mut target = start(Command::new(program("host")?).arg(&library).args(["1", "60"]))?;
        let says = BufReader::new(target.stdout.take().context("a pipe")?).lines();
        let mut loaded = Loaded { folder, target, says };
        loaded.wait_for("inside")?;
        Ok(loaded)
    }

    fn wait_for(&mut self, where_it_works: &str) -> Result<()> {
        let line = self.says.next().context("the target is gone")??;
        ensure!(line == where_it_works, "the target says {line}");
        Ok(())
    }

    fn library(&self) -> std::path::PathBuf {
        self.folder.path().join("libplugin.so")
    }

    /// Attaches while the target is in the library; damages the file once it is outside.
    fn attach_and(&mut self, damage: impl FnOnce(&Path) -> Result<()>) -> Result<Folded> {
        let sweetspot = Sweetspot::new().options(&["--rate", "500"]);
        let mut words = sweetspot.outputs();
        words.extend(["--duration".to_string(), "4s".to_string(), self.target.id().to_string()]);
        let profiler = start(&mut sweetspot.command("attach", &words))?;
        self.wait_for("outside")?;
        damage(&self.library())?;
        fine(finish(profiler)?)?;
        Stats::parse(&fs::read_to_string(sweetspot.file("stats.jsonl"))?)?;
        Folded::parse(&fs::read_to_string(sweetspot.file("profile.folded"))?)
    }
}

fn share(folded: &Folded, name: &str) -> f64 {
    folded.weight_of(|stack| stack.has(name)) / folded.weight_of(|_| true)
}

fn truncated_to(bytes: impl Fn(u64) -> u64) -> Result<()> {
    needs_root!("attaching to any process");
    let folded = Loaded::start()?.attach_and(|library| {
        let file = fs::OpenOptions::new().write(true).open(library)?;
        Ok(file.set_len(bytes(file.metadata()?.len()))?)
    })?;
    ensure!(share(&folded, "host_work") > 0.4, "host_work has {}", share(&folded, "host_work"));
    Ok(())
}

#[test]
fn a_library_truncated_to_nothing() -> Result<()> {
    truncated_to(|_| 0)
}

#[test]
fn a_library_truncated_to_half() -> Result<()> {
    truncated_to(|length| length / 2)
}

#[test]
fn a_library_overwritten_with_garbage() -> Result<()> {
    needs_root!("attaching to any process");
    let folded = Loaded::start()?.attach_and(|library| {
        let garbage: Vec<u8> = (0..fs::metadata(library)?.len()).map(|i| (i * 37 % 251) as u8).collect();
        use std::os::unix::fs::FileExt;
        let file = fs::OpenOptions::new().write(true).open(library)?;
        Ok(file.write_all_at(&garbage, 0)?)
    })?;
    ensure!(share(&folded, "host_work") > 0.4, "host_work has {}", share(&folded, "host_work"));
    Ok(())
}

/// Another program under the library's name must not lend its names to the library's code.
#[test]
fn a_library_replaced_by_another_file() -> Result<()> {
    needs_root!("attaching to any process");
    let mut loaded = Loaded::start()?;
    let other = loaded.folder.path().join("other");
    fs::copy(program("mix_fp")?, &other)?;
    fs::rename(&other, loaded.library())?;
    let folded = loaded.attach_and(|_| Ok(()))?;
    ensure!(share(&folded, "host_work") > 0.4, "host_work has {}", share(&folded, "host_work"));
    let wrong = ["work_a", "descend", "run_calls", "bottom"].map(|name| share(&folded, name));
    ensure!(wrong == [0.0; 4], "names of a file that the process never loaded: {wrong:?}");
    Ok(())
}

/// Symbols, debug information and section headers with bytes flipped here and there.
#[test]
fn a_program_with_corrupt_debug_information() -> Result<()> {
    let good = fs::read(program("inlined")?)?;
    for stride in [61, 97, 251, 1021] {
        let mut bytes = good.clone();
        // What is loaded lies in the first quarter of the file: the program still runs.
        let start = bytes.len() / 4;
        bytes[start..].iter_mut().step_by(stride).for_each(|byte| *byte = byte.wrapping_add(0x5b));
        let sweetspot = Sweetspot::new().options(&["--rate", "500"]);
        let program = sweetspot.path().join("corrupt");
        fs::write(&program, bytes)?;
        tests::guards::open_to_all(&program)?;
        let mut words = sweetspot.outputs();
        words.extend(["--", &*program.to_string_lossy(), "--cpu", "0.3"].map(str::to_string));
        fine(run(&mut sweetspot.command("record", &words))?)?;
        let folded = Folded::parse(&fs::read_to_string(sweetspot.file("profile.folded"))?)?;
        ensure!(folded.weight_of(|_| true) > 0.0, "no samples");
    }
    Ok(())
}

// --- outputs

/// Refused before the command runs: a long run must not end in this.
#[test]
fn an_output_folder_that_does_not_exist() -> Result<()> {
    let sweetspot = Sweetspot::new();
    let ran = sweetspot.file("ran");
    let output = sweetspot.file("missing/profile.folded");
    let ended = run(&mut sweetspot.command("record", &["-o", &output, "--", "touch", &ran]))?;
    ensure!(!Path::new(&ran).exists(), "the command ran");
    let status = if ended.status == 2 { 2 } else { 1 };
    refused(ended, status, &["no such file or directory", "does not exist", "no folder", "no directory"])
}

#[test]
fn a_full_disk() -> Result<()> {
    needs_root!("mounting a small disk");
    for ending in ["folded", "pb.gz", "svg"] {
        let disk = SmallDisk::new(16)?;
        let filled = fs::write(disk.path().join("filler"), vec![1; 64 << 10]);
        ensure!(filled.is_err(), "the disk should be full");
        let output = disk.path().join("profile").with_extension(ending);
        let mix = program("mix_nofp")?;
        let words = ["-o", &*output.to_string_lossy(), "--", &*mix.to_string_lossy(), "--cpu", "0.3"];
        refused(sweetspot("record", &words)?, 1, &["no space left", "disk is full"])?;
        ensure!(!output.exists(), "a half-written {} is left", output.display());
    }
    Ok(())
}

#[test]
fn standard_output_closed_early() -> Result<()> {
    let mix = program("mix_nofp")?;
    for reader in ["head -1 >/dev/null", "true"] {
        let script = format!("\"$0\" record -- \"$1\" --cpu 0.3 --out /dev/null | {reader}");
        let ended = run(Command::new("sh").args(["-c", &script]).arg(tests::run::sweetspot()).arg(&mix))?;
        let said = ended.stderr.to_lowercase();
        ensure!(!said.contains("panic") && !said.contains("broken pipe"), "{said}");
    }
    Ok(())
}

// --- the end comes early

/// Sends a signal to a profiler that has been at work for a second; returns its end and what it wrote.
fn interrupted(signal: Signal) -> Result<(Ended, Result<Folded>)> {
    let mut target = busy("60")?;
    let sweetspot = Sweetspot::new().options(&["--rate", "500"]);
    let mut words = sweetspot.outputs();
    words.extend(["--duration".to_string(), "60s".to_string(), target.id().to_string()]);
    let profiler = start(&mut sweetspot.command("attach", &words))?;
    sleep(Duration::from_millis(2000));
    kill(Pid::from_raw(profiler.id() as i32), signal)?;
    let ended = finish(profiler)?;
    ensure!(target.try_wait()?.is_none(), "the target is gone");
    let left = fs::read_to_string(sweetspot.file("profile.folded")).context("no profile");
    Ok((ended, left.and_then(|text| Folded::parse(&text))))
}

#[test]
fn ctrl_c_leaves_the_profile_so_far() -> Result<()> {
    needs_root!("attaching to any process");
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let (ended, folded) = interrupted(signal)?;
        let ended = fine(ended)?;
        ensure!(folded?.weight_of(|stack| stack.has("main")) > 0.0, "no stacks: {ended:?}");
    }
    Ok(())
}

#[test]
fn kill_9_leaves_the_target_running_and_no_profile() -> Result<()> {
    needs_root!("attaching to any process");
    let (ended, folded) = interrupted(Signal::SIGKILL)?;
    ensure!(ended.status == 128 + 9, "{ended:?}");
    ensure!(folded.is_err(), "a profile under its final name");
    Ok(())
}

/// A terminal sends Ctrl-C to the profiler and the command alike.
#[test]
fn ctrl_c_while_recording_leaves_the_profile_and_the_status_of_the_command() -> Result<()> {
    use std::os::unix::process::CommandExt;
    let sweetspot = Sweetspot::new().options(&["--rate", "500"]);
    let mut words = sweetspot.outputs();
    words.extend(["--", &*program("mix_nofp")?.to_string_lossy(), "--cpu", "60"].map(str::to_string));
    let profiler = start(sweetspot.command("record", &words).process_group(0))?;
    sleep(Duration::from_millis(2000));
    kill(Pid::from_raw(-(profiler.id() as i32)), Signal::SIGINT)?;
    finish(profiler)?.expect_status(128 + 2)?;
    let folded = Folded::parse(&fs::read_to_string(sweetspot.file("profile.folded"))?)?;
    ensure!(folded.weight_of(|stack| stack.has("main")) > 0.0, "no stacks");
    Ok(())
}

// --- the command

#[test]
fn a_command_that_does_not_exist() -> Result<()> {
    refused(sweetspot("record", &["--", "no-such-command-xyz"])?, 127, &["not found", "no such file"])
}

#[test]
fn a_command_that_is_not_executable() -> Result<()> {
    refused(sweetspot("record", &["--", "/etc/passwd"])?, 126, &["permission denied", "not executable"])
}

#[test]
fn the_status_of_the_command_is_passed_on() -> Result<()> {
    sweetspot("record", &["--", "sh", "-c", "exit 3"])?.expect_status(3)?;
    sweetspot("record", &["--", "sh", "-c", "kill -9 $$"])?.expect_status(128 + 9)?;
    sweetspot("record", &["--", "sh", "-c", "kill -TERM $$"])?.expect_status(128 + 15)?;
    Ok(())
}

// --- options

#[test]
fn a_rate_of_zero() -> Result<()> {
    refused(sweetspot("record", &["--rate", "0", "--", "true"])?, 2, &["rate"])
}

#[test]
fn a_budget_above_all() -> Result<()> {
    refused(sweetspot("record", &["--budget", "200%", "--", "true"])?, 2, &["budget"])
}

#[test]
fn an_unknown_ending() -> Result<()> {
    let ended = sweetspot("record", &["-o", "profile.xyz", "--", "true"])?;
    refused(ended, 2, &[".pb.gz"])
}
