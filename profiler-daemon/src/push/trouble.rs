//! Why a profile was not acknowledged, in words for a person.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::time::Duration;

use profile_files::names::visible;
use tokio_rustls::rustls::{self, CertificateError};

/// Why a profile was not acknowledged.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PushError {
    /// This one is not taken; another may be.
    #[error("{0}")]
    Profile(String),
    /// It is too long; parts of it may be taken.
    #[error("{0}")]
    TooLong(String),
    /// None is taken as things are.
    #[error("{0}")]
    Receiver(String),
    /// The backend failed at this one, as it may at any other.
    #[error("{text}; look at its log, and push it again {}", when(*after))]
    Failed {
        /// What happened.
        text: String,
        /// How long to wait, if the backend says so.
        after: Option<Duration>,
    },
    /// None is taken before some time has passed.
    #[error("{text}; push it again {}", when(*after))]
    Later {
        /// What happened.
        text: String,
        /// How long to wait, if the backend says so.
        after: Option<Duration>,
    },
    /// It is not permitted.
    #[error("{0}")]
    NotPermitted(String),
}

fn when(after: Option<Duration>) -> String {
    after.map_or("later".to_owned(), |after| format!("after {} s", after.as_secs()))
}

/// There was not enough time for all of it.
pub(super) fn timed_out(host: &str, timeout: Duration) -> PushError {
    PushError::Receiver(format!(
        "{host} did not answer in full within {} s; check it, or give a longer --timeout",
        timeout.as_secs_f64()
    ))
}

/// There is no connection to talk gRPC by.
pub(super) fn not_connected(host: &str, error: &(dyn Error + 'static)) -> PushError {
    let causes = std::iter::successors(Some(error), |&error: &&(dyn Error + 'static)| error.source());
    for cause in causes {
        if let Some(error) = cause.downcast_ref::<rustls::Error>() {
            return PushError::Receiver(certificate(host, error));
        }
        if let Some(error) = cause.downcast_ref::<io::Error>() {
            return PushError::Receiver(by_io(host, error));
        }
    }
    let why = visible(&error.to_string());
    PushError::Receiver(format!("{host} cannot be reached by gRPC ({why}); check the address in --to"))
}

fn by_io(host: &str, error: &io::Error) -> String {
    match error.get_ref().and_then(|inner| inner.downcast_ref()) {
        Some(error) => certificate(host, error),
        // The standard library has no kind for it.
        None if error.to_string().contains("failed to lookup address") => not_found(host),
        None => broken(host, error),
    }
}

fn not_found(host: &str) -> String {
    format!("{host} is not found; check the name in --to")
}

/// There is no answer.
pub(super) fn unreached(host: &str, timeout: Duration, error: &ureq::Error) -> PushError {
    PushError::Receiver(match error {
        ureq::Error::Timeout(_) => return timed_out(host, timeout),
        ureq::Error::HostNotFound => not_found(host),
        ureq::Error::Rustls(error) => certificate(host, error),
        ureq::Error::Io(error) => by_io(host, error),
        ureq::Error::ConnectionFailed => {
            format!("{host} cannot be reached; check that it runs, and the address in --to")
        }
        other => {
            let why = visible(&other.to_string());
            format!(
                "{host} gives an unreadable answer ({why}); check that --to leads to a backend for profiles"
            )
        }
    })
}

fn broken(host: &str, error: &io::Error) -> String {
    let why = visible(&error.to_string());
    if error.raw_os_error() == Some(libc::EAFNOSUPPORT) {
        return format!(
            "{host} cannot be reached: there is no network; `systemctl cat sweetspot` says how the service gets one"
        );
    }
    match error.kind() {
        ErrorKind::ConnectionRefused => {
            format!("{host} refuses the connection; check that it runs, and the port in --to")
        }
        ErrorKind::BrokenPipe
        | ErrorKind::ConnectionReset
        | ErrorKind::ConnectionAborted
        | ErrorKind::UnexpectedEof => {
            format!("{host} broke off ({why}); look at its log, and check how large a body it takes")
        }
        _ => format!("{host} cannot be reached ({why}); check the address in --to and the network"),
    }
}

fn certificate(host: &str, error: &rustls::Error) -> String {
    match error {
        rustls::Error::InvalidCertificate(
            CertificateError::Expired | CertificateError::ExpiredContext { .. },
        ) => {
            format!("the certificate of {host} has expired; renew it, and check the clock of this machine")
        }
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. },
        ) => format!("the certificate of {host} is not valid yet; check the clock of this machine"),
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            format!(
                "the certificate of {host} is not signed by a known authority; name the one to trust with --ca-file"
            )
        }
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => format!("the certificate of {host} is for another name; give that name in --to"),
        other => {
            let why = visible(&other.to_string());
            format!(
                "{host} cannot be reached by TLS ({why}); check the certificate, and whether --to should be http"
            )
        }
    }
}
