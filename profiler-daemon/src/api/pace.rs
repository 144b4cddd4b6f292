//! How often those are answered who have shown no right to ask: each such answer costs as much as another, and the host's
//! budget is not theirs.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// So long each of them takes in the long run.
const EACH: Duration = Duration::from_millis(50);
/// So many may come at once.
const AT_ONCE: u32 = 40;

/// A bucket of answers. Who finds none waits: connections are few, and each waits for one answer at a time.
#[derive(Debug, Default)]
pub(super) struct Pace(Mutex<Option<Instant>>);

impl Pace {
    /// When the next answer may be given, if somebody asks now.
    fn next(&self, now: Instant) -> Instant {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let full = now.checked_sub(EACH * AT_ONCE).unwrap_or(now);
        let next = taken.map_or(full, |taken| taken.max(full)) + EACH;
        *taken = Some(next);
        next
    }

    /// Waits for one.
    pub(super) async fn wait(&self) {
        let next = self.next(Instant::now());
        sleep_until(next).await; // at once, where that is past
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_are_answered_at_once_and_the_others_one_after_the_other() {
        let (pace, begin) = (Pace::default(), Instant::now() + Duration::from_secs(3600));
        let waits = |at: Instant| pace.next(at).saturating_duration_since(at);
        assert!((0..AT_ONCE).all(|_| waits(begin).is_zero()));
        assert_eq!([waits(begin), waits(begin)], [EACH, EACH * 2]);
        let later = begin + EACH * 10;
        assert!((0..8).all(|_| waits(later).is_zero()));
        assert_eq!(waits(later), EACH);
        let much_later = begin + Duration::from_secs(3600);
        assert!((0..AT_ONCE).all(|_| waits(much_later).is_zero()) && !waits(much_later).is_zero());
    }
}
