//! Which processes belong to which target, as they start and end.
//!
//! A process belongs to the first section that it matches itself, else to the target of the process that
//! created it, else to `everything`. What is inherited stays when the creator ends. The profiler and kernel
//! threads belong to no target.
//!
//! A scan lists `/proc` and reads files of new processes and of a sixteenth of the others: a process that has
//! changed (by exec, another user, another control group) is noticed within sixteen scans, within three while
//! it is young, or in the next one after [`Discovery::suspect`]. An id that is missing from one list has a
//! new owner; one that was reused between two scans has another folder. Besides `stat`, only what the
//! sections select by is read, and what the labels of targets need.
//!
//! Targets that the rules for labels drop ([`dropped`]) are in no answer; their processes belong to them all the same.

mod classification;
mod containers;
mod dropped;
mod lineage;
mod look;
mod naming;
mod place;
mod places;
mod proc_folder;
mod process;
mod sections;
mod shared;
mod stat;
mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use config::{RelabelRules, TargetSettings};
use rustc_hash::FxHashMap;

use self::dropped::DroppedTargets;
use self::look::Processes;
pub(crate) use self::sections::LookedUp;
use self::sections::{Finder, TargetSection};
pub(crate) use self::table::{FoundTarget, TargetId};
use self::table::{SectionId, TargetTable};
use crate::containers::ContainerNames;

/// The result of a scan. A process that moved between targets has left one and joined the other: read `left`
/// before `joined`. A process whose id was reused has done both, perhaps for the same target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    /// New targets. Those of sections without `each` exist as long as their sections, with or without
    /// processes.
    pub(crate) appeared: Vec<TargetId>,
    /// Processes that have joined a target.
    pub(crate) joined: Vec<(TargetId, u32)>,
    /// Processes that have left a target, ended or not.
    pub(crate) left: Vec<(TargetId, u32)>,
    /// Targets that are gone: removed, or of an `each` and without a process for a minute.
    pub(crate) gone: Vec<TargetId>,
    /// Targets with other labels, with another control group or none, or whose settings were read again.
    pub(crate) changed: Vec<TargetId>,
    /// Processes that have joined a dropped target: they are not sampled, whichever process created them.
    pub(crate) joined_dropped: Vec<(TargetId, u32)>,
    /// Processes that have left a dropped target.
    pub(crate) left_dropped: Vec<(TargetId, u32)>,
}

/// Assigns the processes of a host to targets.
#[derive(Debug)]
pub(crate) struct Discovery {
    sections: Vec<TargetSection>,
    finder: Finder,
    table: TargetTable,
    dropped: DroppedTargets,
    processes: Processes,
    next_section: u32,
}

impl Discovery {
    /// Discovery of these targets among the processes of this host. Nothing is read yet.
    pub(crate) fn new(targets: &[TargetSettings]) -> Self {
        Self::among(Processes::new(Path::new("/proc"), std::process::id()), targets)
    }

    /// [`Self::new`] for a folder that is laid out like `/proc`, in which this process has the id `own`.
    #[cfg(test)]
    fn in_folder(root: &Path, own: u32, targets: &[TargetSettings]) -> Self {
        Self::among(Processes::new(root, own), targets)
    }

    fn among(processes: Processes, targets: &[TargetSettings]) -> Self {
        let (sections, finder) = (Vec::new(), Finder::new(&[]));
        let (table, dropped) = (TargetTable::default(), DroppedTargets::default());
        let mut discovery = Self { sections, finder, table, dropped, processes, next_section: 0 };
        discovery.replace(targets, LookedUp::of_all(targets));
        discovery
    }

    /// Replaces the targets from the settings; requested targets stay. A target with the same name and the
    /// same selection is kept, with new budget, labels and replicas. The next scan reports the changes.
    pub(crate) fn replace(&mut self, targets: &[TargetSettings], looked_up: Vec<LookedUp>) {
        let old = std::mem::take(&mut self.sections);
        let (asked, mut old): (Vec<TargetSection>, Vec<TargetSection>) =
            old.into_iter().partition(|old| old.is_asked);
        let mut by_name: FxHashMap<String, TargetSection> =
            old.drain(..).map(|section| (section.settings.name.clone(), section)).collect();
        self.sections = asked;
        for (settings, looked_up) in targets.iter().zip(looked_up) {
            let settings = Arc::new(settings.clone());
            let same = by_name.remove(&settings.name).filter(|old| old.asks_for_the_same(&settings));
            let section = match same {
                Some(old) => self.renewed(old, settings, looked_up),
                None => self.section(settings, looked_up, false),
            };
            self.sections.push(section);
        }
        let kept: BTreeSet<TargetId> = self.sections.iter().map(|section| section.own).collect();
        self.table.retain_sections(|own| kept.contains(&own));
        self.sections_changed();
    }

    /// Whether there is a section of this name, whatever becomes of its targets.
    pub(crate) fn has_section(&self, name: &str) -> bool {
        self.sections.iter().any(|section| section.settings.name == name)
    }

    /// Why these targets cannot replace those from the settings: a requested target has the name of one of them.
    pub(crate) fn name_conflict(&self, targets: &[TargetSettings]) -> Option<String> {
        let (taken, requested) = targets.iter().find_map(|target| {
            let own = self.table.requested_by_name(&target.name)?;
            Some((&target.name, &self.table.get(own)?.found.name))
        })?;
        Some(format!(
            "target {taken}: a target of `sweetspot ctl attach` has this name; run `sweetspot ctl detach {requested}`, then reload"
        ))
    }

    /// Adds a requested target. It comes before those of the settings; the next scan reports its processes.
    pub(crate) fn add(&mut self, target: TargetSettings, looked_up: LookedUp) -> TargetId {
        let section = self.section(Arc::new(target), looked_up, true);
        let id = section.own;
        let at = self.sections.iter().take_while(|section| section.is_asked).count();
        self.sections.insert(at, section);
        self.sections_changed();
        id
    }

    /// Removes a target of [`Self::add`], and those that its `each` made; others are not affected. The next
    /// scan reports that it is gone.
    pub(crate) fn remove(&mut self, id: TargetId) {
        let of_it = |section: &TargetSection| section.is_asked && section.own == id;
        let Some(at) = self.sections.iter().position(of_it) else { return };
        let section = self.sections.remove(at);
        self.table.remove_section(section.id);
        self.sections_changed();
    }

    /// Scans for new, ended and changed processes.
    pub(crate) fn look(&mut self, now_ns: u64) -> Changes {
        let mut changes = Changes::default();
        self.processes.look(&mut self.sections, &self.finder, &mut self.table, &mut changes);
        self.table.settle(self.processes.places(), self.processes.containers(), now_ns, &mut changes);
        self.dropped.hide(&self.table, &mut changes);
        changes
    }

    /// Sets the rules for the labels of targets. The next scan reports the changes.
    pub(crate) fn relabel(&mut self, rules: &RelabelRules) {
        self.table.relabel(rules);
    }

    /// How many targets the rules drop.
    pub(crate) fn dropped(&self) -> usize {
        self.dropped.count()
    }

    /// The processes of dropped targets.
    pub(crate) fn dropped_processes(&self) -> impl Iterator<Item = u32> {
        let dropped = self.dropped.ids().filter_map(|id| self.table.get(id));
        dropped.flat_map(|entry| entry.found.pids.iter().copied())
    }

    /// CPU time that targets have used while rules dropped them (ns). Reads a file for each of their processes.
    pub(crate) fn dropped_cpu_ns(&mut self) -> u64 {
        let ids: Vec<TargetId> = self.dropped.ids().collect();
        ids.into_iter().for_each(|id| self.processes.charge(id, &mut self.table));
        self.dropped.count_ticks(&self.table).saturating_mul(tick_ns())
    }

    /// Processes responses of container runtimes. The next scan reports the changes.
    pub(crate) fn name_containers(&mut self, names: Arc<ContainerNames>) {
        self.processes.name_containers(names, &mut self.table);
    }

    /// Sets which labels of pods become labels of targets. The next scan reports the changes.
    pub(crate) fn show_pod_labels(&mut self, keys: &[String]) {
        self.processes.show_pod_labels(keys, &mut self.table);
    }

    /// Whether a process runs in a container that container runtimes may name soon.
    pub(crate) fn wants_names(&mut self) -> bool {
        self.processes.want_names()
    }

    /// Whether a target that was added while running selects by names of containers.
    pub(crate) fn is_asked_by_names(&self) -> bool {
        self.sections.iter().any(|section| section.is_asked && section.settings.needs_runtimes())
    }

    /// Rechecks a process in the next scan, for example after a record of an exec.
    pub(crate) fn suspect(&mut self, pid: u32) {
        self.processes.suspect(pid);
    }

    /// The target of a process at the last scan, also one that rules drop.
    pub(crate) fn target_of(&self, pid: u32) -> Option<TargetId> {
        self.processes.target_of(pid)
    }

    /// Notes the creator of a process from a record: the creator may have ended before the next scan.
    pub(crate) fn born(&mut self, pid: u32, creator: u32) {
        self.processes.born(pid, creator);
    }

    /// A target's state; `None` once it is gone, and while rules drop it.
    pub(crate) fn target(&self, id: TargetId) -> Option<&FoundTarget> {
        self.table.get(id).filter(|entry| !entry.is_dropped).map(|entry| &entry.found)
    }

    /// The own target of a target's section, if the section was requested while running.
    pub(crate) fn asked_by(&self, id: TargetId) -> Option<TargetId> {
        let own = self.target(id)?.own;
        self.sections.iter().any(|section| section.is_asked && section.own == own).then_some(own)
    }

    /// All targets, in the order of their creation.
    #[cfg(test)]
    pub(crate) fn targets(&self) -> impl Iterator<Item = (TargetId, &FoundTarget)> {
        self.table.iter()
    }

    /// CPU time that its processes have used since they were first seen (ns); for ended processes, up to the
    /// last time they were read. Reads a file for each process.
    pub(crate) fn cpu_ns(&mut self, id: TargetId) -> u64 {
        self.processes.charge(id, &mut self.table);
        self.table.cpu_ticks(id).saturating_mul(tick_ns())
    }

    /// Problems, a line each; the same until something changes.
    pub(crate) fn remarks(&self) -> Vec<String> {
        let mut remarks: Vec<String> = self.sections.iter().filter_map(TargetSection::problem).collect();
        if self.processes.has_old_groups() && self.sections.iter().any(|section| section.asks_for_groups()) {
            remarks.push(
                "this host has no cgroup v2 hierarchy, so that no process fits a target by unit, cgroup or container; boot \
                 with systemd.unified_cgroup_hierarchy=1, or choose by process or user"
                    .to_owned(),
            );
        }
        if self.table.is_full {
            remarks.push(format!(
                "`each` makes more than {} targets; further processes belong to their section's own target; \
                 choose a coarser `each`",
                table::MAX_INSTANCES
            ));
        }
        remarks
    }

    /// What these settings select that does not exist at present, so that no process matches; in lines.
    pub(crate) fn missing(settings: &[TargetSettings]) -> Vec<String> {
        settings.iter().flat_map(TargetSection::missing).collect()
    }

    /// Files read so far.
    #[cfg(test)]
    pub(crate) fn reads(&self) -> u64 {
        self.processes.reads()
    }

    fn section(
        &mut self,
        settings: Arc<TargetSettings>,
        looked_up: LookedUp,
        is_asked: bool,
    ) -> TargetSection {
        let id = SectionId(self.next_section);
        self.next_section += 1;
        let own = self.table.add(id, &settings, is_asked, None);
        TargetSection::new(id, (settings, looked_up), own, is_asked)
    }

    /// A section that stays, with its files and users looked up again.
    fn renewed(
        &mut self,
        old: TargetSection,
        settings: Arc<TargetSettings>,
        looked_up: LookedUp,
    ) -> TargetSection {
        self.table.renew(old.id, &settings);
        let mut section = TargetSection::new(old.id, (settings, looked_up), old.own, false);
        section.start = old.start;
        section
    }

    fn sections_changed(&mut self) {
        self.finder = Finder::new(&self.sections);
        let groups = self.sections.iter().any(|section| section.asks_for_groups());
        self.processes.classify_anew(groups);
    }
}

/// A tick of the kernel's accounts (ns).
fn tick_ns() -> u64 {
    1_000_000_000 / procfs::ticks_per_second().max(1)
}
