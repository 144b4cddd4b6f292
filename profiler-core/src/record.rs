//! The kernel's records, decoded: from the bytes in a perf ring buffer to [`Record`].
//!
//! The field layout of every record is fixed by [`RecordFormat`], so that one format decodes all rings of a
//! run. Whatever the bytes hold, decoding ends in a record or a [`DecodeError`], never in a panic.

use linux_perf_event_reader as perf;
use linux_perf_event_reader::{EventRecord, RawEventRecord, RecordParseInfo, RecordType, SampleFormat};

pub use linux_perf_event_reader::RawData;

use crate::machine::Machine;

/// `perf_event_attr.sample_type` without the parts that differ from run to run.
const BASE_FORMAT: SampleFormat = SampleFormat::IDENTIFIER
    .union(SampleFormat::IP)
    .union(SampleFormat::TID)
    .union(SampleFormat::TIME)
    .union(SampleFormat::STREAM_ID)
    .union(SampleFormat::CPU)
    .union(SampleFormat::PERIOD)
    .union(SampleFormat::CALLCHAIN);

/// Set in `misc` of a `MMAP2` record that carries a build id in the place of the inode.
///
/// It says so of another's event too: where any profiler on the machine asks for build ids, the kernel (up to 6.18 at
/// least) leaves the mark on the records of all events that it serves after that one, ours among them, whose layout is
/// still that without. So the mark tells nothing. We never ask for build ids: ours would spoil the records of others.
const MISC_MMAP_BUILD_ID: u16 = 1 << 14;
/// `PERF_SAMPLE_REGS_ABI_64`.
const REGS_ABI_64: u64 = 2;
/// Call-chain entries from here up are markers for the context that follows, not addresses.
const FIRST_CONTEXT_MARKER: u64 = -4095i64 as u64;
const CONTEXT_KERNEL: u64 = -128i64 as u64;
const CONTEXT_USER: u64 = -512i64 as u64;
/// `PROT_EXEC` of `mmap(2)`.
const PROT_EXEC: u32 = 4;

/// What every record of a run contains.
#[derive(Clone, Copy, Debug)]
pub struct RecordFormat {
    machine: Machine,
    info: RecordParseInfo,
}

impl RecordFormat {
    /// The format of this machine's samples, with or without a copy of the user stack (and registers).
    pub fn new(copies_stack: bool) -> Self {
        Self::of(Machine::HOST, copies_stack)
    }

    /// The format of samples that were taken on `machine`.
    pub fn of(machine: Machine, copies_stack: bool) -> Self {
        let mut format = BASE_FORMAT;
        let mut regs = 0;
        if copies_stack {
            format |= SampleFormat::REGS_USER | SampleFormat::STACK_USER;
            regs = machine.sample_regs();
        }
        let ids = perf::RecordIdParseInfo {
            nonsample_record_id_offset_from_end: Some(8),
            sample_record_id_offset_from_start: Some(0),
        };
        let info = RecordParseInfo {
            endian: perf::Endianness::NATIVE,
            sample_format: format,
            branch_sample_format: perf::BranchSampleFormat::empty(),
            read_format: perf::ReadFormat::empty(),
            // Behind records that are no samples stand: pid and tid, time, stream id, cpu, identifier.
            common_data_offset_from_end: Some(40),
            sample_regs_user: regs,
            user_regs_count: regs.count_ones() as u8,
            sample_regs_intr: 0,
            intr_regs_count: 0,
            id_parse_info: ids,
            nonsample_record_time_offset_from_end: Some(32),
            // Before the time of a sample stand: identifier, ip, pid and tid.
            sample_record_time_offset_from_start: Some(24),
        };
        Self { machine, info }
    }

    /// `perf_event_attr.sample_type` for this format.
    pub fn sample_type(&self) -> u64 {
        self.info.sample_format.bits()
    }

    /// `perf_event_attr.sample_regs_user` for this format.
    pub fn sample_regs_user(&self) -> u64 {
        self.info.sample_regs_user
    }
}

/// A record as it lies in a ring buffer, its header taken off.
#[derive(Clone, Copy, Debug)]
pub struct RawRecord<'a> {
    /// `perf_event_header.type`.
    pub kind: u32,
    /// `perf_event_header.misc`.
    pub misc: u16,
    /// What follows the header.
    pub body: RawData<'a>,
}

/// Why a record could not be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The record ends before its last field.
    #[error("the record is too short for its type")]
    TooShort,
    /// A field that this kind of record always has is missing.
    #[error("the record lacks a field that was asked for")]
    MissingField,
}

/// A decoded record.
#[derive(Clone, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "one is alive at a time, and a box would be an allocation a sample"
)]
pub enum Record<'a> {
    /// An event's period elapsed.
    Sample(RawSample<'a>),
    /// Executable memory was mapped.
    Mmap(Mapped),
    /// A task took a new name, by `execve` or otherwise.
    Comm {
        /// Process.
        pid: u32,
        /// Thread.
        tid: u32,
        /// New name.
        name: String,
        /// Whether `execve` did it: the address space is new.
        exec: bool,
    },
    /// A task was created.
    Fork(Task),
    /// A task ended.
    Exit(Task),
    /// The kernel dropped records for want of room.
    Lost {
        /// How many.
        count: u64,
    },
    /// The kernel stopped an event for a while because it came too often.
    Throttle,
    /// Of no interest.
    Other,
}

/// The task of a `FORK` or `EXIT` record, and its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// Process.
    pub pid: u32,
    /// Parent process; equal to `pid` when a thread was created.
    pub parent_pid: u32,
    /// Thread.
    pub tid: u32,
}

/// A mapping of executable memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// Process.
    pub pid: u32,
    /// First address.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
    /// Offset in the file, in bytes.
    pub file_offset: u64,
    /// The file's identity.
    pub file: FileId,
    /// Its path as the process sees it, or `[vdso]`, `//anon` and the like.
    pub path: String,
}

/// A file's identity on its host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FileId {
    /// Major number of the device.
    pub major: u32,
    /// Minor number of the device.
    pub minor: u32,
    /// Inode number.
    pub inode: u64,
    /// Tells apart files that had the same inode one after another; 0 where it is not told.
    pub generation: u64,
}

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
    chain: Option<perf::RawDataU64<'a>>,
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

impl<'a> RawRecord<'a> {
    /// When the record was made: monotonic clock (ns).
    pub fn time_ns(&self, format: &RecordFormat) -> Option<u64> {
        self.event(format).timestamp()
    }

    /// Decodes the record.
    pub fn decode(&self, format: &RecordFormat) -> Result<Record<'a>, DecodeError> {
        if self.kind == LOST_SAMPLES {
            let count = self.body.get(0..8).and_then(read_word).ok_or(DecodeError::TooShort)?;
            return Ok(Record::Lost { count });
        }
        if self.kind == SAMPLE && !self.chain_fits() {
            return Err(DecodeError::TooShort); // the reader multiplies the length without a check
        }
        let event = self.event(format).parse().map_err(|_| DecodeError::TooShort)?;
        Ok(match event {
            EventRecord::Sample(sample) => Record::Sample(self.sample(sample, format)?),
            EventRecord::Mmap2(mmap) if mmap.protection & PROT_EXEC != 0 => Record::Mmap(mapped(mmap)),
            EventRecord::Comm(comm) => Record::Comm {
                pid: comm.pid as u32,
                tid: comm.tid as u32,
                name: lossy(comm.name),
                exec: comm.is_execve,
            },
            EventRecord::Fork(task) => Record::Fork(task_of(task)),
            EventRecord::Exit(task) => Record::Exit(task_of(task)),
            EventRecord::Lost(lost) => Record::Lost { count: lost.count },
            EventRecord::Throttle(_) => Record::Throttle,
            _ => Record::Other,
        })
    }

    /// Whether the call chain that a sample announces fits into it.
    fn chain_fits(&self) -> bool {
        let announced = self.body.get(CHAIN_OFFSET..CHAIN_OFFSET + 8).and_then(read_word);
        announced.is_some_and(|len| len <= self.body.len() as u64 / 8)
    }

    fn sample(
        &self,
        sample: perf::SampleRecord<'a>,
        format: &RecordFormat,
    ) -> Result<RawSample<'a>, DecodeError> {
        let missing = DecodeError::MissingField;
        let is_64_bit = self.regs_abi() == Some(REGS_ABI_64);
        let regs = sample.user_regs.as_ref();
        let regs = regs.and_then(|regs| format.machine.user_regs(is_64_bit, |number| regs.get(number)));
        let stack = match sample.user_stack {
            Some((bytes, copied)) if format.info.sample_format.contains(SampleFormat::STACK_USER) => {
                let copied = usize::try_from(copied).unwrap_or(usize::MAX).min(bytes.len());
                let copy = bytes.get(0..copied).ok_or(DecodeError::TooShort)?;
                Some(StackCopy::new(copy, bytes.len()))
            }
            _ => None,
        };
        Ok(RawSample {
            time_ns: sample.timestamp.ok_or(missing)?,
            cpu: sample.cpu.ok_or(missing)?,
            pid: sample.pid.ok_or(missing)? as u32,
            tid: sample.tid.ok_or(missing)? as u32,
            stream_id: sample.stream_id.ok_or(missing)?,
            opened_period: sample.period.ok_or(missing)?,
            regs,
            stack,
            chain: sample.callchain,
        })
    }

    /// What stands before the user registers of a sample, right behind the call chain. The reader skips it.
    fn regs_abi(&self) -> Option<u64> {
        let word = |at: usize| self.body.get(at..at.checked_add(8)?).and_then(read_word);
        let chain_bytes = usize::try_from(word(CHAIN_OFFSET)?).ok()?.checked_mul(8)?;
        word(chain_bytes.checked_add(CHAIN_OFFSET + 8)?)
    }

    fn event(&self, format: &RecordFormat) -> RawEventRecord<'a> {
        let kind = RecordType(self.kind);
        let another_s = if kind == RecordType::MMAP2 { MISC_MMAP_BUILD_ID } else { 0 };
        RawEventRecord::new(kind, self.misc & !another_s, self.body, format.info)
    }
}

/// `PERF_RECORD_SAMPLE`.
const SAMPLE: u32 = 9;
/// Before the call chain of a sample stand: identifier, ip, pid and tid, time, stream id, cpu, period.
const CHAIN_OFFSET: usize = 56;
/// `PERF_RECORD_LOST_SAMPLES`, which the reader leaves undecoded.
const LOST_SAMPLES: u32 = 13;

fn read_word(data: RawData<'_>) -> Option<u64> {
    StackCopy::new(data, 8).word(0)
}

fn task_of(task: perf::ForkOrExitRecord) -> Task {
    Task { pid: task.pid as u32, parent_pid: task.ppid as u32, tid: task.tid as u32 }
}

fn mapped(mmap: perf::Mmap2Record<'_>) -> Mapped {
    let file = match mmap.file_id {
        perf::Mmap2FileId::InodeAndVersion(id) => {
            FileId { major: id.major, minor: id.minor, inode: id.inode, generation: id.inode_generation }
        }
        perf::Mmap2FileId::BuildId(_) => FileId::default(), // never: its mark is taken off
    };
    Mapped {
        pid: mmap.pid as u32,
        start: mmap.address,
        len: mmap.length,
        file_offset: mmap.page_offset,
        file,
        path: lossy(mmap.path),
    }
}

fn lossy(bytes: RawData<'_>) -> String {
    String::from_utf8_lossy(&bytes.as_slice()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample_body(chain: &[u64], regs: &[u64], stack: &[u8]) -> Vec<u8> {
        let mut words = vec![7, 0x1000, 42 | 43 << 32, 5_000, 8, 1, 1_000_000, chain.len() as u64];
        words.extend_from_slice(chain);
        words.push(REGS_ABI_64);
        words.extend_from_slice(regs);
        words.push(stack.len() as u64);
        let mut body: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        body.extend_from_slice(stack);
        body.extend((stack.len() as u64 / 2).to_ne_bytes());
        body
    }

    /// In the order of the kernel's numbers: AX, BX, CX, DX, SI, DI, BP, SP, IP, R8 to R15.
    const X86_64: [u64; 17] = [
        0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xb0, 0xc0, 0xd0, 0xe0, 0xe1, 0xe2, 0xe3, 0xe4, 0xe5, 0xe6, 0xe7,
    ];

    #[test]
    fn a_sample_is_decoded_field_by_field() {
        let chain = [CONTEXT_KERNEL, 100, 200, CONTEXT_USER, 300, 400];
        let body = sample_body(&chain, &X86_64, &[1; 32]);
        let format = RecordFormat::of(Machine::X86_64, true);
        for split in 0..body.len() {
            let (left, right) = body.split_at(split);
            let raw = RawRecord { kind: SAMPLE, misc: 2, body: RawData::Split(left, right) };
            assert_eq!(raw.time_ns(&format), Some(5_000));
            let Ok(Record::Sample(sample)) = raw.decode(&format) else { panic!("split at {split}") };
            assert_eq!((sample.pid, sample.tid, sample.cpu, sample.stream_id), (42, 43, 1, 8));
            let general = [0xa0, 0xa3, 0xa2, 0xa1, 0xa4, 0xa5, 0xb0, 0xc0];
            let extended = [0xe0, 0xe1, 0xe2, 0xe3, 0xe4, 0xe5, 0xe6, 0xe7];
            let general = std::array::from_fn(|at| general.iter().chain(&extended).nth(at).copied());
            assert_eq!(sample.regs, Some(UserRegs::X86_64 { ip: 0xd0, general }));
            let (mut kernel, mut user) = (Vec::new(), Vec::new());
            sample.kernel_chain(&mut kernel);
            sample.user_chain(&mut user);
            assert_eq!((kernel, user), (vec![100, 199], vec![300, 399]));
            let stack = sample.stack.unwrap();
            assert_eq!((stack.len(), stack.is_full()), (16, false));
            assert_eq!(stack.word(8), Some(u64::from_ne_bytes([1; 8])));
            assert_eq!((stack.word(9), stack.word(u64::MAX)), (None, None));
        }
    }

    #[test]
    fn the_registers_of_each_machine_are_decoded_on_any() {
        let decode = |machine, regs: &[u64], abi: u64| {
            let mut body = sample_body(&[], regs, &[1; 32]);
            body[CHAIN_OFFSET + 8..CHAIN_OFFSET + 16].copy_from_slice(&abi.to_ne_bytes());
            let raw = RawRecord { kind: SAMPLE, misc: 2, body: RawData::Single(&body) };
            let Ok(Record::Sample(sample)) = raw.decode(&RecordFormat::of(machine, true)) else { panic!() };
            assert_eq!(sample.stack.map(|stack| stack.len()), Some(16));
            sample.regs
        };
        // In the order of their numbers: x29, lr, sp, pc.
        let aarch64 = [0xf0, 0xe0, 0xc0, 0xd0];
        assert_eq!(RecordFormat::of(Machine::Aarch64, true).sample_regs_user(), 0b1111 << 29);
        let expected = UserRegs::Aarch64 { pc: 0xd0, sp: 0xc0, lr: 0xe0, fp: 0xf0 };
        assert_eq!(decode(Machine::Aarch64, &aarch64, REGS_ABI_64), Some(expected));
        assert_eq!(decode(Machine::Aarch64, &aarch64, 1), Some(UserRegs::Narrow { ip: 0xd0 }));
        assert_eq!(RecordFormat::of(Machine::X86_64, true).sample_regs_user(), 0x1ff | 0xff << 16);
        let narrow = decode(Machine::X86_64, &X86_64, 1);
        assert_eq!(narrow, Some(UserRegs::Narrow { ip: 0xd0 }));
    }

    /// A mapping of `/lib/a.so` from inode 7 on, version 9.
    fn mmap_body() -> Vec<u8> {
        let words = [42 | 43 << 32, 0x1000, 0x2000, 0x3000, 8 | 1 << 32, 7, 9, 5];
        let mut body: Vec<u8> = words.iter().flat_map(|word: &u64| word.to_ne_bytes()).collect();
        body.extend(*b"/lib/a.so\0\0\0\0\0\0\0");
        body.extend([42 | 43 << 32, 5_000u64, 8, 1, 7].iter().flat_map(|word| word.to_ne_bytes()));
        body
    }

    #[test]
    fn a_mapping_is_read_whatever_mark_another_profiler_left_on_it() {
        let body = mmap_body();
        let file = FileId { major: 8, minor: 1, inode: 7, generation: 9 };
        for misc in [2, 2 | MISC_MMAP_BUILD_ID, u16::MAX] {
            let raw = RawRecord { kind: 10, misc, body: RawData::Single(&body) };
            let Ok(Record::Mmap(mapped)) = raw.decode(&RecordFormat::new(false)) else { panic!("{misc:#x}") };
            assert_eq!(
                (mapped.pid, mapped.start, mapped.len, mapped.file_offset),
                (42, 0x1000, 0x2000, 0x3000)
            );
            assert_eq!((mapped.file, &*mapped.path), (file, "/lib/a.so"));
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_decoder_panic(
            kind in 0u32..24, misc: u16, split: prop::sample::Index, stack: bool,
            body in prop::collection::vec(any::<u8>(), 0..600),
        ) {
            let (left, right) = body.split_at(split.index(body.len() + 1));
            let raw = RawRecord { kind, misc, body: RawData::Split(left, right) };
            let format = RecordFormat::new(stack);
            let _ = raw.time_ns(&format);
            if let Ok(Record::Sample(sample)) = raw.decode(&format) {
                sample.user_chain(&mut Vec::new());
                let _ = sample.stack.map(|stack| stack.word(split.index(1 << 20) as u64));
            }
        }

        #[test]
        fn a_damaged_sample_does_not_panic(at: prop::sample::Index, byte: u8, len: prop::sample::Index) {
            let mut body = sample_body(&[CONTEXT_USER, 300, 400], &[7; 4], &[1; 64]);
            let at = at.index(body.len());
            body[at] = byte;
            body.truncate(len.index(body.len() + 1));
            let raw = RawRecord { kind: SAMPLE, misc: 2, body: RawData::Single(&body) };
            let _ = raw.decode(&RecordFormat::new(true));
        }
    }
}
