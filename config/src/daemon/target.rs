//! What is watched.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::section::section;
use crate::{Each, Pattern, Ratio, Span};

section! {
    /// What to profile: one section for each target, or for a family of targets. A process belongs to a
    /// target if it matches every key that is set of pid, executable, command, process, user, unit, cgroup,
    /// container, container_name, image, namespace, pod and pod_labels; its children belong to it too. A
    /// process that matches several targets belongs to the first. Without any target, everything is profiled;
    /// `target = []` above all sections profiles nothing until a request adds a target. Only set the keys
    /// your target needs.
    pub struct TargetSettings {
        /// What the target is called in profiles and metrics: letters, digits, and - . _ @ : within.
        name: String = String::new(), such as "\"web\"";
        /// The process with this id.
        pid: Option<u32> = None, such as "4711";
        /// Processes that run this file.
        executable: Option<PathBuf> = None, such as "\"/usr/sbin/nginx\"";
        /// Processes whose command line, its words separated by blanks, matches this regular expression.
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
        /// Processes of containers whose name matches this regular expression. This and the next four need a
        /// container runtime.
        container_name: Option<Pattern> = None, such as "\"^nginx$\"";
        /// Processes of containers whose image matches this regular expression.
        image: Option<Pattern> = None, such as "\"/nginx:\"";
        /// Processes of Kubernetes pods whose namespace matches this regular expression.
        namespace: Option<Pattern> = None, such as "\"^shop$\"";
        /// Processes of Kubernetes pods whose name matches this regular expression.
        pod: Option<Pattern> = None, such as "\"^cart-\"";
        /// Processes of Kubernetes pods that have all of these labels.
        pod_labels: BTreeMap<String, String> = BTreeMap::new(), such as "{ app = \"cart\" }";
        /// Every process that fits no target above.
        everything: bool = false;
        /// Makes one target for each process (by program name), unit, container, pod, workload (the
        /// deployment or the like that the pod belongs to), cgroup or user among these processes. Its name is
        /// the name above, a colon and, for example, the name of the unit. Processes without one belong to
        /// the target above. Without this key, all of them are one target.
        each: Option<Each> = None, such as "\"unit\"";
        /// Bound on the slowdown of this target, instead of `budget.target`.
        budget: Option<Ratio> = None, such as "\"0.5%\"";
        /// CPU time that one profile covers, instead of `sampling.horizon`.
        horizon: Option<Span> = None, such as "\"120s\"";
        /// CPU time that all hosts together use for this service over what this host uses, in place of what `[fleet]` finds out.
        replicas: Option<u32> = None, such as "12";
        /// Labels of its profiles and metrics.
        labels: BTreeMap<String, String> = BTreeMap::new(), such as "{ team = \"search\" }";
    }
}

impl TargetSettings {
    /// Longest name (characters, which are bytes).
    pub const MAX_NAME: usize = 64;
    /// The longest of a section with `each`: its targets' own names need room too.
    pub const MAX_FAMILY_NAME: usize = 40;
    /// Longest text of a label (bytes).
    pub const MAX_LABEL: usize = 256;

    /// Whether a name may hold this character; it begins with a letter or digit.
    pub fn is_name_character(c: char) -> bool {
        c.is_ascii_alphanumeric() || "-._@:".contains(c)
    }

    /// Whether a label can be called so in the settings.
    pub(crate) fn is_label_name(name: &str) -> bool {
        !name.is_empty() && name.len() <= Self::MAX_NAME && name.bytes().all(|byte| byte.is_ascii_graphic())
    }

    /// A text as a label can hold it: one line, and not too long.
    pub fn label_text(text: &str) -> String {
        const CUT: &str = "…";
        let visible = |c: char| if c.is_control() { '\u{fffd}' } else { c };
        let mut label: String = text.chars().map(visible).collect();
        if label.len() > Self::MAX_LABEL {
            let most = Self::MAX_LABEL - CUT.len();
            let end = (0..=most).rev().find(|&end| label.is_char_boundary(end)).unwrap_or(0);
            label.truncate(end);
            label.push_str(CUT);
        }
        label
    }

    /// The patterns over what container runtimes say, by what they are of.
    fn runtime_patterns(&self) -> [(&'static str, Option<&Pattern>); 4] {
        [
            ("container name", self.container_name.as_ref()),
            ("image", self.image.as_ref()),
            ("namespace", self.namespace.as_ref()),
            ("pod", self.pod.as_ref()),
        ]
    }

    /// Whether which processes these are depends on what container runtimes say.
    pub fn needs_runtimes(&self) -> bool {
        let selects = self.runtime_patterns().iter().any(|(_, pattern)| pattern.is_some());
        selects || !self.pod_labels.is_empty() || matches!(self.each, Some(Each::Pod | Each::Workload))
    }

    /// Every process of the host.
    pub(crate) fn everything() -> Self {
        Self { name: "everything".to_owned(), everything: true, ..Self::default() }
    }

    /// What a process has to be, in words: `unit nginx.service and user www-data`; with `each`, `everything, each unit by
    /// itself`.
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
        for (kind, pattern) in self.runtime_patterns() {
            add(kind, pattern.map(|pattern| format!("`{pattern}`")));
        }
        for (key, value) in &self.pod_labels {
            add("pod label", Some(format!("{key}={value}")));
        }
        if self.everything {
            words.push("everything".to_owned());
        }
        let each = self.each.map(|each| format!(", each {each} separately")).unwrap_or_default();
        words.join(" and ") + &each
    }
}
