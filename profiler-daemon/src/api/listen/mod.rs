//! Listeners: sockets, tokens and certificates, prepared from the settings before anything changes, so that
//! settings that cannot be applied leave everything as it was.

pub(super) mod socket;
mod tls;
pub(super) mod token;

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Result, anyhow};
use config::ListenSettings;
use tokio_rustls::TlsAcceptor;

use socket::PeerRule;
use token::Token;

/// Who is let in. Replaced as a whole when the settings are read again.
pub(super) struct AccessRules {
    /// Who may use the socket.
    pub(super) peers: PeerRule,
    /// What requests over the network have to show.
    pub(super) network: Option<Network>,
    /// The files of tokens and certificates as they were.
    files: Vec<Option<FileVersion>>,
}

/// What tells a file from one that took its place, or from itself with other contents: file system, inode, size and time of change.
type FileVersion = (u64, u64, u64, i64, i64);

/// How requests over the network are let in.
pub(super) struct Network {
    /// The address in the settings.
    pub(super) address: SocketAddr,
    /// The secret that opens all.
    pub(super) token: Token,
    /// One that opens the metrics alone.
    pub(super) metrics_token: Option<Token>,
    /// How they are encrypted.
    pub(super) tls: Option<TlsAcceptor>,
}

impl AccessRules {
    /// Reads everything that the settings name.
    ///
    /// # Errors
    ///
    /// What cannot be read or is not safe, and what to do.
    pub(super) fn read(settings: &ListenSettings) -> Result<Self> {
        let files = versions(settings); // before they are read: what changes meanwhile is read again
        Ok(Self { peers: PeerRule::of(settings)?, network: Network::read(settings)?, files })
    }

    /// The same with the network's files as they are now.
    ///
    /// # Errors
    ///
    /// As [`Self::read`].
    pub(super) fn renewed(&self, settings: &ListenSettings) -> Result<Self> {
        let files = versions(settings);
        Ok(Self { peers: self.peers.clone(), network: Network::read(settings)?, files })
    }

    /// Whether files that the settings name have changed since they were read.
    pub(super) fn are_outdated(&self, settings: &ListenSettings) -> bool {
        self.network.is_some() && versions(settings) != self.files
    }
}

impl Network {
    fn read(settings: &ListenSettings) -> Result<Option<Self>> {
        match (settings.tcp, &settings.token_file) {
            (None, _) => Ok(None),
            (Some(_), None) => Err(anyhow!("TCP needs a token; write listen.token_file too")),
            (Some(address), Some(file)) => Ok(Some(Network {
                address,
                token: token::read(file)?,
                metrics_token: settings.metrics_token_file.as_deref().map(token::read).transpose()?,
                tls: match (&settings.tls_certificate, &settings.tls_key) {
                    (Some(certificate), Some(key)) => Some(tls::acceptor(certificate, key)?),
                    _ => None,
                },
            })),
        }
    }
}

fn versions(settings: &ListenSettings) -> Vec<Option<FileVersion>> {
    let tokens = [&settings.token_file, &settings.metrics_token_file];
    let files = tokens.into_iter().chain([&settings.tls_certificate, &settings.tls_key]);
    files.map(|file| version(file.as_deref()?)).collect()
}

fn version(file: &Path) -> Option<FileVersion> {
    let found = fs::metadata(file).ok()?;
    Some((found.dev(), found.ino(), found.size(), found.ctime(), found.ctime_nsec()))
}

/// All that a server would refuse of these settings, and all that is not as they want it or is not safe, in lines.
pub(super) fn problems(settings: &ListenSettings) -> (Vec<anyhow::Error>, Vec<String>) {
    let (mut wrong, mut remarks) = (Vec::new(), Vec::new());
    match PeerRule::of(settings) {
        Ok(rule) => remarks.extend(rule.note),
        Err(error) => wrong.push(error),
    }
    wrong.extend(socket::check_place(&settings.socket).err());
    let Some(address) = settings.tcp else { return (wrong, remarks) };
    let tokens = [&settings.token_file, &settings.metrics_token_file];
    wrong.extend(tokens.into_iter().flatten().filter_map(|file| token::read(file).err()));
    match (&settings.tls_certificate, &settings.tls_key) {
        (Some(certificate), Some(key)) => wrong.extend(tls::acceptor(certificate, key).err()),
        _ if !address.ip().to_canonical().is_loopback() => remarks.push(format!(
            "listen.tcp: at {address} token and profiles go over the network in the clear; write listen.tls_certificate and \
             listen.tls_key, or listen at 127.0.0.1"
        )),
        _ => {}
    }
    (wrong, remarks)
}

/// Listens at an address.
///
/// # Errors
///
/// If it is not ours or is taken.
pub(super) fn tcp(address: SocketAddr) -> Result<TcpListener> {
    let listen = || {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok::<_, std::io::Error>(listener)
    };
    listen().map_err(|error| {
        let remedy = match error.raw_os_error() {
            Some(libc::EAFNOSUPPORT) => {
                "the service has no network; `systemctl cat sweetspot` says how to give it one"
            }
            _ => "write another address or port as listen.tcp",
        };
        anyhow!("cannot listen at {address} ({error}); {remedy}")
    })
}
