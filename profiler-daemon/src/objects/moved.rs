//! Code that a program has moved to memory without a file, at its address: programs do so to have it in large pages.
//!
//! The rest of the file stays mapped around it, so the file has the code's names and unwind tables.

use profiler_core::record::Mapped;

use super::ObjectStore;

impl ObjectStore {
    /// The mapping that code without a file has taken the place of. `around` are the mappings of files that lie next to it. None,
    /// where none of these files has code there.
    pub(crate) fn origin(&mut self, code: &Mapped, around: &[Mapped]) -> Option<Mapped> {
        around.iter().find_map(|neighbour| {
            let parts: Vec<&Mapped> = around.iter().filter(|other| other.file == neighbour.file).collect();
            let image = self.load(neighbour).image?;
            let places: Vec<_> = parts.iter().map(|part| (part.start, part.file_offset, part.len)).collect();
            let file_offset = image.offset_of_code(code.start, &places)?;
            let (file, path) = (neighbour.file, neighbour.path.clone());
            Some(Mapped { file_offset, file, path, ..code.clone() })
        })
    }
}
