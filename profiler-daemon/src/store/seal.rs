//! A profile as a file of the store, and back: nothing that was changed gets through.

use std::io::{self, Write};

use flate2::{Compression, GzBuilder};
use profiler_core::profile::SymbolizedProfile;

use super::name::{Level, Name};
use super::stamp::Stamp;
use crate::export::pprof;

/// A file ready to be written.
#[derive(Debug)]
pub(crate) struct Sealed {
    /// Its name.
    pub(crate) name: Name,
    /// What is in it.
    pub(crate) bytes: Vec<u8>,
}

/// Why a file is not what was written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Damage {
    /// Its name is none of ours.
    #[error("its name was changed")]
    Name,
    /// Its header does not tell what it holds, or not what the name says.
    #[error("its beginning is damaged")]
    Stamp,
    /// Not the bytes that were written.
    #[error("its checksum is wrong")]
    Checksum,
    /// The bytes that were written, and no profile.
    #[error("it holds no profile")]
    Profile(#[from] pprof::ReadError),
}

/// Packs a profile.
///
/// # Errors
///
/// If the stamp is too long for a header.
pub(crate) fn seal(stamp: &Stamp, profile: &SymbolizedProfile) -> io::Result<Sealed> {
    let extra = stamp.to_extra().ok_or_else(|| io::Error::other("its time is in too many pieces"))?;
    let mut encoder = GzBuilder::new().extra(extra).write(Vec::new(), effort(stamp));
    encoder.write_all(&pprof::encode(profile))?;
    let bytes = encoder.finish()?;
    let mut name = Name::of(stamp);
    name.crc = name.checksum(&bytes);
    Ok(Sealed { name, bytes })
}

/// A short window is there for minutes, and written by the thousand; what is longer may stay as it is for a day.
fn effort(stamp: &Stamp) -> Compression {
    const SHORT_NS: u64 = 600_000_000_000;
    let is_short = stamp.level == Level::Window && stamp.stretches.length_ns() < SHORT_NS;
    if is_short { Compression::fast() } else { Compression::default() }
}

/// Unpacks what a file of this name holds.
///
/// # Errors
///
/// If a single bit of it, or of the name, is not as it was written.
pub(crate) fn open(name: &Name, bytes: &[u8]) -> Result<SymbolizedProfile, Damage> {
    if name.checksum(bytes) != name.crc {
        return Err(Damage::Checksum);
    }
    Ok(pprof::read_cpu_time(bytes)?)
}

/// What a file of this name says it holds; the rest of it is not looked at.
///
/// # Errors
///
/// If that cannot be read or contradicts the name.
pub(crate) fn stamp(name: &Name, file: impl io::Read) -> Result<Stamp, Damage> {
    Stamp::read(file).filter(|stamp| name.fits(stamp)).ok_or(Damage::Stamp)
}
