//! Checks of targets.

use std::collections::BTreeMap;
use std::path::Component;

use super::{MAX_LABEL_NAME, NO_POD_LABEL, absolute, check_budget, is_pod_label};
use crate::daemon::{DaemonSettings, TargetSettings};
use crate::problem::Log;
use crate::sampling::InvalidSetting;
use crate::{Each, SamplingSettings};

/// Longest name of a target, and of a label.
pub(super) const MAX_NAME: usize = TargetSettings::MAX_NAME;
/// Longest text of a label.
const MAX_TEXT: usize = TargetSettings::MAX_LABEL;
/// Most replicas: the rate of each would be a hundredth of that of one alone.
const MAX_REPLICAS: u32 = 1_000_000;
/// Most labels of a target: each is in every series of metrics.
const MAX_LABELS: usize = 16;
/// Labels of samples and profiles that the profiler gives itself.
pub(super) const OWN_LABELS: [&str; 5] = ["pid", "comm", "outcome", "target", "host"];
/// Labels of targets that it gives: rules may change them.
const FOUND_LABELS: [&str; 3] = ["unit", "cgroup", "container"];

/// Says in `log` what is wrong with the targets.
pub(in crate::daemon) fn check(settings: &DaemonSettings, log: &mut Log) {
    let mut names: BTreeMap<&str, usize> = BTreeMap::new();
    for (at, target) in settings.targets.iter().enumerate() {
        let path = format!("target[{at}]");
        if let Some(first) = names.insert(&target.name, at).filter(|_| !target.name.is_empty()) {
            let text = format!("target[{first}] is called `{}` too; give each its own name", target.name);
            log.wrong_key(&format!("{path}.name"), text);
        }
        Checked { target, path, log }.all();
    }
    let everything = settings.targets.iter().position(|target| target.everything);
    if let Some(at) = everything.filter(|at| at + 1 < settings.targets.len()) {
        let text = "this target takes every process, and none is left for those below; write it last";
        log.wrong_key(&format!("target[{at}].everything"), text);
    }
}

/// Whether a target or an export can have this name.
pub(super) fn is_name(name: &str) -> bool {
    let first = name.chars().next().is_some_and(|c| c.is_ascii_alphanumeric());
    first && name.len() <= MAX_NAME && name.chars().all(TargetSettings::is_name_character)
}

struct Checked<'a> {
    target: &'a TargetSettings,
    path: String,
    log: &'a mut Log,
}

impl Checked<'_> {
    fn wrong(&mut self, key: &str, text: impl Into<String>) {
        self.log.wrong_key(&format!("{}.{key}", self.path), text);
    }

    fn all(mut self) {
        self.name();
        self.selection();
        self.places();
        self.pod_labels();
        self.amounts();
        self.labels();
    }

    fn name(&mut self) {
        let name = &self.target.name;
        if name.is_empty() && !self.log.are_read(&[&format!("{}.name", self.path)]) {
            // What it is called is told to be wrong already.
        } else if name.is_empty() {
            self.wrong("name", "a target needs a name; write one such as name = \"web\"");
        } else if !is_name(name) {
            let text = format!(
                "`{name}` is not a valid name: write at most {MAX_NAME} letters, digits and - . _ @ :, beginning with a letter \
                 or digit"
            );
            self.wrong("name", text);
        } else if self.target.each.is_some() && name.len() > TargetSettings::MAX_FAMILY_NAME {
            let most = TargetSettings::MAX_FAMILY_NAME;
            self.wrong(
                "name",
                format!("with each, at most {most} characters leave room for what follows; shorten it"),
            );
        }
    }

    fn selection(&mut self) {
        let others = TargetSettings { everything: false, each: None, ..self.target.clone() }.in_words();
        match (self.target.everything, others.is_empty()) {
            // A key that is misspelled, or whose value is wrong, may be the one that says it.
            (false, true) if !self.log.are_read(&[&self.path]) => {}
            (false, true) => self.wrong(
                "name",
                "nothing says which processes these are; write one of pid, executable, command, process, user, unit, \
                 cgroup, container, container_name, image, namespace, pod, pod_labels or everything = true",
            ),
            (true, false) => {
                self.wrong("everything", format!("this contradicts {others}; remove one of them"));
            }
            _ => {}
        }
        let is_one = match self.target.each {
            Some(Each::Container) => self.target.container.is_some(),
            Some(Each::User) => self.target.user.is_some(),
            _ => false, // a unit may hold others: a slice, or a user's manager
        };
        if let Some(each) = self.target.each.filter(|_| is_one) {
            self.wrong("each", format!("these processes are of one {each} already; remove each, or {each}"));
        }
        if self.target.pid == Some(0) {
            self.wrong("pid", "0 is not a process id; `pgrep NAME` lists those of a program");
        }
    }

    fn places(&mut self) {
        let target = self.target;
        if let Some(path) = &target.executable {
            absolute(&format!("{}.executable", self.path), path, self.log);
        }
        if let Some(path) = &target.cgroup
            && (!path.is_absolute() || path.components().any(|part| part == Component::ParentDir))
        {
            let text = "a control group is a path from the root of them, such as /system.slice/nginx.service";
            self.wrong("cgroup", text);
        } else if target.cgroup.as_ref().is_some_and(|path| path.starts_with("/sys/fs/cgroup")) {
            self.wrong("cgroup", "this is a folder's full path; write only the part after /sys/fs/cgroup");
        }
        if let Some(unit) = &target.unit
            && (!unit.contains('.') || unit.contains(|c: char| c == '/' || c.is_whitespace()))
        {
            self.wrong("unit", format!("`{unit}` is not a valid unit name; write one such as nginx.service"));
        }
        if let Some(id) = &target.container
            && (!(12..=64).contains(&id.len()) || !id.bytes().all(|digit| digit.is_ascii_hexdigit()))
        {
            self.wrong(
                "container",
                format!("`{id}` is not a container id; write 12 to 64 hexadecimal digits of it"),
            );
        }
        if let Some(user) = &target.user
            && (user.is_empty() || user.contains(|c: char| c.is_whitespace() || c == ':' || c == '/'))
        {
            self.wrong("user", format!("`{user}` is not a valid user; write a name or a number"));
        }
    }

    fn pod_labels(&mut self) {
        let labels = &self.target.pod_labels;
        if labels.len() > MAX_LABELS {
            self.wrong("pod_labels", format!("at most {MAX_LABELS} labels select pods; remove some"));
        }
        for (key, text) in labels {
            if !is_pod_label(key) {
                self.wrong("pod_labels", NO_POD_LABEL.replace("{}", &key.escape_debug().to_string()));
            } else if text.len() > MAX_LABEL_NAME || text.chars().any(char::is_control) {
                let what = format!("a pod's label has at most {MAX_LABEL_NAME} characters; shorten it");
                self.wrong(&format!("pod_labels.{key}"), what);
            }
        }
    }

    fn amounts(&mut self) {
        if let Some(budget) = self.target.budget {
            check_budget(&format!("{}.budget", self.path), budget, self.log);
        }
        if let Some(horizon) = self.target.horizon {
            let how = SamplingSettings { horizon: Some(horizon), ..SamplingSettings::default() };
            if how.problems().any(|problem| matches!(problem, InvalidSetting::Horizon(_))) {
                self.wrong("horizon", InvalidSetting::Horizon(horizon).to_string());
            }
        }
        if self.target.replicas.is_some_and(|replicas| !(1..=MAX_REPLICAS).contains(&replicas)) {
            self.wrong("replicas", format!("this host is one of them; write 1 to {MAX_REPLICAS}"));
        }
    }

    fn labels(&mut self) {
        let labels = &self.target.labels;
        if labels.len() > MAX_LABELS {
            self.wrong("labels", format!("a target has at most {MAX_LABELS} labels; remove some"));
        }
        for (name, text) in labels {
            let first = name.chars().next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
            let rest = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            let key = format!("labels.{name}");
            if !first || !rest || name.len() > MAX_NAME {
                self.wrong(
                    "labels",
                    format!("`{name}` is not a valid label name; write letters, digits and _ such as team"),
                );
            } else if OWN_LABELS.contains(&name.as_str()) || FOUND_LABELS.contains(&name.as_str()) {
                self.wrong(&key, format!("the profiler gives the label {name} itself; choose another name"));
            } else if text.len() > MAX_TEXT || text.chars().any(char::is_control) {
                self.wrong(&key, format!("a label is one line of at most {MAX_TEXT} bytes; shorten it"));
            }
        }
    }
}
