//! The settings of the daemon: what its file may say, and what it means.

mod check;
mod default_file;
mod export;
mod relabel;
mod sections;
mod target;

use std::collections::BTreeSet;

use toml::de::DeTable;

pub use export::ExportSettings;
pub use relabel::{RelabelRegex, RelabelRules, RelabelSettings};
pub use sections::{
    BudgetSettings, ContainerSettings, FleetSettings, HowToSample, LimitSettings, ListenSettings,
    StoreSettings, SymbolSettings,
};
pub use target::TargetSettings;

use crate::SamplingSettings;
use crate::problem::{Log, SettingsProblem};
use crate::section::Table;

/// Longest file that is read: a thousand targets take a tenth of it.
const MAX_BYTES: usize = 4 << 20;

/// The struct of all sections, its reader and its commented file from one list, so that none is left out.
macro_rules! sections {
    ($($(#[doc = $doc:literal])+ $name:ident: $type:ty),+ $(,)?) => {
        /// Everything that the daemon's file says, checked.
        #[derive(Clone, Debug, PartialEq)]
        pub struct DaemonSettings {
            $($(#[doc = $doc])+ pub $name: $type,)+
            /// What is watched: each `[[target]]`.
            pub targets: Vec<TargetSettings>,
            /// What becomes of the labels of targets: each `[[relabel]]`.
            pub relabel: RelabelRules,
            /// Where windows are sent: each `[[export]]`.
            pub exports: Vec<ExportSettings>,
        }

        impl Default for DaemonSettings {
            fn default() -> Self {
                Self {
                    $($name: <$type>::default(),)+
                    targets: vec![TargetSettings::everything()],
                    relabel: RelabelRules::default(),
                    exports: Vec::new(),
                }
            }
        }

        impl DaemonSettings {
            fn read(root: &Table<'_, '_>, log: &mut Log) -> Self {
                root.refuse_unknown(&[$(stringify!($name),)+ "target", "relabel", "export"], log);
                let targets = root.sections("target", log);
                Self {
                    $($name: root.section(stringify!($name), log),)+
                    targets: targets.unwrap_or_else(|| vec![TargetSettings::everything()]),
                    relabel: root.value("relabel", log).unwrap_or_default(),
                    exports: root.sections("export", log).unwrap_or_default(),
                }
            }

            /// The commented file: every key with what it means and its default, as a comment.
            pub fn default_file() -> String {
                default_file::write(&[
                    $(default_file::section::<$type>(concat!("[", stringify!($name), "]"), false),)+
                    default_file::section::<TargetSettings>("[[target]]", true),
                    default_file::section::<RelabelSettings>("[[relabel]]", true),
                    default_file::section::<ExportSettings>("[[export]]", true),
                ])
            }
        }
    };
}

sections! {
    /// What profiling may cost.
    budget: BudgetSettings,
    /// How targets are sampled.
    sampling: HowToSample,
    /// Where profiles are kept.
    store: StoreSettings,
    /// Who may ask for profiles.
    listen: ListenSettings,
    /// Where names come from.
    symbols: SymbolSettings,
    /// Where containers have their names from.
    containers: ContainerSettings,
    /// How much of a service runs elsewhere.
    fleet: FleetSettings,
    /// What is never exceeded.
    limits: LimitSettings,
}

impl DaemonSettings {
    /// Reads the bytes of a settings file.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with it, in the order of the file; never empty.
    pub fn parse(bytes: &[u8]) -> Result<Self, Vec<SettingsProblem>> {
        let mut log = Log::default();
        let text = text(bytes, &mut log);
        let (root, errors) = DeTable::parse_recoverable(text);
        for error in errors {
            log.unparsable(error.span().map_or(0, |span| span.start), error.message());
        }
        let settings = Self::read(&Table { values: root.get_ref(), path: String::new() }, &mut log);
        // What was skipped because it could not be parsed would seem to be missing.
        if log.is_parsed() {
            check::combinations(&settings, &mut log);
        }
        let problems = log.into_problems(text);
        if problems.is_empty() { Ok(settings) } else { Err(problems) }
    }

    /// How a target is sampled.
    pub fn sampling_of(&self, target: &TargetSettings) -> SamplingSettings {
        let how = &self.sampling;
        SamplingSettings {
            budget: target.budget.unwrap_or(self.budget.target),
            own_cpu: None,
            horizon: Some(target.horizon.unwrap_or(how.horizon)),
            rate: how.rate,
            criterion: how.criterion,
            threads: how.threads,
            unwind: how.unwind,
            backend: how.backend,
            attach_mode: how.attach_mode,
            confidence: how.confidence,
            symbol_memory: self.symbols.memory,
            ..SamplingSettings::default()
        }
    }

    /// The labels that rules read, of targets and of exports.
    pub fn relabel_sources(&self) -> impl Iterator<Item = &str> {
        let of_exports = self.exports.iter().flat_map(|export| export.relabel.source_labels());
        self.relabel.source_labels().chain(of_exports)
    }

    /// Labels of pods that rules read and no target has, in lines.
    pub fn missing_pod_labels(&self) -> Vec<String> {
        let keys = self.relabel_sources().filter_map(|label| label.strip_prefix("k8s.pod.label."));
        let keys: BTreeSet<&str> =
            keys.filter(|key| !self.containers.pod_labels.iter().any(|shown| shown == key)).collect();
        let line = |key| {
            format!(
                "relabel: no target has the label k8s.pod.label.{key}; add \"{key}\" to containers.pod_labels"
            )
        };
        keys.into_iter().map(line).collect()
    }

    /// All that is wrong with a target that stands in no file, each in a line; it may go without a name.
    pub fn problems_of(&self, target: &TargetSettings) -> Vec<String> {
        let mut target = target.clone();
        if target.name.is_empty() {
            "target".clone_into(&mut target.name);
        }
        let asked = Self { targets: vec![target], ..self.clone() };
        let mut log = Log::default();
        check::targets(&asked, &mut log);
        let problems = log.into_problems("").into_iter().map(|problem| problem.text);
        problems.map(|text| text.trim_start_matches("target[0].").to_owned()).collect()
    }

    /// What would be watched and what it may cost, in one line.
    pub fn in_words(&self) -> String {
        const NAMED: usize = 5;
        let watched = |target: &TargetSettings| {
            let budget = target.budget.unwrap_or(self.budget.target);
            format!("{} ({}, slowed down by at most {budget})", target.name, target.in_words())
        };
        let mut targets: Vec<String> = self.targets.iter().take(NAMED).map(watched).collect();
        match self.targets.len().saturating_sub(NAMED) {
            0 if targets.is_empty() => targets.push("nothing until a request adds a target".to_owned()),
            0 => {}
            more => targets.push(format!("{more} more")),
        }
        let (store, listen) = (&self.store, &self.listen);
        let tcp = listen.tcp.map_or_else(String::new, |address| {
            let how = if listen.tls_key.is_some() { "with TLS" } else { "without TLS" };
            format!(" and {address} {how}")
        });
        let exports: Vec<&str> = self.exports.iter().map(|export| export.name.as_str()).collect();
        let exports =
            if exports.is_empty() { String::new() } else { format!("; sends to {}", exports.join(", ")) };
        format!(
            "watches {}; costs at most {} of the host's CPU time; keeps {} and at most {} in {}; answers at {}{tcp}{exports}",
            targets.join(", "),
            self.budget.host,
            store.age,
            store.bytes,
            store.folder.display(),
            listen.socket.display(),
        )
    }
}

/// The part of the file that is text, all of it if nothing is wrong.
fn text<'b>(bytes: &'b [u8], log: &mut Log) -> &'b str {
    if bytes.len() > MAX_BYTES {
        log.unparsable(0, format!("the file has more than {} MiB; is it the right one?", MAX_BYTES >> 20));
        return "";
    }
    match str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let sound = error.valid_up_to();
            log.unparsable(sound, "the file is not UTF-8 from here on; save it as UTF-8");
            str::from_utf8(&bytes[..sound]).unwrap_or_default()
        }
    }
}
