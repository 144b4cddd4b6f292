//! Any bytes as a list of generated code.
use symbolizer::{PerfMap, demangle};

/// Longer names are cut.
const LONGEST_NAME: usize = 4096;

/// Takes any bytes.
pub(crate) fn run(data: &[u8]) {
    let lines: Vec<(u64, u64, &[u8])> = data.split(|&byte| byte == b'\n').filter_map(line).collect();
    let edges = lines.iter().take(64).flat_map(|&(start, end, _)| [start, end - 1, end]);
    let addresses: Vec<u64> =
        (0..64).map(|step| step << 58).chain(0..64).chain([u64::MAX]).chain(edges).collect();
    let names = PerfMap::new(data).names(&addresses);
    assert_eq!(names.len(), addresses.len());
    for (address, name) in addresses.into_iter().zip(names) {
        // The last line that covers the address, found by looking at all.
        let last = lines.iter().rfind(|(start, end, _)| (*start..*end).contains(&address));
        let expected = last
            .map(|(_, _, name)| demangle(&String::from_utf8_lossy(&name[..name.len().min(LONGEST_NAME)])));
        assert_eq!(name.as_deref(), expected.as_deref(), "{address:#x}");
    }
}

/// Start, end and name.
fn line(line: &[u8]) -> Option<(u64, u64, &[u8])> {
    let number = |digits: &[u8]| {
        let digits = std::str::from_utf8(digits).ok()?;
        let digits = digits.strip_prefix("0x").unwrap_or(digits);
        (!digits.starts_with(['+', '-'])).then(|| u64::from_str_radix(digits, 16).ok())?
    };
    let first = line.iter().position(|&byte| byte == b' ')?;
    let second = first + 1 + line[first + 1..].iter().position(|&byte| byte == b' ')?;
    let (start, size) = (number(&line[..first])?, number(&line[first + 1..second])?);
    let name = line[second + 1..].trim_ascii();
    (size > 0 && !name.is_empty()).then_some((start, start.checked_add(size)?, name))
}
