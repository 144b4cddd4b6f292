//! Rate limit for unauthorized requests: each response costs as much as any other, and the host's budget pays
//! for it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::connection_slots::network_of;

/// So long each of them takes in the long run.
const EACH: Duration = Duration::from_millis(50);
/// So many may come at once.
const AT_ONCE: u32 = 40;
/// So many times as much is there for all addresses of the network together.
const TOGETHER: u32 = 5;
/// Addresses that are remembered at a time; the others share a bucket.
const MOST_ADDRESSES: usize = 1024;
/// The longest wait for a bucket: connections that ended before their turn have taken theirs too. As long as 64
/// connections wait at [`EACH`], which is as many as a listener has.
const MOST_WAIT: Duration = Duration::from_millis(64 * 50);

/// A bucket of answers. Who finds none waits: connections are few, and each waits for one answer at a time.
#[derive(Debug, Default)]
pub(super) struct AnswerPace(Mutex<Option<Instant>>);

impl AnswerPace {
    /// When the next answer may be given, if somebody asks now.
    fn next(&self, now: Instant) -> Instant {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        take(&mut taken, now, EACH)
    }

    /// Waits for one.
    pub(super) async fn wait(&self) {
        let next = self.next(Instant::now());
        sleep_until(next).await; // at once, where that is past
    }
}

/// Takes one of a bucket's, of which each takes this long.
fn take(taken: &mut Option<Instant>, now: Instant, each: Duration) -> Instant {
    let full = now.checked_sub(each * AT_ONCE).unwrap_or(now);
    let next = (taken.map_or(full, |taken| taken.max(full)) + each).min(now + MOST_WAIT);
    *taken = Some(next);
    next
}

/// The same for the network: a bucket for each address, and one for all of them, which an address takes from only when
/// its own turn has come: so one that asks too much, or leaves while it waits, does not delay the others.
#[derive(Debug, Default)]
pub(super) struct Paces(Mutex<Buckets>);

#[derive(Debug, Default)]
struct Buckets {
    all: Option<Instant>,
    of: HashMap<IpAddr, Option<Instant>>,
    /// Of those that are not remembered.
    others: Option<Instant>,
}

impl Paces {
    /// When an address's own bucket lets it have an answer.
    fn next_of(&self, from: IpAddr, now: Instant) -> Instant {
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.of.len() >= MOST_ADDRESSES {
            buckets.of.retain(|_, taken| taken.is_some_and(|taken| taken > now)); // the others are nearly full
        }
        let from = network_of(from);
        let is_full = buckets.of.len() >= MOST_ADDRESSES && !buckets.of.contains_key(&from);
        let bucket = if is_full { &mut buckets.others } else { buckets.of.entry(from).or_default() };
        take(bucket, now, EACH)
    }

    /// When the bucket of all lets it.
    fn next_of_all(&self, now: Instant) -> Instant {
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        take(&mut buckets.all, now, EACH / TOGETHER)
    }

    /// Waits for one.
    pub(super) async fn wait(&self, from: IpAddr) {
        sleep_until(self.next_of(from, Instant::now())).await;
        sleep_until(self.next_of_all(Instant::now())).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_are_answered_at_once_and_the_others_one_after_the_other() {
        let (pace, begin) = (AnswerPace::default(), Instant::now() + Duration::from_secs(3600));
        let waits = |at: Instant| pace.next(at).saturating_duration_since(at);
        assert!((0..AT_ONCE).all(|_| waits(begin).is_zero()));
        assert_eq!([waits(begin), waits(begin)], [EACH, EACH * 2]);
        let later = begin + EACH * 10;
        assert!((0..8).all(|_| waits(later).is_zero()));
        assert_eq!(waits(later), EACH);
        let much_later = begin + Duration::from_secs(3600);
        assert!((0..AT_ONCE).all(|_| waits(much_later).is_zero()) && !waits(much_later).is_zero());
    }

    #[test]
    fn an_address_that_asks_too_much_delays_itself_and_nobody_else() {
        let (paces, now) = (Paces::default(), Instant::now() + Duration::from_secs(3600));
        let waits =
            |last: u8| paces.next_of(IpAddr::from([10, 0, 0, last]), now).saturating_duration_since(now);
        assert!((0..AT_ONCE).all(|_| waits(1).is_zero()));
        assert_eq!(waits(1), EACH);
        assert!(waits(2).is_zero());
        // All together have their bound as well.
        let together = || paces.next_of_all(now).saturating_duration_since(now);
        assert!((0..AT_ONCE).all(|_| together().is_zero()));
        assert_eq!(together(), EACH / TOGETHER);
    }

    #[test]
    fn those_who_leave_while_they_wait_delay_nobody() {
        let (paces, now) = (Paces::default(), Instant::now() + Duration::from_secs(3600));
        let waits =
            |last: u8| paces.next_of(IpAddr::from([10, 0, 0, last]), now).saturating_duration_since(now);
        for _ in 0..100_000 {
            waits(1);
        }
        assert_eq!((waits(1), waits(2)), (MOST_WAIT, Duration::ZERO));
        assert!(paces.next_of_all(now) <= now, "they took nothing of all others'");
    }

    #[test]
    fn addresses_are_remembered_within_a_bound() {
        let (paces, now) = (Paces::default(), Instant::now() + Duration::from_secs(3600));
        for at in 0..3 * MOST_ADDRESSES as u32 {
            paces.next_of(IpAddr::from(at.to_be_bytes()), now);
        }
        assert!(paces.0.lock().unwrap().of.len() <= MOST_ADDRESSES);
    }
}
