//! Any bytes as `/proc/PID/maps`, and what is made of its lines as a process's address space.

use profiler_core::process::{LoadedObject, ProcessTable};

use crate::proc_maps::regions;

/// Takes any bytes.
pub(crate) fn run(data: &[u8]) {
    let mut processes = ProcessTable::default();
    processes.adopt(1, "fuzzed");
    for region in regions(data) {
        assert!(region.start < region.end);
        let Some(mapped) = region.mapped(1) else { continue };
        assert!(!mapped.path.is_empty());
        processes.mapped(&mapped, |_| LoadedObject::UNKNOWN);
        let Some(process) = processes.get(1) else { return };
        assert_eq!(process.space.locate(region.start).address, region.start);
    }
}
