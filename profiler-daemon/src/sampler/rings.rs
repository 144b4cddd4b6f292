//! The rings that records are read from, one for each CPU, and the events that own them.

use std::io;

use profiler_core::record::{RawRecord, RecordFormat};
use profiler_core::resources::{MIN_RING_BYTES, ring_bytes};
use profiler_core::sorter::{RecordQueue, drain_in_order};

use super::access::{Access, OpenError};
use super::shared_reports::UnreadReports;
use crate::sys::perf_event::{Event, EventReports, Scope};
use crate::sys::ring::{PerfRing, page_size};

/// Below this a ring does not hold the biggest sample. Machines have pages of up to as much.
const LEAST_RING_BYTES: usize = 64 << 10;

/// A ring for each CPU. Rings belong to events of their own, which report nothing, so that clocks can come and go.
///
/// Where that is permitted these are events of whole CPUs, also where they report nothing: any event of a task, even of our own,
/// has the kernel look for events at every switch of the machine.
pub(super) struct Rings {
    cpus: Vec<u32>,
    owners: Vec<Event>,
    /// Whether the owners are events of whole CPUs.
    cpu_wide: bool,
    rings: Vec<PerfRing>,
}

impl Rings {
    /// Rings for these CPUs; nothing runs yet.
    pub(super) fn open(cpus: Vec<u32>, access: Access) -> Result<Self, OpenError> {
        let cpu_wide = access.cpu_wide;
        let owners = cpus.iter().map(|&cpu| open_owner(cpu, cpu_wide));
        let owners = owners.collect::<io::Result<Vec<_>>>().map_err(OpenError::Other)?;
        let rings = map_rings(&owners, access.targets)?;
        Ok(Self { cpus, owners, cpu_wide, rings })
    }

    /// The CPUs that have a ring.
    pub(super) fn cpus(&self) -> &[u32] {
        &self.cpus
    }

    /// Each CPU with the event that owns its ring.
    pub(super) fn owners(&self) -> impl Iterator<Item = (u32, &Event)> {
        self.cpus.iter().copied().zip(&self.owners)
    }

    /// Memory of the rings (bytes), which is in no process' resident memory.
    pub(super) fn bytes(&self) -> u64 {
        self.rings.iter().map(|ring| (ring.capacity() + page_size()) as u64).sum()
    }

    /// Size of the smallest ring (bytes).
    pub(super) fn capacity(&self) -> usize {
        self.rings.iter().map(PerfRing::capacity).min().unwrap_or(0)
    }

    /// Replaces the rings of CPUs that went offline with rings of new ones: the kernel ends all events of an offline
    /// CPU. What the old ring still holds is lost.
    pub(super) fn replace(&mut self, online: &[u32]) -> io::Result<()> {
        for i in (0..self.cpus.len()).rev().filter(|&i| !online.contains(&self.cpus[i])).collect::<Vec<_>>() {
            self.cpus.remove(i);
            self.owners.remove(i);
            self.rings.remove(i);
        }
        for &cpu in online {
            if !self.cpus.contains(&cpu) {
                self.add(cpu)?;
            }
        }
        Ok(())
    }

    fn add(&mut self, cpu: u32) -> io::Result<()> {
        let owner = open_owner(cpu, self.cpu_wide)?;
        let bytes = if self.rings.is_empty() { MIN_RING_BYTES as usize } else { self.capacity() };
        let ring = PerfRing::map(owner.fd(), bytes)?;
        self.cpus.push(cpu);
        self.owners.push(owner);
        self.rings.push(ring);
        Ok(())
    }

    /// Hands over every record made until `until_ns` with the index of its ring, in time order.
    pub(super) fn drain(&mut self, until_ns: u64, handle: impl FnMut(usize, RawRecord<'_>)) {
        let times = RecordFormat::new(false); // times stand at the same place in all formats
        drain_in_order(&mut self.rings, &times, until_ns, handle);
    }

    /// [`Self::drain`] merged with a log; `handle` is told whether each record comes from the log.
    pub(super) fn drain_with(
        &mut self,
        log: UnreadReports<'_>,
        until_ns: u64,
        mut handle: impl FnMut(bool, RawRecord<'_>),
    ) {
        let log_at = self.rings.len();
        let mut queues: Vec<Queue<'_>> = self.rings.iter_mut().map(Queue::Ring).collect();
        queues.push(Queue::Log(log));
        let times = RecordFormat::new(false);
        drain_in_order(&mut queues, &times, until_ns, |at, raw| handle(at == log_at, raw));
    }

    /// Bytes written to the fullest ring since the last call.
    pub(super) fn take_most_written(&mut self) -> u64 {
        self.rings.iter_mut().map(PerfRing::take_written).max().unwrap_or(0)
    }

    /// Whether a ring holds a record.
    pub(super) fn have_records(&self) -> bool {
        self.rings.iter().any(|ring| !ring.is_empty())
    }

    /// Times that a ring held something that is no record, since the last call.
    pub(super) fn take_damaged(&mut self) -> u64 {
        self.rings.iter_mut().map(PerfRing::take_damaged).sum()
    }
}

/// Where records come from.
enum Queue<'a> {
    Ring(&'a mut PerfRing),
    Log(UnreadReports<'a>),
}

impl RecordQueue for Queue<'_> {
    fn front(&mut self) -> Option<RawRecord<'_>> {
        match self {
            Self::Ring(ring) => ring.front(),
            Self::Log(log) => log.front(),
        }
    }

    fn pop(&mut self) {
        match self {
            Self::Ring(ring) => ring.pop(),
            Self::Log(log) => log.pop(),
        }
    }
}

fn open_owner(cpu: u32, cpu_wide: bool) -> io::Result<Event> {
    let scope = if cpu_wide { Scope::Cpu(cpu) } else { Scope::Task { tid: std::process::id(), cpu } };
    Event::silent(scope, EventReports::Own)
}

/// Maps a ring for each owner, smaller ones where the kernel refuses the memory.
fn map_rings(owners: &[Event], targets: usize) -> Result<Vec<PerfRing>, OpenError> {
    let mut bytes = ring_bytes(owners.len() as u64, targets as u64) as usize;
    loop {
        let mapped: io::Result<Vec<PerfRing>> =
            owners.iter().map(|owner| PerfRing::map(owner.fd(), bytes)).collect();
        match mapped {
            Ok(rings) => return Ok(rings),
            Err(_) if bytes / 2 >= page_size().max(LEAST_RING_BYTES) => bytes /= 2,
            Err(error) => return Err(OpenError::RingMemory(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::limits;

    /// Needs no privilege: these rings belong to events of this process.
    #[test]
    fn a_cpu_that_comes_back_has_a_ring_again() {
        let online = limits::online_cpus();
        let alone = Access { cpu_wide: false, kernel: false, targets: 1 };
        let Ok(mut rings) = Rings::open(online.clone(), alone) else {
            return; // perf events are not permitted here
        };
        rings.replace(&online[..1]).unwrap();
        assert_eq!((rings.cpus(), rings.owners().count(), rings.rings.len()), (&online[..1], 1, 1));
        rings.replace(&online).unwrap();
        assert_eq!(
            (rings.cpus(), rings.owners().count(), rings.rings.len()),
            (&online[..], online.len(), online.len())
        );
        rings.replace(&online[online.len() - 1..]).unwrap();
        assert_eq!(rings.cpus(), &online[online.len() - 1..]);
        rings.drain(u64::MAX, |_, _| {});
        assert!(rings.replace(&[i32::MAX as u32]).is_err());
        assert!(rings.capacity() == 0 && rings.cpus().is_empty());
    }
}
