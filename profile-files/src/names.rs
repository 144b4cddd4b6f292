//! Names for places that cannot hold every name: a terminal, a line-based format, a narrow column.

use std::borrow::Cow;
use std::fmt::Write;
use std::ops::Range;

/// The name without characters that a terminal or an XML file would act upon: a function of the target may be
/// called anything, an escape sequence too. Line ends, as in the command line of a script, become blanks.
pub fn visible(name: &str) -> String {
    escape(&one_line(name), |_| false)
}

/// `name` with each run of blanks that ends a line as one blank.
fn one_line(name: &str) -> Cow<'_, str> {
    let ends_line =
        |c: char| matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{85}' | '\u{2028}' | '\u{2029}');
    if !name.contains(ends_line) {
        return Cow::Borrowed(name);
    }
    let lines = name.split(ends_line).map(str::trim).filter(|line| !line.is_empty());
    Cow::Owned(lines.collect::<Vec<_>>().join(" "))
}

/// The name as a frame of a folded stack, where `;` parts the frames, a line end the stacks, and a last word that is a
/// number, with a point or without, is the count. Readers leave blanks out at the ends of a line.
pub(super) fn folded(name: &str) -> String {
    let line = one_line(name);
    let inner = line.trim();
    let (before, after) = line.split_at(line.len() - line.trim_start().len());
    let after = &after[inner.len()..];
    let blanks = |blanks: &str| escape(blanks, |_| true);
    blanks(before) + &folded_inner(inner) + &blanks(after)
}

fn folded_inner(name: &str) -> String {
    let escaped = escape(name, |character| character == ';');
    match escaped.rsplit_once(' ') {
        Some((head, tail)) if is_number(tail) => {
            format!("{head}\\x20{tail}")
        }
        _ => escaped,
    }
}

fn is_number(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
}

/// `name` with control characters and those `also` chooses written as `\x3b`.
fn escape(name: &str, also: impl Fn(char) -> bool) -> String {
    let hostile = |c: char| {
        c.is_control()
            || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{fffe}' | '\u{ffff}')
    };
    let mut out = String::with_capacity(name.len());
    for character in name.chars() {
        if hostile(character) || also(character) {
            let _ = write!(out, "\\x{:02x}", u32::from(character));
        } else {
            out.push(character);
        }
    }
    out
}

/// `name [module]` in at most `width` columns: the module is shortened first, down to a few columns, then the function.
pub(super) fn with_module(name: &str, module: &str, width: usize) -> String {
    let left = width.saturating_sub(length(name) + 1);
    let module = in_brackets(module, left.max(LEAST_MODULE));
    let left = width.saturating_sub(length(&module) + 1);
    format!("{} {module}", shorten(name, left))
}

/// Columns that a module keeps, brackets included.
const LEAST_MODULE: usize = 8;

/// A module in at most `width` columns: without its folder, then without its version, then without its middle.
fn in_brackets(module: &str, width: usize) -> String {
    // `[kernel]` and `[vdso]` have their brackets.
    let inner = module.strip_prefix('[').and_then(|inner| inner.strip_suffix(']')).unwrap_or(module);
    let file = inner.rsplit('/').next().filter(|file| !file.is_empty()).unwrap_or(inner);
    let library = file.find(".so.").map_or(file, |at| &file[..at + ".so".len()]);
    let room = width.saturating_sub(2);
    let fitting = [inner, file, library].into_iter().find(|form| length(form) <= room);
    format!("[{}]", fitting.map_or_else(|| without_middle(library, room), str::to_owned))
}

/// `name` in at most `width` characters. What tells functions apart goes last: template arguments are left out first, the
/// longest of them before the others, then what comes before the last segment of the path, then the segment's arguments
/// and its middle.
pub(super) fn shorten(name: &str, width: usize) -> String {
    let name = without_templates(name, width);
    if length(&name) <= width {
        return name;
    }
    let last = last_segment(&name);
    if length(last) < width {
        let head: String = name.chars().take(width - 1 - length(last)).collect();
        return format!("{head}…{last}");
    }
    without_middle(&without_arguments(last), width)
}

fn length(text: &str) -> usize {
    text.chars().count()
}

/// Its beginning and its end.
fn without_middle(text: &str, width: usize) -> String {
    let all = length(text);
    if all <= width {
        return text.to_owned();
    }
    let left = width.saturating_sub(1);
    let head = left / 2;
    let ends = text.chars().take(head).chain(['…']).chain(text.chars().skip(all - (left - head)));
    ends.take(width).collect()
}

/// `f<…>` for `f<int, float>`, as far as needed. The type in `<Type as Trait>::f` stays, since it says whose `f` it is.
fn without_templates(name: &str, width: usize) -> String {
    let mut name = name.to_owned();
    while length(&name) > width {
        let Some(longest) = templates(&name).into_iter().max_by_key(|inner| inner.len()) else { break };
        name.replace_range(longest, "…");
    }
    name
}

/// Insides of the outermost brackets of template arguments, such that leaving them out makes the name shorter.
fn templates(name: &str) -> Vec<Range<usize>> {
    let (mut found, mut open) = (Vec::new(), Vec::new());
    for (at, bracket) in brackets(name) {
        match bracket {
            '<' => open.push(at + 1),
            '>' => {
                let inner = open.pop().map_or(at..at, |start| start..at);
                let in_another = open.iter().any(|start| *start > 1);
                if inner.start > 1 && length(&name[inner.clone()]) > 1 && !in_another {
                    found.push(inner);
                }
            }
            _ => {}
        }
    }
    found
}

/// Brackets of a name and where they are; `->`, `<<` and the like are none.
fn brackets(name: &str) -> impl Iterator<Item = (usize, char)> {
    let mut before = ' ';
    let mut in_operator = false;
    name.char_indices().filter(move |&(at, character)| {
        let is_arrow = before == '-' && character == '>';
        in_operator =
            name[..at].ends_with("operator") || in_operator && matches!(character, '<' | '>' | '=' | '-');
        before = character;
        "<>()[]{}".contains(character) && !is_arrow && !(in_operator && matches!(character, '<' | '>'))
    })
}

/// `f(…)` for `f(int, float)`.
fn without_arguments(segment: &str) -> String {
    let (Some(open), Some(close)) = (segment.find('('), segment.rfind(')')) else {
        return segment.to_owned();
    };
    let has_name = open > 0 && close > open + 1;
    if has_name { format!("{}(…{}", &segment[..open], &segment[close..]) } else { segment.to_owned() }
}

/// What follows the last `::` that stands outside brackets, or the whole name. A closure goes with what it is in.
fn last_segment(name: &str) -> &str {
    let mut starts = segments(name);
    let is_closure = |start: usize| name[start..].starts_with('{');
    while starts.len() > 1 && starts.last().is_some_and(|start| is_closure(*start)) {
        starts.pop();
    }
    &name[starts.pop().unwrap_or(0)..]
}

/// Where the segments of a path begin.
fn segments(name: &str) -> Vec<usize> {
    let mut depth = 0_u32;
    let mut at_brackets = brackets(name).peekable();
    let mut starts = vec![0];
    let separators = name.match_indices("::").map(|(at, _)| at);
    for at in separators {
        while let Some((_, bracket)) = at_brackets.next_if(|(bracket, _)| *bracket < at) {
            depth = if "<([{".contains(bracket) { depth + 1 } else { depth.saturating_sub(1) };
        }
        if depth == 0 {
            starts.push(at + 2);
        }
    }
    starts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_last_segment_survives() {
        let name = "<alloc::vec::Vec<core::option::Option<u8>> as core::ops::drop::Drop>::drop";
        assert_eq!(shorten(name, 60), "<alloc::vec::Vec<…> as core::ops::drop::Drop>::drop");
        assert_eq!(shorten(name, 20), "<alloc::vec::Ve…drop");
        assert_eq!(
            shorten("core::slice::sort::insert_tail::{{closure}}", 30),
            "core:…insert_tail::{{closure}}"
        );
        assert_eq!(shorten("main", 4), "main");
    }

    #[test]
    fn template_arguments_go_first_then_the_path_then_arguments() {
        let operator = "std::map<std::string, int>::operator[](std::string const&)";
        assert_eq!(shorten(operator, 50), "std::map<…>::operator[](std::string const&)");
        assert_eq!(shorten(operator, 40), "std::map<…operator[](std::string const&)");
        assert_eq!(shorten(operator, 20), "operator[](…)");
        let two = "a<long_argument>::b<shorter>::insert";
        assert_eq!(shorten(two, 26), "a<…>::b<shorter>::insert");
        assert_eq!(shorten(two, 20), "a<…>::b<…>::insert");
        let shift = "a::operator<<(std::vector<int, std::allocator<int> >&)";
        assert_eq!(shorten(shift, 40), "a::operator<<(std::vector<…>&)");
        assert_eq!(shorten("f(void (*)(int)) const", 12), "f(…) const");
    }

    #[test]
    fn a_long_plain_name_keeps_both_ends() {
        assert_eq!(shorten("a_very_long_plain_function_name", 11), "a_ver…_name");
        assert_eq!(shorten("abc", 1), "…");
    }

    #[test]
    fn the_module_is_shortened_before_the_function() {
        let named = |width| with_module("memcpy_avx_unaligned", "/usr/lib/libc.so.6", width);
        assert_eq!(named(42), "memcpy_avx_unaligned [/usr/lib/libc.so.6]");
        assert_eq!(named(33), "memcpy_avx_unaligned [libc.so.6]");
        assert_eq!(named(31), "memcpy_avx_unaligned [libc.so]");
        assert_eq!(named(29), "memcpy_avx_unaligned [li….so]");
        assert_eq!(named(25), "memcpy_…naligned [li….so]");
        assert_eq!(with_module("clear_page", "[kernel]", 80), "clear_page [kernel]");
    }

    #[test]
    fn names_cannot_steer_a_terminal() {
        assert_eq!(visible("evil\x1b[2J\nname"), "evil\\x1b[2J name");
        assert_eq!(visible("sh -c 'a\r\n  b\u{2028}\n'\n"), "sh -c 'a b '");
        assert_eq!(folded("a;b\n"), "a\\x3bb");
        assert_eq!(folded("jit\n12"), "jit\\x2012");
        assert_eq!(folded("jit 12"), "jit\\x2012");
        for number in ["1.5", "1.", ".5", "1.2.3", "7"] {
            assert_eq!(folded(&format!("foo {number}")), format!("foo\\x20{number}"));
        }
        assert_eq!(folded("foo 1.5 x"), "foo 1.5 x");
        assert_eq!(folded("1.5"), "1.5");
    }

    proptest! {
        #[test]
        fn a_shortened_name_fits(name in "\\PC{0,80}", width in 1..60_usize) {
            prop_assert!(shorten(&name, width).chars().count() <= width);
            let named = with_module(&name, &name, width + LEAST_MODULE);
            prop_assert!(named.chars().count() <= width + LEAST_MODULE, "{named}");
        }

        #[test]
        fn a_folded_name_has_no_separator(name in "\\PC{0,20}[;\n 0-9]{0,6}") {
            let name = folded(&name);
            prop_assert!(!name.contains([';', '\n']));
            // What is left of a line that is read again as one: scripts look for a count in it.
            prop_assert!(name.rsplit_once(' ').is_none_or(|(_, last)| last.parse::<f64>().is_err() || last.contains(|c: char| c.is_alphabetic() || c == '-' || c == '+')));
        }
    }
}
