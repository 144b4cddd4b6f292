//! Windows that wait without names: whole or not there, within their bounds, and seen by no reader.

use super::*;

const ROOM: u64 = 1 << 20;

fn unnamed(folder: &Path) -> PathBuf {
    folder.join("unnamed")
}

fn put(spool: &Spool, unix_ns: u64) -> io::Result<String> {
    spool.write(window("web", unix_ns), &profile(unix_ns, 600))
}

#[test]
fn a_window_is_read_back_as_it_was_written_and_no_reader_of_the_store_sees_it() {
    let folder = TempDir::new().unwrap();
    let _store = store(folder.path());
    let spool = Spool::open(folder.path(), ROOM);
    let (later, first) = (put(&spool, MIDNIGHT + MINUTE).unwrap(), put(&spool, MIDNIGHT).unwrap());
    let again = Spool::open(folder.path(), ROOM);
    assert_eq!((again.names(), again.size()), (vec![first.clone(), later], spool.size()));
    let (window, read) = again.read(&first).unwrap();
    let expected = super::window("web", MIDNIGHT);
    assert_eq!(
        (window.target, window.labels, window.boot),
        (expected.target, expected.labels, expected.boot)
    );
    assert_eq!((window.from_ns, window.to_ns), (expected.from_ns, expected.to_ns));
    let written = profile(MIDNIGHT, 600);
    assert_eq!((&read.stacks, &read.windows), (&written.stacks, &written.windows));
    assert_eq!(read.run.start_unix_ns, MIDNIGHT);
    assert_eq!(cpu_ns(folder.path(), &ever()), 0);
    again.remove(&first);
    assert_eq!((again.size().0, again.names().len()), (1, 1));
    assert!(matches!(again.read(&first), Err(SpoolReadError::Refused(_))));
}

#[test]
fn what_was_not_finished_goes_and_what_is_no_window_stays() {
    let folder = TempDir::new().unwrap();
    let _store = store(folder.path());
    fs::create_dir(unnamed(folder.path())).unwrap();
    for name in [".sweetspot-1-0.tmp", "notes.txt"] {
        fs::write(unnamed(folder.path()).join(name), "anything").unwrap();
    }
    std::os::unix::fs::symlink("/etc/passwd", unnamed(folder.path()).join("link.pb.gz")).unwrap();
    fs::create_dir(unnamed(folder.path()).join("folder.pb.gz")).unwrap();
    assert_eq!(Spool::open(folder.path(), ROOM).size(), (0, 0));
    let left = listing::names(&unnamed(folder.path())).unwrap();
    assert_eq!(left, ["folder.pb.gz", "link.pb.gz", "notes.txt"]);
}

#[test]
fn the_file_of_a_window_that_is_named_is_emptied_and_used_again() {
    let folder = TempDir::new().unwrap();
    let _store = store(folder.path());
    let spool = Spool::open(folder.path(), ROOM);
    let inode = |file: &str| std::os::unix::fs::MetadataExt::ino(&fs::metadata(file).unwrap());
    let all = || listing::names(&unnamed(folder.path())).unwrap();
    let path = |name: &str| unnamed(folder.path()).join(name).display().to_string();
    let first = put(&spool, MIDNIGHT).unwrap();
    let used = inode(&path(&first));
    spool.remove(&first);
    let spare = all();
    assert!(listing::is_unfinished(&spare[0]) && fs::read(path(&spare[0])).unwrap().is_empty(), "{spare:?}");
    let second = put(&spool, MIDNIGHT + MINUTE).unwrap();
    assert_eq!((all(), inode(&path(&second))), (vec![second.clone()], used));
    assert!(spool.read(&second).is_ok());
    // Whatever is in its place by then is left alone.
    spool.remove(&second);
    let other = folder.path().join("other");
    fs::write(&other, "of somebody else").unwrap();
    fs::remove_file(path(&all()[0])).unwrap();
    std::os::unix::fs::symlink(&other, path(&spare[0])).unwrap();
    for minute in 2..4 {
        assert!(spool.read(&put(&spool, MIDNIGHT + minute * MINUTE).unwrap()).is_ok());
    }
    assert_eq!(fs::read(&other).unwrap(), b"of somebody else");
}

#[test]
fn a_process_that_ends_leaves_no_empty_files() {
    let folder = TempDir::new().unwrap();
    let _store = store(folder.path());
    let spool = Spool::open(folder.path(), ROOM);
    let waiting = put(&spool, MIDNIGHT).unwrap();
    spool.remove(&put(&spool, MIDNIGHT + MINUTE).unwrap());
    drop(spool);
    assert_eq!(listing::names(&unnamed(folder.path())).unwrap(), [waiting]);
}

#[test]
fn every_change_is_found_and_set_aside() {
    let folder = TempDir::new().unwrap();
    let mut store = store(folder.path());
    let spool = Spool::open(folder.path(), ROOM);
    let file = put(&spool, MIDNIGHT).unwrap();
    let path = unnamed(folder.path()).join(&file);
    let bytes = fs::read(&path).unwrap();
    let is_damaged = |file: &str| matches!(spool.read(file), Err(SpoolReadError::Damaged(_)));
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        fs::write(&path, &changed).unwrap();
        assert!(is_damaged(&file), "byte {at} of {}", bytes.len());
        fs::write(&path, &bytes[..at]).unwrap();
        assert!(is_damaged(&file), "{at} bytes of {}", bytes.len());
    }
    for other in ["x.pb.gz", "_.pb.gz", &file.replacen("web", "db", 1)] {
        fs::write(unnamed(folder.path()).join(other), &bytes).unwrap();
        assert!(is_damaged(other), "{other}");
    }
    store.set_unnamed_aside(&spool, &file);
    assert_eq!((store.counters().damaged, spool.size()), (1, (0, 0)));
    assert!(folder.path().join(DAMAGED).join(&file).exists() && !path.exists());
    // It is too old in a week, as others are.
    store.expire(&now(MIDNIGHT + 9 * DAY));
    assert_eq!((store.counters().expired, store.size().0), (1, 0));
}

#[test]
fn there_is_no_more_of_it_than_was_allowed() {
    let folder = TempDir::new().unwrap();
    let _store = store(folder.path());
    let spool = Spool::open(folder.path(), 8192);
    let first = put(&spool, MIDNIGHT).unwrap();
    put(&spool, MIDNIGHT + MINUTE).unwrap();
    assert!(put(&spool, MIDNIGHT + 2 * MINUTE).unwrap_err().to_string().contains("limits.queue"));
    assert_eq!(listing::names(&unnamed(folder.path())).unwrap().len(), 2);
    spool.remove(&first);
    put(&spool, MIDNIGHT + 2 * MINUTE).unwrap();
    spool.rebound(4096);
    assert!(put(&spool, MIDNIGHT + 3 * MINUTE).is_err());
}

#[test]
fn nothing_is_made_where_the_store_is_gone_and_nothing_written_through_a_link() {
    let folder = TempDir::new().unwrap();
    let gone = folder.path().join("store");
    let spool = Spool::open(&gone, ROOM);
    assert!(put(&spool, MIDNIGHT).is_err());
    assert!(!gone.exists());
    let other = TempDir::new().unwrap();
    fs::create_dir(&gone).unwrap();
    std::os::unix::fs::symlink(other.path(), unnamed(&gone)).unwrap();
    assert!(put(&spool, MIDNIGHT).is_err());
    assert!(listing::names(other.path()).unwrap().is_empty());
}

#[test]
fn time_that_is_kept_already_is_known_however_it_was_merged() {
    let folder = TempDir::new().unwrap();
    let mut store = store(folder.path());
    assert!(!store.has_time_of(&window("web", MIDNIGHT)));
    keep(&mut store, "web", MIDNIGHT, 600).unwrap();
    keep(&mut store, "web", MIDNIGHT + MINUTE, 600).unwrap();
    settle(&mut store, MIDNIGHT + 3 * HOUR);
    assert_eq!(store.size().0, 1);
    assert!(
        store.has_time_of(&window("web", MIDNIGHT)) && store.has_time_of(&window("web", MIDNIGHT + MINUTE))
    );
    assert!(!store.has_time_of(&window("db", MIDNIGHT)));
    assert!(!store.has_time_of(&window("web", MIDNIGHT + 2 * MINUTE)));
}
