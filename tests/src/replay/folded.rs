//! A replay as text: its counts, and its stacks by function.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use profiler_core::profile::Outcome;
use profiler_core::stack::{Frame, ObjectId};
use symbolizer::{NoDebugFiles, Object, Symbolized};

use super::{Recording, Replayed};

/// The counts, and a line for each stack: `process;outermost;…;innermost samples`, with `!` and the outcome where outer
/// frames are missing.
pub fn folded(recording: &Recording, replayed: &Replayed) -> String {
    let aggregate = &replayed.aggregate;
    let mut names = Names { recording, objects: BTreeMap::new() };
    let mut stacks: BTreeMap<String, u64> = BTreeMap::new();
    for (stack, tallies) in aggregate.stacks.iter().zip(&aggregate.tallies) {
        let mut frames: Vec<String> =
            stack.frames.iter().rev().map(|&frame| names.of(aggregate.frames.get(frame))).collect();
        // Which functions of the kernel were on the way is the kernel's business.
        frames.dedup_by(|later, earlier| later == earlier && later == "[kernel]");
        shorten(&mut frames);
        let mut line = replayed.processes[stack.process.0 as usize].comm.clone();
        if stack.outcome != Outcome::Complete {
            let _ = write!(line, ";!{:?}", stack.outcome);
        }
        frames.iter().for_each(|frame| line.extend([";", frame]));
        *stacks.entry(line).or_default() += tallies.iter().map(|(_, tally)| tally.samples).sum::<u64>();
    }
    let mut text = format!("{:#?}\n", replayed.counts);
    for (stack, samples) in stacks {
        let _ = writeln!(text, "{stack} {samples}");
    }
    text
}

/// Writes a function that calls itself once, with how often.
fn shorten(frames: &mut Vec<String>) {
    let mut short: Vec<(String, u32)> = Vec::new();
    for frame in frames.drain(..) {
        match short.last_mut() {
            Some((last, times)) if *last == frame => *times += 1,
            _ => short.push((frame, 1)),
        }
    }
    *frames = short
        .into_iter()
        .map(|(name, times)| if times > 1 { format!("{name}*{times}") } else { name })
        .collect();
}

struct Names<'a> {
    recording: &'a Recording,
    objects: BTreeMap<ObjectId, Option<Object<'a>>>,
}

impl Names<'_> {
    fn of(&mut self, frame: Frame) -> String {
        if frame.object == ObjectId::KERNEL {
            return "[kernel]".to_owned();
        }
        let Some(file) = self.recording.object(frame.object) else { return "[unknown]".to_owned() };
        let load = || Object::load(&file.bytes, Path::new(&file.path), &NoDebugFiles).ok();
        let object = self.objects.entry(frame.object).or_insert_with(load);
        match object.as_ref().map(|object| object.symbolize(frame.address)) {
            Some(Symbolized::Known(names)) => names[0].name.to_string(),
            _ => match file.place_start(frame.address) {
                Some(start) => format!("{}+{start:#x}", file.name()),
                None => file.name().to_owned(),
            },
        }
    }
}
