//! Interposed functions of the C library that set what is done about signals, as System V had them. Within the C library they do not
//! go through `sigaction` or `sigprocmask`, which are interposed (`interpose`). As there, what is done about our signal stays, and
//! it is never blocked.

use core::ffi::c_int;

use crate::interpose::is_ours;
use crate::next::Next;
use crate::wanted::WANTED;

type Signal = unsafe extern "C" fn(c_int, libc::sighandler_t) -> libc::sighandler_t;
type Change = unsafe extern "C" fn(c_int) -> c_int;
type Interrupt = unsafe extern "C" fn(c_int, c_int) -> c_int;

// SAFETY: its type is that of the manual page sysv_signal(3).
static SYSV_SIGNAL: Next<Signal> = unsafe { Next::new(c"__sysv_signal") };
// SAFETY: its type is that of the manual page sigset(3).
static SIGSET: Next<Signal> = unsafe { Next::new(c"sigset") };
// SAFETY: its type is that of the manual page sigset(3).
static SIGIGNORE: Next<Change> = unsafe { Next::new(c"sigignore") };
// SAFETY: its type is that of the manual page sigset(3).
static SIGHOLD: Next<Change> = unsafe { Next::new(c"sighold") };
// SAFETY: its type is that of the manual page sigset(3).
static SIGRELSE: Next<Change> = unsafe { Next::new(c"sigrelse") };
// SAFETY: its type is that of the manual page siginterrupt(3).
static SIGINTERRUPT: Next<Interrupt> = unsafe { Next::new(c"siginterrupt") };

/// What `sigset` is given to block a signal, and leave alone what is done about it (`<signal.h>`).
const SIG_HOLD: libc::sighandler_t = 2;

/// Finds the C library's functions: see [`crate::interpose::find`].
pub(crate) fn find() {
    let _ = (SYSV_SIGNAL.is_there(), SIGSET.is_there(), SIGIGNORE.is_there());
    let _ = (SIGHOLD.is_there(), SIGRELSE.is_there(), SIGINTERRUPT.is_there());
}

/// Notes what the program wants to be done about our signal. Returns what it wanted before.
fn want(handler: libc::sighandler_t, flags: c_int) -> libc::sighandler_t {
    let was = WANTED.get();
    WANTED.set(&libc::sigaction { sa_sigaction: handler, sa_flags: flags, ..was });
    was.sa_sigaction
}

/// See sysv_signal(3). Programs built for XPG4 have it in place of `signal`.
///
/// # Safety
///
/// As there.
#[unsafe(no_mangle)]
unsafe extern "C" fn __sysv_signal(signal: c_int, wanted: libc::sighandler_t) -> libc::sighandler_t {
    if is_ours(signal) {
        return want(wanted, libc::SA_RESETHAND | libc::SA_NODEFER);
    }
    // SAFETY: as we were called.
    unsafe { SYSV_SIGNAL.get()(signal, wanted) }
}

/// See sysv_signal(3).
///
/// # Safety
///
/// As there.
#[unsafe(no_mangle)]
unsafe extern "C" fn sysv_signal(signal: c_int, wanted: libc::sighandler_t) -> libc::sighandler_t {
    // SAFETY: as we were called.
    unsafe { __sysv_signal(signal, wanted) }
}

/// See sigset(3).
///
/// # Safety
///
/// As there.
#[unsafe(no_mangle)]
unsafe extern "C" fn sigset(signal: c_int, wanted: libc::sighandler_t) -> libc::sighandler_t {
    match wanted {
        _ if !is_ours(signal) => {
            // SAFETY: as we were called.
            unsafe { SIGSET.get()(signal, wanted) }
        }
        SIG_HOLD => WANTED.get().sa_sigaction,
        _ => want(wanted, 0),
    }
}

/// See sigset(3).
///
/// # Safety
///
/// As there.
#[unsafe(no_mangle)]
unsafe extern "C" fn sigignore(signal: c_int) -> c_int {
    if is_ours(signal) {
        want(libc::SIG_IGN, 0);
        return 0;
    }
    // SAFETY: as we were called.
    unsafe { SIGIGNORE.get()(signal) }
}

/// See sigset(3).
///
/// # Safety
///
/// As there.
#[unsafe(no_mangle)]
unsafe extern "C" fn sighold(signal: c_int) -> c_int {
    // SAFETY: as we were called.
    if is_ours(signal) { 0 } else { unsafe { SIGHOLD.get()(signal) } }
}

/// See sigset(3).
///
/// # Safety
///
/// As there.
#[unsafe(no_mangle)]
unsafe extern "C" fn sigrelse(signal: c_int) -> c_int {
    // SAFETY: as we were called.
    if is_ours(signal) { 0 } else { unsafe { SIGRELSE.get()(signal) } }
}

/// See siginterrupt(3).
///
/// # Safety
///
/// As there.
#[unsafe(no_mangle)]
unsafe extern "C" fn siginterrupt(signal: c_int, interrupts: c_int) -> c_int {
    if is_ours(signal) {
        let was = WANTED.get();
        let flags =
            if interrupts == 0 { was.sa_flags | libc::SA_RESTART } else { was.sa_flags & !libc::SA_RESTART };
        want(was.sa_sigaction, flags);
        return 0;
    }
    // SAFETY: as we were called.
    unsafe { SIGINTERRUPT.get()(signal, interrupts) }
}
