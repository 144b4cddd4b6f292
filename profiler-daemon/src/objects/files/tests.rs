use std::io::Write;

use super::*;

const MOST: usize = 3;

fn files() -> OpenFiles {
    OpenFiles::new(Roots::default(), MOST, Opener::default())
}

fn open(files: &OpenFiles) -> usize {
    files.pool().entries.values().filter(|entry| entry.file.is_some()).count()
}

/// Files of one letter each, held by their paths.
fn held(files: &OpenFiles, folder: &Path, letters: &str) -> Vec<(PathBuf, HeldFile)> {
    let hold = |letter: char| {
        let path = folder.join(letter.to_string());
        std::fs::write(&path, letter.to_string()).unwrap();
        let file = File::open(&path).unwrap();
        let version = Version::new(&file.metadata().unwrap());
        let held = files.hold(file, version);
        held.is_at(RootView::Ours, &path);
        (path, held)
    };
    letters.chars().map(hold).collect()
}

#[test]
fn any_number_of_files_can_be_read_and_few_are_open() {
    let (files, folder) = (files(), tempfile::tempdir().unwrap());
    let held = held(&files, folder.path(), "abcdefgh");
    for _ in 0..3 {
        for (path, file) in &held {
            let letter = path.file_name().unwrap().to_string_lossy().into_owned();
            assert_eq!(file.read_at(0, 1).unwrap(), letter.as_bytes());
            assert!(open(&files) <= MOST);
        }
    }
    assert_eq!(files.lost(), 0);
    drop(held);
    assert!(files.pool().entries.is_empty());
}

#[test]
fn what_cannot_be_found_again_is_kept_open_and_else_is_lost() {
    let (files, folder) = (files(), tempfile::tempdir().unwrap());
    let first = held(&files, folder.path(), "ab");
    first.iter().for_each(|(path, _)| std::fs::remove_file(path).unwrap());
    let others = held(&files, folder.path(), "cdef");
    assert_eq!(first[0].1.read_at(0, 1).unwrap(), b"a", "others could be closed in its place");
    others.iter().for_each(|(path, _)| std::fs::remove_file(path).unwrap());
    let last = held(&files, folder.path(), "ghi");
    assert!(last[0].1.read_at(0, 1).is_ok());
    let gone = first.iter().chain(&others).filter(|(_, file)| file.read_at(0, 1).is_err()).count() as u64;
    assert!(gone > 0 && files.lost() == gone, "{gone} and {}", files.lost());
    let again = first.iter().chain(&others).filter(|(_, file)| file.read_at(0, 1).is_err()).count() as u64;
    assert_eq!((again, files.lost()), (gone, gone), "each is counted once");
}

#[test]
fn another_file_of_the_name_and_one_that_was_written_into_are_not_taken() {
    let (files, folder) = (files(), tempfile::tempdir().unwrap());
    let first = held(&files, folder.path(), "ab");
    assert!(first[0].1.is_unchanged().unwrap());
    let _others = held(&files, folder.path(), "cdef");
    let aside = folder.path().join("aside");
    std::fs::write(&aside, "X").unwrap();
    std::fs::rename(&aside, &first[0].0).unwrap();
    File::options().append(true).open(&first[1].0).unwrap().write_all(b"more").unwrap();
    for (path, file) in &first {
        assert!(file.read_at(0, 1).is_err(), "{}", path.display());
    }
    assert!(!first[1].1.version().unwrap().has_bytes_of(&File::open(&first[1].0).unwrap()));
}

#[test]
fn a_copy_is_another_file_whatever_it_says_of_itself() {
    let (files, folder) = (files(), tempfile::tempdir().unwrap());
    let first = held(&files, folder.path(), "a");
    let (path, file) = &first[0];
    let modified = std::fs::metadata(path).unwrap().modified().unwrap();
    let _others = held(&files, folder.path(), "cdef");
    let copy = folder.path().join("copy");
    std::fs::copy(path, &copy).unwrap();
    File::options().write(true).open(&copy).unwrap().set_modified(modified).unwrap();
    std::fs::rename(&copy, path).unwrap();
    assert!(file.read_at(0, 1).is_err() && files.lost() == 1);
}

#[test]
fn what_was_written_into_is_known_by_its_last_change_though_its_times_are_set_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    std::fs::write(&path, "a").unwrap();
    let before = std::fs::metadata(&path).unwrap();
    let version = Version::new(&before);
    assert!(version.recognises(&File::open(&path).unwrap()));
    std::thread::sleep(std::time::Duration::from_millis(20)); // times of files may be as coarse as a tick
    std::fs::write(&path, "X").unwrap();
    File::options().write(true).open(&path).unwrap().set_modified(before.modified().unwrap()).unwrap();
    assert!(!version.recognises(&File::open(&path).unwrap()));
}

#[test]
fn a_file_that_lost_its_name_holds_what_it_held() {
    let (files, folder) = (files(), tempfile::tempdir().unwrap());
    let first = held(&files, folder.path(), "a");
    std::thread::sleep(std::time::Duration::from_millis(20));
    std::fs::remove_file(&first[0].0).unwrap();
    assert!(first[0].1.is_unchanged().unwrap());
}

#[test]
fn a_file_that_is_closed_and_whose_mount_hangs_holds_up_nothing() {
    let (files, folder) = (files(), tempfile::tempdir().unwrap());
    let held = held(&files, folder.path(), "abcdef");
    let is_closed = |(_, file): &&(PathBuf, HeldFile)| file.open_local().is_none();
    let (_, closed) = held.iter().find(is_closed).unwrap();
    let (_, open) = held.last().unwrap();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let hung = files.opener().call(&closed.mount(), Wait::Sampling, move || _ = released.recv());
    assert!(hung.is_err());
    let read = |file: &HeldFile| file.read_to_sample(0, 1, OnceCost::default());
    assert_eq!(read(closed).unwrap_err().kind(), io::ErrorKind::TimedOut);
    assert_eq!(closed.get().unwrap_err().kind(), io::ErrorKind::TimedOut);
    assert!(closed.is_as_it_was(), "it is not known to be another");
    assert_eq!(read(open).unwrap(), b"f");
    drop(release);
    hung.unwrap_err().recv().unwrap();
    while files.opener().is_stalled(&closed.mount()) {
        std::thread::yield_now();
    }
    assert_eq!(closed.read_at(0, 1).unwrap().len(), 1);
    assert_eq!(files.lost(), 0);
}
