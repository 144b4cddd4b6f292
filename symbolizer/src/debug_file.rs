//! Finding the separate debug file of an object.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use flate2::Crc;

use crate::elf::Elf;
use crate::object::build_id;
use crate::reason::Reason;
use crate::source::ReadAt;

const DEBUG_ROOT: &str = "/usr/lib/debug";
const CHUNK: u64 = 1 << 20;
/// The largest file that is read for its checksum. One that is longer holds more than is read of debug information.
const MOST_BYTES: u64 = 4 << 30;

/// How separate debug files are opened.
///
/// The paths are those of the object's own view of the file system. Whether that is a container's or the host's, and
/// whether a path may be opened at all, is the implementation's business.
pub trait DebugFiles {
    /// Opens a regular file, or says that there is none to be had.
    fn open(&self, path: &Path) -> Option<Box<dyn ReadAt>>;

    /// Fetches the debug file of this build id, in hexadecimal, from wherever else there may be one: asked last, and
    /// believed only if it says that it is of this build.
    fn fetch(&self, build_id: &str) -> Option<Box<dyn ReadAt>> {
        let _ = build_id;
        None
    }

    /// The same, to be kept with an object: the files of split debug information are opened as addresses ask for
    /// them. Without, none are.
    fn share(&self) -> Option<Box<dyn DebugFiles + Send + Sync>> {
        None
    }
}

/// No separate debug files at all.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoDebugFiles;

impl DebugFiles for NoDebugFiles {
    fn open(&self, _: &Path) -> Option<Box<dyn ReadAt>> {
        None
    }
}

/// A debug file that belongs to its object.
pub(crate) struct DebugFile {
    pub(crate) path: PathBuf,
    pub(crate) source: Arc<dyn ReadAt>,
}

/// The debug file of `elf`, by its build id, else by its debug link. Files of another build are noted in `warnings`.
pub(crate) fn find(
    elf: &Elf<'_>,
    path: &Path,
    files: &dyn DebugFiles,
    warnings: &mut Vec<Reason>,
) -> Option<DebugFile> {
    let build_id = elf.build_id();
    let by_id = build_id.as_deref().and_then(|id| by_build_id(id, files, warnings));
    let near = by_id.or_else(|| by_link(elf, path, files, warnings));
    near.or_else(|| fetched(&build_id?, files, warnings))
}

/// The file of shared debug information that `elf`, read from `path`, refers to.
pub(crate) fn find_alt(
    elf: &Elf<'_>,
    path: &Path,
    files: &dyn DebugFiles,
    warnings: &mut Vec<Reason>,
) -> Option<DebugFile> {
    let link = elf.alt_link()?;
    let named = path.parent().unwrap_or(Path::new("/")).join(&link.path);
    let found = open_build(&named, &link.build_id, files, warnings);
    let near = found.or_else(|| by_build_id(&link.build_id, files, warnings));
    near.or_else(|| fetched(&link.build_id, files, warnings))
}

fn by_build_id(id: &str, files: &dyn DebugFiles, warnings: &mut Vec<Reason>) -> Option<DebugFile> {
    let (start, rest) = id.split_at_checked(2).filter(|(_, rest)| !rest.is_empty())?;
    let path = Path::new(DEBUG_ROOT).join(".build-id").join(start).join(format!("{rest}.debug"));
    open_build(&path, id, files, warnings)
}

fn open_build(
    path: &Path,
    id: &str,
    files: &dyn DebugFiles,
    warnings: &mut Vec<Reason>,
) -> Option<DebugFile> {
    accept_build(path, files.open(path)?, id, warnings)
}

fn fetched(id: &str, files: &dyn DebugFiles, warnings: &mut Vec<Reason>) -> Option<DebugFile> {
    accept_build(Path::new(id), files.fetch(id)?, id, warnings)
}

fn accept_build(
    path: &Path,
    source: Box<dyn ReadAt>,
    id: &str,
    warnings: &mut Vec<Reason>,
) -> Option<DebugFile> {
    let same = build_id(&*source).is_some_and(|found| found == id);
    accept(path, source, same, warnings)
}

fn by_link(
    elf: &Elf<'_>,
    path: &Path,
    files: &dyn DebugFiles,
    warnings: &mut Vec<Reason>,
) -> Option<DebugFile> {
    let link = elf.debug_link()?;
    // The name comes from the object and must stay a name: no other directory can be reached with it.
    if link.file.is_empty() || link.file.contains('/') || link.file == ".." {
        return None;
    }
    let directory = path.parent()?;
    let below_root = Path::new(DEBUG_ROOT).join(directory.strip_prefix("/").unwrap_or(directory));
    for place in [directory, &directory.join(".debug"), &below_root] {
        let candidate = place.join(&link.file);
        let Some(source) = (candidate != path).then(|| files.open(&candidate)).flatten() else { continue };
        if let Ok(bytes @ MOST_BYTES..) = source.len() {
            warnings
                .push(Reason::TooLarge { what: format!("the debug file {}", candidate.display()), bytes });
            continue;
        }
        let same = crc(&*source).is_some_and(|crc| crc == link.crc);
        if let Some(found) = accept(&candidate, source, same, warnings) {
            return Some(found);
        }
    }
    None
}

fn accept(path: &Path, source: Box<dyn ReadAt>, same: bool, warnings: &mut Vec<Reason>) -> Option<DebugFile> {
    if !same {
        warnings.push(Reason::OtherBuild(path.display().to_string()));
        return None;
    }
    Some(DebugFile { path: path.to_owned(), source: Arc::from(source) })
}

fn crc(source: &dyn ReadAt) -> Option<u32> {
    let len = source.len().ok()?;
    let mut crc = Crc::new();
    let mut at = 0;
    while at < len {
        let bytes = source.read_at(at, CHUNK.min(len - at) as usize).ok()?;
        crc.update(&bytes);
        at += bytes.len().max(1) as u64;
    }
    Some(crc.sum())
}
