//! Connection slots for the network. An authorized connection keeps its slot. For others, each address has
//! few slots, and a new connection takes the slot of the oldest: silent connections cannot block others.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The places of a listener.
#[derive(Debug)]
pub(super) struct ConnectionSlots {
    /// Connections that have shown the token and keep their places, at most; and as many that have not.
    most: usize,
    /// Of the latter, those of one address.
    most_each: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    next: u64,
    /// Connections that have not shown the token, the oldest first.
    unproven: BTreeMap<u64, (IpAddr, Arc<Notify>)>,
    proven: usize,
}

/// A place. Dropped, it is free.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    seats: Arc<ConnectionSlots>,
    id: u64,
    lost: Arc<Notify>,
    is_proven: AtomicBool,
}

impl ConnectionSlots {
    pub(super) fn new(most: usize, most_each: usize) -> Arc<Self> {
        Arc::new(Self { most, most_each, taken: Mutex::default() })
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a connection from this address. Where there is none, the oldest connection of the address, or of the one that
    /// has the most, loses its own.
    pub(super) fn take(self: &Arc<Self>, from: IpAddr) -> ConnectionSlot {
        let from = network_of(from);
        let mut taken = self.taken();
        let mut by_address: BTreeMap<IpAddr, usize> = BTreeMap::new();
        taken.unproven.values().for_each(|(address, _)| *by_address.entry(*address).or_default() += 1);
        let is_full = taken.unproven.len() >= self.most;
        let from_whom = match by_address.get(&from) {
            Some(&count) if count >= self.most_each => Some(from),
            _ if is_full => by_address.iter().max_by_key(|(_, count)| **count).map(|(address, _)| *address),
            _ => None,
        };
        let oldest = taken.unproven.iter().find(|(_, (address, _))| Some(*address) == from_whom);
        if let Some(id) = oldest.map(|(id, _)| *id)
            && let Some((_, lost)) = taken.unproven.remove(&id)
        {
            lost.notify_one();
        }
        let (id, lost) = (taken.next, Arc::new(Notify::new()));
        taken.next += 1;
        taken.unproven.insert(id, (from, Arc::clone(&lost)));
        ConnectionSlot { seats: Arc::clone(self), id, lost, is_proven: AtomicBool::new(false) }
    }
}

impl ConnectionSlot {
    /// The token was shown: the place is kept, as far as there are such.
    pub(super) fn prove(&self) {
        let mut taken = self.seats.taken();
        if taken.proven < self.seats.most && taken.unproven.remove(&self.id).is_some() {
            taken.proven += 1;
            self.is_proven.store(true, Ordering::Relaxed);
        }
    }

    /// Ends when another connection has taken the place.
    pub(super) async fn lost(&self) {
        self.lost.notified().await;
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut taken = self.seats.taken();
        taken.unproven.remove(&self.id);
        taken.proven -= usize::from(self.is_proven.load(Ordering::Relaxed));
    }
}

/// What one client has of addresses: with IPv6, 64 bits of them.
pub(super) fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from(u128::from(address) >> 64 << 64)),
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    fn is_lost(seat: &ConnectionSlot) -> bool {
        pin!(seat.lost()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    /// Connections that have shown the token, and others.
    fn counts(seats: &ConnectionSlots) -> (usize, usize) {
        let taken = seats.taken();
        (taken.proven, taken.unproven.len())
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_shuts_itself_out_and_nobody_else() {
        let seats = ConnectionSlots::new(8, 3);
        let other = seats.take(address("10.0.0.2"));
        let held: Vec<ConnectionSlot> = (0..20).map(|_| seats.take(address("10.0.0.1"))).collect();
        let lost: Vec<bool> = held.iter().map(is_lost).collect();
        assert_eq!(lost, [[true; 17].as_slice(), &[false; 3]].concat(), "the oldest");
        assert!(!is_lost(&other));
        drop(held);
        assert_eq!(seats.taken().unproven.len(), 1);
    }

    #[test]
    fn many_addresses_take_from_the_one_that_has_most() {
        let seats = ConnectionSlots::new(8, 3);
        let greedy: Vec<ConnectionSlot> = (0..3).map(|_| seats.take(address("10.0.0.1"))).collect();
        let others: Vec<ConnectionSlot> =
            (1..=6_u8).map(|last| seats.take(IpAddr::from([10, 0, 1, last]))).collect();
        assert_eq!(greedy.iter().map(is_lost).collect::<Vec<_>>(), [true, false, false]);
        assert!(!others.iter().any(is_lost));
        assert_eq!(seats.taken().unproven.len(), 8);
    }

    #[test]
    fn whoever_has_shown_the_token_keeps_his_place() {
        let seats = ConnectionSlots::new(2, 1);
        let proven: Vec<ConnectionSlot> = (0..3)
            .map(|_| {
                let seat = seats.take(address("10.0.0.1"));
                seat.prove();
                seat.prove(); // each request shows it
                seat
            })
            .collect();
        assert_eq!(counts(&seats), (2, 1), "within their bound");
        let another = seats.take(address("10.0.0.1"));
        assert_eq!(proven.iter().map(is_lost).collect::<Vec<_>>(), [false, false, true]);
        drop(proven);
        another.prove();
        assert_eq!(counts(&seats), (1, 0));
    }

    #[test]
    fn a_client_is_a_network_where_it_has_one() {
        assert_eq!(network_of(address("2001:db8::1:2:3:4")), address("2001:db8::"));
        assert_eq!(network_of(address("::ffff:10.0.0.1")), address("10.0.0.1"));
        assert_ne!(network_of(address("10.0.0.1")), network_of(address("10.0.0.2")));
    }
}
