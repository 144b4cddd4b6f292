//! `/tmp/perf-PID.map`: a line of text for each piece of code, `START SIZE NAME`, the numbers in hexadecimal, a space or a tab between.

use std::sync::Arc;

use crate::demangle::demangle;

/// Longer names are cut: they help nobody.
const LONGEST_NAME: usize = 4096;

/// The text of a perf map.
///
/// A program appends to it as it compiles, and may put new code where old code was: the last line that covers an address
/// tells its name. Lines that are none of this format are passed over.
#[derive(Clone, Copy, Debug)]
pub struct PerfMap<'a>(&'a [u8]);

/// One line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PerfMapLine<'a> {
    start: u64,
    end: u64,
    name: &'a [u8],
}

impl<'a> PerfMap<'a> {
    /// A map of this text.
    pub fn new(text: &'a [u8]) -> Self {
        Self(text)
    }

    /// The names at `addresses`, in their order. Time and memory are in proportion to the text and the addresses, whatever
    /// the text says.
    pub fn names(&self, addresses: &[u64]) -> Vec<Option<Arc<str>>> {
        let mut order: Vec<usize> = (0..addresses.len()).collect();
        order.sort_unstable_by_key(|&index| addresses[index]);
        let sorted: Vec<u64> = order.iter().map(|&index| addresses[index]).collect();
        let mut names = vec![None; addresses.len()];
        let mut open = Open::new(sorted.len());
        // From the last line to the first, so that each address is named once.
        for line in self.0.rsplit(|&byte| byte == b'\n').filter_map(PerfMapLine::parse) {
            let mut name = None;
            let mut at = open.next(sorted.partition_point(|&address| address < line.start));
            while sorted.get(at).is_some_and(|&address| address < line.end) {
                let name = name.get_or_insert_with(|| Arc::<str>::from(readable_name(line.name)));
                names[order[at]] = Some(Arc::clone(name));
                open.close(at);
                at = open.next(at);
            }
        }
        names
    }
}

impl<'a> PerfMapLine<'a> {
    fn parse(line: &'a [u8]) -> Option<Self> {
        let mut words = line.splitn(3, |&byte| matches!(byte, b' ' | b'\t'));
        let start = hexadecimal(words.next()?)?;
        let size = hexadecimal(words.next()?)?;
        let name = words.next()?.trim_ascii();
        let is_some = size > 0 && !name.is_empty();
        is_some.then_some(Self { start, end: start.checked_add(size)?, name })
    }
}

/// A name as a person reads it.
pub(super) fn readable_name(bytes: &[u8]) -> String {
    demangle(&String::from_utf8_lossy(&bytes[..bytes.len().min(LONGEST_NAME)]))
}

fn hexadecimal(digits: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(digits).ok()?;
    let digits = digits.strip_prefix("0x").unwrap_or(digits);
    let is_plain = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    u64::from_str_radix(digits, 16).ok().filter(|_| is_plain)
}

/// Places in a list that nobody has taken yet (the find of union-find).
struct Open(Vec<usize>);

impl Open {
    fn new(len: usize) -> Self {
        Self((0..=len).collect())
    }

    /// The first open place from `at` on; the length of the list if there is none.
    fn next(&mut self, at: usize) -> usize {
        let mut root = at;
        while self.0[root] != root {
            root = self.0[root];
        }
        let mut at = at;
        while self.0[at] != root {
            at = std::mem::replace(&mut self.0[at], root);
        }
        root
    }

    fn close(&mut self, at: usize) {
        self.0[at] = at + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name(text: &str, address: u64) -> Option<String> {
        PerfMap::new(text.as_bytes()).names(&[address]).remove(0).map(|name| name.to_string())
    }

    #[test]
    fn names_hold_what_they_hold_and_end_with_the_code() {
        let text = "1000 10 LazyCompile:*run /srv/app.js:3:1\n0x2000 0x1 py::f:/a b.py\n";
        assert_eq!(name(text, 0x1000).unwrap(), "LazyCompile:*run /srv/app.js:3:1");
        assert_eq!(name(text, 0x100f).unwrap(), "LazyCompile:*run /srv/app.js:3:1");
        assert_eq!(name(text, 0x1010), None);
        assert_eq!(name(text, 0x2000).unwrap(), "py::f:/a b.py");
        assert_eq!(name("1000 10 _ZN5space3fooEii", 0x1001).unwrap(), "space::foo(int, int)");
    }

    #[test]
    fn tabs_part_words_as_spaces_do() {
        let text = "1000\t10\ttabbed\n2000 10\ta\tb\n";
        assert_eq!(name(text, 0x1000).unwrap(), "tabbed");
        assert_eq!(name(text, 0x2000).unwrap(), "a\tb");
    }

    #[test]
    fn the_last_line_wins() {
        let text = "1000 100 old\n1040 10 new\n";
        assert_eq!(name(text, 0x1040).unwrap(), "new");
        assert_eq!(name(text, 0x1050).unwrap(), "old");
    }

    #[test]
    fn lines_that_say_nothing_are_passed_over() {
        let text = "\n1000\n1000 10\n1000 0 none\n1000 10 \n-1 10 a\n+1000 10 b\n\
                    ffffffffffffffff 2 past the end\n11111111111111111 1 too long\n1000  10 c\n";
        assert_eq!(name(text, 0x1000), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(text: Vec<u8>, addresses in prop::collection::vec(any::<u64>(), 0..20)) {
            prop_assert_eq!(PerfMap::new(&text).names(&addresses).len(), addresses.len());
        }

        #[test]
        fn every_address_has_the_name_of_the_last_line_that_covers_it(
            lines in prop::collection::vec((0u64..40, 0u64..12), 0..30),
            addresses in prop::collection::vec(0u64..60, 0..60),
        ) {
            let text: String =
                lines.iter().zip(0..).map(|((start, size), i)| format!("{start:x} {size:x} f{i}\n")).collect();
            let covers = |&(start, size): &(u64, u64), address| (start..start + size).contains(&address);
            let expected = addresses.iter().map(|&address| {
                lines.iter().rposition(|line| covers(line, address)).map(|i| Arc::from(format!("f{i}")))
            });
            let expected: Vec<Option<Arc<str>>> = expected.collect();
            prop_assert_eq!(PerfMap::new(text.as_bytes()).names(&addresses), expected);
        }
    }
}
