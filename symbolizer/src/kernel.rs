//! The kernel's own symbols, from the text of `/proc/kallsyms`.

use crate::demangle::demangle;
use crate::reason::Reason;

/// A list larger than this is not a kernel's: today's have 10 MB.
const LONGEST_LIST: usize = 256 << 20;
/// The list has no sizes. A function reaches to the next symbol, but not further than this: past the last function of a
/// module comes another module's data, or nothing.
const LONGEST_FUNCTION: u64 = 256 << 10;

/// A kernel function that covers an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelSymbol {
    /// The function's name, demangled.
    pub name: String,
    /// The module it belongs to, or none for the kernel image.
    pub module: Option<String>,
}

/// The kernel's functions, by address.
#[derive(Debug, Clone)]
pub struct KernelSymbols {
    functions: Vec<Function>,
    names: String,
    modules: Vec<String>,
}

/// A function, or with an empty name the start of something that is none.
#[derive(Debug, Clone, Copy)]
struct Function {
    address: u64,
    name: u32,
    name_len: u32,
    module: u32,
}

/// One line of the list.
struct Line<'a> {
    address: u64,
    kind: u8,
    name: &'a str,
    module: &'a str,
}

impl KernelSymbols {
    /// Parses the text of `/proc/kallsyms`.
    ///
    /// Lines that are not symbols are passed over. A list in which every address is zero is the kernel's way of hiding
    /// them, and says so as [`Reason::KernelHidden`].
    pub fn parse(kallsyms: &[u8]) -> Result<Self, Reason> {
        if kallsyms.len() > LONGEST_LIST {
            return Err(Reason::TooLarge {
                what: "the kernel's symbol list".into(),
                bytes: kallsyms.len() as u64,
            });
        }
        let mut lines: Vec<Line<'_>> = kallsyms.split(|&b| b == b'\n').filter_map(Line::parse).collect();
        let listed = lines.len();
        lines.retain(|line| line.address != 0);
        if lines.is_empty() && listed > 0 {
            return Err(Reason::KernelHidden);
        }
        lines.sort_by_key(Line::preference);
        lines.dedup_by_key(|line| line.address);
        let symbols = Self::collect(&lines);
        if symbols.functions.is_empty() { Err(Reason::NoKernelSymbols) } else { Ok(symbols) }
    }

    /// The function that covers `address`.
    pub fn symbolize(&self, address: u64) -> Option<KernelSymbol> {
        let index = self.functions.partition_point(|function| function.address <= address).checked_sub(1)?;
        let function = self.functions[index];
        if address - function.address >= LONGEST_FUNCTION || function.name_len == 0 {
            return None;
        }
        let name = self.names.get(function.name as usize..)?.get(..function.name_len as usize)?;
        let module = self.modules.get(function.module as usize).filter(|module| !module.is_empty());
        Some(KernelSymbol { name: demangle(name), module: module.cloned() })
    }

    fn collect(lines: &[Line<'_>]) -> Self {
        let mut symbols = Self { functions: Vec::new(), names: String::new(), modules: Vec::new() };
        for line in lines {
            let follows_function = symbols.functions.last().is_some_and(|last| last.name_len != 0);
            if line.is_function() {
                symbols.push(line);
            } else if follows_function {
                symbols.functions.push(Function { address: line.address, name: 0, name_len: 0, module: 0 });
            }
        }
        symbols
    }

    fn push(&mut self, line: &Line<'_>) {
        // Modules come in runs, so the newest few are the only ones worth searching.
        let recent = self.modules.iter().rev().take(8).position(|module| module == line.module);
        let module = recent.map_or(self.modules.len(), |back| self.modules.len() - 1 - back);
        if recent.is_none() {
            self.modules.push(line.module.to_owned());
        }
        let name = self.names.len() as u32;
        self.names.push_str(line.name);
        let name_len = line.name.len() as u32;
        self.functions.push(Function { address: line.address, name, name_len, module: module as u32 });
    }
}

impl<'a> Line<'a> {
    /// `ffffffff81000000 T name` and, in a module, `\t[module]`.
    fn parse(line: &'a [u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
        let address = u64::from_str_radix(words.next()?, 16).ok()?;
        let &[kind] = words.next()?.as_bytes() else { return None };
        let name = words.next()?;
        let module = words.next().and_then(|word| word.strip_prefix('[')?.strip_suffix(']')).unwrap_or("");
        Some(Self { address, kind, name, module })
    }

    fn is_function(&self) -> bool {
        // The ends of the text sections are symbols too; what follows them is not code.
        matches!(self.kind, b't' | b'T' | b'w' | b'W') && !matches!(self.name, "_etext" | "_einittext")
    }

    /// By address; of the names at one address the exported one comes first, then the plainest.
    fn preference(&self) -> (u64, bool, u8, usize, usize) {
        let binding = match self.kind {
            b'T' => 0,
            b't' => 1,
            _ => 2,
        };
        let underscores = self.name.bytes().take_while(|&b| b == b'_').count();
        (self.address, !self.is_function(), binding, underscores, self.name.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "\
0000000000000000 A fixed_percpu_data
ffffffff81000000 T _stext
ffffffff81000000 T startup_64
ffffffff81000100 t helper
ffffffff81000200 W weak_alias
ffffffff81000200 T real_name
ffffffff81000300 T _etext
ffffffff82000000 D some_data
ffffffffc0000000 t nf_hook\t[nf_tables]
ffffffffc0000040 d nf_table\t[nf_tables]
";

    fn name(list: &KernelSymbols, address: u64) -> Option<String> {
        list.symbolize(address).map(|symbol| symbol.name)
    }

    #[test]
    fn functions_reach_to_the_next_symbol() {
        let list = KernelSymbols::parse(LIST.as_bytes()).expect("a good list");
        assert_eq!(name(&list, 0xffff_ffff_8100_0000).as_deref(), Some("startup_64"));
        assert_eq!(name(&list, 0xffff_ffff_8100_00ff).as_deref(), Some("startup_64"));
        assert_eq!(name(&list, 0xffff_ffff_8100_0100).as_deref(), Some("helper"));
        assert_eq!(name(&list, 0xffff_ffff_8100_0210).as_deref(), Some("real_name"));
        assert_eq!(name(&list, 0xffff_ffff_8100_0300), None);
        assert_eq!(name(&list, 0xffff_ffff_8200_0000), None);
        assert_eq!(name(&list, 0x1000), None);
        assert_eq!(name(&list, u64::MAX), None);
    }

    #[test]
    fn modules_are_named() {
        let list = KernelSymbols::parse(LIST.as_bytes()).expect("a good list");
        let symbol = list.symbolize(0xffff_ffff_c000_0001).expect("in the module");
        assert_eq!(symbol, KernelSymbol { name: "nf_hook".into(), module: Some("nf_tables".into()) });
        assert_eq!(list.symbolize(0xffff_ffff_c000_0041), None);
    }

    #[test]
    fn hidden_addresses_are_told_apart_from_an_empty_list() {
        let hidden = "0000000000000000 T _stext\n0000000000000000 t helper\n";
        assert_eq!(KernelSymbols::parse(hidden.as_bytes()).err(), Some(Reason::KernelHidden));
        assert_eq!(KernelSymbols::parse(b"").err(), Some(Reason::NoKernelSymbols));
        assert_eq!(KernelSymbols::parse(b"\xff\xfe junk").err(), Some(Reason::NoKernelSymbols));
    }
}
