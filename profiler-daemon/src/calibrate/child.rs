//! The process that does the work, as the profiler sees it.

use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::workload::{Done, Work};
use crate::sys::procfs;

/// A process of ours that waits for work. It is ended when dropped.
pub(super) struct WorkerProcess {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl WorkerProcess {
    /// Starts it on `cpu`.
    pub(super) fn start(cpu: u32) -> Result<Self> {
        let mut command = Command::new("/proc/self/exe"); // the same program, even if its file was replaced
        command.args(["calibrate-workload", "--cpu", &cpu.to_string()]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("the process to be sampled could not be started")?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (input, output) = pipes.context("the process to be sampled has no pipes")?;
        Ok(Self { child, input, output: BufReader::new(output) })
    }

    /// Its process id, which is that of its main thread too.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its threads.
    pub(super) fn threads(&self) -> Vec<u32> {
        procfs::threads(self.pid())
    }

    /// Lets it begin some work.
    pub(super) fn begin(&mut self, work: Work) -> Result<()> {
        let line = serde_json::to_string(&work)? + "\n";
        self.input.write_all(line.as_bytes()).context(ENDED)
    }

    /// What the work took, if it is done within `patience`.
    pub(super) fn done_within(&mut self, patience: Duration) -> Result<Option<Done>> {
        if self.output.buffer().is_empty() && !self.is_readable(patience)? {
            return Ok(None);
        }
        self.done().map(Some)
    }

    /// Waits for what the work took.
    pub(super) fn done(&mut self) -> Result<Done> {
        let mut line = String::new();
        if self.output.read_line(&mut line).context(ENDED)? == 0 {
            bail!(ENDED);
        }
        serde_json::from_str(&line).context(ENDED)
    }

    fn is_readable(&self, patience: Duration) -> Result<bool> {
        let timeout = PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX);
        let mut files = [PollFd::new(self.output.get_ref().as_fd(), PollFlags::POLLIN)];
        match poll(&mut files, timeout) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::EINTR) => Ok(false),
            Err(error) => Err(io::Error::from(error).into()),
        }
    }
}

/// What to make of a broken pipe.
const ENDED: &str =
    "the process to be sampled ended before its work was done; run `sweetspot calibrate` again";

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
