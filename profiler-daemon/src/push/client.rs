//! One request to a backend by HTTP, bounded in time and in the size of its answer.

use std::cell::Cell;
use std::fmt;
use std::io::Read;
use std::time::Duration;

use ureq::http::header::{CONTENT_ENCODING, CONTENT_TYPE, EXPECT};
use ureq::http::{HeaderName, HeaderValue, Response};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::unversioned::resolver::DefaultResolver;
use ureq::{Agent, Body};

use super::answer::PushAnswer;
use super::early_answer::EarlyAnswers;
use super::receiver::Receiver;
use super::trouble::{PushError, unreached};

/// What requests say that they come from.
pub(super) const USER_AGENT: &str = concat!("sweetspot/", env!("CARGO_PKG_VERSION"));

/// Longest answer that is read: what acknowledges a profile has a few bytes.
pub(super) const LONGEST_ANSWER: u64 = 64 << 10;

/// Of a longer body, a backend may say that it takes none before it is sent. Of a shorter one it has all by then.
const LONG_BODY: usize = 64 << 10;

/// The answer of a backend, or of a proxy, that knows nothing of that: the request is to be repeated without (RFC 9110, 10.1.1).
const EXPECTATION_FAILED: u16 = 417;

/// How a backend is reached.
pub(crate) struct PushAccess {
    /// Headers of every request; their values are secrets.
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    /// Whom to trust instead of the public authorities.
    pub(crate) authorities: Option<Vec<Certificate<'static>>>,
    /// For one request, to the end of its answer.
    pub(crate) timeout: Duration,
}

/// Something to be posted.
pub(super) struct Post {
    /// What follows the address, without the `?`.
    pub(super) query: Option<String>,
    pub(super) content_type: &'static str,
    /// What else the format has in the head.
    pub(super) header: Option<(HeaderName, HeaderValue)>,
    /// Whether `body` has to be unpacked to be of this type.
    pub(super) is_compressed: bool,
    pub(super) body: Vec<u8>,
}

/// A backend that is reached by HTTP.
pub(super) struct HttpClient {
    receiver: Receiver,
    headers: Vec<(HeaderName, HeaderValue)>,
    timeout: Duration,
    agent: Agent,
    /// Whether long bodies wait until the backend says that it takes them.
    expects: Cell<bool>,
}

impl fmt::Debug for PushAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&HeaderName> = self.headers.iter().map(|(name, _)| name).collect();
        f.debug_struct("PushAccess")
            .field("headers", &names)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

/// What sends requests to one address: it follows no redirect, so that profiles and tokens go nowhere else.
pub(crate) fn agent(timeout: Duration, authorities: Option<&[Certificate<'static>]>) -> Agent {
    let mut tls = TlsConfig::builder();
    if let Some(authorities) = authorities {
        tls = tls.root_certs(RootCerts::new_with_certs(authorities));
    }
    let settings = Agent::config_builder()
        .timeout_global(Some(timeout))
        .max_redirects(0)
        .http_status_as_error(false)
        .proxy(ureq::Proxy::try_from_env())
        .tls_config(tls.build())
        .user_agent(USER_AGENT)
        .build();
    Agent::with_parts(settings, EarlyAnswers::default(), DefaultResolver::default())
}

impl HttpClient {
    /// Knows the backend; nothing is sent yet.
    pub(super) fn new(receiver: &Receiver, access: &PushAccess) -> Self {
        let agent = agent(access.timeout, access.authorities.as_deref());
        let headers = access.headers.clone();
        Self { receiver: receiver.clone(), headers, timeout: access.timeout, agent, expects: Cell::new(true) }
    }

    /// Sends it and reads the whole answer, whatever it says.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub(super) fn post(&self, post: &Post) -> Result<PushAnswer, PushError> {
        let expects = self.expects.get() && post.body.len() > LONG_BODY;
        let answer = self.attempt(post, expects)?;
        if expects && answer.status == EXPECTATION_FAILED {
            self.expects.set(false);
            return self.attempt(post, false);
        }
        Ok(answer)
    }

    fn attempt(&self, post: &Post, expects: bool) -> Result<PushAnswer, PushError> {
        let url = match &post.query {
            Some(query) => format!("{}?{query}", self.receiver.url),
            None => self.receiver.url.clone(),
        };
        let mut request = self.agent.post(url).header(CONTENT_TYPE, post.content_type);
        if post.is_compressed {
            request = request.header(CONTENT_ENCODING, "gzip");
        }
        if expects {
            request = request.header(EXPECT, "100-continue");
        }
        for (name, value) in self.headers.iter().chain(&post.header) {
            request = request.header(name, value);
        }
        let failed = |error: &ureq::Error| unreached(&self.receiver.host, self.timeout, error);
        let response = request.send(post.body.as_slice()).map_err(|error| failed(&error))?;
        let (head, body) = self.read(response)?;
        Ok(PushAnswer::new(&head, body, &self.headers))
    }

    fn read(&self, response: Response<Body>) -> Result<(Response<()>, Vec<u8>), PushError> {
        let (head, body) = response.into_parts();
        let mut bytes = Vec::new();
        let read = body.into_reader().take(LONGEST_ANSWER + 1).read_to_end(&mut bytes);
        read.map_err(|error| unreached(&self.receiver.host, self.timeout, &error.into()))?;
        if bytes.len() as u64 > LONGEST_ANSWER {
            return Err(PushError::Receiver(format!(
                "{} answers with more than {} KiB; check that --to leads to a backend for profiles",
                self.receiver.host,
                LONGEST_ANSWER >> 10
            )));
        }
        Ok((Response::from_parts(head, ()), bytes))
    }
}
