//! Folded stacks: `outermost;…;innermost weight`, a line each.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use crate::truth::is_named;

/// A stack and its weight.
#[derive(Clone, Debug)]
pub struct Stack {
    /// Names of the frames, outermost first.
    pub frames: Vec<String>,
    /// Weight, in the file's unit.
    pub weight: f64,
}

/// All stacks of a file.
#[derive(Clone, Debug, Default)]
pub struct Folded(pub Vec<Stack>);

impl Folded {
    /// Parses a folded file.
    pub fn parse(text: &str) -> Result<Folded> {
        text.lines().map(parse_line).collect::<Result<_>>().map(Folded)
    }

    /// What `perf script -F ip,sym` prints: blocks of lines, each an address and a name, the innermost frame first,
    /// and empty lines between them.
    pub fn of_perf_script(text: &str) -> Folded {
        let name = |line: &str| {
            let line = line.trim_start();
            line.split_once(' ').map_or("", |(_, name)| name).trim().to_string()
        };
        let mut lines = text.lines().peekable();
        let mut stacks = Vec::new();
        while lines.peek().is_some() {
            let block = lines.by_ref().take_while(|line| !line.trim().is_empty());
            let mut frames: Vec<String> = block.map(name).collect();
            frames.reverse();
            stacks.extend((!frames.is_empty()).then_some(Stack { frames, weight: 1.0 }));
        }
        Folded(stacks)
    }

    /// The weight of all stacks that satisfy a condition.
    pub fn weight_of(&self, holds: impl Fn(&Stack) -> bool) -> f64 {
        self.0.iter().filter(|stack| holds(stack)).map(|stack| stack.weight).sum()
    }

    /// The share of the frames, by weight, that have a name.
    pub fn named_ratio(&self) -> f64 {
        let frames = |is_counted: fn(&&String) -> bool| -> f64 {
            self.0.iter().map(|s| s.weight * s.frames.iter().skip(1).filter(is_counted).count() as f64).sum()
        };
        frames(|frame| !is_nameless(frame)) / frames(|_| true)
    }

    /// What has no name, the heaviest first, a line each.
    pub fn nameless(&self) -> String {
        let mut weights: BTreeMap<&str, f64> = BTreeMap::new();
        for stack in &self.0 {
            for frame in stack.frames.iter().filter(|frame| is_nameless(frame)) {
                *weights.entry(frame).or_default() += stack.weight;
            }
        }
        let mut weights: Vec<_> = weights.into_iter().collect();
        weights.sort_by(|one, other| other.1.total_cmp(&one.1));
        weights.iter().take(20).map(|(frame, weight)| format!("{weight:>12} {frame}\n")).collect()
    }

    /// The share of the weight of stacks in work functions (those of `is_work`) that reach from the root
    /// through all `depth` frames of the recursion.
    pub fn complete_ratio(&self, roots: &[&str], depth: usize, is_work: impl Fn(&str) -> bool) -> f64 {
        let works = |stack: &Stack| stack.frames.iter().any(|frame| is_work(frame));
        let all = self.weight_of(works);
        self.weight_of(|stack| works(stack) && stack.is_whole(roots, depth)) / all
    }
}

impl Stack {
    /// Whether the stack has every root in this order, then `depth` + 1 frames of the recursion (the last
    /// one calls `bottom`), then `bottom`.
    fn is_whole(&self, roots: &[&str], depth: usize) -> bool {
        let mut frames = self.frames.iter();
        let rooted = roots.iter().all(|root| frames.any(|frame| is_named(frame, root)));
        let recursion = |frame: &&String| frame.contains("descend");
        rooted
            && self.frames.iter().filter(recursion).count() == depth + 1
            && frames
                .skip_while(|frame| !recursion(frame))
                .nth(depth + 1)
                .is_some_and(|f| f.contains("bottom"))
    }

    /// Whether a frame has this name.
    pub fn has(&self, name: &str) -> bool {
        self.frames.iter().any(|frame| is_named(frame, name))
    }
}

/// Whether the profiler knew only where the frame is: `module+0x1234`.
fn is_nameless(frame: &str) -> bool {
    let offset = frame.rsplit_once("+0x").map(|(_, offset)| offset);
    offset.is_some_and(|offset| !offset.is_empty() && offset.bytes().all(|digit| digit.is_ascii_hexdigit()))
}

fn parse_line(line: &str) -> Result<Stack> {
    let (frames, weight) = line.rsplit_once(' ').with_context(|| format!("no weight in `{line}`"))?;
    let weight = weight.parse().with_context(|| format!("no weight in `{line}`"))?;
    Ok(Stack { frames: frames.split(';').map(str::to_string).collect(), weight })
}

#[cfg(test)]
mod tests {
    use super::Folded;

    const IS_WORK: fn(&str) -> bool = |frame| frame.starts_with("work");

    fn complete_ratio(text: &str) -> f64 {
        Folded::parse(text).unwrap().complete_ratio(&["main"], 2, IS_WORK)
    }

    #[test]
    fn a_stack_is_whole_with_its_root_and_all_of_the_recursion() {
        assert_eq!(complete_ratio("mix;_start;main;descend;descend;descend;bottom;run;work_a 4"), 1.0);
    }

    #[test]
    fn a_script_gives_whole_names() {
        let text = "\n\t 7f10 operator new(unsigned long)\n\t 7f20 main\n\n\n\t 7f30 [unknown]\n\n";
        let frames: Vec<_> = Folded::of_perf_script(text).0.into_iter().map(|stack| stack.frames).collect();
        assert_eq!(frames, [vec!["main", "operator new(unsigned long)"], vec!["[unknown]"]]);
        assert!(Folded::of_perf_script("").0.is_empty());
    }

    #[test]
    fn frames_count_as_named_by_their_weight() {
        let folded = Folded::parse("node;main;[unknown]+0x7f00a 1\nnode;main;f+0x;a+0xg 1").unwrap();
        assert_eq!(folded.named_ratio(), 0.8);
        assert_eq!(folded.nameless(), "           1 [unknown]+0x7f00a\n");
    }

    #[test]
    fn a_stack_that_lacks_its_root_or_a_frame_is_not() {
        let text = "mix;main;descend;descend;descend;bottom;work_a 1\n\
                    mix;descend;descend;descend;bottom;work_a 1\n\
                    mix;main;descend;descend;bottom;work_a 1\n\
                    mix;main;descend;descend;descend;elsewhere;bottom;work_a 1\n\
                    mix;_start 9";
        assert_eq!(complete_ratio(text), 0.25);
    }
}
