//! The service: it profiles the whole host for as long as the host runs.
//!
//! One thread samples all targets. It sleeps until a target is due and then steps every target that is due
//! soon, because a wake-up costs more than most steps. A target without events is stepped ever more rarely, at
//! least every 1.6 s; twenty sleeping targets take less than 0.2% of a core together (`just idle`).
//!
//! Symbolization, the disk and requests have threads of their own ([`window_writer`], [`crate::api`]). They reach the
//! loop through a bounded queue ([`command`]).
//!
//! One deadline (`END`) bounds shutdown; requests, windows and connections share it. Windows that are not
//! stored by then are counted, and the exit status says so.

mod answers;
mod dropped;
pub(crate) mod exports;
mod fleet;
mod flush_limiter;
mod flushing;
mod host;
mod host_budget;
mod journal;
mod ledger;
mod log;
mod members;
pub(crate) mod notify;
mod pace;
mod ranking;
mod reload;
mod scan_schedule;
mod shared;
mod wakes;
mod watched;
mod window_writer;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::ExitCode;
use std::task::Poll;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use config::DaemonSettings;
use profile_files::store::{self, StoreError};
use profiler_core::rate::{HostBudget, WindowLength, first_window_ns};
use tokio::sync::mpsc;

use self::dropped::DroppedTime;
use self::exports::Exports;
use self::flushing::FlushWaiter;
use self::host::{HostAccount, Spent};
use self::journal::{Journal, LeavingWriter};
use self::ledger::Ledger;
use self::members::{EndedTotals, MemoryPressure};
use self::notify::Notifier;
use self::reload::{PreparedSettings, Reloads};
use self::scan_schedule::ScanSchedule;
use self::shared::SharedState;
use self::wakes::{Wake, Wakes};
use self::watched::{Totals, Watched, WindowLengths};
use self::window_writer::WindowWriter;
use crate::api::{self, Server};
use crate::containers::{Need, Runtimes};
use crate::debuginfod;
use crate::discovery::{Discovery, TargetId};
use crate::fleet::{self as fleets, Fleet};
use crate::objects::Symbols;
use crate::run::{self, Engine, Setup};
use crate::service::command::{self, CommandReceiver, DaemonCommand, Publisher};
use crate::service::recent::RecentDecisions;
use crate::sys::{clock, limits, memory, priority, procfs};

const SECOND_NS: u64 = 1_000_000_000;
/// How much earlier the work of each second may be done if something else needs a wake-up (ns).
const SECOND_SLACK_NS: u64 = 200_000_000;
/// How often spending is booked and the host's budget is divided (ns).
const SHARE_EVERY_NS: u64 = 100_000_000;
/// How often the status is published without a request (ns).
const PUBLISH_EVERY_NS: u64 = 10_000_000_000;
/// Exit status of a requested shutdown that lost windows: a restart would not help.
const LOST: u8 = 3;
/// Shutdown takes no longer than this after the request: windows that are not on disk by then are lost.
/// Windows without names after half of it are named by the next process.
const END: Duration = Duration::from_millis(1_800);

/// The settings, where the package puts them.
pub(crate) const SETTINGS_FILE: &str = "/etc/sweetspot/sweetspot.toml";

/// `sweetspot daemon`.
#[derive(Debug)]
pub(crate) struct DaemonJob {
    /// The settings file; without one the defaults are in force.
    pub(crate) file: Option<PathBuf>,
}

/// Runs until a signal or a request stops it.
///
/// # Errors
/// If the settings are invalid, sampling is not permitted, or the store or the socket cannot be opened.
pub(crate) fn run(job: DaemonJob) -> Result<ExitCode> {
    log::begin();
    memory::keep_little();
    priority::come_first();
    let settings = reload::read(job.file.as_deref())?;
    let exports = exports::prepare(&settings)?;
    let fleet = fleets::PrometheusClient::new(&settings.fleet)?;
    let setup = Setup::begin(&settings.sampling_of(&config::TargetSettings::default()))?.for_many();
    let writer = start_writer(&settings, &setup.symbols)?;
    writer.pace_reading(&setup.symbols);
    let (sender, commands, publisher) = command::channel();
    let server = api::start(&settings, sender)?;
    let (prepared, ready) = mpsc::channel(1);
    let mut daemon =
        Daemon::new(settings, Reloads::new(job.file, prepared), setup, writer, server, publisher);
    daemon.log_start();
    daemon.export(exports);
    daemon.ask_runtimes();
    daemon.fleet.adopt(fleet, &daemon.settings, daemon.due.began_ns);
    let begun = run::runtime()?.block_on(daemon.live(commands, ready))?;
    Ok(if daemon.end(begun) { ExitCode::SUCCESS } else { ExitCode::from(LOST) })
}

/// The loop.
struct Daemon {
    settings: DaemonSettings,
    reloads: Reloads,
    setup: Setup,
    discovery: Discovery,
    targets: BTreeMap<TargetId, Watched>,
    /// Targets that have, or had, a sampler of their own. With hundreds of shared targets it is mostly empty;
    /// iterating over all targets in every turn cost a tenth of the own CPU time.
    apart: BTreeSet<TargetId>,
    /// Targets that lost processes to a requested target, with that target.
    taken: BTreeSet<(TargetId, TargetId)>,
    sharing: SharedState,
    profiles: Profiles,
    accounts: Accounts,
    runtimes: Runtimes,
    fleet: Fleet,
    reporting: Reporting,
    due: Due,
    pressure: MemoryPressure,
}

/// Where finished windows go.
struct Profiles {
    writer: WindowWriter,
    leaving: Vec<LeavingWriter>,
    exports: Exports,
    waiting: Vec<FlushWaiter>,
    window_length: WindowLength,
}

/// CPU time of the host, the targets and the daemon, and what it may cost.
struct Accounts {
    host: HostAccount,
    budget: HostBudget,
    /// Spending at the last booking.
    booked: Spent,
    ended: EndedTotals,
    dropped: DroppedTime,
    /// CPU time of all other programs when the daemon started (ns).
    busy_before_ns: u64,
    /// CPU time of all other programs since then (ns). It never goes back, though the difference of two clocks may.
    busy_ns: u64,
    ledger: Ledger,
}

/// What the daemon tells others: its clients, the service manager and the log.
struct Reporting {
    server: Server,
    publisher: Publisher,
    notifier: Notifier,
    journal: Journal,
}

/// When work that comes again is due (ns).
struct Due {
    began_ns: u64,
    next_second_ns: u64,
    scan_schedule: ScanSchedule,
    next_ranking_ns: u64,
    next_publishing_ns: u64,
    /// When the CPU time of each target was read.
    noted_ns: u64,
    /// Whether targets remain to be attached to in the next turn.
    is_attaching: bool,
}

impl Due {
    fn from(now_ns: u64) -> Self {
        Self {
            began_ns: now_ns,
            next_second_ns: now_ns,
            scan_schedule: ScanSchedule::default(),
            next_ranking_ns: now_ns,
            next_publishing_ns: now_ns,
            noted_ns: 0,
            is_attaching: false,
        }
    }
}

impl Daemon {
    fn new(
        settings: DaemonSettings,
        reloads: Reloads,
        setup: Setup,
        writer: WindowWriter,
        server: Server,
        publisher: Publisher,
    ) -> Self {
        let now_ns = clock::monotonic_ns();
        let spent = Spent { at_ns: now_ns, self_ns: clock::self_cpu_ns(), ..Spent::default() };
        let mut discovery = Discovery::new(&settings.targets);
        discovery.relabel(&settings.relabel);
        Self {
            discovery,
            reloads,
            setup,
            targets: BTreeMap::new(),
            apart: BTreeSet::new(),
            taken: BTreeSet::new(),
            sharing: SharedState::default(),
            profiles: Profiles {
                writer,
                leaving: Vec::new(),
                exports: Exports::default(),
                waiting: Vec::new(),
                window_length: WindowLength::default(),
            },
            accounts: Accounts {
                host: HostAccount::new(spent, limits::online_cpus().len()),
                budget: HostBudget::new(host_cpus(&settings)),
                booked: spent,
                ended: EndedTotals::default(),
                dropped: DroppedTime::default(),
                busy_before_ns: procfs::machine_charged_ns().saturating_sub(clock::self_cpu_ns()),
                busy_ns: 0,
                ledger: Ledger::default(),
            },
            runtimes: Runtimes::default(),
            fleet: Fleet::default(),
            reporting: Reporting {
                server,
                publisher,
                notifier: Notifier::from_env(),
                journal: Journal::default(),
            },
            due: Due::from(now_ns),
            pressure: MemoryPressure::default(),
            settings,
        }
    }

    /// Samples until it is stopped. Returns when that was; every event is removed by then.
    async fn live(
        &mut self,
        mut commands: CommandReceiver,
        mut prepared: mpsc::Receiver<Result<PreparedSettings>>,
    ) -> Result<Instant> {
        let mut wakes = Wakes::listen()?;
        self.publish();
        self.due.next_publishing_ns = 0; // once more after the first look
        self.reporting.notifier.ready(&self.in_words());
        loop {
            let pause = self.pause();
            let wake = tokio::select! {
                biased;
                wake = wakes.wait(pause) => wake,
                () = self.storm() => Wake::Time,
                Some(settings) = prepared.recv() => Wake::Prepared(Box::new(settings)),
                Some(command) = commands.0.recv() => Wake::Command(command),
            };
            let stop = match wake {
                Wake::Time => None,
                Wake::Reload => {
                    self.reload(None); // what goes wrong is logged, and shown
                    None
                }
                Wake::Prepared(settings) => {
                    self.finish_reload(*settings);
                    None
                }
                Wake::Stop => Some(None),
                Wake::Command(DaemonCommand::Stop(reply)) => Some(Some(reply)),
                Wake::Command(command) => {
                    self.execute(command);
                    None
                }
            };
            if let Some(reply) = stop {
                let begun = Instant::now();
                self.reporting.notifier.stopping();
                self.targets.values_mut().for_each(Watched::silence);
                self.silence_shared();
                reply.map(|reply| reply.send(()));
                return Ok(begun);
            }
            self.turn();
            if self.profiles.writer.has_ended() {
                // Sampling would be useless without it; a restart may help.
                bail!("internal error in the thread that stores windows, see above; the service stops");
            }
        }
    }

    /// Waits until a target's context switches become so frequent that it has to be stepped.
    async fn storm(&self) {
        let alarm = self.sharing.shared.as_ref().and_then(|shared| shared.engine.alarm());
        let alarms = || self.targets_apart().filter_map(Watched::alarm).chain(alarm);
        std::future::poll_fn(|context| {
            // All of them: each has to register its waker.
            let rings = alarms().filter(|alarm| alarm.poll_rung(context).is_ready()).count();
            if rings > 0 { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// How long until something is due.
    fn pause(&mut self) -> Duration {
        let now_ns = clock::monotonic_ns();
        let mut pause = Duration::from_nanos(self.due.next_second_ns.saturating_sub(now_ns));
        if self.due.is_attaching {
            return Duration::ZERO;
        }
        if let Some(due_ns) = self.next_flush_ns() {
            pause = pause.min(Duration::from_nanos(due_ns.saturating_sub(now_ns)));
        }
        self.engines().map(|engine| engine.pause(now_ns)).fold(pause, Duration::min)
    }

    /// Steps the targets that are due.
    fn turn(&mut self) {
        let now_ns = clock::monotonic_ns();
        for engine in self.engines() {
            if engine.is_due(now_ns) {
                engine.session.own_time.enter();
                engine.turn();
                engine.session.own_time.leave();
            }
        }
        let now_ns = clock::monotonic_ns();
        if now_ns + SECOND_SLACK_NS >= self.due.next_second_ns {
            self.each_second(now_ns);
        } else if self.due.is_attaching {
            self.attach_targets(now_ns);
        }
        if now_ns >= self.accounts.booked.at_ns + SHARE_EVERY_NS {
            self.share_budget(now_ns);
        }
        if !self.profiles.waiting.is_empty() {
            self.flush(now_ns);
        }
        self.reporting.notifier.alive(now_ns);
    }

    fn each_second(&mut self, now_ns: u64) {
        match self.due.scan_schedule.is_due(now_ns) {
            true => self.look_for_targets(now_ns),
            false => self.go_on_with_targets(now_ns),
        }
        self.note_shares();
        self.join_fleets(now_ns);
        self.end_windows(now_ns);
        self.keep_within_bounds(now_ns);
        let spent = self.spent(now_ns);
        self.accounts.host.observe(spent, limits::online_cpus().len());
        self.accounts.budget.set_cpus(host_cpus(&self.settings));
        for left in self.profiles.leaving.extract_if(.., |left| left.writer.has_ended()) {
            self.reporting.journal.left_store(&left.writer.status(), left.told);
        }
        self.log_changes(now_ns);
        self.reporting.notifier.status(&self.in_words());
        if now_ns >= self.due.next_publishing_ns {
            self.publish();
        }
        // After long work, everything else gets as much time.
        let ended_ns = clock::monotonic_ns();
        self.due.next_second_ns = (now_ns + SECOND_NS).max(ended_ns + ended_ns.saturating_sub(now_ns));
    }

    /// How many targets are sampled.
    fn sampled(&self) -> usize {
        self.targets.values().filter(|watched| watched.is_sampled()).count()
    }

    /// Ends windows that have reached their length.
    fn end_windows(&mut self, now_ns: u64) {
        let (windows, cpu_ns) = self.profiles.writer.spent();
        self.profiles.window_length.observe(windows, cpu_ns);
        let usual_ns = self.window_ns();
        let lengths = WindowLengths { first_ns: first_window_ns(self.sampled(), usual_ns), usual_ns };
        for watched in self.targets.values_mut().filter(|watched| watched.window_is_over(now_ns, lengths)) {
            watched.cut(&self.setup).into_iter().for_each(|pending| self.profiles.writer.keep(pending));
        }
        self.end_shared_windows(now_ns, lengths);
    }

    /// Starts the exports of the settings.
    fn export(&mut self, prepared: exports::PreparedExports) {
        self.profiles.writer.export(exports::for_store(&self.settings));
        self.profiles.exports.adopt(prepared, self.profiles.writer.outboxes(), &self.settings.store.folder);
        self.profiles.exports.allow(host_cpus(&self.settings));
    }

    /// Starts querying container runtimes if targets need them.
    fn ask_runtimes(&mut self) {
        let of_requests = if self.discovery.is_asked_by_names() { Need::Targets } else { Need::Nothing };
        self.runtimes.adopt(&self.settings, of_requests);
        self.discovery.show_pod_labels(&self.settings.containers.pod_labels);
    }

    /// All samplers: those of single targets, and the shared one.
    fn engines(&mut self) -> impl Iterator<Item = &mut Engine<RecentDecisions>> {
        engines(&mut self.targets, &self.apart, &mut self.sharing)
    }

    fn targets_apart(&self) -> impl Iterator<Item = &Watched> {
        self.apart.iter().filter_map(|id| self.targets.get(id))
    }

    /// To be called when a target gets or loses a sampler of its own.
    fn note_apart(&mut self) {
        let apart = self.targets.iter().filter(|(_, watched)| watched.has_own_account());
        self.apart = apart.map(|(id, _)| *id).collect();
    }

    /// What was spent on all targets since the daemon started.
    fn spent(&self, at_ns: u64) -> Spent {
        let shared = self.sharing.shared.as_ref().map(|shared| shared.totals());
        let all = self
            .targets_apart()
            .map(Watched::own_totals)
            .chain(shared)
            .fold(self.accounts.ended.own, Totals::plus);
        let names_ns = self.profiles.writer.names_ns() + self.reporting.server.reading_ns();
        let self_ns = clock::self_cpu_ns();
        Spent {
            at_ns,
            charged_ns: all.charged_ns,
            self_ns,
            turns_ns: all.turns_ns,
            once_ns: all.once_ns,
            names_ns,
        }
    }

    /// Shuts down once everything is stored, or at the deadline. Returns whether nothing was lost. Open
    /// requests end meanwhile.
    fn end(mut self, begun: Instant) -> bool {
        let (cancel_at, until) = (begun + END / 2, begun + END);
        self.profiles.waiting.clear();
        self.reporting.server.end();
        self.profiles.exports.end();
        self.runtimes.end();
        self.fleet.end();
        // What was lost by now was reported, and is no fault of this end.
        let before = self.profiles.writer.lost();
        let leaving_before: Vec<u64> = self.profiles.leaving.iter().map(|left| left.writer.lost()).collect();
        let mut lost = 0;
        match Instant::now() < until {
            true => self.end_shared(),
            false => lost += self.targets.values().filter(|watched| watched.shares()).count() as u64,
        }
        for watched in self.targets.values_mut() {
            if Instant::now() < until {
                watched.stop(&self.setup).into_iter().for_each(|pending| self.profiles.writer.keep(pending));
            } else {
                lost += u64::from(watched.is_sampled());
            }
        }
        self.profiles.writer.end();
        let mut unnamed = 0;
        for (left, before) in self.profiles.leaving.into_iter().zip(leaving_before) {
            let finished = left.writer.finish(cancel_at, until);
            self.reporting.journal.left_store(&finished.store, left.told);
            (lost, unnamed) = (lost + finished.lost.saturating_sub(before), unnamed + finished.unnamed);
        }
        let windows = self.reporting.journal.windows_elsewhere();
        let finished = self.profiles.writer.finish(cancel_at, until);
        lost += finished.lost.saturating_sub(before);
        unnamed += finished.unnamed;
        if unnamed > 0 {
            tracing::info!(unnamed, "ended before all windows had names: the next start names them");
        }
        if lost > 0 {
            tracing::error!(
                lost,
                "ended before all windows were kept: the disk, or finding names, took too long"
            );
        }
        self.profiles.exports.finish(cancel_at);
        journal::log_end(&finished.store, windows + finished.store.counters.written, lost);
        self.reporting.server.join(until);
        lost == 0
    }

    fn in_words(&self) -> String {
        let is_one = |watched: &&Watched| watched.is_sampled() && watched.has_processes();
        let sampled = self.targets.values().filter(is_one).count();
        format!("{sampled} of {} targets are sampled", self.targets.len())
    }
}

/// The samplers of single targets, and the shared one.
fn engines<'a>(
    targets: &'a mut BTreeMap<TargetId, Watched>,
    apart: &'a BTreeSet<TargetId>,
    sharing: &'a mut SharedState,
) -> impl Iterator<Item = &'a mut Engine<RecentDecisions>> {
    let shared = sharing.shared.as_deref_mut().map(|shared| &mut shared.engine);
    let own = targets.iter_mut().filter(|(id, _)| apart.contains(id));
    own.filter_map(|(_, watched)| watched.engine()).chain(shared)
}

/// Opens the store and starts the threads that name and store windows.
fn start_writer(settings: &DaemonSettings, symbols: &Symbols) -> Result<WindowWriter, StoreError> {
    let (bounds, queue) = store_settings(settings);
    WindowWriter::start(&settings.store.folder, bounds, queue, debuginfod_settings(settings), symbols)
}

fn store_settings(settings: &DaemonSettings) -> (store::StoreTerms, u64) {
    let (store, ns) = (&settings.store, |span: config::Span| span.duration().as_nanos() as u64);
    let bounds = store::StoreTerms {
        age_ns: ns(store.age),
        bytes: store.bytes.get(),
        hourly_after_ns: ns(store.hourly_after),
        daily_after_ns: ns(store.daily_after),
    };
    (bounds, settings.limits.queue.get())
}

/// The host's budget (CPUs).
fn host_cpus(settings: &DaemonSettings) -> f64 {
    settings.budget.host.get() * limits::online_cpus().len() as f64
}

fn debuginfod_settings(settings: &DaemonSettings) -> Option<debuginfod::DebuginfodSettings> {
    let servers = &settings.symbols.debuginfod;
    if servers.is_empty() { None } else { debuginfod::DebuginfodSettings::of_servers(servers) }
}
