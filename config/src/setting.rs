//! Values that a settings file can hold: how each is read, and how it is written.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use profiler_core::rate::Criterion;
use serde_spanned::Spanned;
use toml::de::DeValue;

use crate::problem::Log;
use crate::{
    AttachMode, Backend, Bytes, Each, ExportFormat, Hertz, Mode, Pattern, Ratio, RelabelAction, RelabelRegex,
    Span, Threads, Unwind,
};

/// A value with its place in the file.
pub(crate) type Value<'i> = Spanned<DeValue<'i>>;

/// A value that a settings file can hold.
pub(crate) trait Setting: Sized {
    /// Reads it; says in `log` what is wrong if it cannot be read. `key` is its name there.
    fn read(value: &Value<'_>, key: &str, log: &mut Log) -> Option<Self>;

    /// As it is written in the file; nothing if it is not written.
    fn write(&self) -> Option<String>;
}

/// Says that a value is of the wrong kind.
fn wrong_kind(value: &Value<'_>, key: &str, expected: &str, log: &mut Log) {
    let found = value.get_ref().type_str();
    let article = if found.starts_with(['a', 'i', 'o']) { "an" } else { "a" };
    log.wrong(value.span().start, format!("{key}: expected {expected}, not {article} {found}"));
}

/// A text between quotes.
pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out += &format!("\\u{:04X}", u32::from(c)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Reads what has a text form. Numbers may be written without quotes.
fn from_text<T: FromStr<Err: Display>>(value: &Value<'_>, key: &str, log: &mut Log) -> Option<T> {
    let text = match value.get_ref() {
        DeValue::String(text) => text.to_string(),
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        _ => {
            wrong_kind(value, key, "a text between quotes", log);
            return None;
        }
    };
    let wrong = |error| log.wrong(value.span().start, format!("{key}: {error}"));
    text.parse().map_err(wrong).ok()
}

/// Settings whose text form a person writes between quotes.
macro_rules! by_text {
    ($($type:ty),* $(,)?) => {$(
        impl Setting for $type {
            fn read(value: &Value<'_>, key: &str, log: &mut Log) -> Option<Self> {
                from_text(value, key, log)
            }

            fn write(&self) -> Option<String> {
                Some(quoted(&self.to_string()))
            }
        }
    )*};
}

by_text!(
    AttachMode,
    Backend,
    Bytes,
    Criterion,
    Each,
    ExportFormat,
    Hertz,
    Mode,
    Pattern,
    Ratio,
    RelabelAction,
    RelabelRegex,
    Span,
    Threads,
    Unwind,
);

impl Setting for String {
    fn read(value: &Value<'_>, key: &str, log: &mut Log) -> Option<Self> {
        match value.get_ref() {
            DeValue::String(text) => return Some(text.to_string()),
            _ => wrong_kind(value, key, "a text between quotes", log),
        }
        None
    }

    fn write(&self) -> Option<String> {
        Some(quoted(self))
    }
}

impl Setting for PathBuf {
    fn read(value: &Value<'_>, key: &str, log: &mut Log) -> Option<Self> {
        String::read(value, key, log).map(Self::from)
    }

    fn write(&self) -> Option<String> {
        Some(quoted(&self.to_string_lossy()))
    }
}

impl Setting for SocketAddr {
    fn read(value: &Value<'_>, key: &str, log: &mut Log) -> Option<Self> {
        let text = String::read(value, key, log)?;
        let parsed = text.parse().ok();
        if parsed.is_none() {
            let what =
                format!("{key}: `{text}` is not an address with a port; write one such as 127.0.0.1:7117");
            log.wrong(value.span().start, what);
        }
        parsed
    }

    fn write(&self) -> Option<String> {
        Some(quoted(&self.to_string()))
    }
}

impl Setting for bool {
    fn read(value: &Value<'_>, key: &str, log: &mut Log) -> Option<Self> {
        match value.get_ref() {
            DeValue::Boolean(value) => return Some(*value),
            _ => wrong_kind(value, key, "true or false", log),
        }
        None
    }

    fn write(&self) -> Option<String> {
        Some(self.to_string())
    }
}

impl Setting for u32 {
    fn read(value: &Value<'_>, key: &str, log: &mut Log) -> Option<Self> {
        let DeValue::Integer(number) = value.get_ref() else {
            wrong_kind(value, key, "a whole number", log);
            return None;
        };
        let parsed = u32::from_str_radix(number.as_str(), number.radix()).ok();
        if parsed.is_none() {
            let what = format!("{key}: {number} is out of range; write a number from 0 to {}", u32::MAX);
            log.wrong(value.span().start, what);
        }
        parsed
    }

    fn write(&self) -> Option<String> {
        Some(self.to_string())
    }
}

impl<T: Setting> Setting for Option<T> {
    fn read(value: &Value<'_>, key: &str, log: &mut Log) -> Option<Self> {
        T::read(value, key, log).map(Some)
    }

    fn write(&self) -> Option<String> {
        self.as_ref().and_then(T::write)
    }
}

impl<T: Setting> Setting for Vec<T> {
    fn read(value: &Value<'_>, key: &str, log: &mut Log) -> Option<Self> {
        let DeValue::Array(values) = value.get_ref() else {
            wrong_kind(value, key, "a list between brackets", log);
            return None;
        };
        Some(values.iter().filter_map(|value| T::read(value, key, log)).collect())
    }

    fn write(&self) -> Option<String> {
        let items: Vec<String> = self.iter().filter_map(T::write).collect();
        (!items.is_empty()).then(|| format!("[{}]", items.join(", ")))
    }
}

/// Names and texts, such as labels.
impl Setting for BTreeMap<String, String> {
    fn read(value: &Value<'_>, key: &str, log: &mut Log) -> Option<Self> {
        let DeValue::Table(table) = value.get_ref() else {
            wrong_kind(value, key, "names and texts such as { team = \"search\" }", log);
            return None;
        };
        let mut map = Self::new();
        for (name, value) in table {
            let path = format!("{key}.{}", name.get_ref());
            if let Some(text) = String::read(value, &path, log) {
                log.place(path, name.span().start);
                map.insert(name.get_ref().to_string(), text);
            }
        }
        Some(map)
    }

    fn write(&self) -> Option<String> {
        let items: Vec<String> =
            self.iter().map(|(name, text)| format!("{name} = {}", quoted(text))).collect();
        (!items.is_empty()).then(|| format!("{{ {} }}", items.join(", ")))
    }
}
