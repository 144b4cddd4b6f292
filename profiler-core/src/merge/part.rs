//! A profile of some of another's stacks.

use std::ops::Range;

use super::intern::{Interner, PlacesInSum};
use crate::profile::{StackWindow, SymbolizedProfile};

/// The stacks `range` of `profile` (positions outside of it are ignored) with what they refer to and nothing else.
/// The run is that of the whole; when each stack was seen is left out.
///
/// ```
/// use profiler_core::merge::part_of;
/// use profiler_core::profile::SymbolizedProfile;
///
/// assert!(part_of(&SymbolizedProfile::default(), 0..7).stacks.is_empty());
/// ```
pub fn part_of(profile: &SymbolizedProfile, range: Range<usize>) -> SymbolizedProfile {
    let (mut interner, mut places) = (Interner::default(), PlacesInSum::of(profile));
    for stack in profile.stacks.iter().take(range.end).skip(range.start) {
        let whole = StackWindow { window: 0, cpu_ns: stack.cpu_ns, samples: stack.samples };
        interner.add(profile, stack, std::iter::once(whole), &mut places);
    }
    let mut part = interner.finish(|id| id);
    part.stacks.iter_mut().for_each(|stack| stack.windows.clear());
    part.run = profile.run.clone();
    part
}
