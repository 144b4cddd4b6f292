//! CPU time of reading profiles for requests. Like names, it is charged to the host's budget over the following minutes, so that one
//! request does not hold back sampling. It has to be known while it is spent: a long one takes several steps of the loop.

use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::unistd::gettid;

use crate::sys::clock;

/// What readers have used.
#[derive(Debug, Default)]
pub(super) struct ReadingTime(Mutex<Readers>);

#[derive(Debug, Default)]
struct Readers {
    ended_ns: u64,
    /// Threads that are reading, and their CPU time when they began (ns).
    running: Vec<(i32, u64)>,
}

/// A reader at work; dropped, it has ended.
struct WorkingReader<'t> {
    time: &'t ReadingTime,
    thread: i32,
}

impl ReadingTime {
    /// Counts the CPU time of `work`, which the calling thread does.
    pub(super) fn count<T>(&self, work: impl FnOnce() -> T) -> T {
        let thread = gettid().as_raw();
        self.readers().running.push((thread, clock::thread_cpu_ns()));
        let _reader = WorkingReader { time: self, thread };
        work()
    }

    /// CPU time so far (ns), with that of readers that are at work.
    pub(super) fn spent_ns(&self) -> u64 {
        let readers = self.readers();
        let so_far = |&(thread, began_ns): &(i32, u64)| {
            clock::cpu_of_thread_ns(thread).map_or(0, |now_ns| now_ns.saturating_sub(began_ns))
        };
        readers.ended_ns + readers.running.iter().map(so_far).sum::<u64>()
    }

    fn readers(&self) -> MutexGuard<'_, Readers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for WorkingReader<'_> {
    fn drop(&mut self) {
        let mut readers = self.time.readers();
        if let Some(at) = readers.running.iter().position(|(thread, _)| *thread == self.thread) {
            let (_, began_ns) = readers.running.swap_remove(at);
            readers.ended_ns += clock::thread_cpu_ns().saturating_sub(began_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn use_cpu(least_ns: u64) {
        let began_ns = clock::thread_cpu_ns();
        while clock::thread_cpu_ns() - began_ns < least_ns {}
    }

    #[test]
    fn time_counts_while_it_is_spent_and_stays() {
        const NS: u64 = 20_000_000;
        let time = ReadingTime::default();
        use_cpu(NS); // before it begins
        assert_eq!(time.spent_ns(), 0);
        let meanwhile_ns = time.count(|| {
            use_cpu(NS);
            std::thread::scope(|scope| scope.spawn(|| time.spent_ns()).join().unwrap())
        });
        let then_ns = time.spent_ns();
        assert!(meanwhile_ns >= NS && then_ns >= meanwhile_ns, "{meanwhile_ns} {then_ns}");
        use_cpu(NS);
        assert_eq!(time.spent_ns(), then_ns);
        let broken =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| time.count(|| panic!("as it may"))));
        assert!(broken.is_err() && time.readers().running.is_empty());
    }
}
