//! A flame graph as one SVG file that needs nothing else.

use std::io::{self, Write};

use inferno::flamegraph::{self, Options};
use profiler_core::profile::{Run, SymbolizedProfile};

use super::folded;
use crate::names;

/// Writes `profile` as a flame graph; widths are CPU time, or what the file holds in its place, in microseconds.
pub(super) fn write(profile: &SymbolizedProfile, out: &mut dyn Write) -> io::Result<()> {
    let mut options = Options::default();
    options.title = title(&profile.run);
    options.subtitle = Some(subtitle(&profile.run));
    options.count_name = "µs".to_owned();
    options.deterministic = true; // equal profiles give equal files
    let mut lines = folded::lines(profile);
    if lines.is_empty() {
        lines.push("no samples 1".to_owned()); // an empty graph is an error to inferno, and not to us
    }
    flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), out)
}

fn title(run: &Run) -> String {
    let target = names::shorten(&names::visible(&run.target), 90);
    let time = names::visible(&run.measure.in_words());
    match (target.is_empty(), run.measure.is_cpu()) {
        (true, _) => time,
        (false, true) => target,
        (false, false) => format!("{target}: {time}"),
    }
}

fn subtitle(run: &Run) -> String {
    let mut text = format!("{} {}", run.samples, names::visible(run.measure.counted()));
    // Written by another tool: nothing is known of its rate.
    if run.confidence != 0.0 {
        text += &format!(" at {:.0}/s, overhead {:.2}%", run.rate_hz, run.overhead_ratio * 100.0);
    }
    if run.truncated > 0 {
        text += &format!(", {:.1}% of the stacks complete", run.complete_ratio * 100.0);
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
        for text in ["./server --port 80", "602 samples at 60/s, overhead 0.74%", "memcpy (", " µs, "] {
            assert!(svg.contains(text), "{text} is missing");
        }
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
