//! Bytes that nobody vouches for: whatever they are, there is an answer.

mod build;

use std::path::Path;
use std::sync::OnceLock;

use build::Program;
use proptest::prelude::*;
use symbolizer::{DebugFiles, KernelSymbols, NoDebugFiles, Object, ReadAt, Reason, Symbolized, demangle};

/// The object is its own debug file.
struct Same(Vec<u8>);

impl DebugFiles for Same {
    fn open(&self, _: &Path) -> Option<Box<dyn ReadAt>> {
        Some(Box::new(self.0.clone()))
    }
}

/// Loads the bytes and asks for addresses all over; returns how many have a name.
fn try_all(bytes: &[u8], addresses: &[u64]) -> usize {
    let Ok(object) = Object::load(&bytes, Path::new("/bin/x"), &Same(bytes.to_vec())) else { return 0 };
    let around = (0x1000..0x1800).step_by(7).chain([0, u64::MAX]);
    let addresses: Vec<u64> = around.chain(addresses.iter().copied()).collect();
    let known = |symbolized| match symbolized {
        Symbolized::Known(frames) => {
            assert!(!frames.is_empty());
            true
        }
        Symbolized::Unknown(reason) => {
            assert!(!reason.to_string().is_empty());
            false
        }
    };
    object.symbolize_all(&addresses).into_iter().for_each(|symbolized| {
        known(symbolized);
    });
    addresses.iter().filter(|&&address| known(object.symbolize(address))).count()
}

/// Real objects, small enough that changed bytes hit something.
fn objects() -> &'static [Vec<u8>] {
    static OBJECTS: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    OBJECTS.get_or_init(|| {
        let c = "static inline __attribute__((always_inline)) int in(int x) { return x * 3; }\n\
                 int outer(int x) { return in(x) + in(x + 1); }\nvoid _start(void) { outer(1); }\n";
        let cpp = "namespace n { template <class T> T f(T x) { return x + 1; } }\n\
                   int g(int x) { return n::f(x); } extern \"C\" void _start() { g(1); }\n";
        let built = [
            Program::c(c, &["-gdwarf-5", "-O2", "-nostdlib", "-static"]),
            Program::c(c, &["-gdwarf-4", "-O2", "-nostdlib", "-shared", "-fPIC"]),
            Program::c(c, &["-gdwarf-5", "-gz=zlib", "-O1", "-nostdlib", "-shared", "-fPIC"]),
            Program::cpp(cpp, &["-gdwarf-5", "-O1", "-nostdlib", "-static"]),
        ];
        built.iter().flatten().map(|program| std::fs::read(program.path()).expect("a program")).collect()
    })
}

/// The place of the header of the section `.strtab`, which is the last but one as linkers write them.
fn header_of_names(bytes: &[u8]) -> usize {
    let number =
        |at: usize, len: usize| bytes[at..at + len].iter().rev().fold(0, |n, &b| n << 8 | usize::from(b));
    let (headers, count) = (number(40, 8), number(60, 2));
    headers + (count - 2) * 64
}

#[test]
fn names_that_would_take_a_gigabyte_are_refused() {
    for bytes in objects() {
        let mut bytes = bytes.clone();
        let (header, at) = (header_of_names(&bytes), bytes.len() as u64);
        // Compressed with zlib, a gigabyte before that.
        bytes.extend(
            [&1_u64.to_le_bytes()[..], &(1_u64 << 30).to_le_bytes(), &1_u64.to_le_bytes(), &[0; 8]].concat(),
        );
        bytes[header + 8..header + 16].copy_from_slice(&0x800_u64.to_le_bytes());
        bytes[header + 24..header + 32].copy_from_slice(&at.to_le_bytes());
        bytes[header + 32..header + 40].copy_from_slice(&32_u64.to_le_bytes());
        let object =
            Object::load(&bytes, Path::new("/bin/x"), &NoDebugFiles).expect("it has debug information");
        let refused = object.warnings();
        assert!(matches!(refused, [Reason::TooLarge { bytes, .. }] if *bytes >= 1 << 30), "{refused:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes(mut bytes in prop::collection::vec(any::<u8>(), 0..4096), is_elf in any::<bool>()) {
        if is_elf && bytes.len() > 6 {
            bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        }
        try_all(&bytes, &[]);
    }

    #[test]
    fn changed_bytes(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..40),
        addresses in prop::collection::vec(any::<u64>(), 8),
    ) {
        if let Some(object) = choose(which) {
            let mut bytes = object.clone();
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            try_all(&bytes, &addresses);
        }
    }

    #[test]
    fn truncated(which in any::<prop::sample::Index>(), at in any::<prop::sample::Index>()) {
        if let Some(object) = choose(which) {
            try_all(&object[..at.index(object.len())], &[]);
        }
    }

    #[test]
    fn extreme_words(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0usize..5), 1..6),
    ) {
        if let Some(object) = choose(which) {
            let mut bytes = object.clone();
            for (at, extreme) in changes {
                let at = at.index(bytes.len() / 8) * 8;
                let word = [0, u64::MAX, 1 << 63, 1 << 31, bytes.len() as u64][extreme];
                bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
            }
            try_all(&bytes, &[]);
        }
    }

    #[test]
    fn random_names(name in "(_R|_Z|_ZN|__Z|_GLOBAL_|)[0-9A-Za-z_.$]{0,200}") {
        let readable = demangle(&name);
        prop_assert!(readable == name || readable.len() <= 16 * 1024);
    }

    #[test]
    fn any_text_as_a_name(name in any::<String>()) {
        demangle(&name);
    }

    #[test]
    fn random_kernel_lists(text in "([0-9a-f]{0,17} ?[a-zA-Z]{0,2} [a-z_]{0,9}(\t\\[[a-z]{0,5}\\])?\n){0,40}", address in any::<u64>()) {
        if let Ok(symbols) = KernelSymbols::parse(text.as_bytes()) {
            symbols.symbolize(address);
            symbols.symbolize(u64::MAX);
        }
    }

    #[test]
    fn any_bytes_as_a_kernel_list(bytes in prop::collection::vec(any::<u8>(), 0..2048)) {
        let _ = KernelSymbols::parse(&bytes);
    }
}

fn choose(which: prop::sample::Index) -> Option<&'static Vec<u8>> {
    (!objects().is_empty()).then(|| which.get(objects()))
}

#[test]
fn the_unchanged_objects_have_names() {
    for object in objects() {
        assert!(try_all(object, &[0x40_1000]) > 0);
    }
}
