//! What was typed after `push`, checked. No error shows a header or a token.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use ureq::http::header::{
    AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, TRANSFER_ENCODING,
};
use ureq::http::{HeaderName, HeaderValue};
use ureq::tls::{Certificate, PemItem, parse_pem};

use crate::cli::PushArgs;
use crate::failure::{Failure, usage};
use crate::push::{PushAccess, PushNaming, Receiver};
use crate::sys::root::{Link, open_regular};

/// Most bytes of a token: a header line holds no more.
const LONGEST_TOKEN: u64 = 4096;
/// Most bytes of certificates: all public authorities take a quarter of it.
const MOST_CERTIFICATES: u64 = 1 << 20;

/// Send profiles to a backend.
#[derive(Debug)]
pub(crate) struct PushJob {
    /// The profiles; never empty.
    pub(crate) files: Vec<PathBuf>,
    /// Where they go.
    pub(crate) receiver: Receiver,
    /// How it is reached.
    pub(crate) access: PushAccess,
    /// What they are called there.
    pub(crate) naming: PushNaming,
}

impl PushJob {
    /// What was typed, checked.
    ///
    /// # Errors
    ///
    /// A usage error for what cannot be meant; any other for a file that cannot be used.
    pub(super) fn new(args: PushArgs) -> Result<Self> {
        if args.timeout.duration().is_zero() {
            return Err(usage("--timeout 0s leaves no time; give one such as 30s"));
        }
        if args.name.as_ref().is_some_and(|name| name.trim().is_empty()) {
            return Err(usage("--name is empty; leave it out to use each profile's target"));
        }
        let receiver = Receiver::new(&args.to, args.format)?;
        let mut headers = args.header.iter().map(|text| header_of(text)).collect::<Result<Vec<_>>>()?;
        if let Some(path) = &args.token_file {
            if headers.iter().any(|(name, _)| name == AUTHORIZATION) {
                return Err(usage("--token-file and --header both give an Authorization; leave one out"));
            }
            headers.push((AUTHORIZATION, token(path)?));
        }
        let authorities = args.ca_file.as_deref().map(certificates).transpose()?;
        let access = PushAccess { headers, authorities, timeout: args.timeout.duration() };
        let labels: BTreeMap<_, _> = args.label.into_iter().collect();
        Ok(Self { files: args.files, receiver, access, naming: PushNaming { service: args.name, labels } })
    }
}

fn malformed() -> anyhow::Error {
    usage("a --header is malformed; write it as 'NAME: TEXT'")
}

fn header_of(text: &str) -> Result<(HeaderName, HeaderValue)> {
    let (name, value) = text.split_once(':').ok_or_else(malformed)?;
    header(name, value)
}

/// A header of every request.
///
/// # Errors
///
/// If it is none, or not for a person to set. The value is not shown.
pub(crate) fn header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue)> {
    let name: HeaderName = name.trim().parse().map_err(|_| malformed())?;
    let mut value: HeaderValue = value.trim().parse().map_err(|_| malformed())?;
    value.set_sensitive(true);
    if [CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, TRANSFER_ENCODING].contains(&name) {
        return Err(usage(format!("--header cannot set {name}: the format decides it; leave it out")));
    }
    Ok((name, value))
}

/// The header that shows the token in `path`.
///
/// # Errors
///
/// If the file cannot be read, or holds none.
pub(crate) fn token(path: &Path) -> Result<HeaderValue> {
    let bytes = whole(path, LONGEST_TOKEN)?;
    let text = str::from_utf8(&bytes).unwrap_or_default().trim();
    let is_token = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
    let value = HeaderValue::try_from(format!("Bearer {text}"));
    let Some(mut value) = value.ok().filter(|_| is_token) else {
        bail!("{} holds no token; write one line of letters, digits or marks to it", path.display());
    };
    value.set_sensitive(true);
    Ok(value)
}

/// The certificates in `path`.
///
/// # Errors
///
/// If the file cannot be read, or holds none.
pub(crate) fn certificates(path: &Path) -> Result<Vec<Certificate<'static>>> {
    let bytes = whole(path, MOST_CERTIFICATES)?;
    let certificates: Vec<_> = parse_pem(&bytes)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    if certificates.is_empty() {
        bail!(
            "{} holds no certificate; give a file in PEM format (-----BEGIN CERTIFICATE-----)",
            path.display()
        );
    }
    Ok(certificates)
}

/// All of a small file.
fn whole(path: &Path, most: u64) -> Result<Vec<u8>> {
    let shown = path.display();
    let cannot = |error: std::io::Error| {
        let text = format!("{shown} cannot be read ({error}); check its name and who may read it");
        match error.kind() {
            ErrorKind::PermissionDenied => Failure::NotPermitted(text).into(),
            _ => anyhow!(text),
        }
    };
    let file: File = open_regular(path, Link::Follow).map_err(cannot)?;
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes).map_err(cannot)?;
    if bytes.len() as u64 > most {
        bail!("{shown} has more than {most} bytes; is it the right file?");
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn job(words: &[&str]) -> Result<PushJob> {
        let cli = Cli::try_parse_from([&["sweetspot", "push", "x.pb.gz"], words].concat())?;
        let Command::Push(args) = cli.command else { panic!("another command") };
        PushJob::new(args)
    }

    fn error(words: &[&str]) -> String {
        format!("{:#}", job(words).unwrap_err())
    }

    #[test]
    fn secrets_are_in_no_error_and_in_no_debug_text() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, "s3cret\n").unwrap();
        let token_file = file.to_str().unwrap();
        let to = ["--to", "http://localhost:4040"];
        let all =
            job(&[&to[..], &["--token-file", token_file, "--header", "x-key: s3cret"]].concat()).unwrap();
        assert_eq!(all.access.headers.len(), 2);
        assert_eq!(all.access.headers[1].1, "Bearer s3cret");
        assert!(!format!("{all:?}").contains("s3cret"));
        for words in [
            &["--header", "s3cret"][..],
            &["--header", "a b: s3cret"],
            &["--header", "x: s3cret\u{7}"],
            &["--header", "content-type: s3cret"],
            &["--header", "authorization: s3cret", "--token-file", token_file],
            &["--to", "http://me:s3cret@localhost"],
            &["--to", "http://localhost/?key=s3cret"],
            &["--to", "ftp://s3cret"],
        ] {
            let error = error(&if words[0] == "--to" { words.to_vec() } else { [&to[..], words].concat() });
            assert!(!error.contains("s3cret") && !error.is_empty(), "{words:?}: {error}");
        }
        std::fs::write(&file, "s3cret two\n").unwrap();
        let error = error(&[&to[..], &["--token-file", token_file]].concat());
        assert!(error.contains("holds no token") && !error.contains("s3cret"), "{error}");
    }

    #[test]
    fn files_that_are_none_of_what_they_should_be_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, vec![b'x'; 5000]).unwrap();
        let path = file.to_str().unwrap();
        let to = |words: [&str; 2]| error(&[&["--to", "http://localhost"][..], &words].concat());
        assert!(to(["--token-file", path]).contains("more than 4096 bytes"));
        assert!(to(["--ca-file", path]).contains("holds no certificate"));
        assert!(to(["--ca-file", "/nowhere/ca.pem"]).contains("cannot be read"));
        assert!(to(["--timeout", "0s"]).contains("leaves no time"));
        assert!(to(["--name", " "]).contains("--name is empty"));
    }
}
