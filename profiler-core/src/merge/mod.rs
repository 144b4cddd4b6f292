//! Profiles added up: windows of time, and targets, as one profile.
//!
//! Each profile says when its windows were; those whose middle lies in the range asked for are added, the others are
//! left out, so that ranges side by side share nothing and miss nothing. In the sum, windows of time are joined to bins of
//! equal length: as many as statistics over them need, however long the range, and fewer where the sum would become too large.
//! Only windows whose samples weigh about the same are joined, so that it stays known how much each sample tells: targets at
//! different rates have windows of their own in a bin.
//!
//! A bin of time has one window for each power of two of the samples' weight. A sum has at most 1,024 windows
//! and 1.5 million entries; beyond that its bins get longer. Of more stacks than its file may hold, the innermost frames are kept.
//!
//! ```
//! use profiler_core::merge::{Merger, Range};
//! use profiler_core::profile::SymbolizedProfile;
//!
//! let hour = Range { from_unix_ns: 0, to_unix_ns: 3_600_000_000_000 };
//! let mut merger = Merger::new(hour, hour.bin_ns());
//! merger.add(&SymbolizedProfile::default());
//! assert_eq!(merger.finish().run.counts.samples, 0);
//! ```

mod intern;
mod notes;
mod part;
mod runs;

use std::collections::BTreeMap;

use crate::profile::{StackWindow, SymbolizedProfile, Window};
use intern::{Interner, PlacesInSum, StackLimits};
pub use part::part_of;
use runs::Runs;

/// Bins that a sum has at most: as many as a run of its own has windows.
const MAX_BINS: u64 = 240;
/// Windows that a sum has at most, and stacks times the windows that they were seen in: what readers take, and some tens of MiB.
const MAX_WINDOWS: usize = 1024;
const MAX_ENTRIES: usize = 1_500_000;
/// Most stacks of a sum, so that a file of it can be read. As pprof, a stack takes 40 bytes and 4 for each frame:
/// 110 MiB, less than half of what our reader takes (256 MiB); it takes twice as many functions on stacks. One run of a target
/// has at most a quarter of these stacks and half of these frames.
const STACK_LIMITS: StackLimits =
    StackLimits { stacks: 1 << 20, frames: 1 << 24, functions: 1 << 25, leaves: 1 << 17 };
/// What a note on samples beyond these limits says of them.
const TOO_MANY_STACKS: &str = "samples have no more than their innermost function, since there are more distinct stacks than \
                               one profile holds; choose a shorter range or fewer targets";
/// Lengths of bins that divide hours and days, from the shortest window of a run (ms).
const BINS_MS: [u64; 17] = [
    20, 50, 100, 200, 500, 1_000, 5_000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000, 600_000, 900_000,
    1_800_000, 3_600_000,
];

/// A span of wall-clock time, ns since the Unix epoch; its end is outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Its start.
    pub from_unix_ns: u64,
    /// Its end.
    pub to_unix_ns: u64,
}

impl Range {
    /// What all these profiles are of.
    pub fn of_all(profiles: &[SymbolizedProfile]) -> Self {
        let start = |profile: &SymbolizedProfile| profile.run.start_unix_ns;
        let end = |profile: &SymbolizedProfile| {
            let length_ns = profile.windows.iter().map(|window| window.end_ns).max().unwrap_or(0);
            let run_ns = (profile.run.duration_s.max(0.0) * 1e9) as u64;
            start(profile).saturating_add(length_ns.max(run_ns)).saturating_add(1)
        };
        Self {
            from_unix_ns: profiles.iter().map(start).min().unwrap_or_default(),
            to_unix_ns: profiles.iter().map(end).max().unwrap_or_default(),
        }
    }

    /// The shortest range that holds both.
    pub fn with(self, other: Self) -> Self {
        Self {
            from_unix_ns: self.from_unix_ns.min(other.from_unix_ns),
            to_unix_ns: self.to_unix_ns.max(other.to_unix_ns),
        }
    }

    /// The part of it that lies in another; empty, at some moment, if there is none.
    pub fn part_in(self, other: Self) -> Self {
        let from_unix_ns = self.from_unix_ns.max(other.from_unix_ns);
        Self { from_unix_ns, to_unix_ns: self.to_unix_ns.min(other.to_unix_ns).max(from_unix_ns) }
    }

    /// Whether it holds this moment.
    pub fn contains(self, unix_ns: u64) -> bool {
        (self.from_unix_ns..self.to_unix_ns).contains(&unix_ns)
    }

    /// The shortest bins that are not too many for this range (ns).
    pub fn bin_ns(self) -> u64 {
        let length_ns = self.to_unix_ns.saturating_sub(self.from_unix_ns);
        let bins_ns = BINS_MS.iter().map(|bin| bin * 1_000_000);
        let whole_hours = length_ns.div_ceil(MAX_BINS).next_multiple_of(3_600_000_000_000);
        bins_ns.clone().find(|bin_ns| length_ns.div_ceil(*bin_ns) <= MAX_BINS).unwrap_or(whole_hours)
    }
}

/// Adds up profiles.
pub struct Merger {
    range: Range,
    bin_ns: u64,
    interner: Interner,
    runs: Runs,
    /// By time and by what a sample weighs (log₂ ns).
    bins: BTreeMap<(u64, u32), Bin>,
    /// From the first moment in the range that a profile is of, to the last: at a low rate, windows begin and end with samples.
    covered: Option<Range>,
}

/// Windows that are joined.
struct Bin {
    /// What the interner calls them.
    id: u32,
    /// What they span together (ns since the Unix epoch).
    span: Range,
}

impl Merger {
    /// A sum of what was in `range`, in bins of `bin_ns`, at least 1.
    pub fn new(range: Range, bin_ns: u64) -> Self {
        let (interner, runs, bins) = (Interner::within(STACK_LIMITS), Runs::default(), BTreeMap::new());
        Self { range, bin_ns: bin_ns.max(1), interner, runs, bins, covered: None }
    }

    /// The same, where each profile is of another host: what each errs by in the cost of its samples is its own.
    pub fn of_hosts(range: Range, bin_ns: u64) -> Self {
        Self { runs: Runs::independent(), ..Self::new(range, bin_ns) }
    }

    /// Adds the part of `profile` that lies in the range, and says whether there is one. A profile without windows is
    /// one window.
    pub fn add(&mut self, profile: &SymbolizedProfile) -> bool {
        let start_ns = profile.run.start_unix_ns;
        let whole = [Window { start_ns: 0, end_ns: (profile.run.duration_s.max(0.0) * 1e9) as u64 }];
        let windows = if profile.windows.is_empty() { &whole[..] } else { &profile.windows };
        let weights = sample_weights(profile, windows.len());
        let bins: Vec<Option<u32>> =
            windows.iter().zip(weights).map(|(window, weight)| self.bin(start_ns, window, weight)).collect();
        if bins.iter().all(Option::is_none) {
            return false;
        }
        let run_ns = windows.iter().map(|window| window.end_ns).fold(whole[0].end_ns, u64::max);
        self.cover(Range { from_unix_ns: start_ns, to_unix_ns: start_ns.saturating_add(run_ns) });
        let part = self.add_stacks(profile, &bins);
        self.runs.add(&profile.run, part, self.range);
        let is_large = |sum: &Self| sum.bins.len() > MAX_WINDOWS || sum.interner.entries() > MAX_ENTRIES;
        while is_large(self) && self.bins.last_key_value().is_some_and(|((at, _), _)| *at > 0) {
            self.join_bins();
        }
        true
    }

    /// Extends the covered time by the part of `run` that lies in the range.
    fn cover(&mut self, run: Range) {
        let part = run.part_in(self.range);
        self.covered = Some(self.covered.map_or(part, |covered| covered.with(part)));
    }

    /// The bin of a window of time whose samples weigh so much (log₂ ns), if it lies in the range.
    fn bin(&mut self, start_ns: u64, window: &Window, weight: u32) -> Option<u32> {
        let from_unix_ns = start_ns.saturating_add(window.start_ns);
        let to_unix_ns = start_ns.saturating_add(window.end_ns).max(from_unix_ns);
        let middle = from_unix_ns + (to_unix_ns - from_unix_ns) / 2;
        let at = (middle.checked_sub(self.range.from_unix_ns)?) / self.bin_ns;
        if !self.range.contains(middle) {
            return None;
        }
        let (span, id) = (Range { from_unix_ns, to_unix_ns }, self.bins.len() as u32);
        let bin = self.bins.entry((at, weight)).or_insert(Bin { id, span });
        bin.span = bin.span.with(span);
        Some(bin.id)
    }

    /// Makes bins twice as long.
    fn join_bins(&mut self) {
        self.bin_ns = self.bin_ns.saturating_mul(2);
        let mut new_ids = vec![0; self.bins.len()];
        for ((at, weight), old) in std::mem::take(&mut self.bins) {
            let id = self.bins.len() as u32;
            let bin = self.bins.entry((at / 2, weight)).or_insert(Bin { id, span: old.span });
            bin.span = bin.span.with(old.span);
            new_ids[old.id as usize] = bin.id;
        }
        self.interner.rename_windows(|id| new_ids[id as usize]);
    }

    /// Adds what the stacks had in the windows that have a bin; returns which part of the profile that is.
    fn add_stacks(&mut self, profile: &SymbolizedProfile, bins: &[Option<u32>]) -> f64 {
        let mut places = PlacesInSum::of(profile);
        let (mut added_ns, mut all_ns) = (0_u64, 0_u64);
        for stack in &profile.stacks {
            all_ns = all_ns.saturating_add(stack.cpu_ns);
            let whole = [StackWindow { window: 0, cpu_ns: stack.cpu_ns, samples: stack.samples }];
            let windows = if profile.windows.is_empty() { &whole[..] } else { &stack.windows };
            let binned = windows.iter().filter_map(|had| {
                let bin = bins.get(had.window as usize).copied().flatten()?;
                Some(StackWindow { window: bin, ..*had })
            });
            added_ns = added_ns.saturating_add(self.interner.add(profile, stack, binned, &mut places));
        }
        match (all_ns, bins.len()) {
            (0, windows) => bins.iter().flatten().count() as f64 / windows as f64, // nothing ran: by the time
            _ => added_ns as f64 / all_ns as f64,
        }
    }

    /// The sum. Its stacks are in the order in which they came, its windows in that of time.
    pub fn finish(self) -> SymbolizedProfile {
        let spans = self.bins.values().map(|bin| bin.span).chain(self.covered);
        let span = spans.reduce(Range::with).unwrap_or(Range { from_unix_ns: 0, to_unix_ns: 0 });
        let window = |bin: &Bin| Window {
            start_ns: bin.span.from_unix_ns - span.from_unix_ns,
            end_ns: bin.span.to_unix_ns - span.from_unix_ns,
        };
        let windows = self.bins.values().map(window).collect();
        let mut at = vec![0; self.bins.len()];
        self.bins.values().zip(0..).for_each(|(bin, place)| at[bin.id as usize] = place);
        let cut_samples = self.interner.cut_samples();
        let mut profile = self.interner.finish(|id| at[id as usize]);
        profile.windows = windows;
        profile.run = self.runs.finish(&profile.stacks, span);
        if cut_samples > 0 {
            profile.run.notes.push(format!("{cut_samples} {TOO_MANY_STACKS}"));
        }
        profile
    }
}

/// What a sample weighs in each of so many windows (log₂ ns).
fn sample_weights(profile: &SymbolizedProfile, windows: usize) -> Vec<u32> {
    let mut sums = vec![(0_u64, 0_u64); windows];
    for stack in &profile.stacks {
        let whole = [StackWindow { window: 0, cpu_ns: stack.cpu_ns, samples: stack.samples }];
        let had = if profile.windows.is_empty() { &whole[..] } else { &stack.windows };
        for had in had {
            let Some((cpu_ns, samples)) = sums.get_mut(had.window as usize) else { continue };
            *cpu_ns = cpu_ns.saturating_add(had.cpu_ns);
            *samples = samples.saturating_add(had.samples);
        }
    }
    sums.into_iter().map(|(cpu_ns, samples)| (cpu_ns / samples.max(1)).checked_ilog2().unwrap_or(0)).collect()
}

#[cfg(test)]
mod tests;
