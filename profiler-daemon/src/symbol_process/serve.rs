//! The symbolizer process itself: it confines itself, and then answers until its parent closes the
//! connection.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, anyhow, bail};
use prost::Message;
use rustc_hash::FxHashMap;
use symbolizer::{DebugFiles, Limits, Object, ReadAt, Reason};

use super::message::{
    Confine, Confined, LONGEST_REPLY, LONGEST_REQUEST, LoadObject, SymbolRequest, SymbolResponse, WireFacts,
    WireNames, WireReason, WireReply, WireRequest,
};
use super::print::{Print, Proof, ProvenFile};
use super::{ObjectFacts, Unchanged};
use crate::sys::confine::{ProcessBounds, confine};
use crate::sys::{memory, passing};

/// Stack of the thread that reads (bytes); what is not used of it takes nothing.
const STACK: usize = 64 << 20;

/// Serves whoever started this process, over its standard input.
///
/// # Errors
///
/// If that is no socket of ours, or this process could not be shut in.
pub(crate) fn run() -> Result<()> {
    let channel = Channel::default();
    let first = channel
        .next()
        .map_err(|_| anyhow!("this is an internal part of sweetspot; do not start it yourself"))?;
    let Some((SymbolRequest::Confine(Confine { address_bytes, cpu_s, files }), _)) = first else {
        bail!("the first request is another");
    };
    memory::keep_little();
    let problem = confine(&ProcessBounds { address_bytes, cpu_s, files }).err();
    channel.send(SymbolResponse::Confined(Confined { problem: problem.clone().unwrap_or_default() }))?;
    if let Some(problem) = problem {
        bail!("the symbolizer process was not permitted {problem}");
    }
    let reader = std::thread::Builder::new().stack_size(STACK);
    let reader = reader.spawn(move || serve(&Arc::new(channel)))?;
    reader.join().map_err(|_| anyhow!("internal error in the symbolizer process"))?
}

/// The socket that is our standard input.
#[derive(Default)]
struct Channel {
    /// One question after another: threads that read the same object ask at the same time.
    questions: Mutex<()>,
}

impl Channel {
    fn next(&self) -> io::Result<Option<(SymbolRequest, Option<File>)>> {
        let received = passing::receive(io::stdin().as_fd(), LONGEST_REQUEST, &mut passing::patiently)?;
        let Some((body, file)) = received else { return Ok(None) };
        let request = WireRequest::decode(body.as_slice()).map_err(io::Error::other)?;
        Ok(Some((request.request.ok_or(io::ErrorKind::InvalidData)?, file)))
    }

    fn send(&self, response: SymbolResponse) -> io::Result<()> {
        let body = WireReply { response: Some(response) }.encode_to_vec();
        passing::send(io::stdin().as_fd(), &body, None, &mut passing::patiently)
    }

    /// Asks for a separate debug file.
    fn question(&self, response: SymbolResponse) -> Option<Box<dyn ReadAt>> {
        let _one = self.questions.lock().unwrap_or_else(PoisonError::into_inner);
        self.send(response).ok()?;
        let (_, file) = self.next().ok()??;
        Some(Box::new(Unchanged::new(file?).ok()?))
    }
}

/// Separate debug files, which our parent opens.
struct RequestedFiles(Arc<Channel>);

impl DebugFiles for RequestedFiles {
    fn open(&self, path: &Path) -> Option<Box<dyn ReadAt>> {
        self.0.question(SymbolResponse::Open(path.as_os_str().as_bytes().to_vec()))
    }

    fn fetch(&self, build_id: &str) -> Option<Box<dyn ReadAt>> {
        self.0.question(SymbolResponse::Fetch(build_id.to_owned()))
    }

    fn share(&self) -> Option<Box<dyn DebugFiles + Send + Sync>> {
        Some(Box::new(Self(Arc::clone(&self.0))))
    }
}

/// An object that was read.
struct HeldObject {
    object: Object<'static>,
    /// Of one that tells names for others too.
    proof: Proof,
}

impl HeldObject {
    fn facts(&self) -> WireFacts {
        WireFacts::of(&ObjectFacts::of(&self.object), !self.proof.holds())
    }
}

fn serve(channel: &Arc<Channel>) -> Result<()> {
    let mut objects: FxHashMap<u64, HeldObject> = FxHashMap::default();
    while let Some((request, file)) = channel.next()? {
        match request {
            SymbolRequest::Load(load) => {
                let number = load.number;
                let response = match read(load, file, channel) {
                    Ok(held) => {
                        let facts = held.facts();
                        objects.insert(number, held);
                        SymbolResponse::Loaded(facts)
                    }
                    Err(reason) => SymbolResponse::Refused(WireReason::of(&reason)),
                };
                channel.send(response)?;
            }
            SymbolRequest::LookUp(asked) => {
                let held =
                    objects.get_mut(&asked.number).ok_or_else(|| anyhow!("there is no such object"))?;
                channel.send(look_up(held, &asked.addresses))?;
            }
            SymbolRequest::Forget(forgotten) => {
                forgotten.numbers.iter().for_each(|number| drop(objects.remove(number)));
                memory::give_back();
            }
            SymbolRequest::Confine(_) | SymbolRequest::File(_) => bail!("a request has no place here"),
        }
    }
    Ok(())
}

fn read(load: LoadObject, file: Option<File>, channel: &Arc<Channel>) -> Result<HeldObject, Reason> {
    let no_file = || Reason::Unreadable("the symbolizer process has too many files open".to_owned());
    let file = Unchanged::new(file.ok_or_else(no_file)?)?;
    let proof = Proof::default();
    let bytes: Arc<dyn ReadAt> = match load.print {
        Some(print) => {
            let print = Arc::new(Print::of_parts(print.len, &print.parts));
            Arc::new(ProvenFile::new(file, print, proof.clone()))
        }
        None => Arc::new(file),
    };
    let limits = Limits { bytes: load.bytes, all_bytes: load.all_bytes };
    let object =
        Object::load_owned(limits, bytes, Path::new(&load.path), &RequestedFiles(Arc::clone(channel)))?;
    Ok(HeldObject { object, proof })
}

fn look_up(held: &mut HeldObject, addresses: &[u64]) -> SymbolResponse {
    let symbolized = held.object.symbolize_more(addresses);
    let found = WireNames::of(&symbolized, held.facts());
    if found.encoded_len() < LONGEST_REPLY {
        return SymbolResponse::Found(found);
    }
    let bytes = found.encoded_len() as u64;
    let too_large = Reason::TooLarge { what: "the names of this request".to_owned(), bytes };
    let unknown = vec![symbolizer::Symbolized::Unknown(too_large); addresses.len()];
    SymbolResponse::Found(WireNames::of(&unknown, held.facts()))
}
