use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use proptest::prelude::*;

fn own_executable() -> Vec<u8> {
    let path = std::env::current_exe().unwrap();
    #[expect(clippy::disallowed_methods, reason = "a test may read its own executable")]
    std::fs::read(path).unwrap()
}

#[test]
fn an_executable_has_segments_and_unwind_tables() {
    let image = ElfImage::parse_bytes(&own_executable()).unwrap();
    assert!(image.segments.iter().any(|s| s.executable));
    assert!(image.tables.eh_frame.is_some() && image.tables.eh_frame_hdr.is_some());
    let text = image.segments.iter().find(|s| s.executable).unwrap();
    let start = image.function_start(text.svma + text.file_len / 2).unwrap();
    assert!((text.svma..=text.svma + text.file_len / 2).contains(&start));
    assert_eq!(image.function_start(start), Some(start));
    assert_ne!(image.function_start(start - 1), Some(start));
}

/// A position-independent one has the type of a library.
#[test]
fn a_program_is_told_from_a_library() {
    const TYPE: usize = 16;
    let mut file = own_executable();
    let begins = |file: &[u8]| ElfImage::parse_bytes(file).unwrap().is_program;
    assert!(begins(&file));
    file[TYPE] = 2; // ET_EXEC
    assert!(begins(&file));
    file[TYPE] = 3; // ET_DYN
    let number = |at: usize| u16::from_le_bytes([file[at], file[at + 1]]);
    let table = u64::from_le_bytes(file[0x20..0x28].try_into().unwrap()) as usize;
    let (size, count) = (usize::from(number(0x36)), usize::from(number(0x38)));
    let headers = || (0..count).map(|n| table + n * size);
    let find = |file: &[u8], kind: u8| headers().find(|&at| file[at..at + 4] == [kind, 0, 0, 0]).unwrap();
    let (interpreter, dynamic) = (find(&file, 3), find(&file, 2));
    file[interpreter] = 0;
    assert!(begins(&file), "by its flags, as one without an interpreter");
    file[dynamic] = 0;
    assert!(!begins(&file));
}

#[test]
fn the_unwind_tables_are_found_without_section_headers() {
    let mut file = own_executable();
    let whole = ElfImage::parse_bytes(&file).unwrap();
    file[0x28..0x30].fill(0); // e_shoff
    file[0x3c..0x40].fill(0); // e_shnum, e_shstrndx
    let image = ElfImage::parse_bytes(&file).unwrap();
    let (found, expected) = (image.tables.eh_frame.unwrap(), whole.tables.eh_frame.unwrap());
    assert_eq!(found.svma.start, expected.svma.start);
    assert!(found.bytes.starts_with(&expected.bytes));
    assert_eq!(image.tables.eh_frame_hdr, whole.tables.eh_frame_hdr);
}

#[test]
fn tables_are_read_when_they_are_needed() {
    let file = own_executable();
    let (copy, reads) = (file.clone(), Arc::new(AtomicUsize::new(0)));
    let counter = Arc::clone(&reads);
    let later: ReadLater = Arc::new(move |range, _| {
        counter.fetch_add(1, Ordering::Relaxed);
        Some(copy[range.start as usize..range.end as usize].to_vec())
    });
    let image = ElfImage::parse(&file[..], &later).unwrap();
    assert!(!image.tables.is_empty());
    assert_eq!(reads.load(Ordering::Relaxed), 0);
    assert!(image.function_start(image.entry).is_some());
    assert_eq!(reads.load(Ordering::Relaxed), 2, "the index, and what it leads to");
    assert!(matches!(image.tables.find(image.entry), FoundRule::Rule { .. }));
    image.read_tables();
    assert_eq!(reads.load(Ordering::Relaxed), 2);
    let whole = ElfImage::parse_bytes(&file).unwrap();
    whole.read_tables();
    let _ = whole.function_start(whole.entry);
    assert_eq!(image, whole);
}

/// The header of a program, and behind it a first section that says how many there are of the tables at its place.
fn absurd_tables(sections: u64, segments: u32) -> Vec<u8> {
    const SIZES: std::ops::Range<usize> = 0x34..0x40;
    let mut file = own_executable();
    file.truncate(0x40);
    file[0x20..0x28].copy_from_slice(&0x40u64.to_le_bytes()); // e_phoff
    file[0x28..0x30].copy_from_slice(&0x40u64.to_le_bytes()); // e_shoff
    let sizes = [64, 56, 0xffff, 64, 0, 0]; // the first section states e_phnum and e_shnum
    file[SIZES].copy_from_slice(&sizes.map(u16::to_le_bytes).concat());
    let mut section = [0; 0x40];
    section[0x20..0x28].copy_from_slice(&sections.to_le_bytes());
    section[0x2c..0x30].copy_from_slice(&segments.to_le_bytes());
    file.extend(section);
    file
}

#[test]
fn tables_of_headers_are_read_up_to_a_limit() {
    let gone: ReadLater = Arc::new(|_, _| None);
    // All that is there says nothing, but may be read.
    let small = [absurd_tables(3, 3), vec![0; 0x200]].concat();
    assert_eq!(ElfImage::parse(&small[..], &gone).map(|image| image.segments), Ok(Vec::new()));
    let mut large = absurd_tables(3, 1 << 18);
    large.resize(0x100 + (56 << 18), 0);
    assert_eq!(ElfImage::parse(&large[..], &gone), Err(ElfError::Damaged));
    let mut large = absurd_tables(1 << 19, 3);
    large.resize(0x100 + (64 << 19), 0);
    assert!(ElfImage::parse(&large[..], &gone).unwrap().tables.is_empty());
}

#[test]
fn a_compressed_section_is_unpacked_unless_its_size_is_absurd() {
    let section = |size: u64| {
        let header = [&1u32.to_le_bytes()[..], &[0; 4], &size.to_le_bytes(), &8u64.to_le_bytes()].concat();
        // `abc`, stored.
        let data = [0x78, 1, 1, 3, 0, 0xfc, 0xff, b'a', b'b', b'c', 0x02, 0x4d, 0x01, 0x27];
        [&header[..], &data].concat()
    };
    assert_eq!(decompressed(section(3)), Some(b"abc".to_vec()));
    for size in [4, MAX_DECOMPRESSED_BYTES + 1, u64::MAX] {
        assert_eq!(decompressed(section(size)), None, "{size}");
    }
    assert_eq!(decompressed(vec![1; 7]), None);
}

#[test]
fn what_a_compressed_section_unpacks_to_is_what_it_takes() {
    const UNPACKED: u64 = 1 << 20;
    let packed = [&1u32.to_le_bytes()[..], &[0; 4], &UNPACKED.to_le_bytes(), &8u64.to_le_bytes()].concat();
    let file = file_of_debug_frame(SHF_COMPRESSED.0, &packed);
    let asked = Arc::new(AtomicUsize::new(0));
    let refused: ReadLater = {
        let asked = Arc::clone(&asked);
        Arc::new(move |range, takes| {
            assert_eq!(range.end - range.start, 24);
            asked.store(takes as usize, Ordering::Relaxed);
            None
        })
    };
    let image = ElfImage::parse(&file[..], &refused).unwrap();
    assert_eq!(image.tables_bytes(), 2 * UNPACKED);
    assert_eq!(image.function_start(0x1000), None);
    assert_eq!(asked.load(Ordering::Relaxed) as u64, 2 * UNPACKED);
}

/// A file of nothing but a section `.debug_frame`.
fn file_of_debug_frame(flags: u64, content: &[u8]) -> Vec<u8> {
    const NAMES: &[u8] = b"\0.debug_frame\0";
    let mut file = own_executable();
    file.truncate(0x40);
    file[0x20..0x28].fill(0); // e_phoff
    file[0x28..0x30].copy_from_slice(&0x40u64.to_le_bytes()); // e_shoff
    file[0x34..0x40].copy_from_slice(&[64, 56, 0, 64, 3, 2].map(u16::to_le_bytes).concat());
    let content_at = 0x40 + 3 * 0x40;
    let section = |name: u32, kind: u32, flags: u64, at: usize, len: usize| {
        let numbers = [flags, 0, at as u64, len as u64, 0, 1, 0].map(u64::to_le_bytes);
        [&name.to_le_bytes()[..], &kind.to_le_bytes(), &numbers.concat()].concat()
    };
    file.extend([0; 0x40]);
    file.extend(section(1, 1, flags, content_at, content.len()));
    file.extend(section(0, 3, 0, content_at + content.len(), NAMES.len()));
    file.extend(content);
    file.extend(NAMES);
    file
}

/// Entries of `.debug_frame`: what all have in common, and functions of 256 bytes with their instructions.
fn debug_frame(functions: &[(u64, &[u8])]) -> Vec<u8> {
    let entry = |id: u32, body: &[&[u8]]| {
        let body = body.concat();
        [&(body.len() as u32 + 4).to_le_bytes()[..], &id.to_le_bytes(), &body].concat()
    };
    // Version 1, code alignment 1, data alignment -8; the frame's address is rsp + 8, the return address is below it.
    let mut frames = entry(u32::MAX, &[&[1, 0, 1, 0x78, 16], &[0x0c, 7, 8, 0x90, 1]]);
    for (start, instructions) in functions {
        frames.extend(entry(0, &[&start.to_le_bytes(), &0x100u64.to_le_bytes(), instructions]));
    }
    frames
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_function_that_is_not_safe_takes_no_other_of_the_section_with_it() {
    let endless = [0x0f, 3, 0x2f, 0xfd, 0xff];
    let frames = debug_frame(&[(0x1000, &[]), (0x2000, &endless), (0x3000, &[])]);
    let image = ElfImage::parse_bytes(&file_of_debug_frame(0, &frames)).unwrap();
    for good in [0x1010, 0x3010] {
        assert!(matches!(image.tables.find(good), FoundRule::Rule { .. }), "{good:#x}");
    }
    assert!(matches!(image.tables.find(0x2010), FoundRule::Unsafe));
    assert!(matches!(image.tables.find(0x4010), FoundRule::Nothing));
    // Where it ends amid an entry, those before it stay.
    let cut = ElfImage::parse_bytes(&file_of_debug_frame(0, &frames[..frames.len() - 1])).unwrap();
    assert!(matches!(cut.tables.find(0x1010), FoundRule::Rule { .. }));
}

/// An `.eh_frame` at this address with its index, for functions of these addresses.
fn indexed(svma: u64, functions: &[Range<u64>]) -> (Vec<u8>, Vec<u8>) {
    const INDEX: u64 = 0x8000;
    let number = |value: u64| (value as u32).to_le_bytes();
    let common = [1, 0, 1, 0x78, 16, 0x0c, 7, 8, 0x90, 1];
    let mut frames = [&number(common.len() as u64 + 4)[..], &number(0), &common].concat();
    let pointer = svma.wrapping_sub(INDEX + 4);
    let mut index = [&[1, 0x1b, 3, 0x3b][..], &number(pointer), &number(functions.len() as u64)].concat();
    for function in functions {
        let information = svma + frames.len() as u64;
        index.extend(number(function.start.wrapping_sub(INDEX)));
        index.extend(number(information.wrapping_sub(INDEX)));
        let back = frames.len() as u64 + 4;
        frames.extend([number(20), number(back)].concat());
        frames.extend([function.start, function.end - function.start].map(u64::to_le_bytes).concat());
    }
    (frames, index)
}

#[test]
fn code_without_information_is_in_no_function_and_counts_by_the_page() {
    let functions = [0x1000..0x1100, 0x1400..0x1500, 0x4800..0x4900];
    let (frames, index) = indexed(0x9000, &functions);
    let of = |index: Option<&[u8]>| {
        let index = index.map(|index| (0x8000, index));
        UnwindTables::of_bytes(Machine::X86_64, Some((0x9000, &frames)), index, None)
    };
    let listed = debug_frame(&[(0x1000, &[]), (0x1400, &[]), (0x4800, &[])]);
    let tables =
        [of(Some(&index)), of(None), UnwindTables::of_bytes(Machine::X86_64, None, None, Some((0, &listed)))];
    for tables in tables {
        let image = ElfImage { tables, ..ElfImage::default() };
        for (svma, start, place) in [
            (0x800, None, 0),
            (0x1000, Some(0x1000), 0x1000),
            (0x10ff, Some(0x1000), 0x1000),
            (0x1100, None, 0x1100),
            (0x13ff, None, 0x1100),
            (0x1400, Some(0x1400), 0x1400),
            (0x1fff, None, 0x1500),
            (0x2001, None, 0x2000),
            (0x47ff, None, 0x4000),
            (0x4850, Some(0x4800), 0x4800),
            (0x4fff, None, 0x4900),
            (0x5000, None, 0x5000),
        ] {
            assert_eq!(image.function_start(svma), start, "{svma:#x}");
            assert_eq!(image.place_start(svma), place, "{svma:#x}");
        }
    }
}

#[test]
fn where_the_tables_cannot_be_read_the_index_tells_functions_apart() {
    let (_, index) = indexed(0x9000, &[0x1000..0x1100, 0x1400..0x1500]);
    let index = Some((0x8000, &index[..]));
    let tables = UnwindTables::of_bytes(Machine::X86_64, Some((0x9000, &[])), index, None);
    let image = ElfImage { tables, ..ElfImage::default() };
    assert_eq!((image.place_start(0x13ff), image.place_start(0x1401)), (0x1000, 0x1400));
}

#[test]
fn tables_that_cannot_be_read_any_more_are_empty() {
    let file = own_executable();
    let gone: ReadLater = Arc::new(|_, _| None);
    let image = ElfImage::parse(&file[..], &gone).unwrap();
    assert_eq!(image.function_start(image.entry), None);
    assert!(!matches!(image.tables.find(image.entry), FoundRule::Rule { .. }));
}

#[test]
fn the_bias_takes_a_mapping_back_to_the_addresses_the_file_states() {
    let text = Segment { file_offset: 0x1000, file_len: 0x500, svma: 0x401000, executable: true };
    let image = ElfImage { segments: vec![text], ..ElfImage::default() };
    assert_eq!(image.bias(0x401000, 0x1000, 0x1000), Some(0));
    assert_eq!(image.bias(0x7f00_0040_1000, 0x1000, 0x1000), Some(0x7f00_0000_0000));
    assert_eq!(image.bias(0x401000, 0x8000, 0x1000), None);
}

#[test]
fn segments_that_share_a_page_of_the_file_have_each_its_own_bias() {
    let segment =
        |file_offset, file_len, svma, executable| Segment { file_offset, file_len, svma, executable };
    // The linker leaves a page's distance in memory, none in the file.
    let [first, second] = [segment(0, 0x1800, 0, true), segment(0x1800, 0x1800, 0x2800, true)];
    let data = segment(0x3000, 0x100, 0x5000, false);
    for segments in [vec![first, second, data], vec![data, second, first]] {
        let image = ElfImage { segments, ..ElfImage::default() };
        assert_eq!(image.bias(0x7000_0000, 0, 0x2000), Some(0x7000_0000));
        assert_eq!(image.bias(0x7000_2000, 0x1000, 0x2000), Some(0x7000_0000));
        // Parts of either; the process has changed their rights.
        assert_eq!(image.bias(0x7000_3000, 0x2000, 0x1000), Some(0x7000_0000));
        assert_eq!(image.bias(0x7000_0000, 0, 0x1000), Some(0x7000_0000));
    }
}

#[test]
fn what_runs_in_the_data_of_a_file_is_not_the_files_code() {
    let segment = |file_offset, svma, executable| Segment { file_offset, file_len: 0x1000, svma, executable };
    let segments = vec![segment(0, 0, false), segment(0x1000, 0x1000, true), segment(0x2000, 0x2000, false)];
    let image = ElfImage { segments, ..ElfImage::default() };
    assert_eq!(image.bias(0x7000_2000, 0x2000, 0x1000), None);
    assert_eq!(image.bias(0x7000_0000, 0, 0x3000), Some(0x7000_0000), "the whole file");
}

#[test]
fn code_is_found_by_where_the_rest_of_its_file_is_mapped() {
    let segment =
        |file_offset, file_len, svma, executable| Segment { file_offset, file_len, svma, executable };
    // One linker gives each segment pages of the file of its own, another lets them share.
    let apart = [
        segment(0, 0x800, 0, false),
        segment(0x1000, 0x3800, 0x1000, true),
        segment(0x5000, 0x100, 0x6000, false),
    ];
    let shared = [
        segment(0, 0x800, 0, false),
        segment(0x800, 0x4000, 0x1800, true),
        segment(0x4800, 0x100, 0x6800, false),
    ];
    const BASE: u64 = 0x7000_0000;
    for (segments, parts, first) in [
        (apart, [(BASE, 0, 0x1000), (BASE + 0x6000, 0x5000, 0x1000)], 0x1000),
        (shared, [(BASE, 0, 0x1000), (BASE + 0x6000, 0x4000, 0x1000)], 0),
    ] {
        let image = ElfImage { segments: segments.to_vec(), ..ElfImage::default() };
        for (start, expected) in [
            (BASE + 0x1000, Some(first)),
            (BASE + 0x3000, Some(first + 0x2000)),
            (BASE + 0x7000, None),
            (BASE - 0x1000, None),
        ] {
            let found = image.offset_of_code(start, &parts);
            assert_eq!(found, expected, "{start:#x}");
            if let Some(offset) = found {
                assert_eq!(image.bias(start, offset, 0x1000), Some(BASE), "{start:#x}");
            }
        }
        assert_eq!(image.offset_of_code(BASE + 0x1000, &[]), None);
        let elsewhere = [parts[0], (BASE + 0x9000, parts[1].1, parts[1].2)];
        assert_eq!(image.offset_of_code(BASE + 0x1000, &elsewhere), None);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn damaged_files_do_not_panic(
        flips in prop::collection::vec((0usize..4096, any::<u8>()), 0..40),
        len in 0usize..1_000_000,
    ) {
        let mut file = own_executable();
        for (at, byte) in flips {
            file[at] = byte;
        }
        file.truncate(len);
        if let Ok(image) = ElfImage::parse_bytes(&file) {
            let _ = image.bias(0x1000, 0, u64::MAX);
            let _ = image.offset_of_code(len as u64, &[(len as u64, 0, u64::MAX), (0, u64::MAX, 1)]);
            let _ = image.base_svma();
            let _ = image.function_start(len as u64);
            assert!(image.place_start(len as u64) <= len as u64);
        }
    }
}
