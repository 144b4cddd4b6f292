//! Any bytes as unwind tables, registers and stack: unwinding ends, and says how.

use std::sync::Arc;

use profiler_core::elf::{ElfImage, Segment, UnwindTables};
use profiler_core::machine::Machine;
use profiler_core::process::{LoadedObject, ProcessTable};
use profiler_core::profile::Outcome;
use profiler_core::record::{FileId, Mapped, RawData, StackCopy, UserRegs};
use profiler_core::stack::ObjectId;
use profiler_core::unwind::StackUnwinder;

/// Where the object is mapped.
const TEXT: u64 = 0x10_0000;
const TEXT_BYTES: u64 = 0x1000;
/// Where the stack is, unless the input says otherwise.
const STACK: u64 = 0x7ffc_0000_0000;
/// Where the object states its tables to be.
const INDEX: u64 = 0x2000;
const FRAMES: u64 = 0x4000;

/// The input, eaten from the front; zeros where it has ended.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn number(&mut self, bytes: usize) -> u64 {
        self.bytes(bytes).iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
    }

    fn sized(&mut self) -> &'a [u8] {
        let len = self.number(2);
        self.bytes(len as usize)
    }

    /// An address: in the code, on the stack, small or any.
    fn address(&mut self) -> u64 {
        match self.number(1) % 4 {
            0 => TEXT + self.number(2) % TEXT_BYTES,
            1 => STACK + self.number(2),
            2 => self.number(1),
            _ => self.number(8),
        }
    }
}

/// Takes any bytes.
pub(crate) fn run(data: &[u8]) {
    let mut input = Input(data);
    let flags = input.number(1);
    let svma = match flags & 3 {
        0 => TEXT,
        1 => input.number(8),
        _ => 0,
    };
    let (first, second) = (input.sized(), input.sized());
    let raw = (flags & 4 == 0).then(|| (first.to_vec(), second.to_vec()));
    let (frames, index) = raw.unwrap_or_else(|| wrapped(svma, first, second));
    let machine = if flags & 128 == 0 { Machine::X86_64 } else { Machine::Aarch64 };
    let tables = match flags >> 3 & 3 {
        0 => UnwindTables::of_bytes(machine, None, None, Some((0, &frames))),
        1 => UnwindTables::of_bytes(machine, Some((FRAMES, &frames)), None, None),
        _ => UnwindTables::of_bytes(machine, Some((FRAMES, &frames)), Some((INDEX, &index)), None),
    };
    let segment = Segment { file_offset: 0, file_len: TEXT_BYTES, svma, executable: true };
    let image = ElfImage { segments: vec![segment], tables, ..ElfImage::default() };
    let _ = image.function_start(svma);

    let mut processes = ProcessTable::default();
    processes.adopt(1, "fuzzed");
    let (file, path) = (FileId::default(), String::new());
    let mapped = Mapped { pid: 1, start: TEXT, len: TEXT_BYTES, file_offset: 0, file, path };
    let loaded = LoadedObject { id: ObjectId(ObjectId::FIRST_FILE), image: Some(Arc::new(image)) };
    processes.mapped(&mapped, |_| loaded);
    let Some(process) = processes.get(1) else { return };

    let (ip, sp, bp) = (input.address(), input.address(), input.address());
    let regs = match (machine, flags & 32) {
        (Machine::X86_64, 0) => {
            // The other registers hold the same addresses.
            let mut general = std::array::from_fn(|number| Some([ip, sp, bp][number % 3]));
            (general[6], general[7]) = (Some(bp), Some(sp));
            UserRegs::X86_64 { ip, general }
        }
        (Machine::Aarch64, 0) => UserRegs::Aarch64 { pc: ip, sp, lr: input.address(), fp: bp },
        _ => UserRegs::Narrow { ip },
    };
    let mut words = Vec::new();
    while !input.0.is_empty() && words.len() < 1 << 16 {
        words.extend(input.address().to_le_bytes());
    }
    let requested = words.len() + usize::from(flags & 64 != 0);
    let mut unwinder = StackUnwinder::default();
    // The second time, what the first one learnt is in the cache.
    let mut first = None;
    for _ in 0..2 {
        let mut frames = Vec::new();
        let stack = StackCopy::new(RawData::Single(&words), requested);
        let unwound = unwinder.unwind(process, regs, stack, &mut frames);
        // In the midst of `execve` there is no stack, and no code any more.
        assert!(!frames.is_empty() || unwound.outcome == Outcome::NoUserStack);
        assert!(frames.len() <= 4096 && unwound.depth_bytes <= words.len() as u64);
        let unwound = (frames, unwound);
        assert_eq!(*first.get_or_insert_with(|| unwound.clone()), unwound);
    }
}

/// Well-formed tables around the instructions of a common entry and of a function that covers the code.
fn wrapped(svma: u64, common: &[u8], function: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let entry = |body: &[&[u8]]| {
        let body = body.concat();
        [&(body.len() as u32).to_le_bytes()[..], &body].concat()
    };
    // Version, no augmentation, code alignment 1, data alignment -8, return address in register 16.
    let common = entry(&[&[0; 4], &[1, 0, 1, 0x78, 16], common]);
    let back = common.len() as u32 + 4;
    let function = entry(&[&back.to_le_bytes(), &svma.to_le_bytes(), &TEXT_BYTES.to_le_bytes(), function]);
    let relative = |svma: u64, base: u64| (svma.wrapping_sub(base) as u32).to_le_bytes();
    let index = [
        [1, 0x1b, 0x03, 0x3b],
        relative(FRAMES, INDEX + 4),
        1u32.to_le_bytes(),
        relative(svma, INDEX),
        relative(FRAMES + common.len() as u64, INDEX),
    ];
    ([common, function].concat(), index.concat())
}
