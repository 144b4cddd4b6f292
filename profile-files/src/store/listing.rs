//! What is in the folder of a store.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use jiff::civil::Date;

use super::name::{ENDING, Name};
use super::place;
use super::seal::{self, Damage};
use super::stamp::Stamp;
use super::time_range::{CountedTime, Overlap};

/// The folder of damaged files.
pub(crate) const DAMAGED: &str = "damaged";

/// A file of the store, as far as its header tells.
#[derive(Clone, Debug)]
pub(crate) struct StoredFile {
    /// Its path in the store.
    pub(crate) path: PathBuf,
    /// What its name says.
    pub(crate) name: Name,
    /// What its header says.
    pub(crate) stamp: Stamp,
    /// Room it takes (bytes).
    pub(crate) size: u64,
}

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// Files that look sound, in the order of their paths.
    pub(crate) entries: Vec<StoredFile>,
    /// Files that were changed, by their paths in the store.
    pub(crate) damaged: Vec<(PathBuf, Damage)>,
    /// Files that the disk does not give us, or not now, and why.
    pub(crate) unreadable: Vec<(PathBuf, io::Error)>,
    /// Files that somebody began to write, by their paths in the store.
    pub(crate) unfinished: Vec<PathBuf>,
    /// Whether a file disappeared while it was looked at.
    pub(crate) has_changed: bool,
}

/// What a file of so many bytes takes on a disk.
pub(crate) fn room(bytes: u64) -> u64 {
    const BLOCK: u64 = 4096;
    bytes.checked_next_multiple_of(BLOCK).unwrap_or(bytes)
}

/// Lists the files of days from `first` to `last` whose names are `wanted`.
///
/// # Errors
///
/// If the folder cannot be read. What cannot be read in it is listed as such: it keeps nobody from the rest.
pub(crate) fn list(
    folder: &Path,
    (first, last): (Date, Date),
    wanted: impl Fn(&Name) -> bool,
) -> io::Result<Listing> {
    let mut listing = Listing::default();
    for day in days(folder)? {
        if date(&day.to_string_lossy()).is_some_and(|date| (first..=last).contains(&date)) {
            listing.add_day(folder, &day, &wanted);
        }
    }
    listing.entries.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(listing)
}

/// The folders of days in a store's, by their names.
pub(crate) fn days(folder: &Path) -> io::Result<Vec<PathBuf>> {
    Ok(names(folder)?.into_iter().filter(|name| date(name).is_some()).map(PathBuf::from).collect())
}

/// The day that a folder is for. Another spelling of a day is not ours.
fn date(name: &str) -> Option<Date> {
    name.parse::<Date>().ok().filter(|date| date.to_string() == name)
}

/// The names in a folder that are text, sorted; ours are.
pub(crate) fn names(folder: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        names.extend(entry?.file_name().into_string());
    }
    names.sort_unstable();
    Ok(names)
}

impl Listing {
    fn add_day(&mut self, folder: &Path, day: &Path, wanted: &impl Fn(&Name) -> bool) {
        let full = folder.join(day);
        let files = match place::is_folder(&full).and_then(|_| names(&full)) {
            Ok(files) => files,
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => return,
            Err(error) => return self.refused(day.to_owned(), error),
        };
        for file in files {
            let path = day.join(&file);
            if is_unfinished(&file) {
                self.unfinished.push(path);
            } else if file.ends_with(ENDING) {
                match Name::parse(&path) {
                    Some(name) if wanted(&name) => self.add(folder, path, name),
                    Some(_) => {}
                    None => self.damaged.push((path, Damage::Name)),
                }
            }
        }
    }

    fn refused(&mut self, path: PathBuf, error: io::Error) {
        match error.kind() {
            io::ErrorKind::NotFound => self.has_changed = true,
            _ => self.unreadable.push((path, error)),
        }
    }

    fn add(&mut self, folder: &Path, path: PathBuf, name: Name) {
        let opened =
            place::open(&folder.join(&path)).and_then(|file| Ok((room(file.metadata()?.len()), file)));
        let (size, file) = match opened {
            Ok(opened) => opened,
            Err(error) => return self.refused(path, error),
        };
        let mut file = ErrorKeepingFile { file, refused: None };
        let stamp = seal::stamp(&name, &mut file);
        match (stamp, file.refused) {
            (Ok(stamp), _) => self.entries.push(StoredFile { path, name, stamp, size }),
            (Err(_), Some(error)) => self.refused(path, error),
            (Err(damage), None) => self.damaged.push((path, damage)),
        }
    }
}

/// A file whose reader does not tell a disk that refuses from bytes that make no sense.
struct ErrorKeepingFile {
    file: File,
    /// What the disk said.
    refused: Option<io::Error>,
}

impl Read for ErrorKeepingFile {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.file.read(bytes).map_err(|error| {
            let kind = error.kind();
            if kind != io::ErrorKind::Interrupted {
                self.refused = Some(error);
            }
            kind.into()
        })
    }
}

/// The hidden name under which a file is written.
pub(crate) fn unfinished_name(number: u64) -> String {
    format!(".sweetspot-{}-{number}.tmp", std::process::id())
}

/// Whether a file has such a name.
pub(crate) fn is_unfinished(file: &str) -> bool {
    file.starts_with(".sweetspot-") && file.ends_with(".tmp")
}

/// Which of some files are counted, each by its index.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Choice {
    /// Those that are.
    pub(crate) counted: Vec<usize>,
    /// Those whose time larger ones hold: what a merge leaves if it is interrupted, or a copy that nothing was deleted in.
    pub(crate) held: Vec<usize>,
    /// Those that hold others' time.
    pub(crate) holders: BTreeSet<usize>,
    /// Those that share a part of their time with others: somebody put them there.
    pub(crate) overlapping: Vec<usize>,
}

/// Chooses files so that no time of a target is counted twice: the largest first.
pub(crate) fn choose(entries: &[StoredFile]) -> Choice {
    let mut order: Vec<usize> = (0..entries.len()).collect();
    order.sort_by_key(|&at| {
        std::cmp::Reverse((entries[at].stamp.time_ranges.length_ns(), entries[at].name.level))
    });
    let mut taken = CountedTime::default();
    let mut choice = Choice::default();
    for at in order {
        let stamp = &entries[at].stamp;
        match taken.take(&stamp.target, &stamp.time_ranges, at) {
            Overlap::None => choice.counted.push(at),
            Overlap::Full => {
                choice.holders.extend(taken.takers(&stamp.target, &stamp.time_ranges));
                choice.held.push(at);
            }
            Overlap::Partial => choice.overlapping.push(at),
        }
    }
    choice.counted.sort_unstable();
    choice
}
