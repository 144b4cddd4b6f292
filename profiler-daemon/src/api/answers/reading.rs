//! A range read from the store and written in a format, on a thread where it keeps nobody waiting.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::http::StatusCode;
use profile_files::Format;
use profile_files::range::{self, RangeError, RangeProfile};
use profile_files::store::{Query, StoreError};
use profile_files::table::View;
use profiler_core::profile::SymbolizedProfile;
use tokio::time::timeout;

use crate::api::Api;
use crate::api::observe::ApiCounters;
use crate::api::problem::Problem;
use crate::service::command::DaemonCommand;

/// Most bytes of an answer: a profile of a month takes a tenth of it, and all of it is in memory.
const MOST_WRITTEN: usize = 64 << 20;

/// A profile as the bytes of an answer.
fn written(format: &Format, profile: &SymbolizedProfile, left: &Left) -> io::Result<Vec<u8>> {
    let mut out = Sheet { bytes: Vec::new(), left };
    format.write(profile, View::default(), &mut out)?;
    Ok(out.bytes)
}

/// Whether the client has left: what it asked for is then read and written no further.
#[derive(Clone, Debug, Default)]
struct Left(Arc<AtomicBool>);

impl Left {
    fn is_so(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// What is written, as long as the client is there.
struct Sheet<'l> {
    bytes: Vec<u8>,
    left: &'l Left,
}

impl Write for Sheet<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.left.is_so() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        if self.bytes.len() + bytes.len() > MOST_WRITTEN {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A request that waits for its profile; dropped before that is there, the client has left.
struct WaitingRequest<'a> {
    left: Left,
    counters: &'a ApiCounters,
    is_over: bool,
}

impl WaitingRequest<'_> {
    /// It takes too long: what is being read is for nobody, though the client is there.
    fn give_up(&mut self) {
        self.left.0.store(true, Ordering::Relaxed);
        self.is_over = true;
    }
}

impl Drop for WaitingRequest<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.left.0.store(true, Ordering::Relaxed);
            self.counters.profile_abandoned();
        }
    }
}

/// The sum of what was asked for, in a format. A reader is waited for as long as for any answer, and it has longer than that.
pub(super) async fn render(
    api: &Arc<Api>,
    query: Query,
    format: &'static Format,
) -> Result<Vec<u8>, Problem> {
    let busy = || Problem::busy("other profiles are being read; try again, or request a shorter range");
    let waiting = timeout(api.bounds.answer, Arc::clone(&api.renderings).acquire_owned());
    let permit = waiting.await.ok().and_then(Result::ok).ok_or_else(busy)?;
    let folder = api.force().settings.store.folder.clone();
    let mut waiting = WaitingRequest { left: Left::default(), counters: &api.counters, is_over: false };
    let left = waiting.left.clone();
    let reader = Arc::clone(api);
    let work = tokio::task::spawn_blocking(move || {
        let _permit = permit; // as long as it works, which is until it finds that nobody waits for it
        reader.reading_time.count(|| {
            let RangeProfile { profile, damaged } = range::read(&folder, &query, &|| !left.is_so())?;
            let written = written(format, &profile, &left).map_err(|error| Unread::unwritten(&error))?;
            Ok((written, damaged))
        })
    });
    let done = timeout(api.bounds.rendering, work).await.map_err(|_| {
        waiting.give_up();
        let time_s = api.bounds.rendering.as_secs();
        let detail = format!(
            "reading this range takes more than {time_s} s; request a shorter range or fewer targets, or \
             use `sweetspot report`"
        );
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    })?;
    waiting.is_over = true;
    match done {
        Ok(Ok((bytes, damaged))) => {
            suspect(api, damaged);
            Ok(bytes)
        }
        Ok(Err(Unread::Nothing(detail, damaged))) => {
            suspect(api, damaged);
            Err(Problem::new(StatusCode::NOT_FOUND, detail))
        }
        Ok(Err(Unread::Busy(detail))) => Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)),
        Ok(Err(Unread::Large)) => {
            let most = MOST_WRITTEN >> 20;
            Err(Problem::bad(format!(
                "in this format it takes more than {most} MiB; request a shorter range or fewer targets (pprof is the smallest format)"
            )))
        }
        Ok(Err(Unread::Failed(detail))) => Err(Problem::internal(detail)),
        Err(_) => {
            api.counters.panicked();
            tracing::error!("a profile's reader panicked");
            Err(Problem::internal("internal error while the profile was read; see sweetspot's log"))
        }
    }
}

/// What is damaged is for the store's owner to set aside.
fn suspect(api: &Api, damaged: Vec<PathBuf>) {
    if !damaged.is_empty() {
        api.commands.send(DaemonCommand::Suspect(damaged));
    }
}

/// Why there is no profile.
enum Unread {
    Nothing(String, Vec<PathBuf>),
    /// Not now.
    Busy(String),
    /// It would be too long.
    Large,
    Failed(String),
}

impl Unread {
    fn unwritten(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::FileTooLarge => Self::Large,
            _ => Self::Failed(error.to_string()),
        }
    }
}

impl From<RangeError> for Unread {
    fn from(unread: RangeError) -> Self {
        match unread {
            RangeError::Nothing(text, damaged) => Self::Nothing(text, damaged),
            RangeError::Store(error @ StoreError::Restless(_)) => Self::Busy(error.to_string()),
            RangeError::Store(error) => Self::Failed(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_bounded_and_for_nobody_once_he_has_left() {
        let left = Left::default();
        let mut sheet = Sheet { bytes: Vec::new(), left: &left };
        let piece = vec![0; 1 << 20];
        let written = (0..100).take_while(|_| sheet.write_all(&piece).is_ok()).count();
        assert_eq!(written, MOST_WRITTEN >> 20);
        let error = sheet.write_all(&piece).unwrap_err();
        assert!(matches!(Unread::unwritten(&error), Unread::Large));
        left.0.store(true, Ordering::Relaxed);
        assert!(matches!(Unread::unwritten(&sheet.write_all(b"x").unwrap_err()), Unread::Failed(_)));
    }
}
