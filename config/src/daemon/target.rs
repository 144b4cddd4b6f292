//! What is watched.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::section::section;
use crate::{Pattern, Ratio, Span};

section! {
    /// What is watched: one section for each target. All that is written of pid, executable, command, process, user, unit,
    /// cgroup and container has to hold for a process to belong to it, and its children belong to it too. A process that
    /// fits several targets belongs to the first. Without any target, everything is watched; `target = []` above all
    /// sections watches nothing until it is asked to. Of the values below, those of a real target are needed alone.
    pub struct TargetSettings {
        /// What the target is called in profiles and metrics: letters, digits, and - . _ @ : within.
        name: String = String::new(), such as "\"web\"";
        /// The process with this id.
        pid: Option<u32> = None, such as "4711";
        /// Processes that run this file.
        executable: Option<PathBuf> = None, such as "\"/usr/sbin/nginx\"";
        /// Processes whose command line, its words parted by blanks, matches this regular expression.
        command: Option<Pattern> = None, such as "\"^/usr/bin/python3 .*serve\"";
        /// Processes whose name, or whose program's file name, matches this regular expression.
        process: Option<Pattern> = None, such as "\"^nginx$\"";
        /// Processes of this user: a name or a number.
        user: Option<String> = None, such as "\"www-data\"";
        /// Processes of this systemd unit.
        unit: Option<String> = None, such as "\"nginx.service\"";
        /// Processes in this control group (cgroup v2) and below.
        cgroup: Option<PathBuf> = None, such as "\"/system.slice/nginx.service\"";
        /// Processes of the container whose id begins with these digits, at least 12.
        container: Option<String> = None, such as "\"3f4e5d6c7b8a\"";
        /// Every process that fits no target above.
        everything: bool = false;
        /// Share of the target's CPU time that profiling may cost, in place of `budget.target`.
        budget: Option<Ratio> = None, such as "\"0.5%\"";
        /// CPU time that one profile sums up, in place of `sampling.horizon`.
        horizon: Option<Span> = None, such as "\"120s\"";
        /// Labels of its profiles and metrics.
        labels: BTreeMap<String, String> = BTreeMap::new(), such as "{ team = \"search\" }";
    }
}

impl TargetSettings {
    /// Every process of the host.
    pub(crate) fn everything() -> Self {
        Self { name: "everything".to_owned(), everything: true, ..Self::default() }
    }

    /// What a process has to be, in words: `unit nginx.service and user www-data`.
    pub fn in_words(&self) -> String {
        let mut words = Vec::new();
        let mut add =
            |kind: &str, value: Option<String>| words.extend(value.map(|value| format!("{kind} {value}")));
        add("pid", self.pid.map(|pid| pid.to_string()));
        add("executable", self.executable.as_ref().map(|path| path.display().to_string()));
        add("command", self.command.as_ref().map(|pattern| format!("`{pattern}`")));
        add("process", self.process.as_ref().map(|pattern| format!("`{pattern}`")));
        add("user", self.user.clone());
        add("unit", self.unit.clone());
        add("cgroup", self.cgroup.as_ref().map(|path| path.display().to_string()));
        add("container", self.container.clone());
        if self.everything {
            words.push("everything".to_owned());
        }
        words.join(" and ")
    }
}
