//! Containers and their pods, as runtimes describe them. Whoever starts a container chooses most of these texts.

use std::collections::BTreeMap;
use std::sync::Arc;

use config::TargetSettings;
use rustc_hash::FxHashMap;

use super::workload::PodWorkload;

/// Most containers that have names; pods without a container count as one.
pub(crate) const MAX_CONTAINERS: usize = 10_000;
/// Digits of a container's id.
const ID_DIGITS: usize = 64;
/// Longest text (bytes).
const MAX_TEXT: usize = TargetSettings::MAX_LABEL;
/// Longest key of a label: Kubernetes allows 253 characters, a slash and 63 more.
const MAX_KEY: usize = 317;
/// Most labels of a pod that are kept.
const MAX_LABELS: usize = 64;

/// A Kubernetes pod.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Pod {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// Tells it from other pods of its name; empty where the runtime does not say it.
    pub(crate) uid: String,
    pub(crate) labels: BTreeMap<String, String>,
    /// What it is one of.
    pub(crate) workload: PodWorkload,
}

impl Pod {
    /// A pod; `None` without a name.
    pub(super) fn new(namespace: &[u8], name: &[u8], uid: &[u8], labels: ContainerLabels) -> Option<Self> {
        let name = text(name)?;
        let workload = PodWorkload::of(&name, &labels.0);
        let [namespace, uid] = [namespace, uid].map(|bytes| text(bytes).unwrap_or_default());
        Some(Self { namespace, name, uid, labels: labels.0, workload })
    }

    /// What tells it from all others.
    pub(crate) fn key(&self) -> String {
        if self.uid.is_empty() { format!("{}/{}", self.namespace, self.name) } else { self.uid.clone() }
    }

    /// The name within its cluster, of characters that a target's name can hold if they are Kubernetes' own.
    pub(crate) fn in_full(&self, name: &str) -> String {
        if self.namespace.is_empty() { name.to_owned() } else { format!("{}:{name}", self.namespace) }
    }
}

/// A container.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Container {
    /// None for the one that only holds a pod together.
    pub(crate) name: Option<String>,
    pub(crate) image: Option<String>,
    pub(crate) pod: Option<Arc<Pod>>,
}

/// Labels, as many of them as are kept.
#[derive(Debug, Default)]
pub(super) struct ContainerLabels(BTreeMap<String, String>);

impl ContainerLabels {
    pub(super) fn of<'b>(pairs: impl IntoIterator<Item = (&'b [u8], &'b [u8])>) -> Self {
        let mut labels = BTreeMap::new();
        for (key, value) in pairs {
            let key = str::from_utf8(key).ok().filter(|key| key.len() <= MAX_KEY && !key.is_empty());
            let Some(key) = key.filter(|key| key.bytes().all(|byte| byte.is_ascii_graphic())) else {
                continue;
            };
            if labels.len() >= MAX_LABELS {
                break;
            }
            labels.insert(key.to_owned(), text(value).unwrap_or_default());
        }
        Self(labels)
    }
}

/// Containers by their ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ContainerNames {
    by_id: FxHashMap<Arc<str>, Arc<Container>>,
    /// Containers that there was no room for.
    left_out: usize,
}

impl ContainerNames {
    /// The container of this id.
    pub(crate) fn get(&self, id: &str) -> Option<&Arc<Container>> {
        self.by_id.get(id)
    }

    /// Containers that have names.
    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Containers that there was no room for.
    pub(crate) fn left_out(&self) -> usize {
        self.left_out
    }

    /// So many more have none.
    pub(super) fn leave_out(&mut self, more: usize) {
        self.left_out += more;
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<Container>)> {
        self.by_id.iter()
    }

    /// Enters a container under an id that the kernel's control groups can hold.
    pub(super) fn insert(&mut self, id: &[u8], container: Container) {
        if let Some(id) = str::from_utf8(id).ok().filter(|id| is_id(id)) {
            self.add(id.into(), Arc::new(container));
        }
    }

    /// Gives containers the pod of `holders` that has their pod's UID.
    pub(super) fn share_pods(&mut self, holders: &FxHashMap<String, Arc<Pod>>) {
        for container in self.by_id.values_mut() {
            let holder = container.pod.as_ref().and_then(|pod| holders.get(&pod.uid));
            if let Some((holder, container)) = holder.cloned().zip(Arc::get_mut(container)) {
                container.pod = Some(holder);
            }
        }
    }

    /// Adds what another runtime, or an earlier answer, says of containers that are not known yet.
    pub(crate) fn add(&mut self, id: Arc<str>, container: Arc<Container>) {
        if self.by_id.contains_key(&id) {
            return;
        }
        if self.by_id.len() >= MAX_CONTAINERS {
            self.left_out += 1;
            return;
        }
        self.by_id.insert(id, container);
    }
}

/// Whether this is the id of a container, as runtimes make them.
fn is_id(text: &str) -> bool {
    text.len() == ID_DIGITS && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// Untrusted text as one visible line, cut where it is too long; `None` if nothing is left.
pub(super) fn text(bytes: &[u8]) -> Option<String> {
    let bytes = &bytes[..bytes.len().min(4 * MAX_TEXT)];
    let visible = |c: char| if is_invisible(c) { char::REPLACEMENT_CHARACTER } else { c };
    let mut text: String = String::from_utf8_lossy(bytes).trim().chars().map(visible).collect();
    let end = (0..=MAX_TEXT.min(text.len())).rev().find(|&end| text.is_char_boundary(end));
    text.truncate(end.unwrap_or(0));
    (!text.is_empty()).then_some(text)
}

/// Control characters, and those that change the direction of what follows.
fn is_invisible(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn container(name: &str) -> Container {
        Container { name: Some(name.to_owned()), image: None, pod: None }
    }

    #[test]
    fn texts_are_one_visible_line_of_bounded_length() {
        assert_eq!(text(b" web-1 ").as_deref(), Some("web-1"));
        assert_eq!(text(b" \n "), None);
        assert_eq!(text(b"a\nb\x1b[1m\xff\0").as_deref(), Some("a\u{fffd}b\u{fffd}[1m\u{fffd}\u{fffd}"));
        assert_eq!(text("a\u{202e}b".as_bytes()).as_deref(), Some("a\u{fffd}b"));
        assert_eq!(text(&b"x".repeat(100_000)).map(|text| text.len()), Some(MAX_TEXT));
        assert!(text("µ".repeat(1000).as_bytes()).is_some_and(|text| text.len() <= MAX_TEXT));
    }

    #[test]
    fn only_ids_of_containers_are_entered_once_and_their_number_is_bounded() {
        let mut names = ContainerNames::default();
        let id = |number: usize| format!("{number:064x}");
        for bad in ["", "../../etc", "abc", &"A".repeat(64), &"0".repeat(65)] {
            names.insert(bad.as_bytes(), container("x"));
        }
        assert_eq!(names.len(), 0);
        names.insert(id(0).as_bytes(), container("first"));
        names.insert(id(0).as_bytes(), container("second"));
        assert_eq!(names.get(&id(0)).unwrap().name.as_deref(), Some("first"));
        (0..MAX_CONTAINERS + 7).for_each(|number| names.insert(id(number).as_bytes(), container("x")));
        assert_eq!((names.len(), names.left_out()), (MAX_CONTAINERS, 7));
    }

    #[test]
    fn labels_are_bounded() {
        let keys: Vec<String> = (0..1000).map(|number| format!("key-{number}")).collect();
        let value = b"v".repeat(1000);
        let labels = ContainerLabels::of(keys.iter().map(|key| (key.as_bytes(), value.as_slice())));
        assert_eq!(labels.0.len(), MAX_LABELS);
        assert!(labels.0.values().all(|value| value.len() == MAX_TEXT));
        let bad = [&b""[..], b"a b", b"a\nb", b"\xff", &b"k".repeat(MAX_KEY + 1)];
        assert!(ContainerLabels::of(bad.map(|key| (key, &b"v"[..]))).0.is_empty());
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_bounded_line_or_nothing(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            if let Some(text) = text(&bytes) {
                prop_assert!(!text.is_empty() && text.len() <= MAX_TEXT && !text.chars().any(is_invisible));
            }
            let pod = Pod::new(&bytes, &bytes, &bytes, ContainerLabels::of([(bytes.as_slice(), bytes.as_slice())]));
            prop_assert!(pod.is_none_or(|pod| pod.workload.name.len() <= MAX_TEXT));
        }
    }
}
