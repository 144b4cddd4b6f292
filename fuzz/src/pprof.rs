//! Any bytes as a profile that somebody sent: read, and shown in every way.

use profile_files::functions::functions;
use profile_files::table::{View, render};
use profile_files::unknown::{self, UnknownList};
use profile_files::{FORMATS, JSON, PPROF, pprof};

/// Takes any bytes.
pub(crate) fn run(data: &[u8]) {
    let Ok(profile) = pprof::read(data) else { return };
    let table = functions(&profile);
    assert!(!render(&profile, &table, View { width: 80, top: 20 }).is_empty());
    let list = UnknownList::of(&profile);
    assert!(!unknown::render(&list, &profile.run.measure, 80, 20).is_empty());
    assert!([list.nameless_share, list.truncated_share].iter().all(|share| (0.0..=1.0).contains(share)));
    list.json().expect("a list is JSON");
    let mut out = Vec::new();
    for format in FORMATS {
        out.clear();
        // The flame graph's library refuses what is no stack; that is an error and no more.
        let written = format.write(&profile, View::default(), &mut out);
        // So is a text that would have gigabytes of names.
        let is_too_large =
            written.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::FileTooLarge);
        if format.is_printed && !is_too_large {
            written.as_ref().expect("memory takes everything");
        }
        if *format == JSON {
            assert_eq!(out.split(|byte| *byte == b'\n').count(), 2, "a line and its end");
        }
        if *format == PPROF {
            written.expect("memory takes everything");
            // What is written again is read again; only what has no stack to hold it goes.
            let again = pprof::read(out.as_slice()).expect("our own file");
            assert_eq!(again.stacks.len(), profile.stacks.len());
            let mut rewritten = Vec::new();
            format.write(&again, View::default(), &mut rewritten).expect("memory takes everything");
            let third = pprof::read(rewritten.as_slice()).expect("our own file");
            assert_eq!((third.stacks, third.locations), (again.stacks, again.locations));
            assert_eq!(
                (third.functions, third.modules, third.windows),
                (again.functions, again.modules, again.windows)
            );
        }
    }
}
