//! The process while it runs, as its parent sees it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use prost::Message;

use super::message::{
    Confine, LONGEST_REPLY, LONGEST_SHORT_REPLY, Nothing, SymbolRequest, SymbolResponse, WireReply,
    WireRequest,
};
use super::part_counts::is_bounded;
use crate::sys::confine::ProcessBounds;
use crate::sys::{clock, family, passing};

/// How often it is looked whether a request takes too long.
const LOOK_EVERY_MS: u16 = 200;
/// The same where a request may only take what there is CPU time for.
const PACED_LOOK_EVERY_MS: u16 = 20;
/// Longest time that the process is stopped during one request: a host without CPU time to spare gets names, too.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// For a process that was killed to be gone. One that waits for a disk takes longer, and is reaped later.
const TO_END: Duration = Duration::from_millis(500);
/// No request may take more CPU time than this.
const LONGEST: Duration = Duration::from_secs(600);
/// How much longer than its CPU time a request may take where other programs keep the CPUs.
const MOST_PER_CPU: u32 = 30;
/// Files that are looked for in one request: split debug information has one for each unit.
const MOST_QUESTIONS: u32 = 100_000;

/// What a request may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// CPU time of the process.
    pub(super) cpu: Duration,
    /// Time in which the process does not use any.
    pub(super) still: Duration,
}

impl Default for Patience {
    /// Far more than our own reader takes, which has a budget by the length of the file.
    fn default() -> Self {
        Self { cpu: Duration::from_secs(20), still: Duration::from_secs(20) }
    }
}

impl Patience {
    /// So much more for a file of this length: a second for each 8 MiB.
    pub(super) fn for_bytes(self, bytes: u64) -> Self {
        let more = Duration::from_secs(bytes >> 23);
        Self { cpu: (self.cpu + more).min(LONGEST), ..self }
    }
}

/// Says whether the process may go on, told what CPU time it has used since the last call (ns).
pub(crate) type CpuAllowance = Arc<dyn Fn(u64) -> bool + Send + Sync>;

/// How a process is started that serves as [`super::serve::run`] does.
#[derive(Clone, Debug)]
pub(super) struct SymbolizerProgram {
    pub(super) path: &'static str,
    pub(super) arguments: &'static [&'static str],
}

/// Why a request has no reply: the process is of no use any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Broken {
    pub(super) how: String,
    /// Whether it ended of itself: for want of memory perhaps, which other files had taken.
    pub(super) has_ended: bool,
}

impl Broken {
    /// It is there, and of no use.
    pub(super) fn useless(how: &str) -> Self {
        Self { how: how.to_owned(), has_ended: false }
    }
}

/// Why there is no process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NotStarted(pub(super) String);

/// A process that was shut in and waits for requests. It is killed when dropped.
pub(super) struct Running {
    child: Child,
    socket: OwnedFd,
    /// What it may take of address space (bytes).
    pub(super) address_bytes: u64,
}

/// A file that the process asks for, which is all that it may.
pub(super) enum Question {
    /// By its path.
    Open(Vec<u8>),
    /// By its build id.
    Fetch(String),
}

impl Running {
    pub(super) fn start(
        program: &SymbolizerProgram,
        bounds: ProcessBounds,
        patience: Patience,
    ) -> Result<Self, NotStarted> {
        let failed = |error: io::Error| NotStarted(format!("it could not be started ({error})"));
        let (socket, theirs) = passing::pair().map_err(failed)?;
        let mut command = Command::new(program.path);
        command.args(program.arguments).env_clear().current_dir("/");
        command.stdin(theirs).stdout(Stdio::null()).stderr(Stdio::null());
        command.process_group(0); // Ctrl-C in a terminal does not reach it
        let child = family::start(&mut command).map_err(failed)?;
        drop(command); // and with it the other end of the socket
        let mut running = Self { child, socket, address_bytes: bounds.address_bytes };
        let ProcessBounds { address_bytes, cpu_s, files } = bounds;
        let confine = SymbolRequest::Confine(Confine { address_bytes, cpu_s, files });
        match running.request(confine, None, patience, None, &mut |_| None) {
            Ok(SymbolResponse::Confined(confined)) if confined.problem.is_empty() => Ok(running),
            Ok(SymbolResponse::Confined(confined)) => {
                Err(NotStarted(format!("it was not permitted {}", confined.problem)))
            }
            Ok(_) => Err(NotStarted("the program that was started is not sweetspot".to_owned())),
            Err(broken) => Err(NotStarted(broken.how)),
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// CPU time that it has used (ns).
    pub(super) fn cpu_ns(&self) -> u64 {
        clock::process_cpu_ns(self.pid()).unwrap_or(0)
    }

    /// Whether it can be asked.
    pub(super) fn is_alive(&mut self) -> bool {
        self.reap().is_none()
    }

    /// Sends a request that has no reply.
    pub(super) fn notify(&self, request: SymbolRequest) {
        let mut waiting = Waiting::new(self, Patience::default(), None);
        let mut wait = || waiting.until(self.socket.as_fd(), PollFlags::POLLOUT);
        let body = WireRequest { request: Some(request) }.encode_to_vec();
        let _ = passing::send(self.socket.as_fd(), &body, None, &mut wait); // the next request finds out
    }

    /// The same, if there is room for it now; whether there was. After an error the process is of no use any more.
    pub(super) fn notify_at_once(&self, request: SymbolRequest) -> io::Result<bool> {
        let body = WireRequest { request: Some(request) }.encode_to_vec();
        passing::send_at_once(self.socket.as_fd(), &body)
    }

    /// Sends a request, with the file that it is about, and waits for the reply. Files that the process asks for meanwhile are given by
    /// `answer`.
    pub(super) fn request(
        &mut self,
        request: SymbolRequest,
        file: Option<&File>,
        patience: Patience,
        allowance: Option<CpuAllowance>,
        answer: &mut dyn FnMut(Question) -> Option<File>,
    ) -> Result<SymbolResponse, Broken> {
        let mut waiting = Waiting::new(self, patience, allowance);
        let mut questions = 0;
        let exchanged = self.exchange(request, file, &mut waiting, &mut |question| {
            questions += 1;
            if questions > MOST_QUESTIONS { None } else { answer(question) }
        });
        let why_late = waiting.late.take();
        exchanged.map_err(|error| {
            let has_ended = why_late.is_none() && error.kind() != io::ErrorKind::InvalidData;
            Broken { how: why_late.unwrap_or_else(|| self.how_it_ended(&error)), has_ended }
        })
    }

    fn exchange(
        &self,
        request: SymbolRequest,
        file: Option<&File>,
        waiting: &mut Waiting,
        answer: &mut dyn FnMut(Question) -> Option<File>,
    ) -> io::Result<SymbolResponse> {
        let has_names = matches!(request, SymbolRequest::LookUp(_));
        let longest = if has_names { LONGEST_REPLY } else { LONGEST_SHORT_REPLY };
        self.send(request, file, waiting)?;
        loop {
            let mut wait = || waiting.until(self.socket.as_fd(), PollFlags::POLLIN);
            let received = passing::receive(self.socket.as_fd(), longest, &mut wait)?;
            let (body, _) = received.ok_or(io::ErrorKind::UnexpectedEof)?;
            if !is_bounded(&body) {
                return Err(io::ErrorKind::InvalidData.into());
            }
            let reply = WireReply::decode(body.as_slice()).map_err(|_| io::ErrorKind::InvalidData)?;
            let question = match reply.response.ok_or(io::ErrorKind::InvalidData)? {
                SymbolResponse::Open(path) => Question::Open(path),
                SymbolResponse::Fetch(build_id) => Question::Fetch(build_id),
                response => return Ok(response),
            };
            let asked = Instant::now();
            let file = answer(question);
            waiting.forgive(asked.elapsed());
            let bytes = file.as_ref().and_then(|file| Some(file.metadata().ok()?.len()));
            waiting.patience = waiting.patience.for_bytes(bytes.unwrap_or(0));
            self.send(SymbolRequest::File(Nothing {}), file.as_ref(), waiting)?;
        }
    }

    fn send(&self, request: SymbolRequest, file: Option<&File>, waiting: &mut Waiting) -> io::Result<()> {
        let body = WireRequest { request: Some(request) }.encode_to_vec();
        let mut wait = || waiting.until(self.socket.as_fd(), PollFlags::POLLOUT);
        passing::send(self.socket.as_fd(), &body, file.map(AsFd::as_fd), &mut wait)
    }

    /// In words, of one that does not answer.
    fn how_it_ended(&mut self, error: &io::Error) -> String {
        match error.kind() {
            io::ErrorKind::InvalidData => "it sent an invalid response".to_owned(),
            _ => self.wait(TO_END).map_or_else(|| format!("it stopped answering ({error})"), in_words),
        }
    }

    /// How it ended, if it does within this time.
    fn wait(&mut self, patience: Duration) -> Option<ExitStatus> {
        let until = Instant::now() + patience;
        loop {
            let ended = self.reap();
            if ended.is_some() || Instant::now() >= until {
                return ended;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// How it ended, if it has. Its CPU time is read before its number is given to another.
    fn reap(&mut self) -> Option<ExitStatus> {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        match waitid(Id::Pid(Pid::from_raw(self.pid() as i32)), flags) {
            Ok(WaitStatus::StillAlive) => return None,
            Ok(_) => family::end(self.pid()),
            Err(_) => {} // reaped by now
        }
        self.child.try_wait().ok().flatten()
    }

    /// Kills it. One that does not end soon, since it waits for a disk, is returned: its parent has to reap it later.
    pub(super) fn end(mut self) -> Option<Self> {
        let _ = self.child.kill();
        self.wait(TO_END).is_none().then_some(self)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        self.wait(TO_END);
        family::end(self.pid());
    }
}

fn in_words(status: ExitStatus) -> String {
    let signal = status.signal().and_then(|number| Signal::try_from(number).ok());
    match (signal, status.code()) {
        (Some(Signal::SIGSYS), _) => "it made a system call that it may not make".to_owned(),
        (Some(Signal::SIGXCPU), _) => "it used up its CPU time".to_owned(),
        (Some(Signal::SIGKILL), _) => "it was killed, perhaps for lack of memory".to_owned(),
        (Some(signal), _) => format!("it ended by {signal}"),
        (None, code) => format!("it ended with status {}", code.unwrap_or(-1)),
    }
}

/// The time that a request takes.
struct Waiting {
    pid: u32,
    patience: Patience,
    began_ns: u64,
    /// A process that works a little now and then has an end too.
    until: Instant,
    /// The last CPU time that was seen (ns), and when it had changed.
    last: (u64, Instant),
    looked: Instant,
    /// Why no more is waited.
    late: Option<String>,
    /// None where it may take what it needs.
    allowance: Option<CpuAllowance>,
    /// Whether it is stopped until there is CPU time for it.
    is_stopped: bool,
    /// For how long it was, in this request.
    stopped_for: Duration,
}

impl Waiting {
    fn new(running: &Running, patience: Patience, allowance: Option<CpuAllowance>) -> Self {
        let (cpu_ns, now) = (running.cpu_ns(), Instant::now());
        let until = now + MOST_PER_CPU * patience.cpu;
        Self {
            pid: running.pid(),
            patience,
            began_ns: cpu_ns,
            until,
            last: (cpu_ns, now),
            looked: now,
            late: None,
            allowance,
            is_stopped: false,
            stopped_for: Duration::ZERO,
        }
    }

    /// Waits until something can be sent or received, as long as the process may take.
    fn until(&mut self, socket: BorrowedFd<'_>, what: PollFlags) -> io::Result<()> {
        let look_every_ms = if self.allowance.is_some() { PACED_LOOK_EVERY_MS } else { LOOK_EVERY_MS };
        loop {
            if self.looked.elapsed() >= Duration::from_millis(look_every_ms.into()) {
                self.look()?;
            }
            let ready = poll(&mut [PollFd::new(socket, what)], PollTimeout::from(look_every_ms));
            match ready {
                Ok(0) | Err(Errno::EINTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn look(&mut self) -> io::Result<()> {
        let passed = self.looked.elapsed();
        self.looked = Instant::now();
        let cpu_ns = clock::process_cpu_ns(self.pid).unwrap_or(self.last.0);
        self.pace(cpu_ns.saturating_sub(self.last.0), passed);
        if cpu_ns != self.last.0 {
            self.last = (cpu_ns, self.looked);
        }
        let used = Duration::from_nanos(cpu_ns.saturating_sub(self.began_ns));
        if used > self.patience.cpu {
            self.late = Some(format!("it had not answered after {} s of CPU time", used.as_secs()));
        } else if self.last.1.elapsed() > self.patience.still || self.looked > self.until {
            self.late = Some(format!("it made no progress for {} s", self.last.1.elapsed().as_secs()));
        }
        if self.late.is_some() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(()) }
    }

    /// Stops the process where it has used up what it may, and continues it when there is CPU time again. Since the
    /// last look, it has used `used_ns` in the time that `passed`.
    fn pace(&mut self, used_ns: u64, passed: Duration) {
        let Some(allowance) = &self.allowance else { return };
        let goes_on = allowance(used_ns) || self.stopped_for >= LONGEST_PAUSE;
        if self.is_stopped {
            self.stopped_for += passed;
            self.forgive(passed);
        }
        if goes_on == self.is_stopped {
            self.is_stopped = !goes_on;
            self.signal(if goes_on { Signal::SIGCONT } else { Signal::SIGSTOP });
        }
    }

    fn signal(&self, signal: Signal) {
        let _ = kill(Pid::from_raw(self.pid as i32), signal); // if it has ended, the wait for its answer says so
    }

    /// The process waited for us meanwhile.
    fn forgive(&mut self, time: Duration) {
        self.last.1 = Instant::now();
        self.until += time;
    }
}

impl Drop for Waiting {
    /// A request that is given up leaves no stopped process to the next.
    fn drop(&mut self) {
        if self.is_stopped {
            self.signal(Signal::SIGCONT);
        }
    }
}
