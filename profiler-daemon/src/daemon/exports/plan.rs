//! Checks an export of the settings, and prepares it. No text shows a header or a token.

use anyhow::{Error, Result, anyhow};
use config::{DaemonSettings, ExportSettings};
use profile_files::store::Stamp;
use profiler_core::profile::SymbolizedProfile;
use ureq::http::header::{AUTHORIZATION, COOKIE, PROXY_AUTHORIZATION};
use ureq::http::{HeaderName, HeaderValue};

use crate::failure::Failure;
use crate::push::{PushAccess, PushClient, PushIdentity, PushNaming, Receiver};
use crate::push::{certificates, header, token};

/// Options of `push`, and the settings that stand for them here.
const TERMS: [(&str, &str); 8] = [
    ("--token-file", "token_file"),
    ("--ca-file", "ca_file"),
    ("--timeout", "timeout"),
    ("--format", "format"),
    ("--header", "headers"),
    ("--label", "labels"),
    ("--name", "name"),
    ("--to", "to"),
];

/// An export that can be carried out.
pub(super) struct ExportPlan {
    pub(super) settings: ExportSettings,
    pub(super) receiver: Receiver,
    pub(super) naming: PushNaming,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl ExportPlan {
    /// Checks and prepares the export of these settings.
    ///
    /// # Errors
    ///
    /// What is invalid, and what to do.
    pub(super) fn new(settings: &ExportSettings) -> Result<Self> {
        let receiver = Receiver::new(&settings.to, settings.format)?;
        let mut headers = Vec::new();
        for (name, value) in &settings.headers {
            headers.push(header(name, value).map_err(|_| {
                anyhow!("headers.{name} cannot be sent: it is malformed, or set by the format; leave it out")
            })?);
        }
        let shows_secret = |(name, _): &(HeaderName, HeaderValue)| {
            [AUTHORIZATION, COOKIE, PROXY_AUTHORIZATION].contains(name)
        };
        if settings.token_file.is_some() && headers.iter().any(|(name, _)| name == AUTHORIZATION) {
            return Err(anyhow!("token_file and headers both give an Authorization; leave one out"));
        }
        if receiver.is_exposed && (settings.token_file.is_some() || headers.iter().any(shows_secret)) {
            return Err(anyhow!(
                "the token would go to {} without encryption, where others can read it; write an https address",
                receiver.host
            ));
        }
        let naming = PushNaming { service: None, labels: settings.labels.clone() };
        Ok(Self { settings: settings.clone(), receiver, naming, headers })
    }

    /// What a window is called there; none if the export's rules drop it.
    pub(super) fn identity(&self, profile: &SymbolizedProfile, stamp: &Stamp) -> Option<PushIdentity> {
        self.naming.identity(profile, Some(stamp)).relabelled(&self.settings.relabel, &stamp.target)
    }

    /// How the backend is reached; its files are read now.
    ///
    /// # Errors
    ///
    /// If a file cannot be used.
    pub(super) fn client(&self) -> Result<PushClient> {
        let mut headers = self.headers.clone();
        if let Some(path) = &self.settings.token_file {
            headers.push((AUTHORIZATION, token(path)?));
        }
        let authorities = self.settings.ca_file.as_deref().map(certificates).transpose()?;
        let access = PushAccess { headers, authorities, timeout: self.settings.timeout.duration() };
        PushClient::new(&self.receiver, &access)
    }

    /// What a person should know of it.
    fn remark(&self) -> Option<String> {
        let (name, host) = (&self.settings.name, &self.receiver.host);
        self.receiver.is_exposed.then(|| {
            format!(
                "export {name}: profiles go to {host} over the network in the clear; write an https address"
            )
        })
    }
}

/// All exports of the settings.
///
/// # Errors
///
/// What of one cannot be carried out.
pub(super) fn plans(settings: &DaemonSettings) -> Result<Vec<ExportPlan>> {
    settings.exports.iter().map(tried).collect()
}

/// All that the daemon would refuse of these settings, and what a person should know of the rest, in lines.
pub(super) fn problems(settings: &DaemonSettings) -> (Vec<Error>, Vec<String>) {
    let (mut wrong, mut remarks) = (Vec::new(), Vec::new());
    for export in &settings.exports {
        match tried(export) {
            Ok(plan) => remarks.extend(plan.remark()),
            Err(error) => wrong.push(error),
        }
    }
    (wrong, remarks)
}

/// What an export means, once its token and certificates have been read.
fn tried(settings: &ExportSettings) -> Result<ExportPlan> {
    let plan = ExportPlan::new(settings).and_then(|plan| plan.client().map(|_| plan));
    plan.map_err(|error| {
        let text = format!("export {}: {}", settings.name, in_settings(&format!("{error:#}")));
        match error.downcast_ref() {
            Some(Failure::NotPermitted(_)) => Failure::NotPermitted(text).into(),
            _ => anyhow!(text),
        }
    })
}

/// A text of `push` with the settings in place of its options.
pub(super) fn in_settings(text: &str) -> String {
    TERMS.iter().fold(text.to_owned(), |text, (option, key)| text.replace(option, key))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said of an export with these lines, and of it alone.
    fn said(lines: &str) -> (Vec<String>, Vec<String>) {
        let text = format!("[[export]]\nname = \"a\"\n{lines}\n");
        let (wrong, remarks) = problems(&DaemonSettings::parse(text.as_bytes()).unwrap());
        (wrong.iter().map(|error| format!("{error:#}")).collect(), remarks)
    }

    #[test]
    fn what_cannot_be_carried_out_is_refused_without_a_secret() {
        let folder = tempfile::tempdir().unwrap();
        let (token, empty) = (folder.path().join("token"), folder.path().join("empty"));
        std::fs::write(&token, "s3cret\n").unwrap();
        std::fs::write(&empty, "\n").unwrap();
        let token_file = format!("token_file = {token:?}");
        for (lines, word) in [
            (format!("to = \"http://p:4040\"\n{token_file}"), "p:4040 without encryption"),
            ("to = \"http://p\"\nheaders = { Authorization = \"s3cret\" }".to_owned(), "without encryption"),
            (
                format!("to = \"https://p\"\nheaders = {{ authorization = \"s3cret\" }}\n{token_file}"),
                "leave one out",
            ),
            (
                "to = \"https://p\"\nheaders = { content-type = \"s3cret\" }".to_owned(),
                "headers.content-type",
            ),
            (
                "to = \"https://p\"\nheaders = { connect-protocol-version = \"s3cret\" }".to_owned(),
                "headers.connect-protocol-version",
            ),
            (
                "to = \"https://p\"\nheaders = { x = \"s3cret\\n\\u0007\" }".to_owned(),
                "headers.x cannot be sent",
            ),
            ("to = \"http://me:s3cret@localhost\"".to_owned(), "with token_file instead"),
            ("to = \"http://localhost/?key=s3cret\"".to_owned(), "give labels with labels"),
            (
                "to = \"https://p\"\ntoken_file = \"/nowhere/token\"".to_owned(),
                "/nowhere/token cannot be read",
            ),
            (format!("to = \"https://p\"\ntoken_file = {empty:?}"), "holds no token"),
            (format!("to = \"https://p\"\nca_file = {token:?}"), "holds no certificate"),
        ] {
            let (wrong, remarks) = said(&lines);
            assert_eq!((wrong.len(), remarks.len()), (1, 0), "{lines}: {wrong:?} {remarks:?}");
            assert!(wrong[0].starts_with("export a: ") && wrong[0].contains(word), "no {word}: {wrong:?}");
            let is_told = |(option, _): &(&str, &str)| wrong[0].contains(option);
            assert!(!wrong[0].contains("s3cret") && !TERMS.iter().any(is_told), "{wrong:?}");
        }
        for lines in [
            format!("to = \"https://p\"\n{token_file}"),
            format!("to = \"http://127.0.0.1:4040\"\n{token_file}"),
            "to = \"http://localhost\"\nheaders = { X-Scope-OrgID = \"team\" }".to_owned(),
        ] {
            assert_eq!(said(&lines), (vec![], vec![]), "{lines}");
        }
        let plain = said("to = \"http://p\"\nheaders = { X-Scope-OrgID = \"team\" }");
        assert!(plain.0.is_empty() && plain.1[0].contains("in the clear"), "{plain:?}");
    }
}
