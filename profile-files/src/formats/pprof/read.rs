//! A pprof file as a profile. The file may come from anywhere: memory is bounded and nothing panics.

use std::io::Read;

use flate2::read::MultiGzDecoder;
use profiler_core::profile::{
    Function, FunctionIndex, Line, Location, LocationIndex, ModuleIndex, ModuleInfo, ProcessIndex,
    ProcessInfo, SymbolizedProfile, TruncatedBy, WeightedStack,
};
use prost::Message;
use rustc_hash::FxHashMap;

use super::EVERYTHING;
use super::comments::Comments;
use super::labels::SampleLabels;
use super::locations::Locations;
use super::message::{PprofFunction, PprofLocation, PprofMapping, PprofSample};
use super::sections::{MAX_ENTRIES, RawMessages};
use super::units::Values;

/// Most bytes of a file, uncompressed. Ours have a few hundred kilobytes, and the sum of a week of a fleet up to 110 MiB of
/// stacks (`profiler_core::merge`), to which names, addresses and windows of time come.
pub const MAX_BYTES: u64 = 256 << 20;
/// Most bytes of names in a profile: any number of functions may share one long text of the file, and each
/// has a copy of its own here.
const MAX_NAMES: usize = 256 << 20;
/// Most functions on all stacks together, where each frame counts for each of its functions: a location of ten
/// thousand inlined functions, ten thousand times on a stack, fits into a few kilobytes. It bounds the frames, too (4 bytes
/// each), and the time to look at all of them. How long their names are does not count: no name is copied for a frame.
/// A run that we write has at most 2²³ frames, which may have eight functions each; a sum has at most 2²⁵ functions.
const MAX_ON_STACKS: u64 = 1 << 26;

/// Why a file could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Reading or decompressing failed.
    #[error("it cannot be read")]
    Io(#[from] std::io::Error),
    /// Larger than any profile.
    #[error("it has more than {} MiB uncompressed", MAX_BYTES >> 20)]
    TooLarge,
    /// More text than any profile.
    #[error("the names of its functions have more than {} MiB", MAX_NAMES >> 20)]
    TooMuchText,
    /// More on its stacks than any profile.
    #[error("its stacks have more than {} million functions", MAX_ON_STACKS / 1_000_000)]
    TooDeep,
    /// More entries than any profile.
    #[error("it has more than {0} entries")]
    TooMany(usize),
    /// Not the format.
    #[error("it is not a profile in pprof's format: {0}")]
    Malformed(&'static str),
    /// Not the format, as the decoder of a message found.
    #[error("it is not a profile in pprof's format")]
    Message(#[from] prost::DecodeError),
    /// A profile of memory or the like; of another time, where CPU time is needed.
    #[error("it is a profile of {0}, not of CPU time")]
    NotCpuTime(String),
    /// The difference of two profiles.
    #[error("it holds negative values: the difference of two profiles cannot be shown")]
    Negative,
}

impl ReadError {
    /// Whether it may be a profile, of more than is read: a shorter one of the same program can be.
    pub fn is_limit(&self) -> bool {
        matches!(self, Self::TooLarge | Self::TooMuchText | Self::TooDeep | Self::TooMany(_))
    }

    /// What to do about the file, for a person.
    pub fn advice(&self) -> &'static str {
        match self.is_limit() {
            true => "give a profile of a shorter time or of fewer processes",
            false => "give a CPU profile in pprof's format",
        }
    }
}

/// Reads a profile, compressed or not.
///
/// # Errors
///
/// If it is not a profile of CPU time, or of another time, in pprof's format, or larger than one can be.
pub fn read(file: impl Read) -> Result<SymbolizedProfile, ReadError> {
    let bytes = uncompressed(file)?;
    if bytes.is_empty() {
        return Err(ReadError::Malformed("it is empty"));
    }
    let sections = RawMessages::new(&bytes)?;
    let (values, measure) = Values::find(&sections)?;
    let mut reader = PprofReader { sections: &sections, profile: SymbolizedProfile::default(), names: 0 };
    reader.modules()?;
    let functions = reader.function_messages()?;
    let locations = reader.locations(&functions)?;
    reader.stacks(values, &locations)?;
    reader.run()?;
    reader.profile.run.measure = measure;
    Ok(reader.profile)
}

/// The same of one that is added up with others, or stands for one of ours.
///
/// # Errors
///
/// As of [`read`], and if its weights are another time.
pub fn read_cpu_time(file: impl Read) -> Result<SymbolizedProfile, ReadError> {
    let profile = read(file)?;
    let measure = &profile.run.measure;
    if measure.is_cpu() { Ok(profile) } else { Err(ReadError::NotCpuTime(measure.in_words())) }
}

/// The bytes of the file, no more than a profile has: a few kilobytes of gzip may hold gigabytes.
fn uncompressed(file: impl Read) -> Result<Vec<u8>, ReadError> {
    let bytes = bounded(file)?;
    if bytes.starts_with(&[0x1f, 0x8b]) { bounded(MultiGzDecoder::new(bytes.as_slice())) } else { Ok(bytes) }
}

fn bounded(source: impl Read) -> Result<Vec<u8>, ReadError> {
    let mut bytes = Vec::new();
    source.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES { Err(ReadError::TooLarge) } else { Ok(bytes) }
}

struct PprofReader<'a> {
    sections: &'a RawMessages<'a>,
    profile: SymbolizedProfile,
    /// Bytes of names copied so far.
    names: usize,
}

/// Functions by their id in the file.
type Functions = FxHashMap<u64, PprofFunction>;

impl<'a> PprofReader<'a> {
    fn text(&mut self, index: i64) -> Result<String, ReadError> {
        let text = self.sections.text(index)?;
        self.copied(text.len())?;
        Ok(text.to_owned())
    }

    fn copied(&mut self, bytes: usize) -> Result<(), ReadError> {
        self.names = self.names.saturating_add(bytes);
        if self.names > MAX_NAMES { Err(ReadError::TooMuchText) } else { Ok(()) }
    }

    fn modules(&mut self) -> Result<(), ReadError> {
        for bytes in &self.sections.mappings {
            let mapping = PprofMapping::decode(*bytes)?;
            let file = self.text(mapping.filename)?;
            let build_id = Some(self.text(mapping.build_id)?).filter(|id| !id.is_empty());
            // `[kernel]` and `[vdso]` are names, not paths.
            let path = if file.starts_with('[') { String::new() } else { file.clone() };
            let end = Some(mapping.memory_limit).filter(|&limit| limit != EVERYTHING).unwrap_or(0);
            let name = file.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or("[unknown]");
            self.profile.modules.push(ModuleInfo { name: name.to_owned(), path, build_id, end });
        }
        Ok(())
    }

    fn function_messages(&self) -> Result<Functions, ReadError> {
        let mut functions = Functions::default();
        for bytes in &self.sections.functions {
            let function = PprofFunction::decode(*bytes)?;
            functions.insert(function.id, function);
        }
        Ok(functions)
    }

    /// Reads the locations and, with them, the functions: the format does not say which module a function
    /// belongs to, its addresses do.
    fn locations(&mut self, functions: &Functions) -> Result<Locations, ReadError> {
        let mapping_ids = self.mapping_ids()?;
        let mut known: FxHashMap<(u64, ModuleIndex), FunctionIndex> = FxHashMap::default();
        let mut locations = Locations::default();
        let mut location = PprofLocation::default();
        for bytes in &self.sections.locations {
            location.clear();
            location.merge(*bytes)?;
            let module = match mapping_ids.get(&location.mapping_id) {
                Some(module) => *module,
                None => self.unknown_module(),
            };
            let mut lines = Vec::with_capacity(location.line.len());
            for line in &location.line {
                let function = match known.get(&(line.function_id, module)) {
                    Some(function) => *function,
                    None => {
                        let function = self.function(functions, line.function_id, module)?;
                        known.insert((line.function_id, module), function);
                        function
                    }
                };
                lines.push(Line { function, line: u32::try_from(line.line).unwrap_or_default() });
            }
            if lines.is_empty() {
                lines.push(Line { function: self.nameless(module, location.address)?, line: 0 });
            }
            let index = LocationIndex(self.profile.locations.len() as u32);
            locations.add(location.id, index);
            self.profile.locations.push(Location { module, address: location.address, lines, unknown: None });
        }
        Ok(locations)
    }

    fn mapping_ids(&self) -> Result<FxHashMap<u64, ModuleIndex>, ReadError> {
        let mut ids = FxHashMap::default();
        for (bytes, at) in self.sections.mappings.iter().zip(0..) {
            ids.insert(PprofMapping::decode(*bytes)?.id, ModuleIndex(at));
        }
        Ok(ids)
    }

    /// The module of code in no file, added when it is first needed.
    fn unknown_module(&mut self) -> ModuleIndex {
        let modules = &mut self.profile.modules;
        if modules.len() == self.sections.mappings.len() {
            let name = "[unknown]".to_owned();
            modules.push(ModuleInfo { name, path: String::new(), build_id: None, end: 0 });
        }
        ModuleIndex(self.sections.mappings.len() as u32)
    }

    fn function(
        &mut self,
        functions: &Functions,
        id: u64,
        module: ModuleIndex,
    ) -> Result<FunctionIndex, ReadError> {
        let function = functions.get(&id).ok_or(ReadError::Malformed("a function is missing"))?;
        let system_name = self.text(function.system_name)?;
        let name = Some(self.text(function.name)?).filter(|name| !name.is_empty());
        let file = Some(self.text(function.filename)?).filter(|file| !file.is_empty());
        let name = name.unwrap_or_else(|| system_name.clone());
        self.add(Function { name, system_name, module, file })
    }

    fn nameless(&mut self, module: ModuleIndex, address: u64) -> Result<FunctionIndex, ReadError> {
        let name = format!("{}+{address:#x}", self.profile.modules[module.0 as usize].name);
        self.copied(2 * name.len())?;
        self.add(Function { system_name: name.clone(), name, module, file: None })
    }

    /// Adds a function. One of the file is one for each module that calls it its own: a small file can name many.
    fn add(&mut self, function: Function) -> Result<FunctionIndex, ReadError> {
        if self.profile.functions.len() >= MAX_ENTRIES {
            return Err(ReadError::TooMany(MAX_ENTRIES));
        }
        self.profile.functions.push(function);
        Ok(FunctionIndex(self.profile.functions.len() as u32 - 1))
    }

    fn stacks(&mut self, values: Values, locations: &Locations) -> Result<(), ReadError> {
        let mut processes: FxHashMap<(u32, &str), ProcessIndex> = FxHashMap::default();
        let mut on_stacks = 0_u64;
        // Other tools profile one process and do not name it: its executable is the first module.
        let program = self.profile.modules.first().map(|module| module.name.clone()).unwrap_or_default();
        self.profile.stacks.reserve(self.sections.samples.len());
        let mut sample = PprofSample::default(); // its lists are filled again and again
        for bytes in &self.sections.samples {
            sample.clear();
            sample.merge(*bytes)?;
            let (samples, cpu_ns) = values.of(&sample.value)?;
            let labels = SampleLabels::read(self.sections, &sample.label)?;
            let next = ProcessIndex(processes.len() as u32);
            let process = *processes.entry((labels.pid, labels.comm)).or_insert(next);
            if process == next {
                let comm = if labels.comm.is_empty() { program.as_str() } else { labels.comm }.to_owned();
                self.copied(comm.len())?;
                self.profile.processes.push(ProcessInfo { pid: labels.pid, comm });
            }
            let mut frames = Vec::with_capacity(sample.location_id.len());
            for id in &sample.location_id {
                frames.push(locations.find(*id).ok_or(ReadError::Malformed("a location is missing"))?);
            }
            let functions =
                |frame: &LocationIndex| self.profile.locations[frame.0 as usize].lines.len() as u64;
            on_stacks = frames.iter().map(functions).fold(on_stacks, u64::saturating_add);
            if on_stacks > MAX_ON_STACKS {
                return Err(ReadError::TooDeep);
            }
            let (outcome, windows) = (labels.outcome, Vec::new());
            self.profile.stacks.push(WeightedStack { process, frames, outcome, samples, cpu_ns, windows });
        }
        Ok(())
    }

    /// What the run was: as the comments say, else as far as the file tells.
    fn run(&mut self) -> Result<(), ReadError> {
        let mut comments = Vec::new();
        for index in &self.sections.comments {
            comments.push(self.sections.text(i64::try_from(*index).unwrap_or(-1))?);
        }
        let stacks = &self.profile.stacks;
        let sum = |of: fn(&WeightedStack) -> u64| stacks.iter().map(of).fold(0, u64::saturating_add);
        let (samples, cpu_s) = (sum(|stack| stack.samples), sum(|stack| stack.cpu_ns) as f64 / 1e9);
        let mut truncated_by = TruncatedBy::default();
        stacks.iter().for_each(|stack| truncated_by.add(stack.outcome, stack.samples));
        let truncated = truncated_by.total();
        let run = &mut self.profile.run;
        run.target = self.profile.modules.first().map(|module| module.name.clone()).unwrap_or_default();
        run.start_unix_ns = u64::try_from(self.sections.time_nanos).unwrap_or_default();
        run.duration_s = self.sections.duration_nanos.max(0) as f64 / 1e9;
        (run.counts.samples, run.cpu.target_cpu_s, run.cpu.weight_s, run.counts.truncated) =
            (samples, cpu_s, cpu_s, truncated);
        run.counts.truncated_by = truncated_by;
        run.counts.complete_ratio = 1.0 - truncated as f64 / samples.max(1) as f64;
        Comments::read(&comments, self.sections).apply(&mut self.profile);
        Ok(())
    }
}
