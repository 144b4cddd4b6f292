//! What becomes of windows on a thread that meets bad ones, slow disks and an end.

use profiler_core::aggregate::{Aggregator, Chain};
use profiler_core::process::ProcessTable;
use profiler_core::profile::Outcome;
use tempfile::TempDir;
use tokio::sync::oneshot;

use super::*;
use crate::jit::Generated;
use crate::objects::ObjectStore;
use crate::service::command::Flush;

const SECOND: u64 = 1_000_000_000;

fn bounds() -> store::StoreTerms {
    let ever = u64::MAX;
    store::StoreTerms { age_ns: ever, bytes: 1 << 30, hourly_after_ns: ever, daily_after_ns: ever }
}

fn writer(folder: &TempDir, most_bytes: u64) -> WindowWriter {
    WindowWriter::start(folder.path(), bounds(), most_bytes, None, &Symbols::new(1 << 20)).unwrap()
}

/// A second of a target with a sample; without processes it means nothing, and naming it panics.
fn pending(target: &str, from_ns: u64, has_process: bool) -> PendingWindow {
    let mut processes = ProcessTable::default();
    processes.adopt(1, "a");
    let mut counted = Aggregator::default();
    let chain = Chain { kernel: &[], user: &[16], outcome: Outcome::Complete };
    counted.add(processes.get(1).unwrap(), chain, SECOND);
    counted.close_window(SECOND, 1.0);
    let collected = Collected {
        charged_ns: 0.0,
        counted,
        processes: if has_process { processes.infos().into() } else { Arc::default() },
        objects: ObjectStore::new(&Symbols::new(1 << 20)).snapshot(),
        generated: Generated::default(),
        span: from_ns..from_ns + SECOND,
        is_last: true,
    };
    let window = TargetWindow {
        target: target.to_owned(),
        labels: BTreeMap::from([("of".to_owned(), target.to_owned())]),
        boot: String::new(),
        from_ns,
        to_ns: from_ns + SECOND,
        begin_unix_ns: 1_794_787_200 * SECOND + from_ns,
    };
    let run = Run { start_unix_ns: window.begin_unix_ns, duration_s: 1.0, ..Run::default() };
    PendingWindow { window, collected, scale: 1.0, run, bytes: 40 }
}

/// Asks for the windows of targets that end from a moment on.
fn flush(writer: &WindowWriter, targets: &[&str], asked_ns: u64) -> Result<(), CommandRefused> {
    let (reply, answer) = oneshot::channel();
    let targets = targets.iter().map(ToString::to_string).collect();
    writer.flush(vec![FlushWaiter::new(Flush { targets, ..Flush::default() }, asked_ns, reply)]);
    answer.blocking_recv().unwrap()
}

fn soon() -> (Instant, Instant) {
    let until = Instant::now() + Duration::from_secs(60);
    (until, until)
}

/// So little that every window waits for it.
fn starve(writer: &WindowWriter) {
    writer.allow(1e-9, -1.0);
}

#[test]
fn a_window_that_panics_is_lost_and_the_next_one_is_kept() {
    let folder = TempDir::new().unwrap();
    let writer = writer(&folder, 1 << 20);
    writer.keep(pending("web", 0, true));
    writer.keep(pending("web", SECOND, false));
    assert!(flush(&writer, &[], 0).is_err());
    let status = writer.status();
    assert!(status.problem.as_ref().is_some_and(|problem| problem.contains("internal error")), "{status:?}");
    assert_eq!((status.counters.dropped_refused, status.queued_bytes, writer.has_ended()), (1, 0, false));
    writer.keep(pending("web", 2 * SECOND, true));
    flush(&writer, &[], clock::monotonic_ns()).unwrap();
    assert_eq!((writer.status().problem, writer.kept("web").windows), (None, 2));
    assert_eq!(end_of(writer.finish(soon().0, soon().1)), (1, 0));
}

#[test]
fn who_waits_is_told_of_the_windows_that_he_waits_for() {
    let folder = TempDir::new().unwrap();
    let writer = writer(&folder, 1 << 20);
    let before_ns = clock::monotonic_ns();
    writer.keep(pending("db", 0, true));
    writer.keep(pending("db", SECOND / 2, true)); // a part of its time is kept already
    writer.keep(pending("web", 0, true));
    flush(&writer, &["web"], before_ns).unwrap();
    for targets in [&["db"][..], &["web", "db"], &[]] {
        let error = flush(&writer, targets, before_ns).unwrap_err().to_string();
        assert!(error.contains("of db, a window was not kept"), "{error}");
    }
    flush(&writer, &[], clock::monotonic_ns()).unwrap();
}

#[test]
fn the_first_window_of_a_target_says_nothing_of_what_the_next_ones_cost() {
    let folder = TempDir::new().unwrap();
    let writer = writer(&folder, 1 << 20);
    let spent_after = |target: &str, from_ns: u64| {
        writer.keep(pending(target, from_ns, true));
        flush(&writer, &[], clock::monotonic_ns()).unwrap();
        writer.spent()
    };
    let of_first_windows = [spent_after("web", 0), spent_after("db", 0)];
    assert_eq!(of_first_windows.map(|(windows, _)| windows), [0, 0]);
    assert!(writer.shared.state().first_windows_ns > 0);
    let first_windows_ns = writer.shared.state().first_windows_ns;
    assert_eq!(spent_after("web", SECOND).0, 1);
    assert_eq!(writer.shared.state().first_windows_ns, first_windows_ns, "the second one is counted");
}

#[test]
fn what_is_dropped_because_too_much_waits_is_told() {
    let folder = TempDir::new().unwrap();
    let writer = writer(&folder, 100);
    starve(&writer);
    writer.keep(pending("web", 0, true));
    writer.keep(PendingWindow { bytes: 70, ..pending("web", SECOND, true) });
    let status = writer.status();
    assert_eq!((status.dropped_queue, writer.lost()), (1, 1));
    assert!(status.problem.as_ref().is_some_and(|problem| problem.contains("were dropped")), "{status:?}");
    writer.allow(0.0, 0.0);
    assert!(flush(&writer, &["web"], 0).is_err());
    assert_eq!(writer.status().problem, None, "one was kept since");
    assert_eq!(end_of(writer.finish(soon().0, soon().1)), (1, 0));
}

/// Windows that were lost, and those that are left to the next process.
fn end_of(finished: Finished) -> (u64, u64) {
    (finished.lost, finished.unnamed)
}

/// Waits until all windows that were handed over are on the disk, or cannot be.
fn wait_until_spooled(writer: &WindowWriter) {
    while writer.shared.state().handed.iter().any(|handed| handed.is_spooled.is_none()) {
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn an_end_leaves_what_it_has_no_time_to_name_to_the_next_start() {
    let folder = TempDir::new().unwrap();
    let first = writer(&folder, 1 << 20);
    first.keep(pending("web", 0, true));
    flush(&first, &[], 0).unwrap();
    starve(&first);
    first.keep(pending("web", SECOND, true));
    first.keep(pending("web", 2 * SECOND, true));
    wait_until_spooled(&first);
    first.shared.cancel.set();
    assert_eq!(end_of(first.finish(Instant::now(), soon().1)), (0, 2));
    let next = recovered(&folder);
    assert_eq!((spans(&folder), next.recovered), (seconds(3), 2));
}

#[test]
fn an_end_counts_as_lost_what_is_nowhere() {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("unnamed"), "not a folder").unwrap();
    let writer = writer(&folder, 1 << 20);
    starve(&writer);
    writer.keep(pending("web", 0, true));
    writer.keep(pending("web", SECOND, true));
    wait_until_spooled(&writer);
    let status = writer.status();
    assert_eq!(status.unspooled, 2);
    assert!(
        status.notes.iter().any(|note| note.starts_with("2 windows wait for names in memory only")),
        "{status:?}"
    );
    let now = Instant::now();
    assert_eq!(end_of(writer.finish(now, now)), (2, 0));
}

#[test]
fn a_window_that_limits_queue_keeps_off_the_disk_does_not_blame_the_disk() {
    let folder = TempDir::new().unwrap();
    let writer = writer(&folder, 6 << 10); // a file takes a block of 4 KiB
    starve(&writer);
    writer.keep(pending("web", 0, true));
    writer.keep(pending("web", SECOND, true));
    wait_until_spooled(&writer);
    let status = writer.status();
    assert_eq!((status.unspooled, status.unnamed_files), (1, 1));
    let is_right = |note: &String| note.contains("limits.queue") && !note.contains("disk is full");
    assert!(status.notes.iter().any(is_right), "{status:?}");
}

/// Names what was left in a folder; what was counted.
fn recovered(folder: &TempDir) -> store::Counters {
    let writer = loop {
        // The lock of the one before may be held for a moment.
        match WindowWriter::start(folder.path(), bounds(), 1 << 20, None, &Symbols::new(1 << 20)) {
            Err(StoreError::Busy(_)) => std::thread::sleep(Duration::from_millis(20)),
            started => break started.unwrap(),
        }
    };
    while writer.status().unnamed_files > 0 {
        std::thread::sleep(Duration::from_millis(2));
    }
    let state = Arc::clone(&writer.shared.state);
    assert_eq!(writer.finish(soon().0, soon().1).unnamed, 0);
    state.lock().unwrap().store.counters
}

/// The time of every window that a reader of a folder sees (ns), in order; each has one sample.
fn spans(folder: &TempDir) -> Vec<(u64, u64)> {
    let mut spans = Vec::new();
    for at in 0..10 {
        let start = 1_794_787_200 * SECOND + at * SECOND;
        let range = profiler_core::merge::Range { from_unix_ns: start, to_unix_ns: start + SECOND };
        let reading = store::read(folder.path(), &store::Query::all(range), &|| true).unwrap();
        let samples: u64 = reading.profile.stacks.iter().map(|stack| stack.samples).sum();
        assert!(samples <= 1, "{samples} samples of second {at}");
        spans.extend((samples == 1).then_some((at * SECOND, (at + 1) * SECOND)));
    }
    spans
}

fn seconds(count: u64) -> Vec<(u64, u64)> {
    (0..count).map(|at| (at * SECOND, (at + 1) * SECOND)).collect()
}

/// What a process would leave that is killed now.
fn copy(from: &Path) -> TempDir {
    let to = TempDir::new().unwrap();
    let copied = std::process::Command::new("cp").arg("-a").arg(from.join(".")).arg(to.path()).status();
    assert!(copied.unwrap().success());
    to
}

fn put_back(from: &TempDir, to: &TempDir) {
    let (from, to) = (from.path().join("unnamed"), to.path().join("unnamed"));
    for file in std::fs::read_dir(from).unwrap().flatten() {
        std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

/// Hidden files are empty, and there for the next windows.
fn windows_without_names(folder: &TempDir) -> usize {
    let files = std::fs::read_dir(folder.path().join("unnamed")).unwrap().flatten();
    files.filter(|file| !file.file_name().to_string_lossy().starts_with('.')).count()
}

#[test]
fn whenever_the_process_is_killed_every_window_that_was_handed_over_is_there_once() {
    let folder = TempDir::new().unwrap();
    let writer = writer(&folder, 1 << 20);
    starve(&writer);
    (0..3).for_each(|at| writer.keep(pending("web", at * SECOND, true)));
    wait_until_spooled(&writer);
    let written = copy(folder.path()); // none is named
    assert_eq!(spans(&written), []);
    writer.allow(0.0, 0.0);
    flush(&writer, &[], 0).unwrap();
    let named = copy(folder.path()); // and none is left without
    assert_eq!((spans(&named), windows_without_names(&named)), (seconds(3), 0));
    let between = copy(folder.path()); // named, and not removed yet
    put_back(&written, &between);
    // In the midst of writing either file.
    for folder in [&written, &between] {
        std::fs::write(folder.path().join("unnamed/.sweetspot-1-7.tmp"), "half").unwrap();
    }
    std::fs::create_dir_all(written.path().join("2026-11-16")).unwrap();
    std::fs::write(written.path().join("2026-11-16/.sweetspot-1-8.tmp"), "half").unwrap();
    for (folder, expected) in [(&written, 3), (&named, 0), (&between, 0)] {
        let counters = recovered(folder);
        assert_eq!(spans(folder), seconds(3));
        assert_eq!((counters.recovered, counters.written, counters.damaged), (expected, expected, 0));
        assert_eq!((counters.dropped_refused, counters.dropped_full), (0, 0));
        assert_eq!(windows_without_names(folder), 0);
    }
}

#[test]
fn a_window_without_names_that_was_damaged_is_set_aside_and_the_others_are_named() {
    let folder = TempDir::new().unwrap();
    let first = writer(&folder, 1 << 20);
    starve(&first);
    (0..3).for_each(|at| first.keep(pending("web", at * SECOND, true)));
    wait_until_spooled(&first);
    let left = copy(folder.path());
    let mut files: Vec<_> = std::fs::read_dir(left.path().join("unnamed")).unwrap().flatten().collect();
    files.sort_by_key(std::fs::DirEntry::path);
    let path = files[2].path();
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    let counters = recovered(&left);
    assert_eq!((spans(&left), counters.damaged, counters.recovered), (seconds(2), 1, 2));
    assert!(left.path().join("damaged").join(files[2].file_name()).exists());
}

#[test]
fn a_folder_that_is_taken_away_is_made_anew_while_a_window_waits_for_its_names() {
    let folder = TempDir::new().unwrap();
    let store = folder.path().join("store");
    let mut writer = WindowWriter::start(&store, bounds(), 1 << 20, None, &Symbols::new(1 << 20)).unwrap();
    starve(&writer);
    writer.keep(pending("web", 0, true));
    wait_until_spooled(&writer);
    std::fs::rename(&store, folder.path().join("away")).unwrap();
    while writer.status().counters.remade == 0 {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!((writer.kept("web").windows, store.join(".lock").exists()), (0, true), "it waits still");
    // Other rules are in force meanwhile, too.
    writer.rebound(store::StoreTerms { bytes: 1 << 20, ..bounds() }, 1 << 20, None);
    while writer.status().limit_bytes != 1 << 20 {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(writer.kept("web").windows, 0);
    writer.allow(0.0, 0.0);
    flush(&writer, &[], 0).unwrap();
    assert_eq!(writer.kept("web").windows, 1);
}

#[test]
fn a_target_that_is_gone_leaves_nothing_behind() {
    let folder = TempDir::new().unwrap();
    let writer = writer(&folder, 1 << 20);
    let state = Arc::clone(&writer.shared.state);
    starve(&writer);
    for target in ["web", "db", "again"] {
        writer.keep(pending(target, 0, true));
        writer.forget(target); // as the loop does, with its last window on its way
    }
    writer.keep(pending("again", SECOND, true));
    writer.allow(0.0, 0.0);
    flush(&writer, &[], 0).unwrap();
    let left: Vec<String> = state.lock().unwrap().targets.keys().cloned().collect();
    assert_eq!((left, writer.kept("again").windows), (vec!["again".to_owned()], 2));
    writer.forget("again");
    assert!(state.lock().unwrap().targets.is_empty());
}

#[test]
fn other_rules_are_in_force_however_full_the_queue_is() {
    let folder = TempDir::new().unwrap();
    let mut writer = writer(&folder, 1 << 20);
    starve(&writer);
    writer.keep(pending("web", 0, true));
    (0..).take_while(|at| writer.send(QueueItem::Look) || *at == 0).last();
    assert!(!writer.send(QueueItem::Look) || writer.status().limit_bytes == 1 << 30);
    writer.rebound(store::StoreTerms { bytes: 1 << 20, ..bounds() }, 7, None);
    while writer.status().limit_bytes != 1 << 20 {
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn nothing_that_stands_still_looks_well() {
    let now_ns = 1000 * SECOND;
    let waiting = |since_s: u64, is_spooled| WriterState {
        handed: VecDeque::from([QueuedWindow {
            at_ns: since_s * SECOND,
            target: "web".to_owned(),
            is_spooled,
        }]),
        ..WriterState::default()
    };
    assert_eq!(waiting(950, None).problem(false, now_ns), None);
    for unwritten in [None, Some(false)] {
        let problem = waiting(900, unwritten).problem(false, now_ns).unwrap();
        assert!(problem.contains("100 s to be stored"), "{problem}");
    }
    assert_eq!(waiting(900, Some(true)).problem(false, now_ns), None, "its names wait for CPU time");
    let problem = waiting(300, Some(true)).problem(false, now_ns).unwrap();
    assert!(problem.contains("700 s for its names"), "{problem}");
    assert!(waiting(950, None).problem(true, now_ns).is_some());
}

#[test]
fn a_writer_that_is_not_put_in_force_does_not_pace_reading() {
    let (folder, other) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let symbols = Symbols::new(1 << 20);
    let start =
        |folder: &TempDir| WindowWriter::start(folder.path(), bounds(), 1 << 20, None, &symbols).unwrap();
    let writer = start(&folder);
    writer.pace_reading(&symbols);
    starve(&writer);
    assert!(!symbols.may_read_on());
    let prepared = start(&other);
    assert!(!symbols.may_read_on(), "a prepared writer does not pace reading");
    drop(prepared);
    assert!(!symbols.may_read_on());
    writer.allow(0.0, 0.0);
    assert!(symbols.may_read_on());
}
