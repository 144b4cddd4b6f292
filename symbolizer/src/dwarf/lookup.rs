//! The frames at an address.

use std::cell::RefCell;
use std::sync::Arc;

use super::functions::{Functions, Inlined};
use super::kept::Kept;
use super::lines::{Lines, Location};
use super::names::FunctionName;
use super::reader::Budget;
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
    main: Dwarf<'a>,
    alt: Option<Dwarf<'a>>,
}

impl<'a> Lookup<'a> {
    pub(crate) fn new(info: &'a DebugInfo<'a>, reader: &'a Reader) -> Self {
        let main = info.sections.dwarf(info.alt.as_ref(), &reader.budget);
        let alt = info.alt.as_ref().map(|alt| alt.dwarf(None, &reader.budget));
        Self { info, reader, main, alt }
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
        let function = self.functions(unit).map(|functions| functions.find(address));
        let lines = self.lines(unit).ok();
        let mut location = lines.as_ref().and_then(|lines| lines.find(address));
        let Some(function) = (match function {
            Err(error) if location.is_none() => return Err(error),
            function => function.ok().flatten(),
        }) else {
            return Ok(location.map(|location| DebugFrame { name: None, location }).into_iter().collect());
        };
        let chain = self.inlined(unit, function).map(|inlined| inlined.chain(address)).unwrap_or_default();
        let mut frames = Vec::with_capacity(chain.len() + 1);
        for call in chain.iter().rev() {
            let name = self.name(Place::Main, unit, call.entry);
            frames.push(DebugFrame { name, location: location.take().unwrap_or_default() });
            let file = lines.as_ref().and_then(|lines| lines.file(call.call_file?));
            location = Some(Location { file, line: call.call_line });
        }
        let name = self.name(Place::Main, unit, function);
        frames.push(DebugFrame { name, location: location.unwrap_or_default() });
        Ok(frames)
    }

    pub(super) fn dwarf(&self, place: Place) -> &Dwarf<'a> {
        self.alt.as_ref().filter(|_| place == Place::Alt).unwrap_or(&self.main)
    }

    pub(super) fn unit(&self, place: Place, unit: usize) -> gimli::Result<Arc<UnitInfo>> {
        self.keep(
            |kept| kept.units.get(&(place, unit)).cloned(),
            |kept, info| kept.units.insert((place, unit), info),
            || {
                let offset = self.info.index(place).offset(unit).ok_or(gimli::Error::MissingUnitDie)?;
                let (dwarf, sections) = (self.dwarf(place), self.info.sections(place));
                let abbreviations = |offset| self.abbreviations(place, offset);
                UnitInfo::read_at(dwarf, sections, offset, &self.reader.budget, abbreviations)
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
        let read = self.info.sections(place).abbreviations(offset, &self.reader.budget)?;
        self.reader.kept.borrow_mut().abbreviations = Some(((place, offset), Arc::clone(&read)));
        Ok(read)
    }

    fn functions(&self, unit: usize) -> gimli::Result<Arc<Functions>> {
        self.keep(
            |kept| kept.functions.get(&unit).cloned(),
            |kept, functions| kept.functions.insert(unit, functions),
            || {
                let (budget, info) = (&self.reader.budget, self.unit(Place::Main, unit)?);
                Functions::read(&self.main, &info.unit(&self.main, budget)?, budget)
            },
        )
    }

    fn inlined(&self, unit: usize, function: usize) -> gimli::Result<Arc<Inlined>> {
        self.keep(
            |kept| kept.inlined.get(&(unit, function)).cloned(),
            |kept, inlined| kept.inlined.insert((unit, function), inlined),
            || {
                let (budget, info) = (&self.reader.budget, self.unit(Place::Main, unit)?);
                Inlined::read(&self.main, &info.unit(&self.main, budget)?, budget, function)
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
    fn keep<T, U>(
        &self,
        find: impl FnOnce(&Kept) -> Option<gimli::Result<Arc<T>>>,
        insert: impl FnOnce(&mut Kept, gimli::Result<Arc<T>>) -> U,
        read: impl FnOnce() -> gimli::Result<T>,
    ) -> gimli::Result<Arc<T>> {
        if let Some(found) = find(&self.reader.kept.borrow()) {
            return found;
        }
        let before = self.reader.budget.spent();
        let read = read().map(Arc::new);
        let mut kept = self.reader.kept.borrow_mut();
        kept.count(self.reader.budget.spent() - before);
        insert(&mut kept, read.clone());
        read
    }
}
