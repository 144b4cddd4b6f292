//! A call that a thread makes on its own stack, and from which it returns by itself.
//!
//! The call is laid out as the kernel lays out that of a signal handler. Where the function returns to, the C
//! library's own code for the end of a handler, the kernel restores every register and the signal mask from
//! the frame. So from the first change on the thread is on its way back to where it was, whether or not
//! anybody still traces it.
//!
//! While this process is still there, it restores the thread itself, because `rt_sigreturn` forgets how much of
//! an interrupted sleep is left.

use libc::user_regs_struct;

/// Below the stack pointer, functions that call nobody keep what they like (bytes).
const RED_ZONE: u64 = 128;
/// Room for what a call needs: texts, and answers (bytes).
pub(super) const SCRATCH_BYTES: u64 = 512;
/// Where the parts of a frame lie: `struct rt_sigframe` of the kernel.
mod at {
    pub(super) const FLAGS: usize = 8;
    pub(super) const STACK_FLAGS: usize = 32;
    pub(super) const REGISTERS: usize = 48;
    pub(super) const SELECTORS: usize = 192;
    pub(super) const STATE: usize = 232;
    pub(super) const MASK: usize = 304;
    pub(super) const END: usize = 440;
}
/// There is a state of all registers, and the selector of the stack is to be restored as it is.
const FLAGS: u64 = 1 | 2 | 4;
/// No way to use a stack for signals: so the kernel leaves the one there is.
const NO_CHANGE: u32 = 7;
/// What tells the kernel that the state is one of all registers, and how long it is.
const STATE_MAGIC: u32 = 0x4650_5853;
const STATE_END_MAGIC: u32 = 0x4650_5845;
/// Where that is in the state, which registers it holds, and where its own description begins.
const STATE_WORDS_AT: usize = 464;
/// What the kernel has let every process use since long: beyond it are registers that a process has to ask for.
const USUAL_STATE_BYTES: usize = 2696;

/// A frame in the making.
pub(super) struct SignalFrame {
    /// Where its first word lies, which is where the function returns to.
    pub(super) at: u64,
    /// Where the room for texts and answers begins.
    pub(super) scratch: u64,
    /// The bytes from `at` on.
    pub(super) bytes: Vec<u8>,
}

impl SignalFrame {
    /// The frame from which a thread comes back to these registers, this state and this mask; `restorer` is the code that ends handlers.
    pub(super) fn new(registers: &user_regs_struct, state: &[u8], mask: u64, restorer: u64) -> Self {
        let state = &state[..state.len().min(USUAL_STATE_BYTES)];
        let scratch = registers.rsp.wrapping_sub(RED_ZONE + SCRATCH_BYTES) & !15;
        let state_at = scratch.wrapping_sub(state.len() as u64 + 4) & !63;
        // As at the beginning of any function: eight bytes short of a multiple of sixteen.
        let at = (state_at.wrapping_sub(at::END as u64) & !15).wrapping_sub(8);
        let mut bytes = vec![0; (scratch - at) as usize];
        let mut put = |offset: usize, part: &[u8]| bytes[offset..offset + part.len()].copy_from_slice(part);
        put(0, &restorer.to_le_bytes());
        put(at::FLAGS, &FLAGS.to_le_bytes());
        put(at::STACK_FLAGS, &NO_CHANGE.to_le_bytes());
        for (index, word) in in_order(registers).into_iter().enumerate() {
            put(at::REGISTERS + 8 * index, &word.to_le_bytes());
        }
        put(at::SELECTORS, &(registers.cs as u16).to_le_bytes());
        put(at::SELECTORS + 6, &(registers.ss as u16).to_le_bytes());
        put(at::STATE, &state_at.to_le_bytes());
        put(at::MASK, &mask.to_le_bytes());
        put((state_at - at) as usize, &described(state));
        Self { at, scratch, bytes }
    }

    /// The lowest address that is written to.
    pub(super) fn bottom(&self) -> u64 {
        self.at
    }
}

/// General registers as a frame holds them.
fn in_order(r: &user_regs_struct) -> [u64; 18] {
    [
        r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15, r.rdi, r.rsi, r.rbp, r.rbx, r.rdx, r.rax,
        r.rcx, r.rsp, r.rip, r.eflags,
    ]
}

/// A state with the description that the kernel puts into a frame, and its end mark.
fn described(state: &[u8]) -> Vec<u8> {
    let mut bytes = state.to_vec();
    let length = state.len() as u32;
    if let Some(words) = bytes.get_mut(STATE_WORDS_AT..STATE_WORDS_AT + 20) {
        let present: [u8; 8] = words[..8].try_into().unwrap_or_default(); // here the kernel tells which registers there are
        words[..4].copy_from_slice(&STATE_MAGIC.to_le_bytes());
        words[4..8].copy_from_slice(&(length + 4).to_le_bytes());
        words[8..16].copy_from_slice(&present);
        words[16..].copy_from_slice(&length.to_le_bytes());
    }
    bytes.extend(STATE_END_MAGIC.to_le_bytes());
    bytes
}

/// Calls that wait and that being stopped ends with an error, as it would after SIGSTOP and SIGCONT (signal(7)); those of sockets
/// where they have a timeout. None of them has done anything by then: what was transferred is answered in place of the error.
const ENDED_BY_STOPS: [i64; 22] = [
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_io_uring_enter,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_io_getevents,
    libc::SYS_msgrcv,
    libc::SYS_msgsnd,
];
/// The kernel's own errors for calls that it begins again.
const RESTARTS: [i64; 4] = [-512, -513, -514, -516];
/// The selector of 64-bit code: elsewhere calls have other numbers.
pub(super) const CODE_64: u64 = 0x33;
/// Length of the instruction that enters the kernel (bytes).
const CALL_BYTES: u64 = 2;

/// The system call that a thread was stopped in, if it was.
pub(super) fn call(registers: &user_regs_struct) -> Option<i64> {
    Some(registers.orig_rax as i64).filter(|&number| number >= 0)
}

/// The registers to go on with behind the frame: a call that was interrupted begins again.
pub(super) fn begun_again(registers: &user_regs_struct) -> user_regs_struct {
    let error = registers.rax as i64;
    match call(registers) {
        Some(_) if RESTARTS.contains(&error) => rewound(registers),
        _ => unended(registers),
    }
}

/// The registers to go on with where the kernel still knows what it has interrupted, and begins that again by itself; it does not
/// for some calls.
pub(super) fn unended(registers: &user_regs_struct) -> user_regs_struct {
    let ended = registers.rax as i64 == -i64::from(libc::EINTR);
    match call(registers) {
        Some(number) if ended && registers.cs == CODE_64 && ENDED_BY_STOPS.contains(&number) => {
            rewound(registers)
        }
        _ => *registers,
    }
}

fn rewound(registers: &user_regs_struct) -> user_regs_struct {
    let mut again = *registers;
    again.rax = registers.orig_rax;
    again.rip = registers.rip.wrapping_sub(CALL_BYTES);
    again.orig_rax = u64::MAX;
    again
}

/// A system call with its arguments, or a function with its.
#[derive(Clone, Copy)]
pub(super) struct InjectedCall {
    /// Address of the function, or of the instruction that enters the kernel and then returns.
    pub(super) at: u64,
    /// The system call's number.
    pub(super) number: u64,
    pub(super) arguments: [u64; 4],
}

impl InjectedCall {
    /// The registers that begin it, above a frame.
    pub(super) fn registers(&self, before: &user_regs_struct, frame: &SignalFrame) -> user_regs_struct {
        /// Of all flags, those that functions may rely on: none is set but the one that always is, and interrupts are let in.
        const CLEAN: u64 = 0x202;
        let [first, second, third, fourth] = self.arguments;
        let mut registers = *before;
        registers.rip = self.at;
        registers.rsp = frame.at;
        registers.rax = self.number;
        registers.orig_rax = u64::MAX; // no call of before is begun again
        registers.eflags = CLEAN;
        registers.rbp = 0; // for whoever follows frame pointers, the stack ends here
        (registers.rdi, registers.rsi, registers.rdx) = (first, second, third);
        (registers.rcx, registers.r10) = (fourth, fourth);
        registers
    }
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
