//! Checks of exports. Files and addresses are checked where they are used. No message shows a header's value.

use std::collections::BTreeMap;

use super::targets::{MAX_NAME, is_name};
use super::{absolute, relabel};
use crate::Span;
use crate::daemon::{DaemonSettings, ExportSettings, TargetSettings};
use crate::problem::Log;

/// Most exports: each has a thread.
const MAX_EXPORTS: usize = 16;

/// Says in `log` what is wrong with the exports.
pub(super) fn check(settings: &DaemonSettings, log: &mut Log) {
    let mut names: BTreeMap<&str, usize> = BTreeMap::new();
    for (at, export) in settings.exports.iter().enumerate() {
        let path = format!("export[{at}]");
        if at == MAX_EXPORTS {
            log.wrong_key(&path, format!("at most {MAX_EXPORTS} exports are supported; remove some"));
        }
        if let Some(first) = names.insert(&export.name, at).filter(|_| !export.name.is_empty()) {
            let text = format!("export[{first}] is called `{}` too; give each its own name", export.name);
            log.wrong_key(&format!("{path}.name"), text);
        }
        one(export, &path, log);
    }
}

fn one(export: &ExportSettings, path: &str, log: &mut Log) {
    name(&export.name, path, log);
    address(&export.to, path, log);
    for (key, file) in [("token_file", &export.token_file), ("ca_file", &export.ca_file)] {
        if let Some(file) = file {
            absolute(&format!("{path}.{key}"), file, log);
        }
    }
    if !(Span::from_secs(1)..=Span::from_secs(600)).contains(&export.timeout) {
        let text = format!("{} is not a valid timeout; write 1s to 10m", export.timeout);
        log.wrong_key(&format!("{path}.timeout"), text);
    }
    relabel::check(&export.relabel, &format!("{path}.relabel"), &[], log);
    for (label, text) in &export.labels {
        if !TargetSettings::is_label_name(label) {
            let what = format!("`{label}` is not a valid label name; write one such as k8s.cluster.name");
            log.wrong_key(&format!("{path}.labels"), what);
        } else if text.len() > TargetSettings::MAX_LABEL || text.chars().any(char::is_control) {
            let what =
                format!("a label is one line of at most {} bytes; shorten it", TargetSettings::MAX_LABEL);
            log.wrong_key(&format!("{path}.labels.{label}"), what);
        }
    }
}

fn name(name: &str, path: &str, log: &mut Log) {
    let key = format!("{path}.name");
    if name.is_empty() && log.are_read(&[&key, path]) {
        log.wrong_key(&key, "an export needs a name; write one such as name = \"pyroscope\"");
    } else if !name.is_empty() && !is_name(name) {
        let text = format!(
            "`{name}` is not a valid name: write at most {MAX_NAME} letters, digits and - . _ @ :, beginning with a letter or digit"
        );
        log.wrong_key(&key, text);
    }
}

/// An address may hold a password: it is not shown.
fn address(to: &str, path: &str, log: &mut Log) {
    let key = format!("{path}.to");
    let host = to.strip_prefix("https://").or_else(|| to.strip_prefix("http://"));
    if to.is_empty() && log.are_read(&[&key, path]) {
        log.wrong_key(&key, "an export needs an address; write one such as to = \"http://localhost:4040\"");
    } else if !to.is_empty() && host.is_none_or(|host| host.is_empty() || host.contains(char::is_whitespace))
    {
        log.wrong_key(&key, "this is not an http or https address; write one such as http://localhost:4040");
    }
}
