//! A process as discovery knows it. Its properties are read when first needed, and kept.

use std::sync::Arc;

use super::containers::KnownContainers;
use super::place::Place;
use super::places::{PlaceId, Places};
use super::proc_folder::{Group, ProcFolder};
use super::stat::Stat;
use super::table::TargetId;
use crate::containers::{Container, Pod};

/// Distinguishes a process from earlier and later ones with the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Life {
    pub(super) pid: u32,
    /// When it began (ticks since the machine did).
    pub(super) start: u64,
}

/// What was read about a process besides its `stat`; an outer `None` was not needed yet.
#[derive(Debug, Default)]
pub(super) struct ProcessFacts {
    executable: Option<Option<Box<[u8]>>>,
    user: Option<Option<u32>>,
    place: Option<Option<PlaceId>>,
    /// Only kept during one classification: it may be long.
    command: Option<Vec<u8>>,
}

/// What the table of targets knows about a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counted {
    pub(super) target: TargetId,
    pub(super) place: Option<PlaceId>,
}

/// A process.
#[derive(Debug)]
pub(super) struct KnownProcess {
    pub(super) stat: Stat,
    /// Its creator, if known from a record or as its parent.
    pub(super) creator: Option<Life>,
    pub(super) facts: ProcessFacts,
    /// The target of the first section that it matches itself.
    pub(super) own: Option<TargetId>,
    /// The target that its creator belongs to, or did at its end.
    pub(super) inherited: Option<TargetId>,
    /// Its target, from both.
    pub(super) target: Option<TargetId>,
    pub(super) counted: Option<Counted>,
    /// The round in which its target was found.
    pub(super) settled: u64,
    /// The scans that saw it first and last.
    pub(super) first_seen: u64,
    pub(super) last_seen: u64,
    /// The scan turn in which it is rechecked.
    pub(super) turn: u64,
    /// Inode of its `/proc` folder at the last check.
    pub(super) inode: u64,
    /// Whether the sections changed while it could not be read, so that it is yet to be classified.
    pub(super) unclassified: bool,
    /// CPU time that is not yet reported to a target (ticks).
    pub(super) new_ticks: u64,
}

impl KnownProcess {
    pub(super) fn new(stat: Stat, inode: u64, look: u64, turn: u64) -> Self {
        Self {
            stat,
            creator: None,
            facts: ProcessFacts::default(),
            own: None,
            inherited: None,
            target: None,
            counted: None,
            settled: 0,
            first_seen: look,
            last_seen: look,
            turn,
            inode,
            unclassified: false,
            new_ticks: 0,
        }
    }

    /// Whether it can belong to a target at all.
    pub(super) fn can_belong(&self) -> bool {
        !self.stat.is_kernel && !self.stat.has_ended
    }

    /// What its children inherit. `everything` is not inherited: they match it themselves.
    pub(super) fn heritage(&self) -> Option<TargetId> {
        self.own.or(self.inherited)
    }
}

/// A process during its classification.
pub(super) struct Subject<'a> {
    pub(super) pid: u32,
    pub(super) stat: &'a Stat,
    pub(super) facts: &'a mut ProcessFacts,
    pub(super) folder: &'a mut ProcFolder,
    pub(super) places: &'a mut Places,
    pub(super) containers: &'a KnownContainers,
    /// Set if the host turns out to have no cgroup v2 hierarchy.
    pub(super) old_groups: &'a mut bool,
}

impl Subject<'_> {
    /// Path of the file that it runs.
    pub(super) fn executable(&mut self) -> Option<&[u8]> {
        let (folder, pid) = (&mut *self.folder, self.pid);
        self.facts.executable.get_or_insert_with(|| folder.executable(pid)).as_deref()
    }

    /// The name of the file that it runs.
    pub(super) fn program(&mut self) -> Option<&[u8]> {
        self.executable()?.rsplit(|byte| *byte == b'/').next().filter(|name| !name.is_empty())
    }

    /// Its effective user.
    pub(super) fn user(&mut self) -> Option<u32> {
        let (folder, pid) = (&mut *self.folder, self.pid);
        *self.facts.user.get_or_insert_with(|| folder.user(pid))
    }

    /// Its command line.
    pub(super) fn command(&mut self) -> &[u8] {
        let (folder, pid) = (&mut *self.folder, self.pid);
        self.facts.command.get_or_insert_with(|| folder.command(pid))
    }

    /// Its control group.
    pub(super) fn place_id(&mut self) -> Option<PlaceId> {
        if self.facts.place.is_none() {
            let path = read_path(self.pid, self.folder, self.old_groups);
            self.facts.place = Some(path.map(|path| self.places.enter(&path)));
        }
        self.facts.place.flatten()
    }

    /// Its control group, with what that stands for.
    pub(super) fn place(&mut self) -> Option<&Place> {
        let id = self.place_id()?;
        self.places.get(id)
    }
}

impl<'a> Subject<'a> {
    /// Its container, if a runtime has named it.
    pub(super) fn container(&mut self) -> Option<&'a Arc<Container>> {
        let containers = self.containers;
        containers.of(self.place()?)
    }

    /// Its pod, likewise.
    pub(super) fn pod(&mut self) -> Option<&'a Pod> {
        self.container()?.pod.as_deref()
    }
}

fn read_path(pid: u32, folder: &mut ProcFolder, old_groups: &mut bool) -> Option<String> {
    match folder.group(pid) {
        Group::Path(path) => Some(path),
        Group::OldOnly => {
            *old_groups = true;
            None
        }
        Group::Unknown => None,
    }
}

impl ProcessFacts {
    /// Its control group, if it was needed before.
    pub(super) fn known_place(&self) -> Option<PlaceId> {
        self.place.flatten()
    }

    /// Forgets what a program brings with it.
    pub(super) fn forget_program(&mut self) {
        self.executable = None;
        self.command = None;
    }

    /// Forgets what is too long to be kept.
    pub(super) fn forget_command(&mut self) {
        self.command = None;
    }

    /// Reads the user again if it was needed before. Returns whether it changed.
    pub(super) fn read_user_again(&mut self, pid: u32, folder: &mut ProcFolder) -> bool {
        let Some(known) = self.user else { return false };
        let now = folder.user(pid);
        self.user = Some(now);
        now != known
    }

    /// Reads the control group again if it was needed before. Returns its path if it changed.
    pub(super) fn read_place_again(
        &self,
        pid: u32,
        folder: &mut ProcFolder,
        places: &Places,
    ) -> Option<Option<String>> {
        let known = self.place?;
        let now = match folder.group(pid) {
            Group::Path(path) => Some(path),
            Group::OldOnly | Group::Unknown => None,
        };
        let known = known.and_then(|id| places.get(id)).map(|place| &*place.path);
        (now.as_deref() != known).then_some(now)
    }

    /// Takes the process out of its group, and into another.
    pub(super) fn move_to(&mut self, path: Option<&str>, places: &mut Places) {
        self.leave_place(places);
        self.place = Some(path.map(|path| places.enter(path)));
    }

    /// Takes the process out of its group, which is read again when needed.
    pub(super) fn leave_place(&mut self, places: &mut Places) {
        if let Some(id) = self.place.take().flatten() {
            places.leave(id);
        }
    }
}
