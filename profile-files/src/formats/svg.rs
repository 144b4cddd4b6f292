//! A flame graph as one SVG file that needs nothing else.

use std::io::{self, Write};

use config::Ratio;
use inferno::flamegraph::{self, Options};
use profiler_core::profile::{Run, SymbolizedProfile};
use quick_xml::escape::escape;
use rustc_hash::FxHashMap;

use super::table::complete;
use super::{folded, title};
use crate::functions::{InclusiveShare, wholes};
use crate::names;

/// Writes `profile` as a flame graph.
///
/// # Errors
///
/// As [`graph`], or if `out` refuses.
pub(super) fn write(profile: &SymbolizedProfile, out: &mut dyn Write) -> io::Result<()> {
    out.write_all(graph(profile)?.as_bytes())
}

/// The flame graph as an XML document; widths are CPU time, or what the file holds in its place, in microseconds.
///
/// # Errors
///
/// If the names on its stacks are too long together.
pub(super) fn graph(profile: &SymbolizedProfile) -> io::Result<String> {
    let mut options = Options::default();
    options.title = title(&profile.run);
    options.subtitle = Some(subtitle(&profile.run));
    options.count_name = "µs".to_owned();
    options.deterministic = true; // equal profiles give equal files
    let mut lines = folded::lines(profile)?;
    if lines.is_empty() {
        lines.push("no samples 1".to_owned()); // an empty graph is an error to inferno, and not to us
    }
    let mut svg = Vec::new();
    flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), &mut svg)?;
    let svg = String::from_utf8(svg).map_err(io::Error::other)?;
    Ok(with_intervals(&svg, &intervals(profile)))
}

/// What the tooltip of a function adds to the figures of one of its frames: by its name, as it stands in the graph.
fn intervals(profile: &SymbolizedProfile) -> FxHashMap<String, String> {
    let confidence =
        Ratio::new(profile.run.how.confidence).map_or_else(|_| String::new(), |level| level.to_string());
    let added = wholes(profile).into_iter().map(|(name, InclusiveShare { share, ends: (low, high) })| {
        let [share, low, high] = [share, low, high].map(|part| part * 100.0);
        let text = format!("; in all {share:.2}%, {low:.2} to {high:.2}% at {confidence} confidence");
        (escape(names::folded(name)).into_owned(), text)
    });
    // Below a function's name there may be a command's, or that of the whole graph.
    let mut added: FxHashMap<String, String> = added.collect();
    let commands = profile.processes.iter().map(|process| names::folded(&process.comm));
    for command in commands.chain(["all".to_owned()]) {
        added.remove(escape(command).as_ref());
    }
    added
}

/// The graph with these added to the tooltips, `NAME (N µs, N%)`. Its script takes the last parentheses for the figures.
fn with_intervals(svg: &str, added: &FxHashMap<String, String>) -> String {
    const END: &str = ")</title>";
    let mut text = String::with_capacity(svg.len() + 64 * added.len());
    let mut rest = svg;
    while let Some(end) = rest.find(END) {
        let (title, after) = rest.split_at(end);
        text.push_str(title);
        let name = title.rsplit_once("<title>").and_then(|(_, title)| Some(title.rsplit_once(" (")?.0));
        text.push_str(name.and_then(|name| added.get(name)).map_or("", String::as_str));
        text.push_str(END);
        rest = &after[END.len()..];
    }
    text + rest
}

fn subtitle(run: &Run) -> String {
    let mut text = format!("{} {}", run.counts.samples, names::visible(run.measure.counted()));
    // Written by another tool: nothing is known of its rate.
    if run.how.confidence != 0.0 {
        text +=
            &format!(" at {:.0}/s, slowdown {:.2}%", run.rate.rate_hz, run.overhead.slowdown_ratio * 100.0);
    }
    if run.counts.truncated > 0 {
        text += &format!(", {} of the stacks complete", complete(run));
    }
    text
}

#[cfg(test)]
mod tests {
    use profiler_core::profile::SymbolizedProfile;

    use crate::testing;

    fn svg(profile: &SymbolizedProfile) -> String {
        let mut out = Vec::new();
        super::write(profile, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_graph_has_its_frames_title_and_figures() {
        let svg = svg(&testing::profile());
        for text in ["./server --port 80", "602 samples at 60/s, slowdown 0.44%", "memcpy (", " µs, "] {
            assert!(svg.contains(text), "{text} is missing");
        }
    }

    #[test]
    fn the_tooltip_of_a_function_says_how_sure_its_share_is() {
        let mut profile = testing::profile();
        let walk = profile.functions.iter_mut().find(|function| function.name == "walk").unwrap();
        walk.name = "operator<< (a & \"b\")".to_owned();
        let svg = svg(&profile);
        let titles: Vec<&str> =
            svg.split("<title>").skip(1).filter_map(|text| text.split('<').next()).collect();
        // A frame has its own figures; those of the function are of all its places.
        let of_main = titles.iter().find(|title| title.starts_with("main (")).unwrap();
        assert!(of_main.contains("%; in all ") && of_main.ends_with("% at 95% confidence)"), "{of_main}");
        let figures = of_main.rsplit('(').next().unwrap();
        assert!(figures.contains(" µs, "), "the script cuts the last parentheses off: {of_main}");
        assert!(
            titles.iter().any(|title| title.starts_with("operator&lt;&lt; ") && title.contains("in all")),
            "{titles:?}"
        );
        let whole = titles.iter().find(|title| title.starts_with("all (")).unwrap();
        assert!(!whole.contains("confidence"), "{whole}");
    }

    #[test]
    fn a_command_that_is_called_like_a_function_has_no_interval_of_it() {
        let mut profile = testing::profile();
        profile.processes.iter_mut().for_each(|process| process.comm = "main".to_owned());
        let svg = svg(&profile);
        let mut titles = svg.split("<title>main (").skip(1).filter_map(|text| text.split('<').next());
        assert!(titles.all(|title| !title.contains("in all")), "{svg}");
    }

    /// A process may call itself anything; the lines of a graph are in order without their outer blanks, too.
    #[test]
    fn names_with_outer_blanks_are_drawn() {
        let mut profile = testing::profile();
        for (process, name) in profile.processes.iter_mut().zip([" z", "a "]) {
            process.comm = name.to_owned();
        }
        let mut other = profile.stacks[0].clone();
        other.process.0 = (other.process.0 + 1) % profile.processes.len() as u32;
        profile.stacks.push(other);
        assert!(svg(&profile).contains("\\x20z"));
    }

    #[test]
    fn hostile_names_stay_text() {
        let mut profile = testing::profile();
        profile.run.target = "</text><script>\x01".to_owned();
        profile.functions[1].name = "</title><script>alert(1)</script>\x02".to_owned();
        let svg = svg(&profile);
        assert!(!svg.contains("<script>alert"));
        assert!(!svg.contains(['\x01', '\x02']));
    }

    #[test]
    fn a_profile_without_samples_is_a_graph_too() {
        assert!(svg(&SymbolizedProfile::default()).contains("no samples"));
    }
}
