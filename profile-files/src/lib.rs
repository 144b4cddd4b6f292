//! Profiles as files: the formats that profiles are written in, and the folder in which the service keeps those of the last days.
//!
//! What it does:
//!
//! - [`FORMATS`] is the table of formats, [`Format::of`] picks one by the ending of a file's name, [`Format::write`] writes it.
//! - [`pprof`] reads profiles, also those of other tools. It gives back all that was written.
//! - [`table`], [`unknown`] and [`functions`](mod@functions) show a profile to a person, with the intervals of its figures.
//! - [`comparison`] tells which functions changed between two profiles, as far as that is more than chance.
//! - [`stats`] writes the decisions of a run line by line, as they are made.
//! - [`store`] keeps windows of time within bounds of age and size, merges them, and gives them to exports; [`range`] sums up a
//!   range of time, with what is missing of it.
//! - [`AtomicFile`] is a file that appears whole or not at all.
//!
//! What it does not do: it takes no samples, finds no names for addresses, sends nothing, and prints nothing. The store is given
//! the time as an argument ([`store::Now`]), so that tests run weeks in seconds.
//!
//! What is read may come from anybody: a file that is damaged or crafted is an error, and takes bounded memory. Names in it may
//! hold anything; [`names::visible`] shows them without what a terminal would act upon.
//!
//! ```
//! use profile_files::table::View;
//! use profile_files::{PPROF, pprof};
//! use profiler_core::profile::{
//!     Function, FunctionIndex, Line, Location, LocationIndex, ModuleIndex, ModuleInfo, Outcome, ProcessIndex,
//!     ProcessInfo, SymbolizedProfile, WeightedStack,
//! };
//!
//! let module = ModuleInfo { name: "server".to_owned(), path: "/opt/server".to_owned(), ..ModuleInfo::default() };
//! let name = "main".to_owned();
//! let function = Function { system_name: name.clone(), name, module: ModuleIndex(0), file: None };
//! let line = Line { function: FunctionIndex(0), line: 12 };
//! let profile = SymbolizedProfile {
//!     processes: vec![ProcessInfo { pid: 4711, comm: "server".to_owned() }],
//!     modules: vec![module],
//!     functions: vec![function],
//!     locations: vec![Location { module: ModuleIndex(0), address: 0x1100, lines: vec![line], unknown: None }],
//!     stacks: vec![WeightedStack {
//!         process: ProcessIndex(0),
//!         frames: vec![LocationIndex(0)],
//!         outcome: Outcome::Complete,
//!         samples: 2,
//!         cpu_ns: 20_000_000,
//!         windows: Vec::new(),
//!     }],
//!     ..SymbolizedProfile::default()
//! };
//! let mut file = Vec::new();
//! PPROF.write(&profile, View::default(), &mut file)?;
//! let read = pprof::read(file.as_slice())?;
//! assert_eq!(read.stacks, profile.stacks);
//! assert_eq!(read.functions[0].name, "main");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod atomic_file;
pub mod comparison;
mod formats;
pub mod functions;
mod intervals;
pub mod names;
pub mod range;
pub mod store;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod unknown;
pub mod when;

pub use atomic_file::AtomicFile;
pub use formats::{FOLDED, FORMATS, Format, JSON, PPROF, TABLE, pprof, stats, table};
pub use intervals::Reached;
