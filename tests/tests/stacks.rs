//! Recorded stacks of both machines, unwound on whatever machine this is. `fixtures/stacks/make` has made them, of
//! `chain.c`, whose functions note who called them: every frame is known.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flate2::read::GzDecoder;
use profiler_core::elf::ElfImage;
use profiler_core::machine::Machine;
use profiler_core::process::{LoadedObject, ProcessTable};
use profiler_core::profile::Outcome;
use profiler_core::record::{FileId, Mapped, RawData, StackCopy, UserRegs};
use profiler_core::stack::ObjectId;
use profiler_core::unwind::{StackUnwinder, Unwound};

const PID: u32 = 1;

/// What `make` wrote down.
#[derive(Default)]
struct Recording {
    registers: Vec<(String, u64)>,
    /// Lookup addresses up to what called `main` or a thread's function, innermost first.
    frames: Vec<u64>,
    /// First and last address of the functions of the frames further out.
    startup: Vec<(u64, u64)>,
    stack: Vec<u8>,
}

impl Recording {
    fn read(path: &Path) -> Self {
        let text = String::from_utf8(unpack(path)).unwrap();
        let mut recording = Self::default();
        for line in text.lines() {
            let mut words = line.split(' ');
            let key = words.next().unwrap();
            let mut number = || u64::from_str_radix(&words.next().unwrap()[2..], 16).unwrap();
            match key {
                "frame" => recording.frames.push(number()),
                "startup" => recording.startup.push((number(), number())),
                "word" => recording.stack.extend(number().to_le_bytes()),
                register => recording.registers.push((register.to_owned(), number())),
            }
        }
        recording
    }

    fn register(&self, name: &str) -> u64 {
        self.registers.iter().find(|(known, _)| known == name).unwrap().1
    }

    fn user_regs(&self, machine: Machine) -> UserRegs {
        let of = |name| self.register(name);
        match machine {
            Machine::X86_64 => UserRegs::x86_64(of("ip"), of("sp"), of("bp")),
            Machine::Aarch64 => UserRegs::Aarch64 { pc: of("pc"), sp: of("sp"), lr: of("lr"), fp: of("fp") },
        }
    }

    fn unwind(&self, unwinder: &mut StackUnwinder, program: &ElfImage) -> (Vec<u64>, Unwound) {
        let mut processes = ProcessTable::default();
        processes.adopt(PID, "chain");
        for segment in program.segments.iter().filter(|segment| segment.executable) {
            let mapped = Mapped {
                pid: PID,
                start: segment.svma,
                len: segment.file_len,
                file_offset: segment.file_offset,
                file: FileId::default(),
                path: "/chain".to_owned(),
            };
            let image = Some(Arc::new(program.clone()));
            processes.mapped(&mapped, |_| LoadedObject { id: ObjectId(ObjectId::FIRST_FILE), image });
        }
        unwinder.note_change();
        let stack = StackCopy::new(RawData::Single(&self.stack), self.stack.len() + 1);
        let mut frames = Vec::new();
        let regs = self.user_regs(program.machine());
        let unwound = unwinder.unwind(processes.get(PID).unwrap(), regs, stack, &mut frames);
        (frames, unwound)
    }
}

fn unpack(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    GzDecoder::new(File::open(path).unwrap()).read_to_end(&mut bytes).unwrap();
    bytes
}

fn folder(machine: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/stacks").join(machine)
}

/// Recordings by name, each with its program.
fn recordings(machine: &str) -> Vec<(String, Recording, ElfImage)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder(machine)).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let Some((build, _)) = name.strip_suffix(".stack.gz").and_then(|name| name.split_once('-')) else {
            continue;
        };
        let program = unpack(&folder(machine).join(format!("{build}.elf.gz")));
        found.push((name, Recording::read(&path), ElfImage::parse_bytes(&program).unwrap()));
    }
    assert!(!found.is_empty());
    found.sort_by(|(left, ..), (right, ..)| left.cmp(right));
    found
}

/// What differs from the truth, for the person.
fn difference(recording: &Recording, frames: &[u64], unwound: Unwound) -> Option<String> {
    let (known, outer) = frames.split_at(frames.len().min(recording.frames.len()));
    let is_in = |(address, &(first, last)): (&u64, &(u64, u64))| (first..last).contains(address);
    let is_startup =
        outer.len() == recording.startup.len() && outer.iter().zip(&recording.startup).all(is_in);
    if known == recording.frames && is_startup && unwound.outcome == Outcome::Complete {
        return None;
    }
    Some(format!(
        "{unwound:?}\n  found   {frames:x?}\n  correct {:x?} and then in {:x?}",
        recording.frames, recording.startup
    ))
}

fn check(machine: &str, expected: Machine, count: usize) {
    // One unwinder for all: what it learns of one program must not spoil another.
    let mut unwinder = StackUnwinder::default();
    let recordings = recordings(machine);
    assert_eq!(recordings.len(), count);
    let mut wrong = Vec::new();
    for _ in 0..2 {
        for (name, recording, program) in &recordings {
            assert_eq!(program.machine(), expected);
            let (frames, unwound) = recording.unwind(&mut unwinder, program);
            wrong.extend(difference(recording, &frames, unwound).map(|text| format!("{name}: {text}")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_frame_recorded_on_aarch64_is_found() {
    check("aarch64", Machine::Aarch64, 19);
}

#[test]
fn every_frame_recorded_on_x86_64_is_found() {
    check("x86_64", Machine::X86_64, 6);
}
