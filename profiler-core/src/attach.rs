//! How to attach: events for each thread, or events for whole CPUs. Whichever costs less here and now.
//!
//! Events of threads cost the target at each of its context switches, and must be renewed for new threads. Events
//! of whole CPUs follow every thread by themselves, but interrupt whatever else runs there. Which is dearer
//! depends on the target and its neighbours, and shows only while it runs; so the cost is watched, and the other
//! way is tried when it might be cheaper.

use serde::Serialize;

/// The ways to attach, as `--attach-mode` names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AttachMode {
    /// Events of single threads.
    Task,
    /// Events of whole CPUs.
    Cpu,
}

impl AttachMode {
    /// The name on the command line and in outputs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Task => "task",
            Self::Cpu => "cpu",
        }
    }

    fn other(self) -> Self {
        match self {
            Self::Task => Self::Cpu,
            Self::Cpu => Self::Task,
        }
    }
}

/// Events beyond which single threads are not attached to unless nothing else is permitted.
const MANY_EVENTS: usize = 256;
/// Context switches of a target (per second of wall time) from which events of single threads are too dear to begin with:
/// at half a microsecond each, a fifth of a budget of 1%.
const MANY_SWITCHES_PER_S: f64 = 4000.0;
/// A cost below this share of the target's CPU time is not worth a change.
const WORTH_A_CHANGE: f64 = 0.002;
/// The other way must have cost less than this share of the present one.
const CLEARLY_CHEAPER: f64 = 0.5;
/// For so long a way is kept, and its cost is measured (ns).
const DWELL_NS: u64 = 1_000_000_000;
/// For so long a measured cost is believed (ns).
const BELIEVED_NS: u64 = 120_000_000_000;

/// What one way to attach has cost.
#[derive(Clone, Copy, Debug)]
struct Measured {
    /// Share of the target's CPU time.
    ratio: f64,
    at_ns: u64,
}

/// Chooses between the ways to attach by what each was seen to cost.
#[derive(Clone, Debug)]
pub struct AttachChoice {
    mode: AttachMode,
    /// Fixed by the user, or nothing else is permitted.
    fixed: bool,
    other_cost: Option<Measured>,
    since_ns: Option<u64>,
    extra_ns: f64,
    target_ns: f64,
}

impl AttachChoice {
    /// The way to begin with.
    ///
    /// `asked` is what the user wants, `cpu_permitted` what the kernel allows, `threads` and `cpus` the sizes of target
    /// and machine; `switches_per_s` how often the target was seen to switch.
    pub fn new(
        asked: Option<AttachMode>,
        cpu_permitted: bool,
        threads: usize,
        cpus: usize,
        switches_per_s: f64,
    ) -> Self {
        let many = threads.saturating_mul(cpus) > MANY_EVENTS || switches_per_s > MANY_SWITCHES_PER_S;
        let first = if cpu_permitted && many { AttachMode::Cpu } else { AttachMode::Task };
        Self {
            mode: asked.unwrap_or(first),
            fixed: asked.is_some() || !cpu_permitted,
            other_cost: None,
            since_ns: None,
            extra_ns: 0.0,
            target_ns: 0.0,
        }
    }

    /// The way in force.
    pub fn mode(&self) -> AttachMode {
        self.mode
    }

    /// The way that was changed to cannot be had; the one before is in force again, for good.
    pub fn refuse(&mut self) {
        self.mode = self.mode.other();
        self.fixed = true;
    }

    /// Takes in what the way in force has cost in a stretch of time beyond the target's samples, and the target's CPU
    /// time (ns). Returns the other way when it is time to change to it; it is then in force.
    pub fn observe(&mut self, now_ns: u64, extra_ns: f64, target_ns: f64) -> Option<AttachMode> {
        let since_ns = *self.since_ns.get_or_insert(now_ns);
        self.extra_ns += extra_ns;
        self.target_ns += target_ns;
        if self.fixed || now_ns.saturating_sub(since_ns) < DWELL_NS {
            return None;
        }
        let ratio = self.extra_ns / self.target_ns.max(1.0);
        (self.extra_ns, self.target_ns, self.since_ns) = (0.0, 0.0, Some(now_ns));
        let other = self.other_cost.filter(|other| now_ns.saturating_sub(other.at_ns) < BELIEVED_NS);
        let cheaper = other.is_none_or(|other| other.ratio < ratio * CLEARLY_CHEAPER);
        if ratio < WORTH_A_CHANGE || !cheaper {
            return None;
        }
        self.other_cost = Some(Measured { ratio, at_ns: now_ns });
        self.mode = self.mode.other();
        Some(self.mode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Runs for `seconds` where each way has its cost; returns the changes.
    fn run(choice: &mut AttachChoice, seconds: u64, task: f64, cpu: f64) -> Vec<AttachMode> {
        let step = |second: u64| {
            let ratio = if choice.mode() == AttachMode::Task { task } else { cpu };
            choice.observe(second * SECOND, ratio * 1e9, 1e9)
        };
        (0..seconds).filter_map(step).collect()
    }

    #[test]
    fn the_cheaper_way_is_found_and_kept() {
        let mut choice = AttachChoice::new(None, true, 2, 2, 0.0);
        assert_eq!(run(&mut choice, 60, 0.18, 0.03), [AttachMode::Cpu]);
        let mut choice = AttachChoice::new(None, true, 2, 2, 0.0);
        assert_eq!(run(&mut choice, 60, 0.0001, 0.03), []);
    }

    #[test]
    fn a_dearer_way_is_left_again_and_not_tried_for_a_while() {
        let mut choice = AttachChoice::new(None, true, 2, 2, 0.0);
        assert_eq!(run(&mut choice, 100, 0.003, 0.03), [AttachMode::Cpu, AttachMode::Task]);
    }

    #[test]
    fn a_way_that_cannot_be_had_is_not_tried_again() {
        let mut choice = AttachChoice::new(None, true, 2, 2, 0.0);
        assert_eq!(run(&mut choice, 5, 0.18, 0.0), [AttachMode::Cpu]);
        choice.refuse();
        assert_eq!(run(&mut choice, 60, 0.18, 0.0), []);
        assert_eq!(choice.mode(), AttachMode::Task);
    }

    #[test]
    fn what_was_asked_for_stays() {
        let mut choice = AttachChoice::new(Some(AttachMode::Task), true, 1000, 64, 1e6);
        assert_eq!(run(&mut choice, 60, 0.5, 0.0), []);
        assert_eq!(AttachChoice::new(None, false, 1000, 64, 1e6).mode(), AttachMode::Task);
        assert_eq!(AttachChoice::new(None, true, 1000, 64, 0.0).mode(), AttachMode::Cpu);
        assert_eq!(AttachChoice::new(None, true, 2, 2, 50_000.0).mode(), AttachMode::Cpu);
    }
}
