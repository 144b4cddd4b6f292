//! A profile as a file that other tools read.

pub mod folded;
pub mod pprof;
mod speedscope;
pub mod stats;
mod svg;
pub mod table;

use std::io::{self, Write};
use std::path::Path;

use profiler_core::profile::{FunctionIndex, SymbolizedProfile, WeightedStack};

/// A file format, chosen by the ending of the file's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// pprof's protocol buffer, compressed.
    Pprof,
    /// One line for each stack.
    Folded,
    /// A flame graph.
    Svg,
    /// The format of the speedscope viewer.
    Speedscope,
}

const ENDINGS: [(&str, Format); 4] = [
    (".pb.gz", Format::Pprof),
    (".folded", Format::Folded),
    (".svg", Format::Svg),
    (".speedscope.json", Format::Speedscope),
];

impl Format {
    /// The format that the ending of `path` asks for.
    ///
    /// # Errors
    ///
    /// A line that names the endings, if it is none of them.
    pub fn of(path: &Path) -> Result<Self, String> {
        const KNOWN: &str = "end the file's name in .pb.gz, .folded, .svg or .speedscope.json";
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.ends_with(".firefox.json") {
            return Err(format!(".firefox.json is not available in this version; {KNOWN}"));
        }
        let known = ENDINGS.iter().find(|(ending, _)| name.len() > ending.len() && name.ends_with(ending));
        known.map(|(_, format)| *format).ok_or_else(|| KNOWN.to_owned())
    }

    /// Writes `profile` in this format.
    pub fn write(self, profile: &SymbolizedProfile, out: &mut dyn Write) -> io::Result<()> {
        match self {
            Self::Pprof => pprof::write(profile, out),
            Self::Folded => folded::write(profile, out),
            Self::Svg => svg::write(profile, out),
            Self::Speedscope => speedscope::write(profile, out),
        }
    }
}

/// The functions of a stack from the outermost caller inwards, inlined ones included.
pub(crate) fn root_first<'a>(
    profile: &'a SymbolizedProfile,
    stack: &'a WeightedStack,
) -> impl Iterator<Item = FunctionIndex> + 'a {
    let locations = stack.frames.iter().rev().map(|index| &profile.locations[index.0 as usize]);
    locations.flat_map(|location| location.lines.iter().rev().map(|line| line.function))
}
