//! The kernel's own symbols, from the text of `/proc/kallsyms`.

use std::io::{BufRead, BufReader, Read};
use std::ops::Range;

use crate::demangle::demangle;
use crate::reason::Reason;

/// A list larger than this is not a kernel's: today's have 10 MB.
const LONGEST_LIST: usize = 256 << 20;
/// Bytes of it that are read at once.
const PIECE: usize = 256 << 10;
/// The longest line that is looked at: names have 512 bytes at most.
const LONGEST_LINE: u64 = 4096;
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
    functions: Vec<KernelFunction>,
    names: String,
    modules: Vec<String>,
}

/// A function, or with an empty name the start of something that is none.
#[derive(Debug, Clone, Copy)]
struct KernelFunction {
    address: u64,
    name: u32,
    name_len: u32,
    module: u32,
}

/// One line of the list.
struct KallsymsLine<'a> {
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
        Self::read(kallsyms)
    }

    /// Reads the whole of `/proc/kallsyms`, and parses it line by line as it comes: [`KernelSymbols::parse`].
    pub fn read(kallsyms: impl Read) -> Result<Self, Reason> {
        let mut kallsyms = BufReader::with_capacity(PIECE, kallsyms.take(LONGEST_LIST as u64 + 1));
        let mut all = Self { functions: Vec::new(), names: String::new(), modules: Vec::new() };
        let mut listed: Vec<(Preference, KernelFunction)> = Vec::new();
        let (mut text, mut bytes, mut is_hidden) = (Vec::new(), 0, false);
        loop {
            text.clear();
            let len = kallsyms.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut text)?;
            if len == 0 {
                break;
            }
            bytes += len;
            let Some(line) = KallsymsLine::parse(&text) else { continue };
            match line.address {
                0 => is_hidden = true,
                _ => listed.push((line.preference(), all.enter(&line))),
            }
        }
        if bytes > LONGEST_LIST {
            return Err(Reason::TooLarge { what: "the kernel's symbol list".into(), bytes: bytes as u64 });
        }
        if listed.is_empty() && is_hidden {
            return Err(Reason::KernelHidden);
        }
        listed.sort_by_key(|(preference, _)| *preference);
        listed.dedup_by_key(|(_, function)| function.address);
        listed.into_iter().for_each(|(_, function)| all.push(function));
        if all.functions.is_empty() {
            return Err(Reason::NoKernelSymbols);
        }
        all.functions.shrink_to_fit();
        all.names.shrink_to_fit();
        Ok(all)
    }

    /// What it holds of memory (bytes).
    pub fn held_bytes(&self) -> u64 {
        let modules: usize = self.modules.iter().map(|module| size_of::<String>() + module.len()).sum();
        (self.functions.len() * size_of::<KernelFunction>() + self.names.len() + modules) as u64
    }

    /// The functions that cover some addresses, from the text of `/proc/kallsyms` line by line: of no other is anything
    /// kept. [`KernelSymbols::symbolize`] then knows these addresses alone.
    pub fn of_addresses(mut kallsyms: impl BufRead, addresses: &[u64]) -> Result<Self, Reason> {
        let mut addresses = addresses.to_vec();
        addresses.sort_unstable();
        addresses.dedup();
        // The best line at or below each address, and above the address before it.
        let mut nearest: Vec<Option<String>> = vec![None; addresses.len()];
        // `above[i]`: the lowest listed address above `addresses[i − 1]` and not above `addresses[i]`, where a function
        // ends; `u64::MAX` if none.
        let mut above = vec![u64::MAX; addresses.len() + 1];
        let (mut listed, mut shown, mut functions) = (0u64, 0u64, 0u64);
        let mut text = Vec::new();
        loop {
            text.clear();
            // A text without lines is no list.
            let len = kallsyms.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut text)?;
            if len == 0 {
                break;
            }
            let Some(line) = KallsymsLine::parse(&text) else { continue };
            listed += 1;
            if line.address == 0 {
                continue;
            }
            shown += 1;
            functions += u64::from(line.is_function());
            let at = addresses.partition_point(|&address| address < line.address);
            above[at] = above[at].min(line.address);
            if let Some(best) = nearest.get_mut(at)
                && best
                    .as_deref()
                    .and_then(|best| KallsymsLine::parse(best.as_bytes()))
                    .is_none_or(|best| line.is_nearer(&best))
            {
                *best = std::str::from_utf8(&text).ok().map(|text| text.trim_end().to_owned());
            }
        }
        match (listed, shown, functions) {
            (1.., 0, _) => return Err(Reason::KernelHidden),
            (_, _, 0) => return Err(Reason::NoKernelSymbols),
            _ => {}
        }
        let end = |address| KallsymsLine { address, kind: b' ', name: "", module: "" };
        let mut lines = Vec::new();
        for (nearest, &above) in nearest.iter().map(Option::as_deref).chain([None]).zip(&above) {
            let line = nearest.and_then(|text| KallsymsLine::parse(text.as_bytes()));
            let is_apart = line.as_ref().is_none_or(|line| above < line.address);
            lines.extend((is_apart && above != u64::MAX).then(|| end(above)));
            lines.extend(line);
        }
        Ok(Self::collect(&lines))
    }

    /// The function that covers `address`.
    pub fn symbolize(&self, address: u64) -> Option<KernelSymbol> {
        Some(self.function(address)?.1)
    }

    /// The addresses that the function at `address` covers, and the function.
    pub fn function(&self, address: u64) -> Option<(Range<u64>, KernelSymbol)> {
        let next = self.functions.partition_point(|function| function.address <= address);
        let function = self.functions[next.checked_sub(1)?];
        if address - function.address >= LONGEST_FUNCTION || function.name_len == 0 {
            return None;
        }
        let longest = function.address.saturating_add(LONGEST_FUNCTION);
        let end = self.functions.get(next).map_or(longest, |next| next.address.min(longest));
        let name = self.names.get(function.name as usize..)?.get(..function.name_len as usize)?;
        let module = self.modules.get(function.module as usize).filter(|module| !module.is_empty());
        let symbol = KernelSymbol { name: demangle(name), module: module.cloned() };
        Some((function.address..end, symbol))
    }

    fn collect(lines: &[KallsymsLine<'_>]) -> Self {
        let mut symbols = Self { functions: Vec::new(), names: String::new(), modules: Vec::new() };
        for line in lines {
            let function = symbols.enter(line);
            symbols.push(function);
        }
        symbols
    }

    /// Adds the symbol with the next higher address. A symbol that is no function is kept only where it ends the
    /// function before it.
    fn push(&mut self, function: KernelFunction) {
        let follows_function = self.functions.last().is_some_and(|last| last.name_len != 0);
        if function.name_len != 0 || follows_function {
            self.functions.push(function);
        }
    }

    /// Stores the names of a line.
    fn enter(&mut self, line: &KallsymsLine<'_>) -> KernelFunction {
        if !line.is_function() {
            return KernelFunction { address: line.address, name: 0, name_len: 0, module: 0 };
        }
        // Modules come in runs, so the newest few are the only ones worth searching.
        let recent = self.modules.iter().rev().take(8).position(|module| module == line.module);
        let module = recent.map_or(self.modules.len(), |back| self.modules.len() - 1 - back);
        if recent.is_none() {
            self.modules.push(line.module.to_owned());
        }
        let name = self.names.len() as u32;
        self.names.push_str(line.name);
        let name_len = line.name.len() as u32;
        KernelFunction { address: line.address, name, name_len, module: module as u32 }
    }
}

impl<'a> KallsymsLine<'a> {
    /// `ffffffff81000000 T name` and, in a module, `\t[module]`.
    fn parse(line: &'a [u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
        let address = u64::from_str_radix(words.next()?, 16).ok()?;
        let &[kind] = words.next()?.as_bytes() else { return None };
        let name = words.next()?;
        let module = words.next().and_then(|word| word.strip_prefix('[')?.strip_suffix(']')).unwrap_or("");
        Some(Self { address, kind, name, module })
    }

    /// Whether this line, not `other`, names the addresses above both.
    fn is_nearer(&self, other: &KallsymsLine<'_>) -> bool {
        let ((at, this), (other_at, that)) = (split(self.preference()), split(other.preference()));
        at > other_at || at == other_at && this < that
    }

    fn is_function(&self) -> bool {
        // The ends of the text sections are symbols too; what follows them is not code.
        matches!(self.kind, b't' | b'T' | b'w' | b'W') && !matches!(self.name, "_etext" | "_einittext")
    }

    /// By address; of the names at one address the exported one comes first, then the plainest.
    fn preference(&self) -> Preference {
        let binding = match self.kind {
            b'T' => 0,
            b't' => 1,
            _ => 2,
        };
        let underscores = self.name.bytes().take_while(|&b| b == b'_').count();
        (self.address, !self.is_function(), binding, underscores, self.name.len())
    }
}

type Preference = (u64, bool, u8, usize, usize);

fn split((address, not_function, binding, underscores, len): Preference) -> (u64, (bool, u8, usize, usize)) {
    (address, (not_function, binding, underscores, len))
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
    fn some_addresses_alone_have_the_names_that_all_have() {
        let whole = KernelSymbols::parse(LIST.as_bytes()).expect("a good list");
        let asked: Vec<u64> = (0..0x400).step_by(0x10).map(|at| 0xffff_ffff_8100_0000 + at).collect();
        let modules = (0..0x80).step_by(8).map(|at| 0xffff_ffff_c000_0000 + at);
        let asked: Vec<u64> =
            asked.into_iter().chain(modules).chain([0, 1, u64::MAX, 0xffff_ffff_8200_0007]).collect();
        let reversed = LIST.lines().rev().map(|line| format!("{line}\n")).collect::<String>();
        for list in [LIST, &reversed] {
            let some = KernelSymbols::of_addresses(list.as_bytes(), &asked).expect("a good list");
            for &address in &asked {
                assert_eq!(some.function(address), whole.function(address), "{address:#x}");
            }
            for address in asked.iter().step_by(5) {
                let one = KernelSymbols::of_addresses(list.as_bytes(), &[*address]).expect("a good list");
                assert_eq!(one.function(*address), whole.function(*address), "{address:#x} alone");
            }
        }
    }

    #[test]
    fn a_list_is_the_same_however_it_comes_in_pieces() {
        let whole = KernelSymbols::parse(LIST.as_bytes()).expect("a good list");
        let (before, after) = LIST.split_at(LIST.len() / 3);
        let read = KernelSymbols::read(before.as_bytes().chain(after.as_bytes())).expect("a good list");
        assert_eq!((read.functions.len(), &read.names), (whole.functions.len(), &whole.names));
        assert_eq!(name(&read, 0xffff_ffff_8100_0210).as_deref(), Some("real_name"));
        assert!(read.held_bytes() > read.names.len() as u64, "{}", read.held_bytes());
        assert_eq!(KernelSymbols::read(&b""[..]).err(), Some(Reason::NoKernelSymbols));
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
        let of = |list: &'static str| KernelSymbols::of_addresses(list.as_bytes(), &[7]).err();
        assert_eq!(of("0000000000000000 T _stext\n"), Some(Reason::KernelHidden));
        assert_eq!(of(""), Some(Reason::NoKernelSymbols));
        assert_eq!(KernelSymbols::parse(b"").err(), Some(Reason::NoKernelSymbols));
        assert_eq!(KernelSymbols::parse(b"\xff\xfe junk").err(), Some(Reason::NoKernelSymbols));
    }
}
