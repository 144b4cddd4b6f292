//! Compressed sections: by the ELF standard, as GNU tools did before, and `.gnu_debugdata`.

use std::io::Read;

use liblzma::bufread::XzDecoder;
use liblzma::stream::Stream;
use object::LittleEndian as Le;
use object::elf::{self, CompressionHeader64};
use object::pod;
use object::read::{CompressedData, CompressionFormat};

use super::Elf;
use crate::reason::Reason;

/// The largest section after decompression.
const LARGEST_DECOMPRESSED: u64 = 2 << 30;
/// The largest `.gnu_debugdata` after decompression: symbols without anything else. Fedora's `libwebkit2gtk` has 5 MiB.
const LARGEST_MINI: u64 = 128 << 20;
/// Memory for unpacking it. The dictionary of `xz -9` takes 65 MiB; the format allows 4 GiB.
const MOST_XZ_MEMORY: u64 = 128 << 20;
/// How GNU tools marked compressed sections before there was a standard: `.zdebug_info` for `.debug_info`.
const LEGACY_PREFIX: &str = ".zdebug_";
/// Such a section begins with this and the size, the highest byte first.
const LEGACY_MAGIC: &[u8] = b"ZLIB";
/// The longest that comes before the compressed bytes.
pub(super) const HEADER_SIZE: u64 = size_of::<CompressionHeader64<Le>>() as u64;

impl Elf<'_> {
    /// The symbols that Fedora and its kin leave in stripped objects: an ELF object of its own, packed with `xz`.
    pub(crate) fn mini_debug_info(&self, most_bytes: u64) -> Result<Option<Vec<u8>>, Reason> {
        let unpack =
            |section| unpack_xz(&self.read_within(section, LARGEST_MINI)?, most_bytes.min(LARGEST_MINI));
        self.find_contents(".gnu_debugdata").map(unpack).transpose()
    }
}

/// The name under which older tools wrote this section if they compressed it.
pub(super) fn legacy_name(name: &str) -> Option<String> {
    Some(format!("{LEGACY_PREFIX}{}", name.strip_prefix(".debug_")?))
}

/// Whether the name says that the section may be compressed.
pub(super) fn is_legacy(name: &[u8]) -> bool {
    name.starts_with(LEGACY_PREFIX.as_bytes())
}

/// The size after decompression of a section that begins with `head`, as far as that tells the truth.
pub(super) fn size_after(flags: elf::SectionFlags, head: &[u8]) -> u64 {
    if flags.0 & elf::SHF_COMPRESSED.0 == 0 {
        let size = head.strip_prefix(LEGACY_MAGIC).and_then(|rest| rest.first_chunk());
        return size.map_or(0, |size| u64::from_be_bytes(*size));
    }
    pod::from_bytes::<CompressionHeader64<Le>>(head).map_or(0, |(header, _)| header.ch_size.get(Le))
}

/// Decompresses a section that one of the older names marks.
pub(super) fn decompress_legacy(name: &str, bytes: Vec<u8>) -> Result<Vec<u8>, Reason> {
    let Some(rest) = bytes.strip_prefix(LEGACY_MAGIC).filter(|_| name.starts_with(LEGACY_PREFIX)) else {
        return Ok(bytes);
    };
    let (size, data) = rest.split_first_chunk().ok_or(CORRUPT)?;
    inflate(name, CompressionFormat::Zlib, data, u64::from_be_bytes(*size))
}

/// Decompresses a section whose flags say that it is compressed.
pub(super) fn decompress(name: &str, bytes: &[u8]) -> Result<Vec<u8>, Reason> {
    let (header, data) = pod::from_bytes::<CompressionHeader64<Le>>(bytes).map_err(|()| CORRUPT)?;
    let format = match header.ch_type.get(Le) {
        elf::ELFCOMPRESS_ZLIB => CompressionFormat::Zlib,
        elf::ELFCOMPRESS_ZSTD => CompressionFormat::Zstandard,
        _ => return Err(Reason::corrupt("a section is compressed in an unknown way")),
    };
    inflate(name, format, data, header.ch_size.get(Le))
}

const CORRUPT: Reason = Reason::corrupt("a compressed section cannot be decompressed");

fn inflate(name: &str, format: CompressionFormat, data: &[u8], size: u64) -> Result<Vec<u8>, Reason> {
    if size > LARGEST_DECOMPRESSED {
        return Err(Reason::TooLarge { what: name.to_owned(), bytes: size });
    }
    let compressed = CompressedData { format, data, uncompressed_size: size };
    compressed.decompress().map(|bytes| bytes.into_owned()).map_err(|_| CORRUPT)
}

/// What it was packed from is not known before it is unpacked, so it is bounded while it grows.
fn unpack_xz(packed: &[u8], most_bytes: u64) -> Result<Vec<u8>, Reason> {
    let stream = Stream::new_stream_decoder(MOST_XZ_MEMORY, 0).map_err(|_| CORRUPT)?;
    let mut unpacked = Vec::new();
    let mut decoder = XzDecoder::new_stream(packed, stream).take(most_bytes + 1);
    decoder.read_to_end(&mut unpacked).map_err(|_| CORRUPT)?;
    if unpacked.len() as u64 > most_bytes {
        return Err(Reason::TooLarge { what: ".gnu_debugdata".into(), bytes: unpacked.len() as u64 });
    }
    Ok(unpacked)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use liblzma::write::XzEncoder;

    use super::*;

    fn compressed(kind: u32, size: u64, data: &[u8]) -> Vec<u8> {
        let header = [&kind.to_le_bytes()[..], &[0; 4], &size.to_le_bytes(), &1u64.to_le_bytes()].concat();
        [&header, data].concat()
    }

    /// A zstd frame of one segment that holds one stored block.
    fn zstd_frame(text: &[u8]) -> Vec<u8> {
        let len = text.len() as u8;
        [&[0x28, 0xb5, 0x2f, 0xfd, 0x20, len, len << 3 | 1, len >> 5, 0], text].concat()
    }

    #[test]
    fn zstd_sections_are_read() {
        let section = compressed(2, 5, &zstd_frame(b"hello"));
        assert_eq!(decompress(".debug_info", &section), Ok(b"hello".to_vec()));
    }

    #[test]
    fn a_wrong_size_is_corrupt_and_a_huge_one_is_refused() {
        for size in [0, 4, 6] {
            let section = compressed(2, size, &zstd_frame(b"hello"));
            assert!(matches!(decompress(".debug_info", &section), Err(Reason::CorruptElf(_))), "{size}");
        }
        let section = compressed(2, u64::MAX, &zstd_frame(b"hello"));
        let refused = Reason::TooLarge { what: ".debug_info".into(), bytes: u64::MAX };
        assert_eq!(decompress(".debug_info", &section), Err(refused));
        assert!(decompress(".debug_info", &compressed(9, 5, b"hello")).is_err());
        assert!(decompress(".debug_info", b"short").is_err());
    }

    #[test]
    fn older_sections_are_decompressed_by_their_name() {
        let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(b"hello").expect("memory");
        let data = encoder.finish().expect("memory");
        let section = |size: u64| [LEGACY_MAGIC, &size.to_be_bytes(), &data].concat();
        assert_eq!(decompress_legacy(".zdebug_info", section(5)), Ok(b"hello".to_vec()));
        assert_eq!(decompress_legacy(".debug_info", section(5)), Ok(section(5)));
        assert_eq!(decompress_legacy(".zdebug_info", section(6)), Err(CORRUPT));
        assert_eq!(decompress_legacy(".zdebug_info", b"ZLIB".to_vec()), Err(CORRUPT));
        let huge = decompress_legacy(".zdebug_info", section(u64::MAX));
        assert!(matches!(huge, Err(Reason::TooLarge { .. })));
        assert_eq!(legacy_name(".debug_line").as_deref(), Some(".zdebug_line"));
        assert_eq!(legacy_name(".symtab"), None);
    }

    #[test]
    fn packed_symbols_are_bounded() {
        let pack = |mut bytes: &mut dyn Read, level| {
            let mut encoder = XzEncoder::new(Vec::new(), level);
            std::io::copy(&mut bytes, &mut encoder).expect("memory");
            encoder.finish().expect("memory")
        };
        assert_eq!(unpack_xz(&pack(&mut &b"hello"[..], 9), LARGEST_MINI), Ok(b"hello".to_vec()));
        let small = unpack_xz(&pack(&mut &b"hello"[..], 9), 4);
        assert!(matches!(small, Err(Reason::TooLarge { .. })));
        let bomb = pack(&mut std::io::repeat(0).take(LARGEST_MINI + 1), 0);
        assert!(bomb.len() < 1 << 20, "{}", bomb.len());
        assert!(matches!(unpack_xz(&bomb, LARGEST_MINI), Err(Reason::TooLarge { .. })));
        assert_eq!(unpack_xz(&bomb[..bomb.len() / 2], LARGEST_MINI), Err(CORRUPT));
        assert_eq!(unpack_xz(b"hello", LARGEST_MINI), Err(CORRUPT));
    }

    #[test]
    fn a_dictionary_that_takes_too_much_memory_is_refused() {
        let mut options = liblzma::stream::LzmaOptions::new_preset(0).expect("a preset");
        options.dict_size(1 << 30);
        let mut filters = liblzma::stream::Filters::new();
        filters.lzma2(&options);
        let packed = |filters: &liblzma::stream::Filters| {
            let stream = Stream::new_stream_encoder(filters, liblzma::stream::Check::None).expect("a stream");
            let mut encoder = XzEncoder::new_stream(Vec::new(), stream);
            encoder.write_all(b"hello").expect("memory");
            encoder.finish().expect("memory")
        };
        assert_eq!(unpack_xz(&packed(&filters), LARGEST_MINI), Err(CORRUPT));
    }
}
