//! A file system of one file whose server stops answering: what a dead `sshfs` or a network mount looks like to those who
//! open its files.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};

/// The only file.
const NAME: &[u8] = b"program\0";
const ROOT_NODE: u64 = 1;
const FILE_NODE: u64 = 2;
/// What precedes each request, and each answer (bytes).
const REQUEST_HEADER: usize = 40;
const ANSWER_HEADER: usize = 16;
/// Requests that have no answer: `FORGET`, `INTERRUPT`, `BATCH_FORGET`.
const UNANSWERED: [u32; 3] = [2, 36, 42];
/// What the kernel may keep of a file's pages when it is opened again (`FOPEN_KEEP_CACHE`).
const KEEP_CACHE: u32 = 2;

/// A mounted file system; it is unmounted, and what waits for it gets an error, when this is dropped.
pub struct StallingMount {
    folder: tempfile::TempDir,
    server: Arc<Server>,
}

struct Server {
    device: File,
    bytes: Vec<u8>,
    /// Requests of executables of this name stay without an answer while others are answered.
    refused: String,
    is_refusing: AtomicBool,
    /// Requests that wait for an answer, as they came.
    waiting: Mutex<Vec<Vec<u8>>>,
    stalled: AtomicU64,
}

impl StallingMount {
    /// Whether there is such a file system here.
    pub fn is_possible() -> bool {
        Path::new("/dev/fuse").exists()
    }

    /// Serves a copy of `program` under the name [`Self::program`]. From [`Self::stall`] on, requests of executables with the file
    /// name `refused` are not answered.
    pub fn new(program: &Path, refused: &str) -> Result<StallingMount> {
        let folder = tempfile::tempdir()?;
        let bytes = fs::read(program).with_context(|| format!("cannot read {}", program.display()))?;
        let device =
            File::options().read(true).write(true).open("/dev/fuse").context("cannot open /dev/fuse")?;
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", device.as_raw_fd());
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(Some("stalling"), folder.path(), Some("fuse"), flags, Some(options.as_str()))
            .context("cannot mount a FUSE file system")?;
        let server = Arc::new(Server {
            device,
            bytes,
            refused: refused.to_string(),
            is_refusing: AtomicBool::new(false),
            waiting: Mutex::default(),
            stalled: AtomicU64::new(0),
        });
        let serving = Arc::clone(&server);
        thread::spawn(move || serving.run());
        Ok(StallingMount { folder, server })
    }

    /// Where it is mounted.
    pub fn folder(&self) -> PathBuf {
        self.folder.path().to_path_buf()
    }

    /// The file.
    pub fn program(&self) -> PathBuf {
        self.folder.path().join("program")
    }

    /// From now on it does not answer.
    pub fn stall(&self) {
        self.server.is_refusing.store(true, Ordering::SeqCst);
    }

    /// From now on it answers again, first of all what was asked meanwhile.
    pub fn answer(&self) {
        self.server.is_refusing.store(false, Ordering::SeqCst);
        let waiting = std::mem::take(&mut *self.server.waiting.lock().expect("no thread panicked"));
        waiting
            .iter()
            .filter_map(|bytes| Request::parse(bytes))
            .for_each(|request| self.server.respond(&request));
    }

    /// How many requests had to wait.
    pub fn stalled(&self) -> u64 {
        self.server.stalled.load(Ordering::SeqCst)
    }

    /// Unmounts it, which ends all requests that wait with an error.
    pub fn unmount(&self) {
        // Nothing can be done about a failure here. The server's thread ends with the connection.
        let _ = umount2(self.folder.path(), MntFlags::MNT_FORCE | MntFlags::MNT_DETACH);
    }
}

impl Drop for StallingMount {
    fn drop(&mut self) {
        self.unmount();
    }
}

/// A request of the kernel's.
struct Request<'a> {
    operation: u32,
    unique: u64,
    node: u64,
    pid: u32,
    rest: &'a [u8],
}

impl<'a> Request<'a> {
    fn parse(bytes: &'a [u8]) -> Option<Request<'a>> {
        Some(Request {
            operation: word(bytes, 4)?,
            unique: long(bytes, 8)?,
            node: long(bytes, 16)?,
            pid: word(bytes, 32)?,
            rest: bytes.get(REQUEST_HEADER..)?,
        })
    }
}

impl Server {
    fn run(&self) {
        let mut buffer = vec![0; 256 << 10];
        loop {
            let read = match (&self.device).read(&mut buffer) {
                Ok(read) => read,
                Err(error) if error.raw_os_error() == Some(Errno::ENODEV as i32) => return, // unmounted
                Err(error) if error.raw_os_error() == Some(Errno::ECONNABORTED as i32) => return,
                Err(_) => continue, // a request that was interrupted before it was read
            };
            let Some(request) = Request::parse(&buffer[..read]) else { return };
            if UNANSWERED.contains(&request.operation) {
                continue;
            }
            let mut waiting = self.waiting.lock().expect("no thread panicked");
            if self.is_refused(&request) {
                self.stalled.fetch_add(1, Ordering::SeqCst);
                waiting.push(buffer[..read].to_vec());
                continue;
            }
            drop(waiting);
            self.respond(&request);
        }
    }

    fn respond(&self, request: &Request<'_>) {
        let (error, body) = match self.answer(request) {
            Ok(body) => (0, body),
            Err(error) => (-(error as i32), Vec::new()),
        };
        let len = (ANSWER_HEADER + body.len()) as u32;
        let mut answer = [len.to_ne_bytes(), error.to_ne_bytes()].concat();
        answer.extend(request.unique.to_ne_bytes());
        answer.extend(body);
        // The requester may have been killed meanwhile.
        let _ = (&self.device).write(&answer);
    }

    fn is_refused(&self, request: &Request<'_>) -> bool {
        let of_executable = || {
            let exe = fs::read_link(format!("/proc/{}/exe", request.pid)).unwrap_or_default();
            exe.file_name().is_some_and(|name| name == self.refused.as_str())
        };
        self.is_refusing.load(Ordering::SeqCst) && of_executable()
    }

    fn answer(&self, request: &Request<'_>) -> Result<Vec<u8>, Errno> {
        match request.operation {
            1 if request.rest == NAME => Ok(self.entry()),
            1 => Err(Errno::ENOENT),                                          // LOOKUP
            3 => Ok([&[0; 16][..], &self.attributes(request.node)].concat()), // GETATTR
            14 | 27 => Ok([&[0; 8][..], &KEEP_CACHE.to_ne_bytes(), &[0; 4]].concat()), // OPEN, OPENDIR
            15 => Ok(self.read(request.rest)),                                // READ
            17 => Ok(vec![0; 80]),                                            // STATFS
            18 | 25 | 29 | 34 => Ok(Vec::new()), // RELEASE, FLUSH, RELEASEDIR, ACCESS
            26 => Ok(init()),                    // INIT
            _ => Err(Errno::ENOSYS),
        }
    }

    fn read(&self, rest: &[u8]) -> Vec<u8> {
        let start = long(rest, 8).unwrap_or(0).min(self.bytes.len() as u64) as usize;
        let len = word(rest, 16).unwrap_or(0) as usize;
        self.bytes[start..(start + len).min(self.bytes.len())].to_vec()
    }

    /// What a name leads to, and that it is to be asked for again each time.
    fn entry(&self) -> Vec<u8> {
        [&FILE_NODE.to_ne_bytes()[..], &[0; 32], &self.attributes(FILE_NODE)].concat()
    }

    fn attributes(&self, node: u64) -> Vec<u8> {
        const FOLDER: u32 = 0o040_755;
        const PROGRAM: u32 = 0o100_755;
        let (size, mode) = if node == ROOT_NODE { (0, FOLDER) } else { (self.bytes.len() as u64, PROGRAM) };
        let longs = [node, size, size.div_ceil(512), 1, 1, 1].map(u64::to_ne_bytes).concat();
        // Times' nanoseconds, mode, links, user, group, device, block size, flags.
        let words = [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0].map(u32::to_ne_bytes).concat();
        [longs, words].concat()
    }
}

/// The protocol's version, 7.31, and that requests are short.
fn init() -> Vec<u8> {
    let words = [7u32, 31, 0, 0].map(u32::to_ne_bytes).concat();
    let background = [12u16, 9].map(u16::to_ne_bytes).concat();
    let sizes = [64u32 << 10, 1].map(u32::to_ne_bytes).concat();
    [words, background, sizes, vec![0; 36]].concat()
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}
