//! The frames at an address.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use super::functions::{Functions, Inlined};
use super::index::Index;
use super::kept::{Held, Kept};
use super::lines::{Lines, Location};
use super::names::FunctionName;
use super::reader::Budget;
use super::sections::Sections;
use super::unit::{Dwarf, UnitInfo};
use super::{DebugInfo, Place};
use crate::reason::Reason;

/// A frame as the debug information describes it.
pub(crate) struct DebugFrame {
    pub(crate) name: Option<Arc<FunctionName>>,
    pub(crate) location: Location,
}

/// What one reader of an object has read, and what it may still read. An object may have several at a time.
pub(crate) struct Reader {
    pub(super) budget: Budget,
    pub(super) kept: RefCell<Kept>,
}

/// An object's sections, as one reader sees them.
pub(crate) struct Lookup<'a> {
    pub(super) info: &'a DebugInfo<'a>,
    pub(super) reader: &'a Reader,
    main: Rc<Dwarf<'a>>,
    alt: Option<Rc<Dwarf<'a>>>,
    /// The last other half of a unit, and of which.
    split: RefCell<Option<(usize, Rc<Dwarf<'a>>)>>,
}

/// Adds the caller of the last frame, unless that is a part of the same function.
fn push(frames: &mut Vec<DebugFrame>, caller: DebugFrame) {
    let names = frames.last().and_then(|called| called.name.as_ref()).zip(caller.name.as_ref());
    if !names.is_some_and(|(called, name)| called.is_own_part(name, caller.location.line)) {
        frames.push(caller);
    }
}

impl Reader {
    /// What it has read and keeps (bytes).
    pub(crate) fn held_bytes(&self) -> u64 {
        self.kept.borrow().held()
    }
}

impl<'a> Lookup<'a> {
    pub(crate) fn new(info: &'a DebugInfo<'a>, reader: &'a Reader) -> Self {
        let main = Rc::new(info.sections.dwarf(info.alt.as_ref(), &reader.budget));
        let alt = info.alt.as_ref().map(|alt| Rc::new(alt.dwarf(None, &reader.budget)));
        Self { info, reader, main, alt, split: RefCell::default() }
    }

    /// The frames at `address`, the innermost first; none if it is not described. The last one may lack a name.
    pub(crate) fn frames(&self, address: u64) -> Result<Vec<DebugFrame>, Reason> {
        self.reader.budget.top_up();
        let mut failed = false;
        for unit in self.info.index.covering(address) {
            match self.frames_in(unit, address) {
                Ok(frames) if !frames.is_empty() => return Ok(frames),
                Ok(_) => {}
                Err(_) => failed = true,
            }
        }
        if failed { Err(super::reason(&self.reader.budget)) } else { Ok(Vec::new()) }
    }

    fn frames_in(&self, unit: usize, address: u64) -> gimli::Result<Vec<DebugFrame>> {
        let (place, described) = self.entries_of(unit);
        let function = self.functions(place, described).map(|functions| functions.find(address));
        let lines = self.lines(unit).ok();
        let mut location = lines.as_ref().and_then(|lines| lines.find(address));
        let Some(function) = (match function {
            Err(error) if location.is_none() => return Err(error),
            function => function.ok().flatten(),
        }) else {
            return Ok(location.map(|location| DebugFrame { name: None, location }).into_iter().collect());
        };
        let inlined = self.inlined(place, described, function);
        let chain = inlined.map(|inlined| inlined.chain(address)).unwrap_or_default();
        let mut frames = Vec::with_capacity(chain.len() + 1);
        for call in chain.iter().rev() {
            let name = self.name(place, described, call.entry);
            push(&mut frames, DebugFrame { name, location: location.take().unwrap_or_default() });
            let file = lines.as_ref().and_then(|lines| lines.file(call.call_file?));
            location = Some(Location { file, line: call.call_line });
        }
        let name = self.name(place, described, function);
        push(&mut frames, DebugFrame { name, location: location.unwrap_or_default() });
        Ok(frames)
    }

    pub(super) fn dwarf(&self, place: Place) -> Rc<Dwarf<'a>> {
        let dwarf = match place {
            Place::Main => None,
            Place::Alt => self.alt.clone(),
            Place::Split(skeleton) => self.kept_split(skeleton),
        };
        dwarf.unwrap_or_else(|| Rc::clone(&self.main))
    }

    fn kept_split(&self, skeleton: usize) -> Option<Rc<Dwarf<'a>>> {
        if let Some((of, dwarf)) = &*self.split.borrow()
            && *of == skeleton
        {
            return Some(Rc::clone(dwarf));
        }
        let dwarf = Rc::new(self.split_dwarf(skeleton)?);
        *self.split.borrow_mut() = Some((skeleton, Rc::clone(&dwarf)));
        Some(dwarf)
    }

    pub(super) fn index(&self, place: Place) -> Option<&'a Index> {
        match place {
            Place::Main => Some(&self.info.index),
            Place::Alt => Some(&self.info.alt_index),
            Place::Split(skeleton) => self.split(skeleton).map(|split| &split.index),
        }
    }

    pub(super) fn sections(&self, place: Place) -> &'a Sections<'a> {
        let sections = match place {
            Place::Main => None,
            Place::Alt => self.info.alt.as_ref(),
            Place::Split(skeleton) => self.split_sections(skeleton),
        };
        sections.unwrap_or(&self.info.sections)
    }

    pub(super) fn unit(&self, place: Place, unit: usize) -> gimli::Result<Arc<UnitInfo>> {
        self.keep(
            |kept| kept.units.get(&(place, unit)).cloned(),
            |kept, info| kept.units.insert((place, unit), info),
            || {
                let offset = self.index(place).and_then(|index| index.offset(unit));
                let offset = offset.ok_or(gimli::Error::MissingUnitDie)?;
                let (dwarf, sections) = (self.dwarf(place), self.sections(place));
                let budget = &self.reader.budget;
                if let Place::Split(skeleton) = place {
                    let skeleton = self.unit(Place::Main, skeleton)?;
                    let info = UnitInfo::read_split(&dwarf, sections, offset, budget)?;
                    return Ok(info.complete(&skeleton));
                }
                let abbreviations = |offset| self.abbreviations(place, offset);
                UnitInfo::read_at(&dwarf, sections, offset, budget, abbreviations)
            },
        )
    }

    /// Link-time optimisation gives all units the same abbreviations, so the last ones are kept.
    fn abbreviations(&self, place: Place, offset: usize) -> gimli::Result<Arc<gimli::Abbreviations>> {
        if let Some((key, kept)) = &self.reader.kept.borrow().abbreviations
            && *key == (place, offset)
        {
            return Ok(Arc::clone(kept));
        }
        let read = self.sections(place).abbreviations(offset, &self.reader.budget)?;
        self.reader.kept.borrow_mut().abbreviations = Some(((place, offset), Arc::clone(&read)));
        Ok(read)
    }

    fn functions(&self, place: Place, unit: usize) -> gimli::Result<Arc<Functions>> {
        let key = (place, unit);
        self.keep(
            |kept| kept.functions.get(&key).cloned(),
            |kept, functions| kept.functions.insert(key, functions),
            || {
                let (dwarf, budget) = (self.dwarf(place), &self.reader.budget);
                let info = self.unit(place, unit)?;
                Functions::read(&dwarf, &info.unit(&dwarf, budget)?, budget)
            },
        )
    }

    fn inlined(&self, place: Place, unit: usize, function: usize) -> gimli::Result<Arc<Inlined>> {
        let key = (place, unit, function);
        self.keep(
            |kept| kept.inlined.get(&key).cloned(),
            |kept, inlined| kept.inlined.insert(key, inlined),
            || {
                let (dwarf, budget) = (self.dwarf(place), &self.reader.budget);
                let info = self.unit(place, unit)?;
                Inlined::read(&dwarf, &info.unit(&dwarf, budget)?, budget, function)
            },
        )
    }

    fn lines(&self, unit: usize) -> gimli::Result<Arc<Lines>> {
        self.keep(
            |kept| kept.lines.get(&unit).cloned(),
            |kept, lines| kept.lines.insert(unit, lines),
            || {
                let (budget, info) = (&self.reader.budget, self.unit(Place::Main, unit)?);
                let unit = info.unit(&self.main, budget)?;
                Lines::read(&self.main, &self.info.sections, &unit, &info, budget)
            },
        )
    }

    /// Answers from what is kept, or reads it and keeps it.
    fn keep<T: Held, U>(
        &self,
        find: impl FnOnce(&Kept) -> Option<gimli::Result<Arc<T>>>,
        insert: impl FnOnce(&mut Kept, gimli::Result<Arc<T>>) -> U,
        read: impl FnOnce() -> gimli::Result<T>,
    ) -> gimli::Result<Arc<T>> {
        if let Some(found) = find(&self.reader.kept.borrow()) {
            return found;
        }
        let read = read().map(Arc::new);
        let mut kept = self.reader.kept.borrow_mut();
        kept.count(read.as_ref().map_or(0, |read| size_of::<T>() + read.held_bytes()));
        insert(&mut kept, read.clone());
        read
    }
}
