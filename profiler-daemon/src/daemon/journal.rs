//! The log for an operator: what runs, which targets appear, end, fail and are left out, what is not kept, and when
//! profiling exceeds the host's budget.
//!
//! A message is complete in itself, since journal readers show only the message; its fields repeat the facts for
//! programs. No cause writes more than a few lines a minute: services that restart all the time would fill the disk.

use std::collections::BTreeMap;

use profile_files::names::visible;

use super::Daemon;
use super::window_writer::WindowWriter;
use crate::discovery::TargetId;
use crate::service::state::{StoreStatus, TargetState};

const MINUTE_NS: u64 = 60_000_000_000;
/// Lines about targets in a minute.
const MOST_LINES: u64 = 20;
/// How long a target must be without a process before that is logged (ns): it stays attached to meanwhile, and programs
/// may restart.
const LINGER_NS: u64 = MINUTE_NS;
/// Targets of the settings that are named at the start.
const NAMED: usize = 5;
/// An overhead of ten seconds is logged if it exceeds the host's budget by this factor.
const OVERRUN: f64 = 1.05;

/// What was written so far.
#[derive(Debug, Default)]
pub(super) struct Journal {
    known: BTreeMap<TargetId, KnownTarget>,
    lines: LineLimit,
    store: StoreLog,
    elsewhere: LeftFolders,
    overrun: Overrun,
}

/// When it is logged that the host's budget is exceeded: at once, and then once a minute with the most since the line before.
#[derive(Debug, Default)]
struct Overrun {
    lines: OncePerMinute,
    most_ratio: f64,
}

impl Overrun {
    /// Ten seconds took `spent_ratio` of the host; what to say of them and of those before that were not logged.
    fn observe(&mut self, now_ns: u64, spent_ratio: f64, budget_ratio: f64) -> Option<f64> {
        if spent_ratio > OVERRUN * budget_ratio {
            self.most_ratio = self.most_ratio.max(spent_ratio);
        }
        let is_told = self.most_ratio > 0.0 && self.lines.allows(now_ns);
        is_told.then(|| std::mem::take(&mut self.most_ratio))
    }
}

/// The state of a target at the last observation.
#[derive(Debug)]
struct KnownTarget {
    name: String,
    state: TargetState,
    /// Since when it has had no process, if that is not logged yet (ns).
    empty_since_ns: Option<u64>,
}

/// The present state of a target.
struct SeenTarget {
    id: TargetId,
    name: String,
    state: TargetState,
    processes: usize,
    /// Whether it has a process to sample; `everything` always has.
    has_processes: bool,
    reason: Option<String>,
}

/// A change of a target's state.
#[derive(Debug, PartialEq, Eq)]
enum StateChange {
    Sampled { processes: usize },
    NoProcess,
    LeftOut { reason: String },
    Failed { reason: String },
    Gone,
}

/// Limits the lines per minute, and counts those left out.
#[derive(Debug, Default)]
struct LineLimit {
    since_ns: u64,
    written: u64,
    left_out: u64,
}

impl LineLimit {
    /// Whether another line may be written.
    fn allows(&mut self) -> bool {
        let allows = self.written < MOST_LINES;
        *(if allows { &mut self.written } else { &mut self.left_out }) += 1;
        allows
    }

    /// How many lines were left out in a minute that is over.
    fn take_left_out(&mut self, now_ns: u64) -> Option<u64> {
        if now_ns.saturating_sub(self.since_ns) < MINUTE_NS {
            return None;
        }
        let left_out = std::mem::take(self).left_out;
        self.since_ns = now_ns;
        (left_out > 0).then_some(left_out)
    }
}

/// Whether a message may be repeated.
#[derive(Debug, Default)]
pub(super) struct OncePerMinute(Option<u64>);

impl OncePerMinute {
    pub(super) fn allows(&mut self, now_ns: u64) -> bool {
        let allows = self.0.is_none_or(|at_ns| now_ns.saturating_sub(at_ns) >= MINUTE_NS);
        if allows {
            self.0 = Some(now_ns);
        }
        allows
    }
}

/// What was logged about the store.
#[derive(Debug, Default)]
struct StoreLog {
    problem: OncePerMinute,
    problem_is_told: bool,
    dropped: OncePerMinute,
    told: Dropped,
}

/// The window writer of a folder that the settings no longer name. It stores the windows that it still has, then ends.
pub(super) struct LeavingWriter {
    pub(super) writer: WindowWriter,
    /// What was logged of the windows that it dropped.
    pub(super) told: Dropped,
}

/// Windows in folders of earlier settings, which are no longer used.
#[derive(Debug, Default)]
struct LeftFolders {
    written: u64,
    dropped: Dropped,
}

impl LeftFolders {
    /// Adds a folder; what is to be logged if `told` was logged of the windows that were dropped there.
    fn add(&mut self, status: &StoreStatus, told: Dropped) -> Option<StoreEvent> {
        let dropped = Dropped::of(status);
        self.written += status.counters.written;
        self.dropped = self.dropped.plus(dropped);
        let not_told = dropped.since(told);
        (not_told.all() > 0).then_some(StoreEvent::Dropped(not_told))
    }
}

/// Windows that were not kept, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Dropped {
    queue: u64,
    full: u64,
    refused: u64,
}

impl Dropped {
    pub(super) fn of(status: &StoreStatus) -> Self {
        let counters = &status.counters;
        Self { queue: status.dropped_queue, full: counters.dropped_full, refused: counters.dropped_refused }
    }

    fn all(self) -> u64 {
        self.queue + self.full + self.refused
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            queue: self.queue + other.queue,
            full: self.full + other.full,
            refused: self.refused + other.refused,
        }
    }

    /// Adds them to the counters of a status.
    pub(super) fn add_to(self, status: &mut StoreStatus) {
        status.dropped_queue += self.queue;
        status.counters.dropped_full += self.full;
        status.counters.dropped_refused += self.refused;
    }

    /// Windows dropped since `before`.
    fn since(self, before: Self) -> Self {
        Self {
            queue: self.queue.saturating_sub(before.queue),
            full: self.full.saturating_sub(before.full),
            refused: self.refused.saturating_sub(before.refused),
        }
    }

    fn in_words(self) -> String {
        let causes = [
            (self.queue, "limits.queue was full"),
            (self.full, "there was no room on the disk or in store.bytes"),
            (self.refused, "they could not be named or written"),
        ];
        let causes = causes.iter().filter(|(count, _)| *count > 0);
        causes.map(|(count, cause)| format!("{count} because {cause}")).collect::<Vec<_>>().join(", ")
    }
}

/// An event of the store to be logged.
#[derive(Debug, PartialEq, Eq)]
enum StoreEvent {
    NotKept(String),
    KeptAgain,
    Dropped(Dropped),
}

impl StoreLog {
    fn observe(&mut self, now_ns: u64, status: &StoreStatus) -> Vec<StoreEvent> {
        let mut events = Vec::new();
        match &status.problem {
            Some(problem) if !self.problem_is_told && self.problem.allows(now_ns) => {
                self.problem_is_told = true;
                events.push(StoreEvent::NotKept(visible(problem)));
            }
            None if self.problem_is_told => {
                self.problem_is_told = false;
                events.push(StoreEvent::KeptAgain);
            }
            _ => {}
        }
        let all = Dropped::of(status);
        let dropped = all.since(self.told);
        if dropped.all() > 0 && self.dropped.allows(now_ns) {
            self.told = all;
            events.push(StoreEvent::Dropped(dropped));
        }
        events
    }
}

impl Journal {
    /// The settings name another folder than that of `writer`.
    pub(super) fn leave_store(&mut self, writer: WindowWriter) -> LeavingWriter {
        LeavingWriter { writer, told: std::mem::take(&mut self.store.told) }
    }

    /// The writer of a folder that is no longer used has ended, with this status.
    pub(super) fn left_store(&mut self, status: &StoreStatus, told: Dropped) {
        let event = self.elsewhere.add(status, told);
        event.iter().for_each(|event| write_of_store(&visible(&status.folder), event));
    }

    /// Windows that were kept in folders no longer used.
    pub(super) fn windows_elsewhere(&self) -> u64 {
        self.elsewhere.written
    }

    /// Windows that were dropped in folders no longer used.
    pub(super) fn dropped_elsewhere(&self) -> Dropped {
        self.elsewhere.dropped
    }

    /// The changes of targets since the last call.
    fn observe(&mut self, now_ns: u64, all: Vec<SeenTarget>) -> Vec<(String, StateChange)> {
        let mut events = Vec::new();
        let mut gone = std::mem::take(&mut self.known);
        for SeenTarget { id, name, state, processes, has_processes, reason } in all {
            let known = gone.remove(&id);
            let before = known.as_ref().map_or(TargetState::Waiting, |known| known.state);
            let is_empty = state == TargetState::Waiting && !has_processes && before != TargetState::Waiting;
            let since_ns = known.and_then(|known| known.empty_since_ns).unwrap_or(now_ns);
            let is_said = now_ns.saturating_sub(since_ns) >= LINGER_NS;
            let empty_since_ns = (is_empty && !is_said).then_some(since_ns);
            // One that waits although it has processes is about to be attached to, perhaps in another way.
            let state = match state {
                TargetState::Waiting if has_processes || empty_since_ns.is_some() => before,
                state => state,
            };
            let reason = || visible(reason.as_deref().unwrap_or("no reason is known"));
            let event = match state {
                _ if state == before => None,
                TargetState::Sampled => Some(StateChange::Sampled { processes }),
                TargetState::Waiting => Some(StateChange::NoProcess),
                TargetState::LeftOut => Some(StateChange::LeftOut { reason: reason() }),
                TargetState::Failed => Some(StateChange::Failed { reason: reason() }),
            };
            events.extend(event.map(|event| (name.clone(), event)));
            self.known.insert(id, KnownTarget { name, state, empty_since_ns });
        }
        // Targets without a process are already logged.
        let gone = gone.into_values().filter(|known| known.state != TargetState::Waiting);
        events.extend(gone.map(|known| (known.name, StateChange::Gone)));
        events
    }
}

fn write(target: &str, event: &StateChange) {
    match event {
        StateChange::Sampled { processes: processes @ 0..=1 } => {
            tracing::info!(target, processes, "{target} is sampled");
        }
        StateChange::Sampled { processes } => {
            tracing::info!(target, processes, "{target} is sampled: {processes} processes");
        }
        StateChange::NoProcess => tracing::info!(target, "{target} has no process any more"),
        StateChange::LeftOut { reason } => tracing::warn!(target, reason, "{target} is left out: {reason}"),
        StateChange::Failed { reason } => {
            tracing::warn!(target, reason, "{target} cannot be sampled: {reason}")
        }
        StateChange::Gone => tracing::info!(target, "{target} is no longer profiled"),
    }
}

fn write_of_store(folder: &str, event: &StoreEvent) {
    match event {
        StoreEvent::NotKept(reason) => {
            tracing::warn!(store = folder, reason, "profiles are not stored: {reason}");
        }
        StoreEvent::KeptAgain => tracing::info!(store = folder, "profiles are stored again"),
        StoreEvent::Dropped(dropped) => {
            let (windows, reason) = (dropped.all(), dropped.in_words());
            tracing::warn!(store = folder, windows, reason, "{windows} windows were dropped: {reason}");
        }
    }
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

impl Daemon {
    /// Logs the start: a line each for version, settings, targets and store.
    pub(super) fn log_start(&self) {
        let (version, pid) = (env!("CARGO_PKG_VERSION"), std::process::id());
        tracing::info!(version, pid, "sweetspot {version} runs as process {pid}");
        match self.reloads.file() {
            Some(file) => {
                tracing::info!(settings = %file.display(), "settings: {}", visible(&file.to_string_lossy()));
            }
            None => tracing::info!("settings: the defaults (there is no file)"),
        }
        let targets = self.settings.targets.len();
        let in_words = |target: &config::TargetSettings| format!("{} ({})", target.name, target.in_words());
        let mut named: Vec<String> = self.settings.targets.iter().take(NAMED).map(in_words).collect();
        let more = targets.saturating_sub(NAMED);
        named.extend((more > 0).then(|| format!("{more} more")));
        let how = if named.is_empty() {
            "nothing until a request adds a target".to_owned()
        } else {
            named.join(", ")
        };
        tracing::info!(targets, "targets: {}", visible(&how));
        if let Some(address) = self.reporting.server.address() {
            tracing::info!(address = %address, "also listening on {address}");
        }
        let status = self.profiles.writer.status();
        let (folder, files, bytes) = (visible(&status.folder), status.files, status.bytes);
        tracing::info!(
            store = folder,
            files,
            bytes,
            "store: {folder}, {files} files, {:.1} MiB of at most {}, for {}",
            mebibytes(bytes),
            self.settings.store.bytes,
            self.settings.store.age,
        );
    }

    /// Logs what changed since the last call, a second ago.
    pub(super) fn log_changes(&mut self, now_ns: u64) {
        let seen = |(id, watched): (&TargetId, &super::Watched)| SeenTarget {
            id: *id,
            name: watched.identity.name.clone(),
            state: watched.shown_state(),
            processes: watched.processes.len(),
            has_processes: watched.has_processes(),
            reason: watched.reason().map(str::to_owned),
        };
        let all = self.targets.iter().map(seen).collect();
        if let Some(left_out) = self.reporting.journal.lines.take_left_out(now_ns) {
            tracing::info!(
                left_out,
                "{left_out} more lines about targets were omitted; `sweetspot ctl targets` lists all targets"
            );
        }
        for (target, event) in self.reporting.journal.observe(now_ns, all) {
            if self.reporting.journal.lines.allows() {
                write(&target, &event);
            }
        }
        let status = self.profiles.writer.status();
        let events = self.reporting.journal.store.observe(now_ns, &status);
        events.iter().for_each(|event| write_of_store(&visible(&status.folder), event));
        self.profiles.exports.log_dropped(now_ns);
        let (spent_ratio, budget_ratio) =
            (self.accounts.host.counted_10s_ratio(), self.settings.budget.host.get());
        if let Some(most_ratio) = self.reporting.journal.overrun.observe(now_ns, spent_ratio, budget_ratio) {
            tracing::warn!(
                spent_ratio = most_ratio,
                budget_ratio,
                "profiling took {:.2}% of the host's CPU time in ten seconds (without set-up); the budget \
                 is {:.2}%",
                most_ratio * 100.0,
                budget_ratio * 100.0
            );
        }
    }
}

/// Logs the end: windows kept since the start, in any folder, and windows lost at the end.
pub(super) fn log_end(store: &StoreStatus, windows: u64, lost: u64) {
    let (folder, files) = (visible(&store.folder), store.files);
    tracing::info!(
        store = folder,
        windows,
        lost,
        "stopped: {windows} windows stored since the start, {lost} lost; {files} files in {folder}"
    );
}

#[cfg(test)]
mod tests {
    use profile_files::store::Counters;

    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    fn seen(id: u32, state: TargetState, processes: usize) -> SeenTarget {
        let reason = Some("no\nroom".to_owned());
        SeenTarget {
            id: TargetId::of_number(id),
            name: format!("t{id}"),
            state,
            processes,
            has_processes: processes > 0,
            reason,
        }
    }

    #[test]
    fn a_target_has_a_line_when_it_becomes_another() {
        let mut journal = Journal::default();
        let mut now_ns = 0;
        let mut observe = |all: &[(u32, TargetState, usize)]| {
            now_ns += 40 * SECOND_NS;
            let all = all.iter().map(|(id, state, processes)| seen(*id, *state, *processes)).collect();
            journal.observe(now_ns, all)
        };
        let line = |id: u32, event| (format!("t{id}"), event);
        assert_eq!(observe(&[(1, TargetState::Waiting, 0), (2, TargetState::Waiting, 3)]), []);
        let now = [(1, TargetState::Sampled, 2), (2, TargetState::Failed, 3)];
        let failed = StateChange::Failed { reason: "no room".to_owned() };
        assert_eq!(observe(&now), [line(1, StateChange::Sampled { processes: 2 }), line(2, failed)]);
        assert_eq!(observe(&now), [], "nothing is said twice");
        // Attached to in another way, and back.
        assert_eq!(observe(&[(1, TargetState::Waiting, 2), now[1]]), []);
        assert_eq!(observe(&now), []);
        let left_out = StateChange::LeftOut { reason: "no room".to_owned() };
        let empty = [(1, TargetState::Waiting, 0), (2, TargetState::LeftOut, 3)];
        assert_eq!(observe(&empty), [line(2, left_out)]);
        assert_eq!(observe(&empty), [], "it may have another soon");
        assert_eq!(observe(&[now[0], empty[1]]), [], "as it has");
        assert_eq!((observe(&empty), observe(&empty)), (vec![], vec![]));
        assert_eq!(observe(&empty), [line(1, StateChange::NoProcess)], "after a minute");
        assert_eq!(observe(&empty), []);
        assert_eq!(observe(&[]), [line(2, StateChange::Gone)], "the other has had its line");
    }

    #[test]
    fn lines_are_so_many_a_minute_and_then_a_count() {
        let mut limit = LineLimit::default();
        let mut now_ns = 100 * MINUTE_NS;
        assert_eq!(limit.take_left_out(now_ns), None);
        for minute in 0..3 {
            let written = (0..MOST_LINES + 7).filter(|_| limit.allows()).count() as u64;
            assert_eq!(written, MOST_LINES, "{minute}");
            assert_eq!(limit.take_left_out(now_ns + MINUTE_NS - 1), None);
            now_ns += MINUTE_NS;
            assert_eq!(limit.take_left_out(now_ns), Some(7));
        }
        assert!(limit.allows());
        assert_eq!(limit.take_left_out(now_ns + MINUTE_NS), None, "none was left out");
    }

    #[test]
    fn a_full_disk_its_end_and_what_it_cost_are_told_once() {
        let status = |problem: Option<&str>, dropped_full| StoreStatus {
            problem: problem.map(str::to_owned),
            counters: Counters { dropped_full, ..Counters::default() },
            ..StoreStatus::default()
        };
        let mut log = StoreLog::default();
        let lost = |full| StoreEvent::Dropped(Dropped { full, ..Dropped::default() });
        assert_eq!(log.observe(0, &status(None, 0)), []);
        let full = StoreEvent::NotKept("the disk is full".to_owned());
        assert_eq!(log.observe(SECOND_NS, &status(Some("the disk\nis full"), 1)), [full, lost(1)]);
        assert_eq!(log.observe(2 * SECOND_NS, &status(Some("another text"), 4)), []);
        assert_eq!(log.observe(3 * SECOND_NS, &status(None, 4)), [StoreEvent::KeptAgain]);
        assert_eq!(log.observe(4 * SECOND_NS, &status(Some("full again"), 4)), [], "within a minute");
        assert_eq!(log.observe(5 * SECOND_NS, &status(None, 4)), [], "of which nothing was said");
        let later = log.observe(61 * SECOND_NS, &status(Some("full again"), 6));
        assert_eq!(later, [StoreEvent::NotKept("full again".to_owned()), lost(5)]);
        // Another folder, whose counters begin anew.
        log.told = Dropped::default();
        assert_eq!(log.observe(121 * SECOND_NS, &status(None, 2)), [StoreEvent::KeptAgain, lost(2)]);
    }

    #[test]
    fn what_a_folder_dropped_that_is_no_longer_used_is_logged_and_counted() {
        let status = |written, dropped_refused, dropped_queue| StoreStatus {
            counters: Counters { written, dropped_refused, ..Counters::default() },
            dropped_queue,
            ..StoreStatus::default()
        };
        let (mut log, mut left) = (StoreLog::default(), LeftFolders::default());
        let dropped = |refused, queue| Dropped { refused, queue, ..Dropped::default() };
        assert_eq!(log.observe(0, &status(5, 1, 0)), [StoreEvent::Dropped(dropped(1, 0))]);
        let told = std::mem::take(&mut log.told);
        assert_eq!(left.add(&status(7, 3, 2), told), Some(StoreEvent::Dropped(dropped(2, 2))));
        assert_eq!(left.add(&status(1, 0, 0), Dropped::default()), None);
        assert_eq!((left.written, left.dropped), (8, dropped(3, 2)));
        let mut shown = status(2, 1, 0);
        left.dropped.add_to(&mut shown);
        assert_eq!(Dropped::of(&shown), dropped(4, 2));
    }

    #[test]
    fn windows_are_dropped_for_causes() {
        let dropped = Dropped { queue: 3, full: 0, refused: 1 };
        assert_eq!(
            dropped.in_words(),
            "3 because limits.queue was full, 1 because they could not be named or written"
        );
    }

    #[test]
    fn an_overrun_is_told_at_once_and_its_worst_within_a_minute() {
        let mut overrun = Overrun::default();
        let spent_ratio = |second| match second {
            5 => 0.0161,
            6..=20 => 0.17,
            131.. => 0.02,
            _ => 0.01,
        };
        let told: Vec<(u64, f64)> = (0..=200)
            .filter_map(|second| {
                Some((second, overrun.observe(second * SECOND_NS, spent_ratio(second), 0.01)?))
            })
            .collect();
        assert_eq!(told, [(5, 0.0161), (65, 0.17), (131, 0.02), (191, 0.02)]);
    }
}
