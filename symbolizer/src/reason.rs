//! Why an address has no name.

use std::borrow::Cow;
use std::io;

/// Why an address has no name, or an object cannot be used: one short phrase each.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// The object has no `.symtab`, and no exported symbol covers the address.
    #[error("stripped: no symbol table")]
    Stripped,
    /// There is a symbol table, and the address lies in none of its functions.
    #[error("no symbol covers it")]
    NoSymbol,
    /// The file does not start like an ELF object.
    #[error("the file is not an ELF object")]
    NotElf,
    /// An ELF object, but of a class or byte order this crate does not read.
    #[error("not a 64-bit little-endian ELF object")]
    OtherElf,
    /// Reading failed.
    #[error("the file could not be read: {0}")]
    Unreadable(String),
    /// A header or table points outside the file, or contradicts itself.
    #[error("the file is corrupt: {0}")]
    CorruptElf(Cow<'static, str>),
    /// The DWARF cannot be parsed where the answer should be.
    #[error("the file's debug information is corrupt")]
    CorruptDebugInfo,
    /// A section is larger than this crate is willing to hold.
    #[error("too large: {what} takes {bytes} bytes")]
    TooLarge {
        /// What is too large, usually a section's name.
        what: String,
        /// Its size.
        bytes: u64,
    },
    /// A separate debug file was found, but belongs to another build.
    #[error("the separate debug file {0} belongs to another build")]
    OtherBuild(String),
    /// The other file of debug information that was split was not found.
    #[error("the file {0}, which holds the debug information of a unit, was not found")]
    NoSplitFile(String),
    /// A jitdump begins or goes on like none.
    #[error("the jitdump is corrupt")]
    CorruptJitDump,
    /// Every address in the kernel's list is zero (`kptr_restrict`, or no privilege).
    #[error("the kernel hides its addresses")]
    KernelHidden,
    /// The kernel's list holds no function.
    #[error("the kernel's symbol list holds no function")]
    NoKernelSymbols,
}

impl Reason {
    pub(crate) const fn corrupt(what: &'static str) -> Self {
        Self::CorruptElf(Cow::Borrowed(what))
    }
}

impl From<io::Error> for Reason {
    fn from(error: io::Error) -> Self {
        Reason::Unreadable(error.to_string())
    }
}
