//! Headers, tokens and certificates of requests to a backend. No error shows a header or a token.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use anyhow::{Result, anyhow, bail};
use ureq::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, TRANSFER_ENCODING};
use ureq::http::{HeaderName, HeaderValue};
use ureq::tls::{Certificate, PemItem, parse_pem};

use super::pyroscope_push::PROTOCOL_VERSION;
use crate::failure::{Failure, usage};
use crate::sys::root::{Link, open_regular};

/// Most bytes of a token: a header line holds no more.
const LONGEST_TOKEN: u64 = 4096;
/// Most bytes of certificates: all public authorities take a quarter of it.
const MOST_CERTIFICATES: u64 = 1 << 20;

fn malformed() -> anyhow::Error {
    usage("a --header is malformed; write it as 'NAME: TEXT'")
}

/// A header as it is typed: `NAME: TEXT`.
///
/// # Errors
///
/// As of [`header`].
pub(crate) fn header_of(text: &str) -> Result<(HeaderName, HeaderValue)> {
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
    if [CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, PROTOCOL_VERSION, TRANSFER_ENCODING]
        .contains(&name)
    {
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
        let text = format!("{shown} cannot be read ({error}); check its path and permissions");
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
