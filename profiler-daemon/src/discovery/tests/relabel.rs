//! Rules for labels: what they drop is in no answer and no target, and what they keep has the labels that they make.

use config::RelabelRules;

use super::containers::{host, named};
use super::*;

const CART: &str = "all:shop:cart-7d9f8b6c5-x2v4k";

fn rules(text: &str) -> RelabelRules {
    let text: String = text.split(";\n").map(|rule| format!("[[relabel]]\n{rule}\n")).collect();
    let parsed = config::DaemonSettings::parse(text.as_bytes());
    parsed.unwrap_or_else(|problems| panic!("{text}: {problems:?}")).relabel
}

/// The pods of a host, under these rules from the start.
fn pods(host: &Host, text: &str) -> Watched {
    let mut watched = Watched::new(host, &[target("all", "everything = true\neach = \"pod\"")]);
    watched.discovery.relabel(&rules(text));
    watched.discovery.show_pod_labels(&["app".to_owned()]);
    watched.discovery.name_containers(super::containers::names());
    watched.look();
    watched.look();
    watched
}

fn there(watched: &Watched) -> Vec<String> {
    watched.discovery.targets().map(|(_, found)| found.name.clone()).collect()
}

#[test]
fn what_a_label_of_its_pod_drops_is_in_no_target_at_all() {
    let host = host();
    let drop = "source_labels = [\"k8s.pod.label.app\"]\nregex = \"cart\"\naction = \"drop\"";
    let mut watched = pods(&host, drop);
    assert_eq!(there(&watched), ["all", "all:data:db-0"]);
    assert_eq!([20, 21, 22].map(|pid| watched.target_of(pid)), [None; 3], "not even everything's");
    assert_eq!([23, 30].map(|pid| watched.target_of(pid)), [Some("all:data:db-0"), Some("all")]);
    let mut dropped: Vec<u32> = watched.discovery.dropped_processes().collect();
    dropped.sort_unstable();
    assert_eq!((watched.discovery.dropped(), dropped), (2, vec![20, 21, 22]));
    // Other rules take effect as others of the settings do.
    watched.discovery.relabel(&RelabelRules::default());
    let changes = watched.look();
    assert_eq!((changes.appeared.len(), changes.joined.len(), watched.target_of(20)), (2, 3, Some(CART)));
    assert_eq!(watched.discovery.dropped_processes().count(), 0);
    let id = watched.id(CART);
    watched.discovery.relabel(&rules(drop));
    let changes = watched.look();
    assert_eq!((changes.gone.len(), changes.left.len(), watched.target_of(20)), (2, 3, None));
    assert!(changes.joined_dropped.contains(&(id, 20)) && changes.gone.contains(&id), "{changes:?}");
    assert_eq!(watched.look(), Changes::default(), "once");
}

#[test]
fn processes_that_come_and_go_in_a_dropped_target_are_told_of_apart() {
    let mut host = host();
    let drop = "source_labels = [\"k8s.namespace.name\"]\nregex = \"shop\"\naction = \"drop\"";
    let mut watched = pods(&host, drop);
    host.start(40, Made::program("server", 20).within(&super::containers::group(1, 11)));
    let changes = watched.look();
    assert!(changes.joined.is_empty(), "{changes:?}");
    assert_eq!(changes.joined_dropped.iter().map(|(_, pid)| *pid).collect::<Vec<_>>(), [40]);
    host.end(40);
    let changes = watched.look();
    assert!(changes.left.is_empty(), "{changes:?}");
    assert_eq!(changes.left_dropped.iter().map(|(_, pid)| *pid).collect::<Vec<_>>(), [40]);
    for pid in [20, 21, 22] {
        host.end(pid);
    }
    watched.look();
    watched.now_ns += super::super::table::LINGER_NS;
    assert_eq!(watched.look(), Changes::default(), "it ends unheard");
    assert_eq!(watched.discovery.dropped(), 0);
}

#[test]
fn a_target_is_dropped_until_its_labels_are_those_that_are_kept() {
    let host = host();
    let mut watched = Watched::new(&host, &[target("all", "everything = true\neach = \"pod\"")]);
    watched
        .discovery
        .relabel(&rules("source_labels = [\"k8s.namespace.name\"]\nregex = \"shop\"\naction = \"keep\""));
    watched.look();
    assert!(there(&watched).is_empty() && watched.told.is_empty(), "the target of the rest has none either");
    watched.discovery.name_containers(super::containers::names());
    watched.look();
    assert_eq!(there(&watched).len(), 2);
    assert_eq!([20, 23, 30].map(|pid| watched.target_of(pid)), [Some(CART), None, None]);
}

#[test]
fn labels_are_those_that_rules_make() {
    let host = host();
    let watched = pods(
        &host,
        "source_labels = [\"k8s.namespace.name\", \"k8s.deployment.name\"]\nseparator = \"/\"\nregex = \"(.+/.+)\"\n\
         target_label = \"service\";\n\
         regex = 'k8s\\.pod\\.label\\.(.+)'\naction = \"labelmap\";\n\
         source_labels = [\"__target__\"]\nregex = \"all:(.*)\"\ntarget_label = \"of\";\n\
         action = \"labeldrop\"\nregex = 'k8s\\..*|container.*|cgroup|unit'",
    );
    assert_eq!(watched.labels(CART), "app=cart of=shop:cart-7d9f8b6c5-x2v4k service=shop/cart");
    assert_eq!(watched.labels("all:data:db-0"), "app=db of=data:db-0");
    assert_eq!(watched.discovery.target(watched.id(CART)).unwrap().name, CART, "its name stays");
}

#[test]
fn other_labels_are_a_change() {
    let host = host();
    let mut watched = named(&host, &[target("all", "everything = true\neach = \"pod\"")]);
    let id = watched.id(CART);
    watched.discovery.relabel(&rules("source_labels = [\"k8s.pod.name\"]\ntarget_label = \"pod\""));
    let changes = watched.look();
    assert!(changes.changed.contains(&id) && changes.gone.is_empty(), "{changes:?}");
    assert!(watched.labels(CART).contains("pod=cart-7d9f8b6c5-x2v4k"));
    assert!(watched.look().changed.is_empty());
}

#[test]
fn what_somebody_asked_for_is_relabelled_and_not_dropped() {
    let host = host();
    let mut watched = pods(
        &host,
        "source_labels = [\"__target__\"]\nregex = \".*\"\naction = \"drop\";\ntarget_label = \"seen\"\nreplacement = \"yes\"",
    );
    assert!(there(&watched).is_empty());
    let asked = watched.add(target("mine", "process = \"server\"\neach = \"container\""));
    let changes = watched.look();
    assert!(changes.appeared.contains(&asked), "{changes:?}");
    assert!(watched.target_of(20).is_some_and(|name| name.starts_with("mine:")));
    assert!(watched.labels("mine").contains("seen=yes"));
}

/// CPU time counts for dropped targets from the moment that they are dropped.
#[test]
fn what_dropped_targets_use_is_counted() {
    let mut host = host();
    host.change(20, |made| made.ticks = 500);
    let mut watched =
        pods(&host, "source_labels = [\"k8s.namespace.name\"]\nregex = \"data\"\naction = \"drop\"");
    let drop = rules("source_labels = [\"k8s.namespace.name\"]\nregex = \"shop\"\naction = \"drop\"");
    watched.discovery.relabel(&drop);
    watched.look();
    let before_ns = watched.discovery.dropped_cpu_ns();
    for (pid, ticks) in [(20, 507), (23, 100)] {
        host.change(pid, |made| made.ticks = ticks);
    }
    let tick_ns = super::super::tick_ns();
    assert_eq!(watched.discovery.dropped_cpu_ns() - before_ns, 7 * tick_ns);
    watched.discovery.relabel(&RelabelRules::default());
    watched.look();
    host.change(20, |made| made.ticks = 900);
    assert_eq!(watched.discovery.dropped_cpu_ns() - before_ns, 7 * tick_ns);
}
