//! A loaded object, and the frames at its addresses.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::debug_file::{self, DebugFile, DebugFiles};
use crate::dwarf::{DebugInfo, SplitFiles};
use crate::elf::{Elf, SymbolTable};
use crate::naming::Namer;
use crate::reason::Reason;
use crate::source::{ByteSource, ReadAt};

/// A function at an address, inlined there or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedFrame {
    /// The function's name as a person writes it.
    pub name: Arc<str>,
    /// The function's name as the linker knows it; the same as `name` in C, or where only the source's name is known.
    pub linkage_name: Arc<str>,
    /// The source file: of the address in the innermost frame, of the inlined call in the others.
    pub file: Option<Arc<str>>,
    /// The line in that file.
    pub line: Option<u32>,
}

/// What is known about an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Symbolized {
    /// The functions at the address, the innermost inlined one first, and last the one they were inlined into. Never
    /// empty.
    Known(Vec<NamedFrame>),
    /// No name, and why.
    Unknown(Reason),
}

/// What an object may take of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The most bytes of debug information in memory at a time: the small sections, and one or a few units of the large
    /// ones. An object that needs more is named from its symbol table alone, and says so in its warnings; units that need
    /// more are named from there too. With 0, no debug information is looked for: see [`Limits::of_symbols`].
    pub bytes: u64,
    /// The same with the symbol tables, which come first. An object whose symbol tables need more cannot be named.
    pub all_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { bytes: 256 << 20, all_bytes: u64::MAX }
    }
}

impl Limits {
    /// So many bytes for everything.
    pub fn of_all(bytes: u64) -> Self {
        Self { bytes, all_bytes: bytes }
    }

    /// The object's own symbol table alone, in so many bytes: nothing else is read, and no warning says so.
    pub fn of_symbols(bytes: u64) -> Self {
        Self { bytes: 0, all_bytes: bytes }
    }

    /// What is left beside `bytes` that are held.
    fn beside(self, bytes: u64) -> Self {
        let all_bytes = self.all_bytes.saturating_sub(bytes);
        Self { bytes: self.bytes.min(all_bytes), all_bytes }
    }
}

/// An object whose names have been read.
///
/// It holds the symbol table and the smaller sections of the debug information, which for a large program take tens of
/// megabytes, and reads the others from its source: load it, ask for all its addresses at once, and drop it.
pub struct Object<'s> {
    build_id: Option<String>,
    debug_link: Option<String>,
    pub(crate) sources: Sources<'s>,
    warnings: Vec<Reason>,
    pub(crate) namer: Namer<'s>,
    /// The most that readers have held at a time.
    pub(crate) read_bytes: AtomicU64,
    /// Whether `symbolize_more` was called: `namer` then reads addresses in order, and keeps units for the next call.
    pub(crate) is_queried_repeatedly: bool,
}

/// Where an object's names come from.
#[derive(Default)]
pub(crate) struct Sources<'s> {
    /// The object's own table, and before it one that knows more: of its debug file, or of `.gnu_debugdata`.
    pub(crate) symbols: Vec<SymbolTable>,
    pub(crate) debug_info: Option<DebugInfo<'s>>,
}

impl<'s> Object<'s> {
    /// Reads an object's names.
    ///
    /// `path` is where the object lies in its own view of the file system; separate debug files are looked for relative
    /// to it. An object whose debug information cannot be used still has its symbol table, and [`Object::warnings`] say
    /// why it has no more.
    pub fn load(source: &'s dyn ReadAt, path: &Path, debug_files: &dyn DebugFiles) -> Result<Self, Reason> {
        Self::load_within(Limits::default(), source, path, debug_files)
    }

    /// The same within other limits.
    pub fn load_within(
        limits: Limits,
        source: &'s dyn ReadAt,
        path: &Path,
        debug_files: &dyn DebugFiles,
    ) -> Result<Self, Reason> {
        Self::load_from(limits, ByteSource::Borrowed(source), path, debug_files)
    }

    fn load_from(
        limits: Limits,
        source: ByteSource<'s>,
        path: &Path,
        debug_files: &dyn DebugFiles,
    ) -> Result<Self, Reason> {
        let bytes = source.clone();
        let elf = Elf::parse(bytes.get())?;
        let wants_symbols_alone = limits.bytes == 0;
        let limits = limits.beside(elf.held_bytes());
        let own_symbols = SymbolTable::read(&elf, limits.all_bytes);
        let mut object = Self {
            build_id: elf.build_id(),
            debug_link: elf.debug_link().map(|link| link.file),
            sources: Sources::default(),
            warnings: Vec::new(),
            namer: Namer::default(),
            read_bytes: AtomicU64::new(0),
            is_queried_repeatedly: false,
        };
        let limits = limits.beside(own_symbols.as_ref().map_or(0, SymbolTable::held_bytes));
        if !wants_symbols_alone {
            object.read_debug_info(limits, &elf, source, path, debug_files);
        }
        if !wants_symbols_alone && object.sources.symbols.is_empty() {
            let mini = object.or_warn(mini_symbols(&elf, limits.all_bytes)).flatten();
            object.sources.symbols.extend(mini);
        }
        let sources = &mut object.sources;
        match own_symbols {
            Ok(symbols) => sources.symbols.push(symbols),
            Err(reason @ Reason::TooLarge { .. }) if sources.debug_info.is_none() => return Err(reason),
            Err(reason) if sources.debug_info.is_none() && sources.symbols.is_empty() => return Err(reason),
            Err(reason) => object.warnings.push(reason),
        }
        object.namer = Namer::new(object.sources.debug_info.as_ref().map(DebugInfo::reader));
        Ok(object)
    }

    /// The functions at `svma`, an address as it is written in the object, before relocation.
    ///
    /// Many addresses are better asked for together: see [`Object::symbolize_all`].
    pub fn symbolize(&self, svma: u64) -> Symbolized {
        self.namer.lookup(&self.sources).symbolize(svma)
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
        self.sources.debug_info.is_some()
    }

    /// What it took of memory at most, with what was read for the addresses that were asked for together so far (bytes).
    pub fn memory_bytes(&self) -> u64 {
        self.tables_bytes().saturating_add(self.read_bytes.load(Ordering::Relaxed))
    }

    /// What reading a unit takes at most, beside what is held (bytes).
    pub fn unit_bytes(&self) -> u64 {
        self.sources.debug_info.as_ref().map_or(0, DebugInfo::unit_bytes)
    }

    /// What it takes of memory as long as it stays (bytes).
    pub fn held_bytes(&self) -> u64 {
        self.tables_bytes().saturating_add(self.namer.held_bytes())
    }

    fn tables_bytes(&self) -> u64 {
        let symbols: u64 = self.sources.symbols.iter().map(SymbolTable::held_bytes).sum();
        symbols.saturating_add(self.sources.debug_info.as_ref().map_or(0, DebugInfo::held_bytes))
    }

    /// Why some names may be missing.
    pub fn warnings(&self) -> &[Reason] {
        &self.warnings
    }

    fn read_debug_info(
        &mut self,
        limits: Limits,
        elf: &Elf<'_>,
        source: ByteSource<'s>,
        path: &Path,
        files: &dyn DebugFiles,
    ) {
        if elf.find_contents(".debug_info").is_some() {
            self.use_debug_info(limits, elf, source, path, files, vec![path.to_owned()]);
            return;
        }
        let Some(DebugFile { path: debug_path, source }) =
            debug_file::find(elf, path, files, &mut self.warnings)
        else {
            return;
        };
        match Elf::parse(&*source) {
            Ok(debug) => {
                let mut limits = limits.beside(debug.held_bytes());
                // `strip -K` leaves an object some of its symbols.
                if debug.symtab_bytes() > elf.symtab_bytes() {
                    let symbols = self.or_warn(SymbolTable::read(&debug, limits.all_bytes));
                    let symbols = symbols.filter(SymbolTable::has_symtab);
                    limits = limits.beside(symbols.as_ref().map_or(0, SymbolTable::held_bytes));
                    self.sources.symbols.extend(symbols);
                }
                if debug.find_contents(".debug_info").is_some() {
                    let places = vec![path.to_owned(), debug_path.clone()];
                    let source = ByteSource::Owned(Arc::clone(&source));
                    self.use_debug_info(limits, &debug, source, &debug_path, files, places);
                }
            }
            Err(reason) => self.warnings.push(reason),
        }
    }

    fn use_debug_info(
        &mut self,
        limits: Limits,
        elf: &Elf<'_>,
        source: ByteSource<'s>,
        path: &Path,
        files: &dyn DebugFiles,
        split_beside: Vec<PathBuf>,
    ) {
        let alt = debug_file::find_alt(elf, path, files, &mut self.warnings);
        let alt = alt.as_ref().and_then(|alt| self.or_warn(Elf::parse(&*alt.source)));
        let split = SplitFiles::new(files, split_beside);
        let info = self.or_warn(DebugInfo::read(elf, source, alt.as_ref(), split, limits.bytes));
        self.warnings.extend(info.as_ref().and_then(DebugInfo::too_large));
        self.warnings.extend(info.as_ref().and_then(DebugInfo::missing_split));
        self.sources.debug_info = info;
    }

    fn or_warn<T>(&mut self, result: Result<T, Reason>) -> Option<T> {
        result.map_err(|reason| self.warnings.push(reason)).ok()
    }
}

impl Object<'static> {
    /// Reads an object's names, and keeps its bytes: for one that is asked again and again, see [`Object::symbolize_more`].
    pub fn load_owned(
        limits: Limits,
        source: Arc<dyn ReadAt>,
        path: &Path,
        debug_files: &dyn DebugFiles,
    ) -> Result<Self, Reason> {
        Self::load_from(limits, ByteSource::Owned(source), path, debug_files)
    }
}

/// The build id of an object, in hexadecimal; none if it says none, or is no object.
pub fn build_id(source: &dyn ReadAt) -> Option<String> {
    Elf::parse(source).ok()?.build_id()
}

/// The symbols in `.gnu_debugdata`.
fn mini_symbols(elf: &Elf<'_>, most_bytes: u64) -> Result<Option<SymbolTable>, Reason> {
    let Some(bytes) = elf.mini_debug_info(most_bytes / 2)? else { return Ok(None) };
    SymbolTable::read(&Elf::parse(&bytes)?, most_bytes - most_bytes / 2).map(Some)
}
