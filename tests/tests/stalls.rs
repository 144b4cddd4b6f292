//! Files whose file system does not answer: sampling goes on, and what lacks a name for it says why. Live, as root.

#![allow(clippy::print_stderr, reason = "a test that skips says why")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};
use tests::folded::Folded;
use tests::fuse::StallingMount;
use tests::guards::is_root;
use tests::programs::program;
use tests::run::{Followed, Sweetspot, start, sweetspot, wait_until};
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
    stderr: String,
    stdout: String,
}

/// Records a shell script. The mount goes away once the profile is there: the kernel keeps a process that waits for it.
fn record(script: &str, mount: &StallingMount) -> Result<Left> {
    let profiler = Sweetspot::new().options(&["--rate", "500"]);
    let mut words = profiler.outputs();
    words.extend(["--", "sh", "-c", script].map(str::to_string));
    let running = Followed::new(start(&mut profiler.command("record", &words))?);
    let written = PathBuf::from(profiler.file("profile.folded"));
    let started = std::time::Instant::now();
    wait_until("a profile, or too long", || written.exists() || started.elapsed() > PATIENCE)?;
    let is_written = written.exists();
    mount.unmount();
    ensure!(is_written, "no profile within {PATIENCE:?}: sampling waits for the mount");
    let ended = running.finish()?.expect_status(0)?;
    Ok(Left {
        folded: Folded::parse(&fs::read_to_string(&written)?)?,
        stats: Stats::parse(&fs::read_to_string(profiler.file("stats.jsonl"))?)?,
        stderr: ended.stderr,
        stdout: ended.stdout,
    })
}

/// A mount that answers the program and not the profiler, whose executable is called this.
fn mount() -> Result<StallingMount> {
    let name = sweetspot().file_name().unwrap_or_default().to_string_lossy().into_owned();
    StallingMount::new(&program("mix_fp")?, &name)
}

#[test]
fn sampling_goes_on_while_a_file_cannot_be_opened() -> Result<()> {
    needs_fuse!();
    let mount = mount()?;
    mount.stall();
    let healthy = program("mix_nofp")?;
    let script = format!(
        "{} --cpu 3 >/dev/null & sleep 0.5; {} --cpu 1 >/dev/null; wait",
        text(&healthy),
        text(&mount.program()),
    );
    let left = record(&script, &mount)?;
    ensure!(mount.stalled() > 0, "the profiler did not ask for the file");
    eprintln!("{}\n{}\n{:?}", left.stdout, left.stderr, left.stats.summary);
    let named = left.folded.weight_of(|stack| stack.frames.iter().any(|frame| frame.starts_with("work_")));
    let all = left.folded.weight_of(|_| true);
    // Three of four seconds are the healthy program's.
    ensure!((0.65..0.85).contains(&(named / all)), "{named} of {all} named");
    ensure!(left.stats.summary.lost == 0, "{} samples were lost", left.stats.summary.lost);
    Ok(())
}
