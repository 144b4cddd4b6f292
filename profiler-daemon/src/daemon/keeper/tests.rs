//! What becomes of windows on a thread that meets bad ones, slow disks and an end.

use profiler_core::aggregate::{Aggregator, Chain};
use profiler_core::process::ProcessTable;
use profiler_core::profile::Outcome;
use tempfile::TempDir;
use tokio::sync::oneshot;

use super::super::ask::Flush;
use super::*;
use crate::jit::Generated;
use crate::objects::{ObjectStore, Symbols};

const SECOND: u64 = 1_000_000_000;

fn bounds() -> store::Settings {
    let ever = u64::MAX;
    store::Settings { age_ns: ever, bytes: 1 << 30, hourly_after_ns: ever, daily_after_ns: ever }
}

fn keeper(folder: &TempDir, most_bytes: u64) -> Keeper {
    Keeper::start(folder.path(), bounds(), most_bytes, None).unwrap()
}

/// A second of a target with a sample; without processes it means nothing, and naming it panics.
fn parcel(target: &str, from_ns: u64, has_process: bool) -> Parcel {
    let mut processes = ProcessTable::default();
    processes.adopt(1, "a");
    let mut counted = Aggregator::default();
    let chain = Chain { kernel: &[], user: &[16], outcome: Outcome::Complete };
    counted.add(processes.get(1).unwrap(), chain, SECOND);
    counted.close_window(SECOND, 1.0);
    let collected = Collected {
        charged_ns: 0.0,
        counted,
        processes: if has_process { processes.infos().into() } else { [].into() },
        objects: ObjectStore::new(&Symbols::new(1 << 20)).snapshot(),
        generated: Generated::default(),
        span: from_ns..from_ns + SECOND,
        is_last: true,
    };
    let window = Window {
        target: target.to_owned(),
        labels: BTreeMap::from([("of".to_owned(), target.to_owned())]),
        boot: String::new(),
        from_ns,
        to_ns: from_ns + SECOND,
    };
    let run = Run { start_unix_ns: 1_794_787_200 * SECOND + from_ns, duration_s: 1.0, ..Run::default() };
    Parcel { window, collected, scale: 1.0, run, bytes: 40 }
}

/// Asks for the windows of targets that end from a moment on.
fn flush(keeper: &Keeper, targets: &[&str], asked_ns: u64) -> Result<(), Refused> {
    let (reply, answer) = oneshot::channel();
    let targets = targets.iter().map(ToString::to_string).collect();
    keeper.flush(vec![Waiting::new(Flush { targets, ..Flush::default() }, asked_ns, reply)]);
    answer.blocking_recv().unwrap()
}

fn soon() -> (Instant, Instant) {
    let until = Instant::now() + Duration::from_secs(60);
    (until, until)
}

/// So little that every window waits for it.
fn starve(keeper: &Keeper) {
    keeper.allow(1e-9, -1.0);
}

#[test]
fn a_window_that_panics_is_lost_and_the_next_one_is_kept() {
    let folder = TempDir::new().unwrap();
    let keeper = keeper(&folder, 1 << 20);
    keeper.keep(parcel("web", 0, true));
    keeper.keep(parcel("web", SECOND, false));
    assert!(flush(&keeper, &[], 0).is_err());
    let status = keeper.status();
    assert!(
        status.problem.as_ref().is_some_and(|problem| problem.contains("error of sweetspot's")),
        "{status:?}"
    );
    assert_eq!((status.counters.dropped_refused, status.queued_bytes, keeper.has_ended()), (1, 0, false));
    keeper.keep(parcel("web", 2 * SECOND, true));
    flush(&keeper, &[], clock::monotonic_ns()).unwrap();
    assert_eq!((keeper.status().problem, keeper.kept("web").windows), (None, 2));
    assert_eq!(keeper.finish(soon().0, soon().1).lost, 1);
}

#[test]
fn who_waits_is_told_of_the_windows_that_he_waits_for() {
    let folder = TempDir::new().unwrap();
    let keeper = keeper(&folder, 1 << 20);
    let before_ns = clock::monotonic_ns();
    keeper.keep(parcel("db", 0, true));
    keeper.keep(parcel("db", SECOND / 2, true)); // a part of its time is kept already
    keeper.keep(parcel("web", 0, true));
    flush(&keeper, &["web"], before_ns).unwrap();
    for targets in [&["db"][..], &["web", "db"], &[]] {
        let error = flush(&keeper, targets, before_ns).unwrap_err().to_string();
        assert!(error.contains("of db, a window was not kept"), "{error}");
    }
    flush(&keeper, &[], clock::monotonic_ns()).unwrap();
}

#[test]
fn what_is_dropped_because_too_much_waits_is_told() {
    let folder = TempDir::new().unwrap();
    let keeper = keeper(&folder, 100);
    starve(&keeper);
    keeper.keep(parcel("web", 0, true));
    keeper.keep(Parcel { bytes: 70, ..parcel("web", SECOND, true) });
    let status = keeper.status();
    assert_eq!((status.dropped_queue, keeper.lost()), (1, 1));
    assert!(status.problem.as_ref().is_some_and(|problem| problem.contains("were dropped")), "{status:?}");
    keeper.allow(0.0, 0.0);
    assert!(flush(&keeper, &["web"], 0).is_err());
    assert_eq!(keeper.status().problem, None, "one was kept since");
    assert_eq!(keeper.finish(soon().0, soon().1).lost, 1);
}

#[test]
fn an_end_counts_what_it_does_not_wait_for() {
    let folder = TempDir::new().unwrap();
    let keeper = keeper(&folder, 1 << 20);
    starve(&keeper);
    keeper.keep(parcel("web", 0, true));
    keeper.keep(parcel("web", SECOND, true));
    let now = Instant::now();
    assert_eq!(keeper.finish(now, now).lost, 2);
}

#[test]
fn a_target_that_is_gone_leaves_nothing_behind() {
    let folder = TempDir::new().unwrap();
    let keeper = keeper(&folder, 1 << 20);
    let told = Arc::clone(&keeper.told);
    starve(&keeper);
    for target in ["web", "db", "again"] {
        keeper.keep(parcel(target, 0, true));
        keeper.forget(target); // as the loop does, with its last window on its way
    }
    keeper.keep(parcel("again", SECOND, true));
    keeper.allow(0.0, 0.0);
    flush(&keeper, &[], 0).unwrap();
    let left: Vec<String> = told.lock().unwrap().targets.keys().cloned().collect();
    assert_eq!((left, keeper.kept("again").windows), (vec!["again".to_owned()], 2));
    keeper.forget("again");
    assert!(told.lock().unwrap().targets.is_empty());
}

#[test]
fn other_rules_are_in_force_however_full_the_queue_is() {
    let folder = TempDir::new().unwrap();
    let mut keeper = keeper(&folder, 1 << 20);
    starve(&keeper);
    (0..).take_while(|at| keeper.send(Job::Look) || *at == 0).last();
    assert!(!keeper.send(Job::Look) || keeper.status().limit_bytes == 1 << 30);
    keeper.rebound(store::Settings { bytes: 1 << 20, ..bounds() }, 7, None);
    while keeper.status().limit_bytes != 1 << 20 {
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn nothing_that_stands_still_looks_well() {
    let now_ns = 1000 * SECOND;
    let waiting = |since_s: u64| Told {
        handed: VecDeque::from([(since_s * SECOND, "web".to_owned())]),
        ..Told::default()
    };
    assert_eq!(waiting(950).problem(false, now_ns), None);
    let problem = waiting(900).problem(false, now_ns).unwrap();
    assert!(problem.contains("for 100 s"), "{problem}");
    assert!(waiting(950).problem(true, now_ns).is_some());
}
