//! Compares the names in real programs with those of other readers.

pub mod compare;
pub mod explain;
pub mod readers;
pub mod subjects;

/// A function at an address, as a reader sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The linker's name where there is one; empty if not known.
    pub name: String,
    /// Empty if not known.
    pub file: String,
    /// 0 if not known.
    pub line: u32,
}

/// The functions at an address, the innermost first; none if nothing is known.
pub type Chain = Vec<Frame>;
