//! Settings that are read again, and targets that are asked for.

use super::*;

fn host() -> Host {
    let mut host = Host::new();
    host.start(20, Made::program("web", 1).within("/system.slice/web.service"));
    host.start(21, Made::program("sh", 20).within("/system.slice/web.service"));
    host.start(30, Made::program("db", 1));
    host
}

#[test]
fn what_asks_for_the_same_stays_what_it_was() {
    let host = host();
    let web = |keys: &str| target("web", &format!("unit = \"web.service\"\n{keys}"));
    let mut watched = watch(&host, &[web(""), target("db", "process = \"db\"")]);
    let [web_id, db_id] = ["web", "db"].map(|name| watched.id(name));
    let all = target("all", "everything = true\neach = \"process\"");
    watched.replace(&[
        target("db", "process = \"d\""),
        web("labels = { a = \"b\" }\nbudget = \"0.5%\"\nreplicas = 12"),
        all.clone(),
    ]);
    let changes = watched.look();
    assert_eq!(watched.id("web"), web_id);
    assert_eq!((changes.gone.as_slice(), changes.changed.as_slice()), (&[db_id][..], &[web_id][..]));
    assert_eq!(changes.left, [(db_id, 30)]);
    let found = watched.discovery.target(web_id).unwrap();
    assert_eq!(
        (found.settings.budget.is_some(), found.labels["a"].as_str(), found.pids.len()),
        (true, "b", 2)
    );
    assert_eq!(found.settings.replicas, Some(12));
    assert_eq!([1, 30].map(|pid| watched.target_of(pid)), [Some("all:init"), Some("db")]);
    assert_ne!(watched.id("db"), db_id, "it asks for others");
    watched.replace(&[]);
    watched.look();
    assert!(watched.told.is_empty() && watched.there.is_empty());
    watched.replace(&[all]);
    watched.look();
    assert_eq!(watched.target_of(21), Some("all:sh"), "what it inherited is gone with the section");
}

#[test]
fn the_order_of_sections_is_that_of_the_last_settings() {
    let host = host();
    let sections = [target("unit", "unit = \"web.service\""), target("name", "process = \"^web$\"")];
    let mut watched = watch(&host, &sections);
    assert_eq!([20, 21].map(|pid| watched.target_of(pid)), [Some("unit"); 2]);
    watched.replace(&[sections[1].clone(), sections[0].clone()]);
    watched.look();
    assert_eq!([20, 21].map(|pid| watched.target_of(pid)), [Some("name"), Some("unit")]);
}

#[test]
fn a_target_that_is_asked_for_comes_first_and_survives_a_reload() {
    let host = host();
    let settings = [target("web", "unit = \"web.service\""), target("all", "everything = true")];
    let mut watched = watch(&host, &settings);
    let asked = watched.add(target("mine", "pid = 21"));
    let changes = watched.look();
    assert_eq!((changes.appeared.as_slice(), watched.target_of(21)), (&[asked][..], Some("mine")));
    let web = watched.id("web");
    assert!(changes.left.contains(&(web, 21)) && changes.joined.contains(&(asked, 21)), "{changes:?}");
    assert_eq!([asked, web].map(|id| watched.discovery.asked_by(id)), [Some(asked), None]);
    assert_eq!(watched.group("web"), None);
    watched.replace(&settings);
    let changes = watched.look();
    assert_eq!(changes.changed, ["web", "all"].map(|name| watched.id(name)), "they may have other budgets");
    assert_eq!(Changes { changed: Vec::new(), ..changes }, Changes::default());
    watched.discovery.remove(watched.id("web"));
    watched.discovery.remove(asked);
    let changes = watched.look();
    assert_eq!(changes.gone, [asked]);
    assert_eq!((watched.target_of(21), watched.group("web").is_some()), (Some("web"), true));
    let fleeting = watched.add(target("fleeting", "pid = 30"));
    watched.discovery.remove(fleeting);
    let changes = watched.look();
    assert_eq!((changes.appeared, changes.gone, watched.target_of(30)), (vec![], vec![], Some("all")));
}

#[test]
fn asked_for_with_each_it_is_removed_with_all_it_made() {
    let host = host();
    let mut watched = watch(&host, &[]);
    let asked = watched.add(target("mine", "command = \"serve\"\neach = \"process\""));
    watched.look();
    assert_eq!([20, 30].map(|pid| watched.target_of(pid).unwrap()), ["mine:web", "mine:db"]);
    assert_eq!(watched.discovery.asked_by(watched.id("mine:web")), Some(asked));
    watched.discovery.remove(asked);
    assert_eq!(watched.look().gone.len(), 4 + 1, "init, web, sh, db, and their section's own");
}

#[test]
fn settings_cannot_name_a_target_as_one_that_was_requested() {
    let host = host();
    let mut watched = watch(&host, &[target("web", "unit = \"web.service\"")]);
    let mine = watched.add(target("mine", "command = \"serve\"\neach = \"process\""));
    watched.look();
    let conflict = |watched: &Watched, names: &[&str]| {
        let targets: Vec<TargetSettings> = names.iter().map(|name| target(name, "pid = 20")).collect();
        watched.discovery.name_conflict(&targets)
    };
    assert_eq!(conflict(&watched, &["web", "other"]), None);
    for name in ["mine", "mine:db"] {
        assert_eq!(
            conflict(&watched, &["web", name]).unwrap(),
            format!(
                "target {name}: a target of `sweetspot ctl attach` has this name; run `sweetspot ctl detach mine`, then reload"
            )
        );
    }
    watched.discovery.remove(mine);
    assert_eq!(conflict(&watched, &["web", "mine", "mine:db"]), None);
}

/// The loop does neither: both may take long.
#[test]
fn users_are_looked_up_before_targets_are_replaced_and_added() {
    let host = Host::new();
    let mut watched = watch(&host, &[]);
    let (root, missing) = (target("a", "user = \"root\""), target("a", "user = \"no-such-user\""));
    assert_ne!(LookedUp::of(&root), LookedUp::of(&missing));
    watched.discovery.replace(std::slice::from_ref(&missing), vec![LookedUp::of(&root)]);
    assert!(watched.discovery.remarks().is_empty());
    watched.replace(&[]);
    watched.discovery.add(missing, LookedUp::of(&root));
    assert!(watched.discovery.remarks().is_empty());
}

#[test]
fn what_cannot_fit_is_told() {
    let mut host = Host::new();
    let mut watched =
        watch(&host, &[target("a", "user = \"no-such-user\""), target("b", "unit = \"x.service\"")]);
    let remarks = watched.discovery.remarks();
    assert!(
        remarks.len() == 1 && remarks[0].contains("target a: there is no user no-such-user"),
        "{remarks:?}"
    );
    // A host of the old kind.
    host.start(20, Made::default());
    std::fs::write(host.path().join("20/cgroup"), "3:cpu:/x\n1:name=systemd:/system.slice/x.service\n")
        .unwrap();
    watched.look();
    let remarks = watched.discovery.remarks();
    assert!(remarks.len() == 2 && remarks[1].contains("no cgroup v2 hierarchy"), "{remarks:?}");
    watched.replace(&[target("a", "process = \"x\"")]);
    assert!(watched.discovery.remarks().is_empty());
}
