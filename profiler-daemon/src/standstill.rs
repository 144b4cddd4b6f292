//! When a thread that works all the time stood still, by its own look at the clock.

use crate::sys::clock;

/// A step of work counts for so little of what is usual.
const USUAL_STEPS: f64 = 64.0;
/// What steps take before any was done (ns).
const FIRST_NS: f64 = 1_000.0;

/// A time at which a thread that works all the time did not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interruption<H> {
    /// When it began (ns of the monotonic clock).
    pub(crate) at_ns: u64,
    /// How long the thread stood still (ns).
    pub(crate) stood_ns: u64,
    /// What happened meanwhile, if it did.
    pub(crate) handled: Option<H>,
}

/// Works for so long in steps of some hundred nanoseconds, and tells when one took longer than usual by `longer_ns`. `last` says what
/// has happened since it was asked last.
pub(crate) fn interruptions<H>(
    for_ns: u64,
    longer_ns: u64,
    step: impl Fn(),
    mut last: impl FnMut() -> Option<H>,
) -> Vec<Interruption<H>> {
    let (mut found, mut usual_ns) = (Vec::new(), FIRST_NS);
    let mut last_ns = clock::monotonic_ns();
    let end_ns = last_ns.saturating_add(for_ns);
    while last_ns < end_ns {
        step();
        let now_ns = clock::monotonic_ns();
        let took_ns = now_ns.saturating_sub(last_ns);
        last_ns = now_ns;
        if took_ns > usual_ns as u64 + longer_ns {
            let (at_ns, stood_ns) = (now_ns - took_ns, took_ns - usual_ns as u64);
            found.push(Interruption { at_ns, stood_ns, handled: last() });
            // From here on again, since steps follow each other without a gap in which one could be interrupted unseen. What has come
            // since it was asked for belongs to none.
            let _ = last();
            last_ns = clock::monotonic_ns();
        } else {
            usual_ns += (took_ns as f64 - usual_ns) / USUAL_STEPS;
        }
    }
    found
}
