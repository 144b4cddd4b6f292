//! The contents of a file, identified by a hash of every part of it; bytes that are read from it are hashed
//! again.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ring::digest::{SHA256, digest};
use symbolizer::ReadAt;

/// What is hashed at a time (bytes): whoever wants less reads so much.
const PART: u64 = 32 << 10;
/// Longer files are not hashed: it would take longer than to read their names (bytes).
const LONGEST: u64 = 64 << 20;

type Hash = [u8; 32];

/// The same for equal files, and for no others: the length, and a hash of the hashes.
pub(crate) type ContentKey = (u64, Hash);

/// What a file held when it was read.
#[derive(Debug)]
pub(crate) struct Print {
    len: u64,
    parts: Vec<Hash>,
    whole: Hash,
}

impl Print {
    /// Reads all of a file.
    ///
    /// # Errors
    ///
    /// It cannot be read, or is too long for that.
    pub(crate) fn of(bytes: &dyn ReadAt) -> io::Result<Self> {
        let len = bytes.len()?;
        if len > LONGEST {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let part = |start: u64| -> io::Result<Hash> {
            Ok(hash(&bytes.read_at(start, PART.min(len - start) as usize)?))
        };
        let parts: Vec<Hash> = (0..len).step_by(PART as usize).map(part).collect::<io::Result<_>>()?;
        Ok(Self { len, whole: hash(parts.as_flattened()), parts })
    }

    /// Its length, and the hashes of its parts one after another.
    pub(crate) fn parts(&self) -> (u64, Vec<u8>) {
        (self.len, self.parts.as_flattened().to_vec())
    }

    /// The same again.
    pub(crate) fn of_parts(len: u64, parts: &[u8]) -> Self {
        let (parts, _) = parts.as_chunks::<{ size_of::<Hash>() }>();
        Self { len, whole: hash(parts.as_flattened()), parts: parts.to_vec() }
    }

    /// What tells equal files from others.
    pub(crate) fn key(&self) -> ContentKey {
        (self.len, self.whole)
    }
}

fn hash(bytes: &[u8]) -> Hash {
    let mut hash = Hash::default();
    hash.copy_from_slice(digest(&SHA256, bytes).as_ref());
    hash
}

/// A file of which nothing is believed but what has its hash: no time of a file tells what is written into it through a
/// mapping.
pub(crate) struct ProvenFile<B> {
    bytes: B,
    print: Arc<Print>,
    proof: Proof,
}

/// Whether bytes were read that are not what they were. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Proof(Arc<AtomicBool>);

impl Proof {
    /// Whether all that was read was what it was.
    pub(crate) fn holds(&self) -> bool {
        !self.0.load(Ordering::Relaxed)
    }

    /// Something else was read.
    pub(crate) fn refute(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl<B: ReadAt> ProvenFile<B> {
    /// `proof` tells, when the bytes were read, whether they were those.
    pub(crate) fn new(bytes: B, print: Arc<Print>, proof: Proof) -> Self {
        Self { bytes, print, proof }
    }

    fn read_proven(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let end = offset.checked_add(len as u64).filter(|&end| end <= self.print.len);
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        let start = offset - offset % PART;
        let stop = end.next_multiple_of(PART).min(self.print.len);
        let mut bytes = self.bytes.read_at(start, (stop - start) as usize)?;
        let mut hashes = self.print.parts.iter().skip((start / PART) as usize);
        if !bytes.chunks(PART as usize).all(|part| hashes.next() == Some(&hash(part))) {
            return Err(io::Error::other("the file was written into"));
        }
        bytes.truncate((end - start) as usize);
        bytes.drain(..(offset - start) as usize);
        Ok(bytes)
    }
}

impl<B: ReadAt> ReadAt for ProvenFile<B> {
    fn len(&self) -> io::Result<u64> {
        Ok(self.print.len)
    }

    fn read_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        if len == 0 {
            return Ok(Vec::new());
        }
        let is_inside = offset.checked_add(len as u64).is_some_and(|end| end <= self.print.len);
        let read = self.read_proven(offset, len);
        if is_inside && read.is_err() {
            self.proof.refute(); // or it is gone, which is as bad for others
        }
        read
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// A file that anybody may write into.
    struct Open(Mutex<Vec<u8>>);

    impl ReadAt for Open {
        fn len(&self) -> io::Result<u64> {
            Ok(self.0.lock().unwrap().len() as u64)
        }

        fn read_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
            let bytes = self.0.lock().unwrap();
            let range = offset as usize..offset as usize + len;
            bytes.get(range).map(<[u8]>::to_vec).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
        }
    }

    fn bytes(len: u64) -> Vec<u8> {
        (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
    }

    #[test]
    fn every_range_of_an_unchanged_file_is_what_it_is() {
        for len in [1, PART - 1, PART, PART + 1, 3 * PART, 3 * PART + 5] {
            let whole = bytes(len);
            let file = Open(Mutex::new(whole.clone()));
            let print = Arc::new(Print::of(&file).unwrap());
            let proven = ProvenFile::new(file, print, Proof::default());
            let edges = [0, 1, PART - 1, PART, PART + 1, 2 * PART, len / 2, len - 1, len];
            for (start, end) in edges.iter().flat_map(|&start| edges.map(|end| (start, end))) {
                if start <= end && end <= len {
                    let read = proven.read_at(start, (end - start) as usize).unwrap();
                    assert!(read == whole[start as usize..end as usize], "{start}..{end} of {len}");
                }
            }
            assert!(proven.read_at(len, 1).is_err() && proven.read_at(u64::MAX, 2).is_err());
            assert!(proven.proof.holds(), "who asks for too much learns nothing of the file");
        }
    }

    #[test]
    fn what_was_written_into_is_not_read_and_the_rest_is() {
        let len = 4 * PART;
        let file = Open(Mutex::new(bytes(len)));
        let print = Arc::new(Print::of(&file).unwrap());
        let proven = ProvenFile::new(file, print, Proof::default());
        proven.bytes.0.lock().unwrap()[(2 * PART) as usize] ^= 1;
        assert!(proven.read_at(0, (2 * PART) as usize).is_ok());
        assert!(proven.proof.holds());
        assert!(proven.read_at(3 * PART - 1, 1).is_err());
        assert!(!proven.proof.holds());
    }

    #[test]
    fn a_file_that_was_cut_short_is_not_what_it_was() {
        let file = Open(Mutex::new(bytes(2 * PART)));
        let proven = ProvenFile::new(
            file,
            Arc::new(Print::of(&Open(Mutex::new(bytes(2 * PART)))).unwrap()),
            Proof::default(),
        );
        proven.bytes.0.lock().unwrap().truncate(100);
        assert!(proven.read_at(50, 10).is_err());
        assert!(!proven.proof.holds());
    }

    #[test]
    fn hashes_that_were_passed_on_tell_the_same() {
        for len in [1, PART, 3 * PART + 5] {
            let print = Print::of(&Open(Mutex::new(bytes(len)))).unwrap();
            let (len, parts) = print.parts();
            let again = Print::of_parts(len, &parts);
            assert_eq!((again.key(), &again.parts), (print.key(), &print.parts));
        }
        let short = Print::of_parts(PART, &[7; 31]);
        assert!(
            ProvenFile::new(Open(Mutex::new(bytes(PART))), Arc::new(short), Proof::default())
                .read_at(0, 1)
                .is_err()
        );
    }

    #[test]
    fn files_are_equal_if_all_of_their_bytes_are() {
        let key = |bytes: Vec<u8>| Print::of(&Open(Mutex::new(bytes))).unwrap().key();
        let len = 3 * PART + 7;
        assert_eq!(key(bytes(len)), key(bytes(len)));
        for at in [0, PART, len - 1] {
            let mut other = bytes(len);
            other[at as usize] ^= 0x80;
            assert_ne!(key(bytes(len)), key(other));
        }
        assert_ne!(key(bytes(len)), key(bytes(len - 1)));
    }
}
