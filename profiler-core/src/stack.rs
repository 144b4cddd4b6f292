//! Stacks that outlive their process: frames named by object and stated address.

use rustc_hash::FxHashMap;

/// An object that code was loaded from. The daemon that opens the files gives these out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId(pub u32);

impl ObjectId {
    /// The kernel; addresses are actual ones.
    pub const KERNEL: ObjectId = ObjectId(0);
    /// Code in no file (generated at run time, or unmapped since); addresses are actual ones.
    pub const UNKNOWN: ObjectId = ObjectId(1);
    /// The first number that stands for a file.
    pub const FIRST_FILE: u32 = 2;
}

/// A code address that means the same in every process and after their end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Frame {
    /// Where the code was loaded from.
    pub object: ObjectId,
    /// The address as the object's file states it. For a caller this is the last byte of the call.
    pub address: u64,
}

/// Index of an interned [`Frame`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrameId(pub u32);

/// Every frame once.
#[derive(Clone, Debug, Default)]
pub struct FrameTable {
    frames: Vec<Frame>,
    ids: FxHashMap<Frame, FrameId>,
}

impl FrameTable {
    /// The id of `frame`, which is added if it is new.
    pub fn intern(&mut self, frame: Frame) -> FrameId {
        *self.ids.entry(frame).or_insert_with(|| {
            self.frames.push(frame);
            FrameId(self.frames.len() as u32 - 1)
        })
    }

    /// The frame behind an id.
    pub fn get(&self, id: FrameId) -> Frame {
        self.frames[id.0 as usize]
    }

    /// All frames, in the order of their ids.
    pub fn frames(&self) -> &[Frame] {
        &self.frames
    }
}
