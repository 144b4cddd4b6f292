//! What the targets of a section with `each` are called.

use std::sync::Arc;

use config::{Each, TargetSettings};
use nix::unistd::{Uid, User};
use rustc_hash::FxHashMap;

use super::process::Subject;

/// Digits of a container's id that are shown, as its engine does.
const SHOWN_DIGITS: usize = 12;
/// Users whose names are kept.
const MAX_USERS: usize = 10_000;

/// One of those that a section with `each` is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Instance {
    /// Tells it from others.
    pub(super) key: String,
    /// What it is called.
    pub(super) text: String,
}

impl Instance {
    /// The one that a process falls into; `None` if it falls into none.
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

    /// Its name as a target of `section`: bounded, of the characters that names have, and not taken. One that had to be
    /// changed ends in a checksum, by which it is told from others.
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
            key.push('+'); // the checksum of another's is the same
        }
    }
}

/// Names and numbers of users, as this host has them.
#[derive(Debug, Default)]
pub(super) struct Users(FxHashMap<u32, Arc<str>>);

impl Users {
    /// The number of a user by name or number; `None` if there is no such user.
    pub(super) fn number(user: &str) -> Option<u32> {
        user.parse().ok().or_else(|| Some(User::from_name(user).ok()??.uid.as_raw()))
    }

    /// The name of a user; the number of one that has none.
    pub(super) fn name(&mut self, user: u32) -> Arc<str> {
        if self.0.len() >= MAX_USERS {
            self.0.clear();
        }
        let ask = || match User::from_uid(Uid::from_raw(user)) {
            Ok(Some(found)) => found.name.into(),
            _ => user.to_string().into(),
        };
        Arc::clone(self.0.entry(user).or_insert_with(ask))
    }
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
        assert_eq!((&*users.name(0), &*users.name(4_294_967_294)), ("root", "4294967294"));
    }
}
