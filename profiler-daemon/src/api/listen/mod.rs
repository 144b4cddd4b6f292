//! Listeners: sockets, tokens and certificates, prepared from the settings before anything changes, so that
//! settings that cannot be applied leave everything as it was.

pub(super) mod socket;
mod tls;
pub(super) mod token;

use std::net::{SocketAddr, TcpListener};

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
}

/// How requests over the network are let in.
pub(super) struct Network {
    /// The address in the settings.
    pub(super) address: SocketAddr,
    /// The secret.
    pub(super) token: Token,
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
        let peers = PeerRule::of(settings)?;
        let network = match (settings.tcp, &settings.token_file) {
            (None, _) => None,
            (Some(_), None) => return Err(anyhow!("TCP needs a token; write listen.token_file too")),
            (Some(address), Some(file)) => Some(Network {
                address,
                token: token::read(file)?,
                tls: match (&settings.tls_certificate, &settings.tls_key) {
                    (Some(certificate), Some(key)) => Some(tls::acceptor(certificate, key)?),
                    _ => None,
                },
            }),
        };
        Ok(Self { peers, network })
    }
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
    wrong.extend(settings.token_file.as_ref().and_then(|file| token::read(file).err()));
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
