//! What pprof has no field for, as JSON texts.
//!
//! The run and the history of its rate are comments that begin with `#`: pprof's tools print every other comment above each
//! report, these only where they are asked for (`-comments`), and keep them where they filter or merge files. A field of its
//! own, a text that nothing refers to or a sample of no weight would be lost there, or be shown. The comments without `#` are
//! two lines for a person at most. What only our reader wants, and is void once another tool has changed the file, is a text of
//! the string table that nothing refers to: other readers pass over it.

use std::mem;

use profiler_core::profile::{ModuleIndex, OverheadParts, RateChange, Run, SymbolizedProfile, Unknown};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::sections::RawMessages;
use super::windows::Windows;

/// Before the comments that are for programs; earlier versions wrote them without.
const HIDDEN: &str = "#";
const RUN: &str = "sweetspot.run ";
const RATES: &str = "sweetspot.rates ";
/// Earlier versions wrote the windows of time as a text.
const WINDOWS: &str = "sweetspot.windows ";
const TABLES: &str = "sweetspot.tables ";

/// Longest text of the run that is read: a JSON value takes many times the room of its text.
const MAX_RUN: usize = 1 << 20;
/// Longest other text that is read. As text, windows of a run of an hour took a few MiB.
const MAX_TEXT: usize = 32 << 20;
/// Most bytes of reasons that are copied to the addresses they hold for.
const MAX_REASONS: usize = 64 << 20;

/// Names that pprof's tables have no place for.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Tables {
    /// What a person calls each module, in the order of the mappings.
    modules: Vec<String>,
    /// Why addresses have no name, each reason once.
    #[serde(default)]
    reasons: Vec<Unknown>,
    /// Addresses without a name: the index of the location and that of its reason.
    #[serde(default)]
    nameless: Vec<(u32, u32)>,
    /// Length of the list of locations: another one says that the file was rewritten by another tool.
    locations: usize,
}

/// What the comments and the attached texts of a file hold.
#[derive(Default)]
pub(super) struct Comments {
    /// The run, if the file comes from one run of ours.
    pub(super) run: Option<Run>,
    windows: Windows,
    tables: Tables,
}

/// The comments for a profile of `run`, the first of them in words.
pub(super) fn write(run: &Run) -> Vec<String> {
    let hidden = |text: String| format!("{HIDDEN}{text}");
    let mut comments = vec![in_words(run)];
    comments.extend(notes_in_words(run));
    comments.extend([hidden(tagged(RUN, run)), hidden(tagged(RATES, &run.rate_history))]);
    comments
}

/// That there is more to know.
fn notes_in_words(run: &Run) -> Option<String> {
    let notes = if run.notes.len() == 1 { "note" } else { "notes" };
    (!run.notes.is_empty())
        .then(|| format!("{} {notes}: `sweetspot report FILE` shows them", run.notes.len()))
}

/// The text for the string table that nothing refers to; the file's mappings are `modules` in this order.
pub(super) fn attachment(profile: &SymbolizedProfile, modules: &[ModuleIndex]) -> String {
    let mut tables = Tables {
        modules: modules.iter().map(|at| profile.modules[at.0 as usize].name.clone()).collect(),
        locations: profile.locations.len(),
        ..Tables::default()
    };
    let mut known: FxHashMap<&Unknown, u32> = FxHashMap::default();
    for (location, at) in profile.locations.iter().zip(0..) {
        let Some(unknown) = &location.unknown else { continue };
        let reason = *known.entry(unknown).or_insert_with(|| {
            tables.reasons.push(unknown.clone());
            tables.reasons.len() as u32 - 1
        });
        tables.nameless.push((at, reason));
    }
    tagged(TABLES, &tables)
}

fn in_words(run: &Run) -> String {
    if !run.measure.is_cpu() {
        let (count, measure) = (run.counts.samples, &run.measure);
        return format!(
            "sweetspot {}: {count} {}, {}",
            env!("CARGO_PKG_VERSION"),
            measure.counted(),
            measure.in_words()
        );
    }
    let fleet = match run.rate.replicas > 1.0 {
        true => format!(" (one of {:.1} replicas)", run.rate.replicas),
        false => String::new(),
    };
    format!(
        "sweetspot {}: {} samples, {} rate {:.1} Hz{fleet}, slowdown {:.2}%, with own CPU time {:.2}%",
        env!("CARGO_PKG_VERSION"),
        run.counts.samples,
        if run.merged_windows > 1 { "mean" } else { "last" },
        run.rate.rate_hz,
        run.overhead.slowdown_ratio * 100.0,
        run.overhead.overhead_ratio * 100.0,
    )
}

fn tagged(tag: &str, value: &impl Serialize) -> String {
    // These types have no map with keys that are not text, so that writing them cannot fail.
    format!("{tag}{}", serde_json::to_string(value).unwrap_or_default())
}

impl Comments {
    /// Reads the comments of a file, its string table and its windows. Anything that is not as we write it is passed over:
    /// the file then reads as one of another tool. So does a file that was merged from several runs.
    pub(super) fn read(comments: &[&str], sections: &RawMessages<'_>) -> Self {
        let tagged = |tag: &'static str| {
            comments
                .iter()
                .filter_map(move |text| text.strip_prefix(HIDDEN).unwrap_or(text).strip_prefix(tag))
        };
        let (Some(run), None) = (tagged(RUN).next(), tagged(RUN).nth(1)) else {
            return Self::default();
        };
        let mut run = Some(run).filter(|run| run.len() <= MAX_RUN).and_then(run_from_json);
        if let Some(run) = &mut run {
            run.rate_history = tagged(RATES).next().map(rates_from_json).unwrap_or_default();
        }
        let text = |tag| attached(&sections.strings, tag);
        let windows = match sections.windows {
            Some(bytes) => Windows::decode(bytes),
            None => text(WINDOWS).and_then(Windows::from_json),
        };
        Self { run, windows: windows.unwrap_or_default(), tables: parsed(text(TABLES)) }
    }

    /// Gives `profile`, read from the same file, what its comments hold of it. Comments that do not fit the
    /// samples are ignored: another tool has filtered or merged them.
    pub(super) fn apply(self, profile: &mut SymbolizedProfile) {
        let Some(run) = self.run else { return };
        let found = mem::replace(&mut profile.run, run);
        self.tables.apply(profile);
        self.windows.apply(profile);
        if profile.windows.is_empty() && found.counts.samples != profile.run.counts.samples {
            changed(&mut profile.run, &found);
        }
    }
}

/// Says that the samples are no longer those of the run, and counts them as they are.
fn changed(run: &mut Run, found: &Run) {
    run.notes.push(format!(
        "another tool has filtered or merged the file: the run had {} samples, and its CPU time, rate and overhead \
         are shown",
        run.counts.samples,
    ));
    // What the samples of the run cost says nothing about those that are left.
    run.overhead.overhead_parts = OverheadParts::default();
    run.rate.law_samples = 0.0;
    run.rate.bound_by.clear();
    run.counts.samples = found.counts.samples;
    run.counts.truncated = found.counts.truncated;
    run.counts.truncated_by = found.counts.truncated_by;
    run.counts.complete_ratio = found.counts.complete_ratio;
}

impl Tables {
    fn apply(self, profile: &mut SymbolizedProfile) {
        if self.locations != profile.locations.len() || self.modules.len() > profile.modules.len() {
            return;
        }
        for (module, name) in profile.modules.iter_mut().zip(self.modules) {
            module.name = name;
        }
        let mut copied = 0;
        for (at, reason) in self.nameless {
            let Some(reason) = self.reasons.get(reason as usize) else { continue };
            // Any number of addresses may share one long text of the file.
            copied += reason.reason.len() + reason.remedy.len();
            let location = profile.locations.get_mut(at as usize).filter(|_| copied <= MAX_REASONS);
            if let Some(location) = location {
                location.unknown = Some(reason.clone());
            }
        }
    }
}

/// The attached text with this tag, without it.
fn attached<'t>(strings: &[&'t [u8]], tag: &str) -> Option<&'t str> {
    let text = strings.iter().find_map(|text| text.strip_prefix(tag.as_bytes()))?;
    str::from_utf8(text).ok().filter(|text| text.len() <= MAX_TEXT)
}

fn parsed<T: Default + for<'de> Deserialize<'de>>(text: Option<&str>) -> T {
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

fn rates_from_json(text: &str) -> Vec<RateChange> {
    #[derive(Deserialize)]
    struct WrittenRateChange {
        at_s: f64,
        rate_hz: f64,
        reason: String,
    }
    let changes: Vec<WrittenRateChange> = parsed(Some(text).filter(|text| text.len() <= MAX_TEXT));
    let change = |c: WrittenRateChange| RateChange { at_s: c.at_s, rate_hz: c.rate_hz, reason: c.reason };
    changes.into_iter().map(change).collect()
}

/// The run as its summary line states it. Older versions wrote fewer keys, and a figure that is not a number is written as
/// A JSON `null`. A key that is missing, or whose value has the wrong type, keeps its default.
fn run_from_json(text: &str) -> Option<Run> {
    let keys: Map<String, Value> = serde_json::from_str(text).ok()?;
    let is_readable = |(key, value): &(String, Value)| {
        let alone = Map::from_iter([(key.clone(), value.clone())]);
        serde_json::from_value::<Run>(Value::Object(alone)).is_ok()
    };
    let readable: Map<String, Value> = keys.into_iter().filter(is_readable).collect();
    serde_json::from_value(Value::Object(readable)).ok()
}
