//! Samples at the kernel's own tick: it interrupts every busy CPU HZ times a second, and a tracepoint in its interrupt takes the
//! sample, so that no other interrupt is needed.
//!
//! What is needed is looked for, never assumed: the tracepoint, the address of the handler under the name that this kernel
//! has for it, and where the code begins that enters interrupts, since a stack at the tick begins inside of it. Then it is tried.

mod trial;

use std::ffi::CString;
use std::fs;
use std::ops::Range;

use super::handler_tracer::{self, Unavailable as NoTracepoints};
use crate::sys::signal_cost::tick_ns;

const LIST: &str = "/proc/kallsyms";
/// The tick's handler: until 6.7, in 6.8, and since 6.9. The last is tried last: until 6.7 it was the name of another one, of
/// clocks that are too coarse for timers.
const HANDLERS: [&str; 3] = ["tick_sched_timer", "tick_nohz_highres_handler", "tick_nohz_handler"];
/// Where the kernel enters an interrupt: x86-64 without FRED and with it, and aarch64; both also before 5.8 and 5.11.
const ENTRIES: [&str; 10] = [
    "asm_common_interrupt",
    "asm_fred_entrypoint_user",
    "asm_fred_entrypoint_kernel",
    "apic_timer_interrupt",
    "el0t_64_irq",
    "el1h_64_irq",
    "el0t_32_irq",
    "el1t_64_irq",
    "el0_irq",
    "el1_irq",
];
const ENTRY_PREFIX: &str = "asm_sysvec_";
/// Rarer samples than one in so many ticks are of no use.
const MOST_EVERY: f64 = 1_000.0;

/// Why there are no samples at the tick.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unavailable {
    /// The tracepoint.
    #[error(transparent)]
    Tracepoint(#[from] NoTracepoints),
    /// The kernel's functions.
    #[error("{LIST} cannot be read ({0}); root may read it, or CAP_SYSLOG")]
    Unreadable(#[source] std::io::Error),
    /// Their addresses.
    #[error(
        "{LIST} hides the kernel's addresses; root sees them, or CAP_SYSLOG (kernel.kptr_restrict up to 1)"
    )]
    Hidden,
    /// The handler, or the code that enters interrupts.
    #[error("this kernel's tick has a handler of another name; use --source clock")]
    UnknownHandler,
    /// What was found is not what the tick does.
    #[error(
        "this kernel's tick enters its interrupt in a way that is not known ({samples} samples of a busy thread began in other code); \
         use --source clock"
    )]
    UnknownEntry {
        /// Those of the trial.
        samples: u32,
    },
    /// There is none, or it is another's.
    #[error(
        "a thread that was busy for {busy_ms:.0} ms met no tick: this CPU goes without (nohz_full), or the tick's handler has another \
         name; use --source clock"
    )]
    NoTick {
        /// CPU time of the trial (ms).
        busy_ms: f64,
    },
    /// Permission to sample the kernel.
    #[error("ticks are seen by those who may sample the kernel: root, or CAP_PERFMON")]
    KernelUnseen,
}

/// The tick, where it can be sampled.
#[derive(Clone, Debug)]
pub(crate) struct TickSource {
    /// The tracepoint's number.
    pub(crate) tracepoint: u64,
    /// Holds for the tick and for no other timer.
    pub(crate) filter: CString,
    /// From one tick to the next (ns), as the kernel says; the audit compares it with CPU time.
    pub(crate) tick_ns: u64,
    /// One in so many of them is sampled, on average.
    pub(crate) every: f64,
    /// Addresses of the code that enters interrupts.
    entries: Vec<Range<u64>>,
}

impl TickSource {
    /// Looks for it, and tries it on the calling thread, which is busy for some ticks.
    pub(crate) fn find(kernel_is_seen: bool) -> Result<Self, Unavailable> {
        if !kernel_is_seen {
            return Err(Unavailable::KernelUnseen);
        }
        let [tracepoint, _] = handler_tracer::layout()?.numbers();
        let list = fs::read(LIST).map_err(Unavailable::Unreadable)?;
        let (handler, entries) = in_list(&list)?;
        let filter = filter_of(handler)?;
        let tick = Self { tracepoint, filter, tick_ns: tick_ns(), every: 1.0, entries };
        trial::run(&tick)?;
        Ok(tick)
    }

    /// One that nobody opens: four milliseconds, every one.
    #[cfg(test)]
    pub(crate) fn example() -> Self {
        let entries = std::iter::once(0xffff_ffff_8100_0df0..0xffff_ffff_8100_0e10).collect();
        Self { tracepoint: 1, filter: CString::default(), tick_ns: 4_000_000, every: 1.0, entries }
    }

    /// Ticks a second.
    pub(crate) fn hz(&self) -> f64 {
        1e9 / self.tick_ns as f64
    }

    /// One in how many ticks makes so many samples a second.
    pub(crate) fn every(&self, rate_hz: f64) -> f64 {
        (self.hz() / rate_hz).clamp(1.0, MOST_EVERY)
    }

    /// The same source with so many samples a second.
    pub(crate) fn thinned(self, rate_hz: f64) -> Self {
        Self { every: self.every(rate_hz), ..self }
    }

    /// CPU time that a sample stands for on average (ns).
    pub(crate) fn mean_period_ns(&self) -> u64 {
        (self.every * self.tick_ns as f64) as u64
    }

    /// Takes the tick's interrupt off a kernel stack (innermost first), so that what it interrupted is left: nothing, where that was
    /// user code.
    pub(crate) fn uncover(&self, kernel: &mut Vec<u64>) {
        let is_entry = |address: &u64| self.entries.iter().any(|entry| entry.contains(address));
        if let Some(entry) = kernel.iter().position(is_entry) {
            kernel.drain(..=entry);
            // What was interrupted was about to run its instruction, and does not return from a call before it.
            if let Some(interrupted) = kernel.first_mut() {
                *interrupted = interrupted.wrapping_add(1);
            }
        }
    }
}

/// Holds for ticks, and not for those of an idle CPU, which are nobody's.
fn filter_of(handler: u64) -> Result<CString, Unavailable> {
    let filter = format!("function == {handler:#x} && common_pid != 0");
    CString::new(filter).map_err(|_| Unavailable::UnknownHandler)
}

/// The handler's address, and the code that enters interrupts.
fn in_list(list: &[u8]) -> Result<(u64, Vec<Range<u64>>), Unavailable> {
    let text = |line| std::str::from_utf8(line).ok();
    let mut functions: Vec<(u64, &str)> =
        list.split(|&byte| byte == b'\n').filter_map(text).filter_map(function).collect();
    if !functions.is_empty() && functions.iter().all(|&(address, _)| address == 0) {
        return Err(Unavailable::Hidden);
    }
    functions.sort_unstable();
    let address_of = |name: &&str| functions.iter().find(|function| function.1 == *name).map(|&(at, _)| at);
    let handler = HANDLERS.iter().find_map(address_of).ok_or(Unavailable::UnknownHandler)?;
    let is_entry = |name: &str| name.starts_with(ENTRY_PREFIX) || ENTRIES.contains(&name);
    let end = |start: u64| {
        let next = functions.partition_point(|&(address, _)| address <= start);
        functions.get(next).map(|&(address, _)| address)
    };
    let starts = functions.iter().filter(|(_, name)| is_entry(name));
    let entries: Vec<Range<u64>> = starts.filter_map(|&(start, _)| Some(start..end(start)?)).collect();
    if entries.is_empty() { Err(Unavailable::UnknownHandler) } else { Ok((handler, entries)) }
}

/// A function of the kernel's own in a line of its list: `ffffffff81000000 T name`. Those of modules have a fourth word.
fn function(line: &str) -> Option<(u64, &str)> {
    let mut words = line.split_ascii_whitespace();
    let address = u64::from_str_radix(words.next()?, 16).ok()?;
    let is_code = matches!(words.next()?, "t" | "T" | "w" | "W");
    let name = words.next()?;
    (is_code && words.next().is_none()).then_some((address, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNEL: &[u8] = b"ffffffff81000df0 T asm_sysvec_apic_timer_interrupt\n\
        ffffffff81000e10 T asm_sysvec_x86_platform_ipi\n\
        ffffffff81000e30 T asm_sysvec_reschedule_ipi\n\
        ffffffff81000e50 T entry_SYSCALL_64\n\
        ffffffff81421840 T hrtimer_interrupt\n\
        ffffffff814352e0 t tick_nohz_handler\n\
        ffffffffc0000000 t tick_sched_timer\t[other]\n";

    fn tick() -> TickSource {
        TickSource { entries: in_list(KERNEL).unwrap().1, ..TickSource::example() }
    }

    #[test]
    fn the_handler_is_found_under_each_of_its_names() {
        assert_eq!(in_list(KERNEL).unwrap().0, 0xffff_ffff_8143_52e0);
        for name in ["tick_sched_timer", "tick_nohz_highres_handler"] {
            let list = String::from_utf8_lossy(KERNEL).replace("tick_nohz_handler", name);
            assert_eq!(in_list(list.as_bytes()).unwrap().0, 0xffff_ffff_8143_52e0, "{name}");
        }
        let other = String::from_utf8_lossy(KERNEL).replace("tick_nohz_handler", "tock");
        assert!(
            matches!(in_list(other.as_bytes()), Err(Unavailable::UnknownHandler)),
            "a module's is not the kernel's"
        );
    }

    /// Before 6.8, handlers of both kinds of clocks are there, and the one of coarse clocks has the later name of the other.
    #[test]
    fn of_two_handlers_the_one_that_is_a_timer_s_is_taken() {
        for name in ["tick_sched_timer", "tick_nohz_highres_handler"] {
            for at in ["ffffffff81435000", "ffffffff81435800"] {
                let list = format!("{}{at} t {name}\n", String::from_utf8_lossy(KERNEL));
                assert_eq!(
                    in_list(list.as_bytes()).unwrap().0,
                    u64::from_str_radix(at, 16).unwrap(),
                    "{name}"
                );
            }
        }
    }

    /// Flexible return and event delivery: every interrupt comes in by one of two ways, whose last instruction is the call.
    #[test]
    fn interrupts_that_come_in_by_fred_are_uncovered() {
        let fred = b"ffffffff81001000 T asm_fred_entrypoint_user\n\
            ffffffff81001060 T asm_fred_exit_user\n\
            ffffffff81001100 T asm_fred_entrypoint_kernel\n\
            ffffffff81001180 T asm_fred_entry_from_kvm\n\
            ffffffff814352e0 t tick_nohz_handler\n";
        let tick = TickSource { entries: in_list(fred).unwrap().1, ..tick() };
        let inside = [0xffff_ffff_8143_5300, 0xffff_ffff_8150_0010];
        let mut in_user_code = [&inside[..], &[0xffff_ffff_8100_105f]].concat();
        tick.uncover(&mut in_user_code);
        assert!(in_user_code.is_empty());
        let mut in_kernel = [&inside[..], &[0xffff_ffff_8100_1161, 0xffff_ffff_8150_1000]].concat();
        tick.uncover(&mut in_kernel);
        assert_eq!(in_kernel, [0xffff_ffff_8150_1001]);
    }

    #[test]
    fn hidden_addresses_and_lists_without_entries_are_told_apart() {
        let hidden =
            b"0000000000000000 T asm_sysvec_apic_timer_interrupt\n0000000000000000 t tick_nohz_handler\n";
        assert!(matches!(in_list(hidden), Err(Unavailable::Hidden)));
        assert!(matches!(
            in_list(b"ffffffff814352e0 t tick_nohz_handler\n"),
            Err(Unavailable::UnknownHandler)
        ));
        for garbage in [&b""[..], b"\n\n", b"zz T x\n", &[0xff; 40]] {
            assert!(matches!(in_list(garbage), Err(Unavailable::UnknownHandler)), "{garbage:?}");
        }
    }

    #[test]
    fn what_the_tick_interrupted_is_left() {
        let inside = [0xffff_ffff_8143_5300, 0xffff_ffff_8142_1850, 0xffff_ffff_8100_0e09];
        let mut in_user_code = inside.to_vec();
        tick().uncover(&mut in_user_code);
        assert!(in_user_code.is_empty());
        let mut in_kernel = [&inside[..], &[0xffff_ffff_8150_0010, 0xffff_ffff_8100_0e60]].concat();
        tick().uncover(&mut in_kernel);
        assert_eq!(in_kernel, [0xffff_ffff_8150_0011, 0xffff_ffff_8100_0e60]);
        let mut without_entry = vec![0xffff_ffff_8150_0010];
        tick().uncover(&mut without_entry);
        assert_eq!(without_entry, [0xffff_ffff_8150_0010]);
    }

    /// Where this machine has all of it.
    #[test]
    fn this_kernel_has_one_tick_or_a_reason() {
        match TickSource::find(true) {
            Ok(tick) => {
                assert!((99.0..=1_001.0).contains(&tick.hz()) && !tick.entries.is_empty(), "{tick:?}");
                // What else there might be is found out: another timer's handler, and another way in.
                let other = TickSource { filter: filter_of(0x1000).unwrap(), ..tick.clone() };
                assert!(matches!(trial::run(&other), Err(Unavailable::NoTick { .. })));
                let hidden = TickSource { entries: Vec::new(), ..tick };
                assert!(matches!(trial::run(&hidden), Err(Unavailable::UnknownEntry { .. })));
            }
            Err(reason) => assert!(!reason.to_string().contains('\n'), "{reason}"),
        }
        assert!(matches!(TickSource::find(false), Err(Unavailable::KernelUnseen)));
    }
}
