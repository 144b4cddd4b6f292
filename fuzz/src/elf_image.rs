//! Any bytes as an object file: its segments, its unwind tables and the index of functions.

use profiler_core::elf::ElfImage;

/// Takes any bytes.
pub(crate) fn run(data: &[u8]) {
    let Ok(image) = ElfImage::parse_bytes(data) else { return };
    let starts = image.segments.iter().flat_map(|s| [s.svma, s.svma.wrapping_add(s.file_len)]);
    for svma in starts.chain([0, 0x1000, image.base_svma(), u64::MAX]) {
        let _ = image.function_start(svma);
        let _ = image.bias(svma, svma, 0x1000);
        let _ = image.bias(0x7f00_0000_0000, svma & 0xf_ffff, u64::MAX);
    }
}
