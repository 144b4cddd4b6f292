//! How sampling of a target begins.

use std::path::Path;

use profiler_core::rate::Activity;

use super::{LONG_ENOUGH_NS, MOST_WATCHED, Retry, SampledTarget, Watched};
use crate::cgroup::Cgroup;
use crate::daemon::flush_limiter::FlushLimiter;
use crate::run::Setup;
use crate::run::join::{self, TargetSelector};
use crate::sampler::watch::Watch;
use crate::service::recent::RecentDecisions;
use crate::service::state::TargetState;
use crate::sys::clock;

impl Watched {
    /// Starts to sample it, if it has processes and an attempt is due. The first call only watches the processes, to
    /// choose the way to attach; a later one attaches.
    pub(crate) fn attach(&mut self, setup: &Setup, now_ns: u64) {
        let began_ns = clock::thread_cpu_ns();
        let ready = self.get_ready(now_ns);
        self.attempts.spent_ns += clock::thread_cpu_ns().saturating_sub(began_ns);
        if let Some((selector, seen)) = ready {
            self.open(setup, selector, seen.as_ref(), now_ns);
        }
    }

    /// Starts a sampler of its own while the target still shares one. Returns whether it could: if not, it is sampled as before,
    /// says why, and tries again later.
    pub(crate) fn attach_beside(&mut self, setup: &Setup, now_ns: u64) -> bool {
        if now_ns < self.attempts.retry.at_ns {
            return false;
        }
        let (sampling, wanted) = (self.sampling.clone(), self.wanted.clone());
        self.take_wanted();
        self.open(setup, self.selector(), None, now_ns);
        let begun = self.sampled.is_some();
        if !begun {
            (self.sampling, self.wanted) = (sampling, wanted);
            let why = self.reason.take().filter(|_| self.state == TargetState::Failed);
            self.reason = why.map(|why| format!("its own events could not be opened: {why}"));
            self.state = TargetState::Sampled;
        }
        begun
    }

    /// The target leaves the shared sampler, and is sampled by its own.
    pub(crate) fn go_on_alone(&mut self) {
        self.end_share();
        if let Some(sampled) = &mut self.sampled {
            sampled.from_ns = clock::monotonic_ns();
            (self.state, self.reason) = (TargetState::Sampled, None);
        }
    }

    /// The target stays on the shared sampler, under another budget.
    pub(crate) fn take_wanted(&mut self) {
        self.reason = self.reason.take().filter(|_| self.state != TargetState::Sampled);
        self.sampling = self.wanted.take().unwrap_or(self.sampling.clone());
    }

    /// What to attach to, if an attempt is due, and what the processes did while they were watched.
    fn get_ready(&mut self, now_ns: u64) -> Option<(TargetSelector, Option<Activity>)> {
        if self.is_sampled() || !self.has_processes() || now_ns < self.attempts.retry.at_ns {
            return None;
        }
        if self.attempts.watch.as_ref().is_some_and(|(_, since_ns)| now_ns < since_ns + LONG_ENOUGH_NS) {
            return None;
        }
        let selector = self.selector();
        let seen = match (&selector, self.attempts.watch.take()) {
            (TargetSelector::Processes(pids), None) => {
                let watch = Watch::begin_alone(&pids[..pids.len().min(MOST_WATCHED)]);
                self.attempts.watch = Some((watch, clock::monotonic_ns()));
                return None;
            }
            (TargetSelector::Processes(_), Some((mut watch, _))) => Some(watch.end()),
            _ => None,
        };
        Some((selector, seen))
    }

    pub(super) fn open(
        &mut self,
        setup: &Setup,
        selector: TargetSelector,
        seen: Option<&Activity>,
        now_ns: u64,
    ) {
        let (log, began_ns) = (RecentDecisions::default(), clock::thread_cpu_ns());
        let opened = join::begin(setup, &self.sampling, selector, seen, self.attempts.spent_ns, log);
        self.attempts.spent_ns = match opened {
            Ok(Some(_)) => 0, // it is in the figures
            _ => self.attempts.spent_ns + clock::thread_cpu_ns().saturating_sub(began_ns),
        };
        match opened {
            Ok(Some(engine)) => {
                self.sampled = Some(Box::new(SampledTarget {
                    engine,
                    from_ns: clock::monotonic_ns(),
                    flush_limiter: FlushLimiter::default(),
                    empty_since_ns: None,
                    scans_without_own: 0,
                }));
                (self.state, self.reason, self.attempts.retry) =
                    (TargetState::Sampled, None, Retry::default());
                self.processes.take_changes();
            }
            // The next scan reports that it has ended; a later process is attached to like the first.
            Ok(None) => (self.state, self.reason) = (TargetState::Waiting, None),
            Err(error) => {
                self.attempts.retry = self.attempts.retry.after(now_ns);
                (self.state, self.reason) = (TargetState::Failed, Some(format!("{error:#}")));
            }
        }
    }

    pub(super) fn selector(&self) -> TargetSelector {
        match &self.identity {
            identity if identity.is_everything => TargetSelector::Everything,
            identity => {
                let group = identity.group.as_deref().and_then(|path| Cgroup::find(Path::new(path)).ok());
                // A group that is just gone has left processes behind, or none.
                group.map_or_else(
                    || TargetSelector::Processes(self.processes.iter().collect()),
                    TargetSelector::Group,
                )
            }
        }
    }
}
