//! Where a sampler reads names, forks, exits and mappings that its clocks do not report: from events of its own, or from
//! those that all targets share.

use std::io;

use super::reporters::Reporters;
use super::rings::Rings;
use super::shared_reports::{ReportReader, SharedReports};
use crate::sys::limits::OnlineCpu;

/// Sources of records that are no samples.
#[derive(Default)]
pub(super) struct ReportSources {
    own: Reporters,
    /// Reports names, forks and exits for all targets at once, if this sampler shares them.
    shared: Option<SharedReports>,
    reader: Option<ReportReader>,
}

/// What is to be reported.
#[derive(Clone, Copy)]
pub(super) struct WantedReports {
    /// Names, forks and exits.
    pub(super) tasks: bool,
    pub(super) mappings: bool,
}

impl ReportSources {
    /// Names, forks and exits come from `shared` from the next [`Self::adjust`] on.
    pub(super) fn share(&mut self, shared: SharedReports) {
        self.shared = Some(shared);
    }

    /// The reader of the shared reports, if they are in use.
    pub(super) fn reader(&self) -> Option<&ReportReader> {
        self.reader.as_ref()
    }

    /// From now on what is wanted is reported, and nothing else, of the CPUs that have rings.
    pub(super) fn adjust(&mut self, rings: &Rings, wanted: WantedReports) -> io::Result<()> {
        self.reader = match &self.shared {
            Some(shared) if wanted.tasks && self.reader.is_none() => Some(shared.reader()?),
            _ => self.reader.take().filter(|_| wanted.tasks),
        };
        let has_own = wanted.tasks && self.reader.is_none();
        self.own.adjust(rings, has_own, wanted.mappings)
    }

    /// [`Self::adjust`] after CPUs have come or gone: reopens all events, since those of a CPU that returned are dead.
    pub(super) fn renew(
        &mut self,
        rings: &Rings,
        wanted: WantedReports,
        online: &[OnlineCpu],
    ) -> io::Result<()> {
        let old = std::mem::take(&mut self.own);
        let renewed = self.reader.as_ref().map_or(Ok(()), |reader| reader.renew(online));
        let adjusted = renewed.and_then(|()| self.adjust(rings, wanted));
        if adjusted.is_err() {
            self.own = old;
        }
        adjusted
    }

    /// Nothing is reported any more; what was reported can still be read.
    pub(super) fn stop(&mut self) {
        self.own = Reporters::default();
        if let Some(reader) = &self.reader {
            reader.stop();
        }
    }
}
