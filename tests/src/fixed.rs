//! Runs of `fixed`, the program of fixed work that tells when each stretch of it was done: alone and under
//! `sweetspot record`.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::{thread, time::Duration};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::measured::children_cpu_s;
use crate::programs::program;
use crate::run::{Sweetspot, finish, run, start};
use crate::stats::Stats;
use crate::windows::{Point, cpu_s, monotonic_s};

/// Time between two looks at the profiler's CPU time.
const LOOK: Duration = Duration::from_millis(50);

/// One kind of work, so much of it, on one CPU.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// `plain`, `step`, `storm`, `pair` or `threads`; `fixed.c` says what they are.
    pub kind: &'static str,
    /// Units of about 20 µs.
    pub units: u64,
    /// The CPU that all of it runs on.
    pub cpu: usize,
}

/// What the program says of a run.
#[derive(Clone, Debug, Deserialize)]
pub struct Done {
    /// CPU time of all threads, from start to end (s).
    pub cpu_s: f64,
    /// Context switches.
    pub switches: u64,
    /// The monotonic clock and CPU time of all threads (s) each time that the same stretch of work was done.
    pub marks: Vec<(f64, f64)>,
}

impl Done {
    /// What the program wrote.
    pub fn read(path: &Path) -> Result<Done> {
        let text = fs::read_to_string(path).with_context(|| format!("no figures in {}", path.display()))?;
        let done: Done = serde_json::from_str(&text).context("the program's figures")?;
        ensure!(done.marks.len() > 1, "the program did too little work to time");
        Ok(done)
    }

    /// Wall-clock time of the work (s).
    pub fn wall_s(&self) -> f64 {
        self.marks[self.marks.len() - 1].0 - self.marks[0].0
    }

    /// CPU time at each mark, since the first (s).
    pub fn cpu_at_marks_s(&self) -> Vec<f64> {
        self.marks.iter().map(|(_, cpu_s)| cpu_s - self.marks[0].1).collect()
    }
}

/// A run under the profiler.
pub struct Sampled {
    /// What the program says.
    pub done: Done,
    /// CPU time of the profiler: moments on the monotonic clock, and what it had used (s).
    pub own: Vec<(f64, f64)>,
    /// CPU time of the profiler from its start to its end (s).
    pub own_cpu_s: f64,
    /// What the profiler says.
    pub stats: Stats,
}

impl Sampled {
    /// CPU times at each mark.
    pub fn points(&self) -> Vec<Point> {
        let point = |&(at_s, target_s): &(f64, f64)| Point { at_s, target_s, own_s: self.own_at_s(at_s) };
        self.done.marks.iter().map(point).collect()
    }

    /// CPU time of program and profiler at each mark, since the first (s).
    pub fn cpu_at_marks_s(&self) -> Vec<f64> {
        let points = self.points();
        let all_s = |point: &Point| point.target_s + point.own_s;
        points.iter().map(|point| all_s(point) - all_s(&points[0])).collect()
    }

    /// On the line between the two looks around a moment.
    fn own_at_s(&self, at_s: f64) -> f64 {
        let after = self.own.partition_point(|(look_s, _)| *look_s <= at_s);
        match (after.checked_sub(1).map(|before| self.own[before]), self.own.get(after)) {
            (Some((t0, c0)), Some((t1, c1))) => c0 + (c1 - c0) * (at_s - t0) / (t1 - t0),
            (Some((_, cpu_s)), None) | (None, Some(&(_, cpu_s))) => cpu_s,
            (None, None) => 0.0,
        }
    }
}

impl Work {
    /// As much of it as takes so many seconds of CPU time here.
    pub fn lasting(kind: &'static str, cpu_s: f64, cpu: usize) -> Result<Work> {
        const TRIED: u64 = 100_000;
        let tried = Work { kind, units: TRIED, cpu }.unsampled()?;
        Ok(Work { kind, units: (cpu_s / tried.cpu_s * TRIED as f64) as u64, cpu })
    }

    /// The command; it writes its figures into a file.
    pub fn words(&self, out: &Path) -> Result<Vec<String>> {
        let program = program("fixed")?.to_string_lossy().into_owned();
        let (units, cpu, out) = (self.units.to_string(), self.cpu.to_string(), out.to_string_lossy());
        let words = [&program, self.kind, &units, "--on", &cpu, "--out", &out];
        Ok(words.map(str::to_string).to_vec())
    }

    /// Runs alone.
    pub fn unsampled(&self) -> Result<Done> {
        let folder = tempfile::tempdir()?;
        let out = folder.path().join("done.json");
        let words = self.words(&out)?;
        run(Command::new(&words[0]).args(&words[1..]))?.expect_status(0)?;
        Done::read(&out)
    }

    /// Runs under `sweetspot record` with a budget; `calibrated` has the machine's calibration at hand.
    pub fn sampled(&self, budget: &str, calibrated: bool) -> Result<Sampled> {
        let sweetspot = Sweetspot::new();
        let out = sweetspot.path().join("done.json");
        let mut words = sweetspot.outputs();
        words.extend(["--budget", budget, "--"].map(str::to_string));
        words.extend(self.words(&out)?);
        let mut command = sweetspot.command("record", &words);
        if !calibrated {
            command.env("XDG_CACHE_HOME", sweetspot.path());
        }
        let before_s = children_cpu_s()?;
        let mut profiler = start(&mut command)?;
        let mut own = Vec::new();
        while profiler.try_wait()?.is_none() {
            own.push((monotonic_s()?, cpu_s(profiler.id())?));
            thread::sleep(LOOK);
        }
        let ended = finish(profiler)?.expect_status(0)?;
        let done = Done::read(&out).context(ended.stderr)?;
        let own_cpu_s = children_cpu_s()? - before_s - done.cpu_s;
        let stats = Stats::parse(&fs::read_to_string(sweetspot.file("stats.jsonl"))?)?;
        Ok(Sampled { done, own, own_cpu_s, stats })
    }
}
