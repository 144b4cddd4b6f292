//! Folded stacks: one line a stack, root first, as flame graph scripts read them.
//!
//! `comm;outermost;…;innermost 1234` where the number is CPU time in microseconds. The first frame is the
//! command name of the process. A `;`, a line break or a control character in a name is written as `\x3b`,
//! `\x0a`, …; so is a blank before a last word that is a number, which would read as the count.

use std::collections::BTreeMap;
use std::io::{self, Write};

use profiler_core::profile::{SymbolizedProfile, WeightedStack};

use super::root_first;
use crate::names;

/// Writes `profile` as folded stacks, equal stacks of processes with equal names added up.
pub(crate) fn write(profile: &SymbolizedProfile, out: &mut dyn Write) -> io::Result<()> {
    for line in lines(profile) {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// The lines of the file, sorted. Stacks of less than half a microsecond in all are left out.
pub(super) fn lines(profile: &SymbolizedProfile) -> Vec<String> {
    let names: Vec<String> = profile.functions.iter().map(|function| names::folded(&function.name)).collect();
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for stack in &profile.stacks {
        let sum = sums.entry(frames(profile, stack, &names)).or_default();
        *sum = sum.saturating_add(stack.cpu_ns);
    }
    let in_us = sums.into_iter().map(|(stack, ns)| (stack, ns.saturating_add(500) / 1000));
    in_us.filter(|(_, us)| *us > 0).map(|(stack, us)| format!("{stack} {us}")).collect()
}

fn frames(profile: &SymbolizedProfile, stack: &WeightedStack, names: &[String]) -> String {
    let comm = names::folded(&profile.processes[stack.process.0 as usize].comm);
    let mut line = if comm.is_empty() { "[unknown]".to_owned() } else { comm };
    if stack.frames.is_empty() {
        line.push_str(";[no stack]");
    }
    for function in root_first(profile, stack) {
        line.push(';');
        line.push_str(&names[function.0 as usize]);
    }
    line
}

#[cfg(test)]
mod tests {
    use crate::testing;

    #[test]
    fn stacks_are_folded_root_first() {
        let lines = super::lines(&testing::profile());
        assert!(
            lines.iter().any(|line| line == "server;_start;main;serve;parse;memcpy 4000000"),
            "{lines:?}"
        );
        assert!(lines.iter().any(|line| line == "server;[no stack] 10000"), "{lines:?}");
    }

    #[test]
    fn separators_in_names_are_escaped() {
        let mut profile = testing::profile();
        profile.functions[1].name = "[u8; 3]::main\n".to_owned();
        let lines = super::lines(&profile);
        assert!(
            lines.contains(&"server;_start;[u8\\x3b 3]::main;serve;parse 3000000".to_owned()),
            "{lines:?}"
        );
    }
}
