//! Names for the targets of a section with `each`.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use config::{Each, TargetSettings};
use nix::unistd::{Uid, User};
use rustc_hash::{FxHashMap, FxHashSet};

use super::containers::workload_key;
use super::process::Subject;

/// Digits of a container's id that are shown, as its engine does.
const SHOWN_DIGITS: usize = 12;
/// Users whose names are kept.
const MAX_USERS: usize = 10_000;
/// How long a scan waits for the names of users; rings fill meanwhile. A target that was named by the number instead
/// keeps that name.
const PATIENCE: Duration = Duration::from_millis(200);

/// One of those that a section with `each` is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Instance {
    /// Distinguishes it from other instances.
    pub(super) key: String,
    /// Its name.
    pub(super) text: String,
}

impl Instance {
    /// The instance that a process belongs to; `None` if it belongs to none.
    pub(super) fn of(each: Each, subject: &mut Subject<'_>, users: &mut Users) -> Option<Self> {
        let (key, text) = match each {
            Each::Process => {
                let comm = &subject.stat.comm;
                let program = subject.program().unwrap_or(comm);
                let program = String::from_utf8_lossy(program).into_owned();
                (program.clone(), program)
            }
            Each::Unit => {
                let (unit, full) = (subject.place()?.unit.clone()?, subject.place()?.unit_in_full()?);
                (subject.places.get(unit.place)?.path.to_string(), full)
            }
            Each::Container => {
                let id = &subject.place()?.container.as_ref()?.name;
                let shown = id.get(..SHOWN_DIGITS).filter(|_| id.len() == 64).unwrap_or(id);
                (id.to_string(), shown.to_owned())
            }
            Each::Pod => {
                let pod = subject.pod()?;
                (pod.key(), pod.in_full(&pod.name))
            }
            Each::Workload => {
                let pod = subject.pod()?;
                (workload_key(pod), pod.in_full(&pod.workload.name))
            }
            Each::Cgroup => {
                let path = &subject.place()?.path;
                let shown = path.trim_matches('/').replace('/', ":");
                (path.to_string(), Some(shown).filter(|shown| !shown.is_empty())?)
            }
            Each::User => {
                let user = subject.user()?;
                (user.to_string(), users.name(user).to_string())
            }
        };
        Some(Self { key, text })
    }

    /// Its name as a target of `section`: bounded, with valid characters, and unique. A name that had to be
    /// changed ends in a checksum.
    pub(super) fn name_below(&self, section: &str, is_taken: impl Fn(&str) -> bool) -> String {
        let room = TargetSettings::MAX_NAME.saturating_sub(section.len() + 1);
        let plain = |c: char| if TargetSettings::is_name_character(c) { c } else { '-' };
        let clean: String = self.text.chars().map(plain).collect();
        let name = format!("{section}:{clean}");
        if clean == self.text && !clean.is_empty() && clean.len() <= room && !is_taken(&name) {
            return name;
        }
        let mut key = self.key.clone();
        loop {
            let sum = format!("{:08x}", crc32fast::hash(key.as_bytes()));
            let begin = &clean[..clean.len().min(room.saturating_sub(sum.len() + 1))];
            let name = format!("{section}:{begin}-{sum}");
            if !is_taken(&name) {
                return name;
            }
            key.push('+'); // another instance has the same checksum
        }
    }
}

/// Names and numbers of this host's users. Names may come from a remote directory that does not always
/// respond, so a thread looks them up.
#[derive(Debug, Default)]
pub(super) struct Users {
    names: FxHashMap<u32, Arc<str>>,
    lookup: Option<UserLookup>,
    /// How long this scan has waited.
    waited: Duration,
}

/// A thread that looks up one user after another.
#[derive(Debug)]
struct UserLookup {
    questions: Sender<u32>,
    answers: Receiver<(u32, Option<Arc<str>>)>,
    awaited: FxHashSet<u32>,
}

impl Users {
    /// The number of a user by name or number; `None` if there is no such user.
    pub(super) fn number(user: &str) -> Option<u32> {
        user.parse().ok().or_else(|| Some(User::from_name(user).ok()??.uid.as_raw()))
    }

    /// A scan begins.
    pub(super) fn begin_scan(&mut self) {
        self.waited = Duration::ZERO;
    }

    /// The name of a user, or the number if it has no name, or none yet.
    pub(super) fn name(&mut self, user: u32) -> Arc<str> {
        if self.names.len() >= MAX_USERS {
            self.names.clear();
        }
        if !self.names.contains_key(&user) {
            let lookup = self.lookup.take().or_else(|| UserLookup::start(name_of_user));
            let began = Instant::now();
            self.lookup = lookup.map(|mut lookup| {
                lookup.ask(user, &mut self.names, PATIENCE.saturating_sub(self.waited));
                lookup
            });
            self.waited += began.elapsed();
        }
        self.names.get(&user).map_or_else(|| user.to_string().into(), Arc::clone)
    }
}

impl UserLookup {
    fn start(look_up: impl Fn(u32) -> Option<Arc<str>> + Send + 'static) -> Option<Self> {
        let (questions, asked) = mpsc::channel::<u32>();
        let (answer, answers) = mpsc::channel();
        let work = move || {
            while let Ok(user) = asked.recv() {
                if answer.send((user, look_up(user))).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("users".to_owned()).spawn(work).ok()?;
        Some(Self { questions, answers, awaited: FxHashSet::default() })
    }

    /// Requests a user and waits for the response, unless an earlier one is late. Takes in all that have arrived.
    fn ask(&mut self, user: u32, names: &mut FxHashMap<u32, Arc<str>>, patience: Duration) {
        let is_late = !self.awaited.is_empty();
        if self.awaited.insert(user) && self.questions.send(user).is_err() {
            return; // the thread is gone, and numbers do as well
        }
        let until = Instant::now() + if is_late { Duration::ZERO } else { patience };
        while self.awaited.contains(&user) {
            let left = until.saturating_duration_since(Instant::now());
            let Ok((answered, name)) = self.answers.recv_timeout(left) else { return };
            self.awaited.remove(&answered);
            names.extend(name.map(|name| (answered, name)));
        }
    }
}

/// The number where the user has no name; `None` where the directory fails, so that it is asked again.
fn name_of_user(user: u32) -> Option<Arc<str>> {
    let found = User::from_uid(Uid::from_raw(user)).ok()?;
    Some(found.map_or_else(|| user.to_string(), |found| found.name).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(text: &str, taken: &[&str]) -> String {
        let instance = Instance { key: format!("/{text}"), text: text.to_owned() };
        instance.name_below("all", |name| taken.contains(&name))
    }

    #[test]
    fn what_is_a_name_is_kept() {
        assert_eq!(named("nginx.service", &[]), "all:nginx.service");
        assert_eq!(named("user@1000:app.service", &[]), "all:user@1000:app.service");
        let longest = "a".repeat(60);
        assert_eq!(named(&longest, &[]).len(), 64);
    }

    #[test]
    fn what_is_none_becomes_one_and_is_told_from_others() {
        let names = [
            named("a b", &[]),
            named("a-b", &["all:a-b"]),
            named("a\nb", &[]),
            named("aµb", &[]),
            named("", &[]),
            named(&"a".repeat(61), &[]),
            named(&"a".repeat(100_000), &[]),
        ];
        for (at, name) in names.iter().enumerate() {
            assert!(name.starts_with("all:") && name.len() <= TargetSettings::MAX_NAME, "{name}");
            assert!(name.chars().all(TargetSettings::is_name_character), "{name}");
            assert!(!names[..at].contains(name), "{name}");
        }
        let again = named("a b", &[&names[0]]);
        assert!(again != names[0] && again.starts_with("all:a-b-"));
    }

    #[test]
    fn users_have_names_and_numbers() {
        assert_eq!(Users::number("root"), Some(0));
        assert_eq!(Users::number("4294967294"), Some(4_294_967_294));
        assert_eq!(Users::number("no such user"), None);
        let mut users = Users::default();
        let until = Instant::now() + Duration::from_secs(20);
        while &*users.name(0) != "root" {
            assert!(Instant::now() < until);
        }
        assert_eq!(&*users.name(4_294_967_294), "4294967294");
    }

    /// It answers each question within the patience, and all of them would take much longer.
    #[test]
    fn a_scan_waits_for_a_slow_directory_once() {
        let slow = |user: u32| {
            std::thread::sleep(PATIENCE / 4);
            Some(Arc::from(format!("user {user}")))
        };
        let mut users = Users { lookup: UserLookup::start(slow), ..Users::default() };
        users.begin_scan();
        (0..40).for_each(|user| drop(users.name(user)));
        assert!(users.names.len() < 10, "{}", users.names.len());
        assert!(users.waited < 5 * PATIENCE, "{:?}", users.waited);
    }

    /// The directory may answer again later.
    #[test]
    fn a_directory_that_fails_is_asked_again() {
        let mut users = Users { lookup: UserLookup::start(|_| None), ..Users::default() };
        assert_eq!(&*users.name(7), "7");
        assert!(users.names.is_empty());
    }

    #[test]
    fn a_directory_that_does_not_answer_keeps_nobody_waiting() {
        let (answer, answers) = mpsc::channel::<()>();
        let slow = move |user: u32| {
            let _ = answers.recv();
            Some(Arc::from(format!("user {user}")))
        };
        let mut users = Users { lookup: UserLookup::start(slow), ..Users::default() };
        let began = Instant::now();
        for _ in 0..100 {
            assert_eq!([users.name(7), users.name(8)], ["7".into(), "8".into()]);
        }
        assert!(began.elapsed() < 100 * PATIENCE, "{:?}", began.elapsed());
        drop(answer); // it answers from now on
        let until = Instant::now() + Duration::from_secs(20);
        while &*users.name(8) != "user 8" {
            assert!(Instant::now() < until);
            std::thread::sleep(Duration::from_millis(1));
        }
        users.begin_scan(); // the one before has waited
        assert_eq!((&*users.name(7), &*users.name(9)), ("user 7", "user 9"));
    }
}
