//! Every byte counts.

use proptest::prelude::*;

use super::*;

fn one_file(folder: &Path) -> (PathBuf, Vec<u8>) {
    let files = files(folder);
    assert_eq!(files.len(), 1, "{files:?}");
    let path = folder.join(&files[0]);
    let bytes = fs::read(&path).unwrap();
    (path, bytes)
}

#[test]
fn every_changed_byte_is_found() {
    let folder = TempDir::new().unwrap();
    drop(keep(&mut store(folder.path()), "web", MIDNIGHT, 600));
    let (path, bytes) = one_file(folder.path());
    for at in 0..bytes.len() {
        for flipped in [1_u8, 0x80, 0xff] {
            let mut changed = bytes.clone();
            changed[at] ^= flipped;
            fs::write(&path, &changed).unwrap();
            let reading = read(folder.path(), &ever()).unwrap();
            assert_eq!(reading.damaged.len(), 1, "byte {at} of {}", bytes.len());
            assert!(reading.profile.stacks.is_empty());
        }
    }
    fs::write(&path, &bytes).unwrap();
    assert_eq!(cpu_ns(folder.path(), &ever()), 600);
}

#[test]
fn every_changed_length_is_found() {
    let folder = TempDir::new().unwrap();
    drop(keep(&mut store(folder.path()), "web", MIDNIGHT, 600));
    let (path, bytes) = one_file(folder.path());
    for length in 0..bytes.len() {
        fs::write(&path, &bytes[..length]).unwrap();
        assert_eq!(read(folder.path(), &ever()).unwrap().damaged.len(), 1, "{length} of {}", bytes.len());
    }
    for more in [&b"\0"[..], b"\n", &bytes] {
        fs::write(&path, [&bytes, more].concat()).unwrap();
        assert_eq!(read(folder.path(), &ever()).unwrap().damaged.len(), 1, "{} more", more.len());
    }
}

/// A name that was changed is never believed: the file is damaged, or no longer one of the store, and a gap.
#[test]
fn every_changed_character_of_a_name_is_found() {
    let folder = TempDir::new().unwrap();
    drop(keep(&mut store(folder.path()), "web", MIDNIGHT, 600));
    let (path, _) = one_file(folder.path());
    let name = path.file_name().unwrap().to_str().unwrap().to_owned();
    for at in 0..name.len() {
        for other in ["0", "1", "7", "a", "x", "-", "_", "A", ""] {
            let changed = format!("{}{other}{}", &name[..at], &name[at + 1..]);
            if changed == name {
                continue;
            }
            let to = path.with_file_name(&changed);
            fs::rename(&path, &to).unwrap();
            let reading = read(folder.path(), &range(MIDNIGHT, MIDNIGHT + MINUTE)).unwrap();
            assert!(reading.profile.stacks.is_empty(), "{changed}");
            assert_eq!(reading.gaps.len(), 1, "{changed}");
            let reading = read(folder.path(), &ever()).unwrap();
            assert!(reading.profile.stacks.is_empty(), "{changed}");
            assert!(reading.damaged.len() == 1 || !changed.ends_with(".pb.gz"), "{changed}: {reading:?}");
            fs::rename(&to, &path).unwrap();
        }
    }
    let elsewhere = folder.path().join("2026-11-17").join(&name);
    fs::create_dir(elsewhere.parent().unwrap()).unwrap();
    fs::rename(&path, &elsewhere).unwrap();
    assert_eq!(read(folder.path(), &ever()).unwrap().damaged.len(), 1, "another day");
}

#[test]
fn the_owner_sets_damaged_files_aside_and_counts_them() {
    let folder = TempDir::new().unwrap();
    let mut first = store(folder.path());
    for minute in 0..5 {
        keep(&mut first, "web", MIDNIGHT + minute * MINUTE, 1 << minute).unwrap();
    }
    let spoil = |file: &str, at: usize| {
        let path = folder.path().join(file);
        let mut bytes = fs::read(&path).unwrap();
        let at = at.min(bytes.len() - 1);
        bytes[at] ^= 1;
        fs::write(path, bytes).unwrap();
    };
    let kept = files(folder.path());
    spoil(&kept[1], 14); // its header: seen when the store is opened
    spoil(&kept[2], usize::MAX); // its end: seen when it is read
    spoil(&kept[3], usize::MAX); // the same: seen when it is merged
    fs::write(folder.path().join("2026-11-16/strange.pb.gz"), "").unwrap();
    drop(first);

    let mut store = store(folder.path());
    assert_eq!(store.counters().damaged, 2);
    let third = range(MIDNIGHT + 2 * MINUTE, MIDNIGHT + 3 * MINUTE);
    let reading = store.read(&third).unwrap();
    assert_eq!((reading.damaged.len(), reading.gaps.len(), store.counters().damaged), (1, 1, 3));
    assert!(store.read(&third).unwrap().damaged.is_empty(), "once is enough");
    settle(&mut store, MIDNIGHT + 2 * HOUR);
    assert_eq!((store.counters().damaged, store.counters().merged), (4, 1));
    assert_eq!(cpu_ns(folder.path(), &ever()), 1 | 1 << 4);
    let aside = listing::names(&folder.path().join("damaged")).unwrap();
    assert_eq!(aside.len(), 4, "{aside:?}");
    assert!(aside.iter().all(|name| name.starts_with("2026-11-16_")));
    let (count, bytes) = store.size();
    assert_eq!((count, bytes), (5, 4 * 4096), "damaged files take room: {aside:?}");
    drop(store);
    // They are gone when all else is.
    let mut store = super::store(folder.path());
    settle(&mut store, MIDNIGHT + 9 * DAY);
    assert_eq!(store.size(), (0, 0));
    assert!(listing::names(&folder.path().join("damaged")).unwrap().is_empty());
}

/// What a merged file was made from is removed only if that file is whole.
#[test]
fn sources_beside_a_damaged_merge_are_kept() {
    let (folder, copy) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let mut store = store(folder.path());
    for minute in 0..5 {
        keep(&mut store, "web", MIDNIGHT + minute * MINUTE, 1 << minute).unwrap();
    }
    let take = |spoil: bool| {
        for file in files(folder.path()) {
            let to = copy.path().join(&file);
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            let mut bytes = fs::read(folder.path().join(&file)).unwrap();
            let last = bytes.len() - 1;
            bytes[last] ^= u8::from(spoil);
            fs::write(to, bytes).unwrap();
        }
    };
    take(false);
    settle(&mut store, MIDNIGHT + 2 * HOUR);
    take(true);
    let reading = read(copy.path(), &ever()).unwrap();
    assert_eq!((reading.damaged.len(), reading.profile.run.counts.samples), (1, 31));
    let copied = super::store(copy.path());
    assert_eq!((copied.counters().damaged, copied.counters().cleaned), (1, 0));
    assert_eq!(cpu_ns(copy.path(), &ever()), 31);
}

/// Puts a link to itself in place of a file, which nobody can open, root neither. The file is what comes back.
fn lock_away(path: &Path) -> Vec<u8> {
    let bytes = fs::read(path).unwrap();
    fs::remove_file(path).unwrap();
    std::os::unix::fs::symlink(path, path).unwrap();
    bytes
}

/// What a disk refuses for a while is sound.
#[test]
fn a_file_that_cannot_be_read_is_told_and_left_where_it_is() {
    let folder = TempDir::new().unwrap();
    let mut first = store(folder.path());
    for minute in 0..5 {
        keep(&mut first, "web", MIDNIGHT + minute * MINUTE, 1 << minute).unwrap();
    }
    let path = folder.path().join(&files(folder.path())[2]);
    let bytes = lock_away(&path);
    let at = MIDNIGHT + 2 * HOUR;
    settle(&mut first, at);
    let waiting = first.waiting(now(at).monotonic_ns);
    assert_eq!((first.counters().damaged, first.counters().unmerged, waiting.files), (0, 1, 5));
    assert!(waiting.why.as_ref().is_some_and(|why| why.contains("cannot be read")), "{waiting:?}");
    let reading = read(folder.path(), &ever()).unwrap();
    assert_eq!(
        (reading.unreadable.len(), reading.damaged.len(), reading.profile.run.counts.samples),
        (1, 0, 31 - 4)
    );
    drop(first);

    let mut anew = store(folder.path());
    assert_eq!((anew.size().0, anew.counters()), (4, Counters::default()));
    assert!(anew.left_alone() == 1 && anew.notes(0)[0].starts_with("1 files"), "{:?}", anew.notes(0));
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap(); // opens, and refuses to be read
    let reading = read(folder.path(), &ever()).unwrap();
    assert_eq!((reading.unreadable.len(), reading.damaged.len()), (1, 0), "{reading:?}");
    anew.check(&[PathBuf::from(files(folder.path())[2].clone())]);
    assert_eq!(anew.counters().damaged, 0);
    drop(anew);
    fs::remove_dir(&path).unwrap();
    fs::write(&path, &bytes).unwrap();
    let mut anew = store(folder.path());
    settle(&mut anew, at);
    assert_eq!((files(folder.path()).len(), cpu_ns(folder.path(), &ever())), (1, 31));
}

#[test]
fn a_file_that_goes_under_a_merge_is_no_damage() {
    let folder = TempDir::new().unwrap();
    let mut store = store(folder.path());
    for minute in 0..5 {
        keep(&mut store, "web", MIDNIGHT + minute * MINUTE, 1 << minute).unwrap();
    }
    fs::remove_file(folder.path().join(&files(folder.path())[2])).unwrap();
    settle(&mut store, MIDNIGHT + 2 * HOUR);
    let Counters { damaged, merged, unmerged, .. } = store.counters();
    assert_eq!((damaged, merged, unmerged, cpu_ns(folder.path(), &ever())), (0, 1, 0, 31 - 4));
}

/// A merge that was interrupted is proved by the one file that it made, however much else there is.
#[test]
fn after_a_crash_no_more_is_read_than_what_holds_others_time() {
    let (folder, copy) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let mut first = store(folder.path());
    for minute in 0..5 {
        keep(&mut first, "web", MIDNIGHT + minute * MINUTE, 1 << minute).unwrap();
    }
    let windows = files(folder.path());
    for file in &windows {
        fs::copy(folder.path().join(file), copy.path().join(Path::new(file).file_name().unwrap())).unwrap();
    }
    keep(&mut first, "web", MIDNIGHT + 5 * HOUR, 64).unwrap();
    settle(&mut first, MIDNIGHT + 2 * HOUR);
    drop(first);
    for file in &windows {
        fs::copy(copy.path().join(Path::new(file).file_name().unwrap()), folder.path().join(file)).unwrap();
    }
    let other = files(folder.path()).into_iter().find(|file| file.contains("/05-")).unwrap();
    let mut bytes = fs::read(folder.path().join(&other)).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(folder.path().join(&other), bytes).unwrap();
    let mut anew = store(folder.path());
    assert_eq!((anew.counters().cleaned, anew.counters().damaged, anew.size().0), (5, 0, 2));
    // It is found by who reads it, who says so.
    let damaged: Vec<PathBuf> =
        read(folder.path(), &ever()).unwrap().damaged.into_iter().map(|(path, _)| path).collect();
    assert_eq!(damaged, [PathBuf::from(other)]);
    anew.check(&damaged);
    anew.check(&damaged);
    assert_eq!((anew.counters().damaged, anew.size().0), (1, 2));
    assert!(read(folder.path(), &ever()).unwrap().damaged.is_empty());
}

#[test]
fn files_that_share_a_part_of_their_time_are_told() {
    let folder = TempDir::new().unwrap();
    drop(keep(&mut store(folder.path()), "web", MIDNIGHT, 1));
    let time_range = TimeRange {
        boot: BOOT.to_owned(),
        from_ns: HOUR + MINUTE / 2,
        to_ns: HOUR + 2 * MINUTE,
        begin_unix_ns: MIDNIGHT + MINUTE / 2,
    };
    let time_ranges = TimeRanges::new(vec![time_range]);
    let stamp = Stamp::new(Level::Window, "web".to_owned(), BTreeMap::new(), time_ranges);
    let foreign = seal::seal(&stamp, &profile(MIDNIGHT, 2)).unwrap();
    fs::write(folder.path().join(foreign.name.path()), foreign.bytes).unwrap();
    let reading = read(folder.path(), &ever()).unwrap();
    assert_eq!(reading.overlapping.len(), 1);
    assert_eq!(reading.profile.run.counts.samples, 2, "the longer one counts");
}

proptest! {
    #[test]
    fn no_name_panics_and_those_that_parse_are_written_the_same(name in "2026-11-16/[0-9_a-z.s-]{0,60}(.pb.gz)?") {
        if let Some(parsed) = name::Name::parse(Path::new(&name)) {
            prop_assert_eq!(parsed.path(), PathBuf::from(name));
        }
    }

    #[test]
    fn names_read_back(
        begin in 0..4_000_000_000_u64, length in 1..100_000_000_000_u64, from in 0..u64::from(u32::MAX), target in "\\PC{0,90}",
    ) {
        let time_range = TimeRange {
            boot: BOOT.to_owned(), from_ns: from, to_ns: from + length, begin_unix_ns: begin * SECOND + begin % 977,
        };
        let span = time_range.span();
        let stamp = Stamp::new(Level::Window, target, BTreeMap::new(), TimeRanges::new(vec![time_range]));
        let mut name = name::Name::of(&stamp);
        name.crc = 7;
        let parsed = name::Name::parse(&name.path());
        prop_assert_eq!(parsed.as_ref(), Some(&name));
        prop_assert!(name.fits(&stamp));
        prop_assert!(name.span().from_unix_ns <= span.from_unix_ns && name.span().to_unix_ns >= span.to_unix_ns);
    }

    #[test]
    fn no_header_panics(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        let header = [&[0x1f, 0x8b, 8, 4, 0, 0, 0, 0, 0, 0], bytes.as_slice()].concat();
        prop_assert!(Stamp::read(header.as_slice()).is_none());
    }
}
