//! Objects whose symbols were read, wherever that was.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use symbolizer::{Limits, NamedFrame, Object, Reason, Symbolized};

use super::SymbolProcess;
use super::message::{MOST_ADDRESSES, WireFacts};
use super::print::{Print, Proof};

/// Functions, inlined ones included, at the addresses of one object that are asked for together: an eighth of a GiB.
const MOST_FRAMES_HELD: usize = 2 << 20;

/// What an object says of itself, and what it takes of memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ObjectFacts {
    /// Its build id, in hexadecimal.
    pub(crate) build_id: Option<String>,
    /// The name of the separate debug file that it asks for.
    pub(crate) debug_link: Option<String>,
    /// Whether there is debug information.
    pub(crate) has_debug_info: bool,
    /// Why some names may be missing.
    pub(crate) warnings: Vec<Reason>,
    /// What it takes as long as it stays (bytes).
    pub(crate) held_bytes: u64,
    /// What it took at most (bytes).
    pub(crate) memory_bytes: u64,
    /// What reading a unit takes at most, beside what is held (bytes).
    pub(crate) unit_bytes: u64,
}

impl ObjectFacts {
    pub(crate) fn of(object: &Object<'_>) -> Self {
        Self {
            build_id: object.build_id().map(str::to_owned),
            debug_link: object.debug_link().map(str::to_owned),
            has_debug_info: object.has_debug_info(),
            warnings: object.warnings().to_vec(),
            held_bytes: object.held_bytes(),
            memory_bytes: object.memory_bytes(),
            unit_bytes: object.unit_bytes(),
        }
    }
}

/// Opens the separate debug files of an object, as the process sees them that mapped it.
pub(crate) trait OpenDebugFiles: Send + Sync {
    /// A regular file of this path.
    fn open(&self, path: &Path) -> Option<File>;
    /// The debug file of this build id, from a server.
    fn fetch(&self, build_id: &str) -> Option<File>;
}

/// An object whose symbols were read.
pub(crate) enum ReadObject {
    /// In this process.
    Here(Box<Here>),
    /// In the symbolizer process.
    There(Box<There>),
}

/// One that was read in this process.
pub(crate) struct Here {
    object: Object<'static>,
    facts: ObjectFacts,
}

/// One that was read in the symbolizer process.
pub(crate) struct There {
    pub(super) process: SymbolProcess,
    /// Of the process, and of the object in it.
    pub(super) generation: u64,
    pub(super) number: u64,
    pub(super) facts: ObjectFacts,
    pub(super) is_partial: bool,
    pub(super) file: FileName,
    /// Length of the file, and of its separate debug files.
    pub(super) bytes: u64,
    pub(super) files: Arc<dyn OpenDebugFiles>,
    pub(super) proof: Proof,
}

/// What a file is called.
#[derive(Clone)]
pub(super) struct FileName {
    pub(super) path: String,
    /// What tells it from others.
    pub(super) identity: String,
}

/// The process that read an object has ended: the object can be read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gone;

impl From<Object<'static>> for ReadObject {
    fn from(object: Object<'static>) -> Self {
        Self::Here(Box::new(Here { facts: ObjectFacts::of(&object), object }))
    }
}

impl ReadObject {
    /// What it says of itself.
    pub(crate) fn facts(&self) -> &ObjectFacts {
        match self {
            Self::Here(here) => &here.facts,
            Self::There(there) => &there.facts,
        }
    }

    /// Whether more was left unread than it says, since reading that has ended a process.
    pub(crate) fn is_partial(&self) -> bool {
        matches!(self, Self::There(there) if there.is_partial)
    }

    /// Whether it can be asked.
    pub(crate) fn is_there(&self) -> bool {
        match self {
            Self::Here(_) => true,
            Self::There(there) => there.process.lives(there.generation),
        }
    }

    /// The functions at each of these addresses, in their order.
    pub(crate) fn look_up(&mut self, addresses: &[u64]) -> Result<Vec<Symbolized>, Gone> {
        match self {
            Self::Here(here) => {
                let found = here.object.symbolize_more(addresses);
                here.facts = ObjectFacts::of(&here.object);
                Ok(found)
            }
            Self::There(there) => there.look_up(addresses),
        }
    }
}

impl There {
    /// Some thousands at a time, those of one unit together.
    pub(super) fn look_up(&mut self, addresses: &[u64]) -> Result<Vec<Symbolized>, Gone> {
        let mut order: Vec<usize> = (0..addresses.len()).collect();
        order.sort_unstable_by_key(|&at| addresses[at]);
        let mut all = vec![Symbolized::Unknown(Reason::NoSymbol); addresses.len()];
        let mut left = MOST_FRAMES_HELD;
        for part in order.chunks(MOST_ADDRESSES) {
            let asked: Vec<u64> = part.iter().map(|&at| addresses[at]).collect();
            let found = self.process.clone().look_up(self, asked)?;
            part.iter().zip(found).for_each(|(&at, found)| all[at] = within(found, &mut left));
        }
        Ok(all)
    }

    /// What the process says of it now.
    pub(super) fn note(&mut self, facts: Option<WireFacts>, most_bytes: u64) -> Option<()> {
        let facts = facts?;
        if facts.is_another {
            self.proof.refute();
        }
        self.facts = facts.checked(most_bytes).ok()?;
        Some(())
    }
}

impl Drop for There {
    fn drop(&mut self) {
        self.process.forget(self.generation, self.number);
    }
}

/// An object that is to be read.
pub(crate) struct WantedObject<'a> {
    /// Its bytes.
    pub(crate) file: &'a File,
    /// Where it lies in its own view of the file system.
    pub(crate) path: &'a str,
    /// What tells the file from others.
    pub(crate) identity: Option<String>,
    /// What it may take.
    pub(crate) limits: Limits,
    /// What it has to hold, where its names are for others too, and who learns that it holds something else.
    pub(crate) print: Option<(&'a Print, Proof)>,
    /// Its separate debug files.
    pub(crate) files: Arc<dyn OpenDebugFiles>,
}

/// Why an object was not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ObjectNotRead {
    /// It cannot be.
    Reason(Reason),
    /// Reading it has ended the process; it is read again, or less of it.
    Gone,
    /// Reading any of it has ended the process; how.
    GivenUp(String),
    /// There is no process at this moment; why.
    NoProcess(String),
    /// There can be none: read its symbol table here.
    Here,
}

/// What was found at an address, if there is room `left` for its frames.
fn within(found: Symbolized, left: &mut usize) -> Symbolized {
    let Symbolized::Known(frames) = &found else { return found };
    match left.checked_sub(frames.len()) {
        Some(rest) => {
            *left = rest;
            found
        }
        None => {
            let bytes = (MOST_FRAMES_HELD * size_of::<NamedFrame>()) as u64;
            Symbolized::Unknown(Reason::TooLarge { what: "the list of inlined functions".to_owned(), bytes })
        }
    }
}
