//! Sections of a settings file: a struct, its defaults, its reader and its documentation from one list.
//!
//! One line of the list is a setting's documentation, default and reader, and the commented file is made from
//! it, so these cannot disagree. Serde is not used because it stops at the first error and has no position for
//! a missing key.

use serde_spanned::Spanned;
use toml::de::{DeTable, DeValue};

use crate::problem::Log;
use crate::setting::{Setting, Value};

/// A key of a section, for the commented file.
pub(crate) struct DocumentedKey {
    /// Its name.
    pub(crate) name: &'static str,
    /// What it means, line by line.
    pub(crate) doc: &'static [&'static str],
    /// Its default as it is written; nothing if it has none.
    pub(crate) default: Option<String>,
    /// A value for those that have no default.
    pub(crate) example: Option<&'static str>,
}

/// A section of a settings file.
pub(crate) trait SettingsSection: Default {
    /// What it is for, line by line.
    const DOC: &'static [&'static str];

    /// Its keys in the order in which they are documented.
    fn keys() -> Vec<DocumentedKey>;

    /// Reads it, with defaults for what is not written or cannot be used.
    fn read(table: &Table<'_, '_>, log: &mut Log) -> Self;
}

/// A table of the file that is being read.
pub(crate) struct Table<'t, 'i> {
    /// The keys that are written.
    pub(crate) values: &'t DeTable<'i>,
    /// Its own path, such as `store`; empty for the file itself.
    pub(crate) path: String,
}

impl Table<'_, '_> {
    /// The path of one of its keys.
    fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    fn find(&self, key: &str, log: &mut Log) -> Option<(&Spanned<DeValue<'_>>, String)> {
        let (name, value) = self.values.iter().find(|(name, _)| name.get_ref() == key)?;
        let path = self.path_of(key);
        log.place(path.clone(), name.span().start);
        Some((value, path))
    }

    /// The value of `key`, if it is written and can be used.
    pub(crate) fn value<T: Setting>(&self, key: &str, log: &mut Log) -> Option<T> {
        let (value, path) = self.find(key, log)?;
        let read = T::read(value, &path, log);
        if read.is_none() {
            log.spoil(&path);
            log.spoil(&self.path);
        }
        read
    }

    /// The section `key`; its defaults if it is not written.
    pub(crate) fn section<T: SettingsSection>(&self, key: &str, log: &mut Log) -> T {
        let Some((value, path)) = self.find(key, log) else { return T::default() };
        match value.get_ref() {
            DeValue::Table(values) => T::read(&Table { values, path }, log),
            _ => {
                let what = format!("{path} is a section; write [{path}] on a line of its own, then its keys");
                log.wrong(value.span().start, what);
                T::default()
            }
        }
    }

    /// The sections `[[key]]`; nothing if none is written.
    pub(crate) fn sections<T: SettingsSection>(&self, key: &str, log: &mut Log) -> Option<Vec<T>> {
        let (value, path) = self.find(key, log)?;
        Some(read_sections(value, &path, log).unwrap_or_default())
    }

    /// Refuses the keys that are not among `known`, and says which one may have been meant.
    pub(crate) fn refuse_unknown(&self, known: &[&str], log: &mut Log) {
        for (name, _) in self.values {
            let key = name.get_ref().as_ref();
            if known.contains(&key) {
                continue;
            }
            let path = self.path_of(key);
            let what = match nearest(key, known) {
                Some(meant) => format!("there is no key {path}; did you mean {meant}?"),
                None => format!("there is no key {path}; write one of {}", known.join(", ")),
            };
            log.wrong(name.span().start, what);
            log.spoil(&self.path);
        }
    }
}

/// The sections `[[path]]`; nothing if `value` is no list.
pub(crate) fn read_sections<T: SettingsSection>(
    value: &Value<'_>,
    path: &str,
    log: &mut Log,
) -> Option<Vec<T>> {
    let what = || {
        // Within a section of a list, that one's number is not written.
        let header: String =
            path.split('[').map(|part| part.split(']').next_back().unwrap_or(part)).collect();
        format!("{path} is a list of sections; write [[{header}]] on a line of its own for each")
    };
    let DeValue::Array(array) = value.get_ref() else {
        log.wrong(value.span().start, what());
        return None;
    };
    let mut sections = Vec::new();
    for (value, at) in array.iter().zip(0..) {
        let path = format!("{path}[{at}]");
        log.place(path.clone(), value.span().start);
        match value.get_ref() {
            DeValue::Table(values) => sections.push(T::read(&Table { values, path }, log)),
            _ => log.wrong(value.span().start, what()),
        }
    }
    Some(sections)
}

/// The key that differs by a slip of the hand.
fn nearest<'k>(key: &str, known: &[&'k str]) -> Option<&'k str> {
    let close = |candidate: &&str| {
        let distance = strsim::damerau_levenshtein(key, candidate);
        (distance <= 1 + candidate.len() / 4).then_some(distance)
    };
    if key.len() > 64 {
        return None; // the distance takes the product of both lengths
    }
    let spelled = known.iter().filter_map(|candidate| Some((close(candidate)?, *candidate))).min();
    let begun = || known.iter().find(|candidate| key.len() >= 3 && candidate.starts_with(key)).copied();
    spelled.map(|(_, candidate)| candidate).or_else(begun)
}

/// A section: a struct, its defaults, its reader and its documentation from one list of
/// `key: Type = default;` with `, such as "an example"` where there is no default.
macro_rules! section {
    (
        $(#[doc = $section_doc:literal])+
        pub struct $name:ident {
            $(
                $(#[doc = $doc:expr])+
                $key:ident: $type:ty = $default:expr $(, such as $example:literal)?;
            )+
        }
    ) => {
        $(#[doc = $section_doc])+
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name {
            $($(#[doc = $doc])+ pub $key: $type,)+
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($key: $default,)+ }
            }
        }

        impl $crate::section::SettingsSection for $name {
            const DOC: &'static [&'static str] = &[$($section_doc),+];

            fn keys() -> Vec<$crate::section::DocumentedKey> {
                let default = Self::default();
                vec![$($crate::section::DocumentedKey {
                    name: stringify!($key),
                    doc: &[$($doc),+],
                    default: $crate::setting::Setting::write(&default.$key),
                    example: [$($example)?].first().copied(),
                }),+]
            }

            fn read(table: &$crate::section::Table<'_, '_>, log: &mut $crate::problem::Log) -> Self {
                let default = Self::default();
                table.refuse_unknown(&[$(stringify!($key)),+], log);
                Self { $($key: table.value(stringify!($key), log).unwrap_or(default.$key),)+ }
            }
        }
    };
}

pub(crate) use section;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_of_the_hand_are_recognised() {
        let known = ["folder", "age", "bytes", "window"];
        assert_eq!(nearest("fodler", &known), Some("folder"));
        assert_eq!(nearest("bites", &known), Some("bytes"));
        assert_eq!(nearest("win", &known), Some("window"));
        assert_eq!(nearest("retention", &known), None);
        assert_eq!(nearest(&"x".repeat(100_000), &known), None);
    }
}
