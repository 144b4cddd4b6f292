//! Any bytes as the kernel's symbol list.

use symbolizer::{KernelSymbol, KernelSymbols, demangle};

/// No function is believed to be longer.
const LONGEST_FUNCTION: u64 = 256 << 10;

/// Takes any bytes.
pub(crate) fn run(data: &[u8]) {
    let Ok(symbols) = KernelSymbols::parse(data) else { return };
    let lines: Vec<Line<'_>> = data.split(|&byte| byte == b'\n').filter_map(Line::parse).collect();
    let listed = lines.iter().take(64).flat_map(|line| [line.address, line.address.wrapping_add(1)]);
    let others = (0..64).flat_map(|step| [step << 58, 0xffff_ffff_8100_0000 + step]);
    for address in listed.chain(others) {
        check(&lines, address, symbols.symbolize(address));
    }
}

/// The name is one of those at the nearest address that the list has before this one.
fn check(lines: &[Line<'_>], address: u64, found: Option<KernelSymbol>) {
    let before = lines.iter().map(|line| line.address).filter(|&start| start != 0 && start <= address).max();
    let there = |line: &&Line<'_>| Some(line.address) == before && line.is_function();
    let mut functions = lines.iter().filter(there).peekable();
    let is_near = before.is_some_and(|start| address - start < LONGEST_FUNCTION);
    assert_eq!(found.is_some(), is_near && functions.peek().is_some(), "{address:#x}: {found:?}");
    if let Some(KernelSymbol { name, module }) = found {
        let is_it = |line: &Line<'_>| demangle(line.name) == name && line.module == module.as_deref();
        assert!(functions.any(is_it), "{address:#x}: {name} {module:?}");
    }
}

struct Line<'a> {
    address: u64,
    kind: &'a str,
    name: &'a str,
    module: Option<&'a str>,
}

impl<'a> Line<'a> {
    fn parse(line: &'a [u8]) -> Option<Self> {
        let words: Vec<&str> = std::str::from_utf8(line).ok()?.split_ascii_whitespace().collect();
        let [address, kind, name, rest @ ..] = &words[..] else { return None };
        let module = rest.first().and_then(|word| word.strip_prefix('[')?.strip_suffix(']'));
        let address = u64::from_str_radix(address, 16).ok()?;
        (kind.len() == 1).then_some(Self {
            address,
            kind,
            name,
            module: module.filter(|name| !name.is_empty()),
        })
    }

    fn is_function(&self) -> bool {
        ["t", "T", "w", "W"].contains(&self.kind) && self.name != "_etext" && self.name != "_einittext"
    }
}
