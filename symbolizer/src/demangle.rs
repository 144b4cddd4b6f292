//! Readable names from linkage names.

use std::fmt::{self, Write};

use cpp_demangle::{DemangleNodeType, DemangleOptions, DemangleWrite, ParseOptions, Symbol};

use crate::qualified::fortran;

/// Longer names are left as they are: parsing is not linear in their length.
const LONGEST_NAME: usize = 8 * 1024;
/// A few bytes of back references can expand without end; a name this long helps nobody.
const LONGEST_OUTPUT: usize = 16 * 1024;
/// Parts a demangled C++ name may have, since some expand to nothing and never meet the limit on output.
const MOST_PARTS: u32 = 100_000;

/// The readable form of a C++ or Rust linkage name, or of one of a Fortran module; any other name unchanged.
///
/// Rust names lose their hash. Time and output are bounded: a name that would expand past 16 KiB stays mangled.
///
/// ```
/// assert_eq!(symbolizer::demangle("_ZN5space3fooEii"), "space::foo(int, int)");
/// assert_eq!(symbolizer::demangle("_RNvNtCs1234_7mycrate3foo3bar"), "mycrate::foo::bar");
/// assert_eq!(symbolizer::demangle("_ZN4core3fmt5write17h0123456789abcdefE"), "core::fmt::write");
/// assert_eq!(symbolizer::demangle("__heat_MOD_solve"), "heat::solve");
/// assert_eq!(symbolizer::demangle("main"), "main");
/// ```
pub fn demangle(name: &str) -> String {
    try_demangle(name).unwrap_or_else(|| name.to_owned())
}

/// The readable form, if `name` is mangled.
pub(crate) fn try_demangle(name: &str) -> Option<String> {
    if name.len() > LONGEST_NAME {
        return None;
    }
    if name.starts_with("_R") || is_legacy_rust(name) {
        rust(name)
    } else if name.starts_with("_Z") || name.starts_with("_GLOBAL_") {
        cpp(name)
    } else {
        fortran(name)
    }
}

/// Old Rust names are C++ names whose last part is a hash: `17h` and 16 hexadecimal digits.
fn is_legacy_rust(name: &str) -> bool {
    let path = name.split(".llvm.").next().unwrap_or(name);
    let Some(hash) = path.strip_prefix("_ZN").and_then(|rest| rest.rsplit_once("17h")).map(|(_, hash)| hash)
    else {
        return false;
    };
    hash.len() >= 17 && hash.as_bytes()[16] == b'E' && hash.bytes().take(16).all(|b| b.is_ascii_hexdigit())
}

fn rust(name: &str) -> Option<String> {
    let demangled = rustc_demangle::try_demangle(name).ok()?;
    let mut out = Bounded::default();
    write!(out, "{demangled:#}").ok()?;
    Some(out.text)
}

/// A Rust name of the old mangling, which leaves types and numbers of closures to its hash, with those that the function's short name
/// in the debug information has, written as the new mangling writes them. None if that has no more.
pub(crate) fn with_generics(linkage: &str, demangled: &str, plain: &str) -> Option<String> {
    if !is_legacy_rust(linkage) || demangled.len() + plain.len() > LONGEST_OUTPUT {
        return None;
    }
    let (path, last) = demangled.rsplit_once("::")?;
    let (stem, generics) = plain.split_at(plain.find('<').unwrap_or(plain.len()));
    let is_closure = last == "{{closure}}" && stem.starts_with('{');
    let says_more = is_closure || (last == stem && !generics.is_empty());
    let parted = if generics.is_empty() { "" } else { "::" };
    says_more.then(|| format!("{path}::{stem}{parted}{generics}"))
}

fn cpp(name: &str) -> Option<String> {
    let symbol = Symbol::new_with_options(name, &ParseOptions::default()).ok()?;
    let mut out = BoundedCpp::default();
    symbol.structured_demangle(&mut out, &DemangleOptions::new()).ok()?;
    Some(out.text.text)
}

#[derive(Default)]
struct Bounded {
    text: String,
}

impl Write for Bounded {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        if self.text.len() + part.len() > LONGEST_OUTPUT {
            return Err(fmt::Error);
        }
        self.text.push_str(part);
        Ok(())
    }
}

#[derive(Default)]
struct BoundedCpp {
    text: Bounded,
    parts: u32,
}

impl DemangleWrite for BoundedCpp {
    fn push_demangle_node(&mut self, _: DemangleNodeType) {
        self.parts = self.parts.saturating_add(1);
    }

    fn write_string(&mut self, part: &str) -> fmt::Result {
        if self.parts > MOST_PARTS { Err(fmt::Error) } else { self.text.write_str(part) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_both_languages() {
        assert_eq!(
            demangle("_ZNSt6vectorIiSaIiEE9push_backEOi"),
            "std::vector<int, std::allocator<int> >::push_back(int&&)"
        );
        assert_eq!(demangle("_ZN3foo3barEi.cold"), "foo::bar(int) [clone .cold]");
        assert_eq!(demangle("_ZN3std2rt10lang_start17h0123456789abcdefE.llvm.123456"), "std::rt::lang_start");
        assert_eq!(demangle("_RINvNtC3std3mem8align_ofjE"), "std::mem::align_of::<usize>");
    }

    #[test]
    fn the_old_mangling_of_rust_has_its_generics_from_the_debug_information() {
        let hash = "17h0123456789abcdefE";
        for (path, plain, expected) in [
            ("1m5solve", "solve<m::A>", Some("m::solve::<m::A>")),
            ("1m4main28_$u7b$$u7b$closure$u7d$$u7d$", "{closure#1}", Some("m::main::{closure#1}")),
            ("1m3run28_$u7b$$u7b$closure$u7d$$u7d$", "{closure#0}<u8>", Some("m::run::{closure#0}::<u8>")),
            ("1m5solve", "solve", None),
            ("1m5solve", "other<u8>", None),
        ] {
            let linkage = format!("_ZN{path}{hash}");
            assert_eq!(with_generics(&linkage, &demangle(&linkage), plain).as_deref(), expected, "{plain}");
        }
        assert_eq!(with_generics("_ZN1m5solveEv", "m::solve", "solve<int>"), None);
    }

    #[test]
    fn other_names_stay() {
        for name in ["", "_", "_Z", "_R", "_ZN", "main", "Java_foo", "_ZNéE", "__libc_start_main", "_ZN17hE"]
        {
            assert_eq!(demangle(name), name);
        }
    }

    #[test]
    fn an_expanding_name_stays_mangled() {
        // Each argument doubles the previous one by substitution.
        let doubling = (0..40).map(|i| format!("1XIS{}_S{}_E", base36(i), base36(i))).collect::<String>();
        let name = format!("_Z1fI1XI1A1AE{doubling}Evv");
        assert!(demangle(&name).len() <= LONGEST_OUTPUT.max(name.len()));
    }

    fn base36(n: u32) -> String {
        n.checked_sub(1)
            .map_or(String::new(), |n| char::from_digit(n % 36, 36).unwrap_or('0').to_uppercase().to_string())
    }
}
