//! The profile as Markdown, for an issue or a pull request: the summary as a list, the functions as a table.

use std::fmt::Write as _;
use std::io::{self, Write};

use profiler_core::profile::{Run, SymbolizedProfile};

use super::table::{Cells, NAME_TITLE, SummaryLine, View, about_rows, about_run, more, nothing};
use super::{NAME_WIDTH, title};
use crate::functions::{FunctionCost, functions};

/// Share of a function from which it is listed.
const LEAST_SHARE: f64 = 0.001;

/// Writes `profile` as Markdown with at most `view.top` functions.
///
/// # Errors
///
/// If `out` refuses.
pub(super) fn write(profile: &SymbolizedProfile, view: View, out: &mut dyn Write) -> io::Result<()> {
    let (run, table) = (&profile.run, functions(profile));
    let large = table.functions.partition_point(|function| function.share >= LEAST_SHARE);
    let (shown, hidden) = table.functions.split_at(large.min(view.top));
    let mut parts = vec![format!("## {}\n", span(&title(run))), list(&about_run(profile, &table))];
    if table.functions.is_empty() {
        parts.push(list(&[("note", nothing(run))]));
    }
    if !shown.is_empty() {
        parts.push(rows(run, shown));
    }
    if !hidden.is_empty() {
        parts.push(escaped(&more(hidden, &run.measure)) + "\n");
    }
    parts.push(list(&about_rows(run, &table, shown.len())));
    parts.retain(|part| !part.is_empty());
    out.write_all(parts.join("\n").as_bytes())
}

fn list(lines: &[SummaryLine]) -> String {
    lines.iter().map(|(label, text)| format!("- **{label}** {}\n", escaped(text))).collect()
}

fn rows(run: &Run, functions: &[FunctionCost]) -> String {
    let Cells { titles, rows } = Cells::of(run, functions);
    let figures =
        |cells: &[String]| cells.iter().map(|cell| format!("| {} ", escaped(cell))).collect::<String>();
    let mut text = format!("{}| | {} |\n", figures(&titles), escaped(NAME_TITLE));
    let _ = writeln!(text, "{}|---|---|", "|---:".repeat(titles.len()));
    for row in rows {
        let name = code(&row.name(NAME_WIDTH));
        let _ = writeln!(text, "{}| {} | {name} |", figures(&row.figures), escaped(row.mark));
    }
    text
}

/// Text without anything that Markdown or HTML acts upon. GitHub takes `@name` and `#1` for a person and an issue even after a
/// backslash, but not with a comment within.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        if "\\`*_[]<>|~&$".contains(character) {
            out.push('\\');
        }
        out.push(character);
        if "@#".contains(character) {
            out.push_str("<!-- -->");
        }
    }
    out.replace("://", ":\\//").replace("www.", "www\\.")
}

/// A name as code in a cell of a table. What has a `|`, which would end the cell, is HTML.
fn code(name: &str) -> String {
    if !name.contains('|') {
        return span(name);
    }
    let in_html = name.chars().map(|character| match character.is_ascii_punctuation() {
        true => format!("&#{};", u32::from(character)),
        false => character.to_string(),
    });
    format!("<code>{}</code>", in_html.collect::<String>())
}

/// A name as a code span.
fn span(name: &str) -> String {
    let longest = name.split(|character| character != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest + 1);
    // One blank at both ends is left out by readers.
    let blank = if name.starts_with(['`', ' ']) || name.ends_with(['`', ' ']) { " " } else { "" };
    format!("{fence}{blank}{name}{blank}{fence}")
}

#[cfg(test)]
mod tests {
    use profiler_core::profile::SymbolizedProfile;

    use super::*;
    use crate::testing;

    fn markdown(profile: &SymbolizedProfile, top: usize) -> String {
        let mut out = Vec::new();
        write(profile, View { top, ..View::default() }, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    /// The cells of the lines that are rows of a table, as GitHub's grammar cuts them.
    fn cells(text: &str) -> Vec<Vec<String>> {
        let rows = text.lines().filter(|line| line.starts_with('|'));
        rows.map(|line| {
            let line = line.strip_prefix('|').unwrap().strip_suffix('|').unwrap();
            line.split('|').map(|cell| cell.trim().to_owned()).collect()
        })
        .collect()
    }

    #[test]
    fn markdown_of_a_run() {
        insta::assert_snapshot!(markdown(&testing::profile(), 4));
    }

    #[test]
    fn all_functions_but_the_small_are_listed_and_the_rest_is_summed_up() {
        let mut profile = testing::profile();
        let text = markdown(&profile, usize::MAX);
        let shares = |text: &str| -> f64 {
            let share =
                |row: &Vec<String>| row[1].strip_suffix('%').and_then(|share| share.parse::<f64>().ok());
            cells(text).iter().filter_map(share).sum()
        };
        assert_eq!(cells(&text).len(), 2 + 5, "{text}");
        assert!(text.contains("\n…and 1 more function (0.1% of the CPU time)\n"), "{text}");
        assert!((shares(&text) - 99.9).abs() < 0.05, "{text}");
        profile.stacks.retain(|stack| !stack.frames.is_empty());
        let text = markdown(&profile, usize::MAX);
        assert!(!text.contains("more function") && (shares(&text) - 100.0).abs() < 0.05, "{text}");
        let text = markdown(&profile, 1);
        assert!(cells(&text).len() == 2 + 1 && text.contains("…and 4 more functions (60.0% of"), "{text}");
    }

    #[test]
    fn a_hostile_name_is_one_cell_that_nothing_acts_upon() {
        let mut profile = testing::profile();
        let long = "x".repeat(10_000);
        let names = ["a|b`c", "</script><script>", "line\nend\x1b", &long, "`", "operator||"];
        for (function, name) in profile.functions[1..].iter_mut().zip(names) {
            function.name = name.to_owned();
        }
        profile.run.target = "*x* <b> [y](http://z) @all #1 `z` | $a$\n# title".to_owned();
        let text = markdown(&profile, usize::MAX);
        let rows = cells(&text);
        assert!(rows.iter().all(|row| row.len() == 6), "{text}");
        assert!(text.lines().all(|line| line.chars().count() < 1_000));
        for line in text.lines().filter(|line| line.starts_with("- ")) {
            assert!(!line.contains(" <b>") && !line.contains("://") && !line.contains("@all"), "{line}");
        }
        assert_eq!(text.lines().filter(|line| line.starts_with('#')).count(), 1, "{text}");
    }

    #[test]
    fn names_are_code_whatever_they_hold() {
        for (name, written) in [
            ("main [a.out]", "`main [a.out]`"),
            ("a`b", "``a`b``"),
            ("`a``", "``` `a`` ```"),
            (" a ", "`  a  `"),
            ("<b>&amp;_x_", "`<b>&amp;_x_`"),
            ("a|`b`", "<code>a&#124;&#96;b&#96;</code>"),
            ("\\|<", "<code>&#92;&#124;&#60;</code>"),
        ] {
            assert_eq!(code(name), written);
        }
    }

    #[test]
    fn text_is_escaped() {
        assert_eq!(
            escaped("a_b *c* <d> `e` [f] g|h ~i \\"),
            "a\\_b \\*c\\* \\<d\\> \\`e\\` \\[f\\] g\\|h \\~i \\\\"
        );
        assert_eq!(escaped("@all #1 http://x www.y"), "@<!-- -->all #<!-- -->1 http:\\//x www\\.y");
        assert_eq!(escaped("10.05 s of CPU time (95%), 2"), "10.05 s of CPU time (95%), 2");
    }

    #[test]
    fn a_profile_without_samples_says_so() {
        assert_eq!(markdown(&SymbolizedProfile::default(), 5), "## `CPU time`\n\n- **note** no samples\n");
        assert_eq!(markdown(&testing::profile(), 5), markdown(&testing::profile(), 5));
    }
}
