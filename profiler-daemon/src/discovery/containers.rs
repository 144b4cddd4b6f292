//! What container runtimes report about the containers of processes.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::look::Processes;
use super::place::Place;
use super::places::{PlaceId, Places};
use super::table::TargetTable;
use crate::containers::{Container, ContainerNames, Pod};

/// After this many responses without a container, its name is no longer urgent.
const MOST_ANSWERS: u32 = 3;

/// Names of containers, and which labels of pods are shown.
#[derive(Debug, Default)]
pub(super) struct KnownContainers {
    names: Arc<ContainerNames>,
    pod_labels: Vec<String>,
    /// Containers in use without a name, and how many answers lacked them.
    unnamed: FxHashMap<Arc<str>, u32>,
}

impl KnownContainers {
    /// The container of a control group, if its name is known.
    pub(super) fn of(&self, place: &Place) -> Option<&Arc<Container>> {
        self.names.get(&place.container.as_ref()?.name)
    }

    /// Sets which labels of pods are shown; returns whether that changed.
    fn show(&mut self, pod_labels: &[String]) -> bool {
        let changed = self.pod_labels != pod_labels;
        self.pod_labels = pod_labels.to_vec();
        changed
    }

    /// Processes a response, and returns the containers whose names have changed. A container that has ended
    /// keeps its name while a process is in it.
    fn learn(&mut self, names: Arc<ContainerNames>, places: &Places) -> FxHashSet<Arc<str>> {
        let present: FxHashSet<Arc<str>> = places.containers().collect();
        let ended = |id: &&Arc<str>| names.get(id).is_none() && self.names.get(id).is_some();
        let ended: Vec<&Arc<str>> = present.iter().filter(ended).collect();
        let mut known = Arc::clone(&names);
        if !ended.is_empty() {
            let all = Arc::make_mut(&mut known);
            let kept = ended.into_iter().filter_map(|id| Some((id, self.names.get(id)?)));
            kept.for_each(|(id, container)| all.add(Arc::clone(id), Arc::clone(container)));
        }
        let before = std::mem::replace(&mut self.names, known);
        self.unnamed.retain(|id, answers| {
            *answers += 1;
            present.contains(id) && self.names.get(id).is_none()
        });
        present.into_iter().filter(|id| before.get(id) != self.names.get(id)).collect()
    }

    /// Whether a process runs in a container that the next answers may name.
    fn are_wanting(&mut self, places: &Places) -> bool {
        let unnamed = places.containers().filter(|id| self.names.get(id).is_none());
        let mut are_wanting = false;
        for id in unnamed {
            are_wanting |= *self.unnamed.entry(id).or_default() < MOST_ANSWERS;
        }
        are_wanting
    }
}

impl Processes {
    /// Processes a response: processes whose container's name has changed are classified again.
    pub(super) fn name_containers(&mut self, names: Arc<ContainerNames>, table: &mut TargetTable) {
        let renamed = self.containers.learn(names, &self.places);
        self.touch_containers(table, |id| renamed.contains(id));
    }

    /// Sets which labels of pods are shown.
    pub(super) fn show_pod_labels(&mut self, keys: &[String], table: &mut TargetTable) {
        if self.containers.show(keys) {
            self.touch_containers(table, |_| true);
        }
    }

    /// Whether a process runs in a container that the next answers may name.
    pub(super) fn want_names(&mut self) -> bool {
        self.containers.are_wanting(&self.places)
    }

    fn touch_containers(&mut self, table: &mut TargetTable, is_one: impl Fn(&Arc<str>) -> bool) {
        let places = &self.places;
        let is_in_one = |id: PlaceId| {
            let container = places.get(id).and_then(|place| place.container.as_ref());
            container.is_some_and(|container| is_one(&container.name))
        };
        for process in
            self.all.values_mut().filter(|process| process.facts.known_place().is_some_and(is_in_one))
        {
            process.unclassified = true;
            process.counted.iter().for_each(|counted| table.touch(counted.target));
        }
    }
}

/// The container names that processes have in common.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SharedNames<'n> {
    container: Option<&'n Arc<Container>>,
    pod: Option<&'n Pod>,
    /// The pod again, as one of its workload.
    workload: Option<&'n Pod>,
    /// The namespace, if only that is shared.
    namespace: Option<&'n str>,
}

impl<'n> SharedNames<'n> {
    /// The names of a group that processes are in.
    pub(super) fn of(place: Option<&Place>, known: &'n KnownContainers) -> Self {
        let container = place.and_then(|place| known.of(place));
        let pod = container.and_then(|container| container.pod.as_deref());
        Self { container, pod, workload: pod, namespace: pod.map(|pod| pod.namespace.as_str()) }
    }

    /// What is shared with processes of another group.
    pub(super) fn with(self, other: Self) -> Self {
        let same = |a: &Pod, b: Option<&Pod>, key: fn(&Pod) -> String| b.is_some_and(|b| key(a) == key(b));
        Self {
            container: self
                .container
                .filter(|own| other.container.is_some_and(|other| Arc::ptr_eq(own, other))),
            pod: self.pod.filter(|own| same(own, other.pod, Pod::key)),
            workload: self.workload.filter(|own| same(own, other.workload, workload_key)),
            namespace: self.namespace.filter(|own| other.namespace == Some(own)),
        }
    }

    /// Whether nothing is shared.
    pub(super) fn are_none(&self) -> bool {
        self.container.is_none() && self.workload.is_none() && self.namespace.is_none()
    }

    /// As labels, called as OpenTelemetry's semantic conventions have it.
    pub(super) fn labels(&self, known: &KnownContainers) -> BTreeMap<String, String> {
        let mut labels = BTreeMap::new();
        let mut add = |key: &str, text: &str| {
            if !text.is_empty() {
                labels.insert(key.to_owned(), text.to_owned());
            }
        };
        add("k8s.namespace.name", self.namespace.unwrap_or_default());
        if let Some(pod) = self.workload {
            pod.workload.kind.label().iter().for_each(|key| add(key, &pod.workload.name));
        }
        if let Some(pod) = self.pod {
            add("k8s.pod.name", &pod.name);
            add("k8s.pod.uid", &pod.uid);
            for key in &known.pod_labels {
                add(&format!("k8s.pod.label.{key}"), pod.labels.get(key).map_or("", String::as_str));
            }
        }
        if let Some(container) = self.container {
            let key = if container.pod.is_some() { "k8s.container.name" } else { "container.name" };
            add(key, container.name.as_deref().unwrap_or_default());
            let (name, tag) = container.image.as_deref().map(image_parts).unwrap_or_default();
            add("container.image.name", name);
            add("container.image.tags", tag);
        }
        labels
    }
}

/// What distinguishes the workload of a pod from others.
pub(super) fn workload_key(pod: &Pod) -> String {
    format!("{}/{:?}/{}", pod.namespace, pod.workload.kind, pod.workload.name)
}

/// Name and tag of an image: `registry:5000/shop/cart:1.2@sha256:…`.
fn image_parts(image: &str) -> (&str, &str) {
    let named = image.split_once("@sha256:").map_or(image, |(named, _)| named);
    match named.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') && !named.starts_with("sha256:") => (name, tag),
        _ => (named, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_has_a_name_and_perhaps_a_tag() {
        for (image, parts) in [
            ("nginx", ("nginx", "")),
            ("nginx:1.2", ("nginx", "1.2")),
            ("registry:5000/shop/cart", ("registry:5000/shop/cart", "")),
            ("registry:5000/shop/cart:1.2@sha256:ab", ("registry:5000/shop/cart", "1.2")),
            ("sha256:ab", ("sha256:ab", "")),
            ("", ("", "")),
        ] {
            assert_eq!(image_parts(image), parts, "{image}");
        }
    }
}
