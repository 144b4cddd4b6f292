//! Containers and pods that runtimes give names.

use std::sync::Arc;

use super::*;
use crate::containers::testing::{self, Said};

const UID: &str = "1f0c8c2e-0000-4000-8000-00000000000";

fn id(number: u32) -> String {
    format!("{number:064x}")
}

/// The path of a pod's container, as containerd has it under systemd.
pub(super) fn group(pod: u32, container: u32) -> String {
    let uid = format!("{UID}{pod}").replace('-', "_");
    format!("/kubepods.slice/kubepods-pod{uid}.slice/cri-containerd-{}.scope", id(container))
}

/// Two pods of a deployment, one of them with two containers, and a pod of another namespace.
pub(super) fn host() -> Host {
    let mut host = Host::new();
    for (pid, pod, container) in [(20, 1, 11), (21, 1, 12), (22, 2, 13), (23, 3, 14)] {
        host.start(pid, Made::program("server", 1).within(&group(pod, container)));
    }
    host.start(30, Made::program("shell", 1).within("/"));
    host
}

pub(super) fn names() -> Arc<crate::containers::ContainerNames> {
    let hash = [("app", "cart"), ("pod-template-hash", "7d9f8b6c5")];
    let db = [("app", "db"), ("apps.kubernetes.io/pod-index", "0")];
    let said = |container: u32, name, image, pod: u32, pod_name, namespace, labels| Said {
        id: id(container),
        name,
        image,
        pod: pod_name,
        namespace,
        uid: format!("{UID}{pod}"),
        labels,
    };
    Arc::new(testing::names(&[
        said(11, "server", "reg:5000/cart:1.2", 1, "cart-7d9f8b6c5-x2v4k", "shop", &hash),
        said(12, "proxy", "reg:5000/envoy", 1, "cart-7d9f8b6c5-x2v4k", "shop", &hash),
        said(13, "server", "reg:5000/cart:1.2", 2, "cart-7d9f8b6c5-zzzzz", "shop", &hash),
        said(14, "server", "reg:5000/db:9", 3, "db-0", "data", &db),
    ]))
}

/// What is found once runtimes have answered.
pub(super) fn named(host: &Host, targets: &[TargetSettings]) -> Watched {
    let mut watched = watch(host, targets);
    watched.discovery.name_containers(names());
    watched.look();
    watched
}

#[test]
fn each_selector_finds_those_that_runtimes_name_so() {
    let host = host();
    for (keys, fitting) in [
        ("namespace = \"^shop$\"", &[20, 21, 22][..]),
        ("pod = \"^cart-\"", &[20, 21, 22]),
        ("pod = \"x2v4k$\"", &[20, 21]),
        ("container_name = \"^server$\"", &[20, 22, 23]),
        ("image = \"/cart:\"", &[20, 22]),
        ("pod_labels = { app = \"db\" }", &[23]),
        ("pod_labels = { app = \"cart\", other = \"x\" }", &[]),
        ("namespace = \"shop\"\ncontainer_name = \"server\"\nprocess = \"server\"", &[20, 22]),
        ("process = \"server\"\nimage = \"envoy\"", &[21]),
    ] {
        let watched = named(&host, &[target("a", keys)]);
        assert_eq!(watched.told.keys().copied().collect::<Vec<u32>>(), fitting, "{keys}");
    }
}

#[test]
fn nobody_fits_before_a_runtime_has_answered_and_is_wanted_until_then() {
    let host = host();
    let mut watched = watch(&host, &[target("a", "namespace = \"shop\"")]);
    assert!(watched.told.is_empty() && watched.discovery.wants_names());
    watched.discovery.name_containers(Arc::default());
    assert!(watched.discovery.wants_names(), "it may have been asked too early");
    (0..3).for_each(|_| watched.discovery.name_containers(Arc::default()));
    assert!(!watched.discovery.wants_names(), "no runtime of this host knows them");
    watched.discovery.name_containers(names());
    watched.look();
    assert_eq!(watched.told.keys().collect::<Vec<_>>(), [&20, &21, &22]);
    assert!(!watched.discovery.wants_names());
}

#[test]
fn each_pod_and_each_workload_are_targets_with_their_names() {
    let host = host();
    let of = |each: &str| {
        let watched = named(&host, &[target("all", &format!("everything = true\neach = \"{each}\""))]);
        [20, 21, 22, 23, 30].map(|pid| watched.target_of(pid).unwrap().to_owned())
    };
    let cart = "all:shop:cart-7d9f8b6c5-x2v4k";
    assert_eq!(of("pod"), [cart, cart, "all:shop:cart-7d9f8b6c5-zzzzz", "all:data:db-0", "all"]);
    let cart = "all:shop:cart";
    assert_eq!(of("workload"), [cart, cart, cart, "all:data:db", "all"]);
}

#[test]
fn a_pod_is_its_control_group() {
    let watched = named(&host(), &[target("all", "everything = true\neach = \"pod\"")]);
    let group = watched.group("all:shop:cart-7d9f8b6c5-x2v4k").unwrap();
    assert!(group.ends_with("00000000_0001.slice") || group.ends_with("000000000001.slice"), "{group}");
}

#[test]
fn labels_are_what_all_processes_share() {
    let host = host();
    let mut watched = named(&host, &[target("all", "everything = true\neach = \"pod\"")]);
    watched.discovery.show_pod_labels(&["app".to_owned(), "none".to_owned()]);
    watched.look();
    let labels = watched.labels("all:shop:cart-7d9f8b6c5-x2v4k");
    let pod = format!(
        "k8s.deployment.name=cart k8s.namespace.name=shop k8s.pod.label.app=cart k8s.pod.name=cart-7d9f8b6c5-x2v4k \
         k8s.pod.uid={UID}1"
    );
    assert_eq!(labels, pod, "two containers");
    let labels = watched.labels("all:data:db-0");
    assert!(
        labels.contains("k8s.container.name=server") && labels.contains("container.image.tags=9"),
        "{labels}"
    );
    assert!(
        labels.contains("k8s.statefulset.name=db") && labels.contains("container.image.name=reg:5000/db "),
        "{labels}"
    );
    let watched = named(&host, &[target("all", "everything = true\neach = \"workload\"")]);
    assert_eq!(watched.labels("all:shop:cart"), "k8s.deployment.name=cart k8s.namespace.name=shop");
}

#[test]
fn a_container_that_has_ended_for_its_runtime_keeps_its_name_while_somebody_is_in_it() {
    let mut host = host();
    let mut watched = named(&host, &[target("a", "pod = \"^cart-\"")]);
    watched.discovery.name_containers(Arc::default());
    watched.look();
    assert_eq!(watched.told.len(), 3);
    host.end(22);
    watched.look();
    watched.discovery.name_containers(Arc::default());
    host.start(22, Made::program("server", 1).within(&group(2, 13)));
    watched.look();
    assert_eq!(watched.told.keys().collect::<Vec<_>>(), [&20, &21], "it was forgotten when it was empty");
}

/// A pod of a stateful set keeps its name when it is made anew, but not its UID.
#[test]
fn a_pod_that_restarts_under_its_name_is_called_as_before() {
    let mut host = host();
    let mut watched = named(&host, &[target("all", "everything = true\neach = \"pod\"")]);
    assert_eq!(watched.target_of(23), Some("all:data:db-0"));
    let before = watched.id("all:data:db-0");
    host.end(23);
    watched.look();
    host.start(24, Made::program("server", 1).within(&group(4, 15)));
    let labels = [("apps.kubernetes.io/pod-index", "0")];
    let again = Said {
        id: id(15),
        name: "server",
        image: "reg:5000/db:9",
        pod: "db-0",
        namespace: "data",
        uid: format!("{UID}4"),
        labels: &labels,
    };
    watched.discovery.name_containers(Arc::new(testing::names(&[again])));
    watched.look();
    assert_eq!(watched.target_of(24), Some("all:data:db-0"));
    assert_ne!(watched.id("all:data:db-0"), before, "another pod is another target");
    assert!(watched.labels("all:data:db-0").contains(&format!("k8s.pod.uid={UID}4")));
}

/// A deployment and a job of the same name, both found by one scan: neither takes the other's processes.
#[test]
fn two_that_are_called_the_same_at_a_time_are_two_targets() {
    let mut host = Host::new();
    let pods = [(20, 1, 11), (21, 2, 12)];
    pods.iter().for_each(|&(pid, pod, container)| {
        host.start(pid, Made::program("server", 1).within(&group(pod, container)))
    });
    let job = [("job-name", "cart")];
    let deployment = [("pod-template-hash", "7d9f8b6c5")];
    let said = |container: u32, pod: u32, name, labels| Said {
        id: id(container),
        name: "server",
        image: "reg:5000/cart:1.2",
        pod: name,
        namespace: "shop",
        uid: format!("{UID}{pod}"),
        labels,
    };
    let names = Arc::new(testing::names(&[
        said(11, 1, "cart-7d9f8b6c5-x2v4k", &deployment),
        said(12, 2, "cart-x2v4k", &job),
    ]));
    let all = |each: &str| [target("all", &format!("everything = true\neach = \"{each}\""))];
    let mut watched = watch(&host, &all("workload"));
    watched.discovery.name_containers(names);
    for _ in 0..2 {
        watched.look();
        let called = [20, 21].map(|pid| watched.target_of(pid).unwrap().to_owned());
        assert!(called.contains(&"all:shop:cart".to_owned()) && called[0] != called[1], "{called:?}");
        // Both restart before the next scan.
        pods.iter().for_each(|&(pid, ..)| host.end(pid));
        pods.iter().for_each(|&(pid, pod, container)| {
            host.start(pid, Made::program("server", 2).within(&group(pod, container)))
        });
    }
}
