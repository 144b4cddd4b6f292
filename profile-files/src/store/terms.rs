//! What a store is told, and what it tells.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use serde::Serialize;

use super::time_range::TimeRange;

/// How much is kept.
#[derive(Clone, Copy, Debug)]
pub struct StoreTerms {
    /// How long (ns).
    pub age_ns: u64,
    /// How much (bytes), rounded up to blocks file by file.
    pub bytes: u64,
    /// When windows are merged into their hour: so long after their end (ns).
    pub hourly_after_ns: u64,
    /// The same for hours and their day (ns).
    pub daily_after_ns: u64,
}

/// A window of a target. It may begin before the profile's run: the target may have been idle until then.
#[derive(Clone, Debug)]
pub struct TargetWindow {
    /// The target.
    pub target: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Identity of the boot.
    pub boot: String,
    /// Begin by the monotonic clock of that boot (ns).
    pub from_ns: u64,
    /// End by the same; later than the begin.
    pub to_ns: u64,
    /// The wall clock at the begin (ns since the Unix epoch).
    pub begin_unix_ns: u64,
}

impl TargetWindow {
    /// The time that it counts.
    pub(super) fn time_range(&self) -> TimeRange {
        let Self { boot, from_ns, to_ns, begin_unix_ns, .. } = self.clone();
        TimeRange { boot, from_ns, to_ns, begin_unix_ns }
    }
}

/// Why a store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process writes to it.
    #[error("{} is written to by another sweetspot; stop it, or name another folder", .0.display())]
    Busy(PathBuf),
    /// It cannot be written to.
    #[error("profiles cannot be kept in {} ({cause}); make it a folder that sweetspot may write to", path.display())]
    Unwritable {
        /// What cannot be written.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// It cannot be read.
    #[error("{} cannot be read ({cause}); name a folder of profiles that you may read", path.display())]
    Unreadable {
        /// What cannot be read.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// Whoever asked has left.
    #[error("no request waits for it any more")]
    Unwanted,
    /// Files came and went as long as anyone was looking.
    #[error("the files in {} change all the time; try again", .0.display())]
    Restless(PathBuf),
}

/// Why a window was not kept.
#[derive(Debug, thiserror::Error)]
pub enum NotKept {
    /// The disk, or the room that the settings leave, is full.
    #[error(
        "the disk is full, or store.bytes is too small for it; free space on the disk, or raise store.bytes"
    )]
    Full,
    /// The disk refuses.
    #[error("the disk refuses to write it")]
    Refused(#[source] io::Error),
    /// Some of its time is kept already, or it has none.
    #[error("its time is kept already")]
    Taken,
}

/// What happened to a store since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Windows that were kept.
    pub written: u64,
    /// Windows among them that an earlier process had left without names.
    pub recovered: u64,
    /// Windows that were not, for want of room.
    pub dropped_full: u64,
    /// Windows that were not for any other reason.
    pub dropped_refused: u64,
    /// Files that were removed for their age.
    pub expired: u64,
    /// Files that were removed to make room.
    pub evicted: u64,
    /// Those among them that went since others had filled the disk.
    pub evicted_disk_full: u64,
    /// Files that somebody else removed.
    pub vanished: u64,
    /// Times that the folder was made and locked anew, since somebody had removed or replaced it.
    pub remade: u64,
    /// Files that others were merged into.
    pub merged: u64,
    /// Merges that failed or had no room.
    pub unmerged: u64,
    /// Damaged files that were set aside.
    pub damaged: u64,
    /// Files left by a process that ended in the middle of something.
    pub cleaned: u64,
    /// Changes that may not outlive a power failure, since the disk did not confirm them.
    pub unsynced: u64,
}

/// Files that could not be merged, and are tried again.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct UnmergedFiles {
    /// How many.
    #[serde(rename = "unmerged_files")]
    pub files: usize,
    /// Room for the largest file that they would make, where that is what is missing (bytes).
    #[serde(rename = "unmerged_needed_bytes")]
    pub needed_bytes: u64,
    /// Why, and what to do, where something else is.
    #[serde(skip)]
    pub why: Option<String>,
    /// When the next try is due, if no room comes before (s from now).
    #[serde(rename = "unmerged_retry_s")]
    pub retry_s: f64,
}
