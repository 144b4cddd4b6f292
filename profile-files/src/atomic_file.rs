//! A file that appears whole or not at all: written under a hidden name in the same folder, then renamed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// A file being written. Dropped before [`AtomicFile::commit`], it leaves nothing behind.
#[derive(Debug)]
pub struct AtomicFile {
    file: File,
    temporary: PathBuf,
    path: PathBuf,
}

impl AtomicFile {
    /// Starts a file that will be called `path`.
    ///
    /// # Errors
    ///
    /// If the folder is missing or not writable, or something other than a file has the name.
    pub fn create(path: &Path) -> io::Result<Self> {
        if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "something other than a file has this name",
            ));
        }
        let temporary = temporary_name(path);
        // Never through a link that someone else has put there.
        let file = OpenOptions::new().write(true).create_new(true).open(&temporary)?;
        Ok(Self { file, temporary, path: path.to_owned() })
    }

    /// Whether a file of this name is one that is being written, or was left behind by a process that was killed.
    pub fn is_temporary(name: &str) -> bool {
        name.starts_with(".sweetspot-") && name.ends_with(".tmp")
    }

    /// The same file, to be read from its start.
    ///
    /// # Errors
    ///
    /// If it was removed meanwhile, or no more files can be opened.
    pub fn reopen(&self) -> io::Result<File> {
        File::open(&self.temporary)
    }

    /// Gives the file its name, once all of it is on the disk.
    ///
    /// # Errors
    ///
    /// If the disk refuses: nothing is left behind, and a file that had the name stays.
    pub fn commit(self) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.temporary, &self.path)
    }
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.temporary); // after a commit there is none
    }
}

/// A hidden name beside `path` that no other run uses.
fn temporary_name(path: &Path) -> PathBuf {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    path.with_file_name(format!(".sweetspot-{}-{now}.tmp", std::process::id()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
        fs::read_dir(folder).unwrap().map(name).collect()
    }

    #[test]
    fn the_name_appears_with_the_whole_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.svg");
        fs::write(&path, "old").unwrap();
        let mut file = AtomicFile::create(&path).unwrap();
        file.write_all(b"new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        file.commit().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(names(folder.path()), ["a.svg"]);
    }

    #[test]
    fn a_file_given_up_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = AtomicFile::create(&folder.path().join("a.svg")).unwrap();
        assert!(names(folder.path()).iter().all(|name| AtomicFile::is_temporary(name)));
        drop(file);
        assert!(names(folder.path()).is_empty());
    }

    #[test]
    fn folders_are_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        assert!(AtomicFile::create(folder.path()).is_err());
        assert!(AtomicFile::create(&folder.path().join("missing/a.svg")).is_err());
    }
}
