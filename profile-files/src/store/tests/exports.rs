//! What waits to be sent: once, whatever is merged, removed or ended meanwhile.

use super::*;

fn exports(names: &[&str]) -> Vec<Export> {
    names.iter().map(|name| Export { name: (*name).to_owned(), targets: Vec::new() }).collect()
}

/// Sends what comes next as a sender does; its target and begin (minutes since midnight).
fn send(store: &Store, export: &str, fate: SendOutcome) -> Option<(String, u64)> {
    let file_to_send = store.outboxes().try_take(export, 0, true)?;
    if fate.settles() {
        Cursor::of(&store.folder, export).add(&file_to_send).unwrap();
    }
    store.outboxes().finish(export, 0, &file_to_send, fate);
    let begin = file_to_send.time_ranges.iter().map(|time_range| time_range.begin_unix_ns).min().unwrap();
    Some((file_to_send.target, (begin - MIDNIGHT) / MINUTE))
}

fn tally(store: &Store, export: &str, unix_ns: u64) -> ExportTally {
    store.outboxes().try_tallies(&now(unix_ns)).unwrap()[export]
}

fn names(folder: &Path) -> Vec<String> {
    listing::names(&folder.join("exports")).unwrap_or_default()
}

/// A store whose export `a` began at midnight, with so many minutes of a target.
fn exporting(folder: &Path, minutes: u64) -> Store {
    let mut store = store(folder);
    store.export(&now(MIDNIGHT), &exports(&["a"]));
    for minute in 0..minutes {
        keep(&mut store, "web", MIDNIGHT + minute * MINUTE, 1).unwrap();
    }
    store
}

/// An export that was new while the wall clock was years ahead gets what ends after the next boot.
#[test]
fn an_export_of_a_boot_with_a_wrong_clock_gets_the_windows_of_the_next() {
    let folder = TempDir::new().unwrap();
    let mut ahead = store(folder.path());
    ahead.export(&now(MIDNIGHT + 3650 * DAY), &exports(&["a"]));
    drop(ahead);
    let at = |unix_ns| Now { boot: "corrected".to_owned(), ..now(unix_ns) };
    let mut store = store(folder.path());
    store.export(&at(MIDNIGHT), &exports(&["a"]));
    let window = TargetWindow { boot: "corrected".to_owned(), ..window("web", MIDNIGHT) };
    store.write(&at(MIDNIGHT + MINUTE), window, &profile(MIDNIGHT, 1)).unwrap();
    assert!(send(&store, "a", SendOutcome::Sent(7)).is_some());
}

#[test]
fn windows_are_sent_once_also_after_a_restart() {
    let folder = TempDir::new().unwrap();
    let mut first = store(folder.path());
    keep(&mut first, "web", MIDNIGHT - 2 * MINUTE, 1).unwrap();
    first.export(&now(MIDNIGHT - MINUTE / 2), &exports(&["a", "b"]));
    for minute in [0, 1, 2] {
        keep(&mut first, "web", MIDNIGHT + minute * MINUTE, 1).unwrap();
        keep(&mut first, "db", MIDNIGHT + minute * MINUTE, 1).unwrap();
    }
    let begins: Vec<_> = [
        SendOutcome::Sent(7),
        SendOutcome::Refused,
        SendOutcome::Sent(7),
        SendOutcome::Kept(SendFault::None),
    ]
    .into_iter()
    .filter_map(|fate| send(&first, "a", fate))
    .map(|(_, begin)| begin)
    .collect();
    assert_eq!(begins, [0, 0, 1, 1], "none from before its time");
    let expected = ExportTally {
        pushed: 2,
        refused: 1,
        sent_bytes: 14,
        pending: 3,
        lag_ns: MINUTE,
        ..ExportTally::default()
    };
    assert_eq!(tally(&first, "a", MIDNIGHT + 3 * MINUTE), expected);
    let file_to_send = first.outboxes().try_take("a", 0, true).unwrap();
    drop(first); // with one that is being sent
    let mut second = store(folder.path());
    second.export(&now(MIDNIGHT + 4 * MINUTE), &exports(&["a", "b"]));
    let left: Vec<_> = std::iter::from_fn(|| send(&second, "a", SendOutcome::Sent(1))).collect();
    assert_eq!((left[0].1, left[0].0.as_str(), left.len()), (1, file_to_send.target.as_str(), 3));
    assert_eq!(std::iter::from_fn(|| send(&second, "b", SendOutcome::Sent(1))).count(), 6);
    assert_eq!(names(folder.path()), ["a", "b"]);
    second.export(&now(MIDNIGHT + 5 * MINUTE), &exports(&["b"]));
    assert_eq!(names(folder.path()), ["b"]);
    second.export(&now(MIDNIGHT + 5 * MINUTE), &exports(&["a", "b"]));
    assert_eq!(send(&second, "a", SendOutcome::Sent(1)), None, "it begins anew");
}

#[test]
fn what_the_rules_of_an_export_drop_is_settled_and_counted() {
    let folder = TempDir::new().unwrap();
    let first = exporting(folder.path(), 3);
    for (at, fate) in [(0, SendOutcome::LeftOut), (1, SendOutcome::LeftOut)] {
        assert_eq!(send(&first, "a", fate).unwrap().1, at);
    }
    let expected = ExportTally { left_out: 2, pending: 1, ..ExportTally::default() };
    assert_eq!(tally(&first, "a", MIDNIGHT + 3 * MINUTE), expected);
    drop(first);
    let mut second = store(folder.path());
    second.export(&now(MIDNIGHT + 4 * MINUTE), &exports(&["a"]));
    assert_eq!(send(&second, "a", SendOutcome::Sent(1)).unwrap().1, 2, "after a restart, too");
    assert_eq!(send(&second, "a", SendOutcome::Sent(1)), None);
}

/// What was written late is sent late.
#[test]
fn the_order_in_which_windows_are_written_does_not_matter() {
    let folder = TempDir::new().unwrap();
    let mut store = exporting(folder.path(), 0);
    keep(&mut store, "web", MIDNIGHT + MINUTE, 1).unwrap();
    assert_eq!(send(&store, "a", SendOutcome::Sent(1)).unwrap().1, 1);
    keep(&mut store, "web", MIDNIGHT, 1).unwrap();
    assert_eq!(send(&store, "a", SendOutcome::Sent(1)).unwrap().1, 0);
    assert_eq!(send(&store, "a", SendOutcome::Sent(1)), None);
}

#[test]
fn few_windows_that_wait_are_not_merged() {
    let folder = TempDir::new().unwrap();
    let mut store = exporting(folder.path(), 12);
    for _ in 0..2 {
        send(&store, "a", SendOutcome::Sent(1)).unwrap();
    }
    settle(&mut store, MIDNIGHT + 2 * HOUR);
    assert_eq!(store.size().0, 11, "the two that were sent are one");
    assert_eq!(std::iter::from_fn(|| send(&store, "a", SendOutcome::Sent(1))).count(), 10);
    settle(&mut store, MIDNIGHT + 2 * HOUR);
    assert_eq!((store.size().0, cpu_ns(folder.path(), &ever())), (1, 12));
    assert_eq!((tally(&store, "a", MIDNIGHT).pushed, send(&store, "a", SendOutcome::Sent(1))), (12, None));
}

#[test]
fn many_are_merged_with_their_like_and_sent_as_that() {
    let folder = TempDir::new().unwrap();
    let mut first = exporting(folder.path(), 12);
    first.merges.most_unmerged = 3;
    for _ in 0..2 {
        send(&first, "a", SendOutcome::Sent(1)).unwrap();
    }
    let file_to_send = first.outboxes().try_take("a", 0, true).unwrap();
    settle(&mut first, MIDNIGHT + 2 * HOUR);
    assert_eq!(first.size().0, 3, "sent, being sent, and waiting");
    assert_eq!(tally(&first, "a", MIDNIGHT).pending, 10);
    drop((first, file_to_send));
    let mut second = store(folder.path());
    second.export(&now(MIDNIGHT + 2 * HOUR), &exports(&["a"]));
    assert_eq!(send(&second, "a", SendOutcome::Sent(1)).unwrap().1, 2);
    assert_eq!(send(&second, "a", SendOutcome::Sent(1)).unwrap().1, 3, "nine minutes in one");
    assert_eq!(send(&second, "a", SendOutcome::Sent(1)), None);
    settle(&mut second, MIDNIGHT + 2 * HOUR);
    assert_eq!((second.size().0, cpu_ns(folder.path(), &ever())), (1, 12));
}

/// Two exports that are at different places.
#[test]
fn no_file_waits_in_part() {
    let folder = TempDir::new().unwrap();
    let mut store = store(folder.path());
    store.export(&now(MIDNIGHT), &exports(&["a", "b"]));
    store.merges.most_unmerged = 0;
    for minute in 0..30 {
        keep(&mut store, "web", MIDNIGHT + minute * MINUTE, 1).unwrap();
    }
    for (export, count) in [("a", 5), ("b", 11)] {
        (0..count).for_each(|_| assert!(send(&store, export, SendOutcome::Sent(1)).is_some()));
    }
    settle(&mut store, MIDNIGHT + 2 * HOUR);
    let waits = |store: &Store| ["a", "b"].map(|export| tally(store, export, MIDNIGHT).pending);
    assert_eq!((store.size().0, waits(&store)), (3, [25, 19]), "for none, for one, and for both");
    assert_eq!(send(&store, "a", SendOutcome::Sent(1)).unwrap().1, 5);
    settle(&mut store, MIDNIGHT + 2 * HOUR);
    assert_eq!((store.size().0, waits(&store)), (2, [19, 19]));
    while send(&store, "a", SendOutcome::Sent(1)).is_some()
        || send(&store, "b", SendOutcome::Sent(1)).is_some()
    {
        settle(&mut store, MIDNIGHT + 2 * HOUR);
    }
    let of = |export: &str| tally(&store, export, MIDNIGHT);
    assert_eq!((of("a").pushed, of("b").pushed), (30, 30));
    assert_eq!((of("a").dropped, store.size().0, cpu_ns(folder.path(), &ever())), (0, 1, 30));
}

#[test]
fn what_the_store_removes_before_it_is_sent_is_dropped() {
    let folder = TempDir::new().unwrap();
    let mut store = exporting(folder.path(), 3);
    let file_to_send = store.outboxes().try_take("a", 0, true).unwrap();
    let other = store.outboxes().try_take("a", 0, true).unwrap();
    store.expire(&now(MIDNIGHT + 8 * DAY));
    let of = |store: &Store| tally(store, "a", MIDNIGHT + 8 * DAY);
    assert_eq!((store.size().0, of(&store).dropped, of(&store).pending), (0, 1, 2));
    store.outboxes().finish("a", 0, &file_to_send, SendOutcome::Sent(1));
    store.outboxes().finish("a", 0, &other, SendOutcome::Kept(SendFault::None));
    assert_eq!((of(&store).pushed, of(&store).dropped, of(&store).pending), (1, 2, 0));
    // By hand, and all of the folder.
    keep(&mut store, "web", MIDNIGHT + 8 * DAY, 1).unwrap();
    keep(&mut store, "web", MIDNIGHT + 8 * DAY + MINUTE, 1).unwrap();
    std::fs::remove_dir_all(folder.path()).unwrap();
    store.look_over(&now(MIDNIGHT + 8 * DAY + HOUR)).unwrap();
    assert_eq!((of(&store).dropped, of(&store).pending), (4, 0));
    // The cursor goes with it, and comes again with the next window.
    keep(&mut store, "web", MIDNIGHT + 8 * DAY + HOUR, 1).unwrap();
    let file_to_send = store.outboxes().try_take("a", 0, true).unwrap();
    let mut cursor = Cursor::of(folder.path(), "a");
    cursor.add(&file_to_send).unwrap_err();
    cursor.write(&store.outboxes().position("a").unwrap()).unwrap();
    cursor.add(&file_to_send).unwrap();
}

/// What of a file was acknowledged in parts is known to the next process, and forgotten with the file.
#[test]
fn parts_are_sent_once_also_after_a_restart() {
    let folder = TempDir::new().unwrap();
    let first = exporting(folder.path(), 2);
    let file_to_send = first.outboxes().try_take("a", 0, true).unwrap();
    let mut left = PartsLeft::all_of(100);
    assert!(left.halve());
    left.acknowledge(7);
    Cursor::of(folder.path(), "a").leave(&file_to_send.path, &left).unwrap();
    drop(first);
    let mut second = store(folder.path());
    second.export(&now(MIDNIGHT + HOUR), &exports(&["a"]));
    assert_eq!(second.outboxes().parts_left("a", &file_to_send.path), Some(left.clone()));
    assert!(left.fits(100) && !left.fits(99) && !left.is_empty());
    second.outboxes().leave("a", &file_to_send.path, left.clone());
    Cursor::of(folder.path(), "a").write(&second.outboxes().position("a").unwrap()).unwrap();
    assert_eq!(send(&second, "a", SendOutcome::Kept(SendFault::None)).unwrap().1, 0);
    assert_eq!(second.outboxes().parts_left("a", &file_to_send.path), Some(left));
    assert_eq!(send(&second, "a", SendOutcome::Sent(9)).unwrap().1, 0);
    assert_eq!(second.outboxes().parts_left("a", &file_to_send.path), None);
    drop(second);
    let mut third = store(folder.path());
    third.export(&now(MIDNIGHT + HOUR), &exports(&["a"]));
    assert_eq!(third.outboxes().parts_left("a", &file_to_send.path), None);
    assert_eq!(tally(&third, "a", MIDNIGHT + HOUR).pending, 1);
}

/// Whatever a power failure leaves of it, a cursor says nothing that is not so.
#[test]
fn a_cursor_that_is_cut_short_says_what_is_left_of_it() {
    let folder = TempDir::new().unwrap();
    let store = exporting(folder.path(), 3);
    let path = folder.path().join("exports/a");
    let whole = std::fs::read(&path).unwrap();
    let positions: Vec<_> = std::iter::once(store.outboxes().position("a").unwrap())
        .chain(std::iter::from_fn(|| {
            send(&store, "a", SendOutcome::Sent(1))?;
            store.outboxes().position("a")
        }))
        .collect();
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(positions.len(), 4);
    for cut in 0..=bytes.len() {
        std::fs::write(&path, &bytes[..cut]).unwrap();
        let read = Cursor::of(folder.path(), "a").read().unwrap();
        match read {
            None => assert!(cut < whole.len(), "{cut}"),
            Some(position) => assert!(cut >= whole.len() && positions.contains(&position), "{cut}"),
        }
        // What is added behind a line that was cut short counts.
        if cut >= whole.len() {
            let mut cursor = Cursor::of(folder.path(), "a");
            let time_ranges =
                TimeRanges::new(vec![TimeRange { boot: "b".into(), from_ns: 0, to_ns: 9, begin_unix_ns: 0 }]);
            let file_to_send =
                OutboxFile { path: "x".into(), target: "late".into(), time_ranges, blamed: 0, failed_ns: 0 };
            cursor.add(&file_to_send).unwrap();
            assert!(format!("{:?}", cursor.read().unwrap()).contains("late"), "{cut}");
        }
    }
    for at in 0..whole.len() {
        let mut changed = whole.clone();
        changed[at] ^= 1;
        std::fs::write(&path, &changed).unwrap();
        assert_eq!(Cursor::of(folder.path(), "a").read().unwrap(), None, "{at}");
    }
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
    Cursor::of(folder.path(), "a").read().unwrap_err();
}

/// Other settings come in the moment between the line of a window that was acknowledged and the position that has it.
#[test]
fn no_acknowledged_window_is_lost_when_its_cursor_is_replaced() {
    let folder = TempDir::new().unwrap();
    let mut store = exporting(folder.path(), 2);
    let outboxes = store.outboxes();
    let file_to_send = outboxes.try_take("a", 0, true).unwrap();
    let recording = outboxes.recording();
    Cursor::of(folder.path(), "a").add(&file_to_send).unwrap();
    let unfinished = folder.path().join("exports/.sweetspot-1-a.tmp");
    std::fs::write(&unfinished, "as a sender begins it").unwrap();
    let other = [Export { name: "a".to_owned(), targets: vec!["web".parse().unwrap()] }];
    std::thread::scope(|scope| {
        let owner = scope.spawn(|| store.export(&now(MIDNIGHT + HOUR), &other));
        // Time enough to replace it at the wrong moment.
        for _ in 0..20 {
            std::thread::sleep(std::time::Duration::from_millis(10));
            if owner.is_finished() {
                break;
            }
        }
        assert!(unfinished.exists(), "nothing is removed that a sender writes");
        outboxes.finish("a", 0, &file_to_send, SendOutcome::Sent(1));
        drop(recording);
        owner.join().unwrap();
    });
    assert_eq!(Cursor::of(folder.path(), "a").read().unwrap(), outboxes.position("a"));
    drop(store);
    let mut next = super::store(folder.path());
    next.export(&now(MIDNIGHT + HOUR), &other);
    assert_eq!(send(&next, "a", SendOutcome::Sent(1)).unwrap().1, 1);
    assert_eq!(send(&next, "a", SendOutcome::Sent(1)), None);
}
