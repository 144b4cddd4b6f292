//! Limits on what a client can use.

use std::time::Duration;

/// Limits that no settings change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ApiBounds {
    /// Request line and headers (bytes).
    pub(crate) head_bytes: usize,
    /// A request's body (bytes).
    pub(crate) body_bytes: usize,
    /// Time for a handshake, and for a request's head.
    pub(crate) head: Duration,
    /// Time for a request's body.
    pub(crate) body: Duration,
    /// Time until an answer begins, beside what the request itself asks to wait.
    pub(crate) answer: Duration,
    /// Time in which windows that are ended for a request have to be named and stored; with `rendering` less than `sweetspot ctl` waits.
    pub(crate) naming: Duration,
    /// Time in which a profile has to be added up and written.
    pub(crate) rendering: Duration,
    /// Time in which the client has to take the answer.
    pub(crate) taking: Duration,
    /// Time that a connection may rest between requests.
    pub(crate) rest: Duration,
    /// Connections of each listener at a time: a full network leaves the socket free. On the network, so many that have shown the
    /// token, and so many that have not.
    pub(crate) connections: usize,
    /// Those of one address on the network that have not shown the token.
    pub(crate) connections_each: usize,
    /// Profiles that are read and written at a time: each takes a core and some hundred bytes for each stack.
    pub(crate) renderings: usize,
    /// Memory of all profiles that wait until their clients have taken them (MiB); those of less than a MiB are not counted.
    pub(crate) answers_mib: usize,
    /// Longest range of time.
    pub(crate) range: Duration,
    /// Longest time that a request may have something sampled, or watched.
    pub(crate) seconds: Duration,
    /// Values of a parameter that may be repeated.
    pub(crate) repeated: usize,
    /// How often the files of tokens and certificates are looked at: they are renewed while the service runs.
    pub(crate) renewal: Duration,
    /// Time in which answers that have begun may end when the server stops.
    pub(crate) stopping: Duration,
}

impl Default for ApiBounds {
    fn default() -> Self {
        Self {
            head_bytes: 64 << 10,
            body_bytes: 64 << 10,
            head: Duration::from_secs(5),
            body: Duration::from_secs(10),
            answer: Duration::from_secs(30),
            naming: Duration::from_secs(60),
            rendering: Duration::from_secs(200),
            taking: Duration::from_secs(60),
            rest: Duration::from_secs(30),
            connections: 64,
            connections_each: 16,
            renderings: 2,
            answers_mib: 96,
            range: Duration::from_secs(31 * 86_400),
            seconds: Duration::from_secs(3600),
            repeated: 100,
            renewal: Duration::from_secs(30),
            stopping: Duration::from_millis(700),
        }
    }
}
