//! Names of frames, from the debug information and the symbol that covers the address.

use std::cell::RefCell;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::demangle::try_demangle;
use crate::dwarf::{DebugFrame, DwarfReader, FunctionName, Lookup};
use crate::elf::{NamePosition, SymbolTable};
use crate::object::{NamedFrame, Sources, Symbolized};
use crate::qualified::qualified;
use crate::reason::Reason;

/// Bytes of symbols' names that are kept, after which they are read anew.
const MOST_SYMBOL_BYTES: usize = 16 << 20;

/// What one thread has read of an object.
#[derive(Default)]
pub(crate) struct Namer<'s> {
    reader: Option<DwarfReader<'s>>,
    symbols: RefCell<SymbolNames>,
}

#[derive(Default)]
struct SymbolNames {
    /// By table and name in it.
    names: FxHashMap<(usize, NamePosition), SymbolName>,
    bytes: usize,
}

#[derive(Clone)]
struct SymbolName {
    linkage: Arc<str>,
    demangled: Option<Arc<str>>,
}

/// An object's sources and what one thread has read of them.
pub(crate) struct Lookups<'a, 's> {
    sources: &'a Sources<'s>,
    namer: &'a Namer<'s>,
    debug_info: Option<Lookup<'a, 's>>,
}

impl<'s> Namer<'s> {
    pub(crate) fn new(reader: Option<DwarfReader<'s>>) -> Self {
        Self { reader, symbols: RefCell::default() }
    }

    /// What it has held at most.
    pub(crate) fn read_bytes(&self, sources: &Sources<'s>) -> u64 {
        let debug_info = sources.debug_info.as_ref().zip(self.reader.as_ref());
        let symbols = self.symbols.borrow().bytes.min(MOST_SYMBOL_BYTES) as u64;
        symbols + debug_info.map_or(0, |(info, reader)| info.read_bytes(reader))
    }

    /// Forgets what was only kept for the next address of the same unit.
    pub(crate) fn rest(&self, sources: &Sources<'s>) {
        if let Some((info, reader)) = sources.debug_info.as_ref().zip(self.reader.as_ref()) {
            info.rest(reader);
        }
    }

    /// What it holds now.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.symbols.borrow().bytes as u64 + self.reader.as_ref().map_or(0, DwarfReader::held_bytes)
    }

    pub(crate) fn lookup<'a>(&'a self, sources: &'a Sources<'s>) -> Lookups<'a, 's> {
        let debug_info = sources.debug_info.as_ref().zip(self.reader.as_ref());
        Lookups {
            sources,
            namer: self,
            debug_info: debug_info.map(|(info, reader)| Lookup::new(info, reader)),
        }
    }
}

impl Lookups<'_, '_> {
    pub(crate) fn symbolize(&self, svma: u64) -> Symbolized {
        let described = self.debug_info.as_ref().map_or(Ok(Vec::new()), |info| info.frames(svma));
        let (described, missing) = match described {
            Ok(frames) => (frames, None),
            Err(reason) => (Vec::new(), Some(reason)),
        };
        let frames = self.frames(described, svma);
        if frames.is_empty() {
            Symbolized::Unknown(missing.unwrap_or_else(|| self.missing()))
        } else {
            Symbolized::Known(frames)
        }
    }

    fn missing(&self) -> Reason {
        let has_symtab = self.sources.symbols.iter().any(SymbolTable::has_symtab);
        if has_symtab { Reason::NoSymbol } else { Reason::Stripped }
    }

    /// Joins what the debug information describes with the symbol that covers the address.
    fn frames(&self, described: Vec<DebugFrame>, svma: u64) -> Vec<NamedFrame> {
        let outermost = described.len().saturating_sub(1);
        let mut frames = Vec::with_capacity(described.len().max(1));
        for (depth, frame) in described.into_iter().enumerate() {
            let symbol = || (depth == outermost).then(|| self.symbol(svma)).flatten();
            let Some((name, linkage_name)) = names(frame.name.as_deref(), symbol) else { continue };
            let (file, line) = (frame.location.file, frame.location.line);
            frames.push(NamedFrame { name, linkage_name, file, line });
        }
        if frames.is_empty() {
            let symbol = names(None, || self.symbol(svma));
            frames.extend(symbol.map(|(name, linkage_name)| NamedFrame {
                name,
                linkage_name,
                file: None,
                line: None,
            }));
        }
        frames
    }

    fn symbol(&self, svma: u64) -> Option<SymbolName> {
        let tables = self.sources.symbols.iter().enumerate();
        let (table, found) = tables.filter_map(|(index, table)| Some((index, table.find(svma)?))).next()?;
        let mut symbols = self.namer.symbols.borrow_mut();
        if let Some(known) = symbols.names.get(&(table, found)) {
            return Some(known.clone());
        }
        let linkage: Arc<str> = Arc::from(self.sources.symbols[table].name(found));
        let symbol = SymbolName { demangled: try_demangle(&linkage).map(Arc::from), linkage };
        symbols.bytes += symbol.linkage.len() + symbol.demangled.as_ref().map_or(0, |name| name.len());
        if symbols.bytes > MOST_SYMBOL_BYTES {
            *symbols = SymbolNames::default();
        }
        symbols.names.insert((table, found), symbol.clone());
        Some(symbol)
    }
}

/// The readable and the linkage name of a frame.
///
/// A mangled name says most: it has namespace, class and arguments. Where the debug information has none, the symbol may.
/// A linkage name that is not mangled may hold a module, as in Fortran; else it is one given by hand, such as `__GI_abort` for `abort`: the
/// source's name is better.
fn names(
    described: Option<&FunctionName>,
    symbol: impl FnOnce() -> Option<SymbolName>,
) -> Option<(Arc<str>, Arc<str>)> {
    let plain = described.and_then(|name| name.plain.clone());
    let linkers = match described.and_then(|name| Some((name.linkage.clone()?, name.demangled.clone()))) {
        Some(linkers) => Some(linkers),
        None => symbol().map(|symbol| {
            let more = || symbols_more(&symbol.linkage, described?);
            let demangled = symbol.demangled.clone().or_else(more);
            (symbol.linkage, demangled)
        }),
    };
    let scoped = if linkers.is_none() { described.and_then(|name| name.scoped.clone()) } else { None };
    let (linkage, demangled) = linkers.unzip();
    let readable = demangled.flatten().or(scoped).or(plain).or_else(|| linkage.clone())?;
    let linkage_name = linkage.unwrap_or_else(|| Arc::clone(&readable));
    Some((readable, linkage_name))
}

/// What a symbol that is not mangled, or the place of the function's declaration, says beside the function's short name.
fn symbols_more(linkage: &Arc<str>, described: &FunctionName) -> Option<Arc<str>> {
    let plain = described.plain.as_ref()?;
    if let Some(qualified) = qualified(linkage, plain) {
        let scoped = described.scoped.as_deref().unwrap_or_default();
        return Some(as_declared(qualified, scoped).into());
    }
    if described.is_cpp {
        return None;
    }
    // The number that compilers add where a name is there already.
    let number = || linkage.strip_prefix(&**plain)?.strip_prefix('.').filter(|rest| !rest.is_empty());
    let is_numbered = || number().is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()));
    described.scoped.clone().or_else(|| is_numbered().then(|| Arc::clone(linkage)))
}

/// A name with its path as the source writes it, where the linkage name has it in upper case.
fn as_declared(mut name: String, declared: &str) -> String {
    let end = name.find('(').unwrap_or(name.len());
    if let Some(start) = end.checked_sub(declared.len())
        && name.get(start..end).is_some_and(|path| path.eq_ignore_ascii_case(declared))
    {
        name.replace_range(start..end, declared);
    }
    name
}
