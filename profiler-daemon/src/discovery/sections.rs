//! Which section a process matches itself. Sections are indexed by what they select, so a process costs as
//! much with two thousand of them as with two.

use std::path::Path;
use std::sync::Arc;

use config::{Each, Pattern, Patterns, TargetSettings};
use rustc_hash::FxHashMap;

use super::naming::Users;
use super::process::Subject;
use super::shared::group_path;
use super::table::{SectionId, TargetId};
use crate::cgroup::Cgroup;

/// Digits of a container's id by which sections are found.
const INDEXED_DIGITS: usize = 12;

/// What the settings of a target refer to, looked up: that may take long where users or files are on other hosts, so no loop waits for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LookedUp {
    /// The files that processes may run: as written, and where links lead.
    executables: Vec<Box<[u8]>>,
    user: Option<u32>,
}

impl LookedUp {
    /// Looks up what this target refers to.
    pub(crate) fn of(settings: &TargetSettings) -> Self {
        let executables =
            settings.executable.iter().flat_map(|path| [Some(path.clone()), path.canonicalize().ok()]);
        let mut executables: Vec<Box<[u8]>> =
            executables.flatten().map(|path| path.as_os_str().as_encoded_bytes().into()).collect();
        executables.dedup();
        Self { executables, user: settings.user.as_deref().and_then(Users::number) }
    }

    /// The same for several targets.
    pub(crate) fn of_all(targets: &[TargetSettings]) -> Vec<Self> {
        targets.iter().map(Self::of).collect()
    }
}

/// A section that is in force.
#[derive(Debug)]
pub(super) struct TargetSection {
    pub(super) id: SectionId,
    pub(super) settings: Arc<TargetSettings>,
    /// Its target for processes without an instance of `each`.
    pub(super) own: TargetId,
    /// Requested while running, not from the file.
    pub(super) is_asked: bool,
    /// Start time of the process with the selected id: a later process with the same id does not match.
    pub(super) start: Option<u64>,
    looked_up: LookedUp,
    container: Option<String>,
    cgroup: Option<String>,
}

impl TargetSection {
    pub(super) fn new(
        id: SectionId,
        (settings, looked_up): (Arc<TargetSettings>, LookedUp),
        own: TargetId,
        is_asked: bool,
    ) -> Self {
        let container = settings.container.as_ref().map(|id| id.to_ascii_lowercase());
        let cgroup = settings.cgroup.as_deref().map(group_path);
        Self { id, settings, own, is_asked, start: None, looked_up, container, cgroup }
    }

    /// Whether it has this name and selects these processes; budgets, labels and replicas may differ.
    pub(super) fn asks_for_the_same(&self, other: &TargetSettings) -> bool {
        let asked = |settings: &TargetSettings| {
            let TargetSettings { budget, horizon, labels, replicas, .. } = TargetSettings::default();
            TargetSettings { budget, horizon, labels, replicas, ..settings.clone() }
        };
        asked(&self.settings) == asked(other)
    }

    /// Whether the control groups of processes matter to it.
    pub(super) fn asks_for_groups(&self) -> bool {
        let asked = &*self.settings;
        let by_each = matches!(asked.each, Some(Each::Unit | Each::Container | Each::Cgroup));
        by_each
            || asked.needs_runtimes()
            || asked.unit.is_some()
            || asked.cgroup.is_some()
            || asked.container.is_some()
    }

    /// Why no process matches it, if known.
    pub(super) fn problem(&self) -> Option<String> {
        let user = self.settings.user.as_ref().filter(|_| self.looked_up.user.is_none())?;
        Some(format!(
            "target {}: there is no user {user} here, so that no process fits; make one, then reload",
            self.settings.name
        ))
    }

    /// What such a section selects that does not exist at present, so that no process matches.
    pub(super) fn missing(asked: &TargetSettings) -> Vec<String> {
        let mut missing = Vec::new();
        let mut say = |what: String| {
            missing.push(format!("target {}: {what}, so that no process fits at present", asked.name));
        };
        if let Some(user) = asked.user.as_ref().filter(|user| Users::number(user).is_none()) {
            say(format!("there is no user {user} here"));
        }
        if let Some(file) = asked.executable.as_ref().filter(|file| !file.exists()) {
            say(format!("there is no file {}", file.display()));
        }
        if let Some(error) = asked.cgroup.as_ref().and_then(|group| Cgroup::find(group).err()) {
            say(format!("its control group cannot be found ({error})"));
        }
        if let Some(pid) = asked.pid.filter(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            say(format!("there is no process {pid}"));
        }
        missing
    }

    /// Whether a process matches every key of the section.
    fn fits(&self, subject: &mut Subject<'_>) -> bool {
        let asked = &*self.settings;
        let pid = asked.pid.is_none_or(|pid| {
            subject.pid == pid && self.start.is_none_or(|start| start == subject.stat.start)
        });
        pid && self.container.as_ref().is_none_or(|id| in_container(subject, id))
            && asked.unit.as_ref().is_none_or(|unit| in_unit(subject, unit))
            && self.cgroup.as_ref().is_none_or(|path| in_group(subject, path))
            && (!asked.needs_runtimes() || is_named(subject, asked))
            && (asked.executable.is_none() || self.runs(subject))
            && (asked.user.is_none() || self.looked_up.user.is_some_and(|user| subject.user() == Some(user)))
            && asked.process.as_ref().is_none_or(|pattern| is_called(subject, pattern))
            && asked.command.as_ref().is_none_or(|pattern| pattern.matches(subject.command()))
    }

    fn runs(&self, subject: &mut Subject<'_>) -> bool {
        let file = subject.executable();
        file.is_some_and(|file| self.looked_up.executables.iter().any(|asked| **asked == *file))
    }
}

fn in_container(subject: &mut Subject<'_>, id: &str) -> bool {
    let container = subject.place().and_then(|place| place.container.as_ref());
    container.is_some_and(|container| container.name.starts_with(id))
}

/// Whether its container matches the section, according to runtimes.
fn is_named(subject: &mut Subject<'_>, asked: &TargetSettings) -> bool {
    let (container, pod) = (subject.container(), subject.pod());
    let matches = |pattern: &Option<Pattern>, text: Option<&str>| {
        pattern.as_ref().is_none_or(|pattern| text.is_some_and(|text| pattern.matches(text.as_bytes())))
    };
    let has = |(key, text): (&String, &String)| pod.is_some_and(|pod| pod.labels.get(key) == Some(text));
    matches(&asked.container_name, container.and_then(|container| container.name.as_deref()))
        && matches(&asked.image, container.and_then(|container| container.image.as_deref()))
        && matches(&asked.namespace, pod.map(|pod| pod.namespace.as_str()))
        && matches(&asked.pod, pod.map(|pod| pod.name.as_str()))
        && asked.pod_labels.iter().all(has)
}

fn in_unit(subject: &mut Subject<'_>, unit: &str) -> bool {
    subject.place().is_some_and(|place| place.units.iter().any(|outer| *outer.name == *unit))
}

fn in_group(subject: &mut Subject<'_>, path: &str) -> bool {
    subject.place().is_some_and(|place| {
        let below = if path.is_empty() { Some(&*place.path) } else { place.path.strip_prefix(path) };
        below.is_some_and(|below| below.is_empty() || below.starts_with('/'))
    })
}

fn is_called(subject: &mut Subject<'_>, pattern: &Pattern) -> bool {
    pattern.matches(&subject.stat.comm) || subject.program().is_some_and(|program| pattern.matches(program))
}

/// Sections indexed by a value that they select, in their order.
#[derive(Debug)]
struct SectionIndex<K> {
    by: FxHashMap<K, Vec<usize>>,
    first: usize,
}

impl<K: Eq + std::hash::Hash> SectionIndex<K> {
    fn new() -> Self {
        Self { by: FxHashMap::default(), first: usize::MAX }
    }

    fn insert(&mut self, key: K, at: usize) {
        self.first = self.first.min(at);
        self.by.entry(key).or_default().push(at);
    }

    fn get<Q>(&self, key: &Q) -> &[usize]
    where
        K: std::borrow::Borrow<Q>,
        Q: Eq + std::hash::Hash + ?Sized,
    {
        self.by.get(key).map_or(&[], Vec::as_slice)
    }
}

/// Sections by a pattern.
#[derive(Debug)]
struct PatternIndex {
    patterns: Patterns,
    sections: Vec<usize>,
}

impl PatternIndex {
    fn new(found: Vec<(Pattern, usize)>) -> Self {
        let (patterns, sections): (Vec<Pattern>, Vec<usize>) = found.into_iter().unzip();
        Self { patterns: Patterns::new(patterns), sections }
    }

    fn first(&self) -> usize {
        self.sections.first().copied().unwrap_or(usize::MAX)
    }

    fn matching(&self, text: &[u8]) -> impl Iterator<Item = usize> {
        self.patterns.matching(text).into_iter().map(|at| self.sections[at])
    }
}

/// All sections but `everything`, each indexed by its most selective key.
#[derive(Debug)]
pub(super) struct Finder {
    pid: SectionIndex<u32>,
    container: SectionIndex<String>,
    unit: SectionIndex<String>,
    cgroup: SectionIndex<String>,
    pod_label: SectionIndex<(String, String)>,
    pod: PatternIndex,
    container_name: PatternIndex,
    image: PatternIndex,
    namespace: PatternIndex,
    executable: SectionIndex<Box<[u8]>>,
    user: SectionIndex<u32>,
    process: PatternIndex,
    command: PatternIndex,
    /// The section for all other processes.
    pub(super) everything: Option<usize>,
}

impl Finder {
    pub(super) fn new(sections: &[TargetSection]) -> Self {
        let (mut pid, mut user) = (SectionIndex::new(), SectionIndex::new());
        let [mut container, mut unit, mut cgroup] =
            [SectionIndex::new(), SectionIndex::new(), SectionIndex::new()];
        let (mut executable, mut process, mut command) = (SectionIndex::new(), Vec::new(), Vec::new());
        let (mut pod_label, [mut pod, mut container_name, mut image, mut namespace]) =
            (SectionIndex::new(), [const { Vec::new() }; 4]);
        for (at, section) in sections.iter().enumerate().filter(|(_, section)| !section.settings.everything) {
            let asked = &*section.settings;
            if let Some(asked) = asked.pid {
                pid.insert(asked, at);
            } else if let Some(id) = &section.container {
                container.insert(id.chars().take(INDEXED_DIGITS).collect(), at);
            } else if let Some(asked) = &asked.unit {
                unit.insert(asked.clone(), at);
            } else if let Some(path) = &section.cgroup {
                cgroup.insert(if path.is_empty() { "/".to_owned() } else { path.clone() }, at);
            } else if let Some((key, text)) = asked.pod_labels.first_key_value() {
                pod_label.insert((key.clone(), text.clone()), at);
            } else if let Some(pattern) = &asked.pod {
                pod.push((pattern.clone(), at));
            } else if let Some(pattern) = &asked.container_name {
                container_name.push((pattern.clone(), at));
            } else if let Some(pattern) = &asked.image {
                image.push((pattern.clone(), at));
            } else if let Some(pattern) = &asked.namespace {
                namespace.push((pattern.clone(), at));
            } else if asked.executable.is_some() {
                section.looked_up.executables.iter().for_each(|file| executable.insert(file.clone(), at));
            } else if asked.user.is_some() {
                section.looked_up.user.into_iter().for_each(|number| user.insert(number, at));
            } else if let Some(pattern) = &asked.process {
                process.push((pattern.clone(), at));
            } else if let Some(pattern) = &asked.command {
                command.push((pattern.clone(), at));
            }
        }
        Self {
            pid,
            container,
            unit,
            cgroup,
            pod_label,
            pod: PatternIndex::new(pod),
            container_name: PatternIndex::new(container_name),
            image: PatternIndex::new(image),
            namespace: PatternIndex::new(namespace),
            executable,
            user,
            process: PatternIndex::new(process),
            command: PatternIndex::new(command),
            everything: sections.iter().position(|section| section.settings.everything),
        }
    }

    /// The first section that a process matches.
    pub(super) fn first_fit(&self, sections: &[TargetSection], subject: &mut Subject<'_>) -> Option<usize> {
        let mut best = Best { sections, at: usize::MAX };
        best.try_all(subject, self.pid.get(&subject.pid).to_vec());
        if self.container.first < best.at {
            let found = self.of_container(subject);
            best.try_all(subject, found);
        }
        if self.unit.first.min(self.cgroup.first) < best.at {
            let found = self.of_groups(subject);
            best.try_all(subject, found);
        }
        if self.first_named() < best.at {
            let found = self.of_names_of_container(subject);
            best.try_all(subject, found);
        }
        if self.executable.first < best.at {
            let found = subject.executable().map_or(&[][..], |file| self.executable.get(file)).to_vec();
            best.try_all(subject, found);
        }
        if self.user.first < best.at {
            let found = subject.user().map_or(&[][..], |user| self.user.get(&user)).to_vec();
            best.try_all(subject, found);
        }
        if self.process.first() < best.at {
            let found = self.of_names(subject);
            best.try_all(subject, found);
        }
        if self.command.first() < best.at {
            let found = self.command.matching(subject.command()).collect();
            best.try_all(subject, found);
        }
        Some(best.at).filter(|at| *at < sections.len())
    }

    fn of_container(&self, subject: &mut Subject<'_>) -> Vec<usize> {
        let container = subject.place().and_then(|place| place.container.as_ref());
        let digits = container.and_then(|container| container.name.get(..INDEXED_DIGITS));
        digits.map_or_else(Vec::new, |digits| self.container.get(digits).to_vec())
    }

    /// The first section that matches by container names.
    fn first_named(&self) -> usize {
        let patterns = [&self.pod, &self.container_name, &self.image, &self.namespace];
        patterns.iter().map(|patterns| patterns.first()).fold(self.pod_label.first, usize::min)
    }

    fn of_names_of_container(&self, subject: &mut Subject<'_>) -> Vec<usize> {
        let Some(container) = subject.container() else { return Vec::new() };
        let mut found = Vec::new();
        let mut add = |patterns: &PatternIndex, text: Option<&str>| {
            found.extend(text.into_iter().flat_map(|text| patterns.matching(text.as_bytes())));
        };
        add(&self.container_name, container.name.as_deref());
        add(&self.image, container.image.as_deref());
        if let Some(pod) = &container.pod {
            add(&self.pod, Some(&pod.name));
            add(&self.namespace, Some(&pod.namespace));
            let labels = pod.labels.iter().map(|(key, text)| (key.clone(), text.clone()));
            found.extend(labels.flat_map(|pair| self.pod_label.get(&pair)));
        }
        found
    }

    fn of_groups(&self, subject: &mut Subject<'_>) -> Vec<usize> {
        let Some(id) = subject.place_id() else { return Vec::new() };
        let units = subject.places.get(id).into_iter().flat_map(|place| &place.units);
        let units = units.flat_map(|unit| self.unit.get(&*unit.name));
        let groups = subject.places.upward(id).flat_map(|(_, place)| self.cgroup.get(&*place.path));
        units.chain(groups).copied().collect()
    }

    fn of_names(&self, subject: &mut Subject<'_>) -> Vec<usize> {
        let mut found: Vec<usize> = self.process.matching(&subject.stat.comm).collect();
        if let Some(program) = subject.program() {
            found.extend(self.process.matching(program));
        }
        found
    }
}

/// The first section so far.
struct Best<'s> {
    sections: &'s [TargetSection],
    at: usize,
}

impl Best<'_> {
    fn try_all(&mut self, subject: &mut Subject<'_>, mut found: Vec<usize>) {
        found.sort_unstable();
        let better = found.into_iter().take_while(|at| *at < self.at);
        let fitting = better.into_iter().find(|at| self.sections[*at].fits(subject));
        self.at = fitting.unwrap_or(self.at);
    }
}
