//! Any bytes as the rings of two CPUs: records, processes, mappings, unwinding and counting.

use std::sync::Arc;

use profiler_core::elf::{ElfImage, Segment, UnwindTables};
use profiler_core::process::LoadedObject;
use profiler_core::record::Mapped;
use profiler_core::stack::ObjectId;
use profiler_core::unwind::method::Method;

use crate::pipeline::{Given, RecordedRing, replay};

/// The process that is followed.
const PID: u32 = 1;

/// Takes any bytes: flags, the seam, the length of the first ring, and the rings.
pub(crate) fn run(data: &[u8]) {
    let Some((&[flags, seam, len_low, len_high], rings)) = data.split_first_chunk::<4>() else { return };
    let len = usize::from(u16::from_le_bytes([len_low, len_high])).min(rings.len());
    let (first, second) = rings.split_at(len);
    let seam = if seam == 0 { usize::MAX } else { usize::from(seam) * 4 };
    let method =
        [None, Some(Method::Fp), Some(Method::Dwarf), Some(Method::Trial)][usize::from(flags >> 1 & 3)];
    let given = Given { copies_stack: flags & 1 != 0, method, pid: PID };
    let rings = vec![RecordedRing::new(first, seam), RecordedRing::new(second, seam)];
    let replayed = replay(rings, given, &mut |mapped| load(mapped, flags));
    let counts = replayed.counts;
    let tallied: u64 = replayed.aggregate.tallies.iter().flatten().map(|(_, tally)| tally.samples).sum();
    assert_eq!(tallied, counts.samples);
    assert!(
        counts.samples + counts.foreign + counts.mappings + counts.forks + counts.exits <= counts.records
    );
}

/// A file without tables, one of no use, or code in no file.
fn load(mapped: &Mapped, flags: u8) -> LoadedObject {
    let id = ObjectId(ObjectId::FIRST_FILE + mapped.file.inode as u8 as u32);
    match mapped.path.as_bytes().first() {
        Some(b'/') if flags & 8 == 0 => {
            let segment = Segment { file_offset: 0, file_len: 1 << 20, svma: 0, executable: true };
            let tables = UnwindTables::default();
            let image = ElfImage { segments: vec![segment], entry: 0x1000, is_program: true, tables, build_id: None };
            LoadedObject { id, image: Some(Arc::new(image)) }
        }
        Some(b'/') => LoadedObject { id, image: None },
        _ => LoadedObject::UNKNOWN,
    }
}
