//! Symbol tables and debug information are read in a process of their own, which can do nothing else.
//!
//! A mapped file can come from anyone and may be crafted against its reader, and the profiler may open every
//! file of the host. So files are read by this program started once more (`sweetspot symbolizer`), without
//! capabilities and behind a filter of system calls ([`crate::sys::confine`]): it reads descriptors that it
//! is handed, takes memory, and answers. It opens nothing. Separate debug files are opened by the profiler
//! ([`OpenDebugFiles`]), and handed over if they begin as ELF files do.
//!
//! Names are read through a [`ReadObject`], wherever the object was read. A file that ends the process, or
//! keeps it for too long, is read again in a new one, its symbol table alone; if that ends it too, it has no
//! names ([`marks`]). All else goes on in the new process. Objects that were read before are read anew as
//! they are asked for. Where no such process can be had, symbol tables are read here, and nothing else is.
//!
//! The kernel's list of functions and what run-time compilers write down are read by the profiler itself:
//! these are flat texts and records, without tables that refer to each other, and the latter grow with every
//! window. So are unwind tables, which each sample needs, and which are vetted as they are met.

mod marks;
mod message;
mod objects;
mod part_counts;
pub(crate) mod print;
mod running;
mod serve;
mod status;
#[cfg(test)]
mod tests;
mod unchanged;

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use symbolizer::{Limits, Symbolized};

use self::marks::{Extent, Marks};
use self::message::{Forget, LoadObject, LookUp, SymbolRequest, SymbolResponse};
use self::objects::{FileName, There};
pub(crate) use self::objects::{Gone, ObjectFacts, ObjectNotRead, OpenDebugFiles, ReadObject, WantedObject};
pub(crate) use self::running::CpuAllowance;
use self::running::{Broken, NotStarted, Patience, Question, Running, SymbolizerProgram};
pub(crate) use self::serve::run;
pub(crate) use self::status::ProcessStatus;
pub(crate) use self::unchanged::Unchanged;
use crate::sys::confine::ProcessBounds;
use crate::sys::{clock, limits};

/// Of the descriptors that this process may have, so large a part may be files of objects, for each sampler.
const PART_OPEN: u64 = 64;

/// The most files that are kept open for objects.
pub(crate) fn object_files() -> usize {
    (limits::open_files() / PART_OPEN).clamp(64, 1024) as usize
}

/// Address space beside what symbols may take: the program, stacks, and what is read on its way (bytes).
const ADDRESSES_BESIDE: u64 = 512 << 20;
/// CPU time that one process may use (s). It is replaced after half of that, between two requests.
const MOST_CPU_S: u64 = 3_600;
/// Files that it may have open for each object that is held, with its debug files; and beside these.
const FILES_EACH: u64 = 4;
const FILES_BESIDE: u64 = 64;
/// A process that nobody asked for so long is ended (ns): longer than the longest window.
const IDLE_NS: u64 = 900_000_000_000;
/// How often it is tried to start one before that counts as impossible.
const TRIES: usize = 3;
/// Objects that one message drops: what it takes, the socket holds whole or not at all.
const FORGOTTEN_AT_ONCE: usize = 256;
/// The longest path that is opened.
const LONGEST_PATH: usize = 4_096;

#[cfg(not(test))]
const PROGRAM: SymbolizerProgram = SymbolizerProgram {
    path: "/proc/self/exe", // the same program, even if its file was replaced
    arguments: &["symbolizer"],
};
/// Under test this program has another `main`.
#[cfg(test)]
const PROGRAM: SymbolizerProgram = SymbolizerProgram {
    path: "/proc/self/exe",
    arguments: &["symbol_process::tests::serve", "--exact", "--ignored", "--nocapture", "--test-threads=1"],
};

/// The symbolizer process, which is started when there is something to read. Clones are the same.
#[derive(Clone)]
pub(crate) struct SymbolProcess(Arc<SharedSymbolizer>);

struct SharedSymbolizer {
    program: SymbolizerProgram,
    patience: Patience,
    /// Held as long as a request takes.
    state: Mutex<State>,
    /// Objects that nobody needs any more, and the process still holds: their process and number.
    forgotten: Mutex<Vec<(u64, u64)>>,
    status: Mutex<ProcessStatus>,
    allowance: Mutex<Option<CpuAllowance>>,
}

#[derive(Default)]
struct State {
    running: Option<Running>,
    /// How many were started.
    generation: u64,
    /// Objects that were read, and those of them that the process before had read.
    objects: u64,
    objects_before: u64,
    /// When it was asked last (ns).
    used_ns: u64,
    marks: Marks,
    /// That none can be had.
    is_impossible: bool,
    /// Killed, and not gone by then.
    unreaped: Vec<Running>,
}

impl Default for SymbolProcess {
    fn default() -> Self {
        Self::with(PROGRAM, Patience::default())
    }
}

impl SymbolProcess {
    fn with(program: SymbolizerProgram, patience: Patience) -> Self {
        let (state, forgotten, status) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self(Arc::new(SharedSymbolizer {
            program,
            patience,
            state,
            forgotten,
            status,
            allowance: Mutex::default(),
        }))
    }

    /// From now on it may only take what there is CPU time for.
    pub(crate) fn pace(&self, allowance: CpuAllowance) {
        *lock(&self.0.allowance) = Some(allowance);
    }

    /// Whether there is CPU time for it at present.
    #[cfg(test)]
    pub(crate) fn may_go_on(&self) -> bool {
        lock(&self.0.allowance).as_ref().is_none_or(|allowance| allowance(0))
    }

    /// One that cannot be started.
    #[cfg(test)]
    pub(crate) fn impossible() -> Self {
        Self::with(SymbolizerProgram { path: "/nowhere", arguments: &[] }, Patience::default())
    }

    /// Reads an object; symbols may take `most_bytes` all in all.
    pub(crate) fn load(&self, wanted: WantedObject<'_>, most_bytes: u64) -> Result<There, ObjectNotRead> {
        let identity = wanted.identity.unwrap_or_else(|| wanted.path.to_owned());
        let file = FileName { path: wanted.path.to_owned(), identity };
        let mut state = lock(&self.0.state);
        let limits = match state.marks.extent(&file.identity, clock::monotonic_ns()) {
            Extent::All => wanted.limits,
            Extent::Symbols => Limits::of_symbols(wanted.limits.all_bytes),
            Extent::Nothing(how) => return Err(ObjectNotRead::GivenUp(how)),
        };
        self.be_ready(&mut state, most_bytes)?;
        state.objects += 1;
        let (bytes, proof) = (wanted.file.metadata().map_or(0, |meta| meta.len()), wanted.print.as_ref());
        let print = proof.map(|(print, _)| {
            let (len, parts) = print.parts();
            message::WirePrint { len, parts }
        });
        let mut there = There {
            process: self.clone(),
            generation: state.generation,
            number: state.objects,
            facts: ObjectFacts::default(),
            is_partial: limits != wanted.limits,
            file,
            bytes,
            files: wanted.files,
            proof: wanted.print.map(|(_, proof)| proof).unwrap_or_default(),
        };
        let load = SymbolRequest::Load(LoadObject {
            number: there.number,
            path: there.file.path.clone(),
            bytes: limits.bytes,
            all_bytes: limits.all_bytes,
            print,
        });
        let read = self.request(&mut state, load, Some(wanted.file), &mut there);
        let address_bytes = state.address_bytes();
        let read = read.and_then(|response| match response {
            SymbolResponse::Loaded(facts) => {
                there.note(Some(facts), address_bytes).map(|()| Ok(())).ok_or_else(nonsense)
            }
            SymbolResponse::Refused(reason) => reason.checked().map(Err).map_err(|_| nonsense()),
            _ => Err(nonsense()),
        });
        let read = read.map_err(|broken| self.give_up(&mut state, &there.file, &broken));
        drop(state); // an object that was not read is forgotten
        match read {
            Ok(Ok(())) => Ok(there),
            Ok(Err(reason)) => Err(ObjectNotRead::Reason(reason)),
            Err(Gone) => Err(ObjectNotRead::Gone),
        }
    }

    fn look_up(&self, there: &mut There, addresses: Vec<u64>) -> Result<Vec<Symbolized>, Gone> {
        let mut state = lock(&self.0.state);
        if !state.lives(there.generation) {
            return Err(Gone);
        }
        let count = addresses.len();
        let asked = SymbolRequest::LookUp(LookUp { number: there.number, addresses });
        let response = self.request(&mut state, asked, None, there);
        let address_bytes = state.address_bytes();
        let found = response.and_then(|response| match response {
            SymbolResponse::Found(mut found) => {
                there.note(found.facts.take(), address_bytes).ok_or_else(nonsense)?;
                found.checked(count).map_err(|_| nonsense())
            }
            _ => Err(nonsense()),
        });
        found.map_err(|broken| self.give_up(&mut state, &there.file, &broken))
    }

    fn request(
        &self,
        state: &mut State,
        request: SymbolRequest,
        file: Option<&File>,
        there: &mut There,
    ) -> Result<SymbolResponse, Broken> {
        state.used_ns = clock::monotonic_ns();
        let numbers = self.take_forgotten(there.generation);
        let running = state.running.as_mut().ok_or_else(|| Broken::useless("it is not there"))?;
        if !numbers.is_empty() {
            running.notify(SymbolRequest::Forget(Forget { numbers }));
        }
        let patience = self.0.patience.for_bytes(there.bytes);
        let allowance = lock(&self.0.allowance).clone();
        running.request(request, file, patience, allowance, &mut |question| {
            let file = open(&*there.files, question)?;
            there.bytes = there.bytes.saturating_add(file.metadata().map_or(0, |meta| meta.len()));
            Some(file)
        })
    }

    /// Has a process run that can be asked.
    fn be_ready(&self, state: &mut State, most_bytes: u64) -> Result<(), ObjectNotRead> {
        state.unreaped.retain_mut(Running::is_alive);
        if state.is_impossible {
            return Err(ObjectNotRead::Here);
        }
        let bounds = bounds(most_bytes);
        if state.running.as_mut().is_some_and(|running| running.is_fit(&bounds)) {
            return Ok(());
        }
        self.end(state);
        let mut why = String::new();
        for _ in 0..TRIES {
            match Running::start(&self.0.program, bounds, self.0.patience) {
                Ok(running) => {
                    let mut status = lock(&self.0.status);
                    (status.pid, status.started) = (Some(running.pid()), status.started + 1);
                    state.generation += 1;
                    state.objects_before = state.objects;
                    state.running = Some(running);
                    return Ok(());
                }
                Err(NotStarted(because)) => why = because,
            }
        }
        if state.generation > 0 {
            return Err(ObjectNotRead::NoProcess(why));
        }
        state.is_impossible = true;
        tracing::warn!(
            "no symbolizer process can be started: {why}; sweetspot reads symbol tables itself, and no \
             debug information"
        );
        let note = format!(
            "functions are named from symbol tables only, without lines and inlined calls: no confined \
             process could be started to read debug information: {why}"
        );
        lock(&self.0.status).say(note);
        lock(&self.0.status).obstacle = Some(why);
        Err(ObjectNotRead::Here)
    }

    /// A file has ended the process, or kept it for too long: less of it is read the next time. If the process ended and held other
    /// files, it may have been the doing of one of them: this one is read once more.
    fn give_up(&self, state: &mut State, file: &FileName, Broken { how, has_ended }: &Broken) -> Gone {
        self.end(state);
        let is_its_doing = !has_ended || state.objects - state.objects_before <= 1;
        let extent = state.marks.note(&file.identity, (how, is_its_doing), clock::monotonic_ns());
        let then = match extent {
            Extent::All => "it is read once more",
            Extent::Symbols => "it is named from its symbol table alone",
            Extent::Nothing(_) => "nothing of it is read, and its functions have no names",
        };
        let path = file.path.escape_debug();
        let line = format!("{path} was given up by the symbolizer process ({how}): {then}");
        tracing::warn!("{line}");
        let mut status = lock(&self.0.status);
        status.broken += 1;
        status.last = Some(line.clone());
        status.say(line);
        Gone
    }

    fn end(&self, state: &mut State) {
        let ended = state.running.take().and_then(Running::end);
        state.unreaped.extend(ended);
        lock(&self.0.status).pid = None;
    }

    /// Whether this process runs.
    fn lives(&self, generation: u64) -> bool {
        lock(&self.0.state).lives(generation)
    }

    /// Nobody needs this object any more. It may be the sampling thread that says so, many times in a row: so nothing is sent here.
    fn forget(&self, generation: u64, number: u64) {
        lock(&self.0.forgotten).push((generation, number));
    }

    /// Has the process drop the objects that nobody needs. This waits for nothing: a process that is at work, or does not read, is
    /// told by the next request.
    pub(crate) fn drop_forgotten(&self) {
        let Ok(mut state) = self.0.state.try_lock() else { return };
        let numbers = self.take_forgotten(state.generation);
        let Some(running) = &state.running else { return };
        let (mut sent, mut outcome) = (0, Ok(true));
        for numbers in numbers.chunks(FORGOTTEN_AT_ONCE) {
            outcome = running.notify_at_once(SymbolRequest::Forget(Forget { numbers: numbers.to_vec() }));
            if !matches!(outcome, Ok(true)) {
                break;
            }
            sent += numbers.len();
        }
        let left = numbers[sent..].iter().map(|number| (state.generation, *number));
        lock(&self.0.forgotten).extend(left);
        if outcome.is_err() {
            self.end(&mut state);
        }
    }

    /// The numbers of the objects that nobody needs, of this process; those of others are gone.
    fn take_forgotten(&self, generation: u64) -> Vec<u64> {
        let forgotten = std::mem::take(&mut *lock(&self.0.forgotten));
        forgotten.into_iter().filter(|(of, _)| *of == generation).map(|(_, number)| number).collect()
    }

    /// Whether it runs, and nobody has asked it for long.
    pub(crate) fn is_idle(&self, now_ns: u64) -> bool {
        self.0
            .state
            .try_lock()
            .is_ok_and(|state| state.running.is_some() && now_ns.saturating_sub(state.used_ns) >= IDLE_NS)
    }

    /// Ends it, unless it is at work. It is started again when there is something to read.
    pub(crate) fn rest(&self) {
        if let Ok(mut state) = self.0.state.try_lock() {
            self.end(&mut state);
        }
    }

    /// What there is to tell.
    pub(crate) fn status(&self) -> ProcessStatus {
        lock(&self.0.status).clone()
    }

    /// What is new since this was asked last, in lines for a person.
    pub(crate) fn take_notes(&self) -> Vec<String> {
        lock(&self.0.status).notes.drain(..).collect()
    }
}

impl State {
    fn lives(&mut self, generation: u64) -> bool {
        self.generation == generation && self.running.as_mut().is_some_and(Running::is_alive)
    }

    fn address_bytes(&self) -> u64 {
        self.running.as_ref().map_or(0, |running| running.address_bytes)
    }
}

impl Running {
    /// Whether it can be asked, and has as much room as it may have.
    fn is_fit(&mut self, bounds: &ProcessBounds) -> bool {
        self.is_alive()
            && self.address_bytes == bounds.address_bytes
            && self.cpu_ns() / 1_000_000_000 < MOST_CPU_S / 2
    }
}

fn nonsense() -> Broken {
    Broken::useless("it sent an invalid response")
}

fn bounds(most_bytes: u64) -> ProcessBounds {
    let address_bytes = most_bytes.saturating_mul(2).saturating_add(ADDRESSES_BESIDE);
    let files = FILES_EACH * object_files() as u64 + FILES_BESIDE;
    ProcessBounds { address_bytes, cpu_s: MOST_CPU_S, files }
}

/// Opens what the process asks for. It could ask for anything, so it gets nothing but ELF files.
fn open(files: &dyn OpenDebugFiles, question: Question) -> Option<File> {
    let file = match question {
        Question::Open(path) if path.len() <= LONGEST_PATH => {
            files.open(Path::new(OsStr::from_bytes(&path)))?
        }
        Question::Open(_) => return None,
        Question::Fetch(build_id) => files.fetch(&build_id)?,
    };
    let mut start = [0; 4];
    file.read_exact_at(&mut start, 0).ok()?;
    (start == *b"\x7fELF").then_some(file)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
