//! Windows that wait to be sent: the queue of each export is the store itself, and what it has of it is known exactly.
//!
//! A window waits from the moment that it is written until it is sent, refused or left out. What time of each target is settled is
//! recorded, so that nothing is sent twice, whatever the order in which windows are written, named and merged.
//!
//! **A file waits as a whole or not at all.** Files are merged with their like alone: those that nobody waits for, or those
//! that the same exports wait for. While few wait, they are not merged, and are sent window by window; of many, each hour of a
//! target becomes one.
//!
//! Nothing here reads a clock or a disk. Senders and the store's owner hold the lock for moments. A second lock orders their changes to
//! cursors: the owner replaces one with a position that has all that senders have added to it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use config::Pattern;
use rustc_hash::{FxHashMap, FxHashSet};

use super::index::FileIndex;
use super::listing::{self, StoredFile};
use super::parts::PartsLeft;
use super::plan::Now;
use super::position::{Export, Position, texts, wants};
use super::time_range::TimeRanges;

/// Files that wait and are not merged: a night of ten targets. More would make the store slow to read.
pub(super) const MOST_UNMERGED: usize = 8_192;
/// A file that sending failed with has its next turn so much later (ns).
pub const ANOTHER_TURN_NS: u64 = 30_000_000_000;
/// Files found to be damaged that wait for the owner's check, at most; sending finds no file twice.
const MOST_SUSPECTS: usize = 1_000;
/// What is being done with a file that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    Free,
    /// It is being sent.
    Sending,
    /// It is being sent, and is not in the store any more.
    Gone,
    /// It is being merged.
    Merging,
}

/// A file that waits.
#[derive(Debug)]
struct WaitingFile {
    target: String,
    time_ranges: TimeRanges,
    /// Windows in it, as far as is known.
    windows: u64,
    /// Times that sending failed with it, for whatever reason of its own there may be.
    failed: u32,
    /// When that was last (ns).
    failed_ns: u64,
    /// Those among them that it is blamed for.
    blamed: u32,
    hold: Hold,
}

/// A file to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxFile {
    /// Its path in the store.
    pub path: PathBuf,
    /// The target.
    pub target: String,
    /// The time that it counts.
    pub time_ranges: TimeRanges,
    /// Times that sending failed with it which it is blamed for.
    pub blamed: u32,
    /// When it failed with it last (ns).
    pub failed_ns: u64,
}

/// Whether sending failed because of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendFault {
    /// It did not.
    None,
    /// It may have.
    Possible,
    /// It may have; this file had not just failed, and nothing has failed since the backend last took or refused a
    /// window: this counts towards refusing the file.
    Blamed,
}

/// What came of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOutcome {
    /// It was acknowledged; so many bytes were sent.
    Sent(u64),
    /// It is not taken.
    Refused,
    /// The export's rules drop it.
    LeftOut,
    /// It is gone or damaged.
    Lost,
    /// It waits on.
    Kept(SendFault),
}

impl SendOutcome {
    /// Whether the file is done with, and is never sent again.
    pub fn settles(self) -> bool {
        matches!(self, Self::Sent(_) | Self::Refused | Self::LeftOut)
    }
}

/// Windows of an export since the daemon began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExportTally {
    /// Acknowledged.
    pub pushed: u64,
    /// Not taken.
    pub refused: u64,
    /// Dropped by the export's rules.
    pub left_out: u64,
    /// Gone or damaged before they were sent.
    pub dropped: u64,
    /// Bytes of those that were acknowledged.
    pub sent_bytes: u64,
    /// Waiting.
    pub pending: u64,
    /// How long ago the oldest of these ended (ns).
    pub lag_ns: u64,
}

/// The queue of an export.
#[derive(Debug)]
struct Outbox {
    export: Export,
    position: Position,
    /// Files by their paths, which is by their begin.
    waiting: BTreeMap<PathBuf, WaitingFile>,
    tally: ExportTally,
}

impl Outbox {
    /// Has `entries` wait that are to be sent. Those that it gets since its settings have changed are none of them.
    fn adopt<'e>(&mut self, entries: impl Iterator<Item = &'e StoredFile>) {
        let before: Vec<Pattern> =
            self.position.targets.iter().filter_map(|text| text.parse().ok()).collect();
        self.position.targets = texts(&self.export.targets);
        let export = &self.export;
        self.waiting.retain(|_, waiting| waiting.hold != Hold::Free || export.wants(&waiting.target));
        for entry in entries {
            let (target, time_ranges) = (&entry.stamp.target, &entry.stamp.time_ranges);
            if !self.export.wants(target) || !self.position.awaits(target, time_ranges) {
                continue;
            }
            if wants(&before, target) {
                self.add(entry, 1);
            } else {
                self.position.settle(target, time_ranges);
            }
        }
        self.position.in_parts.retain(|path, _| self.waiting.contains_key(path));
    }

    fn add(&mut self, entry: &StoredFile, windows: u64) {
        let (target, time_ranges) = (entry.stamp.target.clone(), entry.stamp.time_ranges.clone());
        let waiting = WaitingFile {
            target,
            time_ranges,
            windows,
            failed: 0,
            failed_ns: 0,
            blamed: 0,
            hold: Hold::Free,
        };
        self.waiting.entry(entry.path.clone()).or_insert(waiting);
    }

    /// A file is not in the store any more.
    fn lose(&mut self, path: &Path) {
        let Some(waiting) = self.waiting.get_mut(path) else { return };
        if matches!(waiting.hold, Hold::Sending | Hold::Gone) {
            waiting.hold = Hold::Gone;
        } else if let Some(waiting) = self.waiting.remove(path) {
            self.tally.dropped += waiting.windows;
            self.position.in_parts.remove(path);
        }
    }

    /// The next file to be sent: the oldest, but those that sending failed with come last, so that they keep no other waiting. Where all
    /// is well, one of these has another turn.
    fn take(&mut self, now_ns: u64, is_well: bool) -> Option<OutboxFile> {
        let free = || self.waiting.iter().filter(|(_, waiting)| waiting.hold == Hold::Free);
        let is_due = |waiting: &WaitingFile| {
            waiting.failed > 0 && now_ns.saturating_sub(waiting.failed_ns) >= ANOTHER_TURN_NS
        };
        let again = free().find(|(_, waiting)| is_well && is_due(waiting));
        let first = again.or_else(|| free().find(|(_, waiting)| waiting.failed == 0));
        let (path, _) = first.or_else(|| free().min_by_key(|(_, waiting)| waiting.failed))?;
        let path = path.clone();
        let waiting = self.waiting.get_mut(&path)?;
        waiting.hold = Hold::Sending;
        let (target, time_ranges) = (waiting.target.clone(), waiting.time_ranges.clone());
        Some(OutboxFile { path, target, time_ranges, blamed: waiting.blamed, failed_ns: waiting.failed_ns })
    }

    fn finish(&mut self, now_ns: u64, file_to_send: &OutboxFile, fate: SendOutcome) {
        if let SendOutcome::Kept(fault) = fate {
            let Some(waiting) = self.waiting.get_mut(&file_to_send.path) else { return };
            if waiting.hold != Hold::Gone {
                if fault != SendFault::None {
                    (waiting.failed, waiting.failed_ns) = (waiting.failed + 1, now_ns);
                }
                waiting.blamed += u32::from(fault == SendFault::Blamed);
                waiting.hold = Hold::Free;
                return;
            }
        }
        let windows = self.waiting.remove(&file_to_send.path).map_or(1, |waiting| waiting.windows);
        self.position.in_parts.remove(&file_to_send.path);
        match fate {
            SendOutcome::Sent(bytes) => {
                self.tally.pushed += windows;
                self.tally.sent_bytes += bytes;
            }
            SendOutcome::Refused => self.tally.refused += windows,
            SendOutcome::LeftOut => self.tally.left_out += windows,
            SendOutcome::Lost | SendOutcome::Kept(_) => self.tally.dropped += windows,
        }
        if fate.settles() {
            self.position.settle(&file_to_send.target, &file_to_send.time_ranges);
        }
    }

    fn tally(&self, now: &Now) -> ExportTally {
        let ended = |waiting: &WaitingFile| {
            let ago = waiting.time_ranges.iter().map(|time_range| match time_range.boot == now.boot {
                true => now.monotonic_ns.saturating_sub(time_range.to_ns),
                false => now.unix_ns.saturating_sub(time_range.span().to_unix_ns),
            });
            ago.max().unwrap_or_default()
        };
        let pending = self.waiting.values().map(|waiting| waiting.windows).sum();
        let lag_ns = self.waiting.values().next().map_or(0, ended);
        ExportTally { pending, lag_ns, ..self.tally }
    }
}

/// The queues of all exports. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Outboxes(Arc<SharedOutboxes>);

#[derive(Debug, Default)]
struct SharedOutboxes {
    /// Taken before `all`: shared by senders that add to their cursors, exclusive while the owner replaces cursors.
    cursors: RwLock<()>,
    all: Mutex<Vec<Outbox>>,
    changed: Condvar,
    /// Files that senders found to be damaged.
    suspects: Mutex<Vec<PathBuf>>,
}

/// Which files may be merged with which.
#[derive(Debug, Default)]
pub(super) struct Classes(FxHashMap<PathBuf, Option<u128>>);

impl Classes {
    /// Files of one class may be merged with each other; one of none stays as it is. Nobody waits for those of class 0.
    pub(super) fn of(&self, path: &Path) -> Option<u128> {
        self.0.get(path).copied().unwrap_or(Some(0))
    }
}

/// The store's side.
impl Outboxes {
    pub(super) fn has(&self, name: &str) -> bool {
        self.all().iter().any(|outbox| outbox.export.name == name)
    }

    /// While this is held, no sender changes its cursor, and each position has what the cursor says.
    pub(super) fn replacing_cursors(&self) -> RwLockWriteGuard<'_, ()> {
        self.0.cursors.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// There are these exports and no others. Those that are new here have their position, and so has each that gets other targets
    /// from now on: the positions to be written.
    pub(super) fn replace(
        &self,
        exports: &[Export],
        mut positions: BTreeMap<String, Position>,
        index: &FileIndex,
    ) -> Vec<(String, Position)> {
        let mut all = self.all();
        if all.iter().map(|outbox| &outbox.export).eq(exports) {
            return Vec::new();
        }
        let mut before: BTreeMap<String, Outbox> =
            all.drain(..).map(|outbox| (outbox.export.name.clone(), outbox)).collect();
        let entries: Vec<StoredFile> = index.values().cloned().collect();
        let counted = listing::choose(&entries).counted;
        let mut changed = Vec::new();
        for export in exports {
            let name = &export.name;
            let mut outbox = match (before.remove(name), positions.remove(name)) {
                (Some(outbox), _) if outbox.export == *export => {
                    all.push(outbox);
                    continue;
                }
                (Some(outbox), _) => Outbox { export: export.clone(), ..outbox },
                (None, Some(position)) => Outbox {
                    export: export.clone(),
                    position,
                    waiting: BTreeMap::new(),
                    tally: ExportTally::default(),
                },
                (None, None) => continue,
            };
            outbox.adopt(counted.iter().map(|&at| &entries[at]));
            changed.push((name.clone(), outbox.position.clone()));
            all.push(outbox);
        }
        drop(all);
        self.wake();
        changed
    }

    /// A window was written.
    pub(super) fn wrote(&self, entry: &StoredFile) {
        let mut all = self.all();
        let (target, time_ranges) = (&entry.stamp.target, &entry.stamp.time_ranges);
        let mut is_wanted = false;
        for outbox in all.iter_mut().filter(|outbox| outbox.export.wants(target)) {
            if outbox.position.awaits(target, time_ranges) {
                outbox.add(entry, 1);
                is_wanted = true;
            }
        }
        drop(all);
        if is_wanted {
            self.wake();
        }
    }

    /// Files were merged into one.
    pub(super) fn merged(&self, sources: &[PathBuf], entry: &StoredFile) {
        for outbox in self.all().iter_mut() {
            let gone = sources.iter().filter_map(|path| outbox.waiting.remove(path));
            let windows: u64 = gone.map(|waiting| waiting.windows).sum();
            if windows > 0 {
                outbox.add(entry, windows);
            }
        }
    }

    /// A file is not in the store any more, and was not merged.
    pub(super) fn removed(&self, path: &Path) {
        self.all().iter_mut().for_each(|outbox| outbox.lose(path));
    }

    /// No other files are in the store.
    pub(super) fn keep_only(&self, index: &FileIndex) {
        for outbox in self.all().iter_mut() {
            let gone: Vec<PathBuf> =
                outbox.waiting.keys().filter(|path| !index.contains_key(*path)).cloned().collect();
            gone.iter().for_each(|path| outbox.lose(path));
        }
    }

    /// The folder is another: these are the files in it.
    pub(super) fn rebuild(&self, index: &FileIndex) {
        if self.all().is_empty() {
            return;
        }
        self.keep_only(index);
        let entries: Vec<StoredFile> = index.values().cloned().collect();
        let counted = listing::choose(&entries).counted;
        self.all().iter_mut().for_each(|outbox| outbox.adopt(counted.iter().map(|&at| &entries[at])));
        self.wake();
    }

    /// Files that senders found to be damaged since the last call.
    pub(super) fn take_suspects(&self) -> Vec<PathBuf> {
        std::mem::take(&mut *self.suspects())
    }

    /// Which files may be merged with which just now; those that wait only if they are more than `most_unmerged`.
    pub(super) fn classes(&self, most_unmerged: usize) -> Classes {
        let all = self.all();
        let waiting: FxHashSet<&PathBuf> = all.iter().flat_map(|outbox| outbox.waiting.keys()).collect();
        let is_crowded = waiting.len() > most_unmerged;
        let mut classes = Classes::default();
        for (at, outbox) in all.iter().enumerate() {
            for (path, waiting) in &outbox.waiting {
                let class = classes.0.entry(path.clone()).or_insert(Some(0));
                let is_begun = outbox.position.in_parts.contains_key(path);
                let may_merge = is_crowded && waiting.hold == Hold::Free && !is_begun;
                // Those of more exports than a class can tell apart stay as they are.
                *class = class
                    .filter(|_| may_merge)
                    .and_then(|class| Some(class | 1_u128.checked_shl(at as u32)?));
            }
        }
        classes
    }

    /// Keeps files from being sent while they are merged; whether none of them is being sent.
    pub(super) fn claim(&self, paths: &[PathBuf]) -> bool {
        let mut all = self.all();
        // Some may have been sent since their classes were asked for: the others would take them along once more.
        let is_free = |outbox: &Outbox| {
            let found: Vec<_> = paths.iter().filter_map(|path| outbox.waiting.get(path)).collect();
            let is_begun = paths.iter().any(|path| outbox.position.in_parts.contains_key(path));
            found.is_empty()
                || found.len() == paths.len()
                    && !is_begun
                    && found.iter().all(|waiting| waiting.hold == Hold::Free)
        };
        let are_free = all.iter().all(is_free);
        if are_free {
            hold(&mut all, paths, Hold::Free, Hold::Merging);
        }
        are_free
    }

    /// They are not merged any more.
    pub(super) fn release(&self, paths: &[PathBuf]) {
        hold(&mut self.all(), paths, Hold::Merging, Hold::Free);
        self.wake();
    }

    /// Forgets what is too old to be in the store.
    pub(super) fn prune(&self, now: &Now, age_ns: u64) {
        self.all().iter_mut().for_each(|outbox| outbox.position.prune(now, age_ns));
    }

    fn suspects(&self) -> MutexGuard<'_, Vec<PathBuf>> {
        self.0.suspects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn all(&self) -> MutexGuard<'_, Vec<Outbox>> {
        self.0.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn hold(all: &mut [Outbox], paths: &[PathBuf], from: Hold, to: Hold) {
    for outbox in all {
        for path in paths {
            if let Some(waiting) = outbox.waiting.get_mut(path).filter(|waiting| waiting.hold == from) {
                waiting.hold = to;
            }
        }
    }
}

/// The senders' side.
impl Outboxes {
    /// Waits until `pause` says that there is no pause any more, and takes the next file of an export at the moment that it says
    /// (ns); `is_well` says whether the last one was taken. Nothing, once `pause` says so.
    pub fn take(
        &self,
        name: &str,
        is_well: bool,
        mut pause: impl FnMut() -> Option<(u64, Duration)>,
    ) -> Option<OutboxFile> {
        const LONG: Duration = Duration::from_secs(3600);
        let mut all = self.all();
        loop {
            let (now_ns, mut pause) = pause()?;
            if pause.is_zero() {
                let file_to_send = find(&mut all, name).and_then(|outbox| outbox.take(now_ns, is_well));
                if file_to_send.is_some() {
                    return file_to_send;
                }
                pause = LONG; // until something is written
            }
            let until = Instant::now() + pause.min(LONG);
            let left = until.saturating_duration_since(Instant::now());
            all = self.0.changed.wait_timeout(all, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The same without waiting.
    #[cfg(any(test, feature = "testing"))]
    pub fn try_take(&self, name: &str, now_ns: u64, is_well: bool) -> Option<OutboxFile> {
        find(&mut self.all(), name).and_then(|outbox| outbox.take(now_ns, is_well))
    }

    /// To be held from before something is added to a cursor until [`Self::finish`] or [`Self::leave`] has said the same: if the store's
    /// owner replaced the cursor in between, it would lack that line.
    pub fn recording(&self) -> RwLockReadGuard<'_, ()> {
        self.0.cursors.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says what came of a file.
    pub fn finish(&self, name: &str, now_ns: u64, file_to_send: &OutboxFile, fate: SendOutcome) {
        find(&mut self.all(), name).into_iter().for_each(|outbox| outbox.finish(now_ns, file_to_send, fate));
    }

    /// A file is damaged: the store's owner checks it, and sets it aside.
    pub fn suspect(&self, path: &Path) {
        let mut suspects = self.suspects();
        if suspects.len() < MOST_SUSPECTS {
            suspects.push(path.to_owned());
        }
    }

    /// What is left of a file, if some parts of it were acknowledged.
    pub fn parts_left(&self, name: &str, path: &Path) -> Option<PartsLeft> {
        find(&mut self.all(), name).and_then(|outbox| outbox.position.in_parts.get(path).cloned())
    }

    /// Says what is left of a file after a part of it was acknowledged.
    pub fn leave(&self, name: &str, path: &Path, left: PartsLeft) {
        find(&mut self.all(), name).into_iter().for_each(|outbox| outbox.position.leave(path, left.clone()));
    }

    /// What an export has of the store.
    pub fn position(&self, name: &str) -> Option<Position> {
        find(&mut self.all(), name).map(|outbox| outbox.position.clone())
    }

    /// Has all senders look what there is.
    pub fn wake(&self) {
        let _all = self.all(); // nobody is between a look and its wait
        self.0.changed.notify_all();
    }

    /// How each export is; nothing while somebody else looks.
    pub fn try_tallies(&self, now: &Now) -> Option<BTreeMap<String, ExportTally>> {
        let all = self.0.all.try_lock().ok()?;
        Some(all.iter().map(|outbox| (outbox.export.name.clone(), outbox.tally(now))).collect())
    }
}

fn find<'o>(all: &'o mut [Outbox], name: &str) -> Option<&'o mut Outbox> {
    all.iter_mut().find(|outbox| outbox.export.name == name)
}

#[cfg(test)]
mod tests;
