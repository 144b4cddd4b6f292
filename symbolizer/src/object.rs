//! A loaded object, and the frames at its addresses.

use std::path::{Path, PathBuf};

use crate::debug_file::{self, DebugFile, DebugFiles};
use crate::demangle::try_demangle;
use crate::dwarf::{DebugFrame, DebugInfo, FunctionName, SplitFiles};
use crate::elf::{Elf, SymbolTable};
use crate::reason::Reason;
use crate::source::ReadAt;

/// A function at an address, inlined there or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The function's name as a person writes it.
    pub name: String,
    /// The function's name as the linker knows it; the same as `name` in C, or where only the source's name is known.
    pub linkage_name: String,
    /// The source file: of the address in the innermost frame, of the inlined call in the others.
    pub file: Option<String>,
    /// The line in that file.
    pub line: Option<u32>,
}

/// What is known about an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Symbolized {
    /// The functions at the address, the innermost inlined one first, and last the one they were inlined into. Never
    /// empty.
    Known(Vec<Frame>),
    /// No name, and why.
    Unknown(Reason),
}

/// An object whose names have been read.
///
/// It holds the symbol table and the sections of the debug information, which for a large program take hundreds of
/// megabytes: load it, ask for all its addresses, and drop it.
pub struct Object {
    build_id: Option<String>,
    debug_link: Option<String>,
    /// The object's own table, and before it one that knows more: of its debug file, or of `.gnu_debugdata`.
    symbols: Vec<SymbolTable>,
    debug_info: Option<DebugInfo>,
    warnings: Vec<Reason>,
}

impl Object {
    /// Reads an object's names.
    ///
    /// `path` is where the object lies in its own view of the file system; separate debug files are looked for relative
    /// to it. An object whose debug information cannot be used still has its symbol table, and [`Object::warnings`] say
    /// why it has no more.
    pub fn load(source: &dyn ReadAt, path: &Path, debug_files: &dyn DebugFiles) -> Result<Self, Reason> {
        let elf = Elf::parse(source)?;
        let own_symbols = SymbolTable::read(&elf);
        let mut object = Self {
            build_id: elf.build_id(),
            debug_link: elf.debug_link().map(|link| link.file),
            symbols: Vec::new(),
            debug_info: None,
            warnings: Vec::new(),
        };
        let has_symtab = own_symbols.as_ref().is_ok_and(SymbolTable::has_symtab);
        object.read_debug_info(&elf, path, debug_files, has_symtab);
        if !has_symtab && object.symbols.is_empty() {
            let mini = object.or_warn(mini_symbols(&elf)).flatten();
            object.symbols.extend(mini);
        }
        match own_symbols {
            Ok(symbols) => object.symbols.push(symbols),
            Err(reason) if object.debug_info.is_none() && object.symbols.is_empty() => return Err(reason),
            Err(reason) => object.warnings.push(reason),
        }
        Ok(object)
    }

    /// The functions at `svma`, an address as it is written in the object, before relocation.
    pub fn symbolize(&self, svma: u64) -> Symbolized {
        let described = self.debug_info.as_ref().map_or(Ok(Vec::new()), |info| info.frames(svma));
        let symbol = self.symbols.iter().find_map(|table| table.find(svma));
        let has_symtab = self.symbols.iter().any(SymbolTable::has_symtab);
        let missing = if has_symtab { Reason::NoSymbol } else { Reason::Stripped };
        let (described, missing) = match described {
            Ok(frames) => (frames, missing),
            Err(reason) => (Vec::new(), reason),
        };
        let frames = frames(described, symbol.as_deref());
        if frames.is_empty() { Symbolized::Unknown(missing) } else { Symbolized::Known(frames) }
    }

    /// The object's build id in hexadecimal.
    pub fn build_id(&self) -> Option<&str> {
        self.build_id.as_deref()
    }

    /// The name of the separate debug file that the object asks for, whether it was found or not.
    pub fn debug_link(&self) -> Option<&str> {
        self.debug_link.as_deref()
    }

    /// Whether there is debug information: lines, and inlined frames.
    pub fn has_debug_info(&self) -> bool {
        self.debug_info.is_some()
    }

    /// Why some names may be missing.
    pub fn warnings(&self) -> &[Reason] {
        &self.warnings
    }

    fn read_debug_info(&mut self, elf: &Elf<'_>, path: &Path, files: &dyn DebugFiles, has_symtab: bool) {
        if elf.find_contents(".debug_info").is_some() {
            self.use_debug_info(elf, path, files, vec![path.to_owned()]);
            return;
        }
        let Some(DebugFile { path: debug_path, source }) =
            debug_file::find(elf, path, files, &mut self.warnings)
        else {
            return;
        };
        match Elf::parse(&*source) {
            Ok(debug) => {
                if !has_symtab {
                    let symbols = self.or_warn(SymbolTable::read(&debug));
                    self.symbols.extend(symbols.filter(SymbolTable::has_symtab));
                }
                if debug.find_contents(".debug_info").is_some() {
                    let places = vec![path.to_owned(), debug_path.clone()];
                    self.use_debug_info(&debug, &debug_path, files, places);
                }
            }
            Err(reason) => self.warnings.push(reason),
        }
    }

    fn use_debug_info(
        &mut self,
        elf: &Elf<'_>,
        path: &Path,
        files: &dyn DebugFiles,
        split_beside: Vec<PathBuf>,
    ) {
        let alt = debug_file::find_alt(elf, path, files, &mut self.warnings);
        let alt = alt.as_ref().and_then(|alt| self.or_warn(Elf::parse(&*alt.source)));
        let split = SplitFiles::new(files, split_beside);
        self.debug_info = self.or_warn(DebugInfo::read(elf, alt.as_ref(), split));
        self.warnings.extend(self.debug_info.as_ref().and_then(DebugInfo::missing_split));
    }

    fn or_warn<T>(&mut self, result: Result<T, Reason>) -> Option<T> {
        result.map_err(|reason| self.warnings.push(reason)).ok()
    }
}

/// The symbols in `.gnu_debugdata`.
fn mini_symbols(elf: &Elf<'_>) -> Result<Option<SymbolTable>, Reason> {
    let Some(bytes) = elf.mini_debug_info()? else { return Ok(None) };
    SymbolTable::read(&Elf::parse(&bytes)?).map(Some)
}

/// Joins what the debug information describes with the symbol that covers the address.
fn frames(described: Vec<DebugFrame>, symbol: Option<&str>) -> Vec<Frame> {
    let outermost = described.len().saturating_sub(1);
    let mut frames = Vec::with_capacity(described.len().max(1));
    for (depth, frame) in described.into_iter().enumerate() {
        let symbol = symbol.filter(|_| depth == outermost);
        let Some((name, linkage_name)) = names(frame.name.as_ref(), symbol) else { continue };
        let file = frame.location.file.map(|file| file.to_string());
        frames.push(Frame { name, linkage_name, file, line: frame.location.line });
    }
    if frames.is_empty() {
        let symbol = names(None, symbol);
        frames.extend(symbol.map(|(name, linkage_name)| Frame {
            name,
            linkage_name,
            file: None,
            line: None,
        }));
    }
    frames
}

/// The readable and the linkage name of a frame.
///
/// A mangled name says most: it has namespace, class and arguments. Where the debug information has none, the symbol may.
/// A linkage name that is not mangled is one given by hand, such as `__GI_abort` for `abort`: the source's name is better.
fn names(described: Option<&FunctionName>, symbol: Option<&str>) -> Option<(String, String)> {
    let linkage = described.and_then(|name| name.linkage.as_deref());
    let plain = described.and_then(|name| name.plain.as_deref());
    let linkers = linkage.or(symbol);
    let mangled = linkers.and_then(try_demangle);
    let readable = mangled.or_else(|| plain.or(linkers).map(str::to_owned))?;
    let linkage_name = linkers.map_or_else(|| readable.clone(), str::to_owned);
    Some((readable, linkage_name))
}
