//! What is in the memory of a process: which libraries, with which functions, and the few pieces of code that a call needs.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use object::{Endianness, Object, ObjectSymbol, ReadCache, ReadRef};
use profiler_core::elf::{Allowance, Bounded};
use profiler_core::record::Mapped;

use super::error::GONE;
use super::safe::CodeRegion;
use crate::objects::open_mapped;
use crate::roots::Roots;
use crate::sys::maps::{Region, regions};

/// `syscall; ret`.
const CALL: &[u8] = &[0x0f, 0x05, 0xc3];
/// `mov $15, %rax; syscall`: where signal handlers return to.
const RESTORE: &[u8] = &[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
/// What is read of a file's tables (bytes): far more than programs of hundreds of MiB have, and what one states is not believed.
const MOST_READ: u64 = 256 << 20;
/// Code of a library beyond this is not looked through (bytes).
const MOST_CODE: u64 = 64 << 20;
const DELETED: &str = " (deleted)";

/// What a mapped file is to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MappedFileKind {
    Linker,
    CLibrary,
    Allocator,
    AllocatingProgram,
    Other,
}

/// Code that is mapped from a file.
struct Module {
    start: u64,
    end: u64,
    kind: MappedFileKind,
    /// Functions of the C library, by address: first, behind the last, name.
    functions: Vec<(u64, u64, String)>,
}

/// The code of a process.
pub(super) struct ProcessCode {
    modules: Vec<Module>,
    /// Enters the kernel, and returns.
    pub(super) call: u64,
    /// Ends a signal handler.
    pub(super) restore: u64,
    /// Loads a library.
    pub(super) load: u64,
    /// Where the distance of `errno` from the thread's own pointer is kept.
    pub(super) errno_slot: Option<u64>,
    /// Whether memory that is mapped could not be read: it is not the process' own any more.
    is_gone: bool,
}

/// A mapping of any kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Area {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) executable: bool,
    pub(super) offset: u64,
    pub(super) name: String,
}

impl Area {
    fn of(region: &Region<'_>) -> Self {
        let name = String::from_utf8_lossy(region.name).trim_end_matches(DELETED).to_owned();
        Self {
            start: region.start,
            end: region.end,
            executable: region.executable,
            offset: region.file_offset,
            name,
        }
    }

    /// The name without its folder.
    pub(super) fn file(&self) -> &str {
        self.name.rsplit('/').next().unwrap_or("")
    }
}

/// All mappings of a process.
pub(super) fn areas(pid: u32) -> std::io::Result<Vec<Area>> {
    let text = std::fs::read(format!("/proc/{pid}/maps"))?;
    Ok(regions(&text).map(|region| Area::of(&region)).collect())
}

fn is_linker(file: &str) -> bool {
    file.starts_with("ld-linux") || file.starts_with("ld-2.") || file.starts_with("ld.so")
}

fn is_c_library(file: &str) -> bool {
    ["libc.so.6", "libc-2.", "libpthread.so.0", "libpthread-2.", "libdl.so.2", "libdl-2."]
        .iter()
        .any(|name| file.starts_with(name))
}

/// Why nothing can be loaded into a program with these mappings; `None` where it can.
pub(super) fn refusal(areas: &[Area]) -> Option<&'static str> {
    let has = |is: fn(&str) -> bool| areas.iter().any(|area| is(area.file()));
    match () {
        () if has(|file| file.starts_with("libc.so.6") || file.starts_with("libc-2.")) => None,
        () if has(|file| file.starts_with("ld-musl") || file == "libc.so") => Some("uses musl and not glibc"),
        () if has(is_linker) => Some("has not loaded the C library yet, or never will"),
        () => Some("is linked statically"),
    }
}

impl ProcessCode {
    /// Reads what matters of a process' code.
    ///
    /// # Errors
    ///
    /// What is missing.
    pub(super) fn read(pid: u32, memory: &File, mapped: &[Mapped]) -> Result<Self, &'static str> {
        let roots = Roots::default();
        let view = roots.of(pid);
        let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        let mut code =
            Self { modules: Vec::new(), call: 0, restore: 0, load: 0, errno_slot: None, is_gone: false };
        for mapped in mapped.iter().filter(|mapped| mapped.path.starts_with('/')) {
            let path = Path::new(mapped.path.trim_end_matches(DELETED));
            let file = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            let opened = open_mapped(mapped, view, &roots).ok().map(ReadCache::new);
            let module = match &opened {
                Some(data) => code.enter(mapped, &file, data, path == program, memory),
                None => Module::new(mapped, kind_by_name(&file)),
            };
            code.modules.push(module);
        }
        match () {
            () if code.is_gone => Err(GONE),
            () if code.load == 0 => Err("has a C library that loads nothing (`dlopen` was not found)"),
            () if code.call == 0 || code.restore == 0 => {
                Err("has a C library that is built in an unknown way")
            }
            () => Ok(code),
        }
    }

    fn enter<'a, R: ReadRef<'a>>(
        &mut self,
        mapped: &Mapped,
        name: &str,
        data: R,
        is_program: bool,
        memory: &File,
    ) -> Module {
        let by_name = kind_by_name(name);
        let allowance = Allowance::of(MOST_READ);
        // What was not read may allocate.
        let kind_unread = || match by_name {
            MappedFileKind::Other if allowance.is_exceeded() => MappedFileKind::Allocator,
            kind => kind,
        };
        let Ok(elf) = ElfFile64::<Endianness, _>::parse(Bounded::new(data, &allowance)) else {
            return Module::new(mapped, kind_unread());
        };
        let symbols = || elf.dynamic_symbols().filter(|symbol| symbol.is_definition());
        if by_name != MappedFileKind::CLibrary {
            let allocates = symbols().any(|symbol| symbol.name_bytes() == Ok(b"malloc"));
            let kind = match by_name {
                MappedFileKind::Other if allocates && is_program => MappedFileKind::AllocatingProgram,
                MappedFileKind::Other if allocates => MappedFileKind::Allocator,
                _ => kind_unread(),
            };
            return Module::new(mapped, kind);
        }
        let mut module = Module::new(mapped, MappedFileKind::CLibrary);
        let Some(bias) = bias(&elf, mapped) else { return module };
        let functions = symbols().filter(|symbol| symbol.kind() == object::SymbolKind::Text);
        for symbol in functions {
            let start = symbol.address().wrapping_add(bias);
            let name = symbol.name().unwrap_or("").to_owned();
            match name.as_str() {
                "dlopen" => self.load = start,
                "__libc_dlopen_mode" if self.load == 0 => self.load = start,
                "__errno_location" if self.errno_slot.is_none() => {
                    self.errno_slot = errno_slot(memory, start)
                }
                _ => {}
            }
            module.functions.push((start, start.saturating_add(symbol.size()), name));
        }
        module.functions.sort_unstable();
        let length = mapped.len.min(MOST_CODE) as usize;
        let mut text = vec![0; length];
        self.is_gone |= memory.read_exact_at(&mut text, mapped.start).is_err();
        if !self.is_gone {
            let find = |bytes: &[u8]| text.windows(bytes.len()).position(|window| window == bytes);
            if let (0, Some(restore), Some(call)) = (self.restore, find(RESTORE), find(CALL)) {
                (self.restore, self.call) = (mapped.start + restore as u64, mapped.start + call as u64);
            }
        }
        module
    }

    /// Behind the instruction that ends a signal handler.
    pub(super) fn after_restore(&self) -> u64 {
        self.restore + RESTORE.len() as u64
    }

    /// Where an address is.
    pub(super) fn place(&self, address: u64) -> CodeRegion<'_> {
        if (self.restore..=self.after_restore()).contains(&address) {
            return CodeRegion::Handler;
        }
        let module = self.modules.iter().find(|module| (module.start..module.end).contains(&address));
        match module.map(|module| module.kind) {
            None | Some(MappedFileKind::Other) => CodeRegion::Program,
            Some(MappedFileKind::Linker) => CodeRegion::Linker,
            Some(MappedFileKind::Allocator) => CodeRegion::Allocator,
            Some(MappedFileKind::AllocatingProgram) => CodeRegion::AllocatingProgram,
            Some(MappedFileKind::CLibrary) => {
                CodeRegion::CLibrary(module.map_or("", |module| module.function(address)))
            }
        }
    }
}

impl Module {
    fn new(mapped: &Mapped, kind: MappedFileKind) -> Self {
        let end = mapped.start.saturating_add(mapped.len);
        Self { start: mapped.start, end, kind, functions: Vec::new() }
    }

    /// The function at an address. Of several names for one, the last has no underscores before it.
    fn function(&self, address: u64) -> &str {
        let after = self.functions.partition_point(|(start, ..)| *start <= address);
        let holding =
            self.functions[..after].iter().rev().take_while(|(start, ..)| address - *start < 1 << 16);
        let mut holding = holding.filter(|(_, end, _)| address < *end);
        holding.next().map_or("", |(.., name)| name)
    }
}

fn kind_by_name(file: &str) -> MappedFileKind {
    match () {
        () if is_linker(file) => MappedFileKind::Linker,
        () if is_c_library(file) => MappedFileKind::CLibrary,
        () => MappedFileKind::Other,
    }
}

/// What is added to the addresses in a file.
fn bias<'a, R: ReadRef<'a>>(elf: &ElfFile64<'a, Endianness, R>, mapped: &Mapped) -> Option<u64> {
    let endian = elf.endian();
    let mut segments = elf.elf_header().program_headers(endian, elf.data()).ok()?.iter();
    let segment = segments.find(|segment| {
        let (offset, size) = (segment.p_offset(endian), segment.p_filesz(endian));
        segment.p_type(endian) == object::elf::PT_LOAD
            && segment.p_flags(endian).contains(object::elf::PF_X)
            && (offset & !0xfff..offset.saturating_add(size)).contains(&mapped.file_offset)
    })?;
    let stated =
        segment.p_vaddr(endian).wrapping_add(mapped.file_offset).wrapping_sub(segment.p_offset(endian));
    Some(mapped.start.wrapping_sub(stated))
}

/// `mov slot(%rip), %rax; add %fs:0, %rax; ret`, as `__errno_location` is everywhere: where the slot is.
fn errno_slot(memory: &File, function: u64) -> Option<u64> {
    let mut code = [0; 24];
    memory.read_exact_at(&mut code, function).ok()?;
    let skipped = if code.starts_with(&[0xf3, 0x0f, 0x1e, 0xfa]) { 4 } else { 0 };
    let code = &code[skipped..];
    let rest: &[u8] = &[0x64, 0x48, 0x03, 0x04, 0x25, 0, 0, 0, 0, 0xc3];
    if !code.starts_with(&[0x48, 0x8b, 0x05]) || !code[7..].starts_with(rest) {
        return None;
    }
    let distance = i32::from_le_bytes(code[3..7].try_into().ok()?);
    Some((function + skipped as u64 + 7).wrapping_add_signed(i64::from(distance)))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io::{self, Read, Seek, SeekFrom, Write};

    use super::*;
    use crate::sys::procfs;

    fn area(name: &str) -> Area {
        Area { start: 0, end: 1, executable: true, offset: 0, name: name.to_owned() }
    }

    #[test]
    fn programs_without_the_c_library_are_refused() {
        assert_eq!(refusal(&[area("/lib/x86_64-linux-gnu/libc.so.6")]), None);
        assert_eq!(refusal(&[area("/lib/libc-2.28.so")]), None);
        assert_eq!(refusal(&[area("/lib/ld-musl-x86_64.so.1")]), Some("uses musl and not glibc"));
        assert_eq!(refusal(&[area("/usr/lib/x86_64-linux-musl/libc.so")]), Some("uses musl and not glibc"));
        assert_eq!(refusal(&[area("/bin/busybox"), area("[vdso]")]), Some("is linked statically"));
        assert!(refusal(&[area("/bin/x"), area("/lib64/ld-linux-x86-64.so.2")]).is_some());
    }

    /// Memory that was opened before a process became another program has nothing of it.
    #[test]
    fn a_process_that_has_become_another_program_is_not_taken_for_a_strange_library() {
        let (pid, memory) = (std::process::id(), File::open("/dev/null").unwrap());
        let read = ProcessCode::read(pid, &memory, &procfs::executable_maps(pid).unwrap());
        assert_eq!(read.err(), Some(GONE));
    }

    /// A file that counts what is read of it.
    struct CountedFile<'a>(File, &'a Cell<u64>);

    impl Read for CountedFile<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let read = self.0.read(into)?;
            self.1.set(self.1.get() + read as u64);
            Ok(read)
        }
    }

    impl Seek for CountedFile<'_> {
        fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
            self.0.seek(to)
        }
    }

    /// An ELF file, mostly a hole, with a table of dynamic symbols of this length.
    fn with_symbols(bytes: u64) -> File {
        let section = |kind: u32, offset: u64, size: u64, link: u32, entry: u64| {
            let words = [0, 0, offset, size].map(u64::to_le_bytes).concat();
            let ends = [[link.to_le_bytes(), 0_u32.to_le_bytes()].concat(), entry.to_le_bytes().to_vec()];
            [&[0; 4], &kind.to_le_bytes()[..], &words, &ends[0], &[0; 8], &ends[1]].concat()
        };
        let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
        elf.resize(16, 0);
        elf.extend([3_u16, 62].map(u16::to_le_bytes).concat());
        elf.extend(1_u32.to_le_bytes());
        elf.extend([0_u64, 0, 64].map(u64::to_le_bytes).concat());
        elf.extend([0; 4]);
        elf.extend([64_u16, 56, 0, 64, 3, 2].map(u16::to_le_bytes).concat());
        elf.extend(section(0, 0, 0, 0, 0));
        elf.extend(section(object::elf::SHT_DYNSYM.0, 4096, bytes, 2, 24));
        elf.extend(section(object::elf::SHT_STRTAB.0, 4096 + bytes, 16, 0, 0));
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&elf).unwrap();
        file.set_len(8192 + bytes).unwrap();
        file
    }

    #[test]
    fn of_tables_of_any_length_a_bounded_part_is_read_and_what_is_unread_may_allocate() {
        let memory = File::open("/dev/null").unwrap();
        let file = profiler_core::record::FileId { major: 0, minor: 0, inode: 0, generation: 0 };
        let mapped = Mapped { pid: 1, start: 4096, len: 4096, file_offset: 0, file, path: String::new() };
        let kind = |bytes: u64| {
            let read = Cell::new(0);
            let data = ReadCache::new(CountedFile(with_symbols(bytes), &read));
            let mut code = ProcessCode {
                modules: Vec::new(),
                call: 0,
                restore: 0,
                load: 0,
                errno_slot: None,
                is_gone: false,
            };
            let module = code.enter(&mapped, "libx.so", &data, false, &memory);
            assert!(read.get() <= MOST_READ, "{} bytes", read.get());
            (module.kind, read.get() > bytes)
        };
        assert_eq!(kind(24 << 10), (MappedFileKind::Other, true));
        assert_eq!(kind(1 << 30), (MappedFileKind::Allocator, false));
    }

    /// Our own C library has what is looked for, where it says it is.
    #[test]
    fn the_code_that_a_call_needs_is_found() {
        let pid = std::process::id();
        let memory = File::open("/proc/self/mem").unwrap();
        let code = ProcessCode::read(pid, &memory, &procfs::executable_maps(pid).unwrap()).unwrap();
        let at = |address: u64, length: usize| {
            let mut bytes = vec![0; length];
            memory.read_exact_at(&mut bytes, address).unwrap();
            bytes
        };
        assert_eq!((at(code.call, 3), at(code.restore, 9)), (CALL.to_vec(), RESTORE.to_vec()));
        assert_eq!(code.load, libc::dlopen as *const () as u64);
        assert_eq!(code.place(libc::epoll_wait as *const () as u64 + 1), CodeRegion::CLibrary("epoll_wait"));
        assert_eq!(code.place(code.restore), CodeRegion::Handler);
        assert_eq!(code.place(errno_slot as *const () as u64), CodeRegion::Program);
        assert!(code.errno_slot.is_some());
    }
}
