//! A sample as it was taken: registers, a copy of the stack, and the chain that the kernel walked.

use linux_perf_event_reader as perf;

use super::{CONTEXT_KERNEL, CONTEXT_USER, FIRST_CONTEXT_MARKER, RawData};

/// A sample as the kernel took it.
#[derive(Clone, Debug)]
pub struct RawSample<'a> {
    /// Monotonic clock (ns).
    pub time_ns: u64,
    /// CPU it was taken on.
    pub cpu: u32,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// The event it belongs to; an event inherited by a child has a stream id of its own.
    pub stream_id: u64,
    /// The event's period when it was *opened or inherited*, in the event's unit. The kernel does not
    /// update it on `PERF_EVENT_IOC_PERIOD`, so the weight of a sample comes from
    /// [`PeriodTimeline`](crate::rate::PeriodTimeline) where we know the event.
    pub opened_period: u64,
    /// User registers, unless the task had none (a kernel thread).
    pub regs: Option<UserRegs>,
    /// Copy of the user stack from the stack pointer up.
    pub stack: Option<StackCopy<'a>>,
    pub(super) chain: Option<perf::RawDataU64<'a>>,
}

/// The registers that unwinding starts from, by their names on each machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "one is alive at a time, and a box would be an allocation a sample"
)]
pub enum UserRegs {
    /// Of a 64-bit task.
    X86_64 {
        /// Instruction pointer.
        ip: u64,
        /// The general registers in DWARF's numbering, as far as they are known: 6 is the frame pointer, 7 the stack
        /// pointer.
        general: [Option<u64>; 16],
    },
    /// Of a 64-bit task.
    Aarch64 {
        /// Instruction pointer.
        pc: u64,
        /// Stack pointer.
        sp: u64,
        /// Return address (`x30`), unless the function has saved it and called others since; it may be signed.
        lr: u64,
        /// Frame pointer (`x29`).
        fp: u64,
    },
    /// Of a task in 32-bit mode, whose stack has another layout.
    Narrow {
        /// Instruction pointer.
        ip: u64,
    },
}

impl UserRegs {
    /// The instruction pointer.
    pub fn ip(&self) -> u64 {
        match *self {
            Self::X86_64 { ip, .. } | Self::Aarch64 { pc: ip, .. } | Self::Narrow { ip } => ip,
        }
    }

    /// Whether the task had called the kernel itself, where that can be told: `syscall` leaves the address that it returns to in
    /// `rcx`. Otherwise an interrupt or a fault has led there.
    pub(crate) fn are_of_system_call(&self) -> Option<bool> {
        const RCX: usize = 2;
        match self {
            Self::X86_64 { ip, general } => general[RCX].map(|rcx| rcx == *ip),
            _ => None,
        }
    }

    /// Those of an x86-64 task of which only the instruction, stack and frame pointers are known.
    pub fn x86_64(ip: u64, sp: u64, bp: u64) -> Self {
        let mut general = [None; 16];
        (general[6], general[7]) = (Some(bp), Some(sp));
        Self::X86_64 { ip, general }
    }
}

/// Bytes of the user stack from the stack pointer up.
#[derive(Clone, Copy, Debug)]
pub struct StackCopy<'a> {
    bytes: RawData<'a>,
    /// How much was asked for; the copy is shorter where the mapping ended first.
    requested: usize,
}

impl<'a> StackCopy<'a> {
    /// A copy of `bytes`, of which `requested` were asked for.
    pub fn new(bytes: RawData<'a>, requested: usize) -> Self {
        Self { bytes, requested }
    }

    /// The same of bytes in one piece.
    pub fn of_bytes(bytes: &'a [u8], requested: usize) -> Self {
        Self::new(RawData::Single(bytes), requested)
    }

    /// Writes what was copied to the beginning of a buffer, as far as it has room.
    pub fn copy_to(&self, bytes: &mut [u8]) {
        let (left, right) = match self.bytes {
            RawData::Single(all) => (all, &[][..]),
            RawData::Split(left, right) => (left, right),
        };
        let (first, rest) = bytes.split_at_mut(left.len().min(bytes.len()));
        first.copy_from_slice(&left[..first.len()]);
        let room = right.len().min(rest.len());
        rest[..room].copy_from_slice(&right[..room]);
    }

    /// Bytes that were copied.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether nothing was copied.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the copy holds all that was asked for, so that there may be more stack behind it.
    pub fn is_full(&self) -> bool {
        self.len() >= self.requested
    }

    /// The eight bytes at `offset` above the stack pointer.
    pub fn word(&self, offset: u64) -> Option<u64> {
        let start = usize::try_from(offset).ok()?;
        let end = start.checked_add(8)?;
        let (left, right) = match self.bytes {
            RawData::Single(bytes) => return word_in(bytes, start, end),
            RawData::Split(left, right) => (left, right),
        };
        if end <= left.len() {
            return word_in(left, start, end);
        }
        if start >= left.len() {
            return word_in(right, start - left.len(), end - left.len());
        }
        let mut word = [0; 8];
        let in_left = left.len() - start;
        word[..in_left].copy_from_slice(&left[start..]);
        word[in_left..].copy_from_slice(right.get(..8 - in_left)?);
        Some(u64::from_ne_bytes(word))
    }
}

fn word_in(bytes: &[u8], start: usize, end: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(start..end)?.try_into().ok()?))
}

impl<'a> RawSample<'a> {
    /// A sample that a thread has taken of itself, in user code: without a chain or an event.
    pub fn of_thread(time_ns: u64, (pid, tid): (u32, u32), regs: UserRegs, stack: StackCopy<'a>) -> Self {
        let (regs, stack) = (Some(regs), Some(stack));
        Self { time_ns, cpu: 0, pid, tid, stream_id: 0, opened_period: 0, regs, stack, chain: None }
    }
}

impl RawSample<'_> {
    /// Kernel frames, innermost first, as lookup addresses; empty when the sample hit user code.
    pub fn kernel_chain(&self, out: &mut Vec<u64>) {
        self.chain_of(CONTEXT_KERNEL, out);
    }

    /// User frames found by frame pointers, innermost first, as lookup addresses.
    pub fn user_chain(&self, out: &mut Vec<u64>) {
        self.chain_of(CONTEXT_USER, out);
    }

    /// Appends the frames of one context. All but the innermost are return addresses: the call is in the
    /// byte before.
    fn chain_of(&self, context: u64, out: &mut Vec<u64>) {
        let Some(chain) = self.chain else { return };
        let mut inside = false;
        let mut innermost = true;
        for address in (0..chain.len()).filter_map(|i| chain.get(i)) {
            if address >= FIRST_CONTEXT_MARKER {
                inside = address == context;
                innermost = true;
            } else if inside {
                out.push(if innermost { address } else { address.wrapping_sub(1) });
                innermost = false;
            }
        }
    }

    /// Length of the whole call chain, context markers included.
    pub fn chain_len(&self) -> usize {
        self.chain.map_or(0, |chain| chain.len())
    }
}
