//! Names for places that cannot hold every name: a terminal, a line-based format, a narrow column.

use std::fmt::Write;

/// The name without characters that a terminal or an XML file would act upon: a function of the target may be
/// called anything, an escape sequence too.
pub(crate) fn visible(name: &str) -> String {
    escape(name, |_| false)
}

/// The name as a frame of a folded stack, where `;` parts the frames, a line break the stacks, and a last word that is a
/// number, with a point or without, is the count.
pub(super) fn folded(name: &str) -> String {
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

/// `name` in at most `width` characters: the middle goes, and the last segment of the path stays, since it is
/// what tells two functions of one module apart.
pub(super) fn shorten(name: &str, width: usize) -> String {
    let length = name.chars().count();
    if length <= width {
        return name.to_owned();
    }
    let last = last_segment(name);
    let last_length = last.chars().count();
    if last_length + 1 >= width {
        let head: String = last.chars().take(width.saturating_sub(1)).collect();
        return format!("{head}…");
    }
    let head: String = name.chars().take(width - 1 - last_length).collect();
    format!("{head}…{last}")
}

/// What follows the last `::` that stands outside brackets, or the whole name.
fn last_segment(name: &str) -> &str {
    let mut depth = 0_u32;
    let mut start = 0;
    let mut before = '\0';
    for (at, character) in name.char_indices() {
        match character {
            '<' | '(' | '[' | '{' => depth += 1,
            '>' if before == '-' => {} // the arrow of a return type
            '>' | ')' | ']' | '}' => depth = depth.saturating_sub(1),
            ':' if before == ':' && depth == 0 => start = at + 1,
            _ => {}
        }
        before = character;
    }
    &name[start..]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_last_segment_survives() {
        let name = "<alloc::vec::Vec<core::option::Option<u8>> as core::ops::drop::Drop>::drop";
        assert_eq!(shorten(name, 20), "<alloc::vec::Ve…drop");
        let operator = "std::map<std::string, int>::operator[](std::string const&)";
        assert_eq!(shorten(operator, 40), "std::map<…operator[](std::string const&)");
        assert_eq!(shorten("main", 4), "main");
        assert_eq!(shorten("a_very_long_plain_function_name", 10), "a_very_lo…");
    }

    #[test]
    fn names_cannot_steer_a_terminal() {
        assert_eq!(visible("evil\x1b[2J\nname"), "evil\\x1b[2J\\x0aname");
        assert_eq!(folded("a;b\n"), "a\\x3bb\\x0a");
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
