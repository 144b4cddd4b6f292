//! Files whose file system does not answer: sampling goes on, and what lacks a name for it says why. Live, as root.

#![allow(clippy::print_stderr, reason = "a test that skips says why")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tests::folded::{Folded, Stack};
use tests::fuse::StallingMount;
use tests::guards::is_root;
use tests::programs::{copy_program, program};
use tests::run::{Followed, Sweetspot, run, start, sweetspot, wait_until};
use tests::stats::Stats;

/// A run of a few seconds that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Leaves the test unless it can mount a file system that does not answer.
macro_rules! needs_fuse {
    () => {
        if !is_root() || !StallingMount::is_possible() {
            eprintln!("skipped: mounting a FUSE file system needs root and /dev/fuse");
            return Ok(());
        }
    };
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// What a run left while a mount did not answer the profiler.
struct Left {
    folded: Folded,
    stats: Stats,
    /// Code without names, and why.
    unknown: String,
}

/// Records a shell script, and calls `meanwhile` once it runs. The mount goes away once the profile is there: until then the
/// kernel keeps a process that waits for it.
fn record(script: &str, mount: &StallingMount, meanwhile: impl FnOnce() -> Result<()>) -> Result<Left> {
    let profiler = Sweetspot::new().options(&["--rate", "500"]);
    let (pprof, written) = (profiler.file("profile.pb.gz"), PathBuf::from(profiler.file("profile.folded")));
    let mut words = vec!["-o".to_string(), pprof.clone()];
    words.extend(profiler.outputs());
    words.extend(["--", "sh", "-c", script].map(str::to_string));
    let running = Followed::new(start(&mut profiler.command("record", &words))?);
    meanwhile()?;
    let started = Instant::now();
    wait_until("a profile, or too long", || written.exists() || started.elapsed() > PATIENCE)?;
    let is_written = written.exists();
    mount.unmount();
    ensure!(is_written, "no profile within {PATIENCE:?}: sampling waits for the mount");
    running.finish()?.expect_status(0)?;
    let unknown = run(Sweetspot::new().command("report", &[&pprof, "--unknown"]).env("COLUMNS", "400"))?;
    Ok(Left {
        folded: Folded::parse(&fs::read_to_string(&written)?)?,
        stats: Stats::parse(&fs::read_to_string(profiler.file("stats.jsonl"))?)?,
        unknown: unknown.expect_status(0)?.stdout,
    })
}

/// A mount that answers its program and not the profiler.
fn stalling_mount() -> Result<StallingMount> {
    let name = sweetspot().file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mount = StallingMount::new(&program("mix_fp")?, &name)?;
    mount.stall();
    Ok(mount)
}

fn has_work(stack: &Stack) -> bool {
    stack.frames.iter().any(|frame| frame.starts_with("work_"))
}

#[test]
fn sampling_goes_on_while_a_file_cannot_be_opened() -> Result<()> {
    needs_fuse!();
    let mount = stalling_mount()?;
    let script = format!(
        "{} --cpu 3 >/dev/null & sleep 0.5; {} --cpu 1 >/dev/null; wait",
        text(&program("mix_nofp")?),
        text(&mount.program()),
    );
    let left = record(&script, &mount, || Ok(()))?;
    ensure!(mount.stalled() > 0, "the profiler did not ask for the file");
    let (named, all) = (left.folded.weight_of(has_work), left.folded.weight_of(|_| true));
    // Three of four seconds are the program's whose file can be opened.
    ensure!((0.6..0.9).contains(&(named / all)), "{named} of {all} named");
    let unnamed = |stack: &Stack| stack.frames[0] == "program" && !has_work(stack);
    ensure!(left.folded.weight_of(unnamed) / all > 0.1, "the other's samples are there: {:?}", left.folded);
    ensure!(left.stats.summary.lost == 0, "{} samples were lost", left.stats.summary.lost);
    let says_why = left.unknown.contains("does not answer") && left.unknown.contains("mount it again");
    ensure!(says_why && left.unknown.contains("program"), "{}", left.unknown);
    Ok(())
}

#[test]
fn a_file_that_answers_later_has_its_names() -> Result<()> {
    needs_fuse!();
    let mount = stalling_mount()?;
    let script = format!("{} --cpu 3 >/dev/null", text(&mount.program()));
    let left = record(&script, &mount, || {
        wait_until("the profiler to ask for the file", || mount.stalled() > 0)?;
        std::thread::sleep(Duration::from_millis(500)); // so that there are samples before it answers
        mount.answer();
        Ok(())
    })?;
    let of_program = |stack: &Stack| stack.frames[0] == "program";
    let named = left.folded.weight_of(|stack| of_program(stack) && has_work(stack));
    let share = named / left.folded.weight_of(of_program);
    ensure!((0.5..1.0).contains(&share), "{share} named: {:?}", left.folded);
    Ok(())
}

/// The folder in which a program's perf map would be.
#[test]
fn sampling_goes_on_while_a_perf_map_cannot_be_looked_for() -> Result<()> {
    needs_fuse!();
    let mount = stalling_mount()?;
    // The mount hides what is in `/tmp`.
    let folder = tempfile::tempdir_in("/var/tmp")?;
    let jit = folder.path().join("jit");
    copy_program(&program("jit")?, &jit)?;
    let (mounted, jit, journals) = (text(&mount.folder()), text(&jit), text(folder.path()));
    let inner = format!("mount --bind {mounted} /tmp && exec {jit} dump 2 {journals} >/dev/null");
    let left = record(&format!("exec unshare --mount sh -c '{inner}'"), &mount, || Ok(()))?;
    ensure!(mount.stalled() > 0, "the profiler did not look for the perf map");
    let named = left.folded.weight_of(|stack| stack.has("made_long") || stack.has("made_short"));
    ensure!(named / left.folded.weight_of(|_| true) > 0.5, "{named} named: {:?}", left.folded);
    Ok(())
}
