//! What all processes of a target have in common: labels, and perhaps a control group that contains exactly them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use config::{Each, RelabelRules, TargetSettings};

use super::containers::{KnownContainers, SharedNames};
use super::naming::Instance;
use super::place::Place;
use super::places::{PlaceId, Places};
use super::table::{FoundTarget, TargetEntry};
use crate::cgroup::is_outside;

/// What the groups of all processes of a target have in common.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CommonGroups {
    unit: Option<Arc<str>>,
    cgroup: Option<Arc<str>>,
    container: Option<Arc<str>>,
    /// What runtimes report about their containers, as labels.
    names: BTreeMap<String, String>,
}

/// Updates labels and group of a target. Returns whether they have changed.
pub(super) fn refresh(
    entry: &mut TargetEntry,
    places: &Places,
    containers: &KnownContainers,
    rules: &RelabelRules,
) -> bool {
    let group = group(entry, places, containers);
    if !entry.found.pids.is_empty() {
        entry.shared = shared(entry, places);
        entry.shared.names = shared_names(entry, places, containers);
    }
    let mut labels = labels(&entry.found, entry.instance.as_ref(), &entry.shared);
    // Requested targets are not dropped.
    entry.is_dropped = match entry.is_asked {
        true => {
            rules.apply_to_labels(&entry.found.name, &mut labels);
            false
        }
        false => !rules.apply(&entry.found.name, &mut labels),
    };
    let changed = group != entry.found.group || labels != entry.found.labels;
    (entry.found.group, entry.found.labels) = (group, labels);
    changed
}

/// Whether the control group that a target equals has changed.
pub(super) fn is_another_group(entry: &TargetEntry, places: &Places, containers: &KnownContainers) -> bool {
    group(entry, places, containers) != entry.found.group
}

/// The labels of a target before rules change them: those of the section, then what its processes share.
fn labels(
    found: &FoundTarget,
    instance: Option<&Instance>,
    shared: &CommonGroups,
) -> BTreeMap<String, String> {
    let of_instance = instance.filter(|_| found.settings.each == Some(Each::User));
    let user = of_instance.map(|instance| instance.text.as_str()).or(found.settings.user.as_deref());
    let given = [
        ("unit", shared.unit.as_deref()),
        ("cgroup", shared.cgroup.as_deref()),
        ("container", shared.container.as_deref()),
        ("user", user),
    ];
    let mut labels = found.settings.labels.clone();
    for (name, text) in given {
        if let Some(text) = text {
            labels.entry(name.to_owned()).or_insert_with(|| TargetSettings::label_text(text));
        }
    }
    for (name, text) in &shared.names {
        labels.entry(name.clone()).or_insert_with(|| TargetSettings::label_text(text));
    }
    labels
}

fn shared(entry: &TargetEntry, places: &Places) -> CommonGroups {
    let mut all = entry.places.keys().map(|id| id.and_then(|id| places.get(id)));
    let Some(Some(first)) = all.next() else { return CommonGroups::default() };
    let mut shared = CommonGroups {
        unit: first.unit.as_ref().map(|unit| Arc::clone(&unit.name)),
        cgroup: Some(Arc::clone(&first.path)),
        container: first.container.as_ref().map(|container| Arc::clone(&container.name)),
        names: BTreeMap::new(),
    };
    for other in all {
        let is_other = |a: &dyn Fn(&Place) -> Option<PlaceId>| other.is_none_or(|other| a(other) != a(first));
        if is_other(&|place| Some(place.unit.as_ref()?.place)) {
            shared.unit = None;
        }
        if is_other(&|place| Some(place.container.as_ref()?.place)) {
            shared.container = None;
        }
        shared.cgroup = None; // each is listed once
        if shared == CommonGroups::default() {
            break;
        }
    }
    shared
}

fn shared_names(
    entry: &TargetEntry,
    places: &Places,
    containers: &KnownContainers,
) -> BTreeMap<String, String> {
    let place = |id: &Option<PlaceId>| id.and_then(|id| places.get(id));
    let mut all = entry.places.keys().map(|id| SharedNames::of(place(id), containers));
    let Some(mut shared) = all.next() else { return BTreeMap::new() };
    for other in all {
        shared = shared.with(other);
        if shared.are_none() {
            break;
        }
    }
    shared.labels(containers)
}

/// Whether a target is described by a group, so that it may be one.
fn may_be_group(entry: &TargetEntry) -> bool {
    let settings = &entry.found.settings;
    let by_condition = settings.unit.is_some() || settings.cgroup.is_some() || settings.container.is_some();
    let by_each = matches!(settings.each, Some(Each::Unit | Each::Container | Each::Pod | Each::Cgroup));
    by_condition || (by_each && entry.instance.is_some())
}

/// The control group that equals the target: all its processes are in it or below, and no others.
fn group(entry: &TargetEntry, places: &Places, containers: &KnownContainers) -> Option<Arc<str>> {
    if !may_be_group(entry) {
        return None;
    }
    let mut all = entry.places.keys().copied();
    let anchor = anchor(entry, all.next()??, places, containers)?;
    let members = u32::try_from(entry.found.pids.len()).ok()?;
    let is_theirs = places.processes(anchor) == members
        && entry.places.keys().all(|id| id.is_some_and(|id| places.is_within(id, anchor)));
    let path = is_theirs.then(|| places.get(anchor).map(|place| Arc::clone(&place.path)))?;
    path.filter(|path| !is_outside(path))
}

/// The group that describes a target, above a group of one of its processes.
fn anchor(
    entry: &TargetEntry,
    id: PlaceId,
    places: &Places,
    containers: &KnownContainers,
) -> Option<PlaceId> {
    let (settings, place) = (&entry.found.settings, places.get(id)?);
    let each = settings.each.filter(|_| entry.instance.is_some());
    match each {
        Some(Each::Unit) => return Some(place.unit.as_ref()?.place),
        Some(Each::Container) => return Some(place.container.as_ref()?.place),
        Some(Each::Cgroup) => return Some(id),
        Some(Each::Pod) => return pod_group(place, places, containers),
        Some(Each::Process | Each::User | Each::Workload) | None => {}
    }
    if settings.container.is_some() {
        return Some(place.container.as_ref()?.place);
    }
    if let Some(unit) = &settings.unit {
        return place.units.iter().find(|outer| *outer.name == **unit).map(|outer| outer.place);
    }
    let path = group_path(settings.cgroup.as_deref()?);
    places.upward(id).find(|(_, above)| *above.path == *path).map(|(id, _)| id)
}

/// The group of a pod, which is named after the pod's id and contains the groups of its containers.
fn pod_group(place: &Place, places: &Places, containers: &KnownContainers) -> Option<PlaceId> {
    let pod = containers.of(place)?.pod.as_ref().filter(|pod| !pod.uid.is_empty())?;
    let above = places.get(place.container.as_ref()?.place)?.parent?;
    let name = places.get(above)?.path.rsplit('/').next()?.replace('_', "-"); // systemd writes it so in slices
    name.contains(&pod.uid).then_some(above)
}

/// A path as the kernel writes it.
pub(super) fn group_path(path: &Path) -> String {
    let names = path.components().skip(1).map(|name| name.as_os_str().to_string_lossy());
    names.fold(String::new(), |path, name| path + "/" + &name)
}
