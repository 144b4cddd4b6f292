//! Equal stacks counted together, by windows of time.

use std::hash::Hash;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::process::Process;
use crate::profile::{Outcome, ProcessIndex, Window};
use crate::stack::{Frame, FrameId, FrameTable, ObjectId};
use crate::stats::{self, Part};

/// When there are twice as many windows, neighbours are joined.
const MAX_WINDOWS: usize = 120;

/// Raw stacks remembered for one process; code that is generated anew all the time has no end of them.
const MAX_RAW_STACKS: usize = 16_384;

/// Distinct stacks, their frames together and distinct frames that are kept whole: some hundred MiB at most. Of later
/// stacks the innermost frame is kept, up to as many more; of still later ones nothing but the process.
const MAX_STACKS: Most = Most { stacks: 1 << 18, depths: 1 << 23, frames: 1 << 19 };
const MAX_LEAVES: usize = 1 << 16;

/// How much is kept.
#[derive(Clone, Copy, Debug)]
struct Most {
    stacks: usize,
    depths: usize,
    frames: usize,
}

/// Index of a distinct stack in an [`Aggregator`].
type StackId = u32;

/// A distinct stack of one process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stack {
    /// The process.
    pub process: ProcessIndex,
    /// How its unwinding ended.
    pub outcome: Outcome,
    /// Frames, innermost first; kernel frames come before user frames.
    pub frames: Box<[FrameId]>,
}

/// What one sample adds: addresses as the kernel and the unwinder gave them.
#[derive(Clone, Copy, Debug)]
pub struct Chain<'a> {
    /// Kernel frames, innermost first, as lookup addresses.
    pub kernel: &'a [u64],
    /// User frames, innermost first, as lookup addresses.
    pub user: &'a [u64],
    /// How the unwinding ended.
    pub outcome: Outcome,
}

/// Samples and weight of one stack.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tally {
    /// Samples.
    pub samples: u64,
    /// Sum of their weights (ns).
    pub weight_ns: f64,
}

impl Tally {
    fn add(&mut self, other: Tally) {
        self.samples += other.samples;
        self.weight_ns += other.weight_ns;
    }
}

/// Counts stacks.
pub struct Aggregator {
    most: Most,
    frames: FrameTable,
    stacks: Vec<Stack>,
    /// Frames of all stacks together.
    depths: usize,
    ids: FxHashMap<Stack, StackId>,
    /// Stacks by their raw addresses, by process: most samples are found here, without locating a frame.
    raw: FxHashMap<ProcessIndex, RawStacks>,
    key: Vec<u64>,
    /// For each stack, the function it ends in.
    functions: Vec<Frame>,
    function_counts: FxHashMap<Frame, u64>,
    current: FxHashMap<StackId, Tally>,
    windows: Vec<ClosedWindow>,
    /// Calls of [`Aggregator::close_window`] that make one window.
    closings_per_window: u32,
    closings: u32,
    window_start_ns: u64,
}

#[derive(Default)]
struct RawStacks {
    generation: u64,
    /// Whether a sample came since the last window was closed.
    is_used: bool,
    ids: FxHashMap<Box<[u64]>, StackId>,
}

struct ClosedWindow {
    window: Window,
    /// Sorted by stack.
    tallies: Vec<(StackId, Tally)>,
}

/// What was counted.
pub struct Aggregate {
    /// Every frame once.
    pub frames: FrameTable,
    /// Distinct stacks.
    pub stacks: Vec<Stack>,
    /// Windows, oldest first.
    pub windows: Vec<Window>,
    /// For each stack, its tally in each window it was seen in: index into `windows`.
    pub tallies: Vec<Vec<(u32, Tally)>>,
}

impl Default for Aggregator {
    fn default() -> Self {
        Self::with_most(MAX_STACKS)
    }
}

impl Aggregator {
    fn with_most(most: Most) -> Self {
        Self {
            most,
            frames: FrameTable::default(),
            stacks: Vec::new(),
            depths: 0,
            ids: FxHashMap::default(),
            raw: FxHashMap::default(),
            key: Vec::new(),
            functions: Vec::new(),
            function_counts: FxHashMap::default(),
            current: FxHashMap::default(),
            windows: Vec::new(),
            closings_per_window: 0,
            closings: 0,
            window_start_ns: 0,
        }
    }

    /// Counts a sample of `process` that stands for `weight_ns` of CPU time. Returns how its stack ended, otherwise than
    /// said if there was no room for it, and the innermost function.
    pub fn add(&mut self, process: &Process, chain: Chain<'_>, weight_ns: u64) -> (Outcome, Frame) {
        process.note_sample();
        let id = self.stack_id(process, chain);
        self.count(id, weight_ns);
        (self.stacks[id as usize].outcome, self.functions[id as usize])
    }

    fn count(&mut self, id: StackId, weight_ns: u64) {
        self.current.entry(id).or_default().add(Tally { samples: 1, weight_ns: weight_ns as f64 });
        *self.function_counts.entry(self.functions[id as usize]).or_default() += 1;
    }

    /// Ends a span of time at `now_ns` (since the start of sampling, or the last cut) and scales what was counted in it by
    /// `factor`: above one where the kernel dropped samples.
    pub fn close_window(&mut self, now_ns: u64, factor: f64) {
        self.raw.retain(|_, stacks| std::mem::take(&mut stacks.is_used)); // the others sleep, or have ended
        let mut tallies: Vec<(StackId, Tally)> = self.current.drain().collect();
        tallies.iter_mut().for_each(|(_, tally)| tally.weight_ns *= factor);
        tallies.sort_unstable_by_key(|&(id, _)| id);
        let window = Window { start_ns: self.window_start_ns, end_ns: now_ns };
        self.window_start_ns = now_ns;
        match self.windows.last_mut() {
            Some(last) if self.closings > 0 => last.join(ClosedWindow { window, tallies }),
            _ => self.windows.push(ClosedWindow { window, tallies }),
        }
        self.closings = (self.closings + 1) % self.closings_per_window.max(1);
        if self.windows.len() >= 2 * MAX_WINDOWS && self.closings == 0 {
            self.halve_windows();
        }
    }

    /// Whether nothing was counted since a window was closed last.
    pub fn is_quiet(&self) -> bool {
        self.current.is_empty()
    }

    /// The entries of the processes whose stacks were counted.
    pub fn processes(&self) -> FxHashSet<ProcessIndex> {
        self.stacks.iter().map(|stack| stack.process).collect()
    }

    /// Takes in what another has counted, all of it in the window that is open: of processes of which it was not known before
    /// to whom they belong.
    pub fn absorb(&mut self, mut other: Self) {
        for (function, samples) in std::mem::take(&mut other.function_counts) {
            *self.function_counts.entry(function).or_default() += samples;
        }
        let functions = std::mem::take(&mut other.functions);
        let Aggregate { frames, stacks, tallies, .. } = other.finish(0);
        for ((stack, function), tallies) in stacks.iter().zip(functions).zip(tallies) {
            let mut sum = Tally::default();
            tallies.into_iter().for_each(|(_, tally)| sum.add(tally));
            let id = self.intern_of_another(stack, &frames, function);
            self.current.entry(id).or_default().add(sum);
        }
    }

    fn intern_of_another(&mut self, stack: &Stack, frames: &FrameTable, function: Frame) -> StackId {
        let has_room = self.stacks.len() < self.most.stacks
            && self.depths + stack.frames.len() <= self.most.depths
            && self.frames.frames().len() + stack.frames.len() <= self.most.frames;
        let stack = match has_room {
            true => {
                let frames = stack.frames.iter().map(|&frame| self.frames.intern(frames.get(frame)));
                Stack { frames: frames.collect(), ..stack.clone() }
            }
            false => Stack { outcome: Outcome::NotKept, frames: Box::default(), ..stack.clone() },
        };
        self.enter(stack, function)
    }

    fn enter(&mut self, stack: Stack, function: Frame) -> StackId {
        let next = self.stacks.len() as StackId;
        *self.ids.entry(stack).or_insert_with_key(|stack| {
            self.depths += stack.frames.len();
            self.stacks.push(stack.clone());
            self.functions.push(function);
            next
        })
    }

    /// Sum of all weights so far (ns).
    pub fn weight_ns(&self) -> f64 {
        let closed = self.windows.iter().flat_map(|w| &w.tallies).map(|(_, t)| t.weight_ns);
        let open = self.current.values().map(|t| t.weight_ns);
        closed.chain(open).fold(0.0, |sum, weight_ns| sum + weight_ns) // the sum of nothing would be -0
    }

    /// Room that all of it takes (bytes, about).
    pub fn memory_bytes(&self) -> u64 {
        let tallies: usize = self.windows.iter().map(|window| window.tallies.len()).sum();
        let parts = [
            self.stacks.len() * 2 * size_of::<Stack>(),
            self.depths * 2 * size_of::<FrameId>(),
            self.frames.frames().len() * 2 * size_of::<Frame>(),
            (tallies + self.current.len()) * size_of::<(StackId, Tally)>(),
        ];
        parts.iter().sum::<usize>() as u64
    }

    /// Every frame of the stacks so far.
    pub fn frames(&self) -> &FrameTable {
        &self.frames
    }

    /// Samples by innermost function since the last call. The controller needs the shares of the top
    /// functions long before there are names.
    pub fn take_function_counts(&mut self) -> FxHashMap<Frame, u64> {
        std::mem::take(&mut self.function_counts)
    }

    /// What each function had in each closed window, in the form in which
    /// [`IntervalTable`](crate::stats::IntervalTable) takes it.
    ///
    /// Functions are told apart by `name`. It is given the start of the innermost function, or in the kernel, whose
    /// functions are not known here, the innermost address.
    pub fn function_parts<N: Eq + Hash>(
        &self,
        name: impl Fn(Frame) -> N,
    ) -> (Vec<stats::WindowSums>, Vec<Vec<Part>>) {
        let mut ids: FxHashMap<N, usize> = FxHashMap::default();
        let id = |stack| {
            let next = ids.len();
            *ids.entry(name(self.leaf(stack))).or_insert(next)
        };
        let function_of: Vec<usize> = (0..self.stacks.len()).map(id).collect();
        let mut functions: Vec<Vec<Part>> = vec![Vec::new(); ids.len()];
        let mut windows = vec![stats::WindowSums::default(); self.windows.len()];
        for ((closed, total), at) in self.windows.iter().zip(&mut windows).zip(0..) {
            for &(stack, tally) in &closed.tallies {
                total.weight_ns += tally.weight_ns;
                total.samples += tally.samples;
                add_part(&mut functions[function_of[stack as usize]], at, tally);
            }
        }
        (windows, functions)
    }

    /// Where a stack ends: in the user's part its function, in the kernel the address.
    fn leaf(&self, stack: usize) -> Frame {
        match self.functions[stack] {
            function if function.object == ObjectId::KERNEL => {
                self.stacks[stack].frames.first().map_or(function, |&frame| self.frames.get(frame))
            }
            function => function,
        }
    }

    /// Hands over all that was counted, as something to [`Aggregator::finish`] where there is time for it, and begins anew:
    /// with times that count from zero again. What the controller has yet to take stays here.
    pub fn cut(&mut self) -> Self {
        let function_counts = std::mem::take(&mut self.function_counts);
        std::mem::replace(self, Self { function_counts, ..Self::with_most(self.most) })
    }

    /// All that was counted.
    pub fn finish(mut self, now_ns: u64) -> Aggregate {
        if !self.current.is_empty() {
            self.close_window(now_ns, 1.0);
        }
        let mut tallies = vec![Vec::new(); self.stacks.len()];
        for (index, closed) in self.windows.iter().enumerate() {
            for &(id, tally) in &closed.tallies {
                tallies[id as usize].push((index as u32, tally));
            }
        }
        let windows = self.windows.iter().map(|closed| closed.window).collect();
        Aggregate { frames: self.frames, stacks: self.stacks, windows, tallies }
    }

    fn stack_id(&mut self, process: &Process, chain: Chain<'_>) -> StackId {
        self.key.clear();
        self.key.extend([chain.outcome as u64, chain.kernel.len() as u64]);
        self.key.extend_from_slice(chain.kernel);
        self.key.extend_from_slice(chain.user);
        let raw = self.raw.entry(process.index).or_default();
        if raw.generation != process.generation || raw.ids.len() >= MAX_RAW_STACKS {
            *raw = RawStacks { generation: process.generation, ..RawStacks::default() };
        }
        raw.is_used = true;
        if let Some(&id) = raw.ids.get(&self.key[..]) {
            return id;
        }
        let key = self.key.clone().into_boxed_slice();
        let id = self.intern(process, chain);
        self.raw.entry(process.index).or_default().ids.insert(key, id);
        id
    }

    fn intern(&mut self, process: &Process, chain: Chain<'_>) -> StackId {
        let most = self.most;
        let whole = chain.kernel.len() + chain.user.len();
        if self.stacks.len() < most.stacks
            && self.depths + whole <= most.depths
            && self.frames.frames().len() + whole <= most.frames
        {
            return self.intern_whole(process, chain);
        }
        // What is known already takes no room.
        if let Some(id) = self.known(process, chain) {
            return id;
        }
        let (kernel, user) = match chain.kernel {
            [] => (&[][..], &chain.user[..chain.user.len().min(1)]),
            kernel => (&kernel[..1], &[][..]),
        };
        let leaf = Chain { kernel, user, outcome: Outcome::NotKept };
        let has_room = self.stacks.len() < most.stacks + MAX_LEAVES
            && self.frames.frames().len() < most.frames + MAX_LEAVES;
        match self.known(process, leaf) {
            Some(id) => id,
            None if has_room => self.intern_whole(process, leaf),
            None => self.intern_whole(process, Chain { kernel: &[], user: &[], outcome: Outcome::NotKept }),
        }
    }

    /// A stack that is there already.
    fn known(&self, process: &Process, chain: Chain<'_>) -> Option<StackId> {
        let frames = frames_of(process, chain).map(|frame| self.frames.find(frame)).collect::<Option<_>>()?;
        self.ids.get(&Stack { process: process.index, outcome: chain.outcome, frames }).copied()
    }

    fn intern_whole(&mut self, process: &Process, chain: Chain<'_>) -> StackId {
        let frames = frames_of(process, chain).map(|frame| self.frames.intern(frame)).collect();
        let stack = Stack { process: process.index, outcome: chain.outcome, frames };
        self.enter(stack, innermost_function(process, chain))
    }

    /// What each object weighs: the weight of the samples that have a frame in it (ns).
    pub fn object_weights(&self) -> FxHashMap<ObjectId, f64> {
        let mut weights = vec![0.0; self.stacks.len()];
        let closed = self.windows.iter().flat_map(|closed| &closed.tallies).copied();
        for (id, tally) in closed.chain(self.current.iter().map(|(&id, &tally)| (id, tally))) {
            weights[id as usize] += tally.weight_ns;
        }
        object_weights(&self.frames, &self.stacks, &weights)
    }

    fn halve_windows(&mut self) {
        let mut joined: Vec<ClosedWindow> = Vec::with_capacity(MAX_WINDOWS + 1);
        for (i, window) in std::mem::take(&mut self.windows).into_iter().enumerate() {
            match joined.last_mut() {
                Some(last) if i % 2 == 1 => last.join(window),
                _ => joined.push(window),
            }
        }
        self.windows = joined;
        self.closings_per_window = self.closings_per_window.max(1) * 2;
    }
}

impl Aggregate {
    /// What each object weighs: the weight of the samples that have a frame in it (ns).
    pub fn object_weights(&self) -> FxHashMap<ObjectId, f64> {
        let weight = |tallies: &Vec<(u32, Tally)>| tallies.iter().map(|(_, tally)| tally.weight_ns).sum();
        let weights: Vec<f64> = self.tallies.iter().map(weight).collect();
        object_weights(&self.frames, &self.stacks, &weights)
    }
}

fn object_weights(frames: &FrameTable, stacks: &[Stack], weights: &[f64]) -> FxHashMap<ObjectId, f64> {
    let mut by_object: FxHashMap<ObjectId, f64> = FxHashMap::default();
    let mut objects = Vec::new();
    for (stack, weight) in stacks.iter().zip(weights) {
        objects.clear();
        objects.extend(stack.frames.iter().map(|&frame| frames.get(frame).object));
        objects.sort_unstable();
        objects.dedup();
        objects.iter().for_each(|&object| *by_object.entry(object).or_default() += weight);
    }
    by_object
}

fn frames_of<'a>(process: &'a Process, chain: Chain<'a>) -> impl Iterator<Item = Frame> + 'a {
    let kernel = chain.kernel.iter().map(|&address| Frame { object: ObjectId::KERNEL, address });
    kernel.chain(chain.user.iter().map(|&address| process.locate(address)))
}

/// Adds a stack's tally to its function's part of the window `at`, the last that it was seen in or a new one.
fn add_part(parts: &mut Vec<Part>, at: u32, tally: Tally) {
    match parts.last_mut().filter(|part| part.window == at) {
        Some(part) => {
            part.weight_ns += tally.weight_ns;
            part.samples += tally.samples;
        }
        None => parts.push(Part {
            window: at,
            weight_ns: tally.weight_ns,
            samples: tally.samples,
            ..Part::default()
        }),
    }
}

/// The kernel counts as one function: its CPU time is seldom what a target is tuned by.
fn innermost_function(process: &Process, chain: Chain<'_>) -> Frame {
    match (chain.kernel.first(), chain.user.first()) {
        (None, Some(&address)) => process.function(address),
        _ => Frame { object: ObjectId::KERNEL, address: 0 },
    }
}

impl ClosedWindow {
    fn join(&mut self, next: ClosedWindow) {
        self.window.end_ns = next.window.end_ns;
        self.tallies.extend(next.tallies);
        self.tallies.sort_by_key(|&(id, _)| id);
        self.tallies.dedup_by(|later, earlier| {
            let same = later.0 == earlier.0;
            if same {
                earlier.1.add(later.1);
            }
            same
        });
    }
}

#[cfg(test)]
mod tests;
