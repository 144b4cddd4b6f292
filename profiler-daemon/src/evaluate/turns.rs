//! The calibration program and its twin take turns, a byte in a pipe from one to the other: the twin, which
//! nobody samples, tells what the program would have taken without samples. In separate runs, a cost of a
//! percent disappears in the machine's noise.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nix::sys::stat::Mode;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::mkfifo;
use profiler_core::stats::twins::{self, Excess, Turn};

/// Which of the two a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Role {
    /// The one that is sampled.
    Program,
    /// The one that nobody samples.
    Twin,
}

impl Role {
    /// As it is written on the command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Program => "program",
            Self::Twin => "twin",
        }
    }

    fn times(self, folder: &Path) -> PathBuf {
        folder.join(self.name())
    }
}

/// The two pipes, by where they lead.
const TO_TWIN: &str = "to-twin";
const TO_PROGRAM: &str = "to-program";

/// Makes a folder fit for a pair of twins, anew.
pub(super) fn lay_out(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).context("a run's folder cannot be emptied")?;
    }
    fs::create_dir(folder).context("no folder for a run")?;
    for pipe in [TO_TWIN, TO_PROGRAM] {
        mkfifo(&folder.join(pipe), Mode::S_IRUSR | Mode::S_IWUSR).context("no pipe between the twins")?;
    }
    Ok(())
}

/// Does each part of the work in its turn, and leaves in the folder what each took.
pub(super) fn take<Part>(
    folder: &Path,
    role: Role,
    parts: impl Iterator<Item = Part>,
    mut work: impl FnMut(Part),
) -> Result<()> {
    let (to_twin, to_program) = (folder.join(TO_TWIN), folder.join(TO_PROGRAM));
    let open = |path: &Path, write: bool| {
        let file = if write { File::options().write(true).open(path) } else { File::open(path) };
        file.with_context(|| format!("{} cannot be used", path.display()))
    };
    // Each waits in here for the other to open its end, so both begin with the same pipe.
    let (mut mine, mut others) = match role {
        Role::Program => {
            let others = open(&to_twin, true)?;
            (open(&to_program, false)?, others)
        }
        Role::Twin => (open(&to_twin, false)?, open(&to_program, true)?),
    };
    let mut baton = [0];
    let mut times_ns = Vec::new();
    for (turn, part) in parts.enumerate() {
        if turn > 0 || role == Role::Twin {
            mine.read_exact(&mut baton).context("the other twin is gone")?;
        }
        let before_ns = cpu_ns()?;
        work(part);
        times_ns.push(cpu_ns()?.saturating_sub(before_ns));
        let passed = others.write_all(&baton);
        // The program may be through and gone when the twin's last turn ends.
        if passed.is_err() && role == Role::Program {
            bail!("the twin is gone");
        }
    }
    let text = serde_json::to_string(&times_ns)?;
    fs::write(role.times(folder), text).context("the times of the turns cannot be written")
}

fn cpu_ns() -> Result<u64> {
    let now = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).context("a process' CPU time is not known")?;
    Ok(now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}

/// What the program took more than its twin; `None` of too few turns.
pub(super) fn excess(folder: &Path) -> Result<Option<Excess>> {
    let times = |role: Role| -> Result<Vec<u64>> {
        let text = fs::read(role.times(folder)).context("a twin left no times")?;
        serde_json::from_slice(&text).context("a twin's times are incomplete")
    };
    let s = |ns: u64| ns as f64 * 1e-9;
    let both = times(Role::Twin)?.into_iter().zip(times(Role::Program)?);
    let turns: Vec<Turn> =
        both.map(|(twin, process)| Turn { twin_s: s(twin), process_s: s(process) }).collect();
    Ok(twins::excess(&turns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twins_take_turns_and_leave_their_times() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("turns");
        lay_out(&folder).unwrap();
        let order = std::sync::Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for role in [Role::Program, Role::Twin] {
                let (folder, order) = (&folder, &order);
                let noted = move |part: u32| order.lock().unwrap().push((part, role.name()));
                scope.spawn(move || take(folder, role, 0..300, noted).unwrap());
            }
        });
        let order = order.into_inner().unwrap();
        let expected: Vec<_> = (0..300).flat_map(|part| [(part, "program"), (part, "twin")]).collect();
        assert_eq!(order, expected);
        excess(&folder).unwrap();
        lay_out(&folder).unwrap();
        assert!(excess(&folder).is_err(), "of another run nothing may be left");
    }
}
