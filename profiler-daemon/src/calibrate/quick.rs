//! The quick calibration: by how much samples delay a thread of ours. What takes longer to find out keeps its
//! cautious guess.

use std::io;
use std::thread;

use nix::unistd::gettid;
use profiler_core::rate::calibration::{Trial, fit};
use profiler_core::rate::{CacheSensitivity, Cost, CostModel};
use profiler_core::record::RecordFormat;

use super::delays::{self, Delays, HandlerDelays};
use super::load::OtherLoad;
use super::place::CpuPair;
use super::workload::SwitchPartner;
use crate::sampler::access::Access;
use crate::sys::affinity::stay_on;
use crate::sys::perf_event::{ClockEvent, Event, EventReports, Scope};
use crate::sys::{clock, procfs};

/// Rounds of samples: of each shape, some three hundred.
const ROUNDS: usize = 15;
/// Turns that two threads take in a slice, and repetitions of that, A B B A each.
const TURNS: u64 = 400;
const TURN_ROUNDS: usize = 3;
/// What the figures may be off beside their noise, as a share: so many samples at once find their code in the caches,
/// and nobody reads the rings meanwhile.
pub(super) const SYSTEMATIC: f64 = 0.15;
/// A program that waits for memory was seen to pay 1.1 to 1.7 times as much for a sample as one that computes. Only computing is measured here, and the middle is stated.
const COLD: f64 = 1.25;

/// What was found, and how busy the machine was otherwise.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quick {
    pub(super) model: CostModel,
    pub(super) load_ratio: f64,
}

/// Measures, in a thread of its own that stays on one CPU.
pub(super) fn measure(access: Access) -> io::Result<Quick> {
    let worker = thread::Builder::new().name("calibrate".to_owned());
    let measured = worker.spawn(move || measure_here(access))?;
    measured.join().map_err(|_| io::Error::other("the measuring thread failed"))?
}

fn measure_here(access: Access) -> io::Result<Quick> {
    let cpu = CpuPair::choose()?.work;
    stay_on(cpu)?;
    let load = OtherLoad::watch();
    let delays = delays::measure(access, cpu, ROUNDS, false)?;
    // A partner that cannot be had is no reason to do without the rest.
    let switch = switch_trials(access, cpu).ok().and_then(|trials| fit(&trials).ok());
    let prior = CostModel::default();
    let [per_frame_ns, per_byte_ns] = stack_costs(&delays);
    let model = CostModel {
        per_sample_ns: unsure(usual(delays.sample)),
        per_frame_ns,
        per_byte_ns,
        per_switch_ns: switch.map_or(prior.per_switch_ns, |[cost]| unsure(cost)),
        per_handler_ns: delays.handler.as_ref().map(|handler| unsure(usual(handler.costs[0]))),
        cache_sensitivity: delays.handler.and_then(|found| CacheSensitivity::fit(&found.kinds, found.costs)),
        per_interrupt_ns: delays.interrupt,
        ..prior
    };
    Ok(Quick { model, load_ratio: load.of_others(0).max(delays.waited) })
}

/// What a frame and a byte of stack cost: both are work of the handler, and its times show that more precisely than
/// delays do.
fn stack_costs(delays: &Delays) -> [Cost; 2] {
    let usual = CostModel::default();
    match &delays.handler {
        Some(HandlerDelays { costs: [_, frame, byte], .. }) => [*frame, *byte].map(unsure),
        None => [usual.per_frame_ns, unsure(delays.byte.weighed(usual.per_byte_ns))],
    }
}

/// What was measured while the program computed, as between that and waiting for memory.
fn usual(computing: Cost) -> Cost {
    Cost::new(COLD * computing.mean_ns, COLD * computing.se_ns)
}

fn unsure(cost: Cost) -> Cost {
    Cost::new(cost.mean_ns, cost.se_ns.hypot(SYSTEMATIC * cost.mean_ns))
}

/// What two threads that take turns on this CPU pay for having events.
fn switch_trials(access: Access, cpu: u32) -> io::Result<Vec<Trial<1>>> {
    let partner = SwitchPartner::start().map_err(io::Error::other)?;
    let tids = [own_tid(), partner.tid()];
    let take_turns = || -> io::Result<u64> {
        let before = clock::self_cpu_ns();
        (0..TURNS).try_for_each(|_| partner.take_turns()).map_err(io::Error::other)?;
        Ok(clock::self_cpu_ns() - before)
    };
    let with_events = || -> io::Result<(u64, u64)> {
        let mut events = [silent_clock(access, tids[0], cpu)?, silent_clock(access, tids[1], cpu)?];
        events.iter_mut().try_for_each(Event::enable)?;
        let before = procfs::context_switches_of(&tids);
        let cpu_ns = take_turns()?;
        Ok((cpu_ns, procfs::context_switches_of(&tids).saturating_sub(before)))
    };
    let trial = |_| {
        let first = take_turns()?;
        let (attached, again) = (with_events()?, with_events()?);
        let plain_ns = first + take_turns()?;
        let extra_ns = (attached.0 + again.0) as f64 - plain_ns as f64;
        Ok(Trial { extra_ns, counts: [(attached.1 + again.1) as f64] })
    };
    (0..TURN_ROUNDS).map(trial).collect()
}

/// A clock that does not fire while it is measured what switching to and from it costs.
fn silent_clock(access: Access, tid: u32, cpu: u32) -> io::Result<Event> {
    let clock = ClockEvent {
        period_ns: 60_000_000_000,
        format: RecordFormat::new(false),
        stack_bytes: 0,
        user_chain: true,
        kernel: access.kernel,
        reports: EventReports::Own,
    };
    Event::clock(Scope::Task { tid, cpu }, &clock)
}

fn own_tid() -> u32 {
    gettid().as_raw() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a calibration found them on a noisy machine, by the handler's times and by delays.
    #[test]
    fn a_large_copy_is_known_whatever_delays_showed() {
        let copy = |byte: Cost, handler: Option<[Cost; 3]>| {
            let delays = Delays {
                sample: Cost::new(20_000.0, 300.0),
                byte,
                rare: None,
                interrupt: None,
                handler: handler.map(|costs| HandlerDelays { costs, kinds: Vec::new() }),
                waited: 0.0,
            };
            let [_, byte] = stack_costs(&delays);
            Cost::new(61_440.0 * byte.mean_ns, 61_440.0 * byte.se_ns)
        };
        let noisy = Cost::new(0.064, 0.407);
        let handler = [Cost::new(2_400.0, 60.0), Cost::new(70.2, 0.5), Cost::new(0.2, 0.005)];
        let timed = copy(noisy, Some(handler));
        assert!((timed.mean_ns - 12_288.0).abs() < 1.0 && timed.se_ns < 0.2 * timed.mean_ns, "{timed:?}");
        let usual = CostModel::default().per_byte_ns;
        let untimed = copy(noisy, None);
        assert!(untimed.se_ns < 61_440.0 * usual.se_ns * 1.1, "{untimed:?}");
        let clear = copy(Cost::new(0.1, 0.01), None);
        assert!((clear.mean_ns / 61_440.0 - 0.1).abs() < 0.002, "{clear:?}");
    }
}
