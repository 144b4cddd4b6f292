//! A profile as a file of the store, and back: nothing that was changed gets through.

use std::cell::RefCell;
use std::io;

use flate2::{Compress, Compression, FlushCompress, Status};
use profiler_core::profile::SymbolizedProfile;

use super::name::{Level, Name};
use super::stamp::Stamp;
use crate::formats::pprof;

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
pub enum Damage {
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

/// Packs a profile for the store.
///
/// # Errors
///
/// If the stamp is too long for a header.
pub(crate) fn seal(stamp: &Stamp, profile: &SymbolizedProfile) -> io::Result<Sealed> {
    if is_short(stamp) {
        SHORT.with_borrow_mut(|short| sealed(stamp, profile, short))
    } else {
        sealed(stamp, profile, &mut Compress::new(Compression::default(), false))
    }
}

/// The same for a file that is gone in seconds, as quickly as possible: it is as large as what is in it.
///
/// # Errors
///
/// If the stamp is too long for a header.
pub(crate) fn seal_for_now(stamp: &Stamp, profile: &SymbolizedProfile) -> io::Result<Sealed> {
    UNPACKED.with_borrow_mut(|unpacked| sealed(stamp, profile, unpacked))
}

fn sealed(stamp: &Stamp, profile: &SymbolizedProfile, compress: &mut Compress) -> io::Result<Sealed> {
    let extra = stamp.to_extra().ok_or_else(|| io::Error::other("its time is in too many pieces"))?;
    let bytes = packed(&extra, &pprof::encode(profile), compress)?;
    let mut name = Name::of(stamp);
    name.crc = name.checksum(&bytes);
    Ok(Sealed { name, bytes })
}

/// A short window is there for minutes, and written by the thousand; what is longer may stay as it is for a day, and is worth more
/// effort.
fn is_short(stamp: &Stamp) -> bool {
    const SHORT_NS: u64 = 600_000_000_000;
    stamp.level == Level::Window && stamp.time_ranges.length_ns() < SHORT_NS
}

thread_local! {
    /// To begin with another for each window takes four times as long as to pack one.
    static SHORT: RefCell<Compress> = RefCell::new(Compress::new(Compression::fast(), false));
    static UNPACKED: RefCell<Compress> = RefCell::new(Compress::new(Compression::none(), false));
}

/// A gzip file (RFC 1952) with one extra field, of no more than 65,535 bytes.
fn packed(extra: &[u8], bytes: &[u8], compress: &mut Compress) -> io::Result<Vec<u8>> {
    const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 4, 0, 0, 0, 0, 0, 255]; // deflate, an extra field, no time, of no known system
    compress.reset();
    let mut file = Vec::with_capacity(HEADER.len() + extra.len() + bytes.len() / 2 + 64);
    file.extend(HEADER);
    file.extend((extra.len() as u16).to_le_bytes());
    file.extend(extra);
    loop {
        let rest = bytes.get(compress.total_in() as usize..).unwrap_or_default();
        let status = compress.compress_vec(rest, &mut file, FlushCompress::Finish)?;
        if status == Status::StreamEnd {
            break;
        }
        file.reserve(bytes.len() / 4 + 64);
    }
    file.extend(crc32fast::hash(bytes).to_le_bytes());
    file.extend((bytes.len() as u32).to_le_bytes());
    Ok(file)
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

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::read::GzDecoder;

    use super::*;

    #[test]
    fn what_is_packed_one_after_the_other_is_read_by_others() {
        let mut compress = Compress::new(Compression::fast(), false);
        let mut noise = 1_u64;
        for length in [0, 1, 3_000, 1_000_000, 7] {
            let bytes: Vec<u8> = std::iter::repeat_with(|| {
                noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (noise >> 56) as u8
            })
            .take(length)
            .collect();
            let file = packed(b"XX\x01\0y", &bytes, &mut compress).unwrap();
            let mut decoder = GzDecoder::new(file.as_slice());
            assert_eq!(decoder.header().unwrap().extra(), Some(&b"XX\x01\0y"[..]));
            let mut read = Vec::new();
            decoder.read_to_end(&mut read).unwrap();
            assert!(read == bytes, "{length}");
            assert!(file.len() < length + length / 8 + 64, "{length}: {}", file.len());
        }
    }
}
