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
fn on_a_full_disk_the_oldest_give_way_to_the_newest() {
    let Some(disk) = SmallDisk::new() else { return };
    let folder = disk.folder.path().join("store");
    let mut full = store(&folder);
    assert!((0..60).all(|minute| keep_large(&mut full, minute)));
    let Counters { written, evicted, evicted_disk_full, dropped_full, .. } = full.counters();
    assert_eq!((written, dropped_full, evicted), (60, 0, evicted_disk_full));
    // All are of a size: none went that was not in the way of one that came.
    let kept = 60 - evicted;
    assert!((10..60).contains(&kept), "the disk was not filled: {kept} of 60");
    assert!(kept >= 20, "most of the disk is used: {kept}");
    let newest = range(MIDNIGHT + (60 - kept) * MINUTE, MIDNIGHT + 60 * MINUTE);
    assert_eq!((cpu_ns(&folder, &newest), cpu_ns(&folder, &ever())), (kept, kept), "the newest are there");
    assert_eq!((full.size().0 as u64, hidden(&folder)), (kept, Vec::new()));
    let notes = full.notes(now(MIDNIGHT + HOUR).monotonic_ns);
    assert!(notes.iter().any(|note| note.contains(&format!("{evicted} of the oldest files"))), "{notes:?}");

    // Nothing can be merged on a full disk; nothing is lost by trying.
    settle(&mut full, MIDNIGHT + 2 * HOUR);
    assert_eq!((cpu_ns(&folder, &ever()), hidden(&folder)), (kept, Vec::new()));
    assert_eq!(full.counters().unmerged, 1);
    drop(full);

    // Within a bound that the disk has room for, it goes on.
    let bytes = 300 << 10;
    let mut bounded = Store::open(&folder, StoreTerms { bytes, ..settings() }, RealDisk).unwrap();
    assert!(keep_large(&mut bounded, 61), "room is made by the oldest");
    assert!(bounded.size().1 <= bytes && bounded.counters().evicted > 0, "{:?}", bounded.counters());
}

#[test]
fn a_disk_that_others_have_filled_costs_the_oldest_and_where_there_are_none_the_window() {
    let Some(disk) = SmallDisk::new() else { return };
    let folder = disk.folder.path().join("store");
    let mut store = store(&folder);
    assert!((0..3).all(|minute| keep_large(&mut store, minute)));
    let filler = |name: &str| fs::write(disk.folder.path().join(name), vec![1; 1 << 20]);
    assert!(filler("first").is_err(), "the disk is not full");
    assert!(keep_large(&mut store, 3));
    assert_eq!((store.counters().evicted_disk_full, cpu_ns(&folder, &ever())), (1, 3));
    drop(filler("second")); // what is left of a block
    fs::remove_dir_all(folder.join("2026-11-16")).unwrap();
    store.look_over(&now(MIDNIGHT + HOUR)).unwrap();
    assert!(filler("third").is_err(), "the disk is not full");
    assert!(!keep_large(&mut store, 4));
    let Counters { evicted_disk_full, dropped_full, vanished, .. } = store.counters();
    assert_eq!((evicted_disk_full, dropped_full, vanished), (1, 1, 3));
    assert_eq!(hidden(&folder), Vec::<String>::new());
}

/// Of files of which removing one brings no room, as where a quota is another's, no more than one goes.
#[test]
fn where_removing_brings_no_room_no_more_is_removed() {
    #[derive(Debug, Default)]
    struct Stubborn {
        is_full: bool,
    }
    impl Disk for Stubborn {
        fn apply(&mut self, op: Op<'_>) -> io::Result<()> {
            match op {
                Op::Write(..) if self.is_full => Err(io::ErrorKind::QuotaExceeded.into()),
                op => RealDisk.apply(op),
            }
        }

        fn free(&self, _: &Path) -> u64 {
            0
        }
    }
    let folder = TempDir::new().unwrap();
    let mut store = Store::open(folder.path(), settings(), Stubborn::default()).unwrap();
    for minute in 0..5 {
        keep(&mut store, "web", MIDNIGHT + minute * MINUTE, 1).unwrap();
    }
    store.disk.is_full = true;
    assert!(matches!(keep(&mut store, "web", MIDNIGHT + HOUR, 1), Err(NotKept::Full)));
    assert_eq!((store.counters().evicted_disk_full, store.size().0), (1, 4));
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
