//! Split DWARF: units whose entries are kept in another file, a `.dwo` for each or one `.dwp` package for all.
//!
//! The object keeps a skeleton of such a unit: its addresses, its lines, and where the other half is.
//!
//! The other half is opened when an address first needs it: a big program has thousands of `.dwo` files and a
//! profile touches a few. Functions and names come from it, lines from the skeleton. Both halves bear one
//! number, so a file of another build is refused. Half of the memory is for these, half for the lines, which
//! stay in the object.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use gimli::{DebugInfoOffset, Reader as _, Section as _};

use super::index::{self, UnitOffsets};
use super::sections::{Dwarf, Sections};
use super::{DebugInfo, Lookup, UnitPlace};
use crate::debug_file::DebugFiles;
use crate::elf::Elf;
use crate::reason::Reason;

/// Longer paths are not Linux's.
const LONGEST_PATH: usize = 4096;
/// Units of one file that are tried; compilers write one, link-time optimisation a few.
const MOST_UNITS: usize = 1024;

/// Where the other halves are.
#[derive(Default)]
pub(crate) struct SplitFiles {
    files: Option<Box<dyn DebugFiles + Send + Sync>>,
    /// The object, and its debug file if that holds the skeletons.
    objects: Vec<PathBuf>,
    package: Option<Sections<'static>>,
    /// Why the package that there is cannot be used.
    refused: Option<Reason>,
    /// What they may still take: they stay in memory.
    left_bytes: AtomicU64,
    /// What they might take at first.
    most_bytes: u64,
}

/// The half of a unit that is in another file.
pub(super) struct Split {
    /// Its file, unless it is in the package.
    sections: Option<Sections<'static>>,
    id: u64,
    /// The units of the file, or of what the package holds for this one.
    pub(super) index: UnitOffsets,
    pub(super) unit: usize,
}

impl SplitFiles {
    /// They are looked for beside `objects`.
    pub(crate) fn new(files: &dyn DebugFiles, objects: Vec<PathBuf>) -> Self {
        Self { files: files.share(), objects, ..Self::default() }
    }

    /// Looks for the package of all halves. All files together may take this much of memory.
    pub(super) fn open_package(&mut self, most_bytes: u64) {
        (self.left_bytes, self.most_bytes) = (AtomicU64::new(most_bytes), most_bytes);
        for object in &self.objects {
            let mut name = object.clone().into_os_string();
            name.push(".dwp");
            match self.read(Path::new(&name)) {
                Ok(package) => {
                    self.package = Some(package);
                    return;
                }
                Err(Reason::NoSplitFile(_)) => {}
                Err(reason) => self.refused = Some(reason),
            }
        }
    }

    /// What those take that are open.
    pub(super) fn held_bytes(&self) -> u64 {
        self.most_bytes.saturating_sub(self.left_bytes.load(Ordering::Relaxed))
    }

    fn read(&self, path: &Path) -> Result<Sections<'static>, Reason> {
        let missing = || Reason::NoSplitFile(path.display().to_string());
        let source = self.files.as_ref().and_then(|files| files.open(path)).ok_or_else(missing)?;
        let elf = Elf::parse(&*source)?;
        let bytes = Sections::split_size(&elf);
        let rest = |left: u64| left.checked_sub(bytes);
        self.left_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest)
            .map_err(|_| Reason::TooLarge { what: "the split debug information".into(), bytes })?;
        Sections::read_split(&elf).inspect_err(|_| self.give_back(bytes))
    }

    /// The half of this number as gimli reads it, in a file of its own or in the package.
    fn half<'s>(
        &self,
        sections: Option<&Sections<'static>>,
        id: u64,
        parent: &Dwarf<'s>,
    ) -> Option<Dwarf<'s>> {
        let mut dwarf: Dwarf<'s> = match sections {
            Some(sections) => sections.dwarf(None),
            None => self.package.as_ref()?.part_of(id)?,
        };
        dwarf.make_dwo(parent);
        Some(dwarf)
    }

    fn give_back(&self, bytes: u64) {
        self.left_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Where a unit's own file may be: where the compiler put it, or beside the object.
    fn candidates(&self, directory: Option<&str>, file: &str) -> Vec<PathBuf> {
        let mut paths = vec![Path::new(directory.unwrap_or("/")).join(file)];
        for beside in self.objects.iter().filter_map(|object| object.parent()) {
            paths.push(beside.join(file));
            paths.extend(Path::new(file).file_name().map(|name| beside.join(name)));
        }
        paths.retain(|path| path.is_absolute() && path.as_os_str().len() <= LONGEST_PATH);
        let mut seen = Vec::new();
        paths.retain(|path| {
            !seen.contains(path) && {
                seen.push(path.clone());
                true
            }
        });
        paths
    }
}

impl DebugInfo<'_> {
    /// Why the first half that is looked for is not to be had.
    pub(crate) fn missing_split(&self) -> Option<Reason> {
        let first = *self.splits.keys().min()?;
        let reader = self.reader_in_order();
        Lookup::new(self, &reader).split(first);
        self.splits.get(&first)?.get()?.as_ref().err().cloned()
    }
}

impl<'a, 's> Lookup<'a, 's> {
    /// Where the entries of a unit are: itself, or the other half of a skeleton.
    pub(super) fn entries_of(&self, unit: usize) -> (UnitPlace, usize) {
        self.split(unit).map_or((UnitPlace::Main, unit), |split| (UnitPlace::Split(unit), split.unit))
    }

    pub(super) fn split(&self, skeleton: usize) -> Option<&'a Split> {
        let split = self.info.splits.get(&skeleton)?;
        split.get_or_init(|| self.open_split(skeleton).map(Box::new)).as_ref().ok().map(|split| &**split)
    }

    /// The sections of another half as gimli reads them, once it is open.
    pub(super) fn split_dwarf(&self, skeleton: usize) -> Option<Dwarf<'s>> {
        let split = self.split(skeleton)?;
        self.info.split_files.half(split.sections.as_ref(), split.id, &self.dwarf(UnitPlace::Main))
    }

    /// The same, beginning with the unit that is the other half: `addr2line` takes the first one.
    pub(super) fn split_unit_dwarf(&self, skeleton: usize) -> Option<Dwarf<'s>> {
        let split = self.split(skeleton)?;
        let mut dwarf = self.split_dwarf(skeleton)?;
        let mut units = dwarf.debug_info.reader().clone();
        units.skip(split.index.range(split.unit)?.start).ok()?;
        dwarf.debug_info = units.into();
        Some(dwarf)
    }

    /// What the other half takes of memory, once it is read.
    pub(super) fn split_unit_bytes(&self, skeleton: usize) -> u64 {
        let range = self.split(skeleton).and_then(|split| split.index.range(split.unit));
        range.map_or(0, |range| range.len() as u64 * index::BYTES_PER_ENTRY_BYTE)
    }

    fn open_split(&self, skeleton: usize) -> Result<Split, Reason> {
        let unit = self.unit(UnitPlace::Main, skeleton).map_err(|_| Reason::CorruptDebugInfo)?;
        let id = unit.dwo_id.ok_or(Reason::CorruptDebugInfo)?.0;
        let files = &self.info.split_files;
        if files.package.is_some()
            && let Some(split) = self.find_half(None, id)
        {
            return Ok(split);
        }
        let text = |bytes: super::bytes::SectionReader<'s>| Some(bytes.to_string_lossy().ok()?.into_owned());
        let file = unit.dwo_name().ok().flatten();
        let file = file.and_then(|file| text(self.dwarf(UnitPlace::Main).attr_string(&unit, file).ok()?));
        let file = file.ok_or(Reason::CorruptDebugInfo)?;
        let directory = unit.comp_dir.clone().and_then(text);
        let mut missing = files.refused.clone().unwrap_or_else(|| Reason::NoSplitFile(file.clone()));
        for path in files.candidates(directory.as_deref(), &file) {
            match files.read(&path) {
                Ok(sections) => {
                    let bytes = sections.bytes();
                    if let Some(split) = self.find_half(Some(sections), id) {
                        return Ok(split);
                    }
                    files.give_back(bytes);
                    missing = Reason::OtherBuild(path.display().to_string());
                }
                Err(Reason::NoSplitFile(_)) => {}
                Err(reason) => missing = reason,
            }
        }
        Err(missing)
    }

    /// The unit with this number, in a file of its own or in the package.
    fn find_half(&self, sections: Option<Sections<'static>>, id: u64) -> Option<Split> {
        let dwarf = self.info.split_files.half(sections.as_ref(), id, &self.dwarf(UnitPlace::Main))?;
        let index = UnitOffsets::offsets(&dwarf);
        let is_it = |&unit: &usize| {
            let offset = DebugInfoOffset(index.range(unit)?.start);
            let header = dwarf.debug_info.header_from_offset(offset).ok()?;
            (dwarf.unit(header).ok()?.dwo_id?.0 == id).then_some(())
        };
        let unit = (0..index.len().min(MOST_UNITS)).find(|unit| is_it(unit).is_some())?;
        Some(Split { sections, id, index, unit })
    }
}
