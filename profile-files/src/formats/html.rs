//! The profile as one web page that needs nothing else: the summary, the flame graph and all functions.

use std::fmt::Write as _;
use std::io::{self, Write};

use profiler_core::profile::SymbolizedProfile;
use quick_xml::escape::escape;

use super::table::{Cells, NAME_TITLE, SummaryLine, about_rows, about_run, nothing};
use super::{NAME_WIDTH, svg, title};
use crate::functions::functions;

/// What comes before the title. The policy keeps a page that was saved from asking anything of the network.
const HEAD: &str = r#"<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'"/>
<style>
:root { color-scheme: light; --text: #1b1b1b; --page: #fff; --line: #ddd; --quiet: #666; }
@media (prefers-color-scheme: dark) {
  :root { color-scheme: dark; --text: #ddd; --page: #1b1b1b; --line: #444; --quiet: #999; }
}
body { margin: 0 auto; max-width: 80rem; padding: 1rem; color: var(--text); background: var(--page);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.4rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; }
dt, th { color: var(--quiet); font-weight: normal; }
dd, figure { margin: 0; }
figure { overflow-x: auto; }
figure > svg { width: 100%; min-width: 40rem; }
table { border-collapse: collapse; width: 100%; }
th, td { padding: .1rem .5rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
.figure { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
@media (max-width: 40rem) { dl { display: block; } dd { margin-bottom: .5rem; } th, td { padding: .1rem .2rem; font-size: .8rem; } }
</style>
"#;

/// What the graph's script needs in a page. It takes the keys that search a page, which shall search all of this one: the graph has a
/// button. It keeps its state in the address, which fails where the page is shown within another, and would end a search.
const AROUND_THE_GRAPH: &str = r#"<script>
addEventListener("keydown", event => event.stopImmediatePropagation(), true);
const replaceState = history.replaceState.bind(history);
history.replaceState = (...state) => { try { replaceState(...state); } catch {} };
</script>
"#;

/// Writes `profile` as a web page.
///
/// # Errors
///
/// As [`svg::graph`], or if `out` refuses.
pub(super) fn write(profile: &SymbolizedProfile, out: &mut dyn Write) -> io::Result<()> {
    let (run, table) = (&profile.run, functions(profile));
    let title = title(run);
    let title = escape(&title);
    let graph = svg::graph(profile)?;
    // Without the declarations of a file of its own. The script looks for the first graph of the document.
    let graph = &graph[graph.find("<svg").unwrap_or_default()..];
    let mut text = format!("{HEAD}<title>{title}</title>\n</head>\n<body>\n<h1>{title}</h1>\n");
    text += &list(&about_run(profile, &table));
    if table.functions.is_empty() {
        let _ = writeln!(text, "<p>{}</p>", escape(nothing(run)));
    } else {
        let _ = writeln!(text, "{AROUND_THE_GRAPH}<figure>\n{graph}</figure>");
        text += &rows(&Cells::of(run, &table.functions));
        text += &list(&about_rows(run, &table, table.functions.len()));
    }
    out.write_all((text + "</body>\n</html>\n").as_bytes())
}

fn list(lines: &[SummaryLine]) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let line = |(label, text): &SummaryLine| format!("<dt>{label}</dt><dd>{}</dd>\n", escape(text));
    format!("<dl>\n{}</dl>\n", lines.iter().map(line).collect::<String>())
}

fn rows(Cells { titles, rows }: &Cells) -> String {
    let cells = |tag: &str, cells: &[String]| {
        let cell = |cell: &String| format!("<{tag} class=\"figure\">{}</{tag}>", escape(cell));
        cells.iter().map(cell).collect::<String>()
    };
    let mut text = format!("<table>\n<tr>{}<th></th><th>{NAME_TITLE}</th></tr>\n", cells("th", titles));
    for row in rows {
        let (figures, name) = (cells("td", &row.figures), row.name(NAME_WIDTH));
        let _ =
            writeln!(text, "<tr>{figures}<td>{}</td><td><code>{}</code></td></tr>", row.mark, escape(&name));
    }
    text + "</table>\n"
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use quick_xml::Reader;
    use quick_xml::events::Event;

    use super::*;
    use crate::testing;

    fn page(profile: &SymbolizedProfile) -> String {
        let mut out = Vec::new();
        write(profile, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    /// How often each element is in the page, which has to be well-formed.
    fn elements(page: &str) -> BTreeMap<String, usize> {
        let mut reader = Reader::from_str(page);
        let mut counts = BTreeMap::new();
        loop {
            match reader.read_event().unwrap() {
                Event::Start(element) | Event::Empty(element) => {
                    element.attributes().for_each(|attribute| assert!(attribute.is_ok(), "{element:?}"));
                    let name = String::from_utf8(element.name().as_ref().to_vec()).unwrap();
                    *counts.entry(name).or_default() += 1;
                }
                Event::Eof => return counts,
                _ => {}
            }
        }
    }

    #[test]
    fn the_page_has_the_summary_the_graph_and_all_functions() {
        let page = page(&testing::profile());
        let elements = elements(&page);
        assert_eq!((elements["tr"], elements["td"], elements["th"]), (1 + 6, 6 * 6, 6), "{elements:?}");
        assert_eq!((elements["h1"], elements["figure"], elements["table"]), (1, 1, 1));
        for text in ["<h1>./server --port 80</h1>", "<dt>overhead</dt><dd>slowdown 0.44%", "<title>memcpy ("]
        {
            assert!(page.contains(text), "{text} is missing");
        }
        assert!(page.contains("<code>[no stack] [unknown]</code>") && page.contains("95% interval"));
    }

    /// It is opened from a disk without a network, and so that the graph's script finds its graph.
    #[test]
    fn the_page_needs_nothing_else() {
        let page = page(&testing::profile());
        let loads = ["<link", "<img", "<iframe", "<object", "src=", "url(h", "@import", "<?xml"];
        assert!(loads.iter().all(|load| !page.contains(load)));
        let (before, graph) = page.split_once("<svg").unwrap();
        let (script, graph) = graph.rsplit_once("</script>").unwrap();
        assert!(script.contains("onload=\"init(evt)\"") && script.contains("function init(evt)"));
        for id in ["details", "search", "unzoom", "matched", "frames"] {
            let id = format!(" id=\"{id}\"");
            assert_eq!((before.matches(&id).count(), graph.matches(&id).count()), (0, 1), "{id}");
        }
    }

    #[test]
    fn hostile_names_stay_text() {
        let mut profile = testing::profile();
        let usual = elements(&page(&profile));
        let hostile = "</title></style></script><script>alert(1)</script>\n\x02\"'&amp;|]]>";
        profile.run.target = hostile.to_owned();
        profile.run.notes.push(hostile.to_owned());
        profile.processes[0].comm = hostile.to_owned();
        profile.modules[0].name = hostile.to_owned();
        profile.functions[1].name = hostile.to_owned();
        profile.functions[5].name = "x".repeat(10_000);
        let page = page(&profile);
        assert!(!page.contains("<script>alert") && !page.contains(['\x02']));
        let elements = elements(&page);
        for element in ["script", "style", "table", "tr", "td", "h1", "body"] {
            assert_eq!(elements[element], usual[element], "{element}");
        }
        assert!(page.split("<table>").nth(1).unwrap().lines().all(|line| line.len() < 1_000));
    }

    #[test]
    fn a_profile_without_samples_says_so() {
        let page = page(&SymbolizedProfile::default());
        assert!(page.contains("<h1>CPU time</h1>\n<p>no samples</p>"), "{page}");
        assert!(!elements(&page).contains_key("table"));
    }

    #[test]
    fn equal_profiles_give_equal_pages() {
        assert_eq!(page(&testing::profile()), page(&testing::profile()));
    }
}
