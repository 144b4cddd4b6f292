//! The targets, their processes, and what these have in common.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use config::{Each, RelabelRules, TargetSettings};
use rustc_hash::{FxHashMap, FxHashSet};

use super::Changes;
use super::containers::KnownContainers;
use super::naming::Instance;
use super::places::{PlaceId, Places};
use super::process::Counted;
use super::shared::{self, CommonGroups};

/// Most targets that sections with `each` make; further processes belong to the sections' own targets.
pub(super) const MAX_INSTANCES: usize = 4096;
/// How long a target of `each` is kept after its last process has ended (ns), so that a restarted service remains the
/// same target.
pub(super) const LINGER_NS: u64 = 60_000_000_000;

/// Identifies a target. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TargetId(u32);

impl TargetId {
    /// The number of this target; unique.
    pub(crate) fn number(self) -> u32 {
        self.0
    }

    /// The id for a number.
    pub(crate) fn of_number(number: u32) -> Self {
        Self(number)
    }
}

/// Identifies a section across changes of the settings. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SectionId(pub(super) u32);

/// What is known of a target.
#[derive(Clone, Debug)]
pub(crate) struct FoundTarget {
    /// Its name: that of its section; with `each`, followed by a colon and the instance.
    pub(crate) name: String,
    /// The section's labels; `unit`, `cgroup`, `container` and the container runtime's labels if all its processes
    /// share one value; `user` if the section asks for it. Without a process, the labels of the last one.
    pub(crate) labels: BTreeMap<String, String>,
    /// Its section. Another `Arc` after the settings were read again.
    pub(crate) settings: Arc<TargetSettings>,
    /// Its section's own target: itself, except for targets that `each` made.
    pub(crate) own: TargetId,
    /// Whether it is the target for all other processes.
    pub(crate) is_everything: bool,
    /// The path of the control group that it equals, if any: the group's processes are all its own, and it has no
    /// others.
    pub(crate) group: Option<Arc<str>>,
    /// Its processes.
    pub(crate) pids: BTreeSet<u32>,
}

impl FoundTarget {
    /// Whether a process belongs to it because of the program that it runs.
    pub(crate) fn is_program(&self) -> bool {
        let TargetSettings { executable, command, process, each, .. } = &*self.settings;
        *each == Some(Each::Process) || executable.is_some() || command.is_some() || process.is_some()
    }
}

/// A target with its bookkeeping.
#[derive(Debug)]
pub(super) struct TargetEntry {
    pub(super) found: FoundTarget,
    section: SectionId,
    pub(super) instance: Option<Instance>,
    /// How many of its processes are in each group; `None` counts processes in unknown groups.
    pub(super) places: FxHashMap<Option<PlaceId>, u32>,
    /// What its processes share, or shared when it last had any.
    pub(super) shared: CommonGroups,
    /// Whether its section was requested while running.
    pub(super) is_asked: bool,
    /// Whether rules for labels drop it.
    pub(super) is_dropped: bool,
    cpu_ticks: u64,
    /// Since when it has had no process (ns).
    empty_since_ns: Option<u64>,
    /// Whether this scan found that a process belongs to it, which may not have entered it yet.
    is_claimed: bool,
}

/// All targets.
#[derive(Debug, Default)]
pub(super) struct TargetTable {
    entries: BTreeMap<TargetId, TargetEntry>,
    names: FxHashSet<String>,
    by_instance: FxHashMap<(SectionId, String), TargetId>,
    next: u32,
    appeared: Vec<TargetId>,
    gone: Vec<TargetId>,
    /// Their processes, groups or labels may have changed.
    touched: BTreeSet<TargetId>,
    /// Whether processes have moved between control groups, so that targets may no longer equal groups.
    groups_moved: bool,
    /// Targets with new settings.
    renewed: BTreeSet<TargetId>,
    /// Whether the limit on instances was reached.
    pub(super) is_full: bool,
    rules: RelabelRules,
}

impl TargetTable {
    pub(super) fn get(&self, id: TargetId) -> Option<&TargetEntry> {
        self.entries.get(&id)
    }

    pub(super) fn has(&self, id: TargetId) -> bool {
        self.entries.contains_key(&id)
    }

    /// The own target of the requested section that has a target of this name.
    pub(super) fn requested_by_name(&self, name: &str) -> Option<TargetId> {
        let requested = self.entries.values().filter(|entry| entry.is_asked);
        requested.map(|entry| &entry.found).find(|found| found.name == name).map(|found| found.own)
    }

    /// All that rules for labels do not drop.
    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = (TargetId, &FoundTarget)> {
        let kept = self.entries.iter().filter(|(_, entry)| !entry.is_dropped);
        kept.map(|(id, entry)| (*id, &entry.found))
    }

    /// Adds a target of a section; the next [`Self::settle`] finds its labels. Without `instance`, it is the section's
    /// own target.
    pub(super) fn add(
        &mut self,
        section: SectionId,
        settings: &Arc<TargetSettings>,
        is_asked: bool,
        instance: Option<(TargetId, Instance)>,
    ) -> TargetId {
        let id = TargetId(self.next);
        let (own, instance) = instance.map_or((id, None), |(own, instance)| (own, Some(instance)));
        self.next += 1;
        let name = match &instance {
            Some(instance) => instance.name_below(&settings.name, |name| self.names.contains(name)),
            None => settings.name.clone(),
        };
        self.names.insert(name.clone());
        if let Some(instance) = &instance {
            self.by_instance.insert((section, instance.key.clone()), id);
        }
        let found = FoundTarget {
            name,
            labels: BTreeMap::new(),
            settings: Arc::clone(settings),
            own,
            is_everything: settings.everything && instance.is_none(), // it gets the processes that match nothing else
            group: None,
            pids: BTreeSet::new(),
        };
        let entry = TargetEntry {
            found,
            section,
            instance,
            places: FxHashMap::default(),
            shared: CommonGroups::default(),
            is_asked,
            is_dropped: false,
            cpu_ticks: 0,
            empty_since_ns: None,
            is_claimed: true,
        };
        self.entries.insert(id, entry);
        self.appeared.push(id);
        self.touched.insert(id);
        id
    }

    /// The target of an instance; `own` if the limit on instances was reached.
    pub(super) fn of_instance(
        &mut self,
        section: SectionId,
        own: TargetId,
        settings: &Arc<TargetSettings>,
        instance: Instance,
    ) -> TargetId {
        let key = (section, instance.key.clone());
        match self.by_instance.get(&key) {
            Some(&id) => {
                self.claim(id);
                id
            }
            None if self.by_instance.len() < MAX_INSTANCES => {
                // A pod of a stateful set that is made anew keeps its name.
                let ended = self.ended(section, &instance.text);
                ended.into_iter().for_each(|id| self.remove(id));
                let is_asked = self.entries.get(&own).is_some_and(|own| own.is_asked);
                self.add(section, settings, is_asked, Some((own, instance)))
            }
            None => {
                self.is_full = true;
                own
            }
        }
    }

    /// The target of an instance of this text that no process belongs to any more.
    fn ended(&self, section: SectionId, text: &str) -> Option<TargetId> {
        let is_it = |entry: &TargetEntry| {
            entry.section == section
                && !entry.is_claimed
                && entry.found.pids.is_empty()
                && entry.instance.as_ref().is_some_and(|instance| instance.text == text)
        };
        self.entries.iter().find(|(_, entry)| is_it(entry)).map(|(id, _)| *id)
    }

    /// A process belongs to this target, and will enter it before the scan is over.
    pub(super) fn claim(&mut self, id: TargetId) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.is_claimed = true;
        }
    }

    /// Replaces the settings of a section: budget, horizon, labels or replicas.
    pub(super) fn renew(&mut self, section: SectionId, settings: &Arc<TargetSettings>) {
        for (id, entry) in self.entries.iter_mut().filter(|(_, entry)| entry.section == section) {
            entry.found.settings = Arc::clone(settings);
            self.touched.insert(*id);
            self.renewed.insert(*id);
        }
    }

    /// Removes all targets of a section.
    pub(super) fn remove_section(&mut self, section: SectionId) {
        let of_it = self.entries.iter().filter(|(_, entry)| entry.section == section);
        let ids: Vec<TargetId> = of_it.map(|(id, _)| *id).collect();
        ids.into_iter().for_each(|id| self.remove(id));
    }

    /// Removes the targets of all sections except those whose own target `is_kept`.
    pub(super) fn retain_sections(&mut self, is_kept: impl Fn(TargetId) -> bool) {
        let own = self.entries.iter().filter(|(_, entry)| entry.instance.is_none());
        let over: Vec<SectionId> =
            own.filter(|(id, _)| !is_kept(**id)).map(|(_, entry)| entry.section).collect();
        over.into_iter().for_each(|section| self.remove_section(section));
    }

    fn remove(&mut self, id: TargetId) {
        let Some(entry) = self.entries.remove(&id) else { return };
        self.names.remove(&entry.found.name);
        if let Some(instance) = entry.instance {
            self.by_instance.remove(&(entry.section, instance.key));
        }
        self.touched.remove(&id);
        self.gone.push(id);
    }

    /// A process belongs to a target, which may have been removed meanwhile.
    pub(super) fn enter(&mut self, pid: u32, counted: Counted) {
        let Some(entry) = self.entries.get_mut(&counted.target) else { return };
        entry.found.pids.insert(pid);
        *entry.places.entry(counted.place).or_default() += 1;
        self.touched.insert(counted.target);
    }

    /// A process leaves a target.
    pub(super) fn leave(&mut self, pid: u32, counted: Counted) {
        let Some(entry) = self.entries.get_mut(&counted.target) else { return };
        entry.found.pids.remove(&pid);
        if let Some(count) = entry.places.get_mut(&counted.place) {
            *count -= 1;
            if *count == 0 {
                entry.places.remove(&counted.place);
            }
        }
        self.touched.insert(counted.target);
    }

    /// The names of what its processes share may have changed.
    pub(super) fn touch(&mut self, id: TargetId) {
        self.touched.insert(id);
    }

    /// Has these rules applied to the labels of all targets.
    pub(super) fn relabel(&mut self, rules: &RelabelRules) {
        if self.rules != *rules {
            self.rules = rules.clone();
            self.touched.extend(self.entries.keys());
        }
    }

    /// The targets that the rules for labels drop.
    pub(super) fn dropped(&self) -> impl Iterator<Item = TargetId> {
        self.entries.iter().filter(|(_, entry)| entry.is_dropped).map(|(id, _)| *id)
    }

    /// Adds CPU time that the processes of a target have used.
    pub(super) fn charge(&mut self, id: TargetId, ticks: u64) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.cpu_ticks = entry.cpu_ticks.saturating_add(ticks);
        }
    }

    /// CPU time of a target so far (ticks).
    pub(super) fn cpu_ticks(&self, id: TargetId) -> u64 {
        self.entries.get(&id).map_or(0, |entry| entry.cpu_ticks)
    }

    /// A process entered or left a control group, whether or not it belongs to a target.
    pub(super) fn groups_moved(&mut self) {
        self.groups_moved = true;
    }

    /// Updates what the processes of each changed target share, and records new, removed and changed targets
    /// in `changes`.
    pub(super) fn settle(
        &mut self,
        places: &Places,
        containers: &KnownContainers,
        now_ns: u64,
        changes: &mut Changes,
    ) {
        if std::mem::take(&mut self.groups_moved) {
            let other =
                self.entries.iter().filter(|(_, entry)| shared::is_another_group(entry, places, containers));
            self.touched.extend(other.map(|(id, _)| *id));
        }
        for id in std::mem::take(&mut self.touched) {
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            let is_empty = entry.found.pids.is_empty();
            entry.empty_since_ns = is_empty.then(|| entry.empty_since_ns.unwrap_or(now_ns));
            if shared::refresh(entry, places, containers, &self.rules) | self.renewed.contains(&id) {
                changes.changed.push(id);
            }
        }
        self.renewed.clear();
        self.entries.values_mut().for_each(|entry| entry.is_claimed = false);
        let over = |entry: &TargetEntry| {
            let empty_ns = entry.empty_since_ns.map_or(0, |since_ns| now_ns.saturating_sub(since_ns));
            entry.instance.is_some() && empty_ns > LINGER_NS
        };
        let ids: Vec<TargetId> =
            self.entries.iter().filter(|(_, entry)| over(entry)).map(|(id, _)| *id).collect();
        ids.into_iter().for_each(|id| self.remove(id));
        self.is_full &= self.by_instance.len() >= MAX_INSTANCES;
        changes.appeared = std::mem::take(&mut self.appeared);
        changes.gone = std::mem::take(&mut self.gone);
        // A target that came and went between two scans was never reported.
        let never = |id: &TargetId| changes.appeared.binary_search(id).is_ok();
        let fleeting: BTreeSet<TargetId> = changes.gone.iter().copied().filter(never).collect();
        changes.changed.retain(|id| !never(id));
        changes.appeared.retain(|id| !fleeting.contains(id));
        changes.gone.retain(|id| !fleeting.contains(id));
    }
}
