//! One request over the daemon's socket.

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use profile_files::names::visible;
use serde::Deserialize;
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::failure::{Failure, usage};

/// Longest answer that is read: a profile of a month is a hundredth of it.
const MOST: usize = 1 << 30;
/// What stays as it is in a path or a query.
const PLAIN: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'@').remove(b':');

/// How something is asked.
#[derive(Clone, Copy, Debug)]
pub(super) enum RequestMethod {
    Get,
    Post,
    Delete,
}

/// Who is asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Client<'a> {
    /// The daemon's socket.
    pub(super) socket: &'a Path,
}

/// A text as a part of a path or a query.
pub(super) fn quoted(text: &str) -> String {
    utf8_percent_encode(text, &PLAIN).to_string()
}

impl Client<'_> {
    /// Asks, and waits for the whole answer, at most `patience`.
    ///
    /// # Errors
    ///
    /// If nobody answers, it is not permitted, or what is asked is refused.
    pub(super) fn ask(
        self,
        method: RequestMethod,
        path: &str,
        body: Option<Vec<u8>>,
        patience: Duration,
    ) -> Result<Vec<u8>> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| anyhow!("no connection can be made ({error}); raise the limit of open files"))?;
        // Made inside: a timeout needs the runtime's clock.
        let answered = runtime.block_on(async { timeout(patience, self.exchange(method, path, body)).await });
        let (status, body) = answered.map_err(|_| {
            let shown = self.socket.display();
            anyhow!("sweetspot at {shown} did not answer within {} s; look at its log", patience.as_secs())
        })??;
        if status.is_success() { Ok(body.into()) } else { Err(refused(status, &body)) }
    }

    async fn exchange(
        self,
        method: RequestMethod,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<(StatusCode, Bytes)> {
        let shown = self.socket.display();
        let broken = |error: &dyn std::fmt::Display| {
            anyhow!("sweetspot at {shown} closed the connection ({error}); look at its log and try again")
        };
        let stream = UnixStream::connect(self.socket).await.map_err(|error| self.unreached(&error))?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| broken(&error))?;
        let request = Request::builder()
            .method(match method {
                RequestMethod::Get => "GET",
                RequestMethod::Post => "POST",
                RequestMethod::Delete => "DELETE",
            })
            .uri(path)
            .header(HOST, "localhost")
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body.unwrap_or_default())))
            .map_err(|_| usage("the request is too long; give shorter names and labels"))?;
        let exchange = async {
            let response = sender.send_request(request).await.map_err(|error| broken(&error))?;
            let status = response.status();
            let body = Limited::new(response.into_body(), MOST).collect().await;
            Ok((status, body.map_err(|error| broken(&error))?.to_bytes()))
        };
        let connection = async {
            let _ = connection.await; // what went wrong is what the request meets
            std::future::pending::<()>().await;
        };
        tokio::select! {
            exchanged = exchange => exchanged,
            () = connection => bail!("sweetspot at {shown} closed the connection; try again"),
        }
    }

    fn unreached(self, error: &std::io::Error) -> anyhow::Error {
        let shown = self.socket.display();
        if error.kind() == ErrorKind::PermissionDenied {
            let text = format!(
                "{shown} may not be opened by this user; run as root, or become a member of its group (`ls -l {shown}` \
                 shows which)"
            );
            return Failure::NotPermitted(text).into();
        }
        anyhow!(
            "no sweetspot answers at {shown} ({error}); start it (`systemctl start sweetspot`), or name its socket with \
             --socket"
        )
    }
}

#[derive(Deserialize)]
struct ProblemBody {
    detail: String,
}

/// What the daemon said.
fn refused(status: StatusCode, body: &[u8]) -> anyhow::Error {
    let said = serde_json::from_slice::<ProblemBody>(body).map(|problem| visible(&problem.detail));
    let text = said.unwrap_or_else(|_| format!("sweetspot answered {status}; does it have another version?"));
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Failure::NotPermitted(text).into(),
        StatusCode::BAD_REQUEST => usage(text),
        _ => anyhow!(text),
    }
}
