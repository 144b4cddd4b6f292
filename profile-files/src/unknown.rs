//! `report FILE --unknown`: code without a name and stacks without their outer frames, each with its weight, the reason,
//! and what would mend it.

use profiler_core::profile::{FunctionIndex, Location, Outcome, SymbolizedProfile, Unknown, WeightedStack};
use rustc_hash::FxHashMap;
use serde::Serialize;

mod text;

pub use text::render;

/// What is said of addresses that another tool's file gives no name to.
const UNTOLD: &str = "the file gives it no name, and does not say why";

/// CPU time and samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Weight {
    cpu_ns: u64,
    samples: u64,
}

impl Weight {
    fn add(&mut self, stack: &WeightedStack) {
        self.cpu_ns = self.cpu_ns.saturating_add(stack.cpu_ns);
        self.samples = self.samples.saturating_add(stack.samples);
    }
}

/// A function without a name, as far as its beginning is known; else a single address.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Nameless {
    /// What it is shown as: the module and the beginning of the function, or the address.
    pub function: String,
    /// The module that holds it.
    pub module: String,
    /// The module's path as the target saw it.
    pub path: String,
    /// The module's build id in hexadecimal, where it has one.
    pub build_id: Option<String>,
    /// The lowest address that was seen, as the module's file states it, in hexadecimal.
    pub address_low: String,
    /// The highest.
    pub address_high: String,
    /// CPU time in the code itself (s).
    pub cpu_s: f64,
    /// `cpu_s` as a share of the profile.
    pub share: f64,
    /// CPU time in the code and in what it called (s).
    pub total_cpu_s: f64,
    /// `total_cpu_s` as a share of the profile.
    pub total_share: f64,
    /// Samples in the code itself.
    pub samples: u64,
    /// Why it has no name.
    pub reason: String,
    /// What would give it one; empty where nothing would.
    pub remedy: String,
}

/// Stacks that end early in one way and in one module.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Truncated {
    /// How the unwinding ended.
    pub outcome: Outcome,
    /// The module of the outermost frame that was reached.
    pub module: String,
    /// CPU time (s).
    pub cpu_s: f64,
    /// `cpu_s` as a share of the profile.
    pub share: f64,
    /// Samples.
    pub samples: u64,
    /// The outcome in words.
    pub reason: &'static str,
    /// What would make them complete; empty where nothing would.
    pub remedy: &'static str,
}

/// All that a profile does not know.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct UnknownList {
    /// CPU time of the profile (s).
    pub cpu_s: f64,
    /// CPU time in code without a name (s).
    pub nameless_cpu_s: f64,
    /// `nameless_cpu_s` as a share of the profile.
    pub nameless_share: f64,
    /// CPU time of stacks that hold code without a name (s).
    pub nameless_total_cpu_s: f64,
    /// `nameless_total_cpu_s` as a share of the profile.
    pub nameless_total_share: f64,
    /// Code without a name, the most CPU time of its own first.
    pub functions: Vec<Nameless>,
    /// CPU time of stacks without their outer frames (s).
    pub truncated_cpu_s: f64,
    /// `truncated_cpu_s` as a share of the profile.
    pub truncated_share: f64,
    /// These stacks, the most CPU time first.
    pub truncated: Vec<Truncated>,
}

impl UnknownList {
    /// The list of `profile`.
    pub fn of(profile: &SymbolizedProfile) -> Self {
        let keys: Vec<_> = profile.locations.iter().map(|location| nameless(profile, location)).collect();
        let mut sums = Sums::default();
        profile.stacks.iter().for_each(|stack| sums.add(profile, stack, &keys));
        sums.list(profile)
    }

    /// The module with the most CPU time in code without a name.
    pub(crate) fn top_module(&self) -> Option<&str> {
        let mut sums: FxHashMap<&str, f64> = FxHashMap::default();
        for function in &self.functions {
            *sums.entry(&function.module).or_default() += function.cpu_s;
        }
        let most = sums.into_iter().max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(a.0)));
        most.map(|(module, _)| module)
    }

    /// The list as a line of JSON.
    ///
    /// # Errors
    ///
    /// As of [`serde_json::to_string`]; none is known that a list could cause.
    pub fn json(&self) -> serde_json::Result<String> {
        #[derive(Serialize)]
        struct UnknownLine<'a> {
            r#type: &'static str,
            #[serde(flatten)]
            list: &'a UnknownList,
        }
        Ok(serde_json::to_string(&UnknownLine { r#type: "unknown", list: self })? + "\n")
    }
}

/// Addresses are of one entry if they are of one function and nameless for one reason.
type UnknownKey<'a> = (FunctionIndex, Option<&'a Unknown>);

#[derive(Default)]
struct UnknownWeights {
    own: Weight,
    total: Weight,
    low: u64,
    high: u64,
}

#[derive(Default)]
struct Sums<'a> {
    all: Weight,
    own: Weight,
    total: Weight,
    truncated: Weight,
    functions: FxHashMap<UnknownKey<'a>, UnknownWeights>,
    stacks: FxHashMap<(Outcome, &'a str), Weight>,
}

impl<'a> Sums<'a> {
    /// Adds a stack, given the entry of each location that has no name.
    fn add(
        &mut self,
        profile: &'a SymbolizedProfile,
        stack: &'a WeightedStack,
        keys: &[Option<UnknownKey<'a>>],
    ) {
        self.all.add(stack);
        let mut on_stack: Vec<UnknownKey<'a>> = Vec::new();
        for (at, frame) in stack.frames.iter().enumerate() {
            let Some(key) = keys[frame.0 as usize] else { continue };
            let location = &profile.locations[frame.0 as usize];
            let entry = self
                .functions
                .entry(key)
                .or_insert_with(|| UnknownWeights { low: u64::MAX, ..UnknownWeights::default() });
            (entry.low, entry.high) = (entry.low.min(location.address), entry.high.max(location.address));
            if at == 0 {
                entry.own.add(stack);
                self.own.add(stack);
            }
            on_stack.push(key);
        }
        on_stack.sort_unstable();
        on_stack.dedup(); // recursion counts once
        for key in &on_stack {
            self.functions.entry(*key).or_default().total.add(stack);
        }
        if !on_stack.is_empty() {
            self.total.add(stack);
        }
        if stack.outcome.is_truncated() {
            let module = stack.frames.last().map_or("[no stack]", |outermost| {
                let module = profile.locations[outermost.0 as usize].module;
                profile.modules[module.0 as usize].name.as_str()
            });
            self.stacks.entry((stack.outcome, module)).or_default().add(stack);
            self.truncated.add(stack);
        }
    }

    fn list(self, profile: &SymbolizedProfile) -> UnknownList {
        let all_ns = self.all.cpu_ns;
        let share = |ns: u64| if all_ns > 0 { ns as f64 / all_ns as f64 } else { 0.0 };
        let seconds = |ns: u64| ns as f64 / 1e9;
        let mut functions: Vec<(UnknownKey<'_>, UnknownWeights)> = self.functions.into_iter().collect();
        // The most of its own, then the most with what it called; the rest makes the order certain.
        functions.sort_unstable_by_key(|(key, entry)| {
            (u64::MAX - entry.own.cpu_ns, u64::MAX - entry.total.cpu_ns, *key)
        });
        let function = |((function, unknown), entry): (UnknownKey<'_>, UnknownWeights)| {
            let function = &profile.functions[function.0 as usize];
            let module = &profile.modules[function.module.0 as usize];
            let untold = || Unknown { reason: UNTOLD.to_owned(), remedy: String::new() };
            let Unknown { reason, remedy } = unknown.cloned().unwrap_or_else(untold);
            Nameless {
                function: function.name.clone(),
                module: module.name.clone(),
                path: module.path.clone(),
                build_id: module.build_id.clone(),
                address_low: format!("{:#x}", entry.low),
                address_high: format!("{:#x}", entry.high),
                cpu_s: seconds(entry.own.cpu_ns),
                share: share(entry.own.cpu_ns),
                total_cpu_s: seconds(entry.total.cpu_ns),
                total_share: share(entry.total.cpu_ns),
                samples: entry.own.samples,
                reason,
                remedy,
            }
        };
        let mut truncated: Vec<_> = self.stacks.into_iter().collect();
        truncated.sort_unstable_by_key(|&(key, weight)| (u64::MAX - weight.cpu_ns, key));
        let ends = truncated.into_iter().map(|((outcome, module), weight)| {
            let (reason, remedy) = in_words(outcome);
            let (cpu_s, share) = (seconds(weight.cpu_ns), share(weight.cpu_ns));
            Truncated {
                outcome,
                module: module.to_owned(),
                cpu_s,
                share,
                samples: weight.samples,
                reason,
                remedy,
            }
        });
        UnknownList {
            cpu_s: seconds(all_ns),
            nameless_cpu_s: seconds(self.own.cpu_ns),
            nameless_share: share(self.own.cpu_ns),
            nameless_total_cpu_s: seconds(self.total.cpu_ns),
            nameless_total_share: share(self.total.cpu_ns),
            functions: functions.into_iter().map(function).collect(),
            truncated_cpu_s: seconds(self.truncated.cpu_ns),
            truncated_share: share(self.truncated.cpu_ns),
            truncated: ends.collect(),
        }
    }
}

/// The entry of a location, if it has no name: as our file says, or as another tool's file leaves it.
fn nameless<'a>(profile: &SymbolizedProfile, location: &'a Location) -> Option<UnknownKey<'a>> {
    let function = location.lines.first()?.function;
    if let Some(unknown) = &location.unknown {
        return Some((function, Some(unknown)));
    }
    // The name that our reader makes up where a file has none.
    let module = &profile.modules[location.module.0 as usize].name;
    let name = &profile.functions[function.0 as usize].name;
    let made_up = name.strip_prefix(module.as_str()).and_then(|rest| rest.strip_prefix("+0x"));
    let made_up =
        made_up.is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit()));
    made_up.then_some((function, None))
}

/// What an outcome means, and what would make such stacks complete.
fn in_words(outcome: Outcome) -> (&'static str, &'static str) {
    match outcome {
        Outcome::Complete => ("complete", ""),
        Outcome::CopyTooShort => (
            "the copy of the stack ended before the outermost frame",
            "build with -fno-omit-frame-pointer and use --unwind fp: a copy holds 60 KiB at most",
        ),
        Outcome::StackAbsent => (
            "a page of the stack was not in memory: a buffer that was never written to, or swapped out",
            "build with -fno-omit-frame-pointer and use --unwind fp, which reads the frames alone",
        ),
        Outcome::ChainTooLong => (
            "the kernel's limit on the length of a call chain was reached",
            "raise it: `sudo sysctl kernel.perf_event_max_stack=1024`",
        ),
        Outcome::NoTables => (
            "that code has no unwind information that could be read, and no frame pointer that leads on",
            "build that module with -fasynchronous-unwind-tables or -fno-omit-frame-pointer; run as root if its file was deleted or \
             may not be read",
        ),
        Outcome::OtherStack => {
            ("the thread had changed to another stack, of which nothing was copied", "use --unwind fp")
        }
        Outcome::Narrow => ("it is a 32-bit task's, which is not followed", ""),
        Outcome::TooManyFrames => ("there were more frames than are followed", ""),
        Outcome::Broken => (
            "the caller could not be found: the stack contradicts the unwind information",
            "build that module with -fasynchronous-unwind-tables or -fno-omit-frame-pointer",
        ),
        Outcome::NoUserStack => (
            "no stack of user code was recorded, as of a thread that is exiting or is the kernel's",
            "sample the kernel too: as root, or with `sudo sysctl kernel.perf_event_paranoid=1`",
        ),
        Outcome::NotKept => {
            ("there were too many distinct stacks to keep another one", "profile for a shorter time")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{formats::pprof, testing};

    #[test]
    fn nameless_code_is_listed_with_its_weight_and_reason() {
        let list = UnknownList::of(&testing::profile());
        let [only] = &list.functions[..] else { panic!("{list:?}") };
        assert_eq!((only.function.as_str(), only.module.as_str()), ("server+0x9999", "server"));
        assert_eq!((only.cpu_s, only.samples), (0.2, 12));
        assert_eq!((only.address_low.as_str(), only.build_id.as_deref()), ("0x9999", Some("0011aabb")));
        assert!(only.remedy.contains(".build-id/00/11aabb.debug"));
        assert!((list.nameless_share - 0.2 / 10.01).abs() < 1e-12);
    }

    #[test]
    fn truncated_stacks_are_listed_by_reason_and_module() {
        let list = UnknownList::of(&testing::profile());
        let found: Vec<_> =
            list.truncated.iter().map(|t| (t.outcome, t.module.as_str(), t.samples)).collect();
        let expected = [
            (Outcome::NoUserStack, "[kernel]", 48),
            (Outcome::Broken, "server", 12),
            (Outcome::NoUserStack, "[no stack]", 1),
        ];
        assert_eq!(found, expected);
        assert!((list.truncated_cpu_s - 1.01).abs() < 1e-12);
    }

    #[test]
    fn callers_count_with_what_they_called_and_once() {
        let mut profile = testing::profile();
        profile.stacks.truncate(1);
        profile.locations[2].unknown = Some(Unknown::default()); // parse, called by main, calls memcpy
        let again = profile.stacks[0].frames[1];
        profile.stacks[0].frames.insert(1, again);
        let list = UnknownList::of(&profile);
        assert_eq!((list.functions[0].cpu_s, list.functions[0].total_cpu_s), (0.0, 4.0));
        assert_eq!((list.nameless_cpu_s, list.nameless_total_share), (0.0, 1.0));
    }

    #[test]
    fn the_list_of_a_file_is_that_of_the_run() {
        let profile = testing::profile();
        let mut file = Vec::new();
        pprof::write(&profile, &mut file).unwrap();
        let read = pprof::read(file.as_slice()).unwrap();
        assert_eq!(UnknownList::of(&read), UnknownList::of(&profile));
    }

    #[test]
    fn a_file_of_another_tool_has_code_without_a_reason() {
        let mut profile = testing::profile();
        profile.locations[6].unknown = None;
        let list = UnknownList::of(&profile);
        assert_eq!((list.functions.len(), list.functions[0].reason.as_str()), (1, UNTOLD));
    }

    #[test]
    fn in_words_and_as_json() {
        let profile = testing::profile();
        let list = UnknownList::of(&profile);
        insta::assert_snapshot!(render(&list, &profile.run.measure, 80, 20));
        insta::assert_snapshot!(list.json().unwrap());
        assert!(
            render(&UnknownList::default(), &profile.run.measure, 80, 20)
                .contains("every address has a name")
        );
    }
}
