//! An engine for one target among several, which come and go while it runs.

use std::sync::Arc;

use anyhow::Result;
use config::SamplingSettings;
use profiler_core::attach::AttachMode;
use profiler_core::rate::Activity;

use super::Setup;
use super::engine::{self, Engine};
use crate::cgroup::Cgroup;
use crate::explain;
use crate::output::DecisionLog;
use crate::sampler::access::OpenError;
use crate::sampler::own_time::OwnTime;
use crate::sampler::session::ProcessEvents;
use crate::targets::TargetMembers;

/// What a target consists of.
#[derive(Clone, Debug)]
pub(crate) enum TargetSelector {
    /// These processes and their future children; other descendants are reported by scans.
    Processes(Vec<u32>),
    /// Whatever is in a control group and below.
    Group(Arc<Cgroup>),
    /// Every process, but for those that are excluded.
    Everything,
    /// Any process that enters: for a sampler of many targets.
    Many,
}

/// Starts to sample a target; `seen` is what it did while it was watched. Its own time is that of its turns alone, of which this
/// is the first, with what was spent on it before (ns). `None` if all its processes have ended meanwhile.
///
/// # Errors
///
/// Why it cannot be sampled, and what to do.
pub(crate) fn begin<L: DecisionLog>(
    setup: &Setup,
    sampling: &SamplingSettings,
    selector: TargetSelector,
    seen: Option<&Activity>,
    spent_ns: u64,
    log: L,
) -> Result<Option<Engine<L>>> {
    let mut setup = setup.clone();
    let mut session = setup.session(sampling);
    session.own_time = OwnTime::of_turns(spent_ns);
    session.own_time.enter();
    session.process_events = Some(ProcessEvents::default());
    let found = match &selector {
        TargetSelector::Processes(pids) => {
            session.is_one_of_many();
            let group = if setup.may_use_group() { Cgroup::of_their_own(pids) } else { None };
            TargetMembers { pids: pids.clone(), group }
        }
        TargetSelector::Group(group) => {
            setup.choose_group(sampling)?;
            session.follow_group(Arc::clone(group), setup.asked != Some(AttachMode::Cpu));
            TargetMembers { pids: engine::others_in(group), group: Some(Arc::clone(group)) }
        }
        TargetSelector::Everything | TargetSelector::Many => {
            setup.choose_whole_cpus()?;
            match selector {
                TargetSelector::Many => session.follow_owners(),
                _ => session.follow_everything(),
            }
            TargetMembers { pids: Vec::new(), group: None }
        }
    };
    let refused = |error: OpenError| explain::open(error, None);
    let mut engine = match setup.open(sampling, session, found, seen, log) {
        Err(OpenError::TargetGone) => return Ok(None),
        opened => opened.map_err(refused)?,
    };
    engine.rests();
    if let Some(reports) = &setup.reports {
        engine.sampler.share_reports(reports.clone());
    }
    engine.start_clocks()?;
    match &selector {
        TargetSelector::Processes(pids) => {
            for &pid in pids {
                let adopted = engine.session.adopt(pid);
                explain::child(pid, adopted, &mut engine.notes);
            }
        }
        TargetSelector::Group(_) => engine.adopt_members(),
        TargetSelector::Everything | TargetSelector::Many => {}
    }
    match engine.catch_up_with_threads() {
        Err(OpenError::TargetGone) => return Ok(None),
        caught_up => caught_up.map_err(refused)?,
    }
    engine.begin();
    engine.session.own_time.leave();
    Ok(Some(engine))
}
