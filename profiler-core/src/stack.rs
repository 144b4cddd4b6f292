//! Stacks that outlive their process: frames named by object and stated address.

use rustc_hash::FxHashMap;

use crate::profile::ProcessIndex;

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
    /// The first number that stands for the code of one process that lies in no file.
    const FIRST_PROCESS: u32 = 1 << 31;

    /// Code of one process that lies in no file: only that process can tell its names. Addresses are actual ones, or
    /// those of [`GeneratedCode`].
    pub fn generated_by(process: ProcessIndex) -> ObjectId {
        ObjectId(ObjectId::FIRST_PROCESS | process.0)
    }

    /// The process that [`ObjectId::generated_by`] was asked for.
    pub fn generator(self) -> Option<ProcessIndex> {
        self.0.checked_sub(ObjectId::FIRST_PROCESS).map(ProcessIndex)
    }

    /// Whether the code lies in no file.
    pub fn is_in_no_file(self) -> bool {
        self == ObjectId::UNKNOWN || self.generator().is_some()
    }
}

/// A place in generated code that is known by its number. The same address may hold other code at another time, so
/// such a place has a pseudo-address of its own, where no program can have code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GeneratedCode {
    /// The number of the code in its process.
    pub number: u32,
    /// Bytes from its first one; less than 256 MiB.
    pub offset: u32,
}

impl GeneratedCode {
    /// Neither user nor kernel addresses have this bit alone at their top.
    const MARK: u64 = 1 << 62;
    const OFFSET_BITS: u32 = 28;
    const OFFSET_MASK: u64 = (1 << Self::OFFSET_BITS) - 1;

    /// The pseudo-address.
    pub fn to_address(self) -> u64 {
        let offset = u64::from(self.offset).min(Self::OFFSET_MASK);
        Self::MARK | u64::from(self.number) << Self::OFFSET_BITS | offset
    }

    /// The place behind a pseudo-address; `None` for an actual one.
    pub fn from_address(address: u64) -> Option<Self> {
        let number = (address ^ Self::MARK) >> Self::OFFSET_BITS;
        let number = u32::try_from(number).ok()?;
        Some(Self { number, offset: (address & Self::OFFSET_MASK) as u32 })
    }
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

    /// The id of `frame`, if it is there.
    pub fn find(&self, frame: Frame) -> Option<FrameId> {
        self.ids.get(&frame).copied()
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_a_process_generates_is_no_file_and_not_the_kernel() {
        let id = ObjectId::generated_by(ProcessIndex(7));
        assert_eq!(id.generator(), Some(ProcessIndex(7)));
        assert!(id.is_in_no_file() && ObjectId::UNKNOWN.is_in_no_file());
        for id in [ObjectId::KERNEL, ObjectId(ObjectId::FIRST_FILE)] {
            assert!(id.generator().is_none() && !id.is_in_no_file());
        }
    }

    proptest! {
        #[test]
        fn pseudo_addresses_lead_back_and_are_no_actual_ones(
            number: u32,
            offset in 0u32..1 << 28,
            user in 0u64..1 << 57,
            kernel in 0xff00_0000_0000_0000u64..,
        ) {
            let code = GeneratedCode { number, offset };
            prop_assert_eq!(GeneratedCode::from_address(code.to_address()), Some(code));
            prop_assert_eq!(GeneratedCode::from_address(user), None);
            prop_assert_eq!(GeneratedCode::from_address(kernel), None);
        }
    }
}
