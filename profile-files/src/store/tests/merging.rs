//! Hours and days.

use super::*;

/// Two days of two targets with a gap, and a range that is a piece of them.
fn two_days(store: &mut Store) -> u64 {
    let mut all = 0;
    for minute in (0..2 * 24 * 60).step_by(20) {
        for (target, weight) in [("web", 3), ("db", 5)] {
            if !(100..200).contains(&minute) {
                keep(store, target, MIDNIGHT + minute * MINUTE, weight + minute).unwrap();
                all += weight + minute;
            }
        }
    }
    all
}

#[test]
fn merging_changes_no_sum_and_keeps_the_time() {
    let folder = TempDir::new().unwrap();
    let mut store = store(folder.path());
    let all = two_days(&mut store);
    let pieces = [
        ever(),
        range(MIDNIGHT + HOUR, MIDNIGHT + 2 * HOUR),
        range(MIDNIGHT + 30 * HOUR, MIDNIGHT + 33 * HOUR),
        range(MIDNIGHT + 20 * HOUR, MIDNIGHT + 28 * HOUR),
        Query { targets: vec!["db".to_owned()], ..range(MIDNIGHT, MIDNIGHT + DAY) },
    ];
    let told = |query: &Query| {
        let reading = read(folder.path(), query).unwrap();
        let sum: u64 = reading.profile.stacks.iter().map(|stack| stack.cpu_ns).sum();
        (sum, reading.targets, reading.gaps, reading.profile.run.counts.samples)
    };
    // Of a piece, a merged file can tell no more than its part of what was lost.
    let lost = || read(folder.path(), &ever()).unwrap().profile.run.counts.lost;
    let lost_before = lost();
    let before: Vec<_> = pieces.iter().map(told).collect();
    assert_eq!(before[0].0, all);
    let windows = files(folder.path()).len();

    settle(&mut store, MIDNIGHT + 2 * DAY + HOUR);
    let hourly = files(folder.path());
    assert!(!hourly.iter().any(|file| file.contains("_window_")), "{hourly:#?}");
    assert!(hourly.len() < windows / 2);
    assert!(pieces.iter().map(told).eq(before.iter().cloned()), "another sum");

    settle(&mut store, MIDNIGHT + 3 * DAY);
    let daily = files(folder.path());
    assert_eq!(daily.len(), 4, "{daily:#?}");
    assert!(daily.iter().all(|file| file.contains("_day_")), "{daily:#?}");
    assert!(pieces.iter().map(told).eq(before), "another sum");
    assert_eq!((store.counters().unmerged, lost()), (0, lost_before));

    // Opened anew, it is the same.
    drop(store);
    let store = super::store(folder.path());
    assert_eq!((store.counters(), store.size().0), (Counters::default(), 4));
}

#[test]
fn a_minute_can_be_read_from_an_hour_and_ten_from_a_day() {
    let folder = TempDir::new().unwrap();
    let mut store = store(folder.path());
    for minute in 0..60 {
        keep(&mut store, "web", MIDNIGHT + minute * MINUTE, 1 << minute).unwrap();
        keep(&mut store, "web", MIDNIGHT + HOUR + minute * MINUTE, 1).unwrap();
    }
    settle(&mut store, MIDNIGHT + 3 * HOUR);
    assert_eq!(files(folder.path()).len(), 2);
    let minute = |at: u64| range(MIDNIGHT + at * MINUTE, MIDNIGHT + (at + 1) * MINUTE);
    for at in [0, 1, 37, 59] {
        assert_eq!(cpu_ns(folder.path(), &minute(at)), 1 << at);
    }
    settle(&mut store, MIDNIGHT + 3 * DAY);
    assert_eq!(files(folder.path()).len(), 1);
    let ten = range(MIDNIGHT + 20 * MINUTE, MIDNIGHT + 30 * MINUTE);
    assert_eq!(cpu_ns(folder.path(), &ten), 0x3ff << 20);
}

/// The hour that lasts is merged in batches: never more than some windows are left to be read one by one.
#[test]
fn the_last_hour_is_a_few_files() {
    let folder = TempDir::new().unwrap();
    let mut store = store(folder.path());
    for minute in 0..180 {
        keep(&mut store, "web", MIDNIGHT + minute * MINUTE, 1 + minute).unwrap();
        settle(&mut store, MIDNIGHT + (minute + 1) * MINUTE);
        let found = files(folder.path());
        let windows = found.iter().filter(|file| file.contains("_window_")).count();
        // Fifteen minutes that are too young, and a batch; at the full hour, two that are not full.
        assert!(windows <= 15 + 10 + 10, "{windows} at {minute}: {found:#?}");
    }
    assert!(files(folder.path()).len() <= 3 + 25);
    assert_eq!(cpu_ns(folder.path(), &ever()), 180 * 181 / 2);
    assert!(store.counters().merged <= 180 / 10 + 3, "{:?}", store.counters());
}

#[test]
fn windows_that_come_late_are_merged_too() {
    let folder = TempDir::new().unwrap();
    let mut store = store(folder.path());
    for minute in 0..3 {
        keep(&mut store, "web", MIDNIGHT + minute * MINUTE, 1).unwrap();
    }
    settle(&mut store, MIDNIGHT + 2 * HOUR);
    keep(&mut store, "web", MIDNIGHT + 7 * MINUTE, 10).unwrap();
    assert_eq!(files(folder.path()).len(), 2);
    settle(&mut store, MIDNIGHT + 2 * HOUR);
    assert_eq!((files(folder.path()).len(), cpu_ns(folder.path(), &ever())), (1, 13));
}

#[test]
fn labels_that_change_keep_their_own_files() {
    let folder = TempDir::new().unwrap();
    let mut store = store(folder.path());
    for minute in 0..4 {
        let at = MIDNIGHT + minute * MINUTE;
        let labels = BTreeMap::from([("version".to_owned(), (minute / 2).to_string())]);
        store
            .write(&now(at), TargetWindow { labels, ..window("web", at) }, &profile(at, 1 + minute))
            .unwrap();
    }
    settle(&mut store, MIDNIGHT + 10 * DAY - 4 * DAY);
    assert_eq!(files(folder.path()).len(), 2);
    let labels = BTreeMap::from([("version".to_owned(), "1".to_owned())]);
    assert_eq!(cpu_ns(folder.path(), &Query { labels, ..ever() }), 3 + 4);
}

/// A copy that nothing was deleted in: windows, hours and days beside each other.
#[test]
fn copies_of_all_stages_count_once() {
    let (folder, copy) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let mut store = store(folder.path());
    let all = two_days(&mut store);
    let copy_all = || {
        for file in files(folder.path()) {
            let to = copy.path().join(&file);
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(folder.path().join(&file), to).unwrap();
        }
    };
    copy_all();
    settle(&mut store, MIDNIGHT + DAY + 3 * HOUR);
    copy_all();
    settle(&mut store, MIDNIGHT + 4 * DAY);
    copy_all();
    assert!(files(copy.path()).len() > 200);
    assert_eq!(cpu_ns(copy.path(), &ever()), all);
    let piece = range(MIDNIGHT + 20 * HOUR, MIDNIGHT + 28 * HOUR);
    assert_eq!(cpu_ns(copy.path(), &piece), cpu_ns(folder.path(), &piece));
    // Whoever owns the copy removes what is held twice.
    let cleaned = super::store(copy.path());
    assert_eq!((files(copy.path()).len(), cpu_ns(copy.path(), &ever())), (4, all));
    assert!(cleaned.counters().cleaned > 200);
}

#[test]
fn a_crash_loop_is_merged_as_far_as_a_header_has_room() {
    let folder = TempDir::new().unwrap();
    let mut store = store(folder.path());
    for at in 0..1000_u64 {
        let begin = MIDNIGHT + at * 3 * SECOND;
        let (boot, to_ns) = (format!("{at:08x}-boot-that-ended-at-once-0000"), 3 * SECOND);
        let window = TargetWindow { boot, from_ns: 0, to_ns, ..window("web", begin) };
        store.write(&now(begin), window, &profile(begin, 1)).unwrap();
    }
    settle(&mut store, MIDNIGHT + 3 * HOUR);
    assert_eq!(cpu_ns(folder.path(), &ever()), 1000);
    let found = files(folder.path());
    assert!(found.len() < 4 && found.iter().all(|file| file.contains("_hour_")), "{found:#?}");
    assert_eq!((store.counters().unmerged, store.waiting(0).files), (0, 0));
    let merged = store.counters().merged;
    settle(&mut store, MIDNIGHT + 3 * HOUR);
    assert_eq!(store.counters().merged, merged, "and not again and again");
}

/// However many files it is in.
#[test]
fn time_that_goes_on_is_one_piece() {
    let folder = TempDir::new().unwrap();
    let by_day = StoreTerms { hourly_after_ns: 30 * DAY, ..settings() };
    let mut store = Store::open(folder.path(), by_day, RealDisk).unwrap();
    for minute in 0..1000 {
        keep(&mut store, "web", MIDNIGHT + minute * MINUTE, 1).unwrap();
    }
    settle(&mut store, MIDNIGHT + 3 * DAY);
    assert_eq!((files(folder.path()).len(), store.counters().merged), (1, 1));
    assert_eq!(cpu_ns(folder.path(), &ever()), 1000);
}

#[test]
fn hours_and_days_take_turns() {
    let folder = TempDir::new().unwrap();
    let mut store = store(folder.path());
    for target in ["a", "b", "c"] {
        for hour in 0..2 {
            for minute in 0..2 {
                keep(&mut store, target, MIDNIGHT + hour * HOUR + minute * MINUTE, 1).unwrap();
                keep(&mut store, target, MIDNIGHT + 2 * DAY + hour * HOUR + minute * MINUTE, 1).unwrap();
            }
        }
    }
    for _ in 0..4 {
        assert!(store.maintain(&now(MIDNIGHT + 2 * DAY + 12 * HOUR), &|| true));
    }
    let found = files(folder.path());
    let days = found.iter().filter(|file| file.contains("_day_")).count();
    assert_eq!((days, store.counters().merged), (2, 4), "{found:#?}");
}

/// Whoever has no time lets go between two files, and nothing is changed or counted.
#[test]
fn a_merge_can_be_given_up() {
    let folder = TempDir::new().unwrap();
    let mut store = store(folder.path());
    for minute in 0..5 {
        keep(&mut store, "web", MIDNIGHT + minute * MINUTE, 1).unwrap();
    }
    let (before, at) = (store.counters(), now(MIDNIGHT + 2 * HOUR));
    for files in 0..=5 {
        let asked = std::cell::Cell::new(0);
        assert!(!store.maintain(&at, &|| asked.replace(asked.get() + 1) < files), "{files}");
        assert_eq!((asked.get(), store.counters(), store.waiting(0).files), (files + 1, before, 0));
    }
    assert!(store.maintain(&at, &|| true));
    assert_eq!((files(folder.path()).len(), cpu_ns(folder.path(), &ever())), (1, 5));
}

/// Confirms no name while it is told so.
struct Forgetful(std::rc::Rc<std::cell::Cell<bool>>);

impl Disk for Forgetful {
    fn apply(&mut self, op: Op<'_>) -> io::Result<()> {
        match op {
            Op::SyncFolder(_) if self.0.get() => Err(io::ErrorKind::Other.into()),
            op => RealDisk.apply(op),
        }
    }
}

#[test]
fn sources_stay_until_the_name_of_what_they_became_is_on_the_disk() {
    let (folder, forgetful) = (TempDir::new().unwrap(), std::rc::Rc::default());
    let mut store =
        Store::open(folder.path(), settings(), Forgetful(std::rc::Rc::clone(&forgetful))).unwrap();
    for minute in 0..5 {
        keep(&mut store, "web", MIDNIGHT + minute * MINUTE, 1).unwrap();
    }
    forgetful.set(true);
    for seconds in [0, 10, 30] {
        settle(&mut store, MIDNIGHT + 2 * HOUR + seconds * SECOND);
        assert_eq!((files(folder.path()).len(), cpu_ns(folder.path(), &ever())), (6, 5));
    }
    assert!(store.waiting(0).why.unwrap().contains("confirm"), "{:?}", store.waiting(0));
    forgetful.set(false);
    settle(&mut store, MIDNIGHT + 3 * HOUR);
    assert_eq!((files(folder.path()).len(), cpu_ns(folder.path(), &ever())), (1, 5));
    assert_eq!((store.counters().unmerged, store.waiting(0).files), (3, 0));
}

/// Readers see a store that is merged, and removed from, all the time.
#[test]
fn a_reader_is_not_disturbed_by_merging() {
    let folder = TempDir::new().unwrap();
    let mut store = store(folder.path());
    for minute in 0..240 {
        keep(&mut store, "web", MIDNIGHT + minute * MINUTE, 1).unwrap();
    }
    let path = folder.path().to_owned();
    let reader = std::thread::spawn(move || (0..20).map(|_| cpu_ns(&path, &ever())).collect::<Vec<u64>>());
    settle(&mut store, MIDNIGHT + 3 * DAY);
    let seen = reader.join().unwrap();
    assert!(seen.iter().all(|sum| *sum == 240), "{seen:?}");
}

/// Writes nothing while it is told so.
struct Stubborn(std::rc::Rc<std::cell::Cell<bool>>);

impl Disk for Stubborn {
    fn apply(&mut self, op: Op<'_>) -> io::Result<()> {
        match op {
            Op::Write(..) if self.0.get() => Err(io::ErrorKind::ReadOnlyFilesystem.into()),
            op => RealDisk.apply(op),
        }
    }
}

#[test]
fn a_merge_that_fails_is_tried_again_soon_and_then_ever_more_rarely() {
    let (folder, stubborn) = (TempDir::new().unwrap(), std::rc::Rc::default());
    let mut store = Store::open(folder.path(), settings(), Stubborn(std::rc::Rc::clone(&stubborn))).unwrap();
    for minute in 0..5 {
        keep(&mut store, "web", MIDNIGHT + minute * MINUTE, 1).unwrap();
    }
    stubborn.set(true);
    let begin = MIDNIGHT + 2 * HOUR;
    // As often as the window writer calls it: each ten seconds, for four hours.
    let tries: Vec<u64> = (0..4 * 360)
        .filter(|at| {
            let before = store.counters().unmerged;
            settle(&mut store, begin + at * 10 * SECOND);
            store.counters().unmerged > before
        })
        .collect();
    assert_eq!(tries, [0, 1, 3, 7, 15, 31, 63, 127, 255, 511, 871, 1231]);
    let end = begin + 4 * HOUR;
    assert_eq!(store.waiting(now(end).monotonic_ns).files, 5);
    stubborn.set(false);
    settle(&mut store, end + 2 * HOUR);
    assert_eq!((files(folder.path()).len(), store.waiting(0).files), (1, 0));
    assert_eq!(cpu_ns(folder.path(), &ever()), 5);
}

/// A bound that leaves no room for both a merged file and what it is made of.
#[test]
fn a_larger_bound_lets_merges_go_on_at_once() {
    let folder = TempDir::new().unwrap();
    let narrow = StoreTerms { bytes: 5 * 4096, ..settings() };
    let mut store = Store::open(folder.path(), narrow, RealDisk).unwrap();
    for minute in 0..5 {
        keep(&mut store, "web", MIDNIGHT + minute * MINUTE, 1).unwrap();
    }
    let at = MIDNIGHT + 2 * HOUR;
    settle(&mut store, at);
    let waiting = store.waiting(now(at).monotonic_ns);
    assert_eq!((waiting.files, waiting.needed_bytes, store.counters().unmerged), (5, 4096, 1));
    store.rebound(StoreTerms { bytes: 6 * 4096, ..settings() });
    settle(&mut store, at + SECOND);
    assert_eq!((files(folder.path()).len(), cpu_ns(folder.path(), &ever())), (1, 5));
}
