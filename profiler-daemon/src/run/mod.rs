//! Runs that sample: `record` starts a command, `attach` and `top` follow running processes.

mod attach;
pub(crate) mod backend;
mod cost_prediction;
mod engine;
mod follow;
mod jobs;
pub(crate) mod join;
pub(crate) mod names;
mod precise;
mod progress;
mod remedy;
mod signals;
pub(crate) mod summary;
mod top;

use std::ffi::{CString, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use config::{SamplingSettings, Unwind};
use profiler_core::attach::{AttachChoice, AttachMode, Foreseen};
use profiler_core::rate::{Activity, Dither, Prediction, RateController, RateSettings, predict};
use profiler_core::unwind::method::{Method, MethodChoice};

pub(crate) use self::attach::attach;
use self::backend::PreparedRun;
use self::cost_prediction::CostPrediction;
use self::engine::Attach;
pub(crate) use self::engine::{Engine, RunFigures, ShareStatus};
use self::follow::{Stop, Until, WatchedProcesses, follow};
pub(crate) use self::jobs::{AttachJob, RecordJob, TopJob};
use self::precise::Precise;
use self::progress::Progress;
pub(crate) use self::signals::Signals;
pub(crate) use self::top::top;
use crate::calibrate::{self, Calibration};
use crate::cgroup::{Cgroup, CgroupError, TransientCgroup};
use crate::explain;
use crate::failure::{self, Failure};
use crate::objects::Symbols;
use crate::output::{DecisionLog, Outputs};
use crate::sampler::access::{Access, OpenError, probe_access};
use crate::sampler::perf::PerfSampler;
use crate::sampler::session::Session;
use crate::sampler::shared_reports::SharedReports;
use crate::sampler::source::{Attachment, Nature, Source};
use crate::sys::spawn::HeldCommand;
use crate::sys::{clock, limits, procfs};
use crate::targets::TargetMembers;

/// Exit status of a command that could not be found, as shells have it.
const NOT_FOUND: u8 = 127;
/// Exit status of a command that could not be executed, as shells have it.
const NOT_EXECUTABLE: u8 = 126;

/// Bytes of stack copied per sample, assumed before the first sample: more is requested, but stacks end.
const EXPECTED_COPY_BYTES: f64 = 8192.0;

/// The rate assumed before the controller has chosen one.
const RATE_BEFORE_HZ: f64 = 1_000.0;

/// Profiles a command and passes on its exit status.
pub(crate) fn record(job: &RecordJob) -> Result<ExitCode> {
    let outputs = Outputs::prepare(&job.output)?;
    let program = find_program(&job.command[0]);
    let PreparedRun { setup, source, environment } = backend::for_command(&job.sampling, program.as_deref())?;
    let words = job.command.iter().map(|word| CString::new(word.as_bytes()));
    let words: Vec<CString> = words.collect::<Result<_, _>>().context("the command holds a zero byte")?;
    // Before the runtime exists: the child of a fork may not share its threads.
    let held =
        HeldCommand::fork(&words, environment.as_deref()).context("the command could not be started")?;
    let own_group = match setup.asked {
        Some(AttachMode::Cgroup) => Some(group_for(held.pid()).map_err(explain::cgroup)?),
        _ => None,
    };
    let group = own_group.as_ref().map(|own| Arc::clone(own.group()));
    let name = job.command.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    let pid = held.pid();
    let mut session = setup.session(&job.sampling);
    if let Some(group) = &group {
        session.follow_group(Arc::clone(group), true);
    }
    session.await_exec(pid, &name_of_program(&job.command[0]));
    if let Some(program) = &program {
        session.code.objects.preload(program);
    }
    let engine = setup
        .open_with(source, &job.sampling, session, TargetMembers { pids: vec![pid], group }, None, outputs)
        .map_err(|error| explain::open(error, None))?;
    let until = Until { duration: None, precise: Precise::new(&job.sampling) };
    let runtime = runtime()?;
    let (engine, command, mut signals, stop) = runtime.block_on(async {
        let mut signals = Signals::listen()?;
        let mut engine = engine;
        engine.start_clocks()?;
        engine.begin();
        let command = held.release().map_err(|error| cannot_execute(&words[0], &error))?;
        let watched = WatchedProcesses::Command { pid, command: &command };
        let mut progress = Progress::new(engine.log.terminal(), None);
        let stop = follow(&mut engine, &mut signals, until, &watched, &mut progress).await?;
        drop(progress);
        anyhow::Ok((engine, command, signals, stop))
    })?;
    let terminal = engine.log.terminal();
    signals.open(); // else none would come while names are looked up
    let delivered =
        summary::deliver(engine, &setup, &job.sampling, job.output.debuginfod.as_ref(), name, stop);
    if stop != Stop::Precise {
        return delivered.map(|()| stop.exit_code());
    }
    // The command continues, perhaps for long, so errors are reported now.
    let failed = delivered.err().map(|error| {
        terminal.fail(&error);
        failure::exit_code(&error)
    });
    terminal.say("precise enough: the command continues unsampled");
    let stop = runtime.block_on(precise::outlast(&mut signals, &command, terminal))?;
    Ok(failed.unwrap_or_else(|| stop.exit_code()))
}

/// Creates a control group for a command that waits to be executed, and moves the command into it.
fn group_for(pid: u32) -> Result<TransientCgroup, CgroupError> {
    let group = TransientCgroup::make()?;
    group.take_in(pid)?;
    Ok(group)
}

/// Whether the kernel permits sampling.
pub(crate) fn try_open() -> io::Result<()> {
    probe_access().map(drop).map_err(OpenError::into_io)
}

/// Checks that the kernel permits sampling.
///
/// # Errors
///
/// Why it does not, and what to do.
pub(crate) fn permitted() -> Result<()> {
    probe_access().map(drop).map_err(|error| explain::open(error, None))
}

/// What is known before the target: permissions and costs.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) calibration: Calibration,
    pub(crate) seed: u64,
    access: Access,
    /// The attach mode that the user chose.
    asked: Option<AttachMode>,
    /// With several targets: the records that they share.
    reports: Option<SharedReports>,
    /// What takes the samples.
    nature: Nature,
    /// Symbols, shared by all sessions.
    pub(crate) symbols: Symbols,
}

impl Setup {
    /// Checks permissions, and measures what sampling costs.
    ///
    /// # Errors
    ///
    /// What is not permitted, and what to do.
    pub(crate) fn begin(sampling: &SamplingSettings) -> Result<Self> {
        let access = probe_access().map_err(|error| explain::open(error, None))?;
        let asked = asked(sampling, access)?;
        let calibration = calibrate::prepare(access);
        let symbols = Symbols::new(sampling.symbol_memory.get());
        let seed = sampling.seed.unwrap_or_else(clock::monotonic_ns);
        let nature = PerfSampler::NATURE;
        Ok(Self { calibration, seed, access, asked, reports: None, nature, symbols })
    }

    /// The same setup for several targets at once.
    pub(crate) fn for_many(self) -> Self {
        Self { reports: Some(SharedReports::new(self.access)), ..self }
    }

    /// Memory of the rings that all targets share (bytes).
    pub(crate) fn shared_ring_bytes(&self) -> u64 {
        self.reports.as_ref().map_or(0, SharedReports::ring_bytes)
    }

    /// Whether whole CPUs can be sampled.
    pub(crate) fn may_sample_cpus(&self) -> bool {
        self.access.cpu_wide && self.asked.is_none_or(|asked| asked == AttachMode::Cpu)
    }

    /// What a sample of a non-target process costs, in that process and in this one (ns).
    pub(crate) fn non_target_sample_ns(&self) -> f64 {
        self.calibration.model.per_sample_ns.mean_ns + engine::NON_TARGET_OWN_NS
    }

    /// Sets how many targets are sampled at once.
    pub(crate) fn expect_targets(&mut self, targets: usize) {
        self.access.targets = targets.max(1);
    }

    /// The same setup under other settings.
    ///
    /// # Errors
    /// If the settings need something that is not permitted.
    pub(crate) fn under(&self, sampling: &SamplingSettings) -> Result<Self> {
        Ok(Self { asked: asked(sampling, self.access)?, ..self.clone() })
    }

    /// The target is a control group: its own events are used unless the user chose another mode.
    fn choose_group(&mut self, sampling: &SamplingSettings) -> Result<()> {
        if sampling.attach_mode == config::AttachMode::Auto {
            if !self.access.cpu_wide {
                return Err(explain::cpu_wide_refused("to attach to a cgroup", self.or(explain::BY_THREAD)));
            }
            self.asked = Some(AttachMode::Cgroup);
        }
        Ok(())
    }

    /// What helps beside root: of the service a capability, of a command `of_command`.
    fn or(&self, of_command: &'static str) -> &'static str {
        if self.reports.is_some() { "give the service CAP_PERFMON" } else { of_command }
    }

    /// The target is every process, which needs one event for each CPU.
    fn choose_whole_cpus(&mut self) -> Result<()> {
        if !self.access.cpu_wide {
            let instead = self.or("give the ids of your own processes");
            return Err(explain::cpu_wide_refused("to sample every process", instead));
        }
        self.asked = Some(AttachMode::Cpu);
        Ok(())
    }

    /// Whether a control group of the target's own would be used.
    fn may_use_group(&self) -> bool {
        self.access.cpu_wide && self.asked.is_none_or(|asked| asked == AttachMode::Cgroup)
    }

    fn session(&self, sampling: &SamplingSettings) -> Session {
        Session::new(self.method_choice(sampling), &self.symbols)
    }

    fn method_choice(&self, sampling: &SamplingSettings) -> MethodChoice {
        match (self.nature.unwinds, sampling.unwind) {
            (Some(method), _) => MethodChoice::fixed(method),
            (None, Unwind::Auto) => MethodChoice::auto(),
            (None, Unwind::FramePointers) => MethodChoice::fixed(Method::Fp),
            (None, Unwind::Dwarf) => MethodChoice::fixed(Method::Dwarf),
        }
    }

    fn open<L: DecisionLog>(
        &self,
        sampling: &SamplingSettings,
        session: Session,
        target: TargetMembers,
        seen: Option<&Activity>,
        log: L,
    ) -> Result<Engine<L>, OpenError> {
        self.open_with(None, sampling, session, target, seen, log)
    }

    /// [`Self::open`] with another source than perf events, if there is one.
    fn open_with<L: DecisionLog>(
        &self,
        mut source: Option<Box<dyn Source>>,
        sampling: &SamplingSettings,
        session: Session,
        target: TargetMembers,
        seen: Option<&Activity>,
        log: L,
    ) -> Result<Engine<L>, OpenError> {
        let TargetMembers { pids, group } = target;
        let settings = RateSettings { clock_tick_ns: self.nature.clock_tick_ns, ..rate_settings(sampling) };
        let costs = self.calibration.model;
        if let (Some(source), Some(&pid)) = (&mut source, pids.first()) {
            source.follow(pid);
        }
        let controller = RateController::new(settings.clone(), costs);
        let threads: Vec<u32> = pids.iter().flat_map(|&pid| procfs::threads(pid)).collect();
        let choice = self.choice(&settings, threads.len(), group.is_some(), seen);
        let cost_prediction = CostPrediction::new(settings, costs, choice.clone(), seen);
        let attachment = match (choice.mode(), &group) {
            (AttachMode::Cpu, _) => Attachment::Cpus,
            (AttachMode::Cgroup, Some(group)) => Attachment::Cgroup(Arc::clone(group)),
            (AttachMode::Task | AttachMode::Cgroup, _) => Attachment::Tasks(threads),
        };
        let others_cpus = seen.map(|seen| seen.foreign_cpu_ns as f64 / seen.wall_ns.max(1) as f64);
        let access = self.access;
        let attach =
            Attach { access, choice, attachment, group, costs, cost_prediction, others_cpus, source };
        let mut engine = Engine::open(session, controller, attach, Dither::new(self.seed), log)?;
        engine.notes.extend(self.calibration.note.clone());
        if !self.access.kernel {
            engine.notes.push(explain::KERNEL_UNSEEN.to_owned());
        }
        if let Some(tick_ns) = self.nature.clock_tick_ns {
            engine.notes.push(explain::by_timers(sampling, tick_ns));
        }
        Ok(engine)
    }

    /// How a target with this many threads is attached to at first, perhaps by a control group that it has to itself.
    fn choice(
        &self,
        settings: &RateSettings,
        threads: usize,
        has_group: bool,
        seen: Option<&Activity>,
    ) -> AttachChoice {
        let cpus = limits::online_cpus().len();
        let switches_per_s = seen.map_or(0.0, |seen| seen.switches_per_s().max(seen.past_switches_per_s));
        let choice = AttachChoice::new(self.asked, self.access.cpu_wide, threads, cpus, switches_per_s);
        let choice = if has_group { choice.with_group() } else { choice };
        match seen {
            _ if self.reports.is_some() => choice.among_others(),
            Some(seen) => self.foresee_ways(settings, choice, seen, switches_per_s),
            None => choice,
        }
    }

    /// A target that is sampled alone starts with the cheaper way, according to what was watched before.
    fn foresee_ways(
        &self,
        settings: &RateSettings,
        mut choice: AttachChoice,
        seen: &Activity,
        switches_per_s: f64,
    ) -> AttachChoice {
        let costs = &self.calibration.model;
        let cpus = |cpu_ns: u64| cpu_ns as f64 / seen.wall_ns.max(1) as f64;
        let non_target_sample_ns = costs.per_sample_ns.mean_ns + engine::NON_TARGET_OWN_NS;
        let rate_hz = settings.fixed_rate_hz.unwrap_or(RATE_BEFORE_HZ);
        choice.set_budget(settings.budget_ratio);
        let foreseen = Foreseen {
            task_cpus: Some(switches_per_s * costs.per_switch_ns.mean_ns * 1e-9),
            cpu_cpus: Some(cpus(seen.foreign_cpu_ns) * rate_hz * non_target_sample_ns * 1e-9),
            group_cpus: None,
        };
        choice.foreseeing(foreseen, cpus(seen.target_cpu_ns))
    }

    /// Predicts what sampling costs a target with this many threads, from what was watched.
    pub(crate) fn predict(
        &self,
        sampling: &SamplingSettings,
        threads: usize,
        processes: &[u32],
        watched: &Activity,
    ) -> Result<Prediction> {
        let has_group = self.may_use_group() && Cgroup::of_their_own(processes).is_some();
        if !has_group && self.asked == Some(AttachMode::Cgroup) {
            return Err(explain::no_group_of_its_own());
        }
        let settings = rate_settings(sampling);
        let choice = self.choice(&settings, threads, has_group, Some(watched));
        Ok(predict(settings, self.calibration.model, watched, choice))
    }
}

/// The attach mode that the user chose.
fn asked(sampling: &SamplingSettings, access: Access) -> Result<Option<AttachMode>> {
    Ok(match sampling.attach_mode {
        config::AttachMode::Auto => None,
        config::AttachMode::Task => Some(AttachMode::Task),
        config::AttachMode::Cpu if access.cpu_wide => Some(AttachMode::Cpu),
        config::AttachMode::Cgroup if access.cpu_wide => Some(AttachMode::Cgroup),
        refused @ (config::AttachMode::Cpu | config::AttachMode::Cgroup) => {
            return Err(explain::cpu_wide_refused(&format!("--attach-mode {refused}"), explain::BY_THREAD));
        }
    })
}

fn rate_settings(sampling: &SamplingSettings) -> RateSettings {
    let copies = sampling.unwind != Unwind::FramePointers;
    RateSettings {
        budget_ratio: sampling.budget.get(),
        own_cpu_ratio: sampling.own_cpu.map(|ratio| ratio.get()),
        horizon_s: sampling.horizon.map(config::Span::seconds),
        criterion: sampling.criterion,
        are_threads_coupled: sampling.threads == config::Threads::Coupled,
        fixed_rate_hz: sampling.rate.map(|rate| rate.get()),
        expected_stack_bytes: if copies { EXPECTED_COPY_BYTES } else { 0.0 },
        ..RateSettings::default()
    }
}

/// Where a command is found, as `execvp` looks for it.
fn find_program(name: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(name));
    }
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// The kernel's name of a program (`comm`): the start of its file name.
fn name_of_program(command: &OsStr) -> String {
    const MOST_BYTES: usize = 15;
    let file = Path::new(command).file_name().unwrap_or_default().as_bytes();
    String::from_utf8_lossy(&file[..file.len().min(MOST_BYTES)]).into_owned()
}

pub(crate) fn runtime() -> Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_io().build().context("the event loop could not be started")
}

fn cannot_execute(command: &CString, error: &io::Error) -> anyhow::Error {
    let is_there = find_program(OsStr::from_bytes(command.to_bytes())).is_some_and(|path| path.is_file());
    let command = command.to_string_lossy();
    let (status, text) = match error.kind() {
        io::ErrorKind::NotFound if is_there => (
            NOT_EXECUTABLE,
            format!(
                "{command} is there, but not the interpreter of its first line, or its loader; install that, or mend the line"
            ),
        ),
        io::ErrorKind::NotFound => {
            (NOT_FOUND, format!("{command} was not found; give its path, or look for it in $PATH"))
        }
        _ => (NOT_EXECUTABLE, format!("{command} could not be executed ({error}); is it a program?")),
    };
    Failure::Command { status, text }.into()
}
