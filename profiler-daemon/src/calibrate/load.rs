//! How busy the machine was with other things while it was measured.

use crate::sys::procfs::machine_busy_ns;
use crate::sys::{clock, limits};

/// Share of the machine, or of the time that the work waited for its CPU, from which a calibration was taken under
/// load.
pub(super) const LOADED_FROM: f64 = 0.1;
/// Runnable tasks per CPU over the last minute below which a machine is quiet.
const QUIET_BELOW: f64 = 0.3;

/// A look at the machine's CPU time and ours.
pub(super) struct OtherLoad {
    at_ns: u64,
    busy_ns: u64,
    ours_ns: u64,
}

impl OtherLoad {
    /// Begins to watch.
    pub(super) fn watch() -> Self {
        Self { at_ns: clock::monotonic_ns(), busy_ns: machine_busy_ns(), ours_ns: clock::self_cpu_ns() }
    }

    /// Share of the machine's CPU time since then that was not ours, 0 to 1. `work_cpu_ns` was used by the work, where
    /// that is a process of its own.
    pub(super) fn of_others(&self, work_cpu_ns: u64) -> f64 {
        let ours_ns = clock::self_cpu_ns() - self.ours_ns + work_cpu_ns;
        let others_ns = machine_busy_ns().saturating_sub(self.busy_ns).saturating_sub(ours_ns) as f64;
        let whole_ns = (clock::monotonic_ns() - self.at_ns) as f64 * limits::online_cpus().len() as f64;
        (others_ns / whole_ns.max(1.0)).clamp(0.0, 1.0)
    }
}

/// Share of `wall_ns` in which work that never sleeps did not run, 0 to 1.
pub(super) fn waiting(cpu_ns: u64, wall_ns: u64) -> f64 {
    (1.0 - cpu_ns as f64 / wall_ns.max(1) as f64).clamp(0.0, 1.0)
}

/// Whether the machine has had little to do for a while.
pub(super) fn machine_is_quiet() -> bool {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    is_quiet(&text, limits::online_cpus().len())
}

fn is_quiet(loadavg: &str, cpus: usize) -> bool {
    let running = loadavg.split(' ').next().and_then(|first| first.parse::<f64>().ok());
    running.is_some_and(|running| running < QUIET_BELOW * cpus as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quiet_machine_has_few_runnable_tasks_per_cpu() {
        assert!(is_quiet("0.50 2.00 3.00 1/98 15635", 2));
        assert!(!is_quiet("0.50 0.00 0.00 1/98 15635", 1));
        assert!(!is_quiet("", 64));
    }

    #[test]
    fn work_that_ran_all_the_time_did_not_wait() {
        assert_eq!(waiting(100, 100), 0.0);
        assert_eq!(waiting(75, 100), 0.25);
        assert_eq!((waiting(5, 0), waiting(0, 0)), (0.0, 1.0));
    }
}
