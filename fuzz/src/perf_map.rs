//! Any bytes as a list of generated code.
use symbolizer::PerfMap;

/// Takes any bytes.
pub(crate) fn run(data: &[u8]) {
    let addresses: Vec<u64> = (0..64).map(|step| step << 58).chain(0..64).chain([u64::MAX]).collect();
    assert_eq!(PerfMap::new(data).names(&addresses).len(), addresses.len());
}
