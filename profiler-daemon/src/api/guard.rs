//! Access control, decided from the head of a request before anything else of it is read.

use std::net::IpAddr;
use std::sync::Arc;

use axum::http::header::{AUTHORIZATION, HOST, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};

use super::listen::{AccessRules, Network};
use super::problem::Problem;
use crate::sys::peer::Peer;

/// The other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Requester {
    /// Somebody on the socket, who may use it or not: that is asked for each request, since settings change.
    Peer(Arc<Peer>),
    /// Somebody on the network.
    Network {
        /// Our address of this connection.
        here: IpAddr,
        /// The other end's.
        from: IpAddr,
        /// The name that the certificate was checked for.
        name: Option<String>,
    },
}

/// What a request over the network has to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needs {
    /// Nothing: the answer tells no secret.
    Nothing,
    /// The token, or the one for metrics.
    MetricsToken,
    /// The token.
    Token,
}

/// Whether a request may be answered.
///
/// # Errors
///
/// Why not, and what to do.
pub(super) fn admit(
    rules: &AccessRules,
    caller: &Requester,
    uri: &Uri,
    headers: &HeaderMap,
    needs: Needs,
) -> Result<(), Problem> {
    if headers.contains_key(ORIGIN) {
        return Err(Problem::new(
            StatusCode::FORBIDDEN,
            "requests from browser pages are refused; use `sweetspot ctl` or curl",
        ));
    }
    let hosts = hosts(uri, headers)?;
    match caller {
        Requester::Peer(peer) if rules.peers.admits(peer) => check_local(&hosts),
        Requester::Peer(peer) => Err(Problem::new(
            StatusCode::FORBIDDEN,
            format!(
                "user {} may not use this socket; run as root or as a member of the group in listen.group",
                peer.user
            ),
        )),
        Requester::Network { here, name, .. } => {
            let Some(network) = &rules.network else {
                return Err(Problem::new(
                    StatusCode::FORBIDDEN,
                    "the settings no longer allow requests over the network; use the socket",
                ));
            };
            check_name(&hosts, network, *here, name.as_deref())?;
            check_token(network, headers, needs)
        }
    }
}

/// The names that the request says it is for.
fn hosts(uri: &Uri, headers: &HeaderMap) -> Result<Vec<String>, Problem> {
    let unclear = || Problem::bad("the Host header is not one host with or without a port; send it once");
    let mut hosts = Vec::new();
    let mut values = headers.get_all(HOST).iter();
    // No name at all is what some clients send over a socket.
    if let Some(value) = values.next().filter(|value| !value.is_empty()) {
        let authority =
            value.to_str().ok().and_then(|text| text.parse::<Authority>().ok()).ok_or_else(unclear)?;
        if authority.as_str().contains('@') {
            return Err(unclear());
        }
        hosts.push(authority.host().to_ascii_lowercase());
    }
    if values.next().is_some() {
        return Err(unclear());
    }
    hosts.extend(uri.host().map(str::to_ascii_lowercase));
    Ok(hosts)
}

fn address(host: &str) -> Option<IpAddr> {
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

fn misdirected(host: &str, instead: &str) -> Problem {
    let detail = format!("this is not {}; use {instead}", profile_files::names::visible(host));
    Problem::new(StatusCode::MISDIRECTED_REQUEST, detail)
}

/// On the socket any local name will do. A name with a dot would come from a page whose name was made to point to a relay.
fn check_local(hosts: &[String]) -> Result<(), Problem> {
    let is_local = |host: &String| {
        address(host)
            .map_or(!host.contains('.') || host.ends_with(".localhost"), |address| address.is_loopback())
    };
    match hosts.iter().find(|host| !is_local(host)) {
        Some(host) => Err(misdirected(host, "localhost")),
        None => Ok(()),
    }
}

/// On the network: our address, or localhost where that is what it is. With a certificate also the name that it was
/// checked for: no page can have another one's checked.
fn check_name(hosts: &[String], network: &Network, here: IpAddr, name: Option<&str>) -> Result<(), Problem> {
    let here = here.to_canonical();
    let is_ours = |host: &String| match address(host) {
        Some(address) => address.to_canonical() == here || address == network.address.ip(),
        None if name == Some(host) => true,
        None => here.is_loopback() && host == "localhost",
    };
    let instead = || network.address.to_string();
    if hosts.is_empty() {
        return Err(Problem::new(
            StatusCode::MISDIRECTED_REQUEST,
            format!("there is no Host header; send Host: {}", instead()),
        ));
    }
    match hosts.iter().find(|host| !is_ours(host)) {
        Some(host) => Err(misdirected(host, &instead())),
        None => Ok(()),
    }
}

fn check_token(network: &Network, headers: &HeaderMap, needs: Needs) -> Result<(), Problem> {
    if needs == Needs::Nothing {
        return Ok(());
    }
    let wanted = || {
        let detail = "a token is needed; send the line of listen.token_file as `Authorization: Bearer TOKEN`";
        Problem::new(StatusCode::UNAUTHORIZED, detail)
    };
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let shown = values.next().and_then(bearer).ok_or_else(wanted)?;
    let is_for_metrics = network.metrics_token.as_ref().is_some_and(|token| token.is(shown));
    if values.next().is_none() && (network.token.is(shown) || is_for_metrics && needs == Needs::MetricsToken)
    {
        return Ok(());
    }
    let wrong = if is_for_metrics { "this token is for /metrics alone" } else { "this is not the token" };
    let detail = format!("{wrong}; send the line of listen.token_file as `Authorization: Bearer TOKEN`");
    Err(Problem::new(StatusCode::UNAUTHORIZED, detail))
}

/// The token in an `Authorization` header.
fn bearer(value: &HeaderValue) -> Option<&[u8]> {
    let (scheme, token) = value.as_bytes().split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| token.trim_ascii())
}
