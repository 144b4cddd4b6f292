//! The list of what is unknown, for a person.

use std::fmt::Write;

use profiler_core::profile::Measure;

use super::{Nameless, Truncated, UnknownList};
use crate::formats::table::{column, paragraph};
use crate::names::{shorten, visible};

/// The list as text, with at most `top` functions of each module.
pub fn render(list: &UnknownList, measure: &Measure, width: usize, top: usize) -> String {
    let mut out = String::new();
    functions(&mut out, list, measure, width, top);
    out.push('\n');
    stacks(&mut out, list, measure, width);
    out
}

fn functions(out: &mut String, list: &UnknownList, measure: &Measure, width: usize, top: usize) {
    if list.functions.is_empty() {
        let _ = writeln!(out, "every address has a name");
        return;
    }
    let all = format!(
        "{:.3} s of {}, {}, in code without a name; {} together with what it called",
        list.nameless_cpu_s,
        visible(&measure.in_words()),
        percent(list.nameless_share),
        percent(list.nameless_total_share),
    );
    paragraph(out, "nameless", &all, width);
    for group in groups(&list.functions) {
        let first = group[0];
        out.push('\n');
        let module = if first.path.is_empty() { &first.module } else { &first.path };
        let build_id = first.build_id.as_ref().map(|id| format!(", build id {id}")).unwrap_or_default();
        paragraph(out, "module", &visible(&format!("{module}{build_id}")), width);
        paragraph(out, "reason", &visible(&first.reason), width);
        if !first.remedy.is_empty() {
            paragraph(out, "remedy", &visible(&first.remedy), width);
        }
        let _ = writeln!(
            out,
            "{:>9} {:>7} {:>7} {:>8}   function, addresses seen",
            column(measure, "s"),
            "share",
            "total",
            "samples"
        );
        for function in group.iter().take(top) {
            row(out, function, width);
        }
        let hidden = group.len().saturating_sub(top);
        if hidden > 0 {
            let _ = writeln!(out, "…and {hidden} more");
        }
    }
}

fn row(out: &mut String, function: &Nameless, width: usize) {
    const FIGURES: usize = 37;
    let Nameless { address_low: low, address_high: high, .. } = function;
    let addresses = if low == high { low.clone() } else { format!("{low}..{high}") };
    let name = format!("{} {addresses}", visible(&function.function));
    let (share, total) = (percent(function.share), percent(function.total_share));
    let name = shorten(&name, width.saturating_sub(FIGURES));
    let _ = writeln!(out, "{:>9.3} {share:>7} {total:>7} {:>8}   {name}", function.cpu_s, function.samples);
}

/// Functions of one module that lack a name for one reason, in the order of the first of each.
fn groups(functions: &[Nameless]) -> Vec<Vec<&Nameless>> {
    let mut groups: Vec<Vec<&Nameless>> = Vec::new();
    let mut known = rustc_hash::FxHashMap::default();
    for function in functions {
        let key = (&function.path, &function.module, &function.build_id, &function.reason, &function.remedy);
        let at = *known.entry(key).or_insert_with(|| {
            groups.push(Vec::new());
            groups.len() - 1
        });
        groups[at].push(function);
    }
    groups
}

fn stacks(out: &mut String, list: &UnknownList, measure: &Measure, width: usize) {
    if list.truncated.is_empty() {
        let _ = writeln!(out, "every stack is complete");
        return;
    }
    let all = format!(
        "{:.3} s of {}, {}, in stacks without their outer frames",
        list.truncated_cpu_s,
        visible(&measure.in_words()),
        percent(list.truncated_share),
    );
    paragraph(out, "truncated", &all, width);
    for Truncated { module, cpu_s, share, samples, reason, remedy, .. } in &list.truncated {
        let module = visible(module);
        let ends =
            format!("{cpu_s:.3} s, {}, {samples} samples, as far as {module}: {reason}", percent(*share));
        paragraph(out, "", &ends, width);
        if !remedy.is_empty() {
            paragraph(out, "  remedy", remedy, width);
        }
    }
}

fn percent(share: f64) -> String {
    format!("{:.2}%", share * 100.0)
}
