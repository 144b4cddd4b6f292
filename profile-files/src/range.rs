//! A range of time of a store as one profile, with what is missing of it in the profile's notes.

use std::path::{Path, PathBuf};

use profiler_core::merge::Range;
use profiler_core::profile::SymbolizedProfile;

use crate::names;
use crate::store::{self, IsWanted, Query, RangeReading, StoreError};
use crate::when;

/// Most gaps or files that a note lists.
const LISTED: usize = 5;
/// How notes on what is missing begin.
const DAMAGED: &str = "left out, since they are damaged";
const UNREADABLE: &str = "left out, since they cannot be read";
const OVERLAPPING: &str = "left out, since other files hold a part of their time";
const NOT_KEPT: &str = "nothing was kept";
const MISSING: [&str; 4] = [DAMAGED, UNREADABLE, OVERLAPPING, NOT_KEPT];

/// Why a range has no profile.
#[derive(Debug, thiserror::Error)]
pub enum RangeError {
    /// Nothing was kept of it, or in files that are damaged alone: what to do, and these files by their paths in the store.
    #[error("{0}")]
    Nothing(String, Vec<PathBuf>),
    /// The store cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A range that was read, with what is missing of it in the notes of the profile.
#[derive(Debug)]
pub struct RangeProfile {
    /// The sum.
    pub profile: SymbolizedProfile,
    /// Damaged files by their paths in the store, which its owner may check.
    pub damaged: Vec<PathBuf>,
}

/// Reads a range of the store in `folder`, as long as it is wanted.
///
/// # Errors
///
/// If the folder cannot be read, nothing was kept, or nobody wants it any more.
pub fn read(folder: &Path, query: &Query, is_wanted: IsWanted<'_>) -> Result<RangeProfile, RangeError> {
    let mut reading = store::read(folder, query, is_wanted)?;
    let notes = notes(&reading);
    if reading.targets.is_empty() {
        if !reading.unreadable.is_empty() {
            let (path, cause) = reading.unreadable.swap_remove(0);
            return Err(StoreError::Unreadable { path: folder.join(path), cause }.into());
        }
        let damaged = notes
            .iter()
            .find(|_| !reading.damaged.is_empty())
            .map_or_else(String::new, |note| format!(": {note}"));
        let text = format!(
            "{} has no such profile {}{damaged}; try other times, targets or labels",
            folder.display(),
            in_words(query.range)
        );
        return Err(RangeError::Nothing(text, paths(reading.damaged)));
    }
    let mut profile = reading.profile;
    profile.run.notes.extend(notes);
    Ok(RangeProfile { profile, damaged: paths(reading.damaged) })
}

/// The notes of a profile that say what of its range is missing.
pub fn missing(profile: &SymbolizedProfile) -> impl Iterator<Item = &str> {
    let notes = profile.run.notes.iter().map(String::as_str);
    notes.filter(|note| MISSING.iter().any(|begin| note.starts_with(begin)))
}

fn paths(damaged: Vec<(PathBuf, store::Damage)>) -> Vec<PathBuf> {
    damaged.into_iter().map(|(path, _)| path).collect()
}

fn in_words(range: Range) -> String {
    format!("from {} to {}", when::in_words(range.from_unix_ns), when::in_words(range.to_unix_ns))
}

/// What is missing, and why.
fn notes(reading: &RangeReading) -> Vec<String> {
    let mut notes = Vec::new();
    if !reading.damaged.is_empty() {
        let files = reading.damaged.iter().map(|(path, damage)| format!("{} ({damage})", shown(path)));
        notes.push(format!("{DAMAGED}: {}", some(files)));
    }
    if !reading.unreadable.is_empty() {
        let files = reading.unreadable.iter().map(|(path, cause)| format!("{} ({cause})", shown(path)));
        notes.push(format!("{UNREADABLE}: {}", some(files)));
    }
    if !reading.overlapping.is_empty() {
        let files = reading.overlapping.iter().map(|path| shown(path));
        notes.push(format!("{OVERLAPPING}: {}", some(files)));
    }
    if !reading.gaps.is_empty() {
        notes.push(format!("{NOT_KEPT} {}", some(reading.gaps.iter().map(|gap| in_words(*gap)))));
    }
    notes
}

/// A path without what a terminal would act upon.
fn shown(path: &Path) -> String {
    names::visible(&path.to_string_lossy())
}

/// The first few, and how many more there are.
fn some(all: impl ExactSizeIterator<Item = String>) -> String {
    let more = all.len().saturating_sub(LISTED);
    let named = all.take(LISTED).collect::<Vec<_>>().join(", ");
    if more > 0 { format!("{named} and {more} more") } else { named }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Two targets, twenty minutes with a gap, beginning at nine.
    const STORE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/store");
    const NINE_NS: u64 = 1_794_819_600_000_000_000;
    const MINUTE_NS: u64 = 60_000_000_000;

    fn query(from_minute: u64, to_minute: u64) -> Query {
        let at = |minute: u64| NINE_NS + minute * MINUTE_NS;
        Query::all(Range { from_unix_ns: at(from_minute), to_unix_ns: at(to_minute) })
    }

    #[test]
    fn what_is_missing_of_a_range_is_in_its_notes() {
        let read = read(Path::new(STORE), &query(0, 20), &|| true).unwrap();
        assert_eq!(read.profile.run.counts.samples, 3200);
        let missing: Vec<&str> = missing(&read.profile).collect();
        assert_eq!(missing.len(), 1, "{missing:?}");
        assert!(missing[0].starts_with("nothing was kept from "), "{missing:?}");
        assert_eq!(read.damaged, Vec::<PathBuf>::new());
    }

    #[test]
    fn a_range_of_damaged_files_alone_names_them() {
        let folder = tempfile::tempdir().unwrap();
        let day = folder.path().join("2026-11-16");
        fs::create_dir(&day).unwrap();
        let mut paths = Vec::new();
        for file in fs::read_dir(Path::new(STORE).join("2026-11-16")).unwrap() {
            let file = file.unwrap();
            let mut bytes = fs::read(file.path()).unwrap();
            *bytes.last_mut().unwrap() ^= 1;
            fs::write(day.join(file.file_name()), bytes).unwrap();
            paths.push(Path::new("2026-11-16").join(file.file_name()));
        }
        let Err(RangeError::Nothing(text, mut damaged)) = read(folder.path(), &query(0, 20), &|| true) else {
            panic!();
        };
        damaged.sort();
        paths.sort();
        assert_eq!(damaged, paths);
        assert!(
            text.contains("has no such profile from ") && text.contains("left out, since they are damaged")
        );
        let others = paths.len() - LISTED;
        assert!(text.contains(&format!("and {others} more; try other times")), "{text}");
    }

    #[test]
    fn a_range_of_which_nothing_was_kept_is_an_error() {
        let read = read(Path::new(STORE), &query(60, 80), &|| true);
        assert!(matches!(read, Err(RangeError::Nothing(_, damaged)) if damaged.is_empty()));
        let unwanted = super::read(Path::new(STORE), &query(0, 20), &|| false);
        assert!(matches!(unwanted, Err(RangeError::Store(StoreError::Unwanted))));
    }
}
