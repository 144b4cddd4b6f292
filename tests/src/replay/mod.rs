//! Replays recorded rings: `tests/fixtures/rings`, written by the bin `record_rings`.
//!
//! A recording is what the kernel wrote, byte by byte, and the objects that were mapped, cut down to their unwind tables
//! and symbols. Replaying needs neither privilege nor perf events.

mod cut;
mod folded;
mod pipeline;

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use profiler_core::elf::ElfImage;
use profiler_core::process::LoadedObject;
use profiler_core::record::Mapped;
use profiler_core::stack::ObjectId;
use profiler_core::unwind::method::Method;
use serde::{Deserialize, Serialize};

pub use cut::cut_down;
pub use folded::folded;
pub use pipeline::{Counts, Given, RecordedRing, Replayed, replay};

use crate::programs::workspace_folder;

/// What a recording says about itself, in its first line.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Header {
    /// Whether samples hold a copy of the stack.
    pub copies_stack: bool,
    /// `fp` or `dwarf`; anything else leaves the choice to the profiler.
    pub method: String,
    /// The process that executed the command.
    pub pid: u32,
    /// Bytes of each ring.
    pub rings_bytes: Vec<usize>,
    /// The objects that were mapped: path, and file in the folder of objects.
    pub objects: Vec<(String, String)>,
}

/// A recording and the objects it needs.
pub struct Recording {
    /// What it says about itself.
    pub header: Header,
    /// The rings.
    pub rings: Vec<Vec<u8>>,
    objects: Vec<LoadedFile>,
}

/// A file that was mapped.
pub struct LoadedFile {
    /// Its path.
    pub path: String,
    /// Its reduced content.
    pub bytes: Vec<u8>,
    image: Option<Arc<ElfImage>>,
}

/// Where the recordings are.
pub fn folder() -> PathBuf {
    workspace_folder().join("tests/fixtures/rings")
}

/// The names of all recordings, in order.
pub fn names() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder()).context("there are no recordings")? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        names.extend(name.strip_suffix(".rings.gz").map(str::to_owned));
    }
    names.sort();
    Ok(names)
}

impl Recording {
    /// Reads a recording.
    pub fn read(name: &str) -> Result<Recording> {
        let bytes = unpack(&folder().join(format!("{name}.rings.gz")))?;
        let line = bytes.iter().position(|&byte| byte == b'\n').context("no header")?;
        let header: Header = serde_json::from_slice(&bytes[..line])?;
        let (mut rest, mut rings) = (&bytes[line + 1..], Vec::new());
        for &len in &header.rings_bytes {
            let (ring, behind) = rest.split_at_checked(len).context("a ring is cut")?;
            rings.push(ring.to_vec());
            rest = behind;
        }
        let read = |(path, file): &(String, String)| {
            let bytes = unpack(&folder().join("objects").join(file))?;
            let image = ElfImage::parse_bytes(&bytes).ok().map(Arc::new);
            Ok(LoadedFile { path: path.clone(), bytes, image })
        };
        let objects = header.objects.iter().map(read).collect::<Result<_>>()?;
        Ok(Recording { header, rings, objects })
    }

    /// Writes a recording whose objects are written already.
    pub fn write(name: &str, header: &Header, rings: &[Vec<u8>]) -> Result<()> {
        let mut bytes = serde_json::to_vec(header)?;
        bytes.push(b'\n');
        bytes.extend(rings.concat());
        pack(&folder().join(format!("{name}.rings.gz")), &bytes)
    }

    /// The parameters of a replay.
    pub fn given(&self) -> Given {
        let method = match self.header.method.as_str() {
            "fp" => Some(Method::Fp),
            "dwarf" => Some(Method::Dwarf),
            _ => None,
        };
        Given { copies_stack: self.header.copies_stack, method, pid: self.header.pid }
    }

    /// Replays these rings with the recording's objects; bodies are split after `seam` bytes.
    pub fn replay(&self, rings: &[Vec<u8>], seam: usize) -> Replayed {
        let rings = rings.iter().map(|bytes| RecordedRing::new(bytes, seam)).collect();
        replay(rings, self.given(), &mut |mapped| self.load(mapped))
    }

    /// The object with this id, if it is a file.
    pub fn object(&self, id: ObjectId) -> Option<&LoadedFile> {
        self.objects.get(id.0.checked_sub(ObjectId::FIRST_FILE)? as usize)
    }

    fn load(&self, mapped: &Mapped) -> LoadedObject {
        match self.objects.iter().position(|object| object.path == mapped.path) {
            Some(at) => LoadedObject {
                id: ObjectId(ObjectId::FIRST_FILE + at as u32),
                image: self.objects[at].image.clone(),
            },
            None => LoadedObject::UNKNOWN,
        }
    }
}

impl LoadedFile {
    /// Where the function that holds a stated address begins, or code that the unwind tables tell nothing of.
    pub fn place_start(&self, svma: u64) -> Option<u64> {
        Some(self.image.as_ref()?.place_start(svma))
    }

    /// The file's name without its folders.
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }
}

/// Compresses bytes into a file.
pub fn pack(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes)?;
    fs::write(path, encoder.finish()?).with_context(|| format!("cannot write {}", path.display()))
}

fn unpack(path: &Path) -> Result<Vec<u8>> {
    let packed = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut bytes = Vec::new();
    GzDecoder::new(packed.as_slice()).read_to_end(&mut bytes)?;
    if bytes.is_empty() {
        bail!("{} is empty", path.display());
    }
    Ok(bytes)
}
