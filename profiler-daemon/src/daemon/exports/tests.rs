//! A day of windows, with a backend and a clock that are simulated.

use std::collections::BTreeMap;
use std::path::PathBuf;

use profile_files::store::{
    Export, ExportTally, Now, OutboxFile, RealDisk, SendFault, SendOutcome, Store, StoreTerms, TargetWindow,
    read_file,
};
use profile_files::testing;
use tempfile::TempDir;

use super::plan::ExportPlan;
use super::schedule::{ExportSchedule, Unsent};

const SECOND: u64 = 1_000_000_000;
/// The wall clock when the boot's was zero: 2026-11-16.
const BOOTED: u64 = 1_794_787_200 * SECOND;

/// What a backend says of a window of a target at a second.
type Backend = fn(u64, &str) -> Result<(), Unsent>;

fn failed(after: Option<u64>, most_fault: SendFault) -> Result<(), Unsent> {
    let after = after.map(std::time::Duration::from_secs);
    Err(Unsent::Failed { text: "no".to_owned(), after, most_fault })
}

pub(super) fn now(second: u64) -> Now {
    let monotonic_ns = second * SECOND;
    Now { unix_ns: BOOTED + monotonic_ns, boot: "boot".to_owned(), monotonic_ns }
}

/// Keeps everything.
pub(super) fn terms() -> StoreTerms {
    let ever = u64::MAX;
    StoreTerms { age_ns: ever, bytes: 1 << 30, hourly_after_ns: ever, daily_after_ns: ever }
}

/// The export `a`, which gets every target.
pub(super) fn exports() -> [Export; 1] {
    [Export { name: "a".to_owned(), targets: Vec::new() }]
}

pub(super) struct Simulated {
    pub(super) folder: TempDir,
    pub(super) store: Store,
    schedule: ExportSchedule,
    /// What was sent, and when (s).
    attempts: Vec<(u64, PathBuf, bool)>,
    /// Whether other settings come into force every minute.
    is_reloaded: bool,
}

impl Simulated {
    pub(super) fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let mut store = Store::open(folder.path(), terms(), RealDisk).unwrap();
        store.export(&now(0), &exports());
        Self { folder, store, schedule: ExportSchedule::default(), attempts: Vec::new(), is_reloaded: false }
    }

    pub(super) fn write(&mut self, target: &str, second: u64) {
        let (from_ns, to_ns) = ((second - 60) * SECOND, second * SECOND);
        let mut profile = testing::profile();
        let begin_unix_ns = BOOTED + from_ns;
        (profile.run.start_unix_ns, profile.run.duration_s) = (begin_unix_ns, 60.0);
        let (target, boot) = (target.to_owned(), "boot".to_owned());
        let labels = BTreeMap::from([("k8s.namespace.name".to_owned(), "shop".to_owned())]);
        let window = TargetWindow { target, labels, boot, from_ns, to_ns, begin_unix_ns };
        self.store.write(&now(second), window, &profile).unwrap();
    }

    /// So many minutes, with a window of each target at the end of each; what came of them.
    fn run(&mut self, minutes: u64, targets: &[&str], backend: Backend) -> ExportTally {
        for second in 60..=minutes * 60 {
            if second % 60 == 0 {
                targets.iter().for_each(|target| self.write(target, second));
                if self.is_reloaded {
                    self.schedule.begin_anew();
                }
            }
            let now_ns = second * SECOND;
            // A second has room for some requests.
            for _ in 0..5 {
                if self.schedule.due_ns() > now_ns {
                    break;
                }
                let outboxes = self.store.outboxes();
                let Some(file_to_send) = outboxes.try_take("a", now_ns, self.schedule.is_well()) else {
                    break;
                };
                let fate = self.fate(second, &file_to_send, backend(second, &file_to_send.target));
                outboxes.finish("a", now_ns, &file_to_send, fate);
            }
        }
        self.store.outboxes().try_tallies(&now(minutes * 60)).unwrap()["a"]
    }

    fn fate(&mut self, second: u64, file_to_send: &OutboxFile, said: Result<(), Unsent>) -> SendOutcome {
        self.attempts.push((second, file_to_send.path.clone(), said.is_ok()));
        match said {
            Ok(()) => {
                self.schedule.taken();
                SendOutcome::Sent(1)
            }
            Err(unsent) => self.schedule.judge(second * SECOND, file_to_send, &unsent, 0.5),
        }
    }
}

#[test]
fn an_outage_loses_nothing_and_costs_few_attempts() {
    let mut simulated = Simulated::new();
    let is_down = |second| (600..7_200).contains(&second);
    let tally = simulated.run(180, &["web", "db"], |second, _| match (600..7_200).contains(&second) {
        true => failed(None, SendFault::Blamed),
        false => Ok(()),
    });
    assert_eq!((tally.pushed, tally.refused, tally.dropped, tally.pending), (360, 0, 0, 0));
    let attempts = simulated.attempts.iter().filter(|(second, ..)| is_down(*second)).count();
    assert!((20..60).contains(&attempts), "{attempts}");
    let caught_up = simulated.attempts.iter().filter(|(second, ..)| (7_200..7_560).contains(second)).count();
    assert!(caught_up >= 220, "{caught_up}");
}

/// Each reload tries the oldest window anew: that says nothing of the window while the backend takes no other.
#[test]
fn reloads_during_an_outage_lose_nothing() {
    let mut simulated = Simulated { is_reloaded: true, ..Simulated::new() };
    let tally = simulated.run(30, &["web"], |_, _| failed(None, SendFault::Blamed));
    assert_eq!((tally.refused, tally.dropped, tally.pending), (0, 0, 30));
}

/// Once the backend has taken a window, what it always fails with is given up, and keeps no other waiting meanwhile.
#[test]
fn what_is_poisonous_is_given_up_despite_reloads() {
    let mut simulated = Simulated { is_reloaded: true, ..Simulated::new() };
    let tally = simulated.run(60, &["db", "poison", "web"], |_, target| match target {
        "poison" => failed(None, SendFault::Blamed),
        _ => Ok(()),
    });
    assert!(tally.refused >= 20 && tally.pushed >= 2 * 58, "{tally:?}");
}

#[test]
fn a_backend_that_asks_to_wait_is_asked_no_earlier() {
    let mut simulated = Simulated::new();
    let tally = simulated.run(30, &["web"], |second, _| match second {
        120..900 => failed(Some(240), SendFault::Possible),
        _ => Ok(()),
    });
    assert_eq!((tally.pushed, tally.refused), (30, 0));
    let asked: Vec<u64> =
        simulated.attempts.iter().filter(|(.., is_taken)| !is_taken).map(|(second, ..)| *second).collect();
    assert_eq!(asked, [120, 372, 624, 876], "240 s and a random part later");
}

/// Each window of one target breaks the backend.
#[test]
fn what_is_poisonous_is_given_up_and_keeps_no_other_waiting() {
    let mut simulated = Simulated::new();
    let targets = ["db", "log", "poison", "web"];
    let tally = simulated.run(60, &targets, |_, target| match target {
        "poison" => failed(None, SendFault::Blamed),
        _ => Ok(()),
    });
    assert_eq!(tally.dropped, 0);
    assert!(tally.refused >= 40 && tally.pushed >= 3 * 58, "{tally:?}");
}

/// A backend that fails every other time is at fault itself.
#[test]
fn a_backend_that_fails_now_and_then_gets_every_window() {
    let mut simulated = Simulated::new();
    let tally = simulated.run(120, &["web", "db"], |second, _| match second % 7 < 3 {
        true => failed(None, SendFault::Blamed),
        false => Ok(()),
    });
    assert!(tally.pushed >= 236 && tally.refused == 0, "{tally:?}");
}

#[test]
fn what_is_refused_is_skipped() {
    let mut simulated = Simulated::new();
    let tally = simulated.run(60, &["web", "db"], |_, target| match target {
        "web" => Err(Unsent::Refused("bad".to_owned())),
        _ => Ok(()),
    });
    assert_eq!((tally.pushed, tally.refused, tally.pending), (60, 60, 0));
    assert_eq!(simulated.attempts.len(), 120, "each once");
}

/// The disk gives no window of one target.
#[test]
fn what_cannot_be_read_waits_and_keeps_no_other_waiting() {
    let mut simulated = Simulated::new();
    let tally = simulated.run(60, &["bad", "web"], |_, target| match target {
        "bad" => Err(Unsent::Unreadable("no".to_owned())),
        _ => Ok(()),
    });
    assert_eq!((tally.refused, tally.dropped), (0, 0));
    assert!(tally.pushed >= 59, "{tally:?}");
}

#[test]
fn a_disk_that_gives_no_file_is_tried_every_half_minute() {
    let mut simulated = Simulated::new();
    simulated.run(60, &["bad"], |_, _| Err(Unsent::Unreadable("no".to_owned())));
    let first = simulated.attempts.first().unwrap().0;
    let last = simulated.attempts.last().unwrap().0;
    let most = (last - first) / 15 + 10; // half a pause, by chance
    assert!((simulated.attempts.len() as u64) < most, "{} of {most}", simulated.attempts.len());
}

/// Rules leave out the windows of one target, while a backend is down for the other.
#[test]
fn what_is_left_out_is_settled_and_says_nothing_of_the_backend() {
    let mut simulated = Simulated::new();
    let tally = simulated.run(60, &["web", "db"], |second, target| match target {
        "web" => Err(Unsent::LeftOut),
        _ if second < 600 => failed(None, SendFault::Blamed),
        _ => Ok(()),
    });
    let counts = (tally.left_out, tally.pushed, tally.refused, tally.dropped, tally.pending);
    assert_eq!(counts, (60, 60, 0, 0, 0));
    let tries = simulated.attempts.iter().filter(|(.., is_taken)| !is_taken).count();
    assert!((62..120).contains(&tries), "{tries}: each of web once");
}

/// What a window of a target is called under these rules: its service and labels; none if it is left out.
fn called(target: &str, rules: &str) -> Option<String> {
    let mut simulated = Simulated::new();
    simulated.write(target, 60);
    let file = simulated.store.outboxes().try_take("a", 0, true).unwrap();
    let (_, stamp, profile) = read_file(simulated.folder.path(), &file.path).unwrap();
    let text = format!(
        "[[export]]\nname = \"a\"\nto = \"http://localhost\"\nlabels = {{ team = \"x\", \"host.name\" = \"h\" }}\n{rules}\n"
    );
    let settings = config::DaemonSettings::parse(text.as_bytes()).unwrap();
    let identity = ExportPlan::new(&settings.exports[0]).unwrap().identity(&profile, &stamp)?;
    let labels = identity.labels.iter().filter(|(name, _)| *name != "process.executable.name");
    let labels: Vec<String> = labels.map(|(name, text)| format!("{name}={text}")).collect();
    assert_eq!(stamp.labels["k8s.namespace.name"], "shop", "the store's stay");
    Some(format!("{}: {}", identity.service, labels.join(" ")))
}

#[test]
fn rules_change_service_and_labels_or_leave_a_window_out() {
    let whole = "db: host.name=h k8s.namespace.name=shop team=x";
    assert_eq!(called("db", "").as_deref(), Some(whole));
    let drop = "[[export.relabel]]\nsource_labels = [\"k8s.namespace.name\", \"__target__\"]\nregex = \"shop;web\"\n\
                action = \"drop\"";
    assert_eq!((called("web", drop), called("db", drop).as_deref()), (None, Some(whole)));
    let replace = "[[export.relabel]]\nsource_labels = [\"k8s.namespace.name\", \"service.name\"]\nseparator = \"/\"\n\
                   target_label = \"service.name\"\n[[export.relabel]]\nregex = \"team\"\naction = \"labeldrop\"";
    assert_eq!(called("web", replace).as_deref(), Some("shop/web: host.name=h k8s.namespace.name=shop"));
    let none = "[[export.relabel]]\nregex = \"x\"\naction = \"labelkeep\"";
    assert_eq!(called("web", none).as_deref(), Some("web: "), "a service has a name");
}
