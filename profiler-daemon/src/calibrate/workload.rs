//! The sampled process: it does the work that it reads from its input, and reports what it took.
//!
//! A line of JSON each: [`Work`] comes in, [`Done`] goes out. It ends with its input.

use std::hint::black_box;
use std::io::{self, BufRead, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use anyhow::{Context, Result};
use memmap2::MmapMut;
use nix::unistd::gettid;
use serde::{Deserialize, Serialize};

use super::spin::{SpinWork, Spinner};
use crate::sys::affinity::stay_on;
use crate::sys::clock;

/// Something to do.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Work {
    /// Computes, or reads memory.
    Spin(SpinWork),
    /// Two threads on one CPU take turns so many times.
    Turns(u64),
    /// So many executable mappings and changes of the thread's name, in turns.
    SideRecords(u64),
    /// Creates so many threads, one after the other.
    Tasks(u64),
}

/// What some work took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Done {
    /// CPU time (ns), by the kernel's clock of this process.
    pub(super) cpu_ns: u64,
    /// Wall-clock time (ns).
    pub(super) wall_ns: u64,
}

/// The process: to be called while it has one thread. It stays on `cpu`.
pub(crate) fn serve(cpu: u32) -> Result<()> {
    stay_on(cpu).context("the work could not be kept on one CPU")?;
    let mut worker = Worker { spinner: Spinner::default(), partner: SwitchPartner::start()? };
    for line in io::stdin().lock().lines() {
        let work: Work =
            serde_json::from_str(&line?).context("this command is for `sweetspot calibrate` alone")?;
        let done = worker.timed(work)?;
        let mut out = io::stdout().lock();
        writeln!(out, "{}", serde_json::to_string(&done)?)?;
        out.flush()?;
    }
    Ok(())
}

struct Worker {
    spinner: Spinner,
    partner: SwitchPartner,
}

impl Worker {
    fn timed(&mut self, work: Work) -> Result<Done> {
        if let Work::Spin(work) = work {
            self.spinner.prepare(work.kind);
        }
        let (cpu_ns, wall_ns) = (clock::self_cpu_ns(), clock::monotonic_ns());
        match work {
            Work::Spin(work) => self.spinner.spin(work),
            Work::Turns(turns) => (0..turns).try_for_each(|_| self.partner.take_turns())?,
            Work::SideRecords(count) => (0..count).try_for_each(side_record)?,
            Work::Tasks(count) => (0..count).try_for_each(|_| task())?,
        }
        Ok(Done { cpu_ns: clock::self_cpu_ns() - cpu_ns, wall_ns: clock::monotonic_ns() - wall_ns })
    }
}

/// A thread on the same CPU that answers whenever it is called, so that each call is a switch there and one back.
pub(super) struct SwitchPartner {
    call: SyncSender<()>,
    answer: Receiver<u32>,
    tid: u32,
}

impl SwitchPartner {
    /// Starts it; it ends when this is dropped.
    pub(super) fn start() -> Result<Self> {
        let ((call, called), (answers, answer)) = (sync_channel(1), sync_channel(1));
        let partner = thread::Builder::new().name("partner".to_owned());
        partner
            .spawn(move || {
                let tid = gettid().as_raw() as u32;
                while called.recv().is_ok_and(|()| answers.send(tid).is_ok()) {}
            })
            .context("a second thread could not be started")?;
        call.send(())?;
        let tid = answer.recv()?;
        Ok(Self { call, answer, tid })
    }

    /// Its thread id.
    pub(super) fn tid(&self) -> u32 {
        self.tid
    }

    /// Calls it and waits for its answer.
    pub(super) fn take_turns(&self) -> Result<()> {
        self.call.send(())?;
        Ok(self.answer.recv().map(drop)?)
    }
}

/// One record: a mapping that can be executed, or a name.
fn side_record(count: u64) -> Result<()> {
    if count.is_multiple_of(2) {
        black_box(MmapMut::map_anon(4096)?.make_exec()?);
        return Ok(());
    }
    Ok(nix::sys::prctl::set_name(c"calibrate")?)
}

fn task() -> Result<()> {
    let spawned = thread::Builder::new().stack_size(64 << 10).spawn(|| {})?;
    spawned.join().map_err(|_| anyhow::anyhow!("a thread failed"))
}

#[cfg(test)]
mod tests {
    use super::super::spin::SpinKind;
    use super::*;

    #[test]
    fn every_work_takes_time_and_ends() {
        let mut worker = Worker { spinner: Spinner::default(), partner: SwitchPartner::start().unwrap() };
        let spin = |kind| Work::Spin(SpinWork { kind, frames: 30, stack_bytes: 4096, iterations: 10_000 });
        for work in [
            spin(SpinKind::Compute),
            spin(SpinKind::Memory),
            Work::Turns(50),
            Work::SideRecords(20),
            Work::Tasks(3),
        ] {
            let done = worker.timed(work).unwrap();
            assert!(done.cpu_ns > 0 && done.wall_ns > 0, "{work:?}: {done:?}");
            let line = serde_json::to_string(&work).unwrap();
            assert_eq!(serde_json::from_str::<Work>(&line).unwrap(), work);
        }
    }
}
