//! Requests over the daemon's socket, with timeouts and strict checks of the answers.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// Why no answer came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unanswered {
    /// Nothing listens on the socket.
    Absent,
    /// Not in time.
    Late,
    /// The connection ended before the answer did.
    Broken,
}

/// `GET path`: status and body.
pub(crate) fn get(socket: &Path, path: &str, patience: Duration) -> Result<(u16, Vec<u8>), Unanswered> {
    let deadline = Instant::now() + patience;
    let mut stream = UnixStream::connect(socket).map_err(|_| Unanswered::Absent)?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).map_err(|_| Unanswered::Broken)?;
    let (mut answer, mut piece) = (Vec::new(), [0; 65536]);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Unanswered::Late);
        }
        stream.set_read_timeout(Some(left)).map_err(|_| Unanswered::Broken)?;
        match stream.read(&mut piece) {
            Ok(0) => return split(&answer).map_err(|_| Unanswered::Broken),
            Ok(count) => answer.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(Unanswered::Late),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return Err(Unanswered::Broken),
        }
    }
}

/// The same, read as JSON; another status than 200 counts as broken.
pub(crate) fn get_json(socket: &Path, path: &str, patience: Duration) -> Result<Value, Unanswered> {
    match get(socket, path, patience)? {
        (200, body) => serde_json::from_slice(&body).map_err(|_| Unanswered::Broken),
        _ => Err(Unanswered::Broken),
    }
}

fn split(answer: &[u8]) -> Result<(u16, Vec<u8>)> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").context("no head")?;
    let head = std::str::from_utf8(&answer[..end])?;
    let status = head.split_whitespace().nth(1).context("no status")?.parse()?;
    let body = answer[end + 4..].to_vec();
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    ensure!(length.is_none_or(|length| length == body.len()), "cut short");
    if head.to_ascii_lowercase().contains("transfer-encoding") {
        bail!("in pieces, for a client of HTTP/1.0");
    }
    Ok((status, body))
}
