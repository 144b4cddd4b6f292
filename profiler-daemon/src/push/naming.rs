//! What a profile is called in a backend: its service and its labels.

use std::collections::BTreeMap;

use config::RelabelRules;
use profile_files::store::Stamp;
use profiler_core::profile::SymbolizedProfile;

/// Where the kernel says the name of this machine.
const HOST_NAME: &str = "/proc/sys/kernel/hostname";
/// The label that rules see the service as.
const SERVICE: &str = "service.name";
/// The name of an unknown service, as OpenTelemetry has it.
const UNKNOWN: &str = "unknown_service";

/// The command of an unknown process.
const UNKNOWN_COMMAND: &str = "[unknown]";

/// What the person or the settings want.
#[derive(Clone, Debug, Default)]
pub(crate) struct PushNaming {
    /// The service; without it, the target.
    pub(crate) service: Option<String>,
    /// Labels, which come before those of the profile.
    pub(crate) labels: BTreeMap<String, String>,
}

/// Whose profile it is. Keys are those of OpenTelemetry's semantic conventions, where there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PushIdentity {
    /// The service.
    pub(crate) service: String,
    /// All else.
    pub(crate) labels: BTreeMap<String, String>,
}

impl PushNaming {
    /// What a profile is called. A file of the store says in its `stamp` which target it is of, and its labels.
    pub(crate) fn identity(&self, profile: &SymbolizedProfile, stamp: Option<&Stamp>) -> PushIdentity {
        let mut labels = stamp.map(|stamp| stamp.labels.clone()).unwrap_or_default();
        let target = stamp.map(|stamp| stamp.target.clone()).filter(|target| !target.trim().is_empty());
        let service = self.service.clone().or(target).or_else(|| program(&profile.run.target));
        let only = only_command(profile).map(str::to_owned);
        let service = service.or_else(|| only.clone()).unwrap_or_else(|| UNKNOWN.to_owned());
        labels.extend(self.labels.clone());
        for (key, value) in [("host.name", host_name()), ("process.executable.name", only)] {
            if let Some(value) = value {
                labels.entry(key.to_owned()).or_insert(value);
            }
        }
        PushIdentity { service, labels }
    }
}

impl PushIdentity {
    /// What becomes of it by these rules, which see the service as a label; none if one drops it. A service that they remove
    /// stays.
    pub(crate) fn relabelled(self, rules: &RelabelRules, target: &str) -> Option<Self> {
        if rules.is_empty() {
            return Some(self);
        }
        let Self { service, mut labels } = self;
        labels.insert(SERVICE.to_owned(), service.clone());
        let is_kept = rules.apply(target, &mut labels);
        let service = labels.remove(SERVICE).unwrap_or(service);
        is_kept.then_some(Self { service, labels })
    }
}

/// The program of a command line. Its arguments would make a service of every run, and may hold secrets.
fn program(command_line: &str) -> Option<String> {
    let first = command_line.split_whitespace().next()?;
    first.rsplit('/').next().filter(|name| !name.is_empty()).map(str::to_owned)
}

/// The command name of all processes, if they have one.
pub(super) fn only_command(profile: &SymbolizedProfile) -> Option<&str> {
    let mut names = profile.processes.iter().map(|process| process.comm.as_str());
    // Files of other tools do not always say it.
    let first = names.next().filter(|name| !name.is_empty() && *name != UNKNOWN_COMMAND)?;
    names.all(|name| name == first).then_some(first)
}

fn host_name() -> Option<String> {
    let name = std::fs::read_to_string(HOST_NAME).ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty() && name != "(none)")
}

#[cfg(test)]
mod tests {
    use profiler_core::profile::ProcessInfo;

    use profile_files::testing;

    use super::*;

    fn label(labels: &[(&str, &str)]) -> BTreeMap<String, String> {
        labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn the_service_is_the_target_without_arguments_unless_it_is_named() {
        let mut profile = testing::profile();
        let service =
            |naming: &PushNaming, profile: &SymbolizedProfile| naming.identity(profile, None).service;
        assert_eq!(service(&PushNaming::default(), &profile), "server");
        let named = PushNaming { service: Some("shop".to_owned()), ..PushNaming::default() };
        assert_eq!(service(&named, &profile), "shop");
        profile.run.target.clear();
        assert_eq!(service(&PushNaming::default(), &profile), "server", "its process");
        profile.processes.push(ProcessInfo { pid: 1, comm: "init".to_owned() });
        assert_eq!(service(&PushNaming::default(), &profile), "unknown_service");
        profile.processes = vec![ProcessInfo { pid: 0, comm: "[unknown]".to_owned() }];
        assert_eq!(service(&PushNaming::default(), &profile), "unknown_service");
    }

    #[test]
    fn labels_that_are_given_come_before_those_that_are_found() {
        let given = label(&[("host.name", "web-1"), ("team", "search")]);
        let naming = PushNaming { labels: given, ..PushNaming::default() };
        let expected =
            label(&[("host.name", "web-1"), ("process.executable.name", "server"), ("team", "search")]);
        assert_eq!(naming.identity(&testing::profile(), None).labels, expected);
    }
}
