//! Checks of rules for labels.

use super::targets::MAX_NAME;
use crate::RelabelAction;
use crate::daemon::relabel::{TARGET_NAME, is_readable_name};
use crate::daemon::{RelabelRules, RelabelSettings, TargetSettings};
use crate::problem::Log;

/// Most rules of a list: each has a regular expression, and all are applied to every target or window.
const MAX_RULES: usize = 64;
/// Most labels that a rule joins.
const MAX_SOURCES: usize = 16;

/// Says in `log` what is wrong with the rules at `path`, which may not set the labels in `own`.
pub(super) fn check(rules: &RelabelRules, path: &str, own: &[&str], log: &mut Log) {
    for (at, rule) in rules.rules().iter().enumerate() {
        let path = format!("{path}[{at}]");
        if at == MAX_RULES {
            log.wrong_key(&path, format!("at most {MAX_RULES} rules are supported; remove some"));
        }
        // Which keys it needs depends on what could not be read.
        if log.are_read(&[&path]) {
            Checked { rule, path, own, log }.all();
        }
    }
}

struct Checked<'a> {
    rule: &'a RelabelSettings,
    path: String,
    own: &'a [&'a str],
    log: &'a mut Log,
}

impl Checked<'_> {
    fn wrong(&mut self, key: &str, text: impl Into<String>) {
        self.log.wrong_key(&format!("{}.{key}", self.path), text);
    }

    fn all(mut self) {
        self.sources();
        self.target_label();
        self.texts();
        if self.rule.action.is_by_name() {
            self.only_names();
        }
    }

    fn sources(&mut self) {
        let RelabelSettings { action, source_labels, .. } = self.rule;
        let needs_sources = action.decides() || action.changes_case();
        if source_labels.is_empty() && needs_sources {
            let what = format!(
                "{action} needs labels to look at; write some such as source_labels = [\"k8s.namespace.name\"]"
            );
            self.wrong("source_labels", what);
        }
        if source_labels.len() > MAX_SOURCES {
            self.wrong("source_labels", format!("at most {MAX_SOURCES} labels are joined; remove some"));
        }
        for name in source_labels.iter().filter(|name| !is_readable_name(name)) {
            let what = format!("`{name}` is not a valid label name; write one such as k8s.namespace.name");
            self.wrong("source_labels", what);
        }
    }

    fn target_label(&mut self) {
        let RelabelSettings { action, target_label, .. } = self.rule;
        let sets = *action == RelabelAction::Replace || action.changes_case();
        if target_label.is_empty() && sets {
            let what = format!("{action} needs a label to set; write one such as target_label = \"service\"");
            self.wrong("target_label", what);
        } else if !target_label.is_empty() {
            let is_made = *action == RelabelAction::Replace && target_label.contains('$');
            self.made_name("target_label", target_label, is_made);
        }
    }

    /// A name that the rule gives to a label; `is_made` says that a match completes it.
    fn made_name(&mut self, key: &str, name: &str, is_made: bool) {
        if name == TARGET_NAME {
            self.wrong(key, format!("{TARGET_NAME} can be read but not set; write another label"));
        } else if self.own.contains(&name) {
            self.wrong(key, format!("the profiler gives the label {name} itself; choose another name"));
        } else if !is_made && !TargetSettings::is_label_name(name) {
            let what = format!(
                "`{name}` is not a valid label name; write one such as service, of at most {MAX_NAME} bytes"
            );
            self.wrong(key, what);
        }
    }

    fn texts(&mut self) {
        let RelabelSettings { action, separator, replacement, .. } = self.rule;
        for (key, text) in [("separator", separator), ("replacement", replacement)] {
            if text.len() > TargetSettings::MAX_LABEL || text.chars().any(char::is_control) {
                let most = TargetSettings::MAX_LABEL;
                self.wrong(key, format!("a label is one line of at most {most} bytes; shorten it"));
            }
        }
        if *action == RelabelAction::LabelMap {
            self.made_name("replacement", replacement, replacement.contains('$'));
        }
    }

    /// Keys that have no effect on an action that looks at names of labels.
    fn only_names(&mut self) {
        let (action, default) = (self.rule.action, RelabelSettings::default());
        let has_replacement =
            action != RelabelAction::LabelMap && self.rule.replacement != default.replacement;
        let keys = [
            ("source_labels", !self.rule.source_labels.is_empty()),
            ("separator", self.rule.separator != default.separator),
            ("target_label", !self.rule.target_label.is_empty()),
            ("replacement", has_replacement),
        ];
        for (key, _) in keys.into_iter().filter(|(_, is_written)| *is_written) {
            let what = format!("{action} looks at the names of labels, by regex alone; remove this key");
            self.wrong(key, what);
        }
    }
}
