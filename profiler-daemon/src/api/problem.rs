//! Errors as `application/problem+json` (RFC 9457) with one line for a person: what happened and what to do.

use axum::body::Body;
use axum::http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, Response, StatusCode};
use serde::Serialize;

use crate::service::command::CommandRefused;

/// The media type.
pub(crate) const PROBLEM_JSON: &str = "application/problem+json";

/// Why a request is not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    /// The status.
    pub(crate) status: StatusCode,
    /// What happened and what to do, in one line.
    pub(crate) detail: String,
    /// Methods that would do, for 405.
    pub(crate) allow: Option<String>,
}

#[derive(Serialize)]
struct Text<'a> {
    r#type: &'static str,
    title: &'static str,
    status: u16,
    detail: &'a str,
}

impl Problem {
    /// A problem of this status.
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into(), allow: None }
    }

    /// The request cannot mean anything.
    pub(crate) fn bad(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// Something of ours failed.
    pub(crate) fn internal(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, detail)
    }

    /// Too much at once.
    pub(crate) fn busy(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, detail)
    }

    /// There is no such path.
    pub(crate) fn no_such_path() -> Self {
        Self::new(StatusCode::NOT_FOUND, "there is no such path; /v1/openapi.json lists them")
    }

    /// As it is sent.
    pub(crate) fn into_response(self) -> Response<Body> {
        let detail = self.detail.replace(['\n', '\r'], " ");
        let text = Text {
            r#type: "about:blank",
            title: self.status.canonical_reason().unwrap_or("Error"),
            status: self.status.as_u16(),
            detail: &detail,
        };
        let body = serde_json::to_vec(&text).unwrap_or_default();
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        match self.status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
            }
            StatusCode::UNAUTHORIZED => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"sweetspot\""));
            }
            _ => {}
        }
        if let Some(allow) = self.allow.and_then(|methods| HeaderValue::try_from(methods).ok()) {
            headers.insert(ALLOW, allow);
        }
        response
    }
}

impl From<CommandRefused> for Problem {
    fn from(refused: CommandRefused) -> Self {
        let status = match &refused {
            CommandRefused::Unknown(_) => StatusCode::NOT_FOUND,
            CommandRefused::Conflict(_) => StatusCode::CONFLICT,
            CommandRefused::Invalid(_) => StatusCode::UNPROCESSABLE_ENTITY,
            CommandRefused::Busy(_) => StatusCode::TOO_MANY_REQUESTS,
            CommandRefused::Stopping => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self::new(status, refused.to_string())
    }
}
