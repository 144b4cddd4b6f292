//! CPU time and wall-clock time that something takes.

use std::fmt;
use std::time::{Duration, Instant};

use nix::sys::resource::{Usage, UsageWho, getrusage};
use nix::sys::time::TimeValLike;

/// What was spent, and how often.
#[derive(Default)]
pub(crate) struct Spent {
    pub(crate) cpu: Duration,
    pub(crate) wall: Duration,
    count: u32,
}

impl Spent {
    /// Does `work`, and counts what all threads of this process spent on it.
    pub(crate) fn on<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let (begin, before) = (Instant::now(), cpu_time(UsageWho::RUSAGE_SELF));
        let done = work();
        self.cpu += cpu_time(UsageWho::RUSAGE_SELF) - before;
        self.wall += begin.elapsed();
        self.count += 1;
        done
    }

    pub(crate) fn mean_ms(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e3 / f64::from(self.count.max(1))
    }
}

impl fmt::Display for Spent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} s of CPU time, {:.2} s", self.cpu.as_secs_f64(), self.wall.as_secs_f64())
    }
}

/// CPU time so far, of this process or of its children that ended.
pub(crate) fn cpu_time(who: UsageWho) -> Duration {
    let total = |usage: Usage| usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Duration::from_micros(getrusage(who).map_or(0, |usage| total(usage) as u64))
}
