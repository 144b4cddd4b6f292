//! Any bytes as a ring's records: decoded in both formats, whole and where the ring wraps around.

use profiler_core::record::{RawData, RawRecord, Record, RecordFormat};

const HEADER_BYTES: usize = 8;

/// Takes any bytes.
pub(crate) fn run(data: &[u8]) {
    let Some((&[seam_low, seam_high], mut ring)) = data.split_first_chunk::<2>() else { return };
    let seam = usize::from(u16::from_le_bytes([seam_low, seam_high]));
    // As the ring reads them: a header of type, misc and size, then the body.
    while let Some((header, rest)) = ring.split_first_chunk::<HEADER_BYTES>() {
        let [kind, _, _, _, m0, m1, s0, s1] = *header;
        let size = usize::from(u16::from_le_bytes([s0, s1])).saturating_sub(HEADER_BYTES).min(rest.len());
        let (body, next) = rest.split_at(size);
        let (left, right) = body.split_at(seam.min(size));
        for body in [RawData::Single(body), RawData::Split(left, right)] {
            let raw = RawRecord { kind: u32::from(kind), misc: u16::from_le_bytes([m0, m1]), body };
            decode(raw, &RecordFormat::new(false));
            decode(raw, &RecordFormat::new(true));
        }
        ring = next;
    }
}

fn decode(raw: RawRecord<'_>, format: &RecordFormat) {
    let _ = raw.time_ns(format);
    let Ok(Record::Sample(sample)) = raw.decode(format) else { return };
    let (mut kernel, mut user) = (Vec::new(), Vec::new());
    sample.kernel_chain(&mut kernel);
    sample.user_chain(&mut user);
    assert!(kernel.len() + user.len() <= sample.chain_len());
    let Some(stack) = sample.stack else { return };
    for offset in (0..stack.len() as u64 + 9).chain([u64::MAX - 7, u64::MAX]) {
        let inside = offset.checked_add(8).is_some_and(|end| end <= stack.len() as u64);
        assert_eq!(stack.word(offset).is_some(), inside);
    }
}
