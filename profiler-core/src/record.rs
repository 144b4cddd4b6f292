//! The kernel's records, decoded: from the bytes in a perf ring buffer to [`Record`].
//!
//! The field layout of every record is fixed by [`RecordFormat`], so that one format decodes all rings of a
//! run. Whatever the bytes hold, decoding ends in a record or a [`DecodeError`], never in a panic.

mod sample;

use linux_perf_event_reader as perf;
use linux_perf_event_reader::{EventRecord, RawEventRecord, RecordParseInfo, RecordType, SampleFormat};

pub use self::sample::{RawSample, StackCopy, UserRegs};
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
    #[error("the record lacks a requested field")]
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
    /// When that happened: monotonic clock (ns).
    pub time_ns: u64,
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
    Task { pid: task.pid as u32, parent_pid: task.ppid as u32, tid: task.tid as u32, time_ns: task.timestamp }
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
mod tests;
