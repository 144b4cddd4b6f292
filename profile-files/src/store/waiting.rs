//! Merges that failed, and when they are tried again: soon, then ever more rarely, and as soon as there is the room that they
//! lacked.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use super::index::FileIndex;
use super::plan::MergeGroup;
use super::terms::UnmergedFiles;

/// The first pause, after which each is twice as long (ns): as often as the store is looked after.
const FIRST_PAUSE_NS: u64 = 10_000_000_000;
/// The longest: reading all of a day again and again costs more than its merging spares (ns).
const LONGEST_PAUSE_NS: u64 = 3_600_000_000_000;

/// Why a merge was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unmerged {
    /// There is no room for what it makes (bytes).
    NoRoom(u64),
    /// It failed: why, and what to do.
    Failed(String),
    /// There is no time for it now.
    GivenUp,
    /// Nothing is left to be merged.
    Moot,
}

#[derive(Clone, Debug)]
struct Wait {
    until_ns: u64,
    pause_ns: u64,
    needed: u64,
    /// Room there has to be for another try before its time (bytes); none where it was not for want of it.
    room: Option<u64>,
    /// Why, if it was not for want of it.
    why: Option<Arc<str>>,
}

/// Files that could not be merged.
#[derive(Debug, Default)]
pub(super) struct Waits(BTreeMap<PathBuf, Wait>);

impl Waits {
    /// Forgets files that are not there any more.
    pub(super) fn retain(&mut self, index: &FileIndex) {
        self.0.retain(|path, _| index.contains_key(path));
    }

    /// A group waits for nothing any more.
    pub(super) fn end(&mut self, group: &MergeGroup) {
        group.paths.iter().for_each(|path| drop(self.0.remove(path)));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it is too early for a group, with this much room (bytes).
    pub(super) fn hold(&self, group: &MergeGroup, now_ns: u64, room: u64) -> bool {
        let waits = |wait: &Wait| wait.until_ns > now_ns && wait.room.is_none_or(|enough| room < enough);
        group.paths.iter().filter_map(|path| self.0.get(path)).any(waits)
    }

    /// A group was not merged while there was this much room (bytes).
    pub(super) fn add(&mut self, group: MergeGroup, why: Unmerged, now_ns: u64, room: u64) {
        let before = group.paths.iter().filter_map(|path| self.0.get(path)).map(|wait| wait.pause_ns).max();
        let pause_ns =
            before.map_or(FIRST_PAUSE_NS, |pause_ns| pause_ns.saturating_mul(2)).min(LONGEST_PAUSE_NS);
        let (needed, room, why) = match why {
            Unmerged::NoRoom(needed) if room < needed => (needed, Some(needed), None),
            // A quota, say: what seems to be left is none of it.
            Unmerged::NoRoom(needed) => (needed, Some(room.saturating_add(needed)), None),
            Unmerged::Failed(why) => (0, None, Some(why.into())),
            Unmerged::GivenUp | Unmerged::Moot => return,
        };
        let wait = Wait { until_ns: now_ns.saturating_add(pause_ns), pause_ns, needed, room, why };
        self.0.extend(group.paths.into_iter().map(|path| (path, wait.clone())));
    }

    /// What there is to see of it.
    pub(super) fn shown(&self, now_ns: u64) -> UnmergedFiles {
        let next_ns = self.0.values().map(|wait| wait.until_ns).min();
        UnmergedFiles {
            files: self.0.len(),
            needed_bytes: self.0.values().map(|wait| wait.needed).max().unwrap_or_default(),
            why: self.0.values().find_map(|wait| wait.why.as_deref().map(str::to_owned)),
            retry_s: next_ns.map_or(0.0, |next_ns| next_ns.saturating_sub(now_ns) as f64 * 1e-9),
        }
    }
}
