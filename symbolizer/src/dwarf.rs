//! Functions, inlined calls and lines from DWARF.
//!
//! gimli reads the entries; what is made of them is kept here, unit by unit as addresses ask for it. All that is kept is
//! plain numbers and offsets, so an object's sections can be borrowed anew for each address.
//!
//! The crate `addr2line` would do this with less code, but it trusts the file. Version 0.27.1 recurses once per nested
//! inlined call: 50,000 of them, an object of 114 kB, overflow a stack of 8 MiB and end the process. A shared list of
//! ranges makes 434 kB ask for 13 GB; empty attributes in 1.2 MB keep it busy for more than a minute. A reader that draws
//! on a budget, put under it, bounds its memory (to 700 MB) but neither of the other two. This module takes at most 0.4 s
//! and 65 MB for these files; `tests/costly.rs` has all figures, and a test that repeats them.

mod functions;
mod index;
mod lines;
mod names;
mod ranges;
mod reader;
mod sections;
mod split;
mod unit;

use std::cell::{OnceCell, RefCell};
use std::sync::Arc;

use rustc_hash::FxHashMap;

use self::functions::{Functions, Inlined};
use self::index::Index;
use self::lines::Lines;
pub(crate) use self::lines::Location;
pub(crate) use self::names::FunctionName;
use self::reader::Budget;
use self::sections::Sections;
use self::split::Split;
pub(crate) use self::split::SplitFiles;
use self::unit::{Dwarf, UnitInfo};
use crate::elf::Elf;
use crate::reason::Reason;

/// When what was kept cost this much work, it is dropped and read again as asked for: some 256 MiB.
const MOST_KEPT: u64 = 128 << 20;

/// An object's debug information.
pub(crate) struct DebugInfo {
    sections: Sections,
    alt: Option<Sections>,
    index: Index,
    alt_index: Index,
    split_files: SplitFiles,
    /// The other halves of the units that have one, opened as addresses ask for them.
    splits: FxHashMap<usize, OnceCell<Result<Box<Split>, Reason>>>,
    budget: Budget,
    kept: RefCell<Kept>,
}

/// The object itself, the file of entries that it shares with others, or the one with the other half of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Place {
    Main,
    Alt,
    Split(usize),
}

/// A frame as the debug information describes it.
pub(crate) struct DebugFrame {
    pub(crate) name: Option<FunctionName>,
    pub(crate) location: Location,
}

/// What has been read so far, or could not be.
#[derive(Default)]
struct Kept {
    units: FxHashMap<(Place, usize), gimli::Result<Arc<UnitInfo>>>,
    functions: FxHashMap<(Place, usize), gimli::Result<Arc<Functions>>>,
    inlined: FxHashMap<(Place, usize, usize), gimli::Result<Arc<Inlined>>>,
    lines: FxHashMap<usize, gimli::Result<Arc<Lines>>>,
    names: FxHashMap<(Place, usize, usize), Option<FunctionName>>,
    work: u64,
}

impl Kept {
    /// Notes that something is to be kept that cost this much work, and forgets all before it if that is too much.
    fn count(&mut self, work: u64) {
        if self.work + work > MOST_KEPT {
            *self = Self::default();
        }
        self.work += work;
    }
}

impl DebugInfo {
    /// Reads the sections and finds the units. The object at `alt` is the one that `.gnu_debugaltlink` names, and the
    /// entries of split units are to be found among `split_files`.
    pub(crate) fn read(
        elf: &Elf<'_>,
        alt: Option<&Elf<'_>>,
        split_files: SplitFiles,
    ) -> Result<Self, Reason> {
        let sections = Sections::read(elf)?;
        let alt = alt.map(Sections::read).transpose()?;
        let bytes = sections.bytes() + alt.as_ref().map_or(0, Sections::bytes);
        let mut info = Self {
            sections,
            alt,
            index: Index::default(),
            alt_index: Index::default(),
            split_files,
            splits: FxHashMap::default(),
            budget: Budget::new(bytes),
            kept: RefCell::default(),
        };
        let index = Index::read(&info.dwarf(Place::Main), &info.sections, &info.budget);
        info.index = index.map_err(|_| info.reason())?;
        if info.alt.is_some() {
            info.alt_index = Index::offsets(&info.dwarf(Place::Alt)).unwrap_or_default();
        }
        if !info.index.skeletons.is_empty() {
            info.split_files.open_package();
            info.budget.grant(info.split_files.package_bytes());
            info.splits = info.index.skeletons.iter().map(|&unit| (unit, OnceCell::new())).collect();
        }
        if info.index.is_empty() { Err(Reason::CorruptDebugInfo) } else { Ok(info) }
    }

    /// The frames at `address`, the innermost first; none if it is not described. The last one may lack a name.
    pub(crate) fn frames(&self, address: u64) -> Result<Vec<DebugFrame>, Reason> {
        self.budget.top_up();
        let dwarf = self.dwarf(Place::Main);
        let mut failed = false;
        for unit in self.index.covering(address) {
            match self.frames_in(&dwarf, unit, address) {
                Ok(frames) if !frames.is_empty() => return Ok(frames),
                Ok(_) => {}
                Err(_) => failed = true,
            }
        }
        if failed { Err(self.reason()) } else { Ok(Vec::new()) }
    }

    fn frames_in(&self, dwarf: &Dwarf<'_>, unit: usize, address: u64) -> gimli::Result<Vec<DebugFrame>> {
        let (place, described) = self.entries_of(unit);
        let entries = self.dwarf(place);
        let functions = self.functions(&entries, place, described);
        let function = functions.map(|functions| functions.find(address));
        let lines = self.lines(dwarf, unit).ok();
        let mut location = lines.as_ref().and_then(|lines| lines.find(address));
        let mut frames = Vec::new();
        let Some(function) = (match function {
            Err(error) if location.is_none() => return Err(error),
            function => function.ok().flatten(),
        }) else {
            frames.extend(location.map(|location| DebugFrame { name: None, location }));
            return Ok(frames);
        };
        let inlined = self.inlined(&entries, place, described, function);
        let chain = inlined.map(|inlined| inlined.chain(address)).unwrap_or_default();
        for call in chain.iter().rev() {
            let name = self.name(place, described, call.entry);
            frames.push(DebugFrame { name, location: location.take().unwrap_or_default() });
            let file = lines.as_ref().and_then(|lines| lines.file(call.call_file?));
            location = Some(Location { file, line: call.call_line });
        }
        let name = self.name(place, described, function);
        frames.push(DebugFrame { name, location: location.unwrap_or_default() });
        Ok(frames)
    }

    fn dwarf(&self, place: Place) -> Dwarf<'_> {
        let own = || self.sections.dwarf(self.alt.as_ref(), &self.budget);
        match (place, &self.alt) {
            (Place::Alt, Some(alt)) => alt.dwarf(None, &self.budget),
            (Place::Split(skeleton), _) => self.split_dwarf(skeleton).unwrap_or_else(own),
            _ => own(),
        }
    }

    fn index(&self, place: Place) -> Option<&Index> {
        match place {
            Place::Main => Some(&self.index),
            Place::Alt => Some(&self.alt_index),
            Place::Split(skeleton) => self.split(skeleton).map(|split| &split.index),
        }
    }

    fn unit(&self, dwarf: &Dwarf<'_>, place: Place, unit: usize) -> gimli::Result<Arc<UnitInfo>> {
        let kept = |kept: &mut Kept| kept.units.get(&(place, unit)).cloned();
        self.keep(
            kept,
            |kept, info| kept.units.insert((place, unit), info),
            || {
                let offset = self.index(place).and_then(|index| index.offset(unit));
                let offset = offset.ok_or(gimli::Error::MissingUnitDie)?;
                if let Place::Split(skeleton) = place {
                    let skeleton = self.unit(&self.dwarf(Place::Main), Place::Main, skeleton)?;
                    return self.read_unit(dwarf, offset).map(|info| info.complete(&skeleton));
                }
                let header = dwarf.unit_header(gimli::DebugInfoOffset(offset))?;
                let sections = self.alt.as_ref().filter(|_| place == Place::Alt).unwrap_or(&self.sections);
                let abbreviations = sections.abbreviations(header.debug_abbrev_offset().0, &self.budget)?;
                UnitInfo::read(dwarf, header, abbreviations, &self.budget, |_, _| Ok(()))
            },
        )
    }

    fn functions(&self, dwarf: &Dwarf<'_>, place: Place, unit: usize) -> gimli::Result<Arc<Functions>> {
        let key = (place, unit);
        let kept = |kept: &mut Kept| kept.functions.get(&key).cloned();
        self.keep(
            kept,
            |kept, functions| kept.functions.insert(key, functions),
            || Functions::read(dwarf, &self.unit(dwarf, place, unit)?.unit(dwarf)?, &self.budget),
        )
    }

    fn inlined(
        &self,
        dwarf: &Dwarf<'_>,
        place: Place,
        unit: usize,
        function: usize,
    ) -> gimli::Result<Arc<Inlined>> {
        let key = (place, unit, function);
        let kept = |kept: &mut Kept| kept.inlined.get(&key).cloned();
        self.keep(
            kept,
            |kept, inlined| kept.inlined.insert(key, inlined),
            || {
                let unit = self.unit(dwarf, place, unit)?.unit(dwarf)?;
                Inlined::read(dwarf, &unit, &self.budget, function)
            },
        )
    }

    fn lines(&self, dwarf: &Dwarf<'_>, unit: usize) -> gimli::Result<Arc<Lines>> {
        let kept = |kept: &mut Kept| kept.lines.get(&unit).cloned();
        self.keep(
            kept,
            |kept, lines| kept.lines.insert(unit, lines),
            || {
                let info = self.unit(dwarf, Place::Main, unit)?;
                Lines::read(dwarf, &self.sections, &info.unit(dwarf)?, &info, &self.budget)
            },
        )
    }

    /// Answers from what is kept, or reads it and keeps it.
    fn keep<T, U>(
        &self,
        find: impl FnOnce(&mut Kept) -> Option<gimli::Result<Arc<T>>>,
        insert: impl FnOnce(&mut Kept, gimli::Result<Arc<T>>) -> U,
        read: impl FnOnce() -> gimli::Result<T>,
    ) -> gimli::Result<Arc<T>> {
        if let Some(found) = find(&mut self.kept.borrow_mut()) {
            return found;
        }
        let before = self.budget.left();
        let read = read().map(Arc::new);
        let mut kept = self.kept.borrow_mut();
        kept.count(before.saturating_sub(self.budget.left()));
        insert(&mut kept, read.clone());
        read
    }

    fn reason(&self) -> Reason {
        if self.budget.is_spent() { Reason::CostlyDebugInfo } else { Reason::CorruptDebugInfo }
    }
}
