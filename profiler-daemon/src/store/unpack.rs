//! Many files read and unpacked, by several threads at once.

use std::fs;
use std::io;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;

use profiler_core::profile::SymbolizedProfile;

use super::listing::Entry;
use super::seal::{self, Damage};

/// Most threads that unpack: whoever adds up what they find takes a tenth of what one of them does for a file.
const MAX_THREADS: usize = 4;
/// Files for which a thread is worth its start.
const PER_THREAD: usize = 2;

/// Why there is no profile.
pub(super) enum NotRead {
    /// The file was merged or removed meanwhile.
    Gone,
    /// It may not be read.
    Forbidden(PathBuf, io::Error),
    /// It is not what was written.
    Damaged(Damage),
}

/// Hands each file's profile to `take`, in the order of `entries`, until that refuses: what it makes of them is the same
/// however many threads there are. No more than two files a thread are in memory.
///
/// # Errors
///
/// What `take` refuses with.
pub(super) fn each_opened<E>(
    folder: &Path,
    entries: &[&Entry],
    mut take: impl FnMut(&Entry, Result<SymbolizedProfile, NotRead>) -> Result<(), E>,
) -> Result<(), E> {
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(MAX_THREADS);
    let threads = threads.min(entries.len() / PER_THREAD);
    if threads < 2 {
        return entries.iter().try_for_each(|entry| take(entry, open(folder, entry)));
    }
    thread::scope(|scope| {
        let start = |first: usize| {
            let (send, opened) = mpsc::sync_channel(1);
            let own = entries.iter().skip(first).step_by(threads);
            // Whoever refused one file wants no others.
            scope.spawn(move || {
                own.map(|entry| send.send(Box::new(open(folder, entry))))
                    .take_while(Result::is_ok)
                    .for_each(drop);
            });
            opened
        };
        let opened: Vec<mpsc::Receiver<_>> = (0..threads).map(start).collect();
        // A thread that ends too early has panicked, and the scope goes on with that.
        let in_order = opened.iter().cycle().map_while(|opened| opened.recv().ok());
        entries.iter().zip(in_order).try_for_each(|(entry, opened)| take(entry, *opened))
    })
}

fn open(folder: &Path, entry: &Entry) -> Result<SymbolizedProfile, NotRead> {
    let path = folder.join(&entry.path);
    match fs::read(&path) {
        Ok(bytes) => seal::open(&entry.name, &bytes).map_err(NotRead::Damaged),
        Err(cause) => Err(match cause.kind() {
            io::ErrorKind::NotFound => NotRead::Gone,
            io::ErrorKind::PermissionDenied => NotRead::Forbidden(path, cause),
            _ => NotRead::Damaged(Damage::Unreadable(cause)),
        }),
    }
}
