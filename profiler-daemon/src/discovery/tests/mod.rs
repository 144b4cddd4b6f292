//! Discovery on made-up hosts, and on this one.

mod conditions;
mod containers;
mod cost;
mod host;
mod hostile;
mod lifetimes;
mod live;
mod model;
mod naive;
mod relabel;
mod settings;

use std::collections::BTreeMap;

use config::TargetSettings;

use super::{Changes, Discovery, LookedUp, TargetId};
use host::{Host, Made, OWN};

const SECOND: u64 = 1_000_000_000;

/// A target of this name, with these settings of a file.
fn target(name: &str, keys: &str) -> TargetSettings {
    let text = format!("[[target]]\nname = \"{name}\"\n{keys}\n");
    let parsed = config::DaemonSettings::parse(text.as_bytes());
    parsed.unwrap_or_else(|problems| panic!("{text}: {problems:?}")).targets.remove(0)
}

/// Discovery on a host, with what it has said so far.
struct Watched {
    discovery: Discovery,
    now_ns: u64,
    /// Who belongs where, as the changes tell it.
    told: BTreeMap<u32, TargetId>,
    /// Targets, as the changes tell it.
    there: Vec<TargetId>,
}

impl Watched {
    fn new(host: &Host, targets: &[TargetSettings]) -> Self {
        let discovery = Discovery::in_folder(host.path(), OWN, targets);
        Self { discovery, now_ns: 0, told: BTreeMap::new(), there: Vec::new() }
    }

    /// Looks a second later. What it says has to agree with what it shows.
    fn look(&mut self) -> Changes {
        self.now_ns += SECOND;
        let changes = self.discovery.look(self.now_ns);
        for (target, pid) in &changes.left {
            assert_eq!(self.told.remove(pid), Some(*target), "{pid} was there before it left");
        }
        for (target, pid) in &changes.joined {
            assert_eq!(self.told.insert(*pid, *target), None, "{pid} belongs to one target");
        }
        self.there.extend(&changes.appeared);
        self.there.sort_unstable();
        for gone in &changes.gone {
            let at = self.there.iter().position(|id| id == gone).expect("it was there");
            self.there.remove(at);
            assert!(self.discovery.target(*gone).is_none());
        }
        let shown: Vec<TargetId> = self.discovery.targets().map(|(id, _)| id).collect();
        assert_eq!(self.there, shown);
        let members =
            self.discovery.targets().flat_map(|(id, found)| found.pids.iter().map(move |pid| (*pid, id)));
        assert_eq!(members.collect::<BTreeMap<_, _>>(), self.told);
        changes
    }

    /// Replaces the targets from the settings.
    fn replace(&mut self, targets: &[TargetSettings]) {
        self.discovery.replace(targets, LookedUp::of_all(targets));
    }

    /// Adds a requested target.
    fn add(&mut self, target: TargetSettings) -> TargetId {
        let looked_up = LookedUp::of(&target);
        self.discovery.add(target, looked_up)
    }

    /// Looks until everybody was looked at again.
    fn look_long(&mut self) {
        (0..super::look::TURNS).for_each(|_| drop(self.look()));
    }

    /// The name of the target that a process belongs to.
    fn target_of(&self, pid: u32) -> Option<&str> {
        Some(&self.discovery.target(*self.told.get(&pid)?)?.name)
    }

    fn id(&self, name: &str) -> TargetId {
        let found = self.discovery.targets().find(|(_, found)| found.name == name);
        found.unwrap_or_else(|| panic!("no target {name}")).0
    }

    fn group(&self, name: &str) -> Option<String> {
        let found = self.discovery.target(self.id(name))?;
        found.group.as_deref().map(str::to_owned)
    }

    fn labels(&self, name: &str) -> String {
        let found = self.discovery.target(self.id(name)).unwrap();
        found
            .labels
            .iter()
            .map(|(name, text)| format!("{name}={text} "))
            .collect::<String>()
            .trim_end()
            .to_owned()
    }
}

/// What discovery says at first of a host.
fn watch(host: &Host, targets: &[TargetSettings]) -> Watched {
    let mut watched = Watched::new(host, targets);
    watched.look();
    watched
}
