//! The frames at an address.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use addr2line::{Context, LookupContinuation, LookupResult};
use gimli::DebugInfoOffset;

use super::bytes::SectionReader;
use super::index::{UnitOffsets, context_bytes, entry_bytes};
use super::kept::{KeptUnits, Unit};
use super::names::FunctionName;
use super::sections::Dwarf;
use super::{DebugInfo, UnitPlace};
use crate::reason::Reason;

/// A place in the source.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SourceLocation {
    pub(crate) file: Option<Arc<str>>,
    pub(crate) line: Option<u32>,
}

/// A frame as the debug information describes it.
pub(crate) struct DebugFrame {
    pub(crate) name: Option<Arc<FunctionName>>,
    pub(crate) location: SourceLocation,
}

/// What one reader of an object has read. An object may have several at a time.
pub(crate) struct DwarfReader<'s> {
    pub(super) kept: RefCell<KeptUnits<'s>>,
}

/// An object's debug information, as one reader sees it.
pub(crate) struct Lookup<'a, 's> {
    pub(super) info: &'a DebugInfo<'s>,
    pub(super) reader: &'a DwarfReader<'s>,
    main: Rc<Dwarf<'s>>,
    alt: Option<Rc<Dwarf<'s>>>,
    /// The split unit (`.dwo`, `.dwp`) that was used last, after the index of its skeleton unit.
    split: RefCell<Option<(usize, Rc<Dwarf<'s>>)>>,
}

/// What `addr2line` knows of a frame: the offset of its function's entry, and the place.
type FoundFrame = (Option<usize>, SourceLocation);

/// Adds the caller of the last frame, unless that is a part of the same function.
fn push(frames: &mut Vec<DebugFrame>, caller: DebugFrame) {
    let names = frames.last().and_then(|called| called.name.as_ref()).zip(caller.name.as_ref());
    if !names.is_some_and(|(called, name)| called.is_own_part(name, caller.location.line)) {
        frames.push(caller);
    }
}

impl DwarfReader<'_> {
    /// What it has read and keeps (bytes).
    pub(crate) fn held_bytes(&self) -> u64 {
        self.kept.borrow().held()
    }
}

impl<'a, 's> Lookup<'a, 's> {
    pub(crate) fn new(info: &'a DebugInfo<'s>, reader: &'a DwarfReader<'s>) -> Self {
        let main = Rc::new(info.sections.dwarf(info.alt.as_ref()));
        let alt = info.alt.as_ref().map(|alt| Rc::new(alt.dwarf(None)));
        Self { info, reader, main, alt, split: RefCell::default() }
    }

    /// The frames at `address`, the innermost first; none if it is not described. The last one may lack a name.
    pub(crate) fn frames(&self, address: u64) -> Result<Vec<DebugFrame>, Reason> {
        if address == u64::MAX {
            return Ok(Vec::new()); // `addr2line` asks for the next one
        }
        let mut failed = false;
        for unit in self.info.index.covering(address) {
            match self.frames_in(unit, address) {
                Ok(frames) if !frames.is_empty() => return Ok(frames),
                Ok(_) => {}
                Err(_) => failed = true,
            }
        }
        if failed { Err(Reason::CorruptDebugInfo) } else { Ok(Vec::new()) }
    }

    fn frames_in(&self, unit: usize, address: u64) -> gimli::Result<Vec<DebugFrame>> {
        let found = self.find(unit, address)?;
        let (place, described) = self.entries_of(unit);
        let mut frames = Vec::with_capacity(found.len());
        for (entry, location) in found {
            let name = entry.and_then(|entry| self.name(place, described, entry));
            push(&mut frames, DebugFrame { name, location });
        }
        // A function that the linker has dropped may seem to reach from zero to here.
        let is_dropped = |name: &Arc<FunctionName>| name.is_dropped;
        if frames.last().and_then(|frame| frame.name.as_ref()).is_some_and(is_dropped) {
            frames.truncate(1);
            frames[0].name = None;
        }
        Ok(frames)
    }

    fn find(&self, unit: usize, address: u64) -> gimli::Result<Vec<FoundFrame>> {
        self.read_context(unit)?;
        let kept = &mut *self.reader.kept.borrow_mut();
        let Some(context) = kept.contexts.get(&unit) else { return Ok(Vec::new()) };
        let context = context.as_ref().map_err(|error| *error)?;
        let files = &mut kept.files;
        let mut place = |location: Option<addr2line::Location<'_>>| {
            let location = location.unwrap_or(addr2line::Location { file: None, line: None, column: None });
            let file = location.file.filter(|file| !file.is_empty()).map(|file| match files.get(file) {
                Some(known) => Arc::clone(known),
                None => Arc::clone(files.entry(file.to_owned()).or_insert_with(|| file.into())),
            });
            SourceLocation { file, line: location.line }
        };
        let all = self.with_halves(unit, context.find_frames(address)).and_then(|mut frames| {
            let mut all = Vec::new();
            while let Some(frame) = frames.next()? {
                all.push((frame.dw_die_offset.map(|entry| entry.0), place(frame.location)));
            }
            Ok(all)
        });
        // Functions that cannot be read leave the lines.
        all.or_else(|error| match context.find_location(address) {
            Ok(Some(location)) => Ok(vec![(None, place(Some(location)))]),
            _ => Err(error),
        })
    }

    /// Answers what `addr2line` asks for on its way: the other half of the unit.
    fn with_halves<L: LookupContinuation<Buf = SectionReader<'s>>>(
        &self,
        unit: usize,
        mut result: LookupResult<L>,
    ) -> L::Output {
        loop {
            result = match result {
                LookupResult::Output(output) => return output,
                LookupResult::Load { continuation, .. } => {
                    continuation.resume(self.split_unit_dwarf(unit).map(Arc::new))
                }
            };
        }
    }

    /// Keeps what `addr2line` makes of a unit, for the addresses to come.
    fn read_context(&self, unit: usize) -> gimli::Result<()> {
        if self.reader.kept.borrow().contexts.contains_key(&unit) {
            return Ok(());
        }
        let of_unit = self.unit(UnitPlace::Main, unit)?;
        self.split(unit);
        let bytes = context_bytes(&of_unit) + self.split_unit_bytes(unit);
        self.reader.kept.borrow_mut().make_room(bytes);
        let context = match self.info.sections.units_at_once(entry_bytes(&of_unit) + bytes) {
            0 => Err(gimli::Error::Io),
            _ => self.context_of(unit),
        };
        let mut kept = self.reader.kept.borrow_mut();
        kept.count(if context.is_ok() { bytes } else { 0 });
        kept.contexts.insert(unit, context);
        Ok(())
    }

    fn context_of(&self, unit: usize) -> gimli::Result<Context<SectionReader<'s>>> {
        let range = self.info.index.range(unit).ok_or(gimli::Error::MissingUnitDie)?;
        Context::from_dwarf(self.info.sections.dwarf_of(&range, self.info.alt.as_ref())?)
    }

    pub(super) fn dwarf(&self, place: UnitPlace) -> Rc<Dwarf<'s>> {
        let dwarf = match place {
            UnitPlace::Main => None,
            UnitPlace::Alt => self.alt.clone(),
            UnitPlace::Split(skeleton) => self.kept_split(skeleton),
        };
        dwarf.unwrap_or_else(|| Rc::clone(&self.main))
    }

    fn kept_split(&self, skeleton: usize) -> Option<Rc<Dwarf<'s>>> {
        if let Some((of, dwarf)) = &*self.split.borrow()
            && *of == skeleton
        {
            return Some(Rc::clone(dwarf));
        }
        let dwarf = Rc::new(self.split_dwarf(skeleton)?);
        *self.split.borrow_mut() = Some((skeleton, Rc::clone(&dwarf)));
        Some(dwarf)
    }

    pub(super) fn index(&self, place: UnitPlace) -> Option<&'a UnitOffsets> {
        match place {
            UnitPlace::Main => Some(&self.info.index),
            UnitPlace::Alt => Some(&self.info.alt_index),
            UnitPlace::Split(skeleton) => self.split(skeleton).map(|split| &split.index),
        }
    }

    pub(super) fn unit(&self, place: UnitPlace, unit: usize) -> gimli::Result<Arc<Unit<'s>>> {
        if let Some(known) = self.reader.kept.borrow().units.get(&(place, unit)) {
            return known.clone();
        }
        let read = self.read_unit(place, unit).map(Arc::new);
        let mut kept = self.reader.kept.borrow_mut();
        let bytes = read.as_ref().map_or(0, |unit| entry_bytes(unit));
        kept.make_room(bytes);
        kept.count(bytes);
        kept.units.insert((place, unit), read.clone());
        read
    }

    fn read_unit(&self, place: UnitPlace, unit: usize) -> gimli::Result<Unit<'s>> {
        let range = self.index(place).and_then(|index| index.range(unit));
        let range = range.ok_or(gimli::Error::MissingUnitDie)?;
        let header = |dwarf: &Dwarf<'s>| dwarf.debug_info.header_from_offset(DebugInfoOffset(range.start));
        let dwarf = self.dwarf(place);
        if place == UnitPlace::Main {
            if self.info.sections.units_at_once(range.len() as u64) == 0 {
                return Err(gimli::Error::Io);
            }
            // With all its bytes in memory.
            return dwarf.unit(header(&self.info.sections.dwarf_of(&range, None)?)?);
        }
        let mut read = dwarf.unit(header(&dwarf)?)?;
        if let UnitPlace::Split(skeleton) = place {
            read.copy_relocated_attributes(&*self.unit(UnitPlace::Main, skeleton)?);
        }
        Ok(read)
    }
}
