//! Encryption of the network, by rustls.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, anyhow};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::sys::root::{Link, open_regular};

/// A server with this certificate and key.
///
/// # Errors
///
/// If one of them cannot be read, or they do not belong together.
pub(super) fn acceptor(certificate: &Path, key: &Path) -> Result<TlsAcceptor> {
    let wrong = |path: &Path, reason: &dyn std::fmt::Display| {
        anyhow!("{} cannot be used ({reason}); name a PEM file that holds it", path.display())
    };
    // A pipe would be waited for.
    let opened = |path| open_regular(path, Link::Follow).map_err(|error| wrong(path, &error));
    let chain = CertificateDer::pem_reader_iter(opened(certificate)?)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| wrong(certificate, &error))?;
    if chain.is_empty() {
        return Err(wrong(certificate, &"there is no certificate in it"));
    }
    let key_der = PrivateKeyDer::from_pem_reader(opened(key)?).map_err(|error| wrong(key, &error))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key_der))
        .map_err(|error| wrong(key, &error))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
