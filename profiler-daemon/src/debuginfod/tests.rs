use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use tempfile::TempDir;

use super::*;

const BUILD_ID: &str = "abcdef0123";

/// A server on this machine that answers every request in one way, and counts them.
struct Server {
    url: String,
    requests: Arc<AtomicUsize>,
}

impl Server {
    /// `answer` is given the path that was asked for. The thread ends with the test's process.
    fn start(answer: impl Fn(&str, &mut TcpStream) + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&requests);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                counted.fetch_add(1, Ordering::SeqCst);
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let first = lines.next().unwrap().unwrap_or_default();
                while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
                answer(first.split(' ').nth(1).unwrap_or_default(), &mut stream);
            }
        });
        Self { url, requests }
    }

    /// One that has this file, of the build asked for or not.
    fn with(file: Vec<u8>) -> Self {
        Self::start(move |path, stream| {
            if path != format!("/buildid/{BUILD_ID}/debuginfo") {
                let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n");
                return;
            }
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", file.len());
            let _ = stream.write_all(head.as_bytes());
            let _ = stream.write_all(&file);
        })
    }

    fn saying(status: &'static str) -> Self {
        Self::start(move |_, stream| {
            let _ = write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
        })
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

fn client(servers: &[&str], cache: &Path) -> Debuginfod {
    Debuginfod::new(&Servers::new(settings(servers, cache)))
}

fn settings(servers: &[&str], cache: &Path) -> DebuginfodSettings {
    DebuginfodSettings {
        servers: servers.iter().map(|&server| server.to_owned()).collect(),
        cache: cache.to_owned(),
        answer: Duration::from_secs(20),
        file: Duration::from_secs(20),
        run: Duration::from_secs(20),
        bytes: 1 << 20,
        proxy: None,
    }
}

/// An object that says nothing but its build id: a header, one section of notes and the sections' names.
fn object(build_id: &[u8]) -> Vec<u8> {
    let names = b"\0.note.gnu.build-id\0.shstrtab\0\0\0";
    let note = [
        &4_u32.to_le_bytes()[..],
        &(build_id.len() as u32).to_le_bytes(),
        &3_u32.to_le_bytes(),
        b"GNU\0",
        build_id,
    ]
    .concat();
    let note_at = 64 + names.len();
    let headers_at = (note_at + note.len()).next_multiple_of(8);
    let section = |name: u32, kind: u32, offset: usize, size: usize| {
        let words = [0, 0, offset as u64, size as u64, 0, 4, 0].map(u64::to_le_bytes).concat();
        [&name.to_le_bytes()[..], &kind.to_le_bytes(), &words].concat()
    };
    let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
    bytes.resize(16, 0);
    bytes.extend([3_u16, 62].map(u16::to_le_bytes).concat());
    bytes.extend(1_u32.to_le_bytes());
    bytes.extend([0, 0, headers_at as u64].map(u64::to_le_bytes).concat());
    bytes.extend(0_u32.to_le_bytes());
    bytes.extend([64_u16, 56, 0, 64, 3, 2].map(u16::to_le_bytes).concat());
    bytes.extend(names);
    bytes.extend(&note);
    bytes.resize(headers_at, 0);
    bytes.extend([0; 64]);
    bytes.extend(section(1, 7, note_at, note.len()));
    bytes.extend(section(20, 3, 64, names.len()));
    bytes
}

fn good() -> Vec<u8> {
    object(&[0xab, 0xcd, 0xef, 0x01, 0x23])
}

fn names_in(folder: &Path) -> Vec<String> {
    let names = std::fs::read_dir(folder).into_iter().flatten();
    names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn what_is_found_is_fetched_once() {
    let (server, folder) = (Server::with(good()), folder());
    for _ in 0..2 {
        let client = client(&[&server.url], folder.path());
        let mut found = Vec::new();
        client.debug_file(BUILD_ID).unwrap().read_to_end(&mut found).unwrap();
        assert_eq!(found, good());
    }
    assert_eq!(server.requests(), 1);
    assert_eq!(names_in(&folder.path().join(BUILD_ID)), ["debuginfo"]);
}

#[test]
fn what_no_server_has_is_not_asked_for_again() {
    let (server, folder) = (Server::saying("404 Not Found"), folder());
    let client = client(&[&server.url], folder.path());
    assert!(client.debug_file(BUILD_ID).is_none());
    assert!(client.debug_file(BUILD_ID).is_none());
    assert_eq!(server.requests(), 1);
    assert_eq!(client.notes(), ["debuginfod: no server has the debug file of 2 objects"]);
}

#[test]
fn servers_are_asked_in_turn() {
    let (first, second, folder) = (Server::saying("404 Not Found"), Server::with(good()), folder());
    let client = client(&[&first.url, &second.url], folder.path());
    assert!(client.debug_file(BUILD_ID).is_some());
    assert_eq!((first.requests(), second.requests()), (1, 1));
    assert_eq!(client.notes().len(), 1, "what was fetched");
}

#[test]
fn a_server_that_is_broken_is_not_asked_again() {
    let (server, folder) = (Server::saying("503 Service Unavailable"), folder());
    let client = client(&[&server.url], folder.path());
    assert!(client.debug_file(BUILD_ID).is_none());
    assert!(client.debug_file("0123").is_none());
    assert_eq!(server.requests(), 1);
    assert!(client.notes()[0].contains("503"), "{:?}", client.notes());
    assert!(names_in(folder.path()).is_empty(), "that is no reason to believe that there is no such file");
}

#[test]
fn the_next_run_leaves_a_broken_server_alone_and_says_so() {
    let (server, folder) = (Server::saying("503 Service Unavailable"), folder());
    let servers = Servers::new(settings(&[&server.url], folder.path()));
    for _ in 0..3 {
        let run = Debuginfod::new(&servers);
        assert!(run.debug_file(BUILD_ID).is_none());
        assert!(run.notes()[0].contains("503"), "{:?}", run.notes());
    }
    assert_eq!(server.requests(), 1);
    let later = Instant::now() + REST;
    assert!(servers.why_resting(0, later - REST / 2).is_some());
    assert!(servers.why_resting(0, later).is_none(), "it is queried again some time");
}

#[test]
fn a_run_without_time_left_is_no_fault_of_the_server() {
    let (server, folder) = (Server::with(good()), folder());
    let servers =
        Servers::new(DebuginfodSettings { run: Duration::ZERO, ..settings(&[&server.url], folder.path()) });
    let run = Debuginfod::new(&servers);
    assert!(run.debug_file(BUILD_ID).is_none());
    assert_eq!(run.notes().len(), 1);
    assert!(servers.why_resting(0, Instant::now()).is_none());
}

/// The server would have had twenty seconds, and the run has less left than that.
#[test]
fn a_server_that_had_less_time_than_a_file_may_take_does_not_rest() {
    let silent = Server::start(|_, stream| {
        let _ = stream.read(&mut [0]); // until the other side hangs up
    });
    let folder = folder();
    let run = Duration::from_millis(300);
    let servers = Servers::new(DebuginfodSettings { run, ..settings(&[&silent.url], folder.path()) });
    let run = Debuginfod::new(&servers);
    assert!(run.debug_file(BUILD_ID).is_none());
    assert!(run.notes()[0].contains("time for a run"), "{:?}", run.notes());
    assert!(servers.why_resting(0, Instant::now()).is_none());
    assert!(names_in(folder.path()).is_empty(), "it may have the file");
}

#[test]
fn a_cache_that_cannot_be_written_is_no_server_without_the_file() {
    let (server, folder) = (Server::with(good()), folder());
    let cache = folder.path().join("file");
    std::fs::write(&cache, "not a folder").unwrap();
    let client = client(&[&server.url], &cache);
    assert!(client.debug_file(BUILD_ID).is_none());
    let notes = client.notes();
    assert!(notes.len() == 1 && notes[0].contains("cannot be written"), "{notes:?}");
}

#[test]
fn another_build_is_refused_and_not_kept() {
    for file in [object(&[1, 2, 3]), b"hello".to_vec(), Vec::new(), good()[..100].to_vec()] {
        let (server, folder) = (Server::with(file), folder());
        let client = client(&[&server.url], folder.path());
        assert!(client.debug_file(BUILD_ID).is_none());
        assert!(client.notes()[0].contains("another build"), "{:?}", client.notes());
        let kept = std::fs::metadata(folder.path().join(BUILD_ID).join("debuginfo")).map(|file| file.len());
        assert!(matches!(kept, Ok(0)), "{kept:?}");
    }
}

#[test]
fn an_endless_body_ends() {
    let endless = Server::start(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
        while stream.write_all(&[0; 4096]).is_ok() {}
    });
    let folder = folder();
    let client = client(&[&endless.url], folder.path());
    assert!(client.debug_file(BUILD_ID).is_none());
    assert!(client.notes()[0].contains("more than 1048576 bytes"), "{:?}", client.notes());
    assert_eq!(client.notes().len(), 1, "the server has the file");
    assert!(names_in(&folder.path().join(BUILD_ID)).is_empty(), "and will be asked again");
}

/// It is asked for in each run, and not sent each time.
#[test]
fn a_file_that_says_that_it_is_too_large_is_not_fetched() {
    let large = Server::start(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2000000\r\n\r\n");
        let _ = stream.read(&mut [0]); // until the other side hangs up
    });
    let folder = folder();
    let client = client(&[&large.url], folder.path());
    assert!(client.debug_file(BUILD_ID).is_none());
    let notes = client.notes();
    assert!(notes.len() == 1 && notes[0].contains("more than 1048576 bytes"), "{notes:?}");
    assert!(names_in(folder.path()).is_empty());
}

#[test]
fn a_slow_body_ends() {
    // It sends a byte now and then, so only the time for the whole file can end it; a test that hangs fails.
    let slow = Server::start(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
        while stream.write_all(&[0]).is_ok() {
            thread::sleep(Duration::from_millis(10));
        }
    });
    let folder = folder();
    let mut settings = settings(&[&slow.url], folder.path());
    settings.run = Duration::from_secs(3);
    let client = Debuginfod::new(&Servers::new(settings));
    assert!(client.debug_file(BUILD_ID).is_none());
    assert_eq!(client.notes().len(), 1);
    assert!(client.debug_file("0123").is_none());
    assert_eq!(slow.requests(), 1, "the server is not asked again");
}

#[test]
fn a_server_that_says_nothing_is_given_up() {
    let silent = Server::start(|_, stream| {
        let _ = stream.read(&mut [0]); // until the other side hangs up
    });
    let folder = folder();
    let mut settings = settings(&[&silent.url], folder.path());
    settings.answer = Duration::from_millis(300);
    let client = Debuginfod::new(&Servers::new(settings));
    assert!(client.debug_file(BUILD_ID).is_none());
    assert_eq!(client.notes().len(), 1);
}

#[test]
fn without_a_network_there_is_a_note() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port(); // closed again
    let folder = folder();
    let client = client(&[&format!("http://127.0.0.1:{port}")], folder.path());
    assert!(client.debug_file(BUILD_ID).is_none());
    assert_eq!(client.notes().len(), 1);
}

#[test]
fn only_a_build_id_becomes_a_path() {
    let (server, folder) = (Server::with(good()), folder());
    let client = client(&[&server.url], folder.path());
    for id in ["", "../x", "ab/cd", "zz", &"a".repeat(200)] {
        assert!(client.debug_file(id).is_none());
    }
    assert_eq!(server.requests(), 0);
}
