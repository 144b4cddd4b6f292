//! The process, or the machine, ends after any operation.

use std::cell::RefCell;
use std::rc::Rc;

use super::*;

/// An operation that was carried out, to be carried out again.
#[derive(Clone, Debug)]
enum Done {
    MakeFolder(PathBuf),
    Write(PathBuf, Vec<u8>),
    SyncFile(PathBuf),
    Rename(PathBuf, PathBuf),
    Remove(PathBuf),
    RemoveFolder(PathBuf),
    SyncFolder(PathBuf),
}

/// Carries out and remembers; paths are those in the folder.
#[derive(Clone, Debug)]
struct Recorder {
    folder: PathBuf,
    done: Rc<RefCell<Vec<Done>>>,
}

impl Disk for Recorder {
    fn apply(&mut self, op: Op<'_>) -> io::Result<()> {
        let inside = |path: &Path| path.strip_prefix(&self.folder).unwrap().to_owned();
        self.done.borrow_mut().push(match op {
            Op::MakeFolder(path) => Done::MakeFolder(inside(path)),
            Op::Write(path, bytes) => Done::Write(inside(path), bytes.to_owned()),
            Op::SyncFile(path) => Done::SyncFile(inside(path)),
            Op::Rename(from, to) => Done::Rename(inside(from), inside(to)),
            Op::Remove(path) => Done::Remove(inside(path)),
            Op::RemoveFolder(path) => Done::RemoveFolder(inside(path)),
            Op::SyncFolder(path) => Done::SyncFolder(inside(path)),
        });
        RealDisk.apply(op)
    }
}

fn again(folder: &Path, done: &Done) {
    let full = |path: &Path| folder.join(path);
    // What is missing since an earlier operation was lost stays missing.
    let _ = match done {
        Done::MakeFolder(path) => RealDisk.apply(Op::MakeFolder(&full(path))),
        Done::Write(path, bytes) => RealDisk.apply(Op::Write(&full(path), bytes)),
        Done::Rename(from, to) => RealDisk.apply(Op::Rename(&full(from), &full(to))),
        Done::Remove(path) => RealDisk.apply(Op::Remove(&full(path))),
        Done::RemoveFolder(path) => RealDisk.apply(Op::RemoveFolder(&full(path))),
        Done::SyncFile(_) | Done::SyncFolder(_) => Ok(()),
    };
}

/// Whether the operation is on the disk for sure once `later` were carried out.
fn is_synced(done: &Done, later: &[Done]) -> bool {
    let folder = match done {
        Done::MakeFolder(_) | Done::SyncFile(_) | Done::SyncFolder(_) => return true,
        Done::Write(path, _) => {
            return later.iter().any(|later| matches!(later, Done::SyncFile(synced) if synced == path));
        }
        Done::Rename(_, path) | Done::Remove(path) | Done::RemoveFolder(path) => path.parent().unwrap(),
    };
    later.iter().any(|later| matches!(later, Done::SyncFolder(synced) if synced == folder))
}

/// What a process leaves that is killed after `done`: all of it, and a last file that is written in half.
fn left_by_a_kill(done: &[Done]) -> Vec<Vec<Done>> {
    let mut left = vec![done.to_vec()];
    if let Some((Done::Write(path, bytes), before)) = done.split_last() {
        for length in [0, bytes.len() / 2, bytes.len() - 1] {
            let half = Done::Write(path.clone(), bytes[..length].to_vec());
            left.push(before.iter().cloned().chain([half]).collect());
        }
    }
    left
}

/// What a power failure leaves after `done`: what is synced, and each mixture of the others up to a bound. Of a file whose bytes
/// are lost, the name may be there, with none of them or half. What was carried out before `from` was so long ago that the system
/// has written it.
fn left_by_a_power_failure(done: &[Done], from: usize) -> Vec<Vec<Done>> {
    const MOST_MIXED: usize = 6;
    let is_unsynced = |at: &usize| !is_synced(&done[*at], &done[at + 1..]);
    let unsynced: Vec<usize> = (from..done.len()).filter(is_unsynced).collect();
    let mixed = &unsynced[unsynced.len().saturating_sub(MOST_MIXED)..];
    let mut left = Vec::new();
    for lost in 0..1_u32 << mixed.len() {
        let is_lost =
            |at: usize| mixed.iter().position(|&of| of == at).is_some_and(|bit| lost & 1 << bit != 0);
        let as_left = |at: usize| match &done[at] {
            done if !is_lost(at) => Some(done.clone()),
            Done::Write(path, bytes) => {
                let length = if lost.count_ones() % 2 == 0 { bytes.len() / 2 } else { 0 };
                Some(Done::Write(path.clone(), bytes[..length].to_vec()))
            }
            _ => None,
        };
        left.push((0..done.len()).filter_map(as_left).collect());
    }
    left
}

/// Ends after every operation from `from` on, in every way, and hands over the folder as it is found then, what was carried out
/// until then, and whether the power failed.
fn crash_everywhere(done: &[Done], from: usize, check: impl Fn(&Path, &[Done], bool)) -> usize {
    let mut crashes = 0;
    for end in from..=done.len() {
        let kills = left_by_a_kill(&done[..end]).into_iter().map(|left| (left, false));
        let failures = left_by_a_power_failure(&done[..end], from).into_iter().map(|left| (left, true));
        for (left, is_power_failure) in kills.chain(failures) {
            let folder = TempDir::new().unwrap();
            left.iter().for_each(|done| again(folder.path(), done));
            check(folder.path(), &done[..end], is_power_failure);
            crashes += 1;
        }
    }
    crashes
}

/// Opens what a crash left, and makes sure that it is clean and stays the same.
fn recovered(folder: &Path) -> u64 {
    let as_left = cpu_ns(folder, &ever());
    drop(store(folder));
    let clean = files(folder);
    assert!(clean.iter().all(|file| file.ends_with(".pb.gz") && !file.starts_with("damaged")), "{clean:?}");
    let sum = cpu_ns(folder, &ever());
    assert_eq!(sum, as_left, "a reader sees the same before the owner cleans up");
    let mut store = store(folder);
    assert_eq!(store.counters(), Counters::default(), "cleaned at once");
    settle(&mut store, MIDNIGHT + 3 * DAY);
    assert_eq!(cpu_ns(folder, &ever()), sum, "and merges on");
    sum
}

/// The same of what a power failure left: windows that the system had not written are set aside, and nothing else.
fn recovered_without_the_last(folder: &Path) -> u64 {
    let as_left = cpu_ns(folder, &ever());
    for _ in 0..2 {
        settle(&mut store(folder), MIDNIGHT + 3 * DAY);
        assert_eq!(cpu_ns(folder, &ever()), as_left);
    }
    let found = files(folder);
    let is_lost = |file: &&String| file.starts_with("damaged/") && file.contains("_window_");
    assert!(found.iter().filter(|file| !is_lost(file)).all(|file| file.ends_with(".pb.gz")), "{found:?}");
    as_left
}

fn recorded(folder: &Path) -> (Store<Recorder>, Rc<RefCell<Vec<Done>>>) {
    let done = Rc::new(RefCell::new(Vec::new()));
    let recorder = Recorder { folder: folder.to_owned(), done: done.clone() };
    (Store::open(folder, settings(), recorder).unwrap(), done)
}

#[test]
fn a_kill_loses_at_most_the_window_that_is_being_written_and_a_power_failure_the_last_ones() {
    let folder = TempDir::new().unwrap();
    let (mut store, done) = recorded(folder.path());
    for minute in 0..4 {
        keep(&mut store, "web", MIDNIGHT - 2 * MINUTE + minute * MINUTE, 1).unwrap(); // over midnight
    }
    let done = done.borrow().clone();
    let count = |of: &[Done]| of.iter().filter(|done| matches!(done, Done::Rename(..))).count() as u64;
    let second_day = done.iter().rposition(|done| matches!(done, Done::MakeFolder(_))).unwrap();
    for old in [0, second_day] {
        let crashes = crash_everywhere(&done, old, |folder, until, is_power_failure| {
            fs::create_dir_all(folder).unwrap();
            let (written, stored) = (count(&until[..old]), count(until));
            if is_power_failure {
                let sum = recovered_without_the_last(folder);
                assert!(written <= sum && sum <= stored, "{written} <= {sum} <= {stored}: {until:#?}");
            } else {
                assert_eq!(recovered(folder), stored, "{until:#?}");
            }
        });
        assert!(crashes > 20, "{crashes}");
    }
}

#[test]
fn a_merge_leaves_the_sources_or_the_whole_and_never_both() {
    let folder = TempDir::new().unwrap();
    let (mut store, done) = recorded(folder.path());
    for minute in 0..5 {
        keep(&mut store, "web", MIDNIGHT + minute * MINUTE, 1 << minute).unwrap();
        keep(&mut store, "web", MIDNIGHT + HOUR + minute * MINUTE, 32 << minute).unwrap();
    }
    let before = done.borrow().len();
    settle(&mut store, MIDNIGHT + 5 * HOUR);
    settle(&mut store, MIDNIGHT + 3 * DAY);
    assert_eq!(files(folder.path()).len(), 1);
    let done = done.borrow().clone();
    let crashes = crash_everywhere(&done, before, |folder, until, _| {
        assert_eq!(recovered(folder), 1023, "{:#?}", &until[before..]);
    });
    assert!(crashes > 100, "{crashes}");
}

#[test]
fn removing_for_room_and_age_loses_nothing_else() {
    let folder = TempDir::new().unwrap();
    let (mut store, done) = recorded(folder.path());
    for minute in 0..6 {
        keep(&mut store, "web", MIDNIGHT - 3 * MINUTE + minute * MINUTE, 1 << minute).unwrap();
    }
    let before = done.borrow().len();
    store.settings.bytes = 3 * 4096;
    keep(&mut store, "web", MIDNIGHT + 10 * MINUTE, 64).unwrap();
    assert_eq!(cpu_ns(folder.path(), &ever()), 64 | 32 | 16);
    let done = done.borrow().clone();
    crash_everywhere(&done, before, |folder, _, is_power_failure| {
        let sum = cpu_ns(folder, &ever());
        assert_eq!(sum & 48, 48, "{sum:b}");
        let recovered = if is_power_failure { recovered_without_the_last(folder) } else { recovered(folder) };
        assert_eq!(recovered, sum);
    });
}

/// Fails from some operation on, as a process does that is killed there or a disk that has gone.
#[derive(Clone, Debug)]
struct Dying {
    left: Rc<RefCell<usize>>,
    kind: io::ErrorKind,
}

impl Disk for Dying {
    fn apply(&mut self, op: Op<'_>) -> io::Result<()> {
        let mut left = self.left.borrow_mut();
        if *left == 0 {
            return Err(self.kind.into());
        }
        *left -= 1;
        RealDisk.apply(op)
    }
}

/// A disk that fails at any operation of a write or a merge, and works again later: nothing is lost but what was counted.
#[test]
fn a_disk_that_fails_for_a_while_costs_what_is_counted() {
    for kind in [io::ErrorKind::StorageFull, io::ErrorKind::ReadOnlyFilesystem, io::ErrorKind::Other] {
        for fails_after in 0..40 {
            let folder = TempDir::new().unwrap();
            let left = Rc::new(RefCell::new(usize::MAX));
            let disk = Dying { left: left.clone(), kind };
            let mut store = Store::open(folder.path(), settings(), disk).unwrap();
            let mut kept = 0;
            for minute in 0..4 {
                kept += u64::from(keep(&mut store, "web", MIDNIGHT + minute * MINUTE, 1).is_ok());
            }
            *left.borrow_mut() = fails_after;
            for minute in 4..6 {
                kept += u64::from(keep(&mut store, "web", MIDNIGHT + minute * MINUTE, 1).is_ok());
            }
            settle(&mut store, MIDNIGHT + 2 * HOUR);
            assert_eq!(cpu_ns(folder.path(), &ever()), kept);
            *left.borrow_mut() = usize::MAX;
            kept += u64::from(keep(&mut store, "web", MIDNIGHT + 8 * MINUTE, 1).is_ok());
            settle(&mut store, MIDNIGHT + 2 * DAY);
            assert_eq!(cpu_ns(folder.path(), &ever()), kept);
            let counters = store.counters();
            assert_eq!(
                (counters.written, counters.written + counters.dropped_full + counters.dropped_refused),
                (kept, 7)
            );
            assert_eq!(counters.dropped_full > 0, kept < 7 && kind == io::ErrorKind::StorageFull);
            drop(store);
            assert_eq!(recovered(folder.path()), kept);
        }
    }
}
