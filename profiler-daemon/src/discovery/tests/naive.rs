//! Everybody's target from scratch, section by section and process by process.

use std::collections::{BTreeMap, BTreeSet};

use config::Each;

use super::*;

/// A section as the model knows it.
#[derive(Clone)]
pub(super) struct Rule {
    pub(super) settings: TargetSettings,
    pub(super) start: Option<u64>,
}

/// What the model remembers of a process, beside what it is.
#[derive(Clone, Default)]
struct Memory {
    start: u64,
    creator: Option<(u32, u64)>,
    inherited: Option<String>,
}

/// Sections, and what is remembered of processes.
#[derive(Default)]
pub(super) struct Model {
    pub(super) asked: Vec<Rule>,
    rules: Vec<Rule>,
    memory: BTreeMap<u32, Memory>,
}

fn units(group: &str) -> Vec<&str> {
    let mut names = group.split('/').filter(|name| !name.is_empty());
    let mut units = Vec::new();
    for name in names.by_ref() {
        units.push(name);
        if !name.ends_with(".slice") {
            break;
        }
    }
    units
}

pub(super) fn container(group: &str) -> Option<&str> {
    group.split_once("/docker-").map(|(_, rest)| &rest[..64])
}

fn fits(rule: &Rule, pid: u32, made: &Made) -> bool {
    let asked = &rule.settings;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end_matches('\0').replace('\0', " ");
    let program = made.executable.rsplit('/').next().unwrap();
    asked.pid.is_none_or(|asked| asked == pid && rule.start.is_none_or(|start| start == made.start))
        && asked.executable.as_ref().is_none_or(|file| *file == *made.executable)
        && asked.command.as_ref().is_none_or(|pattern| pattern.matches(text(&made.command).as_bytes()))
        && asked
            .process
            .as_ref()
            .is_none_or(|name| name.matches(&made.comm) || name.matches(program.as_bytes()))
        && asked.user.as_ref().is_none_or(|user| *user == made.user.to_string())
        && asked.unit.as_ref().is_none_or(|unit| units(&made.group).contains(&unit.as_str()))
        && asked.cgroup.as_ref().is_none_or(|path| std::path::Path::new(&made.group).starts_with(path))
        && asked
            .container
            .as_ref()
            .is_none_or(|id| container(&made.group).is_some_and(|all| all.starts_with(id)))
        && !asked.everything
}

/// The name of the target in a section that a process belongs to.
fn instance(rule: &Rule, made: &Made) -> String {
    let part = match rule.settings.each {
        None => None,
        Some(Each::Process) => Some(made.executable.rsplit('/').next().unwrap().to_owned()),
        Some(Each::Unit) => {
            units(&made.group).last().filter(|unit| !unit.ends_with(".slice")).map(|unit| (*unit).to_owned())
        }
        Some(Each::Container) => container(&made.group).map(|id| id[..12].to_owned()),
        Some(Each::Cgroup) => {
            Some(made.group.trim_matches('/').replace('/', ":")).filter(|path| !path.is_empty())
        }
        Some(Each::User) => unreachable!("names of users are the host's"),
        Some(Each::Pod | Each::Workload) => None, // no runtime has answered
    };
    part.map_or_else(|| rule.settings.name.clone(), |part| format!("{}:{part}", rule.settings.name))
}

impl Model {
    pub(super) fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.asked.iter().chain(&self.rules)
    }

    /// Everybody's target by name; long names as far as they are kept.
    pub(super) fn look(&mut self, host: &Host) -> BTreeMap<u32, String> {
        let living = |memory: &BTreeMap<u32, Memory>, pid: u32| memory.get(&pid).map(|known| known.start);
        self.memory.retain(|pid, known| host.all.get(pid).is_some_and(|made| made.start == known.start));
        let new: Vec<u32> = host.all.keys().copied().filter(|pid| !self.memory.contains_key(pid)).collect();
        for pid in &new {
            self.memory.insert(*pid, Memory { start: host.all[pid].start, ..Memory::default() });
        }
        for pid in new {
            let made = &host.all[&pid];
            let creator = living(&self.memory, made.parent).filter(|start| *start <= made.start);
            self.memory.get_mut(&pid).unwrap().creator = creator.map(|start| (made.parent, start));
        }
        let mut own: BTreeMap<u32, String> = BTreeMap::new();
        for (pid, made) in host.all.iter().filter(|(pid, made)| **pid != OWN && made.state != 'Z') {
            let rules = self.asked.iter_mut().chain(&mut self.rules);
            if let Some(rule) = rules.into_iter().find(|rule| fits(rule, *pid, made)) {
                rule.start = rule.settings.pid.map(|_| made.start);
                own.insert(*pid, instance(rule, made));
            }
        }
        let mut inherited: BTreeMap<u32, Option<String>> = BTreeMap::new();
        for pid in host.all.keys() {
            inherited.insert(*pid, self.inherited(*pid, host, &own));
        }
        for (pid, inherited) in inherited {
            self.memory.get_mut(&pid).unwrap().inherited = inherited;
        }
        let everything = self.rules().find(|rule| rule.settings.everything);
        let target = |(pid, made): (&u32, &Made)| {
            let fallback = || everything.map(|rule| instance(rule, made));
            let name =
                own.get(pid).cloned().or_else(|| self.memory[pid].inherited.clone()).or_else(fallback)?;
            Some((*pid, name))
        };
        let all = host.all.iter().filter(|(pid, made)| **pid != OWN && made.state != 'Z');
        all.filter_map(target).collect()
    }

    fn inherited(&self, pid: u32, host: &Host, own: &BTreeMap<u32, String>) -> Option<String> {
        if pid == OWN {
            return None;
        }
        let known = &self.memory[&pid];
        let creator = known.creator.filter(|(creator, start)| {
            host.all.get(creator).is_some_and(|made| made.start == *start && made.state != 'Z')
        });
        match creator {
            Some((creator, _)) => own.get(&creator).cloned().or_else(|| self.inherited(creator, host, own)),
            None => known.inherited.clone(),
        }
    }

    /// Targets of sections that are not there any more are forgotten.
    pub(super) fn forget(&mut self, kept: &BTreeSet<String>) {
        for known in self.memory.values_mut() {
            let section = |name: &String| kept.contains(name.split(':').next().unwrap());
            known.inherited = known.inherited.take().filter(section);
        }
    }

    pub(super) fn replace(&mut self, settings: &[TargetSettings]) {
        let old = std::mem::take(&mut self.rules);
        let rule = |settings: &TargetSettings| {
            let same = old.iter().find(|old| old.settings == *settings).cloned();
            same.unwrap_or_else(|| Rule { settings: settings.clone(), start: None })
        };
        self.rules = settings.iter().map(rule).collect();
        self.forget(&self.rules().map(|rule| rule.settings.name.clone()).collect());
    }
}
