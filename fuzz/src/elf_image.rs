//! Any bytes as an object file: its segments, its unwind tables, and stacks that are unwound by them.

use std::sync::Arc;

use profiler_core::elf::{ElfImage, Segment};
use profiler_core::machine::Machine;
use profiler_core::process::{LoadedObject, ProcessTable};
use profiler_core::record::{FileId, Mapped, RawData, StackCopy, UserRegs};
use profiler_core::stack::ObjectId;
use profiler_core::unwind::StackUnwinder;

/// Where the stack is.
const STACK: u64 = 0x7ffc_0000_0000;
/// Segments that are mapped.
const MOST_SEGMENTS: usize = 8;

/// Takes any bytes.
pub(crate) fn run(data: &[u8]) {
    let Ok(image) = ElfImage::parse_bytes(data) else { return };
    let starts = image.segments.iter().flat_map(|s| [s.svma, s.svma.wrapping_add(s.file_len)]);
    for svma in starts.chain([0, 0x1000, image.base_svma(), image.entry, u64::MAX]) {
        assert!(image.function_start(svma).is_none_or(|start| start <= svma));
        check_bias(&image, svma, svma, 0x1000);
        check_bias(&image, 0x7f00_0000_0000, svma & 0xf_ffff, u64::MAX);
    }
    image.read_tables();
    unwind(image);
}

/// A mapping lies where one of the segments says.
fn check_bias(image: &ElfImage, start: u64, file_offset: u64, len: u64) {
    let Some(bias) = image.bias(start, file_offset, len) else { return };
    let stated = start.wrapping_sub(bias);
    let is_it = |s: &Segment| stated == s.svma.wrapping_add(file_offset.wrapping_sub(s.file_offset));
    assert!(image.segments.iter().any(is_it), "{stated:#x}");
}

/// Unwinds a stack of addresses of the object at places of its code.
fn unwind(image: ElfImage) {
    let machine = image.machine();
    let segments: Vec<Segment> = image.segments.iter().take(MOST_SEGMENTS).copied().collect();
    let loaded = LoadedObject { id: ObjectId(ObjectId::FIRST_FILE), image: Some(Arc::new(image)) };
    let mut processes = ProcessTable::default();
    processes.adopt(1, "fuzzed");
    let mut code = Vec::new();
    for (segment, at) in segments.iter().zip(1_u64..) {
        let (start, len) = (at << 32, segment.file_len.min(1 << 30));
        let (file, path) = (FileId::default(), String::new());
        let mapped = Mapped { pid: 1, start, len, file_offset: segment.file_offset, file, path };
        processes.mapped(&mapped, |_| loaded.clone());
        code.extend([start, start + len / 3, start + len / 2, (start + len).saturating_sub(1)]);
    }
    let Some(process) = processes.get(1) else { return };
    let words = code.iter().flat_map(|&address| [address, STACK + 32, 0]);
    let words: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    let mut unwinder = StackUnwinder::default();
    for &ip in &code {
        let regs = match machine {
            Machine::Aarch64 => UserRegs::Aarch64 { pc: ip, sp: STACK, lr: ip, fp: STACK + 16 },
            _ => UserRegs::X86_64 { ip, general: [Some(STACK); 16] },
        };
        let mut frames = Vec::new();
        let stack = StackCopy::new(RawData::Single(&words), words.len());
        let unwound = unwinder.unwind(process, regs, stack, &mut frames);
        assert!((1..=4096).contains(&frames.len()) && unwound.depth_bytes <= words.len() as u64);
        let _ = process.function(ip);
    }
}
