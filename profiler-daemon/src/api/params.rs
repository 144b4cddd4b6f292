//! What stands behind the `?` of a request: each parameter is declared once, for its reader and for the document.

use std::time::Duration;

use jiff::Zoned;
use profile_files::when::When;
use profile_files::{FORMATS, Format};

use super::bounds::ApiBounds;
use super::problem::Problem;

/// A parameter.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Parameter {
    /// Its name.
    pub(super) name: &'static str,
    /// What it is.
    pub(super) kind: ParameterKind,
    /// What it means.
    pub(super) doc: &'static str,
}

/// What a parameter can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ParameterKind {
    /// A time such as `-1h`, or Unix seconds.
    Moment,
    /// Whole seconds, from 1 to the bound.
    Seconds,
    /// A target's name; may be repeated.
    Target,
    /// `KEY=TEXT`; may be repeated.
    Label,
    /// The name of a format.
    Format,
}

impl ParameterKind {
    /// Whether it may be written more than once.
    pub(super) fn is_repeated(self) -> bool {
        matches!(self, ParameterKind::Target | ParameterKind::Label)
    }
}

/// What a request says, as declared.
#[derive(Debug)]
pub(super) struct Params(Vec<(&'static Parameter, String)>);

impl Params {
    /// Reads the query of a request for which `known` are declared.
    ///
    /// # Errors
    ///
    /// If it says something else, or something twice, or too often.
    pub(super) fn read(
        query: Option<&str>,
        known: &'static [&'static Parameter],
        bounds: &ApiBounds,
    ) -> Result<Self, Problem> {
        let mut given: Vec<(&'static Parameter, String)> = Vec::new();
        for (name, text) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
            let Some(parameter) = known.iter().copied().find(|parameter| parameter.name == name) else {
                return Err(Problem::bad(unknown(&name, known)));
            };
            if text.chars().any(char::is_control) {
                return Err(Problem::bad(format!("{name} has a control character; remove it")));
            }
            let times = given.iter().filter(|(given, _)| *given == parameter).count();
            let most = if parameter.kind.is_repeated() { bounds.repeated } else { 1 };
            if times >= most {
                let detail = format!("{name} is given more than {most} times; leave some out");
                return Err(Problem::bad(detail));
            }
            given.push((parameter, text.into_owned()));
        }
        Ok(Self(given))
    }

    fn all<'p>(&'p self, parameter: &Parameter) -> impl Iterator<Item = &'p str> {
        self.0.iter().filter(move |(given, _)| *given == parameter).map(|(_, text)| text.as_str())
    }

    fn one(&self, parameter: &Parameter) -> Option<&str> {
        self.all(parameter).next()
    }

    /// A moment (ns since the Unix epoch).
    ///
    /// # Errors
    ///
    /// If it is none.
    pub(super) fn moment(&self, parameter: &Parameter, now: &Zoned) -> Result<Option<u64>, Problem> {
        let Some(text) = self.one(parameter) else { return Ok(None) };
        let ns = unix_ns(text).or_else(|| text.parse::<When>().ok().and_then(|when| when.unix_ns(now)));
        ns.map(Some).ok_or_else(|| {
            Problem::bad(format!(
                "{} is not a time since 1970; write Unix seconds, or a time such as -1h, 09:30, 2026-11-22T09:30 or \
                 2026-11-22T09:30Z",
                parameter.name
            ))
        })
    }

    /// Whole seconds.
    ///
    /// # Errors
    ///
    /// If they are none, or out of bounds.
    pub(super) fn seconds(&self, parameter: &Parameter, most: Duration) -> Result<Option<Duration>, Problem> {
        let Some(text) = self.one(parameter) else { return Ok(None) };
        let most = most.as_secs();
        let digits = !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit());
        let seconds = text.parse().ok().filter(|seconds| digits && (1..=most).contains(seconds));
        seconds.map(|seconds| Some(Duration::from_secs(seconds))).ok_or_else(|| {
            Problem::bad(format!(
                "{} is not a number of seconds from 1 to {most}; write one such as 30",
                parameter.name
            ))
        })
    }

    /// Names of targets.
    pub(super) fn targets(&self, parameter: &Parameter) -> Vec<String> {
        self.all(parameter).map(str::to_owned).collect()
    }

    /// Labels with their texts.
    ///
    /// # Errors
    ///
    /// If one is not written so, or contradicts another.
    pub(super) fn labels(
        &self,
        parameter: &Parameter,
    ) -> Result<std::collections::BTreeMap<String, String>, Problem> {
        let mut labels = std::collections::BTreeMap::new();
        for text in self.all(parameter) {
            let label = text.split_once('=').filter(|(key, _)| !key.is_empty());
            let (key, text) = label
                .ok_or_else(|| Problem::bad(format!("{} is not a label; write KEY=TEXT", parameter.name)))?;
            if labels.insert(key.to_owned(), text.to_owned()).is_some_and(|other| other != text) {
                return Err(Problem::bad(format!("the label {key} is given with two texts; leave one out")));
            }
        }
        Ok(labels)
    }

    /// A format.
    ///
    /// # Errors
    ///
    /// If there is none of this name.
    pub(super) fn format(&self, parameter: &Parameter) -> Result<Option<&'static Format>, Problem> {
        let Some(text) = self.one(parameter) else { return Ok(None) };
        Format::named(text).map(Some).ok_or_else(|| {
            let names = FORMATS.map(|format| format.name).join(", ");
            Problem::bad(format!("{} is not one of {names}; write one of them", parameter.name))
        })
    }
}

fn unknown(name: &str, known: &[&Parameter]) -> String {
    let name = profile_files::names::visible(&name.chars().take(64).collect::<String>());
    let names: Vec<&str> = known.iter().map(|parameter| parameter.name).collect();
    match names.as_slice() {
        [] => format!("there are no parameters here; remove {name}"),
        names => format!("there is no parameter {name}; write one of {}", names.join(", ")),
    }
}

/// Unix seconds with or without a fraction, as ns.
fn unix_ns(text: &str) -> Option<u64> {
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit());
    if !digits(seconds) || !digits(fraction) || fraction.len() > 9 {
        return None;
    }
    let fraction_ns = format!("{fraction:0<9}").parse::<u64>().ok()?;
    seconds.parse::<u64>().ok()?.checked_mul(1_000_000_000)?.checked_add(fraction_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unix_seconds_are_exact() {
        assert_eq!(unix_ns("1760000000"), Some(1_760_000_000_000_000_000));
        assert_eq!(unix_ns("1760000000.123456789"), Some(1_760_000_000_123_456_789));
        assert_eq!(unix_ns("0.5"), Some(500_000_000));
        for text in ["", ".", "1.", ".5", "-1", "+1", "1e9", "99999999999999999999", "1.0000000001", "09:30"]
        {
            assert_eq!(unix_ns(text), None, "{text}");
        }
    }
}
