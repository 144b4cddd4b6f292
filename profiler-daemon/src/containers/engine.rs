//! The HTTP interface that Docker has and Podman copies: its list of containers.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::names::{Container, ContainerLabels, ContainerNames, MAX_CONTAINERS, Pod, text};

/// The list of all containers, also of those that are about to start.
pub(super) const LIST: &str = "/containers/json?all=true";
/// Labels that Kubernetes sets where its containers are Docker's.
const POD_NAME: &str = "io.kubernetes.pod.name";
const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
const POD_UID: &str = "io.kubernetes.pod.uid";
const CONTAINER_NAME: &str = "io.kubernetes.container.name";
/// What the container is called that only holds a pod together.
const HOLDER: &str = "POD";
/// Most labels that are read of a container.
const MAX_PAIRS: usize = 256;
/// States of containers that have ended.
const ENDED: [&str; 3] = ["exited", "dead", "stopped"];

#[derive(Debug, Deserialize)]
struct Listed {
    #[serde(rename = "Id")]
    id: String,
    #[serde(rename = "Names", default)]
    names: Option<Vec<String>>,
    #[serde(rename = "Image", default)]
    image: Option<String>,
    #[serde(rename = "State", default)]
    state: Option<String>,
    #[serde(rename = "Labels", default)]
    labels: Option<Pairs>,
}

/// Names and texts, no more than a sound container has.
#[derive(Debug, Default)]
struct Pairs(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(PairsVisitor)
    }
}

struct PairsVisitor;

impl<'de> Visitor<'de> for PairsVisitor {
    type Value = Pairs;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("names and texts")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
        let mut pairs = Pairs::default();
        while let Some((key, value)) = map.next_entry()? {
            if pairs.0.len() < MAX_PAIRS {
                pairs.0.insert(key, value);
            }
        }
        Ok(pairs)
    }
}

/// The list, of which each entry is dropped once it is read: all of them together would take many times its size.
struct ContainerList(ContainerNames);

impl<'de> Deserialize<'de> for ContainerList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ListVisitor).map(Self)
    }
}

struct ListVisitor;

impl<'de> Visitor<'de> for ListVisitor {
    type Value = ContainerNames;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of containers")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<ContainerNames, A::Error> {
        let (mut names, mut holders) = (ContainerNames::default(), FxHashMap::default());
        while let Some(one) = list.next_element::<Listed>()? {
            if one.has_ended() {
                continue;
            }
            let container = one.container();
            if let Some(pod) = container.pod.as_ref().filter(|pod| one.is_holder() && !pod.uid.is_empty())
                && holders.len() < MAX_CONTAINERS
            {
                holders.insert(pod.uid.clone(), Arc::clone(pod));
            }
            names.insert(one.id.as_bytes(), container);
        }
        names.share_pods(&holders);
        Ok(names)
    }
}

impl Listed {
    fn label(&self, key: &str) -> Option<&str> {
        self.labels.as_ref()?.0.get(key).map(String::as_str)
    }

    fn pod(&self) -> Option<Pod> {
        let labels = self.labels.iter().flat_map(|labels| &labels.0);
        let labels = labels.map(|(key, value)| (key.as_bytes(), value.as_bytes()));
        let [name, namespace, uid] =
            [POD_NAME, POD_NAMESPACE, POD_UID].map(|key| self.label(key).unwrap_or_default().as_bytes());
        Pod::new(namespace, name, uid, ContainerLabels::of(labels))
    }

    fn name(&self) -> Option<String> {
        match self.label(CONTAINER_NAME) {
            Some(HOLDER) => None,
            Some(name) => text(name.as_bytes()),
            None => text(self.names.as_ref()?.first()?.trim_start_matches('/').as_bytes()),
        }
    }

    fn container(&self) -> Container {
        let image = self.image.as_ref().and_then(|image| text(image.as_bytes()));
        Container { name: self.name(), image, pod: self.pod().map(Arc::new) }
    }

    /// Whether it only holds a pod together. It alone has the pod's labels: the kubelet gives others none but its own.
    fn is_holder(&self) -> bool {
        self.label(CONTAINER_NAME) == Some(HOLDER)
    }

    fn has_ended(&self) -> bool {
        self.state.as_deref().is_some_and(|state| ENDED.contains(&state))
    }
}

/// All containers of a list.
///
/// # Errors
///
/// If it is no such list.
pub(super) fn names(body: &[u8]) -> Result<ContainerNames, serde_json::Error> {
    serde_json::from_slice::<ContainerList>(body).map(|list| list.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(digit: &str) -> String {
        digit.repeat(64)
    }

    #[test]
    fn containers_have_names_and_images_and_perhaps_pods() {
        let body = format!(
            r#"[
            {{"Id": "{}", "Names": ["/web", "/other/web"], "Image": "nginx:1", "State": "running", "Labels": {{}}, "Ports": [{{"Type": "tcp"}}]}},
            {{"Id": "{}", "Names": null, "Image": "", "Labels": null, "State": "created"}},
            {{"Id": "{}", "Names": ["old"], "Image": "nginx:1", "State": "exited"}},
            {{"Id": "{}", "Names": ["/k8s_server_cart-0"], "Image": "cart", "Labels": {{"io.kubernetes.pod.name": "cart-0",
                "io.kubernetes.pod.namespace": "shop", "io.kubernetes.pod.uid": "u", "io.kubernetes.container.name": "server"}}}},
            {{"Id": "{}", "Labels": {{"io.kubernetes.pod.name": "cart-0", "io.kubernetes.container.name": "POD"}}}}
            ]"#,
            id("1"),
            id("2"),
            id("3"),
            id("4"),
            id("5")
        );
        let names = names(body.as_bytes()).unwrap();
        let get = |digit| names.get(&id(digit)).unwrap();
        assert_eq!((get("1").name.as_deref(), get("1").image.as_deref()), (Some("web"), Some("nginx:1")));
        assert_eq!(get("1").pod, None);
        assert_eq!((get("2").name.as_deref(), get("2").image.as_deref()), (None, None));
        assert_eq!(names.get(&id("3")), None, "it has ended");
        let pod = get("4").pod.as_ref().unwrap();
        assert_eq!([&*pod.namespace, &pod.name, &pod.uid], ["shop", "cart-0", "u"]);
        assert_eq!((get("4").name.as_deref(), get("5").name.as_deref()), (Some("server"), None));
    }

    /// Docker's containers of Kubernetes: only the one that holds the pod together has the pod's own labels.
    #[test]
    fn a_container_has_the_labels_of_the_one_that_holds_its_pod_together() {
        let entry = |digit: &str, uid: &str, container: &str, state: &str, labels: &str| {
            format!(
                r#"{{"Id": "{}", "State": "{state}", "Labels": {{"io.kubernetes.pod.name": "cart-7d9f8b6c5-x2v4k",
                "io.kubernetes.pod.namespace": "shop", "io.kubernetes.pod.uid": "{uid}",
                "io.kubernetes.container.name": "{container}"{labels}}}}}"#,
                id(digit)
            )
        };
        let own = r#", "app": "cart", "pod-template-hash": "7d9f8b6c5""#;
        let body = [
            entry("1", "u1", "server", "running", ""),
            entry("2", "u1", "POD", "exited", r#", "app": "old""#),
            entry("3", "u1", "POD", "running", own),
            entry("4", "u1", "proxy", "running", ""),
            entry("5", "u2", "server", "running", r#", "app": "other""#),
            entry("6", "", "server", "running", ""),
            entry("7", "", "POD", "running", own),
        ]
        .join(",");
        let names = names(format!("[{body}]").as_bytes()).unwrap();
        let pod = |digit| names.get(&id(digit)).unwrap().pod.as_ref().unwrap();
        let app = |digit| pod(digit).labels.get("app").map(String::as_str);
        assert_eq!(
            ["1", "3", "4", "5", "6"].map(app),
            [Some("cart"), Some("cart"), Some("cart"), Some("other"), None]
        );
        assert_eq!(names.get(&id("4")).unwrap().name.as_deref(), Some("proxy"));
        assert_eq!(pod("1").workload.kind, crate::containers::workload::WorkloadKind::Deployment);
        assert!(Arc::ptr_eq(pod("1"), pod("4")));
    }

    #[test]
    fn what_is_no_list_is_refused() {
        let deep = "[".repeat(100_000);
        for body in ["", "{}", "null", "[1]", "[{}]", r#"{"message": "page not found"}"#, &deep] {
            assert!(names(body.as_bytes()).is_err());
        }
    }

    proptest! {
        #[test]
        fn any_body_is_read_or_refused(body in r#"[\[\]{}",:a-zA-Z0-9 ]{0,80}"#) {
            let _ = names(body.as_bytes());
        }
    }
}
