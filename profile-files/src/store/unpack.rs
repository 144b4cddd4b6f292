//! Many files read and unpacked, by several threads at once.
//!
//! One thread adds the files up in their order, so the sum does not depend on the threads.

use std::fs::File;
use std::io::{self, Read};
use std::num::NonZero;
use std::path::Path;
use std::sync::mpsc;
use std::thread;

use nix::sys::resource::{Resource, getrlimit};
use profiler_core::profile::SymbolizedProfile;

use super::listing::StoredFile;
use super::name::Name;
use super::place;
use super::seal::{self, Damage};
use super::stamp::Stamp;

/// Most threads that unpack: whoever adds up what they find takes a tenth of what one of them does for a file.
const MAX_THREADS: usize = 4;
/// Files for which a thread is worth its start.
const PER_THREAD: usize = 2;

/// Part of the files that may be open which a reader opens, and most of them.
const PART_OPEN: u64 = 8;
const MOST_OPEN: u64 = 1024;

/// Why there is no profile.
#[derive(Debug)]
pub enum NotRead {
    /// The file was merged or removed meanwhile.
    Gone,
    /// The disk does not give it to us, or not now.
    Refused(io::Error),
    /// It is not what was written.
    Damaged(Damage),
}

impl From<io::Error> for NotRead {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::Gone,
            _ => Self::Refused(error),
        }
    }
}

/// All of a file, and what is in it.
///
/// # Errors
///
/// If it is not there, cannot be read, or is not what was written.
pub fn read_file(folder: &Path, path: &Path) -> Result<(Vec<u8>, Stamp, SymbolizedProfile), NotRead> {
    let bytes = place::read(&folder.join(path))?;
    let name = Name::parse(path).ok_or(NotRead::Damaged(Damage::Name))?;
    let stamp = seal::stamp(&name, bytes.as_slice()).map_err(NotRead::Damaged)?;
    let profile = seal::open(&name, &bytes).map_err(NotRead::Damaged)?;
    Ok((bytes, stamp, profile))
}

/// A file that is to be read. One that is open can be merged or removed meanwhile.
pub(super) struct Chosen<'e> {
    entry: &'e StoredFile,
    file: Option<File>,
}

/// Opens files before the first is read, as many as may be. Nothing if one of them is gone already.
pub(super) fn hold<'e>(folder: &Path, entries: Vec<&'e StoredFile>) -> Option<Vec<Chosen<'e>>> {
    let permitted = getrlimit(Resource::RLIMIT_NOFILE).map_or(MOST_OPEN, |(soft, _)| soft);
    let most = (permitted / PART_OPEN).min(MOST_OPEN) as usize;
    let open = |(at, entry): (usize, &'e StoredFile)| {
        let file = (at < most).then(|| place::open(&folder.join(&entry.path))).transpose();
        match file {
            Ok(file) => Some(Chosen { entry, file }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(_) => Some(Chosen { entry, file: None }), // told when it is its turn, if it is so then
        }
    };
    entries.into_iter().enumerate().map(open).collect()
}

/// Hands each file's profile to `take`, in their order, until that refuses: what it makes of them is the same
/// however many threads there are. No more than two files a thread are in memory.
///
/// # Errors
///
/// What `take` refuses with.
pub(super) fn each_opened<E>(
    folder: &Path,
    chosen: Vec<Chosen<'_>>,
    mut take: impl FnMut(&StoredFile, Result<SymbolizedProfile, NotRead>) -> Result<(), E>,
) -> Result<(), E> {
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(MAX_THREADS);
    let threads = threads.min(chosen.len() / PER_THREAD);
    if threads < 2 {
        return chosen.into_iter().try_for_each(|chosen| take(chosen.entry, open(folder, chosen)));
    }
    let entries: Vec<&StoredFile> = chosen.iter().map(|chosen| chosen.entry).collect();
    let mut parts: Vec<Vec<_>> = (0..threads).map(|_| Vec::new()).collect();
    for (at, chosen) in chosen.into_iter().enumerate() {
        parts[at % threads].push(chosen);
    }
    thread::scope(|scope| {
        let start = |own: Vec<_>| {
            let (send, opened) = mpsc::sync_channel(1);
            // Whoever refused one file wants no others.
            scope.spawn(move || {
                own.into_iter()
                    .map(|chosen| send.send(Box::new(open(folder, chosen))))
                    .take_while(Result::is_ok)
                    .for_each(drop);
            });
            opened
        };
        let opened: Vec<mpsc::Receiver<_>> = parts.into_iter().map(start).collect();
        // A thread that ends too early has panicked, and the scope goes on with that.
        let in_order = opened.iter().cycle().map_while(|opened| opened.recv().ok());
        entries.iter().zip(in_order).try_for_each(|(entry, opened)| take(entry, *opened))
    })
}

fn open(folder: &Path, chosen: Chosen<'_>) -> Result<SymbolizedProfile, NotRead> {
    let Chosen { entry, file } = chosen;
    let mut file = file.map_or_else(|| place::open(&folder.join(&entry.path)), Ok)?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    seal::open(&entry.name, &bytes).map_err(NotRead::Damaged)
}
