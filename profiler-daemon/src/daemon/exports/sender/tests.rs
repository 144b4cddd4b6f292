//! Sending when files of windows cannot be read or are damaged, and when the cursor cannot be written.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::thread;
use std::time::Instant;

use config::DaemonSettings;
use profile_files::store::{RealDisk, Store, StoreError};
use tempfile::TempDir;

use super::*;
use crate::daemon::exports::tests::{Simulated, exports, now, terms};
use crate::daemon::window_writer::WindowWriter;
use crate::objects::Symbols;

/// The URL of a backend that acknowledges every request. Its thread ends with the test's process.
fn backend() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut request = BufReader::new(stream.try_clone().unwrap());
            let (mut line, mut length) = (String::new(), 0);
            while request.read_line(&mut line).unwrap() > 2 {
                if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                line.clear();
            }
            std::io::copy(&mut request.take(length), &mut std::io::sink()).unwrap();
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
        }
    });
    url
}

fn sender(folder: &Path, outboxes: &Outboxes) -> Sender {
    let text = format!("[[export]]\nname = \"a\"\nto = \"{}\"\n", backend());
    let settings = DaemonSettings::parse(text.as_bytes()).unwrap();
    let plan = ExportPlan::new(&settings.exports[0]).unwrap();
    let orders = SenderOrders { plan, outboxes: outboxes.clone(), folder: folder.to_owned() };
    Sender::new("a".to_owned(), Arc::new(Control::new(orders, Arc::default())))
}

/// Three windows of one target, and a sender of them.
fn three_windows() -> (Simulated, Sender) {
    let mut simulated = Simulated::new();
    [60, 120, 180].iter().for_each(|second| simulated.write("web", *second));
    let sender = sender(simulated.folder.path(), &simulated.store.outboxes());
    (simulated, sender)
}

/// Sends the next window.
fn deliver_next(sender: &mut Sender) -> PathBuf {
    let file = sender.orders.outboxes.try_take("a", 0, sender.schedule.is_well()).unwrap();
    sender.deliver(&file);
    file.path
}

#[test]
fn a_file_that_cannot_be_read_keeps_no_other_waiting() {
    let mut simulated = Simulated::new();
    [60, 120].iter().for_each(|second| simulated.write("web", *second));
    let outboxes = simulated.store.outboxes();
    let oldest = outboxes.try_take("a", 0, true).unwrap();
    outboxes.finish("a", 0, &oldest, SendOutcome::Kept(SendFault::None));
    let path = simulated.folder.path().join(&oldest.path);
    fs::remove_file(&path).unwrap();
    symlink("elsewhere", &path).unwrap();
    let mut sender = sender(simulated.folder.path(), &outboxes);
    let tried = [(); 4].map(|()| deliver_next(&mut sender));
    let tally = outboxes.try_tallies(&now(120)).unwrap()["a"];
    assert_eq!((tally.pushed, tally.pending), (1, 1), "{tried:?}");
    let trouble = sender.control.trouble().unwrap().text;
    assert!(trouble.contains("cannot be read (not a regular file); look at the disk"), "{trouble}");
    assert!(!sender.talk.works(), "the backend never failed");
}

/// The cursor of the export `a` while the disk takes nothing.
struct FullDisk {
    cursor: PathBuf,
    bytes: Vec<u8>,
}

impl FullDisk {
    /// Neither a line nor a whole cursor can be written in place of a folder.
    fn begin(folder: &TempDir) -> Self {
        let cursor = folder.path().join("exports/a");
        let bytes = fs::read(&cursor).unwrap();
        fs::remove_file(&cursor).unwrap();
        fs::create_dir(&cursor).unwrap();
        Self { cursor, bytes }
    }

    fn end(self) {
        fs::remove_dir(&self.cursor).unwrap();
        fs::write(&self.cursor, &self.bytes).unwrap();
    }
}

/// The windows that wait after a restart.
fn left(simulated: Simulated) -> Vec<PathBuf> {
    let Simulated { folder, store, .. } = simulated;
    drop(store);
    let mut store = Store::open(folder.path(), terms(), RealDisk).unwrap();
    store.export(&now(200), &exports());
    let outboxes = store.outboxes();
    std::iter::from_fn(|| outboxes.try_take("a", 0, true)).map(|file| file.path).collect()
}

#[test]
fn what_was_sent_while_the_disk_was_full_is_recorded_with_the_next_window() {
    let (simulated, mut sender) = three_windows();
    let full_disk = FullDisk::begin(&simulated.folder);
    let first = deliver_next(&mut sender);
    full_disk.end();
    let second = deliver_next(&mut sender);
    let left = left(simulated);
    assert!(left.len() == 1 && ![first, second].contains(&left[0]), "{left:?}");
}

#[test]
fn what_was_sent_while_the_disk_was_full_is_recorded_at_shutdown() {
    let (simulated, mut sender) = three_windows();
    let full_disk = FullDisk::begin(&simulated.folder);
    let first = deliver_next(&mut sender);
    full_disk.end();
    sender.control.end();
    sender.run();
    let left = left(simulated);
    assert!(left.len() == 2 && !left.contains(&first), "{left:?}");
}

/// The writer of a store that was open until now: a process being started may hold its lock for a moment.
fn writer(folder: &Path) -> WindowWriter {
    loop {
        match WindowWriter::start(folder, terms(), 1 << 20, None, &Symbols::new(1 << 20)) {
            Err(StoreError::Busy(_)) => thread::sleep(Duration::from_millis(20)),
            started => break started.unwrap(),
        }
    }
}

/// Waits for up to ten seconds until there is something.
fn soon<T>(mut found: impl FnMut() -> Option<T>) -> Option<T> {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        let found = found();
        if found.is_some() || Instant::now() >= until {
            return found;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_damaged_file_is_set_aside_once_it_was_to_be_sent() {
    let mut simulated = Simulated::new();
    simulated.write("web", 60);
    let Simulated { folder, store, .. } = simulated;
    drop(store);
    let writer = writer(folder.path());
    writer.export(exports().into());
    let file = soon(|| writer.outboxes().try_take("a", 0, true)).unwrap();
    let path = folder.path().join(&file.path);
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, bytes).unwrap();
    sender(folder.path(), writer.outboxes()).deliver(&file);
    assert_eq!(writer.outboxes().try_tallies(&now(60)).unwrap()["a"].dropped, 1);
    writer.suspect(Vec::new()); // the writer's thread looks at once
    let damaged = || (writer.status().counters.damaged == 1).then_some(());
    assert!(soon(damaged).is_some() && !path.exists(), "{:?}", writer.status());
}

#[test]
fn a_reload_with_the_same_settings_tries_at_once_and_forgets_nothing() {
    let (simulated, mut sender) = three_windows();
    let file = simulated.store.outboxes().try_take("a", 0, true).unwrap();
    let orders = |timeout: &str| {
        let (to, folder) = (&sender.orders.plan.settings.to, simulated.folder.path().to_owned());
        let text = format!("[[export]]\nname = \"a\"\nto = \"{to}\"\n{timeout}\n");
        let plan = ExportPlan::new(&DaemonSettings::parse(text.as_bytes()).unwrap().exports[0]).unwrap();
        Arc::new(SenderOrders { plan, outboxes: simulated.store.outboxes(), folder })
    };
    let (same, other) = (orders(""), orders("timeout = \"7s\""));
    let failed = Unsent::Failed { text: "no".to_owned(), after: None, most_fault: SendFault::Blamed };
    sender.schedule.judge(0, &file, &failed, 1.0);
    assert!(sender.schedule.due_ns() > 0);
    sender.obey(same);
    assert_eq!((sender.schedule.due_ns(), sender.schedule.is_well()), (0, false));
    sender.obey(other);
    assert_eq!((sender.schedule.due_ns(), sender.schedule.is_well()), (0, true));
}
