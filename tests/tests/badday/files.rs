//! Files that change under the profiler.

use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use tests::attempts::attempts_of;
use tests::folded::Folded;
use tests::guards::{Running, is_root, open_to_all};
use tests::measured::cpu_s;
use tests::programs::{copy_program, program};
use tests::run::{Sweetspot, finish, run, start, wait_until};
use tests::stats::Stats;

use crate::fine;

struct Loaded {
    folder: TempDir,
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

    fn library(&self) -> PathBuf {
        self.folder.path().join("libplugin.so")
    }

    /// Attaches while the target is in the library; damages the file once it is outside.
    fn attach_and(&mut self, damage: impl FnOnce(&Path) -> Result<()>) -> Result<Folded> {
        let sweetspot = Sweetspot::new().options(&["--rate", "500"]);
        let mut words = sweetspot.outputs();
        words.push(self.target.id().to_string());
        let profiler = start(&mut sweetspot.command("attach", &words))?;
        self.wait_for("outside")?;
        damage(&self.library())?;
        let target = self.target.id();
        let before = cpu_s(target)?;
        wait_until("work outside", || cpu_s(target).is_ok_and(|now| now > before + 0.7))?;
        kill(Pid::from_raw(profiler.id() as i32), Signal::SIGINT)?;
        fine(finish(profiler)?)?;
        Stats::parse(&fs::read_to_string(sweetspot.file("stats.jsonl"))?)?;
        Folded::parse(&fs::read_to_string(sweetspot.file("profile.folded"))?)
    }
}

fn share(folded: &Folded, name: &str) -> f64 {
    folded.weight_of(|stack| stack.has(name)) / folded.weight_of(|_| true)
}

/// How much of the work was sampled is the machine's business. That the run has failed, or named what it should not, is not.
fn host_work_is_seen(folded: impl FnMut() -> Result<Folded>) -> Result<()> {
    let check = |folded: &Folded| {
        ensure!(share(folded, "host_work") > 0.1, "host_work has {}", share(folded, "host_work"));
        Ok(())
    };
    attempts_of(folded, check).map(drop)
}

fn truncated_to(bytes: impl Fn(u64) -> u64) -> Result<()> {
    needs_root!("attaching to any process");
    host_work_is_seen(|| {
        Loaded::start()?.attach_and(|library| {
            let file = fs::OpenOptions::new().write(true).open(library)?;
            Ok(file.set_len(bytes(file.metadata()?.len()))?)
        })
    })
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
    host_work_is_seen(|| {
        Loaded::start()?.attach_and(|library| {
            let garbage: Vec<u8> = (0..fs::metadata(library)?.len()).map(|i| (i * 37 % 251) as u8).collect();
            let file = fs::OpenOptions::new().write(true).open(library)?;
            Ok(file.write_all_at(&garbage, 0)?)
        })
    })
}

/// Another program under the library's name must not lend its names to the library's code.
#[test]
fn a_library_replaced_by_another_file() -> Result<()> {
    needs_root!("attaching to any process");
    host_work_is_seen(|| {
        let mut loaded = Loaded::start()?;
        let other = loaded.folder.path().join("other");
        fs::copy(program("mix_fp")?, &other)?;
        fs::rename(&other, loaded.library())?;
        let folded = loaded.attach_and(|_| Ok(()))?;
        let wrong = ["work_a", "descend", "run_calls", "bottom"]
            .map(|name| folded.weight_of(|stack| stack.has(name)));
        ensure!(wrong == [0.0; 4], "names of a file that the process never loaded: {wrong:?}");
        Ok(folded)
    })
}

/// Symbols, debug information and section headers with bytes flipped here and there.
#[test]
fn a_program_with_corrupt_debug_information() -> Result<()> {
    let good = fs::read(program("inlined")?)?;
    [61, 97, 251, 1021].into_iter().try_for_each(|stride| corrupt(&good, stride))
}

fn corrupt(good: &[u8], stride: usize) -> Result<()> {
    let mut bytes = good.to_vec();
    // What is loaded lies in the first quarter of the file: the program still runs.
    let start = bytes.len() / 4;
    bytes[start..].iter_mut().step_by(stride).for_each(|byte| *byte = byte.wrapping_add(0x5b));
    let sweetspot = Sweetspot::new().options(&["--rate", "500"]);
    let (written, program) = (sweetspot.path().join("written"), sweetspot.path().join("corrupt"));
    fs::write(&written, bytes)?;
    copy_program(&written, &program)?;
    open_to_all(&program)?;
    let mut words = sweetspot.outputs();
    words.extend(["--", &*program.to_string_lossy(), "--cpu", "0.3"].map(str::to_string));
    fine(run(&mut sweetspot.command("record", &words))?)?;
    let folded = Folded::parse(&fs::read_to_string(sweetspot.file("profile.folded"))?)?;
    ensure!(folded.weight_of(|_| true) > 0.0, "no samples");
    Ok(())
}
