//! The table of formats. What a format needs is a module here and a row in [`FORMATS`]: help, endings of files, the interface's
//! parameters and media types, and the documentation are made from the rows.

mod firefox;
pub(crate) mod folded;
mod html;
mod markdown;
pub mod pprof;
mod speedscope;
pub mod stats;
mod svg;
pub mod table;
#[cfg(test)]
mod tests;

use std::fmt::{self, Display, Formatter};
use std::io::{self, Write};
use std::path::Path;

use profiler_core::profile::{FunctionIndex, Run, SymbolizedProfile, WeightedStack};

use crate::functions::functions;
use crate::names;
use table::View;

/// Every format, in the order in which help and documents list them.
pub static FORMATS: [&Format; 9] =
    [&TABLE, &JSON, &PPROF, &FOLDED, &SVG, &HTML, &MARKDOWN, &SPEEDSCOPE, &FIREFOX];

/// Functions as a table; see [`table`].
pub static TABLE: Format = Format {
    name: "table",
    about: "a table of functions by their own CPU time",
    media_type: "text/plain; charset=utf-8",
    readers: None,
    is_printed: true,
    has_script: false,
    lists_functions: true,
    write: |profile, view, out| out.write_all(table::render(profile, &functions(profile), view).as_bytes()),
};

/// The run and its functions in one line; see [`stats`].
pub static JSON: Format = Format {
    name: "json",
    about: "the summary that `--stats` ends with, as JSON",
    media_type: "application/json",
    readers: None,
    is_printed: true,
    has_script: false,
    lists_functions: false,
    write: |profile, _, out| out.write_all(stats::summary(&profile.run, &functions(profile))?.as_bytes()),
};

/// pprof's protocol buffer, compressed: the one format that holds all that is known; see [`pprof`].
pub static PPROF: Format = Format {
    name: "pb.gz",
    about: "pprof",
    media_type: "application/octet-stream",
    readers: Some(
        "`go tool pprof`, `sweetspot report`, and other readers of pprof; its comments hold the whole \
         summary and the history of the rate (`go tool pprof -comments`), of which reports show two lines",
    ),
    is_printed: false,
    has_script: false,
    lists_functions: false,
    write: |profile, _, out| pprof::write(profile, out),
};

/// A line for each stack, sorted: the command, the frames root first, and µs of CPU time.
pub static FOLDED: Format = Format {
    name: "folded",
    about: "a line for each stack",
    media_type: "text/plain; charset=utf-8",
    readers: Some("flame graph tools: one line per stack, µs of CPU time"),
    is_printed: true,
    has_script: false,
    lists_functions: false,
    write: |profile, _, out| folded::write(profile, out),
};

static SVG: Format = Format {
    name: "svg",
    about: "flame graph",
    media_type: "image/svg+xml",
    readers: Some("a browser: a flame graph"),
    is_printed: false,
    has_script: true,
    lists_functions: false,
    write: |profile, _, out| svg::write(profile, out),
};

static HTML: Format = Format {
    name: "html",
    about: "web page",
    media_type: "text/html; charset=utf-8",
    readers: Some("a browser: one page with the summary, a flame graph and all functions"),
    is_printed: false,
    has_script: true,
    lists_functions: false,
    write: |profile, _, out| html::write(profile, out),
};

static MARKDOWN: Format = Format {
    name: "md",
    about: "Markdown",
    media_type: "text/markdown; charset=utf-8",
    readers: Some("people, in an issue or a pull request: the summary and the functions of at least 0.1%"),
    is_printed: true,
    has_script: false,
    lists_functions: true,
    write: |profile, view, out| markdown::write(profile, view, out),
};

static SPEEDSCOPE: Format = Format {
    name: "speedscope.json",
    about: "speedscope",
    media_type: "application/json",
    readers: Some("[speedscope](https://www.speedscope.app)"),
    is_printed: false,
    has_script: false,
    lists_functions: false,
    write: |profile, _, out| speedscope::write(profile, out),
};

static FIREFOX: Format = Format {
    name: "firefox.json",
    about: "Firefox Profiler",
    media_type: "application/json",
    readers: Some("[Firefox Profiler](https://profiler.firefox.com)"),
    is_printed: false,
    has_script: false,
    lists_functions: false,
    write: |profile, _, out| firefox::write(profile, out),
};

/// A format that profiles are written in: a row of [`FORMATS`].
#[derive(Debug)]
pub struct Format {
    /// What `--format` and the interface call it. A file of it ends in a point and this name.
    pub name: &'static str,
    /// What it is, in a few words.
    pub about: &'static str,
    /// Its media type, with the encoding where it is text.
    pub media_type: &'static str,
    /// What reads a file of it, for the documentation; none if it is not written to files.
    pub readers: Option<&'static str>,
    /// Whether it is text that a terminal shows.
    pub is_printed: bool,
    /// Whether a browser that shows it runs a script in it.
    pub has_script: bool,
    /// Whether it has the notes of the run and as many functions as the view says.
    pub lists_functions: bool,
    write: fn(&SymbolizedProfile, View, &mut dyn Write) -> io::Result<()>,
}

impl PartialEq for Format {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Format {}

impl Display for Format {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Format {
    /// The format of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        FORMATS.into_iter().find(|format| format.name == name)
    }

    /// The format that the ending of `path` asks for.
    ///
    /// # Errors
    ///
    /// A line that names the endings, if it is none of them.
    pub fn of(path: &Path) -> Result<&'static Self, String> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if let Some(format) = Self::written().find(|format| format.is_ending_of(&name)) {
            return Ok(format);
        }
        let endings = in_words(Self::written().map(|format| format!(".{format}")));
        Err(format!("end the file's name in {endings}"))
    }

    fn is_ending_of(&self, name: &str) -> bool {
        name.strip_suffix(self.name)
            .and_then(|name| name.strip_suffix('.'))
            .is_some_and(|name| !name.is_empty())
    }

    /// Whether it is nothing that a browser shows.
    pub fn is_binary(&self) -> bool {
        self.media_type == "application/octet-stream"
    }

    /// The formats that are written to files.
    pub fn written() -> impl Iterator<Item = &'static Self> {
        FORMATS.into_iter().filter(|format| format.readers.is_some())
    }

    /// The formats that are printed.
    pub fn printed() -> impl Iterator<Item = &'static Self> {
        FORMATS.into_iter().filter(|format| format.is_printed)
    }

    /// The endings of files with what they mean, in words.
    pub fn endings() -> String {
        in_words(Self::written().map(|format| format!(".{format} ({})", format.about)))
    }

    /// Writes `profile` in this format; `view` bounds what a person reads.
    ///
    /// # Errors
    ///
    /// If `out` refuses.
    pub fn write(&self, profile: &SymbolizedProfile, view: View, out: &mut dyn Write) -> io::Result<()> {
        (self.write)(profile, view, out)
    }
}

/// `a, b or c`.
fn in_words(items: impl Iterator<Item = String>) -> String {
    let mut items: Vec<String> = items.collect();
    match items.pop() {
        Some(last) if !items.is_empty() => format!("{} or {last}", items.join(", ")),
        last => last.unwrap_or_default(),
    }
}

/// The most columns of a function and its module, where a line has no width.
const NAME_WIDTH: usize = 120;

/// What a document of the run is called: its target, and what was measured if that is not CPU time.
fn title(run: &Run) -> String {
    let target = names::shorten(&names::visible(&run.target), 90);
    let time = names::visible(&run.measure.in_words());
    match (target.is_empty(), run.measure.is_cpu()) {
        (true, _) => time,
        (false, true) => target,
        (false, false) => format!("{target}: {time}"),
    }
}

/// What a process is called where each is a profile of its own: `server`, `server: delay time`.
fn process_title(run: &Run, name: &str) -> String {
    if run.measure.is_cpu() { name.to_owned() } else { format!("{name}: {}", run.measure.in_words()) }
}

/// The frame of a stack without frames.
const NO_STACK: &str = "[no stack]";

/// The functions of a stack from the outermost caller inwards, inlined ones included.
pub(crate) fn root_first<'a>(
    profile: &'a SymbolizedProfile,
    stack: &'a WeightedStack,
) -> impl Iterator<Item = FunctionIndex> + 'a {
    let locations = stack.frames.iter().rev().map(|index| &profile.locations[index.0 as usize]);
    locations.flat_map(|location| location.lines.iter().rev().map(|line| line.function))
}
