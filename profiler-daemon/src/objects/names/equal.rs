//! Files that hold the same, as those of containers made from one image do, are named once.
//!
//! This is checked: a file with the build id, length and entry of a known file is hashed, and shares the
//! names of files with the same hash. These are read from bytes that have the hash, and only from debug files
//! that are the same for every process: a process with others in its file system gets names of its own.
//!
//! Files of up to 64 MiB are hashed, by the thread that names. Names that are shared are read from parts that
//! have the hash each time, because no timestamp shows what is written through a mapping.

use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};

use profiler_core::elf::{BuildId, ElfImage};
use rustc_hash::FxHashMap;

use super::super::files::{HeldFile, Version};
use super::super::object::{Content, MappedObject};
use super::kept::KeptNames;
use super::{NameRoom, lock};
use crate::roots::{RootView, Roots, is_by_build_id};
use crate::symbol_process::print::{ContentKey, Print, Proof, ProvenFile};
use crate::sys::root::Link;

/// Debug files that are looked for, at most: of more (split debug information) it is not asked who has them.
const MOST_ASKED: usize = 32;

/// What a file says of itself, and anybody could.
#[derive(PartialEq, Eq, Hash)]
struct ContentClaim {
    build_id: BuildId,
    len: u64,
    entry: u64,
}

/// All files of equal content that were found, and who claims to be of some.
#[derive(Default)]
pub(super) struct Equals {
    /// Who claimed it first.
    claims: Mutex<FxHashMap<ContentClaim, Weak<KeptNames>>>,
    prints: Mutex<FxHashMap<Version, Weak<Print>>>,
    /// By content, and by the path, since debug files are looked for beside it.
    found: Mutex<FxHashMap<(ContentKey, String), Weak<Equal>>>,
}

/// Files of equal content.
pub(crate) struct Equal {
    /// Their names.
    pub(crate) names: Arc<KeptNames>,
    print: Arc<Print>,
    /// The debug files that they were looked for in.
    pub(crate) debug_files: Arc<DebugFilesForAll>,
}

/// Debug files that are the same for whoever has a file of some content, and those that were looked for in vain since they are not.
#[derive(Default)]
pub(crate) struct DebugFilesForAll(Mutex<Vec<PathBuf>>);

/// Whether names are shared with files of equal content.
#[derive(Default)]
pub(super) enum NameSharing {
    /// They are not.
    #[default]
    Alone,
    /// Another file makes the same claim.
    Claimed,
    /// They are.
    With(Arc<Equal>),
}

impl Equals {
    /// Whether somebody else was the first to claim this.
    pub(super) fn is_claimed(&self, len: u64, image: &ElfImage, names: &Arc<KeptNames>) -> bool {
        let Some(build_id) = image.build_id.clone() else { return false };
        let mut claims = lock(&self.claims);
        let claim = ContentClaim { build_id, len, entry: image.entry };
        if claims.get(&claim).is_some_and(|first| first.strong_count() > 0) {
            return true;
        }
        forget(&mut claims);
        claims.insert(claim, Arc::downgrade(names));
        false
    }

    fn find(&self, object: &MappedObject) -> Option<Arc<Equal>> {
        let Content::File(file) = &object.content else { return None };
        if object.missing().is_some() {
            return None;
        }
        let print = self.print(file)?;
        let key = (print.key(), object.path.clone());
        let mut found = lock(&self.found);
        if let Some(equal) = found.get(&key).and_then(Weak::upgrade) {
            return Some(equal);
        }
        forget(&mut found);
        let equal = Arc::new(Equal { names: Arc::default(), print, debug_files: Arc::default() });
        found.insert(key, Arc::downgrade(&equal));
        Some(equal)
    }

    /// A file that is seen in several file systems is hashed once.
    fn print(&self, file: &HeldFile) -> Option<Arc<Print>> {
        let version = file.version()?;
        let known = lock(&self.prints).get(&version).and_then(Weak::upgrade);
        if known.is_some() {
            return known;
        }
        let print = Arc::new(Print::of(file).ok()?);
        let mut prints = lock(&self.prints);
        forget(&mut prints);
        prints.insert(version, Arc::downgrade(&print));
        Some(print)
    }
}

/// Makes room for one more where there is none.
fn forget<K: std::hash::Hash + Eq, V>(known: &mut FxHashMap<K, Weak<V>>) {
    if known.len() == known.capacity() {
        known.retain(|_, known| known.strong_count() > 0);
    }
}

impl NameRoom {
    /// Looks whether this object holds what others do, if it says so.
    pub(crate) fn compare(&self, object: &MappedObject) {
        let found = self.0.equals.find(object);
        object.names.share(found.map_or(NameSharing::Alone, NameSharing::With));
    }
}

impl Equal {
    /// What all of them hold.
    pub(crate) fn print(&self) -> &Arc<Print> {
        &self.print
    }

    /// The bytes of a file, as far as they are those of all; `proof` tells whether they were.
    pub(crate) fn proven(&self, file: HeldFile, proof: Proof) -> ProvenFile<HeldFile> {
        ProvenFile::new(file, Arc::clone(&self.print), proof)
    }
}

impl DebugFilesForAll {
    /// Opens one.
    pub(crate) fn open(&self, path: &Path, roots: &Roots) -> Option<std::fs::File> {
        let mut asked = lock(&self.0);
        if asked.len() <= MOST_ASKED && !asked.iter().any(|known| known == path) {
            asked.push(path.to_owned());
        }
        drop(asked);
        let is_plain = !path.components().any(|part| part == Component::ParentDir);
        let is_for_all = is_plain && is_by_build_id(path);
        is_for_all.then(|| roots.open(RootView::Ours, path, Link::Follow).ok()).flatten()
    }

    /// Whether those who see this have no others.
    pub(crate) fn suits(&self, view: RootView, roots: &Roots) -> bool {
        let asked = lock(&self.0).clone();
        let has = |path: &PathBuf| {
            let is_for_all = view == RootView::Ours && is_by_build_id(path);
            !is_for_all && roots.open(view, path, Link::Follow).is_ok()
        };
        asked.len() <= MOST_ASKED && !asked.iter().any(has)
    }
}
