//! Random lives of a host, against a model that finds everybody's target from scratch after each step.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::naive::{Model, Rule, container};
use super::*;

const NAMES: [&str; 4] = ["web", "db", "sh", "helper"];
const GROUPS: [&str; 6] = [
    "/",
    "/init.scope",
    "/system.slice/web.service",
    "/system.slice/web.service/below",
    "/system.slice/db.service",
    "/system.slice/docker-3f4e5d6c7b8a90123f4e5d6c7b8a90123f4e5d6c7b8a90123f4e5d6c7b8a9012.scope/x",
];
const SECTIONS: [&str; 14] = [
    "pid = 12",
    "pid = 13\nprocess = \"web\"",
    "executable = \"/usr/bin/web\"",
    "command = \"^db --serve\"",
    "process = \"^(sh|db)$\"\neach = \"process\"",
    "user = \"1\"",
    "user = \"2\"\neach = \"unit\"",
    "unit = \"web.service\"",
    "unit = \"system.slice\"\neach = \"cgroup\"",
    "cgroup = \"/system.slice\"\nprocess = \"web\"",
    "cgroup = \"/system.slice/web.service/below\"",
    "container = \"3f4e5d6c7b8a\"",
    "everything = true",
    "everything = true\neach = \"container\"",
];

/// What happens to a host. Numbers are taken as places in what there is.
#[derive(Clone, Debug)]
enum Event {
    Birth { pid: u32, creator: usize, what: What },
    Death(usize),
    Exec(usize, What),
    Move(usize, What),
    Zombie(usize),
    Settings(Vec<usize>),
    Ask(usize),
    Forget,
    Look,
}

#[derive(Clone, Copy, Debug)]
struct What {
    name: usize,
    group: usize,
    user: u32,
}

fn what() -> impl Strategy<Value = What> {
    (0..NAMES.len(), 0..GROUPS.len(), 0..3_u32).prop_map(|(name, group, user)| What { name, group, user })
}

fn sections() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::btree_set(0..SECTIONS.len(), 0..8)
        .prop_map(|set| set.into_iter().collect::<Vec<_>>())
        .prop_shuffle()
}

fn event() -> impl Strategy<Value = Event> {
    let any = 0..64_usize;
    prop_oneof![
        6 => (10..24_u32, any.clone(), what()).prop_map(|(pid, creator, what)| Event::Birth { pid, creator, what }),
        3 => any.clone().prop_map(Event::Death),
        2 => (any.clone(), what()).prop_map(|(at, what)| Event::Exec(at, what)),
        2 => (any.clone(), what()).prop_map(|(at, what)| Event::Move(at, what)),
        1 => any.clone().prop_map(Event::Zombie),
        1 => sections().prop_map(Event::Settings),
        1 => (0..SECTIONS.len()).prop_map(Event::Ask),
        1 => Just(Event::Forget),
        8 => Just(Event::Look),
    ]
}

/// The sections at these places; what takes everybody is last.
fn chosen(at: &[usize]) -> Vec<TargetSettings> {
    let mut all: Vec<TargetSettings> = at.iter().map(|at| target(&format!("s{at}"), SECTIONS[*at])).collect();
    all.sort_by_key(|settings| settings.everything);
    all
}

/// The groups and labels of all targets, from scratch.
fn check_shared(host: &Host, watched: &Watched) -> Result<(), TestCaseError> {
    for (id, found) in watched.discovery.targets().filter(|(_, found)| !found.pids.is_empty()) {
        let groups: BTreeSet<&str> = found.pids.iter().map(|pid| host.all[pid].group.as_str()).collect();
        let cgroup = found.labels.get("cgroup").map(String::as_str);
        prop_assert_eq!(cgroup, groups.first().copied().filter(|_| groups.len() == 1));
        let of: BTreeSet<Option<&str>> = groups.iter().map(|group| container(group)).collect();
        let shared = of.first().copied().flatten().filter(|_| of.len() == 1);
        prop_assert_eq!(found.labels.get("container").map(String::as_str), shared);
        let Some(group) = &found.group else { continue };
        let within = |made: &Made| std::path::Path::new(&made.group).starts_with(&**group);
        let members = host.all.iter().filter(|(_, made)| made.state != 'Z' && within(made));
        let members: BTreeSet<u32> = members.map(|(pid, _)| *pid).collect();
        prop_assert_eq!(&members, &found.pids, "{} is no group", found.name);
        prop_assert!(watched.told.values().any(|told| *told == id));
    }
    Ok(())
}

struct World {
    host: Host,
    watched: Watched,
    model: Model,
    asked: Vec<TargetId>,
    clock: u64,
}

impl World {
    fn new(at: &[usize]) -> Self {
        let host = Host::new();
        let settings = chosen(at);
        let mut model = Model::default();
        model.replace(&settings);
        let watched = Watched::new(&host, &settings);
        Self { host, watched, model, asked: Vec::new(), clock: 100 }
    }

    /// A process that may be touched: neither the first nor ourselves, nor a zombie.
    fn pick(&self, at: usize) -> Option<u32> {
        let living: Vec<u32> = self
            .host
            .all
            .iter()
            .filter(|(pid, made)| **pid != OWN && **pid != 1 && made.state != 'Z')
            .map(|(pid, _)| *pid)
            .collect();
        (!living.is_empty()).then(|| living[at % living.len()])
    }

    fn change(&mut self, pid: u32, change: impl FnOnce(&mut Made)) {
        self.host.change(pid, change);
        self.watched.discovery.suspect(pid);
    }

    fn happen(&mut self, event: Event) -> Result<(), TestCaseError> {
        self.clock += 1;
        match event {
            Event::Birth { pid, creator, what } => {
                if self.host.all.contains_key(&pid) {
                    self.host.end(pid); // and another one has its id
                }
                let creator = if creator % 8 == 7 { OWN } else { self.pick(creator).unwrap_or(1) };
                let made = Made {
                    user: what.user,
                    start: self.clock,
                    image: self.clock,
                    ..Made::program(NAMES[what.name], creator)
                };
                self.host.start(pid, made.within(GROUPS[what.group]));
            }
            Event::Death(at) => self.pick(at).into_iter().for_each(|pid| self.host.end(pid)),
            Event::Exec(at, what) => {
                let (name, clock) = (NAMES[what.name], self.clock);
                let Some(pid) = self.pick(at) else { return Ok(()) };
                self.change(pid, |made| {
                    let now = Made::program(name, made.parent);
                    (made.comm, made.executable, made.command, made.image) =
                        (now.comm, now.executable, now.command, clock);
                });
            }
            Event::Move(at, what) => {
                let Some(pid) = self.pick(at) else { return Ok(()) };
                self.change(pid, |made| (made.user, made.group) = (what.user, GROUPS[what.group].to_owned()));
            }
            Event::Zombie(at) => {
                let Some(pid) = self.pick(at) else { return Ok(()) };
                self.change(pid, |made| made.state = 'Z');
                let orphans: Vec<u32> = self
                    .host
                    .all
                    .iter()
                    .filter(|(_, made)| made.parent == pid)
                    .map(|(pid, _)| *pid)
                    .collect();
                orphans.into_iter().for_each(|orphan| self.host.change(orphan, |made| made.parent = 1));
            }
            Event::Settings(at) => {
                let settings = chosen(&at);
                self.model.replace(&settings);
                self.watched.replace(&settings);
            }
            Event::Ask(at) if self.asked.len() < 3 && !SECTIONS[at].contains("everything") => {
                let settings = target(&format!("asked{}", self.clock), SECTIONS[at]);
                self.asked.push(self.watched.add(settings.clone()));
                self.model.asked.push(Rule { settings, start: None });
            }
            Event::Ask(_) => {}
            Event::Forget => {
                let Some(id) = self.asked.pop() else { return Ok(()) };
                self.watched.discovery.remove(id);
                self.model.asked.pop();
                self.model.forget(&self.model.rules().map(|rule| rule.settings.name.clone()).collect());
            }
            Event::Look => return self.compare(),
        }
        Ok(())
    }

    fn compare(&mut self) -> Result<(), TestCaseError> {
        self.watched.look();
        let expected = self.model.look(&self.host);
        let found: BTreeMap<u32, String> = self
            .watched
            .told
            .keys()
            .map(|pid| (*pid, self.watched.target_of(*pid).unwrap().to_owned()))
            .collect();
        // Names that do not fit are cut, and end in a checksum.
        let cut = |name: &String| if name.len() > 40 { name[..40].to_owned() } else { name.clone() };
        let cut = |all: &BTreeMap<u32, String>| {
            all.iter().map(|(pid, name)| (*pid, cut(name))).collect::<BTreeMap<_, _>>()
        };
        prop_assert_eq!(cut(&found), cut(&expected));
        check_shared(&self.host, &self.watched)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn membership_is_what_a_model_finds_from_scratch(at in sections(), events in prop::collection::vec(event(), 0..80)) {
        let mut world = World::new(&at);
        for event in events {
            world.happen(event)?;
        }
        world.compare()?;
    }
}
