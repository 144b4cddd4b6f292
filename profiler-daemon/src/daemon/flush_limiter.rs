//! Limits how often a target's window is ended early for a request.
//!
//! A request ends the window instead of reading the open one: an open window has no names and is in no file,
//! so its samples would be named again for each request, and responses would come from two places that have
//! to agree. Each early end makes a file of its own until it is merged. So they are limited: many at once,
//! for a person who looks around; fewer in the long run, for a program that requests every second. Such a
//! request waits, and gets a complete response.

/// A window younger than this is not ended early (ns).
const SHORTEST_NS: u64 = 1_000_000_000;
/// Early ends that may follow each other directly.
const AT_ONCE: f64 = 10.0;
/// In the long run, one early end is allowed in this time (ns).
const EVERY_NS: f64 = 6e9;
/// How many early ends the allowance may be overdrawn by: the next one is allowed at most 24 s after the last, if the
/// window is a second old. That is within the time that a request may take (`ApiBounds::answer`).
const OVERDRAWN: f64 = 3.0;

/// The ends that are left to a target.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlushLimiter {
    left: f64,
    at_ns: u64,
}

impl Default for FlushLimiter {
    fn default() -> Self {
        Self { left: AT_ONCE, at_ns: 0 }
    }
}

impl FlushLimiter {
    /// When a window that began at `from_ns` may be ended. At the end of a requested time range (`is_end`), only the
    /// minimum age applies, not the allowance.
    pub(super) fn when(&self, from_ns: u64, is_end: bool) -> u64 {
        let old_enough_ns = from_ns.saturating_add(SHORTEST_NS);
        let missing_ns = if is_end { 0.0 } else { (1.0 - self.left).max(0.0) * EVERY_NS };
        old_enough_ns.max(self.at_ns.saturating_add(missing_ns.ceil() as u64))
    }

    /// A window was ended.
    pub(super) fn take(&mut self, now_ns: u64) {
        let came = now_ns.saturating_sub(self.at_ns) as f64 / EVERY_NS;
        self.left = ((self.left + came).min(AT_ONCE) - 1.0).max(-OVERDRAWN);
        self.at_ns = now_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Ends windows as soon as they may be; `is_end` tells which of them end a time. How many there are in so many seconds.
    fn ends(seconds: u64, is_end: impl Fn(usize) -> bool) -> usize {
        let (mut flush_limiter, mut now_ns) = (FlushLimiter::default(), 1000 * SECOND);
        let until_ns = now_ns + seconds * SECOND;
        for count in 0.. {
            let next_ns = flush_limiter.when(now_ns, is_end(count));
            assert!(next_ns >= now_ns + SECOND, "a window of less than a second");
            assert!(next_ns <= now_ns + 24 * SECOND + 1, "more than a request waits for");
            now_ns = next_ns;
            if now_ns > until_ns {
                return count;
            }
            flush_limiter.take(now_ns);
        }
        unreachable!()
    }

    #[test]
    fn a_person_may_look_ten_times_and_a_program_ten_times_a_minute() {
        assert_eq!(ends(10, |_| false), 10);
        let hour = ends(3600, |_| false);
        assert!((600..=612).contains(&hour), "{hour}");
        // A begin and an end in turns, as of one who asks for the next second again and again.
        let pairs = ends(3600, |count| count % 2 == 1);
        assert!((600..=612).contains(&pairs), "{pairs}");
    }

    #[test]
    fn the_end_of_a_time_waits_for_nothing_but_its_second() {
        assert_eq!(ends(100, |_| true), 100);
        let mut flush_limiter = FlushLimiter::default();
        (0..100).for_each(|at| flush_limiter.take(at * SECOND));
        assert_eq!(flush_limiter.when(100 * SECOND, true), 101 * SECOND);
        assert!(flush_limiter.when(100 * SECOND, false) <= 99 * SECOND + 24 * SECOND);
        // Whoever has not asked for a while may again.
        flush_limiter.take(1000 * SECOND);
        assert_eq!(flush_limiter.when(1000 * SECOND, false), 1001 * SECOND);
    }
}
