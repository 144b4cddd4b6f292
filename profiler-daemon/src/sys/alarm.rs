//! Wakes us when a thread begins to switch so often that events of its own become dear: waiting for the end of a tick
//! would spend the budget of a second.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::task::{Context, Poll};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use profiler_core::sorter::RecordQueue;
use tokio::io::unix::AsyncFd;

use super::perf_event::Event;
use super::ring::{PerfRing, page_size};

/// Fewest and most switches of a thread after which it rings.
const SWITCHES: (f64, f64) = (500.0, 4_000.0);

/// Rings when one of some threads has switched so often.
pub(crate) struct SwitchAlarm {
    /// How often.
    switches: u64,
    /// How often it has rung since it began to watch, or was told to go on.
    rings: u32,
    watched: Vec<WatchedThread>,
    /// Whom to watch, those that cannot be included.
    tids: Vec<u32>,
    silent: bool,
    /// Whether the set was seen to be ready.
    woke: Cell<bool>,
    epoll: Epoll,
    wakes: AsyncFd<Descriptor>,
}

struct WatchedThread {
    tid: u32,
    event: Event,
    ring: PerfRing,
}

/// Gives the runtime the descriptor of the set.
struct Descriptor(OwnedFd);

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl SwitchAlarm {
    /// An alarm that watches nobody yet, and rings when one thread's switches have cost `cost_ns`, at `per_switch_ns` each;
    /// needs a runtime around it.
    ///
    /// # Errors
    ///
    /// If there are no descriptors left.
    pub(crate) fn new(cost_ns: f64, per_switch_ns: f64) -> io::Result<Self> {
        let switches = (cost_ns / per_switch_ns.max(1.0)).clamp(SWITCHES.0, SWITCHES.1) as u64;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let descriptor = Descriptor(epoll.0.try_clone()?);
        // SAFETY: the descriptor belongs to the wrapper, which keeps it open and unchanged until it is dropped.
        let wakes = unsafe { AsyncFd::register(descriptor) }?;
        Ok(Self {
            switches,
            rings: 0,
            watched: Vec::new(),
            tids: Vec::new(),
            silent: false,
            woke: Cell::new(false),
            epoll,
            wakes,
        })
    }

    /// Watches these threads and no others. One that cannot be watched, since it has ended or since that is not permitted, is
    /// left out: what its switches cost is then seen at the next tick.
    pub(crate) fn watch(&mut self, tids: &[u32]) {
        if self.tids != tids {
            self.tids = tids.to_vec();
            self.watched = tids.iter().filter_map(|&tid| self.open(tid).ok()).collect();
        } else if self.silent {
            self.watched.iter_mut().for_each(|watched| drop(watched.event.enable())); // of one that ended nothing is missed
        }
        (self.silent, self.rings) = (false, 0);
    }

    /// Whether anybody's switches are counted, which makes them dearer.
    pub(crate) fn is_watching(&self) -> bool {
        !self.silent && !self.watched.is_empty()
    }

    /// How often it has rung since [`watch`](Self::watch).
    pub(crate) fn rings(&self) -> u32 {
        self.rings
    }

    fn open(&self, tid: u32) -> io::Result<WatchedThread> {
        let mut event = Event::switch_alarm(tid, self.switches)?;
        let ring = PerfRing::map(event.fd(), page_size())?;
        // SAFETY: the descriptor is open as long as the event, which leaves the set when it is closed.
        let fd = unsafe { BorrowedFd::borrow_raw(event.fd()) };
        self.epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, u64::from(tid)))?;
        event.enable()?;
        Ok(WatchedThread { tid, event, ring })
    }

    /// Whether it has rung since the last call.
    pub(crate) fn take_rung(&mut self) -> bool {
        let mut rung = false;
        for WatchedThread { ring, .. } in &mut self.watched {
            while ring.front().is_some() {
                ring.pop();
                rung = true;
            }
        }
        if rung {
            self.rings += 1;
        }
        if self.woke.take() || rung {
            self.calm_set();
        }
        rung
    }

    /// What was seen is taken out of the set, or the set would stay ready; so would it with the event of a thread that has ended.
    fn calm_set(&mut self) {
        let mut ready = [EpollEvent::empty(); 16];
        let count = self.epoll.wait(&mut ready, EpollTimeout::ZERO).unwrap_or(0);
        let has_ended =
            |event: &EpollEvent| event.events().intersects(EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR);
        for event in ready[..count].iter().filter(|event| has_ended(event)) {
            self.watched.retain(|watched| u64::from(watched.tid) != event.data());
        }
    }

    /// What becomes readable when it rings, for whoever sleeps without the runtime; `None` while nobody is watched.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.is_watching().then(|| self.epoll.0.as_fd())
    }

    /// It was seen to be readable.
    pub(crate) fn has_woken(&self) {
        self.woke.set(true);
    }

    /// Whether it has rung, for whoever only asks.
    pub(crate) fn is_ringing(&self) -> bool {
        self.watched.iter().any(|watched| !watched.ring.is_empty())
    }

    /// Rings no more until [`watch`](Self::watch).
    pub(crate) fn silence(&mut self) {
        self.silent = true;
        for WatchedThread { event, .. } in &mut self.watched {
            let _ = event.disable(); // what cannot be stopped rings once more
        }
    }

    /// Whether it rings, for whoever waits for one of several.
    pub(crate) fn poll_rung(&self, context: &mut Context<'_>) -> Poll<()> {
        match self.wakes.poll_read_ready(context) {
            Poll::Ready(Ok(mut ready)) => {
                ready.clear_ready();
                Poll::Ready(())
            }
            Poll::Ready(Err(_)) | Poll::Pending => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::unistd::gettid;

    use super::*;
    use crate::run::runtime;

    /// Two threads pass a byte to and fro; the one that is watched is the test's own.
    fn switch(times: u64) {
        let (here, there) = std::os::unix::net::UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| echo(&there, times));
            for _ in 0..times {
                nix::unistd::write(&here, &[1]).unwrap();
                nix::unistd::read(&here, &mut [0]).unwrap();
            }
        });
    }

    fn echo(there: &std::os::unix::net::UnixStream, times: u64) {
        for _ in 0..times {
            nix::unistd::read(there, &mut [0]).unwrap();
            nix::unistd::write(there, &[1]).unwrap();
        }
    }

    #[test]
    fn it_rings_for_a_storm_and_not_for_a_few_switches() {
        if crate::run::try_open().is_err() {
            return; // perf events are not permitted here
        }
        runtime().unwrap().block_on(async {
            const SWITCHES: u64 = 2_000;
            let mut alarm = SwitchAlarm::new(1e6, 500.0).unwrap();
            assert_eq!(alarm.switches, SWITCHES);
            alarm.watch(&[gettid().as_raw() as u32, u32::MAX >> 1]);
            if alarm.watched.is_empty() {
                return; // nor are context switches counted
            }
            switch(10);
            assert!(!alarm.take_rung());
            switch(2 * SWITCHES);
            std::future::poll_fn(|context| alarm.poll_rung(context)).await;
            assert!(alarm.take_rung() && !alarm.take_rung());
            assert!(alarm.rings() == 1 && alarm.is_watching());
            alarm.silence();
            assert!(!alarm.is_watching());
            switch(2 * SWITCHES);
            assert!(!alarm.take_rung());
            alarm.watch(&alarm.tids.clone());
            switch(2 * SWITCHES);
            assert!(alarm.take_rung());
        });
    }
}
