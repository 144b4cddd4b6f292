//! Rules for labels, with the keys, defaults and effects of Prometheus' `relabel_config`
//! (<https://prometheus.io/docs/prometheus/latest/configuration/configuration/#relabel_config>).
//!
//! Labels have dots here (`k8s.pod.name`), so names are not held to Prometheus' alphabet.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use regex::{Regex, RegexBuilder};

use super::target::TargetSettings;
use crate::RelabelAction;
use crate::problem::Log;
use crate::section::{read_sections, section};
use crate::setting::{Setting, Value};
use crate::words::{PATTERN_BYTES, WordError};

/// Holds the name of the target. Rules read it, and none changes it.
pub(super) const TARGET_NAME: &str = "__target__";
/// Labels that begin so are removed after the last rule.
const TEMPORARY: &str = "__";
/// Most labels while rules are applied: each `labelmap` could double their number.
const MAX_LABELS: usize = 64;
/// Longest name of a label that rules read or make: `k8s.pod.label.` and the longest key of Kubernetes.
const MAX_NAME: usize = 14 + 253 + 1 + 63;
/// As Prometheus has it.
const DEFAULT_REGEX: &str = "(.*)";

section! {
    /// Rules for the labels of targets, as Prometheus' relabel_config: one section for each rule, applied in this order to
    /// every target that is found. A target that a rule drops is not profiled, and its processes belong to no other target.
    /// The label `__target__` holds the target's name; labels that begin with `__` are removed after the last rule.
    pub struct RelabelSettings {
        /// Labels: their texts are joined and matched. A label that is missing counts as empty.
        source_labels: Vec<String> = Vec::new(), such as "[\"k8s.namespace.name\", \"k8s.deployment.name\"]";
        /// What joins them.
        separator: String = ";".to_owned();
        /// Regular expression that has to match the whole text; for labelmap, labeldrop and labelkeep, the name of a label.
        regex: RelabelRegex = RelabelRegex::default();
        /// Label that replace, lowercase and uppercase set.
        target_label: String = String::new(), such as "\"service\"";
        /// Text that replace sets, or name that labelmap gives: $1 is the first group of the match. An empty text removes the
        /// label.
        replacement: String = "$1".to_owned();
        /// replace, keep, drop, labeldrop, labelkeep, labelmap, lowercase or uppercase.
        action: RelabelAction = RelabelAction::Replace;
    }
}

/// The regular expression of a rule. It matches whole texts.
#[derive(Clone, Debug)]
pub struct RelabelRegex {
    text: String,
    /// None matches nothing: a default that could not be compiled, which a test excludes.
    whole: Option<Regex>,
}

impl RelabelRegex {
    fn matches(&self, text: &str) -> bool {
        self.whole.as_ref().is_some_and(|whole| whole.is_match(text))
    }

    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl Default for RelabelRegex {
    fn default() -> Self {
        DEFAULT_REGEX.parse().unwrap_or_else(|_| Self { text: DEFAULT_REGEX.to_owned(), whole: None })
    }
}

impl FromStr for RelabelRegex {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        let compile = |pattern: &str| {
            let compiled = RegexBuilder::new(pattern).size_limit(PATTERN_BYTES).build();
            compiled.map_err(|error| WordError::pattern(text, &error))
        };
        compile(text)?; // alone: `a)(b` is none, and would be one within a group
        Ok(Self { whole: Some(compile(&format!("^(?s:{text})$"))?), text: text.to_owned() })
    }
}

impl fmt::Display for RelabelRegex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl PartialEq for RelabelRegex {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

/// Rules in the order in which they are applied.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RelabelRules(Vec<RelabelSettings>);

impl RelabelRules {
    /// Applies all rules to the labels of a target; whether it is kept. Once a rule drops it, no other is applied.
    #[must_use]
    pub fn apply(&self, target: &str, labels: &mut BTreeMap<String, String>) -> bool {
        self.apply_some(target, labels, |_| true)
    }

    /// Applies the rules that drop nothing.
    pub fn apply_to_labels(&self, target: &str, labels: &mut BTreeMap<String, String>) {
        self.apply_some(target, labels, |rule| !rule.action.decides());
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All labels that rules read.
    pub fn source_labels(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flat_map(|rule| rule.source_labels.iter().map(String::as_str))
    }

    /// The rules.
    pub(crate) fn rules(&self) -> &[RelabelSettings] {
        &self.0
    }

    fn apply_some(
        &self,
        target: &str,
        labels: &mut BTreeMap<String, String>,
        is_wanted: impl Fn(&RelabelSettings) -> bool,
    ) -> bool {
        let is_kept = self.0.iter().filter(|rule| is_wanted(rule)).all(|rule| rule.apply(target, labels));
        if !self.is_empty() {
            labels.retain(|name, _| !name.starts_with(TEMPORARY));
        }
        is_kept
    }
}

impl Setting for RelabelRules {
    fn read(value: &Value<'_>, key: &str, log: &mut Log) -> Option<Self> {
        read_sections(value, key, log).map(Self)
    }

    /// The default has none.
    fn write(&self) -> Option<String> {
        None
    }
}

impl RelabelSettings {
    /// Applies the rule; whether what has these labels is kept.
    fn apply(&self, target: &str, labels: &mut BTreeMap<String, String>) -> bool {
        match self.action {
            RelabelAction::Keep => return self.regex.matches(&self.source(target, labels)),
            RelabelAction::Drop => return !self.regex.matches(&self.source(target, labels)),
            RelabelAction::Replace => self.replace(target, labels),
            RelabelAction::Lowercase => {
                set(labels, &self.target_label, &self.source(target, labels).to_lowercase());
            }
            RelabelAction::Uppercase => {
                set(labels, &self.target_label, &self.source(target, labels).to_uppercase());
            }
            RelabelAction::LabelDrop => labels.retain(|name, _| !self.regex.matches(name)),
            RelabelAction::LabelKeep => labels.retain(|name, _| self.regex.matches(name)),
            RelabelAction::LabelMap => self.map_names(target, labels),
        }
        true
    }

    /// The texts of the source labels, joined.
    fn source(&self, target: &str, labels: &BTreeMap<String, String>) -> String {
        let text = |name: &String| match name.as_str() {
            TARGET_NAME => target,
            name => labels.get(name).map_or("", String::as_str),
        };
        let texts: Vec<&str> = self.source_labels.iter().map(text).collect();
        texts.join(&self.separator)
    }

    fn replace(&self, target: &str, labels: &mut BTreeMap<String, String>) {
        let source = self.source(target, labels);
        let Some(groups) = self.regex.whole.as_ref().and_then(|whole| whole.captures(&source)) else {
            return;
        };
        let (mut name, mut text) = (String::new(), String::new());
        groups.expand(&self.target_label, &mut name);
        groups.expand(&self.replacement, &mut text);
        set(labels, &name, &text);
    }

    fn map_names(&self, target: &str, labels: &mut BTreeMap<String, String>) {
        let Some(whole) = &self.regex.whole else { return };
        let mut mapped = Vec::new();
        let all = labels.iter().map(|(name, text)| (name.as_str(), text.as_str()));
        for (name, text) in all.chain([(TARGET_NAME, target)]) {
            if let Some(groups) = whole.captures(name) {
                let mut other = String::new();
                groups.expand(&self.replacement, &mut other);
                mapped.push((other, text.to_owned()));
            }
        }
        mapped.iter().for_each(|(name, text)| set(labels, name, text));
    }
}

impl RelabelAction {
    /// Whether it decides about what has the labels, and not about these.
    pub(super) fn decides(self) -> bool {
        matches!(self, Self::Keep | Self::Drop)
    }

    /// Whether it sets a label to its sources in another case.
    pub(super) fn changes_case(self) -> bool {
        matches!(self, Self::Lowercase | Self::Uppercase)
    }

    /// Whether it looks at the names of labels, and not at their texts.
    pub(super) fn is_by_name(self) -> bool {
        matches!(self, Self::LabelDrop | Self::LabelKeep | Self::LabelMap)
    }
}

/// Sets a label; an empty text removes it. A name that a match made may be none, and is left out.
fn set(labels: &mut BTreeMap<String, String>, name: &str, text: &str) {
    if !is_readable_name(name) || name == TARGET_NAME {
        return;
    }
    if text.is_empty() {
        labels.remove(name);
    } else if labels.len() < MAX_LABELS || labels.contains_key(name) {
        labels.insert(name.to_owned(), TargetSettings::label_text(text));
    }
}

/// Whether labels can have this name.
pub(super) fn is_readable_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= MAX_NAME && name.bytes().all(|byte| byte.is_ascii_graphic())
}
