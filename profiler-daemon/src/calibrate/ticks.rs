//! What a sample at the kernel's tick costs beside the tick itself: the tracepoint, the record, and what they put out of the
//! caches. Its stack is priced as any other's.

use std::io;

use profiler_core::rate::{Cost, CostModel};
use profiler_core::record::RecordFormat;
use profiler_core::sorter::RecordQueue;

use super::Calibration;
use super::gaps::{self, middle};
use crate::sampler::access::Access;
use crate::sampler::tick::TickSource;
use crate::sys::clock;
use crate::sys::perf_event::{ClockEvent, Event, Reports, Scope};
use crate::sys::ring::Ring;
use crate::sys::signal_cost::Handled;

/// Where it is kept, beside that of perf events.
const FILE: &str = "ticks.json";
/// The way to measure. To be raised with every change of it.
const METHOD: u32 = 1;
/// Holds far more samples than come before they are looked at.
const RING_BYTES: usize = 64 << 10;

/// The same calibration with the cost of such a sample: as kept from before, else measured now.
pub(crate) fn prepare(tick: &TickSource, access: Access, calibration: Calibration) -> Calibration {
    let known = calibration.model;
    let tick = tick.clone();
    let measure = || Some(CostModel { per_tick_ns: Some(measure(tick)?), ..known });
    let measured =
        super::measured_at_ticks(FILE, METHOD, access, measure).and_then(|model| model.per_tick_ns);
    let unmeasured = "the cost of a sample at the tick could not be measured; a cautious guess is used";
    let note = measured.is_none().then(|| unmeasured.to_owned());
    Calibration {
        model: CostModel { per_tick_ns: measured.or_else(|| guess(&known)), ..known },
        note: calibration.note.or(note),
    }
}

/// Anything from what its handler takes to what a sample with an interrupt costs.
fn guess(known: &CostModel) -> Option<Cost> {
    known.per_handler_ns.map(|handler| middle(handler, known.per_sample_ns))
}

fn measure(tick: TickSource) -> Option<Cost> {
    let [computing, waiting] = gaps::measure(move || every_second(&tick))?.map(|gaps| gaps.cost);
    Some(middle(computing, waiting))
}

/// Samples the calling thread at one tick, and does not at the next.
fn every_second(tick: &TickSource) -> io::Result<impl FnMut() -> Option<Handled> + use<>> {
    let format = RecordFormat::new(false).without_period();
    let sample = ClockEvent {
        period_ns: tick.tick_ns,
        format,
        stack_bytes: 0,
        user_chain: false,
        kernel: true,
        reports: Reports::Own,
    };
    let thread = Scope::Thread(nix::unistd::gettid().as_raw() as u32);
    let mut event = Event::at_tracepoint(thread, tick.tracepoint, &tick.filter, 1, &sample)?;
    let mut ring = Ring::map(event.fd(), RING_BYTES)?;
    let mut is_on = false;
    let (mut turned_ns, tick_ns) = (clock::monotonic_ns(), tick.tick_ns);
    Ok(move || {
        let mut last = None;
        while let Some(raw) = ring.front() {
            last = raw.time_ns(&format).map(|begun_ns| Handled { begun_ns, took_ns: 0 }).or(last);
            ring.pop();
        }
        let now_ns = clock::monotonic_ns();
        // Other interrupts come between ticks; one of two neighbours that is missed is left out.
        if now_ns.saturating_sub(turned_ns) > tick_ns / 4 * 3 {
            let turned = if is_on { event.disable() } else { event.enable() };
            is_on ^= turned.is_ok();
            turned_ns = now_ns;
        }
        last
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_guessed_lies_between_the_handler_and_a_sample() {
        let known = CostModel {
            per_sample_ns: Cost::new(13_000.0, 500.0),
            per_handler_ns: Some(Cost::new(1_000.0, 50.0)),
            ..CostModel::default()
        };
        let guessed = guess(&known).unwrap();
        assert!((guessed.mean_ns - 7_000.0).abs() < 1.0 && guessed.se_ns > 3_000.0, "{guessed:?}");
        assert_eq!(guess(&CostModel::default()), None);
    }

    /// Where ticks can be sampled, one costs something, if that is clear at the moment, and less than a tenth of a millisecond.
    #[test]
    fn a_sample_at_the_tick_has_a_cost() {
        let measured = TickSource::find(true).ok().and_then(measure);
        assert!(measured.is_none_or(|cost| (100.0..100_000.0).contains(&cost.mean_ns)), "{measured:?}");
    }
}
