//! Names for addresses: ELF symbol tables, DWARF lines and inlined frames, and the kernel's symbol list.
