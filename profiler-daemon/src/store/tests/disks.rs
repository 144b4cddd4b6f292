//! Real disks: one that is full, one that cannot be written to. They are mounted, which root alone may do.

#![allow(clippy::print_stderr, reason = "a test that skips says why")]

use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::*;

/// Less than the settings allow.
const DISK: &str = "size=1m";

/// A file system in memory that goes with the test.
struct SmallDisk {
    folder: TempDir,
}

impl SmallDisk {
    /// Nothing where this may not be done.
    fn new() -> Option<Self> {
        let folder = TempDir::new().unwrap();
        match mount(Some("tmpfs"), folder.path(), Some("tmpfs"), MsFlags::empty(), Some(DISK)) {
            Ok(()) => Some(Self { folder }),
            Err(error) => {
                eprintln!("skipped: no file system can be mounted ({error})");
                None
            }
        }
    }

    fn set_read_only(&self, read_only: bool) {
        let read_only = if read_only { MsFlags::MS_RDONLY } else { MsFlags::empty() };
        let flags = MsFlags::MS_REMOUNT | read_only;
        mount(Some("tmpfs"), self.folder.path(), Some("tmpfs"), flags, Some(DISK)).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = umount2(self.folder.path(), MntFlags::MNT_DETACH);
    }
}

/// A minute in which nothing repeats: some 23 KB.
fn keep_large(store: &mut Store, minute: u64) -> bool {
    let at = MIDNIGHT + minute * MINUTE;
    let mut random = fastrand::Rng::with_seed(minute);
    let mut large = profile(at, 1);
    large.functions[4].name = (0..30_000).map(|_| random.alphanumeric()).collect();
    store.write(&now(at + MINUTE), window("web", at), &large).is_ok()
}

fn hidden(folder: &Path) -> Vec<String> {
    files(folder).into_iter().filter(|file| file.contains("/.")).collect()
}

#[test]
fn a_full_disk_costs_windows_that_are_counted_and_nothing_else() {
    let Some(disk) = SmallDisk::new() else { return };
    let folder = disk.folder.path().join("store");
    let mut full = store(&folder);
    let kept = (0..60).filter(|minute| keep_large(&mut full, *minute)).count() as u64;
    let Counters { written, dropped_full, dropped_refused, .. } = full.counters();
    assert_eq!((written, dropped_full, dropped_refused), (kept, 60 - kept, 0));
    assert!((10..60).contains(&kept), "the disk was not filled: {kept} of 60");
    assert_eq!((cpu_ns(&folder, &ever()), hidden(&folder)), (kept, Vec::new()));

    // Nothing can be merged on a full disk; nothing is lost by trying.
    settle(&mut full, MIDNIGHT + 2 * HOUR);
    assert_eq!((cpu_ns(&folder, &ever()), hidden(&folder)), (kept, Vec::new()));
    assert_eq!(full.counters().unmerged, 1);
    drop(full);

    // Within a bound that the disk has room for, it goes on.
    let bytes = 300 << 10;
    let mut bounded = Store::open(&folder, Settings { bytes, ..settings() }, RealDisk).unwrap();
    assert!(keep_large(&mut bounded, 61), "room is made by the oldest");
    assert!(bounded.size().1 <= bytes && bounded.counters().evicted > 0, "{:?}", bounded.counters());
}

#[test]
fn room_that_comes_is_used_at_once() {
    let Some(disk) = SmallDisk::new() else { return };
    let folder = disk.folder.path().join("store");
    let mut store = store(&folder);
    assert!((0..12).all(|minute| keep_large(&mut store, minute)));
    let filler = disk.folder.path().join("filler");
    assert!(fs::write(&filler, vec![1; 1 << 20]).is_err(), "the disk is not full");
    let at = MIDNIGHT + 2 * HOUR;
    settle(&mut store, at);
    let waiting = store.waiting(now(at).monotonic_ns);
    assert_eq!((store.counters().unmerged, waiting.files), (1, 12));
    assert!(waiting.needed_bytes > 12 * 20_000 && waiting.retry_s == 10.0, "{waiting:?}");
    // A little room is no reason to read all of it again.
    fs::File::options()
        .write(true)
        .open(&filler)
        .unwrap()
        .set_len(fs::metadata(&filler).unwrap().len() - 8192)
        .unwrap();
    settle(&mut store, at + SECOND);
    assert_eq!(store.counters().unmerged, 1);
    fs::remove_file(&filler).unwrap();
    settle(&mut store, at + 2 * SECOND);
    let Counters { merged, unmerged, .. } = store.counters();
    assert_eq!((merged, unmerged, store.waiting(0).files), (1, 1, 0));
    assert_eq!(cpu_ns(&folder, &ever()), 12);
}

#[test]
fn a_disk_that_turns_read_only_is_read_on_and_written_later() {
    let Some(disk) = SmallDisk::new() else { return };
    let folder = disk.folder.path();
    let mut first = store(folder);
    keep(&mut first, "web", MIDNIGHT, 1).unwrap();
    keep(&mut first, "web", MIDNIGHT + MINUTE, 2).unwrap();
    disk.set_read_only(true);
    assert!(matches!(keep(&mut first, "web", MIDNIGHT + 2 * MINUTE, 4), Err(NotKept::Refused(_))));
    settle(&mut first, MIDNIGHT + 2 * HOUR);
    assert_eq!((first.counters().dropped_refused, cpu_ns(folder, &ever())), (1, 3));
    disk.set_read_only(false);
    keep(&mut first, "web", MIDNIGHT + 3 * MINUTE, 8).unwrap();
    drop(first);
    disk.set_read_only(true);
    assert_eq!(cpu_ns(folder, &ever()), 11, "a reader needs no right to write");
    let error = Store::open(folder, settings(), RealDisk).unwrap_err();
    assert!(error.to_string().contains("profiles cannot be kept in"), "{error}");
}
