//! Runs that follow running processes.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use profiler_core::attach::AttachMode;

use super::backend::{self, PreparedRun};
use super::engine::{self, Engine};
use super::follow::{RunDisplay, Stop, Until, WatchedProcesses, follow};
use super::jobs::AttachJob;
use super::precise::Precise;
use super::progress::Progress;
use super::signals::{self, Signals};
use super::{Setup, summary};
use crate::cgroup::Cgroup;
use crate::explain;
use crate::output::Outputs;
use crate::sampler::watch::Watch;
use crate::targets::{Target, TargetMembers};

/// How long a target is watched before it is attached to.
const WATCHED: Duration = Duration::from_millis(30);

/// A run of processes that are attached to.
pub(super) struct AttachedRun {
    pub(super) engine: Engine<Outputs>,
    pub(super) setup: Setup,
    watched: WatchedProcesses<'static>,
    /// What the target is called.
    pub(super) name: String,
}

/// Profiles running processes until they end, the duration is over or the user stops it.
pub(crate) fn attach(job: &AttachJob) -> Result<ExitCode> {
    let run = begin(job)?;
    let mut progress = Progress::new(run.engine.log.terminal(), job.duration);
    let (AttachedRun { engine, setup, name, .. }, stop) = sample(run, job, &mut progress)?;
    drop(progress);
    summary::deliver(engine, &setup, &job.sampling, job.output.debuginfod.as_ref(), name, stop)
        .map(|()| ExitCode::SUCCESS)
}

/// Attaches to what the job names.
///
/// # Errors
///
/// Why that is not possible, and what to do.
pub(super) fn begin(job: &AttachJob) -> Result<AttachedRun> {
    if matches!(job.target, Target::Everything) {
        return begin_with_everything(job);
    }
    let found = job.target.resolve()?;
    let target_group = found.group.clone();
    let pids = found.pids;
    if let &[pid] = &pids[..] {
        explain::kernel_thread(pid)?;
    }
    let outputs = Outputs::prepare(&job.output)?;
    let PreparedRun { mut setup, source, .. } =
        backend::for_processes(&pids, target_group.is_some(), &job.sampling)?;
    let mut session = setup.session(&job.sampling);
    let one = (pids.len() == 1 && target_group.is_none()).then(|| pids[0]);
    let mut watch = Watch::begin(&pids);
    std::thread::sleep(WATCHED);
    let watched = watch.end();
    let mut found = TargetMembers { pids: watch.processes().to_vec(), group: target_group.clone() };
    if let Some(group) = &target_group {
        setup.choose_group(&job.sampling)?;
        session.follow_group(Arc::clone(group), setup.asked != Some(AttachMode::Cpu));
        found.pids = engine::others_in(group);
    } else if setup.may_use_group() {
        found.group = Cgroup::of_their_own(&found.pids);
    }
    if found.group.is_none() && setup.asked == Some(AttachMode::Cgroup) {
        return Err(explain::no_group_of_its_own());
    }
    let mut engine = setup
        .open_with(source, &job.sampling, session, found, Some(&watched), outputs)
        .map_err(|error| explain::open(error, one))?;
    if setup.nature.runs_in_target {
        signals::put_off()?;
    }
    // The clocks start first: mappings from here on are reported, earlier ones are read from `/proc`.
    engine.start_clocks().map_err(|error| explain::start(error, one))?;
    let name = match &target_group {
        Some(group) => {
            engine.adopt_members();
            format!("cgroup {}", group.name())
        }
        None => {
            let adopt = |&pid: &u32| {
                let adopted = engine.session.adopt(pid);
                engine.sampler.beat();
                (pid, adopted)
            };
            let adopted = pids.iter().map(adopt).collect();
            explain::maps_of_several(adopted, &mut engine.notes)?;
            match setup.nature.runs_in_target {
                true => engine.notes.extend(explain::children_left_alone(&pids)),
                false => engine.adopt_descendants(),
            }
            pids.iter().map(|pid| engine.name_of(*pid)).collect::<Vec<_>>().join(", ")
        }
    };
    engine.catch_up_with_threads().map_err(|error| explain::open(error, one))?;
    Ok(AttachedRun { engine, setup, watched: WatchedProcesses::Processes, name })
}

fn begin_with_everything(job: &AttachJob) -> Result<AttachedRun> {
    let outputs = Outputs::prepare(&job.output)?;
    let mut setup = Setup::begin(&job.sampling)?;
    setup.choose_whole_cpus()?;
    let mut session = setup.session(&job.sampling);
    session.follow_everything();
    let unknown_yet = TargetMembers { pids: Vec::new(), group: None };
    let mut engine = setup
        .open(&job.sampling, session, unknown_yet, None, outputs)
        .map_err(|error| explain::open(error, None))?;
    engine.start_clocks()?;
    Ok(AttachedRun { engine, setup, watched: WatchedProcesses::Everything, name: "everything".to_owned() })
}

/// Runs the event loop to the end of the run.
pub(super) fn sample(
    run: AttachedRun,
    job: &AttachJob,
    display: &mut impl RunDisplay,
) -> Result<(AttachedRun, Stop)> {
    let AttachedRun { mut engine, setup, watched, name } = run;
    let until = Until { duration: job.duration, precise: Precise::new(&job.sampling) };
    let stop = super::runtime()?.block_on(async {
        let mut signals = Signals::listen()?;
        engine.begin();
        follow(&mut engine, &mut signals, until, &watched, display).await
    })?;
    Ok((AttachedRun { engine, setup, watched, name }, stop))
}
