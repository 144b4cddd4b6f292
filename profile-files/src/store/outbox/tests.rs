use super::super::name::{Level, Name};
use super::super::stamp::Stamp;
use super::super::time_range::TimeRange;
use super::*;

const SECOND: u64 = 1_000_000_000;
const DAY: u64 = 86_400 * SECOND;

fn entry(target: &str, second: u64) -> StoredFile {
    let from_ns = second * SECOND;
    let time_range =
        TimeRange { boot: "boot".into(), from_ns, to_ns: from_ns + SECOND, begin_unix_ns: DAY + from_ns };
    let stamp = Stamp::new(Level::Window, target.into(), BTreeMap::new(), TimeRanges::new(vec![time_range]));
    let name = Name::of(&stamp);
    StoredFile { path: name.path(), name, stamp, size: 4096 }
}

fn now(second: u64) -> Now {
    Now { unix_ns: DAY + second * SECOND, boot: "boot".into(), monotonic_ns: second * SECOND }
}

fn outbox(targets: &[&str]) -> Outbox {
    let targets = targets.iter().map(|text| text.parse().unwrap()).collect();
    let export = Export { name: "a".into(), targets };
    let position = Position::new(now(0), &export);
    Outbox { export, position, waiting: BTreeMap::new(), tally: ExportTally::default() }
}

#[test]
fn the_oldest_goes_first_and_what_is_to_blame_last() {
    let mut outbox = outbox(&[]);
    let entries = [entry("web", 1), entry("web", 2), entry("web", 3)];
    outbox.adopt(entries.iter());
    let (soon, later) = (SECOND, SECOND + ANOTHER_TURN_NS);
    for (now_ns, is_well, at, blamed, fault) in [
        (soon, true, 0, 0, SendFault::Blamed),
        (soon, false, 1, 0, SendFault::None),
        (soon, false, 1, 0, SendFault::Possible),
        (later, false, 2, 0, SendFault::None),
        (later, true, 0, 1, SendFault::Blamed),
        (later, true, 1, 0, SendFault::Possible),
        (later, true, 2, 0, SendFault::Possible),
        (later, true, 2, 0, SendFault::None), // it has failed least often
    ] {
        let file_to_send = outbox.take(now_ns, is_well).unwrap();
        assert_eq!((&file_to_send.path, file_to_send.blamed), (&entries[at].path, blamed));
        outbox.finish(now_ns, &file_to_send, SendOutcome::Kept(fault));
    }
    let file_to_send = outbox.take(later, false).unwrap();
    assert_ne!(outbox.take(later, false).unwrap().path, file_to_send.path, "nothing is sent twice at a time");
    assert_eq!(outbox.tally(&now(10)).lag_ns, 8 * SECOND);
}

#[test]
fn what_is_new_to_an_export_by_its_settings_is_not_sent_late() {
    let mut outbox = outbox(&["^web$"]);
    let entries = [entry("web", 1), entry("db", 1), entry("log", 1)];
    outbox.adopt(entries.iter());
    assert_eq!(outbox.waiting.len(), 1);
    outbox.export.targets = vec!["^web$".parse().unwrap(), "^db$".parse().unwrap()];
    let later = entry("db", 2);
    outbox.adopt(entries.iter());
    let stamp = &later.stamp;
    assert!(outbox.waiting.len() == 1 && outbox.position.awaits(&stamp.target, &stamp.time_ranges));
    outbox.export.targets = vec!["^db$".parse().unwrap()];
    outbox.adopt(entries.iter().chain([&later]));
    assert_eq!(outbox.waiting.keys().collect::<Vec<_>>(), [&later.path]);
}

#[test]
fn what_is_too_old_for_the_store_is_forgotten_and_not_sent_again() {
    let mut outbox = outbox(&[]);
    let (old, recent) = (entry("web", 1), entry("web", 5 * 86_400));
    for entry in [&old, &recent] {
        outbox.position.settle("web", &entry.stamp.time_ranges);
    }
    outbox.position.prune(&now(6 * 86_400), 3 * DAY);
    let settled = &outbox.position.settled["web"];
    assert!(!old.stamp.time_ranges.overlap(settled) && recent.stamp.time_ranges.overlap(settled));
    assert!(!outbox.position.awaits("web", &old.stamp.time_ranges));
    outbox.position.prune(&now(60 * 86_400), 3 * DAY);
    assert!(outbox.position.settled.is_empty());
}
