//! Split DWARF: units whose entries are kept in another file, a `.dwo` for each or one `.dwp` package for all.
//!
//! The object keeps a skeleton of such a unit: its addresses, its lines, and where the other half is.

use std::cell::Cell;
use std::path::{Path, PathBuf};

use super::index::Index;
use super::sections::Sections;
use super::unit::{Dwarf, UnitInfo, abbreviations};
use super::{DebugInfo, Place};
use crate::debug_file::DebugFiles;
use crate::elf::Elf;
use crate::reason::Reason;

/// All files of one object together: they stay in memory.
const MOST_BYTES: u64 = 2 << 30;
/// Longer paths are not Linux's.
const LONGEST_PATH: usize = 4096;
/// Units of one file that are tried; compilers write one, link-time optimisation a few.
const MOST_UNITS: usize = 1024;

/// What a unit says about its halves.
#[derive(Debug, Clone)]
pub(super) struct Link {
    /// The same number in both halves.
    pub(super) id: u64,
    /// In a skeleton: the other half's file, below the directory of the compilation.
    pub(super) file: Option<String>,
}

/// Where the other halves are.
#[derive(Default)]
pub(crate) struct SplitFiles {
    files: Option<Box<dyn DebugFiles + Send>>,
    /// The object, and its debug file if that holds the skeletons.
    objects: Vec<PathBuf>,
    package: Option<Sections>,
    bytes: Cell<u64>,
}

/// The half of a unit that is in another file.
pub(super) struct Split {
    /// Its file, unless it is in the package.
    sections: Option<Sections>,
    id: u64,
    /// The units of the file, or of what the package holds for this one.
    pub(super) index: Index,
    pub(super) unit: usize,
}

impl SplitFiles {
    /// They are looked for beside `objects`.
    pub(crate) fn new(files: &dyn DebugFiles, objects: Vec<PathBuf>) -> Self {
        Self { files: files.share(), objects, ..Self::default() }
    }

    pub(super) fn open_package(&mut self) {
        let beside = |object: &PathBuf| {
            let mut name = object.clone().into_os_string();
            name.push(".dwp");
            PathBuf::from(name)
        };
        self.package = self.objects.iter().map(beside).find_map(|path| self.read(&path).ok());
    }

    pub(super) fn package_bytes(&self) -> u64 {
        self.package.as_ref().map_or(0, Sections::bytes)
    }

    fn read(&self, path: &Path) -> Result<Sections, Reason> {
        let missing = || Reason::NoSplitFile(path.display().to_string());
        let source = self.files.as_ref().and_then(|files| files.open(path)).ok_or_else(missing)?;
        let sections = Sections::read_split(&Elf::parse(&*source)?)?;
        let bytes = self.bytes.get() + sections.bytes();
        if bytes > MOST_BYTES {
            return Err(Reason::TooLarge { what: "the split debug information".into(), bytes });
        }
        self.bytes.set(bytes);
        Ok(sections)
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

impl DebugInfo {
    /// Where the entries of a unit are: itself, or the other half of a skeleton.
    pub(super) fn entries_of(&self, unit: usize) -> (Place, usize) {
        self.split(unit).map_or((Place::Main, unit), |split| (Place::Split(unit), split.unit))
    }

    pub(super) fn split(&self, skeleton: usize) -> Option<&Split> {
        let split = self.splits.get(&skeleton)?;
        split.get_or_init(|| self.open_split(skeleton).map(Box::new)).as_ref().ok().map(|split| &**split)
    }

    /// Why the first half that is looked for is not to be had.
    pub(crate) fn missing_split(&self) -> Option<Reason> {
        let first = *self.splits.keys().min()?;
        self.split(first);
        self.splits.get(&first)?.get()?.as_ref().err().cloned()
    }

    /// The sections of another half as gimli reads them, once it is open.
    pub(super) fn split_dwarf(&self, skeleton: usize) -> Option<Dwarf<'_>> {
        let split = self.split(skeleton)?;
        self.half(split.sections.as_ref(), split.id)
    }

    fn open_split(&self, skeleton: usize) -> Result<Split, Reason> {
        let dwarf = self.dwarf(Place::Main);
        let info = self.unit(&dwarf, Place::Main, skeleton).map_err(|_| self.reason())?;
        let link = info.link.as_ref().ok_or(Reason::CorruptDebugInfo)?;
        if self.split_files.package.is_some()
            && let Some(split) = self.find_half(None, link.id)
        {
            return Ok(split);
        }
        let file = link.file.as_deref().ok_or(Reason::CorruptDebugInfo)?;
        let candidates = self.split_files.candidates(info.comp_dir.as_deref(), file);
        let mut missing = Reason::NoSplitFile(file.to_owned());
        for path in candidates {
            match self.split_files.read(&path) {
                Ok(sections) => {
                    self.budget.grant(sections.bytes());
                    if let Some(split) = self.find_half(Some(sections), link.id) {
                        return Ok(split);
                    }
                    missing = Reason::OtherBuild(path.display().to_string());
                }
                Err(Reason::NoSplitFile(_)) => {}
                Err(reason) => missing = reason,
            }
        }
        Err(missing)
    }

    /// The unit with this number, in a file of its own or in the package.
    fn find_half(&self, sections: Option<Sections>, id: u64) -> Option<Split> {
        let dwarf = self.half(sections.as_ref(), id)?;
        let index = Index::offsets(&dwarf).ok()?;
        let is_it = |&unit: &usize| {
            let info = self.read_unit(&dwarf, index.offset(unit)?).ok()?;
            (info.link.as_ref()?.id == id).then_some(())
        };
        let unit = (0..index.len().min(MOST_UNITS)).find(|unit| is_it(unit).is_some())?;
        Some(Split { sections, id, index, unit })
    }

    fn half<'a>(&'a self, sections: Option<&'a Sections>, id: u64) -> Option<Dwarf<'a>> {
        let parent = self.dwarf(Place::Main);
        if let Some(sections) = sections {
            let mut dwarf = sections.dwarf(None, &self.budget);
            dwarf.make_dwo(&parent);
            return Some(dwarf);
        }
        let mut dwarf = self.split_files.package.as_ref()?.part_of(id, &self.budget)?;
        dwarf.make_dwo(&parent);
        Some(dwarf)
    }

    /// Reads the root entry of a unit in another file.
    pub(super) fn read_unit(&self, dwarf: &Dwarf<'_>, offset: usize) -> gimli::Result<UnitInfo> {
        let header = dwarf.unit_header(gimli::DebugInfoOffset(offset))?;
        let abbreviations = abbreviations(dwarf, header.debug_abbrev_offset().0)?;
        UnitInfo::read(dwarf, header, abbreviations, &self.budget, |_, _| Ok(()))
    }
}
