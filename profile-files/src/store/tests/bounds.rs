//! Age and room, on disks that are full or refuse.

use super::*;

#[test]
fn the_oldest_go_for_room_and_all_goes_for_age() {
    let folder = TempDir::new().unwrap();
    let bytes = 20 * 4096;
    let mut store = Store::open(folder.path(), StoreTerms { bytes, ..settings() }, RealDisk).unwrap();
    for minute in 0..50_u64 {
        keep(&mut store, "web", MIDNIGHT + minute * MINUTE, 1).unwrap();
        assert!(store.size().1 <= bytes);
    }
    let reading = read(folder.path(), &range(MIDNIGHT, MIDNIGHT + 50 * MINUTE)).unwrap();
    assert_eq!((reading.profile.run.counts.samples, reading.gaps.len()), (20, 1), "the newest are there");
    assert_eq!(reading.gaps[0].to_unix_ns, MIDNIGHT + 30 * MINUTE);
    assert_eq!((store.counters().evicted, store.counters().written), (30, 50));

    store.expire(&now(MIDNIGHT + 40 * MINUTE + 7 * DAY + 1));
    assert_eq!((store.counters().expired, store.size().0), (10, 10));
    store.expire(&now(MIDNIGHT + 60 * MINUTE + 7 * DAY));
    assert_eq!(store.size(), (0, 0));
    assert_eq!(listing::names(folder.path()).unwrap(), [".lock"], "nor are there empty folders");
}

/// Where the room is used up all the time, hours and days are merged all the same.
#[test]
fn a_full_store_is_merged_too() {
    let folder = TempDir::new().unwrap();
    let bytes = 60 * 4096;
    let mut store = Store::open(folder.path(), StoreTerms { bytes, ..settings() }, RealDisk).unwrap();
    for minute in (0..2 * 1440).step_by(10) {
        let at = MIDNIGHT + minute * MINUTE;
        for target in ["a", "b", "c"] {
            keep(&mut store, target, at, 1).unwrap();
        }
        settle(&mut store, at + MINUTE);
        assert!(store.size().1 <= bytes, "{:?}", store.size());
    }
    assert!(store.counters().merged >= 3 * 40, "{:?}", store.counters());
    assert!(store.counters().evicted > 0);
    let reading = read(folder.path(), &range(MIDNIGHT + DAY, MIDNIGHT + 2 * DAY)).unwrap();
    assert_eq!(reading.targets.len(), 3);
    let last = range(MIDNIGHT + 2 * DAY - 60 * MINUTE, MIDNIGHT + 2 * DAY);
    assert_eq!(cpu_ns(folder.path(), &last), 18);
}

#[test]
fn what_is_larger_than_the_store_is_dropped_and_the_rest_stays() {
    let folder = TempDir::new().unwrap();
    let mut store = Store::open(folder.path(), StoreTerms { bytes: 4096, ..settings() }, RealDisk).unwrap();
    keep(&mut store, "web", MIDNIGHT, 1).unwrap();
    let mut large = profile(MIDNIGHT + MINUTE, 2);
    let mut random = fastrand::Rng::with_seed(1);
    large.functions[4].name = (0..10_000).map(|_| random.alphanumeric()).collect();
    let error =
        store.write(&now(MIDNIGHT + 2 * MINUTE), window("web", MIDNIGHT + MINUTE), &large).unwrap_err();
    assert!(matches!(error, NotKept::Full));
    assert_eq!((store.counters().dropped_full, cpu_ns(folder.path(), &ever())), (1, 1));
}

/// A wall clock that jumps a year ahead makes nothing of this boot old, and back nothing young.
#[test]
fn age_is_told_by_the_clock_that_cannot_jump() {
    let folder = TempDir::new().unwrap();
    let mut store = store(folder.path());
    keep(&mut store, "web", MIDNIGHT, 1).unwrap();
    let ahead = Now { unix_ns: MIDNIGHT + 365 * DAY, ..now(MIDNIGHT + HOUR) };
    store.expire(&ahead);
    assert_eq!(store.size().0, 1);
    let back = Now { unix_ns: MIDNIGHT - 365 * DAY, ..now(MIDNIGHT + 8 * DAY) };
    store.expire(&back);
    assert_eq!(store.size().0, 0);
    // Of another boot there is the wall clock alone.
    keep(&mut store, "web", MIDNIGHT, 1).unwrap();
    let rebooted = |unix_ns| Now { unix_ns, boot: "another".to_owned(), monotonic_ns: 1 };
    store.expire(&rebooted(MIDNIGHT + 6 * DAY));
    assert_eq!(store.size().0, 1);
    store.expire(&rebooted(MIDNIGHT + 8 * DAY));
    assert_eq!(store.size().0, 0);
}

/// The wall clock of one boot was years ahead. Its windows expire, and are evicted before those of the present boot.
#[test]
fn files_of_a_boot_with_a_wrong_clock_are_the_oldest() {
    let folder = TempDir::new().unwrap();
    let mut store =
        Store::open(folder.path(), StoreTerms { bytes: 3 * 4096, ..settings() }, RealDisk).unwrap();
    keep(&mut store, "web", MIDNIGHT + 3650 * DAY, 1).unwrap();
    let window_ns = MINUTE;
    for at in 1..=5_u64 {
        let begin_ns = MIDNIGHT + at * window_ns;
        let now = Now { boot: "corrected".to_owned(), ..now(begin_ns + window_ns) };
        let mut window = window("web", begin_ns);
        window.boot = "corrected".to_owned();
        store.write(&now, window, &profile(begin_ns, 1 << at)).unwrap();
    }
    assert_eq!(cpu_ns(folder.path(), &ever()), (1 << 5) + (1 << 4) + (1 << 3));
    let folder = TempDir::new().unwrap();
    let mut store = self::store(folder.path());
    keep(&mut store, "web", MIDNIGHT + 3650 * DAY, 1).unwrap();
    store.expire(&Now { unix_ns: MIDNIGHT, boot: "corrected".to_owned(), monotonic_ns: 8 * DAY });
    assert_eq!(store.size().0, 0);
}

/// The disk was moved to a machine that has been up for longer than files are kept.
#[test]
fn files_of_another_machine_are_as_old_as_the_wall_clock_says() {
    let folder = TempDir::new().unwrap();
    let mut store = store(folder.path());
    keep(&mut store, "web", MIDNIGHT, 1).unwrap();
    let elsewhere = |unix_ns| Now { unix_ns, boot: "another".to_owned(), monotonic_ns: 90 * DAY };
    store.expire(&elsewhere(MIDNIGHT + 6 * DAY));
    assert_eq!(store.size().0, 1);
    store.expire(&elsewhere(MIDNIGHT + 8 * DAY));
    assert_eq!(store.size().0, 0);
}

#[test]
fn a_folder_that_vanishes_is_made_again() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("store");
    let mut store = store(&path);
    keep(&mut store, "web", MIDNIGHT, 1).unwrap();
    fs::remove_dir_all(&path).unwrap();
    keep(&mut store, "web", MIDNIGHT + MINUTE, 2).unwrap();
    assert_eq!(cpu_ns(&path, &ever()), 2);
    settle(&mut store, MIDNIGHT + 2 * HOUR);
    assert_eq!(cpu_ns(&path, &ever()), 2);
}

#[test]
fn a_folder_that_cannot_be_one_says_so() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    for path in [file.clone(), file.join("below"), PathBuf::from("/proc/sweetspot")] {
        let error = Store::open(&path, settings(), RealDisk).unwrap_err();
        assert!(error.to_string().contains("profiles cannot be kept in"), "{error}");
    }
}
