//! Compares the names that two readers give to an address.

use std::collections::HashMap;

use super::{Chain, Frame};

/// What GCC and LLVM append to the name of a part or a copy of a function.
const CLONES: [&str; 7] = [".cold", ".part.", ".isra.", ".constprop.", ".llvm.", ".lto_priv.", ".localalias"];

/// What comparing one address found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The same functions, files and lines.
    Same,
    /// The same but for a matter of style: which one.
    Style(&'static str),
    /// Not the same: in what.
    Differs(&'static str),
}

/// The names that a program's symbol tables give to addresses: some have several.
#[derive(Debug, Default)]
pub struct Names(HashMap<String, Vec<u64>>);

impl Names {
    /// Notes that an address has a name.
    pub fn add(&mut self, name: &str, address: u64) {
        self.0.entry(unversioned(name).to_owned()).or_default().push(address);
    }

    /// Whether a name is that of an address.
    pub fn has(&self, name: &str, address: u64) -> bool {
        self.0.get(name).is_some_and(|addresses| addresses.contains(&address))
    }

    /// Whether two names belong to one address.
    fn are_aliases(&self, one: &str, other: &str) -> bool {
        let (Some(one), Some(other)) = (self.0.get(one), self.0.get(other)) else { return false };
        one.iter().any(|address| other.contains(address))
    }
}

/// Compares the answers of two readers for an address, which may be among the stubs of calls into libraries.
pub fn compare(names: &Names, is_stub: bool, ours: &Chain, theirs: &Chain) -> Verdict {
    match (ours.as_slice(), theirs.as_slice()) {
        ([], []) => return Verdict::Same,
        (_, []) if is_stub => return Verdict::Differs("a stub (@plt), nameless to them"),
        (_, []) => return Verdict::Differs("nameless to them"),
        // The line table goes on over the padding after a function, and nobody names a function there.
        ([], theirs) if theirs.iter().all(|frame| frame.name.is_empty()) => {
            return Verdict::Style("a line without a function, in padding");
        }
        ([], _) => return Verdict::Differs("nameless to us"),
        _ if is_stub && ours[0].name.ends_with("@plt") => {
            return Verdict::Differs("a stub (@plt), theirs is another");
        }
        _ if ours.len() != theirs.len() => return Verdict::Differs("how much is inlined"),
        _ => {}
    }
    let outermost = ours.len() - 1;
    let mut style = None;
    for (depth, (our, their)) in ours.iter().zip(theirs).enumerate() {
        let names = match name(names, our, their) {
            Verdict::Differs(_) if depth < outermost => Verdict::Differs("name of an inlined function"),
            verdict => verdict,
        };
        for verdict in [names, place(our, their)] {
            match verdict {
                Verdict::Same => {}
                Verdict::Style(what) => style = Some(what),
                Verdict::Differs(_) => return verdict,
            }
        }
    }
    style.map_or(Verdict::Same, Verdict::Style)
}

fn name(names: &Names, our: &Frame, their: &Frame) -> Verdict {
    let (our, their) = (unversioned(&our.name), unversioned(&their.name));
    if our == their {
        return Verdict::Same;
    }
    if names.are_aliases(our, their) {
        return Verdict::Style("another name of the same symbol");
    }
    if without_clone(our) == without_clone(their) {
        return Verdict::Style("suffix of a function's part or copy");
    }
    if their.is_empty() { Verdict::Differs("line without a name to them") } else { Verdict::Differs("name") }
}

fn place(our: &Frame, their: &Frame) -> Verdict {
    if our.line != their.line {
        return Verdict::Differs("line");
    }
    if our.file == their.file {
        return Verdict::Same;
    }
    // Of a symbol without debug information they print the file that the symbol table groups it under.
    if our.line == 0 && our.file.is_empty() {
        return Verdict::Same;
    }
    if plain_path(&our.file) == plain_path(&their.file) {
        return Verdict::Style("`.` and `..` in paths");
    }
    Verdict::Differs("file")
}

/// A name without the version of a symbol (`memcpy@@GLIBC_2.14`).
pub(super) fn unversioned(name: &str) -> &str {
    name.split('@').next().filter(|name| !name.is_empty()).unwrap_or(name)
}

fn without_clone(name: &str) -> &str {
    let end = CLONES.iter().filter_map(|clone| name.find(clone)).min();
    &name[..end.unwrap_or(name.len())]
}

/// A path without `.` and `..`.
fn plain_path(path: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(frames: &[(&str, &str, u32)]) -> Chain {
        let frame =
            |&(name, file, line): &(&str, &str, u32)| Frame { name: name.into(), file: file.into(), line };
        frames.iter().map(frame).collect()
    }

    fn verdict(ours: &[(&str, &str, u32)], theirs: &[(&str, &str, u32)]) -> Verdict {
        let mut names = Names::default();
        for name in ["abort", "__GI_abort"] {
            names.add(name, 16);
        }
        names.add("other", 32);
        compare(&names, false, &chain(ours), &chain(theirs))
    }

    #[test]
    fn what_differs_is_told() {
        let one = [("f", "/a.c", 1)];
        assert_eq!(verdict(&one, &one), Verdict::Same);
        assert_eq!(verdict(&[], &[]), Verdict::Same);
        for (theirs, what) in [
            (&[("g", "/a.c", 1)][..], "name"),
            (&[("f", "/a.c", 2)], "line"),
            (&[("f", "/b.c", 1)], "file"),
            (&[("f", "", 0)], "line"),
            (&[("f", "/a.c", 1), ("f", "/a.c", 1)], "how much is inlined"),
            (&[], "nameless to them"),
        ] {
            assert_eq!(verdict(&one, theirs), Verdict::Differs(what));
        }
        assert_eq!(verdict(&[], &one), Verdict::Differs("nameless to us"));
        let inlined = |name| [(name, "/a.c", 1), ("f", "/a.c", 9)];
        assert_eq!(verdict(&inlined("a"), &inlined("b")), Verdict::Differs("name of an inlined function"));
    }

    #[test]
    fn style_is_no_difference() {
        let style = |our, their| matches!(verdict(&[our], &[their]), Verdict::Style(_));
        assert!(style(("abort", "", 0), ("__GI_abort", "", 0)));
        assert!(!style(("abort", "", 0), ("other", "", 0)));
        assert!(style(("f.cold", "", 0), ("f", "", 0)));
        assert!(style(("f", "/a/../b.c", 1), ("f", "/b.c", 1)));
        assert!(!style(("f", "/a/b.c", 1), ("f", "/b.c", 1)));
        assert_eq!(verdict(&[("f", "", 0)], &[("f@@V_2", "crtstuff.c", 0)]), Verdict::Same);
    }
}
