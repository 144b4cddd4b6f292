//! The programs whose names are compared: those usually installed, and two that are built here.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use object::elf::{SHF_EXECINSTR, SHT_NOBITS};
use object::read::elf::{ElfFile64, FileHeader as _, SectionHeader as _};
use object::{Endianness, Object as _, ObjectSymbol as _, SymbolKind};

use super::compare::{Names, unversioned};
use crate::programs::source;

/// A program, or the kernel, and what is needed to ask about it.
#[derive(Default)]
pub struct Subject {
    /// Its file; none is the kernel's.
    pub path: PathBuf,
    /// The names of its symbols.
    pub names: Names,
    symbols: Vec<Symbol>,
    code: Vec<Code>,
}

/// What a symbol stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Code.
    Function,
    /// An object.
    Data,
    /// A label and the like.
    Other,
}

/// A symbol, as the table has it.
#[derive(Clone, Debug)]
pub struct Symbol {
    /// Its name without a version.
    pub name: String,
    address: u64,
    size: u64,
    /// What it stands for.
    pub kind: Kind,
}

/// A section of code.
struct Code {
    start: u64,
    size: u64,
    is_stubs: bool,
}

/// More bytes than any function of the kernel has: the longest have some tens of thousands.
const FUNCTION_BYTES: u64 = 256 << 10;
/// Size of the header of the table of stubs, which is that of a stub.
const TABLE_HEAD_BYTES: u64 = 16;

impl Subject {
    /// Reads a program's sections and symbols.
    pub fn read(path: &Path) -> Result<Self> {
        let path = path.canonicalize()?;
        let bytes = fs::read(&path)?;
        let elf = ElfFile64::<Endianness>::parse(&*bytes).with_context(|| path.display().to_string())?;
        let (endian, header) = (elf.endian(), elf.elf_header());
        let sections = header.sections(endian, &*bytes)?;
        let mut code = Vec::new();
        for section in sections.iter() {
            let is_code = section.sh_flags(endian).0 & SHF_EXECINSTR.0 != 0;
            if is_code && section.sh_type(endian) != SHT_NOBITS {
                let is_stubs = sections.section_name(endian, section)?.starts_with(b".plt");
                code.push(Code { start: section.sh_addr(endian), size: section.sh_size(endian), is_stubs });
            }
        }
        let mut subject = Self { path, code, ..Self::default() };
        subject.add_symbols(&elf);
        if let Some(debug) = debug_file(&elf) {
            let bytes = fs::read(debug)?;
            subject.add_symbols(&ElfFile64::<Endianness>::parse(&*bytes)?);
        }
        Ok(subject)
    }

    /// The kernel, by the text of `/proc/kallsyms`: what its own code has, from `_stext` to `_etext`.
    pub fn kernel(list: &str) -> Result<Self> {
        let mut kernel = Self::default();
        let (mut start, mut end) = (0, 0);
        for line in list.lines() {
            let mut words = line.split_whitespace();
            let (Some(address), Some(_), Some(name)) = (words.next(), words.next(), words.next()) else {
                continue;
            };
            let address = u64::from_str_radix(address, 16)?;
            kernel.add(name, address, 0, Kind::Other);
            match name {
                "_stext" => start = address,
                "_etext" => end = address,
                _ => {}
            }
        }
        ensure!(start != 0 && start < end, "the kernel hides its addresses; run as root");
        kernel.code.push(Code { start, size: end - start, is_stubs: false });
        Ok(kernel)
    }

    /// One with these symbols: names, addresses, sizes and kinds.
    #[cfg(test)]
    pub(super) fn of_symbols(symbols: &[(&str, u64, u64, Kind)]) -> Self {
        let mut subject = Self { path: PathBuf::from("/program"), ..Self::default() };
        symbols.iter().for_each(|&(name, address, size, kind)| subject.add(name, address, size, kind));
        subject
    }

    fn add_symbols(&mut self, elf: &ElfFile64<'_>) {
        for symbol in elf.symbols().chain(elf.dynamic_symbols()) {
            let kind = match symbol.kind() {
                SymbolKind::Text => Kind::Function,
                SymbolKind::Data => Kind::Data,
                _ => Kind::Other,
            };
            self.add(symbol.name().unwrap_or_default(), symbol.address(), symbol.size(), kind);
        }
    }

    fn add(&mut self, name: &str, address: u64, size: u64, kind: Kind) {
        self.names.add(name, address);
        self.symbols.push(Symbol { name: unversioned(name).to_owned(), address, size, kind });
    }

    /// Whether it is the kernel.
    pub fn is_kernel(&self) -> bool {
        self.path.as_os_str().is_empty()
    }

    /// The symbols whose extent holds an address.
    pub fn covering(&self, address: u64) -> impl Iterator<Item = &Symbol> {
        let holds = move |symbol: &&Symbol| {
            address.checked_sub(symbol.address).is_some_and(|offset| offset < symbol.size)
        };
        self.symbols.iter().filter(holds)
    }

    /// Whether what lies at an address is an object, not code: its symbol covers the address, or is the last one before
    /// it and has no size.
    pub fn is_data(&self, address: u64) -> bool {
        let is_covered = |kind| self.covering(address).any(|symbol| symbol.kind == kind);
        let last = self.symbols.iter().map(|symbol| symbol.address).filter(|&start| start <= address).max();
        let mut at_last = self.symbols.iter().filter(|symbol| Some(symbol.address) == last);
        let is_last = at_last.all(|symbol| symbol.kind == Kind::Data && symbol.size == 0) && last.is_some();
        is_covered(Kind::Data) || is_last && !is_covered(Kind::Function)
    }

    /// Whether an address is in a gap between symbols that is far larger than any function.
    pub fn is_in_gap(&self, address: u64) -> bool {
        let Some(code) = self.code.first() else { return false };
        let mut starts: Vec<u64> = self.symbols.iter().map(|symbol| symbol.address).collect();
        starts.retain(|start| (code.start..=code.start + code.size).contains(start));
        starts.sort_unstable();
        let extents = || starts.windows(2).map(|pair| (pair[0]..pair[1], pair[1] - pair[0]));
        let here = extents().find(|(range, _)| range.contains(&address)).map_or(0, |(_, extent)| extent);
        let longest = extents().map(|(_, extent)| extent).filter(|&extent| extent < FUNCTION_BYTES).max();
        longest.is_some_and(|longest| here > 10 * longest)
    }

    /// So many random addresses of its code.
    pub fn addresses(&self, count: usize, seed: u64) -> Vec<u64> {
        let mut random = fastrand::Rng::with_seed(seed);
        let total: u64 = self.code.iter().map(|code| code.size).sum();
        let pick = || {
            let mut at = random.u64(..total.max(1));
            for code in &self.code {
                if at < code.size {
                    return code.start + at;
                }
                at -= code.size;
            }
            0
        };
        std::iter::repeat_with(pick).take(count).collect()
    }

    /// Whether calls into libraries go through this address.
    pub fn is_stub(&self, address: u64) -> bool {
        let holds = |code: &Code| code.is_stubs && (code.start..code.start + code.size).contains(&address);
        self.code.iter().any(holds)
    }

    /// Whether it is the target of stubs that are not bound yet.
    pub fn is_table_head(&self, address: u64) -> bool {
        let first = self.code.iter().filter(|code| code.is_stubs).map(|code| code.start).min();
        first.is_some_and(|start| (start..start + TABLE_HEAD_BYTES).contains(&address))
    }
}

/// The separate debug file that a Debian package installs.
fn debug_file(elf: &ElfFile64<'_>) -> Option<PathBuf> {
    let id: String = elf.build_id().ok()??.iter().map(|byte| format!("{byte:02x}")).collect();
    let path = PathBuf::from(format!("/usr/lib/debug/.build-id/{}/{}.debug", &id[..2], &id[2..]));
    path.exists().then_some(path)
}

/// What is found on a machine: a name for the table, and where it may be; `*` stands for a part of a path.
pub const FOUND: [(&str, &[&str]); 8] = [
    ("libc", &["/lib/*-linux-gnu/libc.so.6"]),
    ("libstdc++", &["/usr/lib/*-linux-gnu/libstdc++.so.6"]),
    (
        "libpython3",
        &[
            "/root/.pyenv/versions/3.1*/lib/libpython3.1*.so.1.0",
            "/usr/lib/*-linux-gnu/libpython3.*.so.1.0",
            "/usr/bin/python3",
        ],
    ),
    ("node", &["/usr/bin/node"]),
    ("libcrypto", &["/usr/lib/*-linux-gnu/libcrypto.so.3"]),
    ("perf", &["/usr/bin/perf"]),
    ("git", &["/usr/local/bin/git", "/usr/bin/git"]),
    ("cc1plus", &["/usr/lib/gcc/*-linux-gnu/*/cc1plus", "/usr/libexec/gcc/*-linux-gnu/*/cc1plus"]),
];

/// The last file that fits one of the patterns, the first pattern first.
pub fn find(patterns: &[&str]) -> Option<PathBuf> {
    patterns.iter().find_map(|pattern| expand(Path::new("/"), pattern.trim_start_matches('/')))
}

fn expand(folder: &Path, pattern: &str) -> Option<PathBuf> {
    let (part, rest) = pattern.split_once('/').unwrap_or((pattern, ""));
    let mut fitting: Vec<PathBuf> = match part.split_once('*') {
        None => vec![folder.join(part)],
        Some((start, end)) => {
            let fits =
                |name: &str| name.len() >= part.len() - 1 && name.starts_with(start) && name.ends_with(end);
            let entries = fs::read_dir(folder).ok()?.flatten();
            let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
            names.filter(|name| fits(name)).map(|name| folder.join(name)).collect()
        }
    };
    fitting.retain(|path| path.exists());
    fitting.sort();
    fitting.into_iter().rev().find_map(|path| if rest.is_empty() { Some(path) } else { expand(&path, rest) })
}

/// How the programs of this repository are built: a name for the table, the source and the commands, in the folder of
/// the result, where `SOURCE` stands for the source.
pub const BUILT: [(&str, &str, &[&str]); 6] = [
    ("C++, -g", "symbols.cpp", &["g++ -O2 -g SOURCE -o program"]),
    (
        "C++, split",
        "symbols.cpp",
        &["g++ -O2 -g -gsplit-dwarf -c SOURCE -o symbols.o", "g++ symbols.o -o program"],
    ),
    (
        "C++, DWARF 4 split",
        "symbols.cpp",
        &["g++ -O2 -gdwarf-4 -gsplit-dwarf -c SOURCE -o symbols.o", "g++ symbols.o -o program"],
    ),
    (
        "C++, package",
        "symbols.cpp",
        &[
            "g++ -O2 -g -gsplit-dwarf -c SOURCE -o symbols.o",
            "g++ symbols.o -o program",
            "llvm-dwp -e program -o program.dwp",
            "rm symbols.dwo",
        ],
    ),
    ("Rust", "symbols.rs", &["rustc -g -O SOURCE -o program"]),
    ("Go", "symbols.go", &["env GOCACHE=/tmp/sweetspot-symbols-go go build -o program SOURCE"]),
];

/// Builds one of them below `folder`.
pub fn build(folder: &Path, name: &str, file: &str, commands: &[&str]) -> Result<PathBuf> {
    let folder = folder.join(name.replace(|character: char| !character.is_ascii_alphanumeric(), "-"));
    fs::create_dir_all(&folder)?;
    let source = source(file);
    for line in commands {
        let line = line.replace("SOURCE", &source.to_string_lossy());
        let mut words = line.split(' ');
        let program = words.next().context("a command")?;
        let output = Command::new(program).args(words).current_dir(&folder).output();
        let output = output.with_context(|| format!("{program} cannot be run; is it installed?"))?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{line}: {}", said.lines().next().unwrap_or_default());
    }
    Ok(folder.join("program"))
}
