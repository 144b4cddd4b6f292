//! The older text form, which is what tools read that know nothing of OpenMetrics.

/// The same metrics: counters are named with `_total` in their descriptions too, and there are no units and no end.
pub(super) fn from_openmetrics(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    // A help line is held back until the kind is known, which stands below it.
    let mut help: Option<(&str, &str)> = None;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ').or(Some((rest, "")));
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            let ending = if kind == "counter" { "_total" } else { "" };
            if let Some((_, help)) = help.take().filter(|(of, _)| *of == name) {
                out += &format!("# HELP {name}{ending} {help}\n");
            }
            out += &format!("# TYPE {name}{ending} {kind}\n");
        } else if !line.starts_with('#') {
            out += line;
            out.push('\n');
        }
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn counters_bear_their_ending_in_every_line() {
        let openmetrics = "# HELP a_bytes What # it is.\n# TYPE a_bytes gauge\n# UNIT a_bytes bytes\na_bytes 1.0\n\
                           # HELP b Count.\n# TYPE b counter\nb_total{x=\"# HELP b y\"} 2\n# EOF\n";
        let text = "# HELP a_bytes What # it is.\n# TYPE a_bytes gauge\na_bytes 1.0\n\
                    # HELP b_total Count.\n# TYPE b_total counter\nb_total{x=\"# HELP b y\"} 2\n";
        assert_eq!(super::from_openmetrics(openmetrics), text);
    }
}
