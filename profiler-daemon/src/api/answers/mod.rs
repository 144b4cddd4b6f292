//! The answers.

pub(super) mod attach;
mod profile;
mod reading;
mod state;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequestParts, RawPathParams, Request};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Response, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::Serialize;
use tokio::time::timeout;

use super::params::Params;
use super::problem::Problem;
use super::routes::{Operation, Route};
use super::serve::Deadline;
use super::{Api, openapi};
use crate::service::command::{CommandRefused, DaemonCommand, ReplySender};
use crate::service::status_snapshot::StatusSnapshot;

/// An answer, or why there is none.
type Answer = Result<Response<Body>, Problem>;

/// A request whose head is understood.
struct Call<'a> {
    api: &'a Arc<Api>,
    parts: Parts,
    params: Params,
    /// The target in the path; empty where there is none.
    name: String,
}

/// Answers what was asked at `route`.
pub(super) async fn answer(api: &Arc<Api>, route: &'static Route, request: Request) -> Answer {
    let (mut parts, body) = request.into_parts();
    let params = Params::read(parts.uri.query(), route.parameters, &api.bounds)?;
    let name = target_name(&mut parts).await?;
    let call = Call { api, parts, params, name };
    match route.operation {
        Operation::Health => state::health(&call).await,
        Operation::Ready => state::ready(&call).await,
        Operation::Status => state::status(&call).await,
        Operation::Targets => state::targets(&call).await,
        Operation::Target => state::target(&call).await,
        Operation::Decisions => state::decisions(&call).await,
        Operation::Metrics => state::metrics(&call).await,
        Operation::Profile => profile::profile(&call).await,
        Operation::PprofProfile => profile::go(&call).await,
        Operation::PprofIndex => Ok(content("text/plain; charset=utf-8", profile::INDEX)),
        Operation::Attach => {
            let bytes = call.body(body).await?;
            attach::attach(&call, &bytes).await
        }
        Operation::Detach => state::detach(&call).await,
        Operation::Reload => state::reload(&call).await,
        Operation::Stop => state::stop(&call).await,
        Operation::Document => json(StatusCode::OK, &openapi::document()),
    }
}

/// The target that the path names. What cannot be a name is none.
async fn target_name(parts: &mut Parts) -> Result<String, Problem> {
    let named = RawPathParams::from_request_parts(parts, &()).await;
    let unreadable = |_| {
        Problem::new(StatusCode::NOT_FOUND, "the target's name in the path is not UTF-8; encode it as UTF-8")
    };
    let named = named.map_err(unreadable)?;
    let name = named.iter().next().map(|(_, name)| name.to_owned()).unwrap_or_default();
    let is_name = name.len() <= 256 && name.chars().all(|c| c.is_ascii_alphanumeric() || "-._@:".contains(c));
    if is_name { Ok(name) } else { Err(CommandRefused::Unknown(profile_files::names::visible(&name)).into()) }
}

impl Call<'_> {
    /// How everything is, as the loop published it last.
    async fn latest(&self) -> Result<Arc<StatusSnapshot>, Problem> {
        Ok(self.api.commands.latest().await?)
    }

    /// Whether the loop came round within the time in which it has to answer.
    fn is_alive(&self, latest: &StatusSnapshot) -> bool {
        u128::from(latest.age_ns()) <= self.api.bounds.answer.as_nanos()
    }

    /// Extends the request's deadline by this time, and by the time in which the loop and a reader have to answer.
    fn allow(&self, time: Duration) {
        if let Some(deadline) = self.parts.extensions.get::<Deadline>() {
            deadline.allow(time + self.api.bounds.answer * 3);
        }
    }

    /// Sends the loop a command, and waits no longer than a request may take.
    async fn command<T>(&self, command: impl FnOnce(ReplySender<T>) -> DaemonCommand) -> Result<T, Problem> {
        self.command_within(self.api.bounds.answer, command).await
    }

    async fn command_within<T>(
        &self,
        time: Duration,
        command: impl FnOnce(ReplySender<T>) -> DaemonCommand,
    ) -> Result<T, Problem> {
        match timeout(time, self.api.commands.request(command)).await {
            Ok(answer) => Ok(answer?),
            Err(_) => Err(no_answer_within(time)),
        }
    }

    /// The body, if it is JSON and no longer than it may be.
    async fn body(&self, body: Body) -> Result<Vec<u8>, Problem> {
        let kind =
            self.parts.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default().trim();
        if !kind.eq_ignore_ascii_case("application/json") {
            let detail = "the body has to be JSON; send it with Content-Type: application/json";
            return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail));
        }
        let most = self.api.bounds.body_bytes;
        let too_long = || {
            Problem::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                format!("the body is longer than {most} bytes; shorten it"),
            )
        };
        let length = self
            .parts
            .headers
            .get(CONTENT_LENGTH)
            .and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
        if length.is_some_and(|length| length > most) {
            return Err(too_long());
        }
        match timeout(self.api.bounds.body, Limited::new(body, most).collect()).await {
            Ok(Ok(whole)) => Ok(whole.to_bytes().to_vec()),
            Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_long()),
            Ok(Err(_)) => Err(Problem::bad("the body ended early; send all of it")),
            Err(_) => {
                Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "the body took too long; send it at once"))
            }
        }
    }
}

/// JSON.
fn json(status: StatusCode, value: &impl Serialize) -> Answer {
    let text = serde_json::to_vec(value)
        .map_err(|error| Problem::internal(format!("the answer cannot be written ({error})")))?;
    let mut response = content("application/json", text);
    *response.status_mut() = status;
    Ok(response)
}

/// Anything else.
fn content(kind: &'static str, body: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(body.into());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

fn no_answer_within(time: Duration) -> Problem {
    let detail = format!("the daemon did not answer within {} s; look at its log", time.as_secs_f64());
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
}
