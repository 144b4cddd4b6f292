//! The files that were fetched, laid out as elfutils' clients do: `BUILD-ID/debuginfo` in the folder of the cache. An
//! empty file says that no server had one.

use std::fs::{self, File, FileTimes, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use profile_files::AtomicFile;

/// For so long a file that no server had is not asked for again (elfutils' `cache_miss_s`).
const MISS_HOLDS: Duration = Duration::from_secs(600);

/// A file that was not used for this time is removed, unless the file below says another time.
const UNUSED_STAYS: Duration = Duration::from_secs(7 * 86_400);
/// A file in the folder with that time in seconds, as elfutils' clients have it.
const UNUSED_STAYS_FILE: &str = "max_unused_age_s";

/// A file that is being fetched was written to within this time; an older one was left behind by a process that was killed.
const FETCH_LASTS: Duration = Duration::from_secs(3600);

/// What is known of a file.
#[derive(Debug)]
pub(super) enum CachedFile {
    /// It was fetched.
    File(File),
    /// No server had it a short while ago.
    Nowhere,
    /// Nothing.
    Nothing,
}

/// The folder of the cache.
#[derive(Clone, Debug)]
pub(super) struct Cache(PathBuf);

impl Cache {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self(folder)
    }

    pub(super) fn find(&self, build_id: &str) -> CachedFile {
        let path = self.path(build_id);
        let Ok(file) = fs::metadata(&path) else { return CachedFile::Nothing };
        if !file.is_file() {
            return CachedFile::Nothing;
        }
        if file.len() > 0 {
            let Ok(file) = File::open(path) else { return CachedFile::Nothing };
            // Most file systems do not note each reading. A user who may not set this time may not remove the file either.
            let _ = file.set_times(FileTimes::new().set_accessed(SystemTime::now()));
            return CachedFile::File(file);
        }
        let age = file.modified().ok().and_then(|time| time.elapsed().ok());
        if age.is_some_and(|age| age < MISS_HOLDS) { CachedFile::Nowhere } else { CachedFile::Nothing }
    }

    /// Removes files that were not used for [`UNUSED_STAYS`], or for the time in [`UNUSED_STAYS_FILE`], and what fetches that were
    /// killed left behind. Other files in the folder stay.
    pub(super) fn remove_unused(&self, now: SystemTime) {
        let written = fs::read_to_string(self.0.join(UNUSED_STAYS_FILE)).ok();
        let stays =
            written.and_then(|text| text.trim().parse().ok()).map_or(UNUSED_STAYS, Duration::from_secs);
        let is_folder = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
        for entry in fs::read_dir(&self.0).into_iter().flatten().flatten().filter(is_folder) {
            let path = entry.path().join("debuginfo");
            let is_unused = |file: &Metadata| {
                let used = file.accessed().ok().max(file.modified().ok());
                let unused_for = used.and_then(|used| now.duration_since(used).ok());
                file.is_file() && unused_for.is_some_and(|time| time > stays)
            };
            let is_removed = fs::symlink_metadata(&path).is_ok_and(|file| is_unused(&file))
                && fs::remove_file(&path).is_ok();
            if remove_leftovers(&entry.path(), now) || is_removed {
                let _ = fs::remove_dir(entry.path()); // it stays with what else is in it
            }
        }
    }

    /// A file to be filled and then given its name.
    pub(super) fn begin(&self, build_id: &str) -> io::Result<AtomicFile> {
        let path = self.path(build_id);
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        AtomicFile::create(&path)
    }

    pub(super) fn note_miss(&self, build_id: &str) -> io::Result<()> {
        self.begin(build_id)?.commit()
    }

    pub(super) fn path(&self, build_id: &str) -> PathBuf {
        self.0.join(build_id).join("debuginfo")
    }
}

/// Removes unfinished files that are older than [`FETCH_LASTS`]; whether there were any.
fn remove_leftovers(folder: &Path, now: SystemTime) -> bool {
    let is_old = |file: &Metadata| {
        let age = file.modified().ok().and_then(|written| now.duration_since(written).ok());
        file.is_file() && age.is_some_and(|age| age > FETCH_LASTS)
    };
    let is_leftover = |entry: &fs::DirEntry| {
        entry.file_name().to_str().is_some_and(AtomicFile::is_temporary)
            && entry.metadata().is_ok_and(|file| is_old(&file)) // of a link, its own
    };
    let leftovers = fs::read_dir(folder).into_iter().flatten().flatten().filter(is_leftover);
    leftovers.filter(|entry| fs::remove_file(entry.path()).is_ok()).count() > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_stays_and_what_is_not_goes() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path().to_owned());
        let now = SystemTime::now();
        let long_ago =
            FileTimes::new().set_accessed(now - 2 * UNUSED_STAYS).set_modified(now - 2 * UNUSED_STAYS);
        for build_id in ["aa", "bb"] {
            cache.begin(build_id).unwrap().commit().unwrap();
            fs::write(cache.path(build_id), "debug information").unwrap();
            File::open(cache.path(build_id)).unwrap().set_times(long_ago).unwrap();
        }
        let said = folder.path().join(UNUSED_STAYS_FILE);
        fs::write(&said, format!("{}\n", 4 * UNUSED_STAYS.as_secs())).unwrap();
        cache.remove_unused(now);
        assert!(matches!(cache.find("aa"), CachedFile::File(_)) && cache.path("bb").exists());
        fs::remove_file(&said).unwrap();
        cache.remove_unused(now);
        assert!(matches!(cache.find("aa"), CachedFile::File(_)));
        assert!(matches!(cache.find("bb"), CachedFile::Nothing) && !folder.path().join("bb").exists());
    }

    #[test]
    fn a_fetch_that_was_killed_leaves_nothing_for_long() {
        const LEFTOVER: &str = ".sweetspot-7-1790000000000000000.tmp";
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path().to_owned());
        let now = SystemTime::now();
        for build_id in ["aa", "bb", "cc"] {
            let path = folder.path().join(build_id);
            fs::create_dir(&path).unwrap();
            fs::write(path.join(LEFTOVER), "debug infor").unwrap();
        }
        fs::write(cache.path("bb"), "debug information").unwrap();
        let two_hours_ago = FileTimes::new().set_modified(now - Duration::from_secs(7200));
        for build_id in ["aa", "bb"] {
            let leftover = File::open(folder.path().join(build_id).join(LEFTOVER)).unwrap();
            leftover.set_times(two_hours_ago).unwrap();
        }
        cache.remove_unused(now);
        assert!(!folder.path().join("aa").exists(), "nothing else was in it");
        assert!(!folder.path().join("bb").join(LEFTOVER).exists() && cache.path("bb").exists());
        assert!(folder.path().join("cc").join(LEFTOVER).exists(), "it may be fetched at this moment");
    }
}
