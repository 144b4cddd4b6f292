//! The three readers, each asked in the way its own users ask.

use std::fs::File;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::task::{self, Poll, Waker};

use anyhow::{Result, bail};
use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{self, Input, Symbolizer};
use memmap2::Mmap;
use samply_symbols::{
    CandidatePathInfo, FileAndPathHelper, FileAndPathHelperResult, FileLocation, FramesLookupResult,
    LibraryInfo, LookupAddress, MultiArchDisambiguator, OptionallySendFuture, SymbolManager,
};
use serde::{Deserialize, Serialize};
use symbolizer::{NoDebugFiles, Object, Symbolized};

/// What a reader found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// Addresses with a function's name.
    pub named: usize,
    /// Frames of these addresses: functions, and functions inlined into them.
    pub frames: usize,
    /// Frames with a file and a line.
    pub lines: usize,
    /// Bytes of all names, which tell demangled ones from others.
    pub bytes: usize,
}

impl Found {
    fn add(&mut self, name: &str, line: bool) {
        self.frames += 1;
        self.lines += usize::from(line);
        self.bytes += name.len();
    }
}

/// The names of the readers.
pub const READERS: [&str; 3] = ["sweetspot", "blazesym", "samply"];

/// Asks a reader for all addresses.
pub fn read(reader: &str, path: &Path, addresses: &[u64]) -> Result<Found> {
    match reader {
        "sweetspot" => sweetspot(path, addresses),
        "blazesym" => with_blazesym(path, addresses),
        "samply" => with_samply(path, addresses),
        _ => bail!("no reader `{reader}`"),
    }
}

fn sweetspot(path: &Path, addresses: &[u64]) -> Result<Found> {
    let file = File::open(path)?;
    let object = Object::load(&file, path, &NoDebugFiles)?;
    let mut found = Found::default();
    for symbolized in object.symbolize_all(addresses) {
        let Symbolized::Known(frames) = symbolized else { continue };
        found.named += 1;
        frames.iter().for_each(|frame| found.add(&frame.name, frame.file.is_some() && frame.line.is_some()));
    }
    Ok(found)
}

fn with_blazesym(path: &Path, addresses: &[u64]) -> Result<Found> {
    let symbolizer =
        Symbolizer::builder().enable_code_info(true).enable_inlined_fns(true).enable_demangling(true).build();
    let symbolized = symbolizer.symbolize(&Source::Elf(Elf::new(path)), Input::VirtOffset(addresses))?;
    let mut found = Found::default();
    let is_line =
        |code: &Option<Box<symbolize::CodeInfo<'_>>>| code.as_ref().is_some_and(|code| code.line.is_some());
    for symbol in symbolized.iter().filter_map(|symbolized| symbolized.as_sym()) {
        found.named += 1;
        found.add(&symbol.name, is_line(&symbol.code_info));
        symbol.inlined.iter().for_each(|inlined| {
            found.add(&inlined.name, inlined.code_info.as_ref().is_some_and(|code| code.line.is_some()));
        });
    }
    Ok(found)
}

fn with_samply(path: &Path, addresses: &[u64]) -> Result<Found> {
    let manager = SymbolManager::with_helper(Files);
    let location = Location(path.to_owned());
    let map = ready(manager.load_symbol_map_from_location(location, None::<MultiArchDisambiguator>))??;
    let mut found = Found::default();
    for &address in addresses {
        let Some(info) = map.lookup_sync(LookupAddress::Svma(address)) else { continue };
        found.named += 1;
        match info.frames {
            Some(FramesLookupResult::Available(frames)) => frames.iter().for_each(|frame| {
                let name = frame.function.as_deref().unwrap_or_default();
                found.add(name, frame.file_path.is_some() && frame.line_number.is_some());
            }),
            _ => found.add(&info.symbol.name, false),
        }
    }
    Ok(found)
}

/// The output of a future that never waits.
fn ready<T>(future: impl Future<Output = T>) -> Result<T> {
    match pin!(future).poll(&mut task::Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Ok(output),
        Poll::Pending => bail!("the reader waits for something"),
    }
}

/// Opens files for samply, mapped as samply maps them.
struct Files;

#[derive(Clone)]
struct Location(PathBuf);

impl std::fmt::Display for Location {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.display().fmt(f)
    }
}

impl FileLocation for Location {
    fn location_for_dyld_subcache(&self, _: &str) -> Option<Self> {
        None
    }
    fn location_for_external_object_file(&self, _: &str) -> Option<Self> {
        None
    }
    fn location_for_pdb_from_binary(&self, _: &str) -> Option<Self> {
        None
    }
    fn location_for_source_file(&self, _: &str) -> Option<Self> {
        None
    }
    fn location_for_breakpad_symindex(&self) -> Option<Self> {
        None
    }
    fn location_for_dwo(&self, _: &str, _: &str) -> Option<Self> {
        None
    }
    fn location_for_dwp(&self) -> Option<Self> {
        None
    }
}

impl FileAndPathHelper for Files {
    type F = Mmap;
    type FL = Location;

    fn get_candidate_paths_for_debug_file(
        &self,
        _: &LibraryInfo,
    ) -> FileAndPathHelperResult<Vec<CandidatePathInfo<Location>>> {
        Ok(Vec::new())
    }

    fn get_candidate_paths_for_binary(
        &self,
        _: &LibraryInfo,
    ) -> FileAndPathHelperResult<Vec<CandidatePathInfo<Location>>> {
        Ok(Vec::new())
    }

    fn get_dyld_shared_cache_paths(&self, _: Option<&str>) -> FileAndPathHelperResult<Vec<Location>> {
        Ok(Vec::new())
    }

    fn load_file(
        &self,
        location: Location,
    ) -> Pin<Box<dyn OptionallySendFuture<Output = FileAndPathHelperResult<Mmap>> + '_>> {
        Box::pin(async move {
            let file = File::open(&location.0)?;
            // SAFETY: nobody writes to the program while it is measured.
            Ok(unsafe { Mmap::map(&file) }?)
        })
    }
}
