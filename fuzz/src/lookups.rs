//! Which addresses of a file are worth looking up, and what the result must be like.
#![allow(dead_code, reason = "each target uses some of it")]

use object::elf::{FileHeader64, SHF_COMPRESSED, SHT_DYNSYM, SHT_SYMTAB, SectionHeader64, Sym64};
use object::{LittleEndian as Le, ReadRef};
use symbolizer::{Object, Symbolized};

/// Addresses that are looked up.
const MOST_ADDRESSES: usize = 512;
/// No unit's chain of inlined calls is longer.
const DEEPEST: usize = 300;
const MINI: &[u8] = b".gnu_debugdata";

/// Where objects that are made have their code.
const CODE: u64 = 0x1000;
const CODE_BYTES: u64 = 0x1000;
/// Where the debug information of programs that are not relocated says it is.
const STATIC_CODE: u64 = 0x40_1000;

/// A function of a symbol table, read without any care for speed.
struct Symbol {
    start: u64,
    size: u64,
    name: String,
}

/// The symbols of a file, as far as they can be told without a second reader of damaged files.
pub(crate) struct Symbols(Vec<Symbol>);

impl Symbols {
    /// Those of the first table of each kind; `None` where the tables are compressed or contradict the file.
    pub(crate) fn of(data: &[u8]) -> Option<Self> {
        // Symbols that are packed belong to an object of their own.
        if data.windows(MINI.len()).any(|name| name == MINI) {
            return None;
        }
        let mut symbols = Vec::new();
        let sections = sections(data)?;
        for kind in [SHT_SYMTAB, SHT_DYNSYM] {
            let Some(table) = sections.iter().find(|section| section.sh_type.get(Le) == kind) else {
                continue;
            };
            let strings = sections.get(table.sh_link.get(Le) as usize)?;
            // Names of sections that say they are compressed are not looked up: whatever is may say so.
            let is_plain = |section: &SectionHeader64<Le>| {
                section.sh_flags.get(Le).0 & SHF_COMPRESSED.0 == 0
                    && !bytes(data, section).starts_with(b"ZLIB")
            };
            if !is_plain(table) || !is_plain(strings) {
                return None;
            }
            let strings = bytes(data, strings);
            for entry in bytes(data, table).chunks_exact(size_of::<Sym64<Le>>()) {
                let (symbol, _) = object::pod::from_bytes::<Sym64<Le>>(entry).ok()?;
                let name = strings.get(symbol.st_name.get(Le) as usize..).unwrap_or_default();
                let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
                let name = String::from_utf8_lossy(name).into_owned();
                symbols.push(Symbol { start: symbol.st_value.get(Le), size: symbol.st_size.get(Le), name });
            }
        }
        Some(Self(symbols))
    }

    /// Whether a symbol of this name may cover the address.
    fn covers(&self, name: &str, address: u64) -> bool {
        let is_it = |symbol: &Symbol| {
            let within = address.checked_sub(symbol.start);
            let is_there = within.is_some_and(|within| symbol.size == 0 || within < symbol.size);
            is_there
                && symbol.name.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('@'))
        };
        self.0.iter().any(is_it)
    }
}

/// Addresses at the edges of what the file says it holds, and some others.
pub(crate) fn addresses(data: &[u8]) -> Vec<u64> {
    let mut found = vec![0, 1, u64::MAX];
    if let Some(symbols) = Symbols::of(data) {
        let edges = |symbol: &Symbol| {
            let end = symbol.start.wrapping_add(symbol.size);
            [symbol.start, symbol.start.wrapping_add(symbol.size / 2), end.wrapping_sub(1), end]
        };
        found.extend(symbols.0.iter().take(64).flat_map(edges));
    }
    for section in
        sections(data).unwrap_or_default().iter().filter(|section| section.sh_addr.get(Le) != 0).take(32)
    {
        let (start, size) = (section.sh_addr.get(Le), section.sh_size.get(Le));
        found.extend((0..6).map(|sixth| start.wrapping_add(size / 6 * sixth)));
    }
    found.extend((0..64).flat_map(|step| [0x1000 + step * 0x10, step << 58]));
    found.truncate(MOST_ADDRESSES);
    found
}

/// Addresses of the code of an object that is made.
pub(crate) fn of_code() -> Vec<u64> {
    let shared = (CODE..CODE + CODE_BYTES).step_by(31);
    shared.chain((STATIC_CODE..STATIC_CODE + 0x100).step_by(7)).chain([0, u64::MAX]).collect()
}

/// Looks the addresses up one by one and together: both give the same, and nothing that the symbols contradict.
pub(crate) fn check(object: &Object<'_>, addresses: &[u64], symbols: Option<&Symbols>) {
    let one_by_one: Vec<Symbolized> = addresses.iter().map(|&svma| object.symbolize(svma)).collect();
    let together = object.symbolize_all(addresses);
    assert_eq!(together.len(), addresses.len());
    for (svma, found) in addresses.iter().zip(&one_by_one) {
        let Symbolized::Known(frames) = found else { continue };
        assert!(!frames.is_empty() && frames.len() <= DEEPEST);
        assert!(frames.iter().all(|frame| !frame.name.is_empty() && !frame.linkage_name.is_empty()));
        assert!(frames.iter().all(|frame| frame.line != Some(0)));
        if let (Some(symbols), false, [frame]) = (symbols, object.has_debug_info(), &frames[..]) {
            let name = &*frame.linkage_name;
            let is_cut = name.len() >= 1024; // by a limit on names
            assert!(is_cut || name.ends_with("@plt") || symbols.covers(name, *svma), "{name} at {svma:#x}");
        }
    }
    assert_eq!(one_by_one, together);
}

fn sections(data: &[u8]) -> Option<&[SectionHeader64<Le>]> {
    let header: &FileHeader64<Le> = data.read_at(0).ok()?;
    let (offset, count) = (header.e_shoff.get(Le), header.e_shnum.get(Le));
    // Without a number here, another place has it.
    (count > 0).then(|| data.read_slice_at(offset, usize::from(count)).ok())?
}

fn bytes<'d>(data: &'d [u8], section: &SectionHeader64<Le>) -> &'d [u8] {
    data.read_bytes_at(section.sh_offset.get(Le), section.sh_size.get(Le)).unwrap_or_default()
}
