//! What others do in the folder of a store while it is in use: pipes, links and devices in place of files, files that vanish,
//! and a folder that is taken away.

use std::os::unix::fs::symlink;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::*;

/// A sound store with a window, and what lies beside it: a pipe, a link and a socket that are called as profiles are, and a
/// link in place of a day.
fn with_others() -> (TempDir, TempDir, Vec<PathBuf>) {
    let (folder, elsewhere) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    keep(&mut store(folder.path()), "web", MIDNIGHT, 1).unwrap();
    keep(&mut store(elsewhere.path()), "db", MIDNIGHT, 2).unwrap();
    keep(&mut store(elsewhere.path()), "db", MIDNIGHT + DAY, 4).unwrap();
    let own = PathBuf::from(&files(folder.path())[0]);
    let theirs = elsewhere.path().join(&files(elsewhere.path())[0]);
    let beside = |second: u64| {
        own.with_file_name(format!("00-00-0{second}_window_60.000s_x_5f1d2c3b-36840000_9617ec96.pb.gz"))
    };
    let day = PathBuf::from("2026-11-17");
    mkfifo(&folder.path().join(beside(1)), Mode::S_IRWXU).unwrap();
    symlink(&theirs, folder.path().join(own.with_file_name(theirs.file_name().unwrap()))).unwrap();
    drop(std::os::unix::net::UnixListener::bind(folder.path().join(beside(2))).unwrap());
    symlink(elsewhere.path().join(&day), folder.path().join(&day)).unwrap();
    let others = vec![beside(1), own.with_file_name(theirs.file_name().unwrap()), beside(2), day];
    (folder, elsewhere, others)
}

#[test]
fn pipes_links_and_devices_are_left_alone_and_counted() {
    let (folder, elsewhere, others) = with_others();
    let reading = read(folder.path(), &ever()).unwrap();
    assert_eq!(
        (reading.profile.run.counts.samples, reading.unreadable.len(), reading.damaged.len()),
        (1, 4, 0)
    );

    let mut store = store(folder.path());
    assert_eq!((store.size().0, store.left_alone(), store.counters()), (1, 4, Counters::default()));
    assert!(store.notes(0)[0].starts_with("4 files of the store cannot be read"), "{:?}", store.notes(0));
    store.check(&others);
    settle(&mut store, MIDNIGHT + 2 * HOUR);
    let through_a_link = keep(&mut store, "web", MIDNIGHT + DAY + HOUR, 8);
    assert!(matches!(through_a_link, Err(NotKept::Refused(_))), "{through_a_link:?}");
    assert!(others.iter().all(|path| fs::symlink_metadata(folder.path().join(path)).is_ok()));
    assert_eq!(cpu_ns(elsewhere.path(), &ever()), 6, "nothing was changed through a link");

    others.iter().for_each(|path| fs::remove_file(folder.path().join(path)).unwrap());
    store.look_over(&now(MIDNIGHT + 3 * HOUR)).unwrap();
    assert_eq!((store.left_alone(), store.notes(0)), (0, Vec::new()));
    mkfifo(&folder.path().join(&others[0]), Mode::S_IRWXU).unwrap();
    store.look_over(&now(MIDNIGHT + 4 * HOUR)).unwrap();
    assert_eq!((store.left_alone(), store.size().0), (1, 1), "one that came later");
}

#[test]
fn a_lock_that_is_none_is_refused_at_once() {
    for make in [
        |lock: &Path| mkfifo(lock, Mode::S_IRWXU).unwrap(),
        |lock: &Path| symlink("elsewhere", lock).unwrap(),
        |lock: &Path| fs::create_dir(lock).unwrap(),
    ] {
        let folder = TempDir::new().unwrap();
        make(&folder.path().join(".lock"));
        let error = Store::open(folder.path(), settings(), RealDisk).unwrap_err().to_string();
        assert!(error.contains("profiles cannot be kept in"), "{error}");
        assert!(!folder.path().join("elsewhere").exists());
    }
}

#[test]
fn files_that_somebody_removes_are_not_counted_any_more() {
    let folder = TempDir::new().unwrap();
    let mut store = store(folder.path());
    for minute in 0..4 {
        keep(&mut store, "web", MIDNIGHT + minute * MINUTE, 1).unwrap();
    }
    fs::remove_file(folder.path().join(&files(folder.path())[0])).unwrap();
    store.look_over(&now(MIDNIGHT + HOUR)).unwrap();
    assert_eq!((store.size().0, store.counters().vanished), (3, 1));
    fs::remove_dir_all(folder.path().join("2026-11-16")).unwrap();
    store.look_over(&now(MIDNIGHT + 2 * HOUR)).unwrap();
    assert_eq!((store.size(), store.counters().vanished), ((0, 0), 4));
    let told = |at| store.notes(now(at).monotonic_ns);
    assert!(told(MIDNIGHT + 2 * HOUR)[0].contains("3 files of"), "{:?}", told(MIDNIGHT + 2 * HOUR));
    assert_eq!(told(MIDNIGHT + 4 * HOUR), Vec::<String>::new(), "for a while");
}

/// Whatever becomes of the folder, windows are kept, counts are true and no other owner gets in.
#[test]
fn a_folder_that_is_taken_away_is_made_and_locked_anew() {
    let outside = TempDir::new().unwrap();
    let folder = outside.path().join("store");
    let copy = outside.path().join("copy");
    let acts: [(&str, &dyn Fn()); 5] = [
        ("removed", &|| fs::remove_dir_all(&folder).unwrap()),
        ("moved", &|| fs::rename(&folder, &copy).unwrap()),
        ("replaced by a copy with the same lock", &|| {
            fs::remove_dir_all(&copy).unwrap();
            fs::rename(&folder, &copy).unwrap();
            fs::create_dir(&folder).unwrap();
            fs::hard_link(copy.join(".lock"), folder.join(".lock")).unwrap();
        }),
        ("its lock removed", &|| fs::remove_file(folder.join(".lock")).unwrap()),
        ("its lock replaced", &|| {
            fs::remove_file(folder.join(".lock")).unwrap();
            fs::write(folder.join(".lock"), "").unwrap();
        }),
    ];
    let mut store = store(&folder);
    for (at, (what, act)) in acts.iter().enumerate() {
        let begin = MIDNIGHT + at as u64 * 10 * MINUTE;
        keep(&mut store, "web", begin, 1).unwrap();
        act();
        let left = files(&folder).len();
        keep(&mut store, "web", begin + MINUTE, 1).unwrap();
        assert_eq!((store.size().0, files(&folder).len()), (left + 1, left + 1), "{what}");
        assert_eq!(store.counters().remade, at as u64 + 1, "{what}");
        let second = Store::open(&folder, settings(), RealDisk);
        assert!(matches!(second, Err(StoreError::Busy(_))), "{what}: {second:?}");
        let notes = store.notes(now(begin).monotonic_ns);
        assert!(notes.iter().any(|note| note.contains("it was created again")), "{what}: {notes:?}");
    }
    assert_eq!(store.counters().written, 10);
}

#[test]
fn a_folder_that_is_made_anew_without_a_loss_is_no_problem() {
    let outside = TempDir::new().unwrap();
    let folder = outside.path().join("store");
    let mut store = store(&folder);
    let notes = |store: &Store, at_ns| store.notes(now(at_ns).monotonic_ns);
    fs::remove_dir_all(&folder).unwrap();
    keep(&mut store, "web", MIDNIGHT, 1).unwrap();
    fs::remove_file(folder.join(".lock")).unwrap();
    keep(&mut store, "web", MIDNIGHT + MINUTE, 1).unwrap();
    assert_eq!((store.counters().remade, notes(&store, MIDNIGHT)), (2, vec![]));
    fs::remove_dir_all(&folder).unwrap();
    keep(&mut store, "web", MIDNIGHT + 2 * MINUTE, 1).unwrap();
    let said = notes(&store, MIDNIGHT + 2 * MINUTE);
    assert!(said.len() == 1 && said[0].contains("created again, without 2 of its 2 files"), "{said:?}");
    assert_eq!(notes(&store, MIDNIGHT + 2 * HOUR), Vec::<String>::new(), "it is not said for ever");
}

#[test]
fn a_folder_that_cannot_be_made_anew_costs_windows_until_it_can() {
    let outside = TempDir::new().unwrap();
    let folder = outside.path().join("store");
    let mut store = store(&folder);
    keep(&mut store, "web", MIDNIGHT, 1).unwrap();
    fs::remove_dir_all(&folder).unwrap();
    fs::write(&folder, "no folder").unwrap();
    assert!(matches!(keep(&mut store, "web", MIDNIGHT + MINUTE, 1), Err(NotKept::Refused(_))));
    assert!(store.look_over(&now(MIDNIGHT + HOUR)).is_err());
    assert!(!store.maintain(&now(MIDNIGHT + HOUR), &|| true));
    assert_eq!((store.size(), store.counters().dropped_refused), ((0, 0), 1));
    fs::remove_file(&folder).unwrap();
    keep(&mut store, "web", MIDNIGHT + 2 * MINUTE, 1).unwrap();
    assert_eq!((store.size().0, store.counters().remade), (1, 1));
    let notes = store.notes(now(MIDNIGHT + 2 * MINUTE).monotonic_ns);
    assert!(notes[0].contains("without 1 of its 1 files"), "what was lost before it failed: {notes:?}");

    // Somebody else is its owner meanwhile.
    fs::remove_dir_all(&folder).unwrap();
    let other = super::store(&folder);
    let refused = keep(&mut store, "web", MIDNIGHT + 3 * MINUTE, 1);
    assert!(matches!(refused, Err(NotKept::Refused(_))), "{refused:?}");
    drop(other);
    // Programs that other tests start hold the lock too, until they are executed.
    while keep(&mut store, "web", MIDNIGHT + 4 * MINUTE, 1).is_err() {
        std::thread::yield_now();
    }
}
