//! A file that holds a profile.

use std::io::{Read, Write};
use std::ops::Range;
use std::path::Path;

use anyhow::{Error, Result, anyhow};
use flate2::Compression;
use flate2::write::GzEncoder;
use profile_files::pprof;
use profile_files::store::Stamp;
use profiler_core::merge::part_of;
use profiler_core::profile::SymbolizedProfile;

use crate::sys::root::{Link, open_regular};

/// A profile that can be sent.
pub(crate) struct PushSource {
    /// What is in it.
    pub(crate) profile: SymbolizedProfile,
    /// The same in pprof's format, compressed.
    pub(crate) pprof: Vec<u8>,
    /// What the store says of it, if it is one of its files.
    pub(crate) stamp: Option<Stamp>,
}

impl PushSource {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// If it cannot be read or holds no profile.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let shown = path.display();
        let cannot = |error| anyhow!("{shown} cannot be read ({error}); give a .pb.gz file that `-o` wrote");
        let mut bytes = Vec::new();
        // A pipe would be waited for.
        let file = open_regular(path, Link::Follow).map_err(cannot)?;
        file.take(pprof::MAX_BYTES + 1).read_to_end(&mut bytes).map_err(cannot)?;
        let profile = pprof::read(bytes.as_slice()).map_err(|error| {
            let advice = error.advice();
            anyhow!("{shown} is not sent: {:#}; {advice}", Error::from(error))
        })?;
        let stamp = Stamp::read(bytes.as_slice());
        Ok(Self { profile, pprof: compressed(bytes)?, stamp })
    }
}

impl PushSource {
    /// Some of the profile's stacks, and their file if `with_file`.
    ///
    /// # Errors
    ///
    /// If it cannot be compressed.
    pub(super) fn part(&self, stacks: Range<usize>, with_file: bool) -> std::io::Result<Self> {
        let profile = part_of(&self.profile, stacks);
        let pprof = if with_file { gzip(&pprof::encode(&profile))? } else { Vec::new() };
        Ok(Self { profile, pprof, stamp: self.stamp.clone() })
    }
}

/// Compressed by gzip, unless it is.
fn compressed(bytes: Vec<u8>) -> Result<Vec<u8>> {
    if bytes.starts_with(&[0x1f, 0x8b]) { Ok(bytes) } else { Ok(gzip(&bytes)?) }
}

/// Compresses a body.
pub(super) fn gzip(bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes)?;
    encoder.finish()
}
