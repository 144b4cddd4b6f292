//! `/proc/PID/maps`, line by line.
//!
//! Names in it are the target's to choose. The library that reads the rest of `/proc` indexes into some of them (a file
//! `/SYSV` in the root of a container ends the reader) and gives up on names that are not UTF-8.

use profiler_core::record::{FileId, Mapped};

/// A line of `maps`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region<'a> {
    /// First address.
    pub(crate) start: u64,
    /// The address behind the last.
    pub(crate) end: u64,
    /// Whether code may run there.
    pub(crate) executable: bool,
    /// Whether what is written there stays with the process.
    pub(crate) private: bool,
    /// Offset in the file, in bytes.
    pub(crate) file_offset: u64,
    /// The file's identity; all zero where there is none.
    pub(crate) file: FileId,
    /// The file's path, a name in brackets, or nothing.
    pub(crate) name: &'a [u8],
}

/// The regions of the text of `maps`. What is no such line is passed over.
pub(crate) fn regions(text: &[u8]) -> impl Iterator<Item = Region<'_>> {
    text.split(|&byte| byte == b'\n').filter_map(Region::parse)
}

/// Code of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MappedCode {
    /// Where it is mapped.
    pub(crate) mapped: Mapped,
    /// Of code without a file, the parts of files next to it: of one file on both sides, or right beside it.
    pub(crate) around: Vec<Mapped>,
}

/// The code in the text of `maps`. A path says whether there is a file that lasts.
pub(crate) fn mapped_code(text: &[u8], pid: u32, is_without_file: impl Fn(&str) -> bool) -> Vec<MappedCode> {
    let regions: Vec<Region<'_>> = regions(text).collect();
    let is_of_file = |region: &Region<'_>| {
        region.file.inode != 0
            && region.name.starts_with(b"/")
            && !is_without_file(&String::from_utf8_lossy(region.name))
    };
    let files: Vec<usize> = (0..regions.len()).filter(|&at| is_of_file(&regions[at])).collect();
    let around = |at: usize| {
        let above = files.partition_point(|&file| file < at);
        let below = above.checked_sub(1).and_then(|below| files.get(below)).map(|&file| &regions[file]);
        let above = files.get(above).map(|&file| &regions[file]);
        let is_between = below
            .zip(above)
            .is_some_and(|(below, above)| (below.file, below.name) == (above.file, above.name));
        let below = below.filter(|below| is_between || below.end == regions[at].start);
        let above = above.filter(|above| is_between || above.start == regions[at].end);
        below.into_iter().chain(above).filter_map(|region| region.mapped(pid)).collect()
    };
    let executable = (0..regions.len()).filter(|&at| regions[at].executable);
    let code = executable.filter_map(|at| {
        let mapped = regions[at].mapped(pid)?;
        let around = if is_without_file(&mapped.path) { around(at) } else { Vec::new() };
        Some(MappedCode { mapped, around })
    });
    code.collect()
}

impl<'a> Region<'a> {
    /// `start-end perms offset major:minor inode    name`.
    fn parse(line: &'a [u8]) -> Option<Self> {
        let mut words = line.splitn(6, |&byte| byte == b' ');
        let mut word = || std::str::from_utf8(words.next()?).ok();
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let (start, end) = word()?.split_once('-')?;
        let permissions = word()?.as_bytes();
        let (executable, private) = (permissions.get(2) == Some(&b'x'), permissions.get(3) == Some(&b'p'));
        let file_offset = hex(word()?)?;
        let (major, minor) = word()?.split_once(':')?;
        let inode = word()?.parse().ok()?;
        let file = FileId {
            major: u32::from_str_radix(major, 16).ok()?,
            minor: u32::from_str_radix(minor, 16).ok()?,
            inode,
            generation: 0, // which the kernel tells with its records alone
        };
        let name = words.next().unwrap_or_default().trim_ascii_start();
        let (start, end) = (hex(start)?, hex(end)?);
        (start < end).then_some(Self { start, end, executable, private, file_offset, file, name })
    }

    /// Whether it is memory of this process alone: a stack, the heap and the like. The device counts too: a file system in
    /// user space may give its files the inode 0.
    pub(crate) fn is_private_memory(&self) -> bool {
        self.private && self.file == FileId::default() && !self.name.starts_with(b"/")
    }

    /// The region as the kernel would have reported it when it was mapped; `None` for the page of old system calls, which
    /// is nobody's file.
    pub(crate) fn mapped(&self, pid: u32) -> Option<Mapped> {
        let path = match self.name {
            b"[vsyscall]" => return None,
            b"[vdso]" => "[vdso]".to_owned(),
            [b'/', ..] => String::from_utf8_lossy(self.name).into_owned(),
            _ => "//anon".to_owned(),
        };
        let (start, len) = (self.start, self.end - self.start);
        Some(Mapped { pid, start, len, file_offset: self.file_offset, file: self.file, path })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MAPS: &[u8] = b"\
55d0c8000000-55d0c8021000 r--p 00000000 fe:01 1835 /usr/bin/a program with blanks
55d0c8021000-55d0c80cd000 r-xp 00021000 fe:01 1835 /usr/bin/a program with blanks
7f0000000000-7f0000001000 rwxp 00000000 00:00 0 
7ffc4c5f2000-7ffc4c5f4000 r-xp 00000000 00:00 0                          [vdso]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
";

    fn paths(text: &[u8]) -> Vec<String> {
        let executable = regions(text).filter(|region| region.executable);
        executable.filter_map(|region| Some(region.mapped(1)?.path)).collect()
    }

    #[test]
    fn code_is_found_with_its_file() {
        assert_eq!(regions(MAPS).count(), 5);
        assert_eq!(paths(MAPS), ["/usr/bin/a program with blanks", "//anon", "[vdso]"]);
        let mapped = regions(MAPS).nth(1).unwrap().mapped(7).unwrap();
        let file = FileId { major: 0xfe, minor: 1, inode: 1835, generation: 0 };
        assert_eq!((mapped.pid, mapped.len, mapped.file_offset, mapped.file), (7, 0xac000, 0x21000, file));
    }

    #[test]
    fn code_without_a_file_has_the_files_next_to_it() {
        const MOVED: &[u8] = b"\
1000-2000 r--p 00000000 fe:01 7 /a
2000-3000 rwxp 00000000 00:00 0 
3000-4000 rw-p 00000000 00:00 0 
4000-5000 r--p 00003000 fe:01 7 /a
5000-6000 rwxp 00000000 00:00 0 
8000-9000 rwxp 00000000 00:00 0 
9000-a000 r-xs 00000000 00:01 9 /memfd:jit (deleted)
b000-c000 r-xp 00000000 fe:01 8 /b
";
        let found = mapped_code(MOVED, 1, |path| path.starts_with("//anon") || path.starts_with("/memfd:"));
        let starts: Vec<(u64, Vec<u64>)> = found
            .iter()
            .map(|code| (code.mapped.start, code.around.iter().map(|part| part.start).collect()))
            .collect();
        assert_eq!(
            starts,
            [
                (0x2000, vec![0x1000, 0x4000]),
                (0x5000, vec![0x4000]),
                (0x8000, vec![]),
                (0x9000, vec![]),
                (0xb000, vec![])
            ]
        );
    }

    #[test]
    fn names_that_a_target_made_up_hide_nothing_else() {
        for name in [&b"/SYSV"[..], b"/SYSVwxyz", b"[stack:", b"[", b"[stack:x]", b"/\xff\xfe", b"/a\\012b"] {
            let line = [b"1000-2000 r-xp 00000000 00:01 7 ", name, b"\n"].concat();
            let text = [&line, MAPS].concat();
            assert_eq!(paths(&text).len(), 4, "{}", name.escape_ascii());
        }
    }

    #[test]
    fn lines_that_say_nothing_are_passed_over() {
        let text =
            b"\n2000-1000 r-xp 0 0:0 0 /a\nx-2 r-xp 0 0:0 0 /a\n1-2 r-xp 0 0 0 /a\n1-2\n1-2 r-xp 0 0:0 0\n";
        assert_eq!(regions(text).count(), 1);
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "([0-9a-f]{0,17}-?[0-9a-f]{0,17} [rwxp-]{0,5} [0-9a-f]{0,3} [0-9:]{0,5} [0-9]{0,3} {0,3}[/\\[SYVa-z\\]]{0,8}\n?){0,9}") {
            for region in regions(text.as_bytes()) {
                prop_assert!(region.start < region.end);
                let _ = region.mapped(1);
            }
        }
    }
}
