//! The files that were fetched, laid out as elfutils' clients do: `BUILD-ID/debuginfo` in the folder of the cache. An
//! empty file says that no server had one.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use profile_files::AtomicFile;

/// For so long a file that no server had is not asked for again (elfutils' `cache_miss_s`).
const MISS_HOLDS: Duration = Duration::from_secs(600);

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
            return File::open(path).map_or(CachedFile::Nothing, CachedFile::File);
        }
        let age = file.modified().ok().and_then(|time| time.elapsed().ok());
        if age.is_some_and(|age| age < MISS_HOLDS) { CachedFile::Nowhere } else { CachedFile::Nothing }
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
