//! Where the daemon's log goes: to the journal with its priorities where standard error leads there, else to standard
//! error in plain lines.

use std::io;
use std::os::fd::AsFd;

use nix::sys::stat::fstat;
use tracing::Subscriber;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

/// Starts the log, filtered by `SWEETSPOT_LOG` or by what concerns an operator. An existing log stays.
pub(crate) fn begin() {
    let filter = EnvFilter::try_from_env("SWEETSPOT_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::registry().with(filter);
    let _ = match journal() {
        Some(journal) => log.with(journal).try_init(),
        None => log.with(lines(io::stderr)).try_init(),
    };
}

/// The journal, if standard error is connected to it. If it cannot be reached, standard error is still read.
fn journal() -> Option<tracing_journald::Layer> {
    let stream = std::env::var("JOURNAL_STREAM").ok()?;
    let journal = || {
        tracing_journald::layer().ok().map(|journal| journal.with_field_prefix(Some("SWEETSPOT".to_owned())))
    };
    leads_to(&io::stderr(), &stream).then(journal)?
}

/// Whether a descriptor is the stream that `JOURNAL_STREAM` names by device and inode. A process with redirected
/// standard error may still have the variable.
fn leads_to(file: &impl AsFd, stream: &str) -> bool {
    fstat(file).is_ok_and(|stat| stream == format!("{}:{}", stat.st_dev, stat.st_ino))
}

/// Plain lines without the time, which the collector adds.
fn lines<S, W>(writer: W) -> impl tracing_subscriber::Layer<S>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
    W: for<'writer> tracing_subscriber::fmt::MakeWriter<'writer> + 'static,
{
    tracing_subscriber::fmt::layer().with_writer(writer).with_ansi(false).with_target(false).without_time()
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn the_journal_is_told_by_device_and_inode() {
        let (file, other) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        let meta = file.metadata().unwrap();
        let stream = format!("{}:{}", meta.dev(), meta.ino());
        assert!(leads_to(&file, &stream));
        assert!(!leads_to(&other, &stream));
        for stream in ["", ":", "1", &format!("{stream}1"), &format!(" {stream}")] {
            assert!(!leads_to(&file, stream), "{stream}");
        }
    }

    #[test]
    fn lines_are_plain() {
        let written = tempfile::NamedTempFile::new().unwrap();
        let log = tracing_subscriber::registry().with(lines(written.reopen().unwrap()));
        tracing::subscriber::with_default(log, || tracing::warn!(target = "web", "left out"));
        let mut text = String::new();
        File::open(written.path()).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, " WARN left out target=\"web\"\n");
    }
}
