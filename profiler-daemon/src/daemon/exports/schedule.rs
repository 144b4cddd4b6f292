//! When an export tries next, and what is logged. Time and chance come in as arguments.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use profile_files::store::{ANOTHER_TURN_NS, Damage, OutboxFile, SendFault, SendOutcome};

use crate::daemon::journal::OncePerMinute;

const SECOND_NS: u64 = 1_000_000_000;
/// The longest pause between two attempts (ns).
const LONGEST_NS: u64 = 300 * SECOND_NS;
/// The longest pause after consecutive refused windows (ns): it leaves time to fix the settings.
const LONGEST_REFUSED_NS: u64 = 60 * SECOND_NS;
/// The longest pause that a backend may ask for (ns).
const LONGEST_ASKED_NS: u64 = 3600 * SECOND_NS;
/// A backend that asks to wait less is waited for as one that says nothing.
const SHORTEST_ASKED: Duration = Duration::from_secs(1);
/// The longest pause that CPU time makes (ns).
const LONGEST_PACED_NS: u64 = 60 * SECOND_NS;
/// Times that sending fails with a window, while others are taken, before it counts as refused: a backend that fails with one
/// of three at random loses one of four hundred.
const MOST_BLAMED: u32 = 5;
/// Most different reasons for refusals that are logged.
const MOST_REASONS: usize = 32;
/// Most files that are logged because they are damaged or cannot be read.
const MOST_UNREADABLE: usize = 32;

/// Why a window was not acknowledged.
#[derive(Debug)]
pub(super) enum Unsent {
    /// Its file is gone, or damaged.
    Lost(Option<Damage>),
    /// The export's rules drop it.
    LeftOut,
    /// The backend refuses it.
    Refused(String),
    /// The disk does not give its file, or not now.
    Unreadable(String),
    /// The backend takes no window at present.
    Failed {
        text: String,
        /// How long to wait, if the backend says so.
        after: Option<Duration>,
        /// How much of it may be the window's own fault.
        most_fault: SendFault,
    },
}

/// When an export tries next.
#[derive(Debug, Default)]
pub(super) struct ExportSchedule {
    /// Failures since the backend last took or refused a window.
    failures: u32,
    /// Whether the backend took or refused a window since its settings came into force: until then, no window is to blame.
    has_answered: bool,
    /// Windows refused since one was taken.
    refusals: u32,
    /// Files that could not be read since one could.
    unreadable: u32,
    next_ns: u64,
    paced_ns: u64,
}

impl ExportSchedule {
    /// The next attempt is not before this moment (ns).
    pub(super) fn due_ns(&self) -> u64 {
        self.next_ns.max(self.paced_ns)
    }

    /// Whether the last attempt had a file that can be read, and reached a backend that works.
    pub(super) fn is_well(&self) -> bool {
        self.failures == 0
    }

    /// What becomes of a window that was not acknowledged. `chance` is from 0 to 1.
    pub(super) fn judge(
        &mut self,
        now_ns: u64,
        file_to_send: &OutboxFile,
        unsent: &Unsent,
        chance: f64,
    ) -> SendOutcome {
        match unsent {
            Unsent::Lost(_) => SendOutcome::Lost,
            Unsent::LeftOut => SendOutcome::LeftOut,
            Unsent::Refused(_) => {
                self.unreadable = 0;
                self.has_answered = true;
                self.refused(now_ns);
                SendOutcome::Refused
            }
            Unsent::Unreadable(_) => {
                // The backend has not failed: its pauses grow no longer.
                let pause_ns = doubled(self.unreadable, ANOTHER_TURN_NS) as f64 * (0.5 + 0.5 * chance);
                self.unreadable = self.unreadable.saturating_add(1);
                self.failures = self.failures.max(1);
                self.next_ns = now_ns.saturating_add(pause_ns as u64);
                SendOutcome::Kept(SendFault::Possible)
            }
            Unsent::Failed { after, most_fault, .. } => {
                self.unreadable = 0;
                let is_new = file_to_send.failed_ns == 0
                    || now_ns.saturating_sub(file_to_send.failed_ns) >= ANOTHER_TURN_NS;
                let fault = match *most_fault {
                    SendFault::Blamed if !(is_new && self.is_well() && self.has_answered) => {
                        SendFault::Possible
                    }
                    most => most,
                };
                if fault == SendFault::Blamed && file_to_send.blamed + 1 >= MOST_BLAMED {
                    self.refused(now_ns);
                    return SendOutcome::Refused;
                }
                self.failed(now_ns, *after, chance);
                SendOutcome::Kept(fault)
            }
        }
    }

    /// A window was acknowledged.
    pub(super) fn taken(&mut self) {
        self.has_answered = true;
        (self.failures, self.refusals, self.unreadable, self.next_ns) = (0, 0, 0, 0);
    }

    /// A window was refused: the next one may be taken, but many refusals call for a fix.
    fn refused(&mut self, now_ns: u64) {
        (self.failures, self.refusals) = (0, self.refusals.saturating_add(1));
        let pause_ns = if self.refusals < 2 { 0 } else { doubled(self.refusals - 2, LONGEST_REFUSED_NS) };
        self.next_ns = now_ns.saturating_add(pause_ns);
    }

    /// The backend took nothing. The next attempt waits for as long as the backend asks, or ever longer; `chance`, from
    /// 0 to 1, keeps a thousand hosts from returning at once.
    fn failed(&mut self, now_ns: u64, after: Option<Duration>, chance: f64) {
        self.failures = self.failures.saturating_add(1);
        let pause_ns = match after {
            Some(after) if after >= SHORTEST_ASKED => {
                (after.as_nanos() as u64).min(LONGEST_ASKED_NS) as f64 * (1.0 + 0.1 * chance)
            }
            _ => doubled(self.failures - 1, LONGEST_NS) as f64 * (0.5 + 0.5 * chance),
        };
        self.next_ns = now_ns.saturating_add(pause_ns as u64);
    }

    /// A window took `spent_ns` of CPU time, and `cpus` CPUs may be used: the next one waits accordingly.
    pub(super) fn charge(&mut self, now_ns: u64, spent_ns: u64, cpus: f64) {
        let pause_ns = if cpus > 0.0 { spent_ns as f64 / cpus } else { 0.0 };
        self.paced_ns = now_ns.saturating_add((pause_ns as u64).min(LONGEST_PACED_NS));
    }

    /// What was wrong may have been mended: the next attempt waits no longer. What is known of the backend stays.
    pub(super) fn try_at_once(&mut self) {
        self.next_ns = 0;
    }

    /// Other settings are in force: they are tried at once.
    pub(super) fn begin_anew(&mut self) {
        *self = Self { paced_ns: self.paced_ns, ..Self::default() };
    }
}

/// A second, doubled `times` times, but at most `longest_ns`.
fn doubled(times: u32, longest_ns: u64) -> u64 {
    SECOND_NS.saturating_mul(1_u64.checked_shl(times).unwrap_or(u64::MAX)).min(longest_ns)
}

/// What was logged about an export.
#[derive(Debug, Default)]
pub(super) struct Talk {
    failing: OncePerMinute,
    failing_is_told: bool,
    unrecorded: OncePerMinute,
    reasons: BTreeSet<String>,
    unreadable: BTreeSet<PathBuf>,
}

impl Talk {
    /// Whether to say that it fails.
    pub(super) fn failed(&mut self, now_ns: u64) -> bool {
        let is_new = !self.failing_is_told && self.failing.allows(now_ns);
        self.failing_is_told |= is_new;
        is_new
    }

    /// Whether to say that it works again.
    pub(super) fn works(&mut self) -> bool {
        std::mem::take(&mut self.failing_is_told)
    }

    /// Whether to say why a window was refused: each reason is said once, whatever its figures.
    pub(super) fn refused(&mut self, reason: &str) -> bool {
        let words: String = reason.chars().filter(|c| !c.is_ascii_digit()).collect();
        self.reasons.len() < MOST_REASONS && self.reasons.insert(words)
    }

    /// Whether to say that a file is damaged or cannot be read: each is said once.
    pub(super) fn unreadable(&mut self, path: &Path) -> bool {
        self.unreadable.len() < MOST_UNREADABLE && self.unreadable.insert(path.to_owned())
    }

    /// Whether to say that the cursor cannot be written.
    pub(super) fn unrecorded(&mut self, now_ns: u64) -> bool {
        self.unrecorded.allows(now_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pauses_s(schedule: &mut ExportSchedule, after: Option<u64>, chance: f64, count: usize) -> Vec<f64> {
        let mut pause_s = || {
            schedule.failed(0, after.map(Duration::from_secs), chance);
            schedule.due_ns() as f64 / 1e9
        };
        (0..count).map(|_| pause_s()).collect()
    }

    #[test]
    fn pauses_double_up_to_a_bound_and_differ_between_hosts() {
        let mut schedule = ExportSchedule::default();
        let all = pauses_s(&mut schedule, None, 1.0, 70);
        assert_eq!(all[..4], [1.0, 2.0, 4.0, 8.0]);
        assert!(all[9..].iter().all(|pause_s| *pause_s == 300.0) && !schedule.is_well(), "{all:?}");
        schedule.taken();
        assert!(schedule.is_well() && schedule.due_ns() == 0);
        assert_eq!(pauses_s(&mut schedule, None, 0.0, 2), [0.5, 1.0]);
    }

    #[test]
    fn a_backend_says_how_long_it_is_left_alone() {
        let mut schedule = ExportSchedule::default();
        pauses_s(&mut schedule, None, 1.0, 9);
        assert_eq!(pauses_s(&mut schedule, Some(30), 0.0, 1), [30.0]);
        assert_eq!(pauses_s(&mut schedule, Some(30), 1.0, 1), [33.0]);
        assert_eq!(pauses_s(&mut schedule, Some(86_400), 0.0, 1), [3600.0], "but an hour at most");
    }

    #[test]
    fn one_refused_window_keeps_no_other_waiting_and_many_do() {
        let mut schedule = ExportSchedule::default();
        let mut pause_s = || {
            schedule.refused(0);
            schedule.due_ns() as f64 / 1e9
        };
        let all: Vec<f64> = (0..40).map(|_| pause_s()).collect();
        assert_eq!(all[..5], [0.0, 1.0, 2.0, 4.0, 8.0]);
        assert_eq!(all[39], 60.0);
        schedule.taken();
        schedule.refused(7);
        assert_eq!((schedule.due_ns(), schedule.is_well()), (7, true));
    }

    #[test]
    fn windows_are_sent_as_fast_as_cpu_time_allows() {
        let mut schedule = ExportSchedule::default();
        schedule.charge(SECOND_NS, 2_000_000, 0.002);
        assert_eq!(schedule.due_ns(), 2 * SECOND_NS);
        schedule.taken();
        assert_eq!(schedule.due_ns(), 2 * SECOND_NS, "whatever became of it");
        schedule.begin_anew();
        assert_eq!(schedule.due_ns(), 2 * SECOND_NS);
        schedule.charge(0, SECOND_NS, 1e-9);
        assert_eq!(schedule.due_ns(), LONGEST_PACED_NS);
        schedule.charge(5, SECOND_NS, 0.0);
        assert_eq!(schedule.due_ns(), 5, "nothing is known yet");
    }

    #[test]
    fn an_outage_and_each_reason_are_told_once() {
        let mut talk = Talk::default();
        assert!(!talk.works());
        assert!(talk.failed(SECOND_NS) && !talk.failed(2 * SECOND_NS) && talk.works() && !talk.works());
        assert!(!talk.failed(3 * SECOND_NS) && !talk.works(), "within a minute");
        assert!(talk.failed(62 * SECOND_NS) && talk.works());
        assert!(
            talk.refused("does not accept a body of 18 KiB")
                && !talk.refused("does not accept a body of 20 KiB")
        );
        assert!(talk.refused("bad labels"));
        let told =
            (b'a'..=b'z').chain(b'A'..=b'Z').filter(|c| talk.refused(&char::from(*c).to_string())).count();
        assert_eq!(told, MOST_REASONS - 2);
    }
}
