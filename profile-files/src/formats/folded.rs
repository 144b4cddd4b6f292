//! Folded stacks: one line a stack, root first, as flame graph scripts read them.
//!
//! `comm;outermost;…;innermost 1234` where the number is CPU time in microseconds. The first frame is the
//! command name of the process. A `;`, a line break or a control character in a name is written as `\x3b`,
//! `\x0a`, …; so is a blank before a last word that is a number, which would read as the count.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::{self, Write};

use profiler_core::profile::{Line, SymbolizedProfile, WeightedStack};

use super::{NO_STACK, root_first};
use crate::names;

/// Most bytes of all lines: each has the names of all of its frames, and all are in memory.
const MAX_BYTES: usize = 1 << 30;

/// Writes `profile` as folded stacks, equal stacks of processes with equal names added up.
pub(crate) fn write(profile: &SymbolizedProfile, out: &mut dyn Write) -> io::Result<()> {
    for line in lines(profile)? {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// The lines of the file, sorted. Stacks of less than half a microsecond in all are left out.
///
/// # Errors
///
/// If they have more than [`MAX_BYTES`].
pub(super) fn lines(profile: &SymbolizedProfile) -> io::Result<Vec<String>> {
    lines_within(profile, MAX_BYTES)
}

fn lines_within(profile: &SymbolizedProfile, most_bytes: usize) -> io::Result<Vec<String>> {
    let lengths = Lengths::of(profile);
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    let mut bytes = 0_usize;
    for stack in &profile.stacks {
        let length = lengths.of_stack(stack);
        if bytes.saturating_add(length) > most_bytes {
            return Err(too_large());
        }
        match sums.entry(frames(profile, stack, &lengths.names)) {
            Entry::Occupied(mut sum) => *sum.get_mut() = sum.get().saturating_add(stack.cpu_ns),
            Entry::Vacant(new) => {
                bytes += length;
                new.insert(stack.cpu_ns);
            }
        }
    }
    let in_us = sums.into_iter().map(|(stack, ns)| (stack, ns.saturating_add(500) / 1000));
    Ok(in_us.filter(|(_, us)| *us > 0).map(|(stack, us)| format!("{stack} {us}")).collect())
}

fn too_large() -> io::Error {
    let text = format!(
        "the names on its stacks have more than {} MiB together; write a .pb.gz file, or choose a shorter range or fewer targets",
        MAX_BYTES >> 20
    );
    io::Error::new(io::ErrorKind::FileTooLarge, text)
}

/// How many bytes of a line each frame takes.
struct Lengths {
    /// Of each function.
    names: Vec<String>,
    /// Of each location, with what separates names.
    locations: Vec<usize>,
}

impl Lengths {
    fn of(profile: &SymbolizedProfile) -> Self {
        let names: Vec<String> =
            profile.functions.iter().map(|function| names::folded(&function.name)).collect();
        let of_line = |line: &Line| names[line.function.0 as usize].len() + 1;
        let locations = profile.locations.iter();
        let locations = locations.map(|location| location.lines.iter().map(of_line).sum()).collect();
        Self { names, locations }
    }

    /// Of a stack, but for the command and the number.
    fn of_stack(&self, stack: &WeightedStack) -> usize {
        let lengths = stack.frames.iter().map(|frame| self.locations[frame.0 as usize]);
        lengths.fold(0, usize::saturating_add)
    }
}

fn frames(profile: &SymbolizedProfile, stack: &WeightedStack, names: &[String]) -> String {
    let comm = names::folded(&profile.processes[stack.process.0 as usize].comm);
    let mut line = if comm.is_empty() { "[unknown]".to_owned() } else { comm };
    if stack.frames.is_empty() {
        line.push(';');
        line.push_str(NO_STACK);
    }
    for function in root_first(profile, stack) {
        line.push(';');
        line.push_str(&names[function.0 as usize]);
    }
    line
}

#[cfg(test)]
mod tests {
    use std::io;

    use profiler_core::profile::LocationIndex;

    use crate::formats::Format;
    use crate::formats::table::View;
    use crate::testing;

    #[test]
    fn stacks_are_folded_root_first() {
        let lines = super::lines(&testing::profile()).unwrap();
        assert!(
            lines.iter().any(|line| line == "server;_start;main;serve;parse;memcpy 4000000"),
            "{lines:?}"
        );
        assert!(lines.iter().any(|line| line == "server;[no stack] 10000"), "{lines:?}");
    }

    #[test]
    fn all_lines_together_are_bounded() {
        let profile = testing::profile();
        let lines = super::lines(&profile).unwrap();
        let of_names = |line: &String| line.trim_end_matches(|c: char| c.is_ascii_digit()).len() - 7;
        let all: usize = lines.iter().filter(|line| !line.contains("[no stack]")).map(of_names).sum();
        assert_eq!(super::lines_within(&profile, all).unwrap(), lines);
        assert!(super::lines_within(&profile, all - 1).is_err());
        let mut again = profile;
        again.stacks.push(again.stacks[0].clone()); // its line is there already
        assert!(super::lines_within(&again, all + lines.iter().map(String::len).max().unwrap()).is_ok());
        again.stacks.extend(vec![again.stacks[0].clone(); 100]);
        assert_eq!(super::lines_within(&again, 2 * all).unwrap().len(), lines.len());
    }

    /// The one stack in a file of some megabytes would be a line of two gigabytes, which is not made.
    #[test]
    fn a_line_that_would_be_too_long_is_refused_before_it_is_made() {
        let mut profile = testing::profile();
        profile.functions[1].name = "x".repeat(2 << 20);
        profile.stacks.truncate(1);
        profile.stacks[0].frames = vec![LocationIndex(1); 1024];
        for format in ["folded", "svg"] {
            let format = Format::named(format).unwrap();
            let error = format.write(&profile, View::default(), &mut io::sink()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::FileTooLarge, "{format}");
            let text = error.to_string();
            assert!(text.contains("write a .pb.gz file") && !text.contains('\n'), "{text}");
        }
    }

    #[test]
    fn separators_in_names_are_escaped() {
        let mut profile = testing::profile();
        profile.functions[1].name = "[u8; 3]::main\n".to_owned();
        let lines = super::lines(&profile).unwrap();
        assert!(
            lines.contains(&"server;_start;[u8\\x3b 3]::main;serve;parse 3000000".to_owned()),
            "{lines:?}"
        );
    }
}
