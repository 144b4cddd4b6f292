//! What becomes of windows whose file cannot be read.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::thread;

use config::DaemonSettings;

use super::*;
use crate::daemon::exports::tests::{Simulated, now};

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
