//! The thread that queries Prometheus, once a minute.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::answer::Services;
use super::client::PrometheusClient;
use super::{FleetAnswer, SECOND_NS, SharedFleet};
use crate::sys::{clock, priority};

/// A host that has just started knows too little of itself to compare before this (ns).
pub(super) const FIRST_NS: u64 = 30 * SECOND_NS;
/// The longest time that figures cover (ns): long enough for bursts to average out.
const LONGEST_NS: u64 = 300 * SECOND_NS;
/// Time between two queries (ns): hosts that start together do not query together.
const EVERY_NS: std::ops::Range<u64> = 50 * SECOND_NS..70 * SECOND_NS;
/// Longest wait for orders (ns).
const NEVER_NS: u64 = 3_600 * SECOND_NS;

/// Queries until it is told to end. `began_ns` is when the counters of this host started.
pub(super) fn run(shared: &SharedFleet, began_ns: u64) {
    priority::come_later();
    let first_ns = began_ns.saturating_add(FIRST_NS);
    let mut last: Option<(Arc<PrometheusClient>, u64)> = None;
    let due_ns = |client: &Arc<PrometheusClient>, last: &Option<(Arc<PrometheusClient>, u64)>| match last {
        Some((known, due_ns)) if Arc::ptr_eq(known, client) => *due_ns,
        _ => first_ns,
    };
    while let Some(client) = next(shared, |client| due_ns(client, &last)) {
        let range_ns = range_ns(clock::monotonic_ns().saturating_sub(began_ns));
        let asked = || client.ask_with_present_files(Duration::from_nanos(range_ns));
        // Nothing that a server sends may end this thread.
        let said = catch_unwind(AssertUnwindSafe(asked))
            .unwrap_or_else(|_| Err("internal error while its answer was read; see the log".to_owned()));
        publish(shared, &client, said, range_ns);
        last = Some((client, clock::monotonic_ns().saturating_add(fastrand::u64(EVERY_NS))));
    }
}

/// The time that figures cover, `uptime_ns` after the counters of this host started: no longer than these cover.
fn range_ns(uptime_ns: u64) -> u64 {
    uptime_ns.clamp(FIRST_NS, LONGEST_NS) / SECOND_NS * SECOND_NS
}

/// Waits until a query is due, and returns the client for it; `None` at the end.
fn next(
    shared: &SharedFleet,
    due_ns: impl Fn(&Arc<PrometheusClient>) -> u64,
) -> Option<Arc<PrometheusClient>> {
    let mut orders = shared.orders();
    loop {
        if orders.is_over {
            return None;
        }
        let now_ns = clock::monotonic_ns();
        let until_ns = match &orders.client {
            Some(client) if now_ns >= due_ns(client) => return Some(Arc::clone(client)),
            Some(client) => due_ns(client),
            None => now_ns.saturating_add(NEVER_NS),
        };
        let wait = Duration::from_nanos(until_ns.saturating_sub(now_ns));
        orders = shared.changed.wait_timeout(orders, wait).unwrap_or_else(PoisonError::into_inner).0;
    }
}

fn publish(
    shared: &SharedFleet,
    client: &Arc<PrometheusClient>,
    said: Result<Services, String>,
    range_ns: u64,
) {
    let orders = shared.orders();
    if !orders.client.as_ref().is_some_and(|asked| Arc::ptr_eq(asked, client)) {
        return; // other settings are in force by now
    }
    let mut answer = shared.answer();
    let is_told = answer.problem.is_some();
    answer.asked += 1;
    match said {
        Ok(services) => {
            if is_told {
                tracing::info!("fleet: {} answers again", client.host());
            }
            let (asked, failed, number) = (answer.asked, answer.failed, answer.number + 1);
            let at_ns = Some(clock::monotonic_ns());
            *answer = FleetAnswer {
                number,
                at_ns,
                range_ns,
                services: Arc::new(services),
                asked,
                failed,
                problem: None,
            };
        }
        Err(why) => {
            if !is_told {
                tracing::warn!(
                    "fleet: {why}; after five minutes without an answer, targets are sampled as fleets of one"
                );
            }
            answer.failed += 1;
            answer.problem = Some(why);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_of_five_minutes_or_of_what_this_host_knows() {
        let range_s = |uptime_s: f64| range_ns((uptime_s * 1e9) as u64) / SECOND_NS;
        assert_eq!([0.0, 30.7, 95.9, 86_400.0].map(range_s), [30, 30, 95, 300]);
    }
}
