//! Explains where two readers differ: the kind of difference, which one is right, and by what evidence.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Chain;
use super::compare::{Verdict, compare};
use super::subjects::{Kind, Subject};

/// Who is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Right {
    /// Ours, by the evidence.
    Ours,
    /// The other reader.
    Theirs,
    /// There is no evidence.
    Open,
}

/// A kind of difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// What differs.
    pub class: &'static str,
    /// Who is right.
    pub right: Right,
    /// By what evidence.
    pub evidence: &'static str,
}

/// The readers' answers for an address.
#[derive(Clone, Copy, Debug)]
pub struct Said<'a> {
    /// We.
    pub ours: &'a Chain,
    /// The other reader.
    pub theirs: &'a Chain,
    /// A third one, asked where the two differ.
    pub third: &'a Chain,
}

/// Explains a difference of this kind.
pub fn explain(subject: &Subject, address: u64, what: &'static str, said: Said<'_>) -> Explanation {
    let ours = |class, evidence| Explanation { class, right: Right::Ours, evidence };
    if subject.is_stub(address) {
        if let Some((class, evidence)) = stub(subject, address, said) {
            return ours(class, evidence);
        }
    } else if let Some((class, evidence)) = by_symbols(subject, address, said) {
        return ours(class, evidence);
    }
    let is_stub = subject.is_stub(address);
    let agrees =
        |chain: &Chain| !matches!(compare(&subject.names, is_stub, chain, said.third), Verdict::Differs(_));
    match (agrees(said.ours), agrees(said.theirs)) {
        (true, false) => ours(what, "the third reader says what we say"),
        (false, true) => Explanation {
            class: what,
            right: Right::Theirs,
            evidence: "the third reader says what the other one says",
        },
        _ => Explanation { class: what, right: Right::Open, evidence: "none" },
    }
}

/// In the table of calls into libraries.
fn stub(subject: &Subject, address: u64, said: Said<'_>) -> Option<(&'static str, &'static str)> {
    let Some(our_name) = said.ours.first().map(|frame| frame.name.as_str()) else {
        let is_head = subject.is_table_head(address);
        return is_head.then_some((
            "head of the linkage table, which has no name",
            "no symbol covers it, and it belongs to no stub: all of them jump there",
        ));
    };
    if said.ours == said.third {
        return Some(("stub of the linkage table", "objdump calls the stub so"));
    }
    // objdump tells of a function that is chosen at run time only where it lies.
    let target = said.third.first()?.name.strip_prefix("*ABS*+0x")?.strip_suffix("@plt")?;
    let target = u64::from_str_radix(target, 16).ok()?;
    subject.names.has(our_name.strip_suffix("@plt")?, target).then_some((
        "stub of a function chosen at run time",
        "its relocation leads to where the symbol table has that function",
    ))
}

/// Explains a difference by the types and sizes in the symbol table.
fn by_symbols(subject: &Subject, address: u64, said: Said<'_>) -> Option<(&'static str, &'static str)> {
    let covering = |name: &str| subject.covering(address).find(|symbol| symbol.name == name);
    let Some(our_name) = said.ours.last().map(|frame| frame.name.as_str()) else {
        if subject.is_kernel() {
            return subject.is_in_gap(address).then_some((
                "a gap between sections, which is no function",
                "to the next symbol it is more than ten times as far as the longest function reaches",
            ));
        }
        return subject
            .is_data(address)
            .then_some(("data amid code", "the symbol there is an object, not a function"));
    };
    covering(our_name).filter(|symbol| symbol.kind == Kind::Function)?;
    let Some(their_name) = said.theirs.last().map(|frame| frame.name.as_str()) else {
        return Some(("nameless to the other reader", "the symbol table has a function of our name there"));
    };
    covering(their_name).is_none().then_some((
        "a label within a function",
        "the function's symbol covers the address, the label's has no size",
    ))
}

/// How often each kind was found, and where.
#[derive(Debug, Default)]
pub struct Classes(BTreeMap<(&'static str, &'static str), Class>);

/// Of one kind.
#[derive(Clone, Debug, Serialize)]
pub struct Class {
    /// What differs.
    pub class: &'static str,
    /// Who is right.
    pub right: Right,
    /// By what evidence.
    pub evidence: &'static str,
    /// At how many addresses.
    pub addresses: usize,
    /// The first few of them.
    pub examples: Vec<u64>,
}

impl Classes {
    /// Counts one, and keeps so many examples.
    pub fn add(&mut self, explanation: Explanation, address: u64, keep: usize) {
        let Explanation { class, right, evidence } = explanation;
        let empty = || Class { class, right, evidence, addresses: 0, examples: Vec::new() };
        let found = self.0.entry((class, evidence)).or_insert_with(empty);
        found.addresses += 1;
        if found.examples.len() < keep {
            found.examples.push(address);
        }
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Class> {
        self.0.values()
    }

    /// Addresses at which this one is right.
    pub fn count(&self, right: Right) -> usize {
        self.iter().filter(|class| class.right == right).map(|class| class.addresses).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Frame;
    use super::*;

    fn chain(name: &str) -> Chain {
        let frame = Frame { name: name.to_owned(), file: String::new(), line: 0 };
        if name.is_empty() { Chain::new() } else { vec![frame] }
    }

    fn explained(address: u64, ours: &str, theirs: &str, third: &str) -> Explanation {
        let subject = Subject::of_symbols(&[
            ("function", 100, 50, Kind::Function),
            ("label", 120, 0, Kind::Other),
            ("table", 200, 50, Kind::Data),
            ("table without a size", 400, 0, Kind::Data),
        ]);
        let [ours, theirs, third] = [ours, theirs, third].map(chain);
        explain(&subject, address, "name", Said { ours: &ours, theirs: &theirs, third: &third })
    }

    #[test]
    fn the_symbol_table_is_evidence() {
        for (address, ours, theirs, class) in [
            (130, "function", "label", "a label within a function"),
            (130, "function", "", "nameless to the other reader"),
            (210, "", "table", "data amid code"),
            (410, "", "table without a size", "data amid code"),
        ] {
            let found = explained(address, ours, theirs, "");
            assert_eq!((found.class, found.right), (class, Right::Ours));
        }
        // Neither a name that is not there nor one of data is ours to give.
        assert_ne!(explained(130, "label", "function", "function").right, Right::Ours);
        assert_ne!(explained(210, "table", "", "").right, Right::Ours);
    }

    #[test]
    fn without_it_the_third_reader_decides() {
        assert_eq!(explained(300, "a", "b", "a").right, Right::Ours);
        assert_eq!(explained(300, "a", "b", "b").right, Right::Theirs);
        assert_eq!(explained(300, "a", "b", "c").right, Right::Open);
        assert_eq!(explained(300, "", "b", "").right, Right::Ours);
    }
}
