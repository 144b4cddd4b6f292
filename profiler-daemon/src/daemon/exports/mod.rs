//! Windows go to backends, too: each export has a thread that sends what waits for it in the store.
//!
//! The store is the queue ([`Outboxes`]), so that a backend that is slow, down or refuses
//! delays nothing and loses nothing while the store keeps it. The loop never waits for a sender: it reads the
//! latest status of each.

mod plan;
mod schedule;
mod sender;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Error, Result};
use config::DaemonSettings;
use profile_files::store::{Export, ExportTally, Now, Outboxes};

use self::plan::ExportPlan;
use self::sender::{Control, Sender, SenderOrders};
use super::journal::OncePerMinute;
use super::window_writer::boot_id;
use crate::service::state::ExportStatus;
use crate::sys::clock;

/// Part of the host's budget that all exports together may take. It is own CPU time of no target, which samples leave to them.
const SHARE: f64 = 0.1;
/// An export further behind than this is reported as degraded (s).
const FAR_BEHIND_S: f64 = 300.0;

/// Exports that passed their checks.
pub(super) struct PreparedExports(Vec<ExportPlan>);

/// Prepares the exports of the settings.
///
/// # Errors
///
/// Which of them are invalid, and what to do.
pub(super) fn prepare(settings: &DaemonSettings) -> Result<PreparedExports> {
    plan::plans(settings).map(PreparedExports)
}

/// Problems of the exports of these settings: errors that the daemon would refuse, and remarks, in lines.
pub(crate) fn problems(settings: &DaemonSettings) -> (Vec<Error>, Vec<String>) {
    plan::problems(settings)
}

/// The exports, as the store needs to know them.
pub(super) fn for_store(settings: &DaemonSettings) -> Vec<Export> {
    let export = |export: &config::ExportSettings| Export {
        name: export.name.clone(),
        targets: export.targets.clone(),
    };
    settings.exports.iter().map(export).collect()
}

/// An export.
struct RunningExport {
    name: String,
    /// Host and port.
    to: String,
    control: Arc<Control>,
    /// None if the system had no thread for it.
    thread: Option<JoinHandle<()>>,
    dropped: OncePerMinute,
    /// Dropped windows that were already logged.
    told: u64,
}

impl RunningExport {
    fn start(orders: SenderOrders, cpus: Arc<AtomicU64>) -> Self {
        let (name, to) = (orders.plan.settings.name.clone(), orders.plan.receiver.host.clone());
        let control = Arc::new(Control::new(orders, cpus));
        let sender = Sender::new(name.clone(), Arc::clone(&control));
        let thread = std::thread::Builder::new().name("export".to_owned()).spawn(move || sender.run());
        let thread = thread
            .inspect_err(|error| {
                tracing::error!(export = name, "export {name}: its thread could not be started ({error})")
            })
            .ok();
        Self { name, to, control, thread, dropped: OncePerMinute::default(), told: 0 }
    }

    fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    fn status(&self, tally: ExportTally, now_ns: u64) -> ExportStatus {
        let trouble = self.control.trouble();
        let retry_s = trouble.as_ref().map(|trouble| trouble.next_ns.saturating_sub(now_ns) as f64 * 1e-9);
        let problem = match self.has_ended() && !self.control.is_over() {
            true => {
                Some("its thread has ended; see the log for the reason, and restart the service".to_owned())
            }
            false => trouble.map(|trouble| trouble.text),
        };
        ExportStatus {
            name: self.name.clone(),
            to: self.to.clone(),
            pushed: tally.pushed,
            refused: tally.refused,
            left_out: tally.left_out,
            dropped: tally.dropped,
            sent_bytes: tally.sent_bytes,
            pending: tally.pending,
            lag_s: tally.lag_ns as f64 * 1e-9,
            problem,
            retry_s,
        }
    }
}

/// All exports.
#[derive(Default)]
pub(super) struct Exports {
    running: Vec<RunningExport>,
    /// Exports that are no longer in the settings, until they have sent their present window.
    leaving: Vec<RunningExport>,
    /// CPUs that each may use; bits of a float.
    cpus: Arc<AtomicU64>,
    outboxes: Outboxes,
    boot: String,
    /// The tallies at the last look.
    tallies: RefCell<BTreeMap<String, ExportTally>>,
}

impl Exports {
    /// Puts these exports in force and ends all others; `folder` is the store's.
    pub(super) fn adopt(&mut self, prepared: PreparedExports, outboxes: &Outboxes, folder: &Path) {
        self.boot = boot_id();
        self.outboxes = outboxes.clone();
        let mut before: BTreeMap<String, RunningExport> =
            self.running.drain(..).map(|running| (running.name.clone(), running)).collect();
        for plan in prepared.0 {
            let (name, to) = (plan.settings.name.clone(), plan.receiver.host.clone());
            let orders = SenderOrders { plan, outboxes: outboxes.clone(), folder: folder.to_owned() };
            let running = match before.remove(&name) {
                Some(mut running) if !running.has_ended() => {
                    running.to = to;
                    running.control.obey(orders);
                    running
                }
                _ => RunningExport::start(orders, Arc::clone(&self.cpus)),
            };
            self.running.push(running);
        }
        for running in before.into_values() {
            running.control.end();
            tracing::info!(export = running.name, "export {}: it is no longer in the settings", running.name);
            self.leaving.push(running);
        }
    }

    /// Grants the exports their share of `host_cpus`, the host's budget in CPUs.
    pub(super) fn allow(&self, host_cpus: f64) {
        let each = SHARE * host_cpus / self.running.len().max(1) as f64;
        self.cpus.store(each.to_bits(), Ordering::Relaxed);
    }

    /// The status of each export.
    pub(super) fn status(&self) -> Vec<ExportStatus> {
        let (now_ns, tallies) = (clock::monotonic_ns(), self.tallies());
        let status = |running: &RunningExport| {
            let tally = tallies.get(&running.name).copied().unwrap_or_default();
            running.status(tally, now_ns)
        };
        self.running.iter().map(status).collect()
    }

    fn tallies(&self) -> BTreeMap<String, ExportTally> {
        let now =
            Now { unix_ns: clock::unix_ns(), boot: self.boot.clone(), monotonic_ns: clock::monotonic_ns() };
        let mut last = self.tallies.borrow_mut();
        if let Some(tallies) = self.outboxes.try_tallies(&now) {
            *last = tallies;
        }
        last.clone()
    }

    /// Says what was dropped since the last time, once a minute.
    pub(super) fn log_dropped(&mut self, now_ns: u64) {
        if self.running.is_empty() && self.leaving.is_empty() {
            return;
        }
        self.leaving.retain(|running| !running.has_ended());
        let tallies = self.tallies();
        for running in &mut self.running {
            let dropped = tallies.get(&running.name).map_or(0, |tally| tally.dropped);
            let windows = dropped.saturating_sub(running.told);
            if windows > 0 && running.dropped.allows(now_ns) {
                let name = &running.name;
                tracing::warn!(
                    export = name,
                    windows,
                    "export {name}: {windows} windows were dropped: they were removed or damaged before they were \
                     sent"
                );
                running.told = dropped;
            }
            running.told = running.told.min(dropped); // with another folder the count restarts
        }
    }

    /// Tells the senders to begin no other window.
    pub(super) fn end(&self) {
        self.running.iter().for_each(|running| running.control.end());
    }

    /// Waits for the windows that are being sent, until `until` at most; the next process sends unanswered ones again.
    pub(super) fn finish(self, until: Instant) {
        let all = || self.running.iter().chain(&self.leaving);
        while !all().all(RunningExport::has_ended) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Problems of the exports, in lines for a person.
pub(super) fn degraded(exports: &[ExportStatus]) -> impl Iterator<Item = String> {
    let line = |export: &ExportStatus| {
        let ExportStatus { name, pending, lag_s, problem, .. } = export;
        let unknown = "it is slower than windows are stored, or some cannot be read; see the log";
        let why = problem.as_deref().unwrap_or(unknown);
        (*lag_s >= FAR_BEHIND_S).then(|| {
            format!("export {name} is {:.0} min behind, {pending} windows wait: {why}", lag_s / 60.0)
        })
    };
    exports.iter().filter_map(line)
}
