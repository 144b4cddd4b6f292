//! A faulty backend for profiles: a process that records what it acknowledges. A file selects the fault that it answers with.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use profile_files::pprof;
use serde::Serialize;

use crate::addresses::{Reserved, listen_at};
use crate::guards::Running;

/// Bodies that are longer are refused by [`Fault::TooLong`].
const LONGEST: usize = 3_000;
/// The file that says how to answer.
const PLAY: &str = "play";

/// How a backend answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// Acknowledges all.
    None,
    /// Takes no long bodies.
    TooLong,
    /// Fails.
    Fails,
    /// Asks to wait a second.
    Busy,
    /// Rejects the token.
    Token,
    /// Redirects to another address.
    Redirects,
    /// Never answers.
    Hangs,
    /// Reads half of the body and closes the connection.
    Cuts,
    /// Keeps the profile and closes the connection without an answer, so the client cannot know that it arrived.
    Forgets,
    /// Sends an answer that never ends.
    Endless,
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 10] = [
        Fault::None,
        Fault::TooLong,
        Fault::Fails,
        Fault::Busy,
        Fault::Token,
        Fault::Redirects,
        Fault::Hangs,
        Fault::Cuts,
        Fault::Forgets,
        Fault::Endless,
    ];

    fn word(self) -> String {
        format!("{self:?}")
    }

    fn of(word: &str) -> Fault {
        Fault::ALL.into_iter().find(|fault| fault.word() == word).unwrap_or(Fault::None)
    }
}

/// A profile that it keeps.
#[derive(Clone, Debug)]
pub struct Kept {
    /// What it is called.
    pub target: String,
    /// When it begins (ns since the epoch).
    pub start_unix_ns: u64,
    /// Its samples.
    pub samples: u64,
    /// When it arrived (s since the epoch).
    pub came_s: f64,
    /// Whether it was acknowledged.
    pub is_answered: bool,
}

/// A backend in a process of its own, and the folder that outlives it.
pub struct Backend {
    folder: PathBuf,
    reserved: Reserved,
    running: Option<Running>,
}

impl Backend {
    /// One that keeps profiles in `folder`; it is down.
    ///
    /// # Errors
    ///
    /// If no address is free.
    pub fn new(folder: &Path) -> Result<Backend> {
        let backend = Backend { folder: folder.to_owned(), reserved: Reserved::new()?, running: None };
        backend.play(Fault::None)?;
        Ok(backend)
    }

    /// Where it is reached.
    pub fn url(&self) -> String {
        format!("http://{}", self.reserved.address())
    }

    /// Starts it, if it is down.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub fn come_up(&mut self) -> Result<()> {
        if self.running.is_none() {
            let mut command = Command::new(std::env::current_exe()?);
            command
                .arg("--receive")
                .arg(&self.folder)
                .arg(self.reserved.address().to_string())
                .stdin(Stdio::null());
            self.running = Some(Running::start(&mut command)?);
        }
        Ok(())
    }

    /// Kills it as `kill -9` does.
    pub fn go_down(&mut self) {
        self.running = None;
    }

    /// Sets how it answers from now on.
    ///
    /// # Errors
    ///
    /// If its folder cannot be written.
    pub fn play(&self, fault: Fault) -> Result<()> {
        let new = self.folder.join("play.new");
        fs::write(&new, fault.word())?;
        Ok(fs::rename(new, self.folder.join(PLAY))?)
    }

    /// What it keeps.
    ///
    /// # Errors
    ///
    /// If one of its files is not a profile.
    pub fn kept(&self) -> Result<Vec<Kept>> {
        let files = fs::read_dir(&self.folder)?.flatten().map(|file| file.path());
        files
            .filter(|path| path.extension().is_some_and(|end| end == "kept" || end == "answered"))
            .map(kept)
            .collect()
    }
}

fn kept(path: PathBuf) -> Result<Kept> {
    let name = path.file_stem().context("a name")?.to_string_lossy().into_owned();
    let (came_ns, target) = name.split_once('-').context("when it came, and of which target")?;
    let profile = pprof::read(fs::read(&path)?.as_slice()).with_context(|| path.display().to_string())?;
    Ok(Kept {
        target: target.to_owned(),
        start_unix_ns: profile.run.start_unix_ns,
        samples: profile.stacks.iter().map(|stack| stack.samples).sum(),
        came_s: came_ns.parse::<u64>()? as f64 * 1e-9,
        is_answered: path.extension().is_some_and(|end| end == "answered"),
    })
}

/// The process's side: `--receive FOLDER ADDRESS`, until it is killed.
///
/// # Errors
///
/// If it cannot listen at the address.
pub fn receive(folder: &Path, address: &str) -> Result<()> {
    let listener = listen_at(address.parse()?).with_context(|| address.to_owned())?;
    for stream in listener.incoming().flatten() {
        let folder = folder.to_owned();
        // What is wrong with one connection is the client's to find out.
        thread::spawn(move || answer(stream, &folder));
    }
    Ok(())
}

fn answer(mut stream: TcpStream, folder: &Path) -> Result<()> {
    let fault = Fault::of(&fs::read_to_string(folder.join(PLAY))?);
    let mut reader = BufReader::new(stream.try_clone()?);
    let (mut line, mut length) = (String::new(), 0);
    reader.read_line(&mut line)?;
    let target = line.split_once("name=").and_then(|(_, rest)| rest.split_once("%7B")).context("a name")?.0;
    loop {
        let mut header = String::new();
        ensure!(reader.read_line(&mut header)? > 0, "no end of the head");
        if header == "\r\n" {
            break;
        }
        if let Some(value) = header.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse()?;
        }
    }
    if fault == Fault::Cuts {
        reader.read_exact(&mut vec![0; length / 2])?;
        return Ok(());
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let status = match fault {
        Fault::Hangs => {
            stream.read_exact(&mut [0])?; // until the client has gone
            return Ok(());
        }
        Fault::Endless => return endless(&mut stream),
        Fault::TooLong if length > LONGEST => "413 Content Too Large",
        Fault::Fails => "500 Internal Server Error",
        Fault::Busy => "503 Service Unavailable\r\nretry-after: 1",
        Fault::Token => "401 Unauthorized",
        Fault::Redirects => "302 Found\r\nlocation: http://127.0.0.1:1/",
        Fault::None | Fault::TooLong | Fault::Cuts | Fault::Forgets => "200 OK",
    };
    let came_ns = SystemTime::UNIX_EPOCH.elapsed()?.as_nanos();
    let path = folder.join(format!("{came_ns}-{target}.kept"));
    if status.starts_with("200") {
        let new = path.with_extension("new");
        fs::write(&new, body)?;
        fs::rename(new, &path)?;
    }
    if fault == Fault::Forgets {
        return Ok(());
    }
    write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")?;
    if status.starts_with("200") {
        fs::rename(&path, path.with_extension("answered"))?;
    }
    Ok(())
}

/// An answer that goes on until the client closes the connection.
fn endless(stream: &mut TcpStream) -> Result<()> {
    write!(stream, "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")?;
    loop {
        stream.write_all(&[b'x'; 4096])?;
        thread::sleep(Duration::from_millis(10));
    }
}
