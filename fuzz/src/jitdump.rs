//! Any bytes as a journal of generated code, at once and as it grows.
use symbolizer::JitDump;

/// Takes any bytes.
pub(crate) fn run(data: &[u8]) {
    let (mut at_once, mut in_parts) = (JitDump::default(), JitDump::default());
    // An error is as good an answer as any, if it comes both times.
    let whole = at_once.read(&data, u64::MAX);
    let half = &data[..data.len() / 2];
    let parts = in_parts.read(&half, 64).and_then(|()| in_parts.read(&data, u64::MAX));
    assert_eq!(whole.is_ok(), parts.is_ok());
    for step in 0..256u64 {
        for address in [step, step << 56] {
            let place = at_once.at(address, step);
            assert_eq!(place, in_parts.at(address, step));
            let frames = [place, at_once.during(address, step, 2 * step)];
            frames.into_iter().flatten().for_each(|place| _ = at_once.frame(place));
        }
    }
}
