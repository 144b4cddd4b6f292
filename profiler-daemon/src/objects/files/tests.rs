use std::io::Write;

use super::*;

const MOST: usize = 3;

fn files() -> OpenFiles {
    OpenFiles::new(Roots::default(), MOST)
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
        let identity = Identity::new(&file.metadata().unwrap(), None);
        let held = files.hold(file, identity);
        held.is_at(View::Ours, &path);
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
            assert_eq!(file.read(0, 1).unwrap(), letter.as_bytes());
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
    assert_eq!(first[0].1.read(0, 1).unwrap(), b"a", "others could be closed in its place");
    others.iter().for_each(|(path, _)| std::fs::remove_file(path).unwrap());
    let last = held(&files, folder.path(), "ghi");
    assert!(last[0].1.read(0, 1).is_ok());
    let gone = first.iter().chain(&others).filter(|(_, file)| file.read(0, 1).is_err()).count() as u64;
    assert!(gone > 0 && files.lost() == gone, "{gone} and {}", files.lost());
    let again = first.iter().chain(&others).filter(|(_, file)| file.read(0, 1).is_err()).count() as u64;
    assert_eq!((again, files.lost()), (gone, gone), "each is counted once");
}

#[test]
fn another_file_of_the_name_and_one_that_was_written_into_are_not_taken() {
    let (files, folder) = (files(), tempfile::tempdir().unwrap());
    let first = held(&files, folder.path(), "ab");
    let file = first[0].1.get().unwrap();
    assert!(first[0].1.is_unchanged(&file));
    let _others = held(&files, folder.path(), "cdef");
    let aside = folder.path().join("aside");
    std::fs::write(&aside, "X").unwrap();
    std::fs::rename(&aside, &first[0].0).unwrap();
    File::options().append(true).open(&first[1].0).unwrap().write_all(b"more").unwrap();
    for (path, file) in &first {
        assert!(file.read(0, 1).is_err(), "{}", path.display());
    }
    assert!(!first[1].1.is_unchanged(&File::open(&first[1].0).unwrap()));
}

#[test]
fn a_copy_of_the_same_build_is_taken() {
    let (files, folder) = (files(), tempfile::tempdir().unwrap());
    let own = std::env::current_exe().unwrap();
    let file = File::open(&own).unwrap();
    let Some(build_id) = build_id(&file) else { return }; // a linker that leaves none
    let identity = Identity::new(&file.metadata().unwrap(), Some(build_id.clone()));
    let copy = folder.path().join("copy");
    std::fs::copy(&own, &copy).unwrap();
    let copied = File::open(&copy).unwrap();
    assert!(identity.recognises(&copied));
    assert_eq!(identity.code(), Identity::new(&copied.metadata().unwrap(), Some(build_id)).code());
    let held = files.hold(file, identity);
    held.is_at(View::Ours, &copy);
    let others = held_letters(&files, folder.path());
    assert!(held.read(0, 4).is_ok_and(|start| start == b"\x7fELF"));
    drop(others);
}

fn held_letters(files: &OpenFiles, folder: &Path) -> Vec<(PathBuf, HeldFile)> {
    held(files, folder, "abcdef")
}
