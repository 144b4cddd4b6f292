//! A scan of all processes: which ended, which are new, which have changed, and which targets follow from that.
//!
//! An id with another process behind it shows in the list alone: the kernel gives each process folder an inode
//! of its own and hands out ids in a circle. An exec shows in the random addresses of code and stack in `stat`;
//! records of execs and forks report it sooner. A fork from before a process was found concerns that process,
//! whatever its parent is.

use std::path::Path;

use rustc_hash::{FxHashMap, FxHashSet};

use super::Changes;
use super::containers::KnownContainers;
use super::lineage::Lineage;
use super::naming::Users;
use super::places::Places;
use super::proc_folder::{ListedProcess, ProcFolder};
use super::process::KnownProcess;
use super::sections::{Finder, TargetSection};
use super::table::{TargetId, TargetTable};

/// A process is rechecked once in this many scans.
pub(super) const TURNS: u64 = 16;
/// A new process is also rechecked in this many scans after its first: by then, most have executed their final program.
pub(super) const YOUNG_LOOKS: u64 = 2;

/// All processes of the host.
#[derive(Debug)]
pub(super) struct Processes {
    pub(super) folder: ProcFolder,
    pub(super) own: u32,
    pub(super) all: FxHashMap<u32, KnownProcess>,
    pub(super) places: Places,
    pub(super) users: Users,
    pub(super) containers: KnownContainers,
    /// Scans so far.
    pub(super) scans: u64,
    /// Rounds in which all targets were determined again.
    pub(super) round: u64,
    pub(super) next_turn: u64,
    /// Whether control groups matter to any section.
    pub(super) groups_matter: bool,
    pub(super) old_groups: bool,
    /// Whether the sections have changed since the last scan.
    classify_anew: bool,
    suspects: FxHashSet<u32>,
    pub(super) lineage: Lineage,
    listed: Vec<ListedProcess>,
}

/// What a scan works on besides the processes.
pub(super) struct ScanContext<'a> {
    pub(super) sections: &'a mut [TargetSection],
    pub(super) finder: &'a Finder,
    pub(super) table: &'a mut TargetTable,
    /// Whether the sections have changed since the last scan, so that every process is classified again.
    pub(super) anew: bool,
}

/// The result of rechecking a process.
pub(super) enum Recheck {
    /// No relevant change.
    Same,
    /// It may belong to another target, and its children may inherit another one.
    Changed {
        /// Whether its children may inherit another target.
        heritage: bool,
    },
    /// It has ended.
    Ended,
    /// It has ended, and another one has its id.
    Replaced,
}

impl Processes {
    pub(super) fn new(root: &Path, own: u32) -> Self {
        Self {
            folder: ProcFolder::at(root),
            own,
            all: FxHashMap::default(),
            places: Places::default(),
            users: Users::default(),
            containers: KnownContainers::default(),
            scans: 0,
            round: 0,
            next_turn: 0,
            groups_matter: false,
            old_groups: false,
            classify_anew: false,
            suspects: FxHashSet::default(),
            lineage: Lineage::default(),
            listed: Vec::new(),
        }
    }

    pub(super) fn places(&self) -> &Places {
        &self.places
    }

    pub(super) fn containers(&self) -> &KnownContainers {
        &self.containers
    }

    #[cfg(test)]
    pub(super) fn reads(&self) -> u64 {
        self.folder.reads()
    }

    pub(super) fn has_old_groups(&self) -> bool {
        self.old_groups
    }

    pub(super) fn suspect(&mut self, pid: u32) {
        self.suspects.insert(pid);
    }

    pub(super) fn target_of(&self, pid: u32) -> Option<TargetId> {
        self.all.get(&pid)?.counted.map(|counted| counted.target)
    }

    pub(super) fn born(&mut self, pid: u32, creator: u32) {
        self.lineage.born(pid, creator);
    }

    /// Classifies every process again in the next scan.
    pub(super) fn classify_anew(&mut self, groups_matter: bool) {
        self.classify_anew = true;
        self.groups_matter = groups_matter;
    }

    /// Finds ended, new and changed processes, and records in `changes` which target each belongs to now.
    pub(super) fn look(
        &mut self,
        sections: &mut [TargetSection],
        finder: &Finder,
        table: &mut TargetTable,
        changes: &mut Changes,
    ) {
        let mut listed = std::mem::take(&mut self.listed);
        match self.folder.list(&mut listed) {
            Ok(()) => self.look_at(
                &listed,
                &mut ScanContext { sections, finder, table, anew: self.classify_anew },
                changes,
            ),
            Err(error) => tracing::debug!(%error, "processes cannot be listed; targets keep the processes \
                                                   they have"),
        }
        self.listed = listed;
    }

    fn look_at(&mut self, listed: &[ListedProcess], terms: &mut ScanContext<'_>, changes: &mut Changes) {
        self.scans += 1;
        self.users.begin_scan();
        let (mut new, due) = self.compare(listed, terms.anew);
        let mut somebody_went = self.part_with_unlisted(terms.table, changes);
        let (mut touched, mut heritage_changed) = (Vec::new(), terms.anew);
        for process in due {
            match self.look_again(process, terms) {
                Recheck::Same => {}
                Recheck::Changed { heritage } => {
                    touched.push(process.pid);
                    heritage_changed |= heritage;
                }
                again => {
                    self.end(process.pid, terms.table, changes);
                    somebody_went = true;
                    new.extend(matches!(again, Recheck::Replaced).then_some(process));
                }
            }
        }
        touched.extend(self.enter(&new, terms));
        if self.groups_matter && (somebody_went || !touched.is_empty()) {
            terms.table.groups_moved();
        }
        self.settle_all(touched, heritage_changed, terms, changes);
        self.classify_anew = false;
        self.lineage.clear();
    }

    /// New processes, and those that are due to be rechecked.
    fn compare(&mut self, listed: &[ListedProcess], anew: bool) -> (Vec<ListedProcess>, Vec<ListedProcess>) {
        let (mut new, mut due) = (Vec::new(), Vec::new());
        let turn = self.scans % TURNS;
        for process in listed {
            let Some(known) = self.all.get_mut(&process.pid) else {
                new.push(*process);
                continue;
            };
            known.last_seen = self.scans;
            let is_young = self.scans - known.first_seen <= YOUNG_LOOKS;
            let is_suspect = !self.suspects.is_empty() && self.suspects.contains(&process.pid);
            let is_due = is_young || known.turn == turn || known.inode != process.inode || known.unclassified;
            if anew || is_due || is_suspect {
                due.push(*process);
            }
        }
        self.suspects.clear();
        (new, due)
    }

    /// Removes processes that are no longer listed. Returns whether there were any.
    fn part_with_unlisted(&mut self, table: &mut TargetTable, changes: &mut Changes) -> bool {
        let unlisted = self.all.iter().filter(|(_, process)| process.last_seen != self.scans);
        let unlisted: Vec<u32> = unlisted.map(|(pid, _)| *pid).collect();
        unlisted.iter().for_each(|pid| self.end(*pid, table, changes));
        !unlisted.is_empty()
    }

    fn end(&mut self, pid: u32, table: &mut TargetTable, changes: &mut Changes) {
        let Some(mut process) = self.all.remove(&pid) else { return };
        self.lineage.ended(pid, process.heritage());
        if let Some(counted) = process.counted {
            table.charge(counted.target, process.new_ticks);
            table.leave(pid, counted);
            changes.left.push((counted.target, pid));
        }
        process.facts.leave_place(&mut self.places);
    }

    /// Gets to know processes; those that have ended meanwhile are left out. Which they were.
    fn enter(&mut self, new: &[ListedProcess], terms: &mut ScanContext<'_>) -> Vec<u32> {
        let mut entered = Vec::with_capacity(new.len());
        for listed in new {
            let Ok(stat) = self.folder.stat(listed.pid) else { continue };
            self.next_turn = (self.next_turn + 1) % TURNS;
            let mut process = KnownProcess::new(stat, listed.inode, self.scans, self.next_turn);
            if self.scans > 1 {
                process.new_ticks = process.stat.cpu_ticks; // all of it since the last look
            }
            self.all.insert(listed.pid, process);
            entered.push(listed.pid);
        }
        entered.iter().for_each(|pid| self.find_creator(*pid));
        for pid in &entered {
            self.classify(*pid, terms);
        }
        entered
    }
}
