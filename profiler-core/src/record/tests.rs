use super::*;
use proptest::prelude::*;

fn sample_body(chain: &[u64], regs: &[u64], stack: &[u8]) -> Vec<u8> {
    let mut words = vec![7, 0x1000, 42 | 43 << 32, 5_000, 8, 1, 1_000_000, chain.len() as u64];
    words.extend_from_slice(chain);
    words.push(REGS_ABI_64);
    words.extend_from_slice(regs);
    words.push(stack.len() as u64);
    let mut body: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    body.extend_from_slice(stack);
    body.extend((stack.len() as u64 / 2).to_ne_bytes());
    body
}

/// In the order of the kernel's numbers: AX, BX, CX, DX, SI, DI, BP, SP, IP, R8 to R15.
const X86_64: [u64; 17] =
    [0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xb0, 0xc0, 0xd0, 0xe0, 0xe1, 0xe2, 0xe3, 0xe4, 0xe5, 0xe6, 0xe7];

#[test]
fn a_sample_is_decoded_field_by_field() {
    let chain = [CONTEXT_KERNEL, 100, 200, CONTEXT_USER, 300, 400];
    let body = sample_body(&chain, &X86_64, &[1; 32]);
    let format = RecordFormat::of(Machine::X86_64, true);
    for split in 0..body.len() {
        let (left, right) = body.split_at(split);
        let raw = RawRecord { kind: SAMPLE, misc: 2, body: RawData::Split(left, right) };
        assert_eq!(raw.time_ns(&format), Some(5_000));
        let Ok(Record::Sample(sample)) = raw.decode(&format) else { panic!("split at {split}") };
        assert_eq!((sample.pid, sample.tid, sample.cpu, sample.stream_id), (42, 43, 1, 8));
        let general = [0xa0, 0xa3, 0xa2, 0xa1, 0xa4, 0xa5, 0xb0, 0xc0];
        let extended = [0xe0, 0xe1, 0xe2, 0xe3, 0xe4, 0xe5, 0xe6, 0xe7];
        let general = std::array::from_fn(|at| general.iter().chain(&extended).nth(at).copied());
        assert_eq!(sample.regs, Some(UserRegs::X86_64 { ip: 0xd0, general }));
        let (mut kernel, mut user) = (Vec::new(), Vec::new());
        sample.kernel_chain(&mut kernel);
        sample.user_chain(&mut user);
        assert_eq!((kernel, user), (vec![100, 199], vec![300, 399]));
        let stack = sample.stack.unwrap();
        assert_eq!((stack.len(), stack.is_full()), (16, false));
        assert_eq!(stack.word(8), Some(u64::from_ne_bytes([1; 8])));
        assert_eq!((stack.word(9), stack.word(u64::MAX)), (None, None));
    }
}

#[test]
fn the_registers_of_each_machine_are_decoded_on_any() {
    let decode = |machine, regs: &[u64], abi: u64| {
        let mut body = sample_body(&[], regs, &[1; 32]);
        body[CHAIN_OFFSET + 8..CHAIN_OFFSET + 16].copy_from_slice(&abi.to_ne_bytes());
        let raw = RawRecord { kind: SAMPLE, misc: 2, body: RawData::Single(&body) };
        let Ok(Record::Sample(sample)) = raw.decode(&RecordFormat::of(machine, true)) else { panic!() };
        assert_eq!(sample.stack.map(|stack| stack.len()), Some(16));
        sample.regs
    };
    // In the order of their numbers: x29, lr, sp, pc.
    let aarch64 = [0xf0, 0xe0, 0xc0, 0xd0];
    assert_eq!(RecordFormat::of(Machine::Aarch64, true).sample_regs_user(), 0b1111 << 29);
    let expected = UserRegs::Aarch64 { pc: 0xd0, sp: 0xc0, lr: 0xe0, fp: 0xf0 };
    assert_eq!(decode(Machine::Aarch64, &aarch64, REGS_ABI_64), Some(expected));
    assert_eq!(decode(Machine::Aarch64, &aarch64, 1), Some(UserRegs::Narrow { ip: 0xd0 }));
    assert_eq!(RecordFormat::of(Machine::X86_64, true).sample_regs_user(), 0x1ff | 0xff << 16);
    let narrow = decode(Machine::X86_64, &X86_64, 1);
    assert_eq!(narrow, Some(UserRegs::Narrow { ip: 0xd0 }));
}

/// A mapping of `/lib/a.so` from inode 7 on, version 9.
fn mmap_body() -> Vec<u8> {
    let words = [42 | 43 << 32, 0x1000, 0x2000, 0x3000, 8 | 1 << 32, 7, 9, 5];
    let mut body: Vec<u8> = words.iter().flat_map(|word: &u64| word.to_ne_bytes()).collect();
    body.extend(*b"/lib/a.so\0\0\0\0\0\0\0");
    body.extend([42 | 43 << 32, 5_000u64, 8, 1, 7].iter().flat_map(|word| word.to_ne_bytes()));
    body
}

#[test]
fn a_mapping_is_read_whatever_mark_another_profiler_left_on_it() {
    let body = mmap_body();
    let file = FileId { major: 8, minor: 1, inode: 7, generation: 9 };
    for misc in [2, 2 | MISC_MMAP_BUILD_ID, u16::MAX] {
        let raw = RawRecord { kind: 10, misc, body: RawData::Single(&body) };
        let Ok(Record::Mmap(mapped)) = raw.decode(&RecordFormat::new(false)) else { panic!("{misc:#x}") };
        assert_eq!((mapped.pid, mapped.start, mapped.len, mapped.file_offset), (42, 0x1000, 0x2000, 0x3000));
        assert_eq!((mapped.file, &*mapped.path), (file, "/lib/a.so"));
    }
}

proptest! {
    #[test]
    fn no_bytes_make_the_decoder_panic(
        kind in 0u32..24, misc: u16, split: prop::sample::Index, stack: bool,
        body in prop::collection::vec(any::<u8>(), 0..600),
    ) {
        let (left, right) = body.split_at(split.index(body.len() + 1));
        let raw = RawRecord { kind, misc, body: RawData::Split(left, right) };
        let format = RecordFormat::new(stack);
        let _ = raw.time_ns(&format);
        if let Ok(Record::Sample(sample)) = raw.decode(&format) {
            sample.user_chain(&mut Vec::new());
            let _ = sample.stack.map(|stack| stack.word(split.index(1 << 20) as u64));
        }
    }

    #[test]
    fn a_damaged_sample_does_not_panic(at: prop::sample::Index, byte: u8, len: prop::sample::Index) {
        let mut body = sample_body(&[CONTEXT_USER, 300, 400], &[7; 4], &[1; 64]);
        let at = at.index(body.len());
        body[at] = byte;
        body.truncate(len.index(body.len() + 1));
        let raw = RawRecord { kind: SAMPLE, misc: 2, body: RawData::Single(&body) };
        let _ = raw.decode(&RecordFormat::new(true));
    }
}
