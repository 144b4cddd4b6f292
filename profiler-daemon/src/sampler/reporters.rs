//! Events that report names, forks, exits and mappings on whole CPUs, separate from the clocks: they can come and go
//! alone.

use std::io;

use super::rings::Rings;
use crate::sys::perf_event::{Event, EventReports, Scope};

/// Running events, each with its CPU.
#[derive(Default)]
pub(super) struct Reporters {
    tasks: Vec<(u32, Event)>,
    mappings: Vec<(u32, Event)>,
}

impl Reporters {
    /// From now on names, forks and exits are reported, and mappings, or are not, of the CPUs that have rings.
    pub(super) fn adjust(&mut self, rings: &Rings, tasks: bool, mappings: bool) -> io::Result<()> {
        fit(&mut self.tasks, rings, tasks, EventReports::Tasks)?;
        fit(&mut self.mappings, rings, mappings, EventReports::Mappings)
    }
}

fn fit(events: &mut Vec<(u32, Event)>, rings: &Rings, wanted: bool, reports: EventReports) -> io::Result<()> {
    events.retain(|(cpu, _)| wanted && rings.cpus().contains(cpu));
    for (cpu, owner) in rings.owners().filter(|_| wanted) {
        if events.iter().all(|(known, _)| *known != cpu) {
            let mut event = Event::silent(Scope::Cpu(cpu), reports)?;
            event.write_into(owner)?;
            event.enable()?;
            events.push((cpu, event));
        }
    }
    Ok(())
}
