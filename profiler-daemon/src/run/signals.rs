//! What wakes a run: signals, its timer, and the alarm for a storm of context switches.
//!
//! A run sleeps in one `ppoll` per step. The async runtime is asked for signals after a sleep that a signal
//! ended, and once a second.

use std::io;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::time::TimeSpec;
use signal_hook::SigId;
use signal_hook::flag;
use signal_hook::low_level::unregister;
use tokio::signal::unix::{Signal as SignalStream, SignalKind, signal};

use super::names::CancelFlag;
use crate::sys::alarm::SwitchAlarm;
use crate::sys::signal::is_ignored;
use crate::sys::timer::Timer;

/// The signals that a run reacts to.
pub(crate) struct Signals {
    interrupt: SignalStream,
    terminate: SignalStream,
    /// None where hang-ups are ignored, as under `nohup`.
    hang_up: Option<SignalStream>,
    child: SignalStream,
    timer: Timer,
    /// The signal mask from before signals were limited to the sleeps between turns; `None` if they are not.
    put_off: Option<SigSet>,
    /// Whether a signal came that a child's end may have sent, or the runtime was asked for one.
    may_have_ended: bool,
    /// When the runtime was last asked.
    asked: Instant,
}

/// How long the runtime is asked which signal ended a sleep: it already knows.
const AT_HAND: Duration = Duration::from_millis(5);

/// How often the runtime is asked where no signal ended a sleep: one may have come in on another thread. And for how long.
const ASK_EVERY: Duration = Duration::from_secs(1);
const AT_ONCE: Duration = Duration::from_micros(100);

/// Those that ask to stop.
const TO_STOP: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];

/// Holds back signals that ask to stop until they are listened for: from the moment when something is in another
/// process that only our regular end removes.
pub(super) fn put_off() -> Result<()> {
    SigSet::from_iter(TO_STOP).thread_block().context("signals could not be blocked")
}

fn caught() -> SigSet {
    SigSet::from_iter(TO_STOP.into_iter().chain([Signal::SIGCHLD]))
}

impl Signals {
    /// Catches them, also those that were blocked by us or our parent: one of these may be pending, and would end us if
    /// it was not caught.
    pub(crate) fn listen() -> Result<Self> {
        let listen = |kind| signal(kind).context("signals could not be caught");
        let signals = Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hang_up: if is_ignored(Signal::SIGHUP) { None } else { Some(listen(SignalKind::hangup())?) },
            child: listen(SignalKind::child())?,
            timer: Timer::new().context("the timer could not be made")?,
            put_off: None,
            may_have_ended: true,
            asked: Instant::now(),
        };
        caught().thread_unblock().context("signals could not be unblocked")?;
        Ok(signals)
    }

    /// Waits for `pause`, or for a signal; returns the one that asks to stop.
    pub(crate) async fn wait(&mut self, pause: Duration) -> Option<Signal> {
        self.open();
        self.wait_in_runtime(pause).await
    }

    /// [`Self::wait`], or until the alarm rings. The runtime has nothing else to do and is left out: that takes one
    /// system call instead of four, on a path short enough to still be in the caches a tenth of a second later.
    pub(super) async fn wait_or_alarm(
        &mut self,
        pause: Duration,
        alarm: Option<&SwitchAlarm>,
    ) -> Option<Signal> {
        let is_first = self.put_off.is_none(); // a signal may have come in before signals were put off to the sleeps
        if is_first {
            self.put_off_to_sleeps();
        }
        let came = !is_first && self.sleep(pause, alarm);
        if !(is_first || came || self.asked.elapsed() >= ASK_EVERY) {
            return None;
        }
        self.asked = Instant::now();
        self.may_have_ended = true;
        self.wait_in_runtime(if came { AT_HAND } else { AT_ONCE }).await
    }

    /// Whether a child may have ended since the last call.
    pub(super) fn take_may_have_ended(&mut self) -> bool {
        std::mem::take(&mut self.may_have_ended)
    }

    /// Sleeps for `pause`, or until the alarm rings or a signal comes; returns whether one did. Signals come in here and
    /// nowhere else: one that came before the sleep would be slept through.
    fn sleep(&mut self, pause: Duration, alarm: Option<&SwitchAlarm>) -> bool {
        let open = self.put_off_to_sleeps();
        let alarm = alarm.and_then(|alarm| Some((alarm, alarm.descriptor()?)));
        let mut watched = alarm.map(|(_, descriptor)| PollFd::new(descriptor, PollFlags::POLLIN));
        let watched = watched.as_mut_slice();
        match ppoll(watched, Some(TimeSpec::from_duration(pause)), Some(open)) {
            Ok(ready) => {
                if let Some((alarm, _)) = alarm.filter(|_| ready > 0) {
                    alarm.has_woken();
                }
                false
            }
            Err(_) => true,
        }
    }

    /// Limits signals to the sleeps; returns the mask to sleep with.
    fn put_off_to_sleeps(&mut self) -> SigSet {
        *self.put_off.get_or_insert_with(|| {
            let open = SigSet::thread_get_mask().unwrap_or_else(|_| SigSet::empty());
            let _ = caught().thread_block(); // a signal that comes here is reported one sleep later
            open
        })
    }

    /// Lets signals arrive at any time again.
    pub(super) fn open(&mut self) {
        if let Some(open) = self.put_off.take() {
            let _ = open.thread_set_mask();
        }
    }

    async fn wait_in_runtime(&mut self, pause: Duration) -> Option<Signal> {
        tokio::select! {
            biased;
            _ = self.interrupt.recv() => Some(Signal::SIGINT),
            _ = self.terminate.recv() => Some(Signal::SIGTERM),
            Some(_) = came(&mut self.hang_up) => Some(Signal::SIGHUP),
            _ = self.child.recv() => None,
            () = self.timer.sleep(pause) => None,
        }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.open();
    }
}

/// The next signal of a stream; none of no stream.
async fn came(stream: &mut Option<SignalStream>) -> Option<()> {
    stream.as_mut()?.recv().await
}

/// While this lives, a signal that asks to stop cancels naming, and a second one ends the process at once: nothing else
/// listens while a profile is named and written.
pub(super) struct CancelBySignal(Vec<SigId>);

impl CancelBySignal {
    /// Cancels `flag` by signals.
    pub(super) fn new(flag: &CancelFlag) -> io::Result<Self> {
        let mut registered = Self(Vec::new());
        for signal in TO_STOP.into_iter().filter(|signal| !is_ignored(*signal)) {
            let (number, status) = (signal as i32, 128 + signal as i32);
            registered.0.push(flag::register_conditional_shutdown(number, status, flag.shared())?);
            registered.0.push(flag::register(number, flag.shared())?);
        }
        Ok(registered)
    }
}

impl Drop for CancelBySignal {
    fn drop(&mut self) {
        for id in self.0.drain(..) {
            unregister(id);
        }
    }
}
