//! The signal handler: a sample.

use core::ffi::{c_int, c_void};
use core::sync::atomic::AtomicI32;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use agent_memory::{Memory, REGISTERS, SAMPLE_HEAD_WORDS, SampleHead, Slot, UsableSignals};

use crate::threads::{self, Thread};
use crate::{control, guard, interpose, memory, sys};

/// Marks the value that our timers send, beside the slot.
const VALUE: usize = 0x5357_4545 << 32;
/// A redraw enters the kernel, so it waits for so many samples and so long (ns).
const REDRAW_SAMPLES: u32 = 10;
const REDRAW_NS: u64 = 25_000_000;
/// A mean that differs by less than this part is the same.
const SAME: u64 = 50;
/// No more is asked for (bytes), whatever stands in the memory.
pub(crate) const MOST_STACK_BYTES: u64 = 64 << 10;
/// A ring holds so many samples at least: of a small one less is asked for.
const SAMPLES_OF_A_RING: usize = 4;
/// The word of a record that says how long the handler took, up to there.
const HANDLER_NS_AT: usize = 3;

/// Signals that hardly any program has a use for, and that do nothing to those who do not handle them: data out of band, and
/// another size of the terminal.
const IGNORED: [c_int; 2] = [libc::SIGURG, libc::SIGWINCH];

/// The signal, once it is chosen.
static SIGNAL: AtomicI32 = AtomicI32::new(0);

/// The signal that our timers send; 0 before one is chosen.
#[inline]
pub(crate) fn signal() -> c_int {
    SIGNAL.load(Relaxed)
}

/// What the timer of the thread in this slot sends along.
pub(crate) fn value_of(slot: usize) -> usize {
    VALUE | slot
}

/// Chooses a signal that nobody handles, the last but two first: the very last are those of debuggers. False if there is none.
pub(crate) fn install() -> bool {
    let candidates = (libc::SIGRTMIN()..=libc::SIGRTMAX() - 2).rev();
    for signal in candidates {
        if interpose::is_unused(signal) && interpose::handle(signal, on_signal) {
            SIGNAL.store(signal, Release);
            return true;
        }
    }
    false
}

/// The same in a process that we were loaded into, where nothing stands before the C library: one that is ignored where nobody
/// handles it, so that whoever resets all signals comes to no harm, nor does a program that takes the place of this one. Those
/// that the program blocks or reads are seen from outside, so only those that are usable are taken.
pub(crate) fn install_injected(signals: UsableSignals) -> bool {
    for signal in signals.usable().filter(|&signal| is_ignored_by_default(signal)) {
        // Ours may have stayed: see `remove`.
        let is_free = interpose::is_unused(signal) || interpose::is_handled_by(signal, on_signal);
        if is_free && interpose::handle(signal, on_signal) {
            interpose::want_nothing(); // what the program wanted of another signal is not what it wants of this one
            SIGNAL.store(signal, Release);
            return true;
        }
    }
    false
}

/// Whether nothing happens at a signal that nobody handles.
pub(crate) fn is_ignored_by_default(signal: c_int) -> bool {
    IGNORED.contains(&signal)
}

/// Takes the handler away, with what is on its way to it, unless the program has a handler of its own by now. Where the program
/// waits for the signal without one, the handler stays, which does nothing: a signal that is ignored is dropped by the kernel where it is
/// blocked, too, and whoever waits for it would go on waiting.
pub(crate) fn remove(signals: UsableSignals) {
    give_back(SIGNAL.swap(0, Relaxed), signals);
    interpose::want_nothing();
    for signal in IGNORED {
        give_back(signal, signals); // where it stayed before
    }
}

fn give_back(signal: c_int, signals: UsableSignals) {
    if signal != 0 && !signals.keeps(signal) && interpose::is_handled_by(signal, on_signal) {
        interpose::give_back(signal);
    }
}

/// Called by the kernel, with every other signal blocked.
extern "C" fn on_signal(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let begin_ns = sys::monotonic_ns();
    // SAFETY: the kernel hands over what belongs to the signal, both valid for this call.
    let (ours, value) = unsafe { ((*info).si_code == libc::SI_TIMER, (*info).si_value().sival_ptr as usize) };
    if !ours && agent_memory::is_enter(value as u64) && control::is_injected() {
        return control::enter(value as u64);
    }
    if !ours || value & !0xffff != VALUE {
        // SAFETY: the arguments are passed on as they came.
        return unsafe { interpose::pass_on(signal, info, context) };
    }
    let slot = value & 0xffff;
    let Some(thread) = threads::get(slot) else { return };
    // ATOMICS: whoever takes the memory away sees that somebody is here, or nobody finds it here.
    thread.inside.fetch_add(1, SeqCst);
    // SAFETY: of a timer's signal; what lies first in its own part are the timer and its overruns, and the context is a handler's.
    let (expiry, at) = unsafe { (timer_of(info), Interrupted::new(context)) };
    on_expiry(thread, slot, begin_ns, expiry, &at);
    thread.inside.fetch_sub(1, Release);
}

/// A timer has expired.
#[inline]
fn on_expiry(
    thread: &Thread,
    slot: usize,
    begin_ns: u64,
    (timer, overrun): (c_int, c_int),
    at: &Interrupted,
) {
    let Some(memory) = memory::get().filter(|memory| !memory.is_shut()) else { return };
    let Some(slot) = memory.slot(slot) else { return };
    if !thread.armed.load(Acquire) || thread.timer.load(Relaxed) != timer {
        return; // of a thread that was here before
    }
    if memory.is_over(begin_ns) {
        return disarm(thread, &slot);
    }
    let passed = u64::from(overrun.max(0) as u32) + 1;
    let weight_ns = thread.interval_ns.load(Relaxed).wrapping_mul(passed);
    thread.expires_ns.store(thread.expires_ns.load(Relaxed).wrapping_add(weight_ns), Relaxed);
    if !take_sample(&memory, &slot, thread, begin_ns, weight_ns, at) {
        slot.note_dropped();
    }
    redraw(&memory, thread, begin_ns);
}

/// A sample of the thread; false if there was no room.
#[inline]
fn take_sample(
    memory: &Memory<'_>,
    slot: &Slot<'_>,
    thread: &Thread,
    begin_ns: u64,
    weight_ns: u64,
    at: &Interrupted,
) -> bool {
    let Some(ring) = slot.ring() else { return false };
    let requested = memory.stack_bytes().min((ring.words() * 8 / SAMPLES_OF_A_RING) as u64);
    let readable = thread.readable(at.sp).max(at.readable_elsewhere());
    let asks_kernel = readable == 0 && memory.may_copy() && !guard::is_shut();
    let limit = if asks_kernel { u64::MAX } else { readable as u64 };
    let stack_words = limit.min(requested).min(MOST_STACK_BYTES) as usize / 8;
    let words = SAMPLE_HEAD_WORDS + stack_words;
    let Some(mut entry) = ring.begin(words) else { return false };
    if asks_kernel {
        let copied = sys::copy_words(memory::own_pid(), at.sp, entry.room(SAMPLE_HEAD_WORDS));
        entry.shorten(SAMPLE_HEAD_WORDS + copied);
    }
    let words = entry.words();
    let head = SampleHead {
        time_ns: begin_ns,
        weight_ns,
        handler_ns: 0,
        requested_bytes: requested,
        registers: at.registers,
    };
    head.words(words).iter().enumerate().for_each(|(index, word)| entry.put(index, *word));
    let to_copy = if asks_kernel { 0 } else { stack_words };
    for index in 0..to_copy {
        // SAFETY: so many bytes from the stack pointer on are mapped; nobody but this thread, which is interrupted, need write there.
        let word = unsafe { core::ptr::read_volatile((at.sp as *const u64).wrapping_add(index)) };
        entry.put(SAMPLE_HEAD_WORDS + index, word);
    }
    entry.put(HANDLER_NS_AT, sys::monotonic_ns().wrapping_sub(begin_ns));
    entry.publish();
    true
}

/// Sets the timer to another interval if the mean is another one, and now and then at random.
#[inline]
fn redraw(memory: &Memory<'_>, thread: &Thread, now_ns: u64) {
    let fresh = thread.fresh.load(Relaxed).saturating_add(1);
    thread.fresh.store(fresh, Relaxed);
    let (mean_ns, was_ns) = (memory.period_at_ns(now_ns), thread.mean_ns.load(Relaxed));
    let is_other = mean_ns.abs_diff(was_ns) > was_ns / SAME;
    let is_due = fresh >= REDRAW_SAMPLES && now_ns.wrapping_sub(thread.drawn_ns.load(Relaxed)) >= REDRAW_NS;
    if !(is_other || is_due) || !guard::may_set_timers() {
        return;
    }
    let interval_ns = thread.draw_ns(mean_ns);
    let last_ns = thread.expires_ns.load(Relaxed).wrapping_sub(thread.interval_ns.load(Relaxed));
    let expires_ns = last_ns.wrapping_add(interval_ns);
    if sys::timer_settime(thread.timer.load(Relaxed), expires_ns, interval_ns) {
        thread.expires_ns.store(expires_ns, Relaxed);
        thread.interval_ns.store(interval_ns, Relaxed);
        thread.mean_ns.store(mean_ns, Relaxed);
        thread.fresh.store(0, Relaxed);
        thread.drawn_ns.store(now_ns, Relaxed);
    }
}

/// The run is over, or the profiler is gone: the timer stops, and what was written waits for whoever reads it.
#[cold]
fn disarm(thread: &Thread, slot: &Slot<'_>) {
    if !guard::may_stop_timers() {
        return; // each signal of the timer ends here
    }
    thread.armed.store(false, Relaxed);
    let timer = thread.timer.swap(-1, Relaxed);
    if timer >= 0 {
        sys::timer_delete(timer);
    }
    slot.end();
}

/// The timer that a signal is of, and how often it has expired since.
///
/// # Safety
///
/// The signal is a timer's.
#[inline]
unsafe fn timer_of(info: *const libc::siginfo_t) -> (c_int, c_int) {
    // SAFETY: three numbers and padding come first on every 64-bit Linux; the caller answers for the rest.
    unsafe {
        let fields = info.cast::<c_int>().add(4);
        (fields.read(), fields.add(1).read())
    }
}

/// What was interrupted.
struct Interrupted {
    sp: usize,
    registers: [u64; REGISTERS],
    /// The stack of its own that the thread has named for signals.
    alternate: libc::stack_t,
}

impl Interrupted {
    /// # Safety
    ///
    /// The context is that of a handler.
    #[inline]
    unsafe fn new(context: *const c_void) -> Self {
        // SAFETY: the caller answers for it.
        let context = unsafe { &*context.cast::<libc::ucontext_t>() };
        let registers = registers(context);
        Self { sp: stack_pointer(&registers), registers, alternate: context.uc_stack }
    }

    /// Bytes that can be read from the stack pointer on where that is in the stack for signals.
    #[inline]
    fn readable_elsewhere(&self) -> usize {
        let start = self.alternate.ss_sp as usize;
        let inside = self.alternate.ss_flags & libc::SS_DISABLE == 0 && self.sp >= start;
        let end = start.saturating_add(self.alternate.ss_size);
        if inside { end.saturating_sub(self.sp) } else { 0 }
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn registers(context: &libc::ucontext_t) -> [u64; REGISTERS] {
    use libc::{
        REG_R8, REG_R9, REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15, REG_RAX, REG_RBP, REG_RBX,
        REG_RCX, REG_RDI, REG_RDX, REG_RIP, REG_RSI, REG_RSP,
    };
    let order = [
        REG_RAX, REG_RDX, REG_RCX, REG_RBX, REG_RSI, REG_RDI, REG_RBP, REG_RSP, REG_R8, REG_R9, REG_R10,
        REG_R11, REG_R12, REG_R13, REG_R14, REG_R15, REG_RIP,
    ];
    order.map(|register| context.uc_mcontext.gregs[register as usize] as u64)
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn stack_pointer(registers: &[u64; REGISTERS]) -> usize {
    registers[7] as usize
}

#[cfg(target_arch = "aarch64")]
#[inline]
fn registers(context: &libc::ucontext_t) -> [u64; REGISTERS] {
    let machine = &context.uc_mcontext;
    let mut out = [0; REGISTERS];
    (out[0], out[1], out[2], out[3]) = (machine.pc, machine.sp, machine.regs[30], machine.regs[29]);
    out
}

#[cfg(target_arch = "aarch64")]
#[inline]
fn stack_pointer(registers: &[u64; REGISTERS]) -> usize {
    registers[1] as usize
}
